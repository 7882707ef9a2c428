//! Answers whose outcome their handler asks for: sent, fetched, not fetched in time, not read.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::bulk_support::{Node, pattern};
use crate::common::process::{Service, asked};
use crate::common::{PATIENCE, TRANSPORTS, bounded, builder, on_each};
use futures_lite::future::block_on;
use margo::hg::{ForwardOptions, HgError, HgOptions, OpRef, margo as prefix, proc};
use margo::{Addr, Handle, Instance, ProviderId, RespondError, RespondRequest, ReturnCode, Rpc};

/// Answers what the test says.
const LIST: Rpc<(), Vec<u8>> = Rpc::new("list");

/// Far more than a message takes.
const LONG: usize = 200_000;
/// A time that passes.
const SHORTLY: Duration = Duration::from_millis(20);
/// In the child process: the address of the service that it is to call.
const CALLS: &str = "MARGO_TEST_ANSWERS_ORIGIN";

type Asked = Handle<(), Vec<u8>>;

/// A service whose handlers leave their requests to the test.
fn serve(transport: &str) -> (Instance, mpsc::Receiver<Asked>) {
    let service = builder(transport).start().unwrap();
    let (sender, requests) = mpsc::channel();
    service.register(LIST, move |handle| sender.send(handle).unwrap()).unwrap();
    (service, requests)
}

/// An origin that does nothing but when it is turned, so that it fetches no answer before.
struct Origin {
    node: Node,
    to: Addr,
    last: u32,
}

impl Origin {
    fn new(service: &str, options: HgOptions) -> Self {
        let own = service.split("://").next().unwrap();
        let node = Node::open(&format!("{own}://"), false, options);
        let to = node.core.lookup(service).unwrap();
        Self { node, to, last: 0 }
    }

    fn call(&mut self) -> OpRef {
        self.last += 1;
        let id = LIST.id(ProviderId::DEFAULT);
        let mut options = ForwardOptions::default();
        options.undeclared = true;
        let encode = |writer: &mut margo::hg::Writer| {
            prefix::write_request_prefix(writer, prefix::NO_PARENT)
        };
        self.node.core.forward(&self.to, id, options, encode, self.last).unwrap()
    }

    /// The result of the last call, or why there is none.
    fn result(&mut self) -> Result<Vec<u8>, HgError> {
        let until = Instant::now() + PATIENCE;
        loop {
            self.node.turn();
            let responses = &mut self.node.log.responses;
            if let Some(at) = responses.iter().position(|(token, _)| *token == self.last) {
                let response = responses.swap_remove(at).1?;
                let (code, body) = prefix::split_response(response.payload()).unwrap();
                assert_eq!(code, ReturnCode::Success);
                return Ok(proc::from_slice(body).unwrap());
            }
            assert!(Instant::now() < until, "a call does not end");
        }
    }

    /// Turns it until `done` says that it is.
    fn turn_until<T>(&mut self, mut done: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            self.node.turn();
            if let Some(result) = done() {
                return result;
            }
            assert!(Instant::now() < until, "it does not come to that");
        }
    }
}

/// A service, and an origin that the test turns.
struct Bed {
    service: Instance,
    requests: mpsc::Receiver<Asked>,
    origin: Origin,
}

impl Bed {
    fn new(transport: &str, of_origin: HgOptions) -> Self {
        let (service, requests) = serve(transport);
        let origin = Origin::new(service.self_addr().uri(), of_origin);
        Self { service, requests, origin }
    }

    /// A call, to be answered.
    fn ask(&mut self) -> Asked {
        self.ask_as().0
    }

    fn ask_as(&mut self) -> (Asked, OpRef) {
        let op = self.origin.call();
        let Self { requests, origin, .. } = self;
        (origin.turn_until(|| requests.try_recv().ok()), op)
    }

    /// Waits until the service keeps no answer any more.
    fn kept_none(&self) {
        let until = Instant::now() + PATIENCE;
        while self.service.metrics().memory.result_bytes_kept > 0 {
            assert!(Instant::now() < until, "an answer is kept");
            std::thread::yield_now();
        }
    }
}

fn on_each_bed(body: impl Fn(&mut Bed) + Send + Copy + 'static) {
    bounded("an answer", move || {
        for transport in TRANSPORTS {
            let mut bed = Bed::new(transport, HgOptions::default());
            body(&mut bed);
            bed.service.finalize_and_wait().unwrap();
        }
    });
}

fn long() -> Vec<u8> {
    pattern(LONG, 3)
}

/// A long answer, which nobody has fetched.
fn on_its_way(handle: &Asked) -> RespondRequest {
    let request = handle.irespond(&long()).unwrap();
    assert!(!request.test(), "it is not fetched");
    request
}

#[test]
fn an_answer_is_over_when_it_was_taken_or_fetched() {
    on_each_bed(|bed| {
        let handle = bed.ask();
        // One that fits into a message needs nobody at the other side.
        handle.irespond(&vec![1, 2, 3]).unwrap().wait().unwrap();
        assert_eq!(bed.origin.result().unwrap(), [1, 2, 3]);
        let handle = bed.ask();
        handle.respond_timed(&vec![4, 5], PATIENCE).unwrap();
        assert_eq!(bed.origin.result().unwrap(), [4, 5]);

        let handle = bed.ask();
        let request = on_its_way(&handle);
        assert_eq!(request.rpc_name(), "list");
        assert_eq!(request.origin(), handle.origin());
        assert_eq!(ult::wait_any(&[request.ready()], Some(Instant::now())), None);
        let request = request.try_wait().unwrap_err().wait_timeout(SHORTLY).unwrap_err();
        assert_eq!(bed.origin.result().unwrap(), long());
        let until = Instant::now() + PATIENCE;
        assert_eq!(bed.origin.turn_until(|| ult::wait_any(&[request.ready()], Some(until))), 0);
        assert!(request.test());
        request.try_wait().unwrap().unwrap();
        bed.kept_none();
    });
}

#[test]
fn threads_ults_and_tasks_wait_until_it_was_fetched() {
    on_each_bed(|bed| {
        let (handle, other) = (bed.ask(), bed.service.layout().rpc_pool());
        let waits = std::thread::spawn(move || handle.respond_timed(&long(), PATIENCE));
        assert_eq!(bed.origin.result().unwrap(), long());
        bed.origin.turn_until(|| waits.is_finished().then_some(()));
        waits.join().unwrap().unwrap();
        let handle = bed.ask();
        let waits = other.spawn(move || handle.irespond(&long())?.wait()).unwrap();
        assert_eq!(bed.origin.result().unwrap(), long());
        bed.origin.turn_until(|| waits.is_finished().then_some(()));
        waits.join().unwrap().unwrap();
        let request = on_its_way(&bed.ask());
        let waits = std::thread::spawn(move || block_on(request));
        assert_eq!(bed.origin.result().unwrap(), long());
        bed.origin.turn_until(|| waits.is_finished().then_some(()));
        waits.join().unwrap().unwrap();
    });
}

fn is_timed_out(result: Result<(), RespondError>, wanted: Duration) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, RespondError::TimedOut { limit, .. } if limit == wanted), "{error}");
    error.to_string()
}

#[test]
fn an_answer_that_is_not_fetched_ends_at_its_deadline() {
    on_each_bed(|bed| {
        let handle = bed.ask();
        let began = Instant::now();
        let told = is_timed_out(handle.respond_timed(&long(), SHORTLY), SHORTLY);
        assert!(began.elapsed() >= SHORTLY, "too early");
        assert!(told.contains("`list`") && told.contains(handle.origin().uri()), "{told}");
        // The first answer stands, such as it is.
        let again = handle.respond(&vec![1]);
        assert!(matches!(again, Err(RespondError::Answered { rpc: "list" })), "{again:?}");
        bed.kept_none();
        bed.origin.result().unwrap_err();

        is_timed_out(bed.ask().respond_timed(&long(), Duration::ZERO), Duration::ZERO);
        // Nobody looks.
        let handle = bed.ask();
        let request = handle.irespond_timed(&long(), SHORTLY).unwrap();
        let until = Some(Instant::now() + PATIENCE);
        assert_eq!(ult::wait_any(&[request.ready()], until), Some(0));
        is_timed_out(request.try_wait().unwrap(), SHORTLY);
        drop(bed.ask().irespond_timed(&long(), SHORTLY).unwrap());
        bed.kept_none();
        // A deadline that does not pass changes nothing.
        let request = bed.ask().irespond_timed(&long(), Duration::MAX).unwrap();
        assert_eq!(bed.origin.result().unwrap(), long());
        bed.origin.turn_until(|| request.test().then_some(()));
        request.wait().unwrap();
    });
}

#[test]
fn an_answer_may_be_taken_back_or_left_alone() {
    on_each_bed(|bed| {
        let request = on_its_way(&bed.ask());
        request.cancel();
        let error = request.wait().unwrap_err();
        assert!(matches!(error, RespondError::Canceled { rpc: "list", .. }), "{error}");
        bed.origin.result().unwrap_err();

        let request = on_its_way(&bed.ask());
        let canceler = request.canceler();
        drop(request);
        assert!(bed.service.metrics().memory.result_bytes_kept > 0, "dropped with it");
        canceler.cancel();
        bed.kept_none();
        bed.origin.result().unwrap_err();
        canceler.cancel();

        drop(on_its_way(&bed.ask()));
        assert_eq!(bed.origin.result().unwrap(), long());
    });
}

#[test]
fn who_answers_is_called_back() {
    on_each_bed(|bed| {
        let (sender, ends) = mpsc::channel();
        let callback = || {
            let sender = sender.clone();
            move |result: Result<(), RespondError>| {
                let is_ult = ult::current().is_some() && !ult::is_tasklet();
                sender.send((result, is_ult)).unwrap();
            }
        };
        let ended = |(result, is_ult): (Result<(), RespondError>, bool)| {
            assert!(is_ult, "the callback may wait");
            result
        };
        bed.ask().crespond(&vec![1], callback()).unwrap();
        ended(ends.recv().unwrap()).unwrap();
        bed.ask().crespond_timed(&long(), PATIENCE, callback()).unwrap();
        assert!(ends.recv_timeout(SHORTLY).is_err(), "before it was fetched");
        assert_eq!(bed.origin.result().unwrap(), long());
        ended(bed.origin.turn_until(|| ends.try_recv().ok())).unwrap();

        bed.ask().crespond_timed(&long(), SHORTLY, callback()).unwrap();
        is_timed_out(ended(ends.recv().unwrap()), SHORTLY);
        let handle = bed.ask();
        handle.crespond(&long(), callback()).unwrap().cancel();
        let error = ended(ends.recv().unwrap()).unwrap_err();
        assert!(matches!(error, RespondError::Canceled { .. }), "{error}");
        // None of one that there is not.
        let again = handle.crespond(&vec![1], callback());
        assert!(matches!(again, Err(RespondError::Answered { .. })), "{again:?}");
        drop(sender);
        let no_more = ends.recv_timeout(PATIENCE).map(|(result, _)| result);
        assert!(matches!(no_more, Err(mpsc::RecvTimeoutError::Disconnected)), "{no_more:?}");
    });
}

fn is_unread(result: Result<(), RespondError>, wanted: bool) {
    let error = result.unwrap_err();
    let is_it = matches!(error, RespondError::Unread { given_up, .. } if given_up == wanted);
    assert!(is_it && error.to_string().contains("has not read"), "{error}");
}

#[test]
fn an_origin_that_has_given_up_says_so() {
    on_each_bed(|bed| {
        let (handle, op) = bed.ask_as();
        bed.origin.node.core.cancel(op);
        let request = on_its_way(&handle);
        bed.origin.turn_until(|| request.test().then_some(()));
        is_unread(request.wait(), true);
        assert!(matches!(bed.origin.result(), Err(HgError::Canceled)));
    });
}

#[test]
fn an_origin_that_cannot_read_an_answer_says_so() {
    bounded("an answer that is too long", || {
        for transport in TRANSPORTS {
            let mut modest = HgOptions::default();
            modest.overflow_bytes_max = LONG / 2;
            let mut bed = Bed::new(transport, modest);
            let request = on_its_way(&bed.ask());
            let error = bed.origin.result().unwrap_err();
            assert!(error.to_string().contains("exceeds the limit"), "{error}");
            bed.origin.turn_until(|| request.test().then_some(()));
            is_unread(request.wait(), false);
            bed.service.finalize_and_wait().unwrap();
        }
    });
}

#[test]
fn an_instance_that_ends_ends_its_answers() {
    bounded("the end of a service", || {
        for transport in TRANSPORTS {
            let mut bed = Bed::new(transport, HgOptions::default());
            let (sender, ends) = mpsc::channel();
            let callback = move |result: Result<(), RespondError>| sender.send(result).unwrap();
            // Both before an answer: an origin that turns fetches it.
            let (first, second) = (bed.ask(), bed.ask());
            first.crespond(&long(), callback).unwrap();
            let request = on_its_way(&second);
            bed.service.finalize_and_wait().unwrap();
            for result in [request.wait(), ends.recv().unwrap()] {
                let error = result.unwrap_err();
                assert!(
                    matches!(error, RespondError::Network { source: HgError::Closed, .. }),
                    "{error}"
                );
            }
        }
    });
}

/// The answer of one that nobody waits for is over at once.
#[test]
fn an_answer_that_nobody_wants_is_over() {
    on_each(|pair| {
        let (sender, ends) = mpsc::channel();
        let handler = move |handle: Asked| {
            let request = handle.irespond(&long()).unwrap();
            sender.send((request.test(), request.wait())).unwrap();
        };
        pair.service.register(LIST, handler).unwrap();
        pair.client.send(LIST.without_response(), &pair.target(), &()).unwrap();
        let (is_over, end) = ends.recv_timeout(PATIENCE).unwrap();
        end.unwrap();
        assert!(is_over);
        pair.end();
    });
}

#[test]
fn a_tasklet_does_not_wait_and_its_answer_goes_on() {
    bounded("the answer of a tasklet", || {
        for transport in TRANSPORTS {
            let service = builder(transport).start().unwrap();
            let (sender, ends) = mpsc::channel();
            let handler = move |handle: Asked| {
                let request = handle.irespond(&long()).unwrap();
                let request = request.wait_deadline(Instant::now()).unwrap_err();
                sender.send(request.wait()).unwrap();
            };
            service.serve(LIST).tasklet().handler(handler).unwrap();
            let mut origin = Origin::new(service.self_addr().uri(), HgOptions::default());
            origin.call();
            let error = origin.turn_until(|| ends.try_recv().ok()).unwrap_err();
            assert!(matches!(error, RespondError::Tasklet { rpc: "list" }), "{error}");
            assert_eq!(origin.result().unwrap(), long());
            service.finalize_and_wait().unwrap();
        }
    });
}

/// Not a test of its own: an origin in a process of its own, which calls and looks after its call.
#[test]
fn service_process() {
    let Some(service) = asked(CALLS) else { return };
    let mut origin = Origin::new(&service, HgOptions::default());
    origin.call();
    // Until it is killed, at the latest with its parent.
    let _ = origin.result();
    panic!("it has got an answer");
}

/// An origin in another process, stopped when its request has come: the request.
fn stopped_origin(transport: &str) -> (Instance, Service, Asked) {
    let (service, requests) = serve(transport);
    let process = Service::spawn(module_path!(), CALLS, service.self_addr().uri());
    let handle = requests.recv_timeout(PATIENCE).unwrap();
    process.stop();
    (service, process, handle)
}

#[test]
fn an_origin_that_dies_before_it_has_fetched_its_answer_is_gone() {
    bounded("an answer to a killed process", || {
        for transport in TRANSPORTS {
            let (service, mut process, handle) = stopped_origin(transport);
            let request = handle.irespond_timed(&long(), PATIENCE * 10).unwrap();
            assert!(!request.test());
            process.kill();
            let error = request.wait().unwrap_err();
            let RespondError::Network { source: HgError::Na(source), .. } = &error else {
                panic!("{error}")
            };
            assert!(matches!(source, na::Error::PeerGone { .. }), "{error}");
            assert!(error.to_string().contains("`list`"), "{error}");
            service.finalize_and_wait().unwrap();
        }
    });
}

#[test]
fn an_origin_that_lives_and_does_not_fetch_is_waited_for_until_the_deadline() {
    bounded("an answer to a stopped process", || {
        for transport in TRANSPORTS {
            let (service, _process, handle) = stopped_origin(transport);
            let began = Instant::now();
            is_timed_out(handle.respond_timed(&long(), SHORTLY), SHORTLY);
            assert!(began.elapsed() >= SHORTLY);
            service.finalize_and_wait().unwrap();
        }
    });
}
