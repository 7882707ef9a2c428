//! Cancels that go on through nested calls, where a handler says so.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::process::{Service, client_for, serve_if_asked};
use crate::common::{PATIENCE, TRANSPORTS, bounded, builder};
use margo::{
    ForwardError, ForwardRequest, Handle, Instance, OneWay, ProviderHandle, Rpc,
    cancel::CancelReason, cancel::CancelToken,
};
use ult::{Eventual, channel};

const HOLD: Rpc<u32, u32> = Rpc::new("hold");
/// Calls `HOLD` at the last one of a chain, in the way of that number.
const RELAY: Rpc<usize, u32> = Rpc::new("relay");
/// Relays from process to process; the argument lists the addresses that are left.
const PASS_ON: Rpc<Vec<String>, ()> = Rpc::new("pass_on");
/// Answers when `PASS_ON` has come.
const ARRIVED: Rpc<(), ()> = Rpc::new("arrived");
/// Answers with the reason why the token of `PASS_ON` has fired, when it has.
const REASON: Rpc<(), String> = Rpc::new("reason");
const TELL: OneWay<u32> = OneWay::new("tell");

const CHAINS: [&str; 3] = [TRANSPORTS[0], TRANSPORTS[1], "na+sim://"];

type Nested = Result<u32, ForwardError>;
type Way = fn(&Instance, &ProviderHandle) -> Nested;

/// All the ways of a call.
const WAYS: [Way; 8] = [
    |own, to| own.forward(HOLD, to, &1),
    |own, to| own.forward_timed(HOLD, to, &1, PATIENCE),
    |own, to| own.rpc(HOLD, to, &1).start()?.wait(),
    |own, to| own.rpc(HOLD, to, &1).timeout(PATIENCE).start()?.wait(),
    |own, to| ult::block_on(own.rpc(HOLD, to, &1).start()?),
    |own, to| margo::wait_all([own.rpc(HOLD, to, &1).start()?]).remove(0),
    |own, to| margo::wait_any(&mut vec![own.rpc(HOLD, to, &1).start()?]).unwrap().1,
    |own, to| {
        let (sender, receiver) = channel::unbounded();
        own.rpc(HOLD, to, &1).call_back(move |end| sender.send(end).unwrap())?;
        receiver.recv_timeout(PATIENCE).unwrap()
    },
];

/// Three instances, of which the second one calls the last one for the first one.
struct Chain {
    origin: Instance,
    middle: Instance,
    last: Instance,
    /// The requests that the last one has.
    held: channel::Receiver<(CancelToken, Handle<u32, u32>)>,
    /// The token of the second one, and how its nested call ended.
    nested: channel::Receiver<(CancelToken, Nested)>,
}

impl Chain {
    /// Handlers of the second one call by `call`, which has their token.
    fn new(
        transport: &str,
        call: impl Fn(&CancelToken, &Handle<usize, u32>, &ProviderHandle) -> Nested
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let start = || builder(transport).start().unwrap();
        let (origin, middle, last) = (start(), start(), start());
        let (sender, held) = channel::unbounded();
        let hold = move |handle: Handle<u32, u32>| {
            sender.send((handle.cancel_token(), handle)).unwrap();
        };
        last.register(HOLD, hold).unwrap();
        let to = ProviderHandle::from(middle.lookup(last.self_addr().uri()).unwrap());
        let (sender, nested) = channel::unbounded();
        let relay = move |handle: Handle<usize, u32>| {
            let token = handle.cancel_token();
            let end = call(&token, &handle, &to);
            // Whoever has canceled does not see it.
            if let Ok(value) = &end {
                let _ = handle.respond(value);
            }
            sender.send((token, end)).unwrap();
        };
        middle.register(RELAY, relay).unwrap();
        Self { origin, middle, last, held, nested }
    }

    fn target(&self) -> ProviderHandle {
        ProviderHandle::from(self.origin.lookup(self.middle.self_addr().uri()).unwrap())
    }

    fn begin(&self, way: usize) -> ForwardRequest<u32> {
        self.origin.rpc(RELAY, &self.target(), &way).start().unwrap()
    }

    fn held(&self) -> (CancelToken, Handle<u32, u32>) {
        self.held.recv_timeout(PATIENCE).unwrap()
    }

    fn nested(&self) -> (CancelToken, Nested) {
        self.nested.recv_timeout(PATIENCE).unwrap()
    }

    fn end(self) {
        for instance in [self.origin, self.middle, self.last] {
            instance.finalize_and_wait().unwrap();
        }
    }
}

fn on_each_chain(
    call: impl Fn(&CancelToken, &Handle<usize, u32>, &ProviderHandle) -> Nested
    + Copy
    + Send
    + Sync
    + 'static,
    body: impl Fn(Chain) + Copy + Send + 'static,
) {
    for transport in CHAINS {
        bounded(transport, move || body(Chain::new(transport, call)));
    }
}

fn reason_of(token: &CancelToken) -> CancelReason {
    token.wait_timeout(PATIENCE).unwrap()
}

fn is_canceled(end: &Nested, never_ran: bool) -> bool {
    let is_it = matches!(end, Err(ForwardError::Canceled { rpc: "hold", .. }));
    is_it && end.as_ref().is_err_and(|error| error.never_ran() == never_ran)
}

#[test]
fn a_cancel_goes_down_a_chain_however_the_nested_call_is_made() {
    on_each_chain(
        |token, handle, to| token.cancels_calls_in(|| WAYS[*handle.args()](handle.instance(), to)),
        |chain| {
            for way in 0..WAYS.len() {
                let first = chain.begin(way);
                let (token, handle) = chain.held();
                assert!(!token.is_canceled());
                first.cancel();
                assert!(matches!(first.wait(), Err(ForwardError::Canceled { .. })));
                assert_eq!(reason_of(&token), CancelReason::Canceled, "way {way}");
                let (_, end) = chain.nested();
                assert!(is_canceled(&end, false), "way {way}: {end:?}");
                drop(handle);
                // Who waits gets an answer.
                let first = chain.begin(way);
                let (_, handle) = chain.held();
                handle.respond(&7).unwrap();
                assert_eq!(first.wait().unwrap(), 7, "way {way}");
                assert_eq!(chain.nested().1.unwrap(), 7, "way {way}");
            }
            chain.end();
        },
    );
}

/// A nested call outside of the token's scope goes on, although the handler has the token.
#[test]
fn a_nested_call_goes_on_if_nobody_says_otherwise() {
    on_each_chain(
        |token, handle, to| {
            let call = || WAYS[*handle.args()](handle.instance(), to);
            token.cancels_calls_in(|| ());
            match *handle.args() {
                0 => call(),
                1 => token.cancels_calls_in(|| margo::cancel::without_deadline(call)),
                // ULTs that are spawned there have no scope.
                _ => token.cancels_calls_in(|| {
                    let (own, to) = (handle.instance().clone(), to.clone());
                    let call = move || own.forward(HOLD, &to, &1);
                    handle.instance().layout().rpc_pool().spawn(call).unwrap().join().unwrap()
                }),
            }
        },
        |chain| {
            for way in 0..3 {
                let first = chain.begin(way);
                let (token, handle) = chain.held();
                drop(first);
                // What comes behind a cancel tells that it is there, too; at first that of the
                // first one, then that which the second one would have sent.
                for (from, to) in [(&chain.origin, &chain.middle), (&chain.middle, &chain.last)] {
                    let to = ProviderHandle::from(from.lookup(to.self_addr().uri()).unwrap());
                    let unknown = from.forward_timed(REASON, &to, &(), PATIENCE).unwrap_err();
                    assert!(matches!(unknown, ForwardError::NotRegistered { .. }), "{unknown}");
                }
                assert!(!token.is_canceled(), "way {way}");
                handle.respond(&5).unwrap();
                let (own, end) = chain.nested();
                assert_eq!(reason_of(&own), CancelReason::Canceled);
                assert_eq!(end.unwrap(), 5, "way {way}");
            }
            chain.end();
        },
    );
}

#[test]
fn what_is_called_after_the_cancel_is_not_sent() {
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    on_each_chain(
        |token, handle, to| {
            BEGUN.fetch_add(1, Ordering::SeqCst);
            reason_of(token);
            let own = handle.instance();
            token.cancels_calls_in(|| {
                for way in WAYS {
                    let end = way(own, to);
                    assert!(is_canceled(&end, true), "{end:?}");
                }
                let told = own.send(TELL, to, &1).unwrap_err();
                assert!(matches!(told, ForwardError::Canceled { never_ran: true, .. }), "{told}");
                let told = own.rpc(TELL, to, &1).start_send().unwrap_err();
                assert!(matches!(told, ForwardError::Canceled { never_ran: true, .. }), "{told}");
            });
            own.forward(HOLD, to, &1)
        },
        |chain| {
            let before = BEGUN.load(Ordering::SeqCst);
            let first = chain.begin(0);
            while BEGUN.load(Ordering::SeqCst) == before {
                std::thread::yield_now();
            }
            first.cancel();
            assert!(matches!(first.wait(), Err(ForwardError::Canceled { .. })));
            let (_, handle) = chain.held();
            handle.respond(&3).unwrap();
            assert_eq!(chain.nested().1.unwrap(), 3);
            assert_eq!(chain.last.monitoring().stats().requests_received, 1);
            chain.end();
        },
    );
}

#[test]
fn the_innermost_token_counts_and_the_outer_one_after_it() {
    let chain = Chain::new("na+sm://", |_, _, _| Ok(0));
    // Of two requests at one instance, one of which is canceled.
    let (own, to) = (chain.middle.clone(), chain.origin.lookup(chain.last.self_addr().uri()));
    let to = ProviderHandle::from(to.unwrap());
    let [outer, inner] = [1, 2].map(|n| chain.origin.rpc(HOLD, &to, &n).start().unwrap());
    let mut held = [chain.held(), chain.held()];
    held.sort_by_key(|(_, handle)| *handle.args());
    let [(of_outer, _outer), (of_inner, _inner)] = held;
    outer.cancel();
    reason_of(&of_outer);
    let last = ProviderHandle::from(own.lookup(chain.last.self_addr().uri()).unwrap());
    let ((sender, made), (tell, ended)) = (channel::unbounded(), channel::unbounded());
    let call = move || {
        of_outer.cancels_calls_in(|| {
            let nested = of_inner.cancels_calls_in(|| own.rpc(HOLD, &last, &3).start()).unwrap();
            assert!(is_canceled(&own.forward(HOLD, &last, &4), true));
            let undone =
                margo::cancel::without_deadline(|| own.rpc(HOLD, &last, &5).start()).unwrap();
            assert!(is_canceled(&own.forward(HOLD, &last, &6), true));
            sender.send((nested, undone)).unwrap();
        });
        // After a panic, too.
        let asked = true;
        let scope = || of_outer.cancels_calls_in(|| assert!(!asked, "as asked"));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(scope));
        assert!(panicked.is_err());
        tell.send(own.forward(HOLD, &last, &7)).unwrap();
    };
    // In a ULT, and in a thread that is none.
    let pool = chain.middle.layout().rpc_pool();
    for in_ult in [true, false] {
        let call = call.clone();
        match in_ult {
            true => drop(pool.spawn(call).unwrap()),
            false => drop(std::thread::spawn(call)),
        }
        let mut arrived: Vec<_> = (0..3).map(|_| chain.held()).collect();
        arrived.sort_by_key(|(_, handle)| *handle.args());
        let numbers: Vec<_> = arrived.iter().map(|(_, handle)| *handle.args()).collect();
        assert_eq!(numbers, [3, 5, 7], "in a ULT: {in_ult}");
        for (_, handle) in arrived {
            handle.respond(handle.args()).unwrap();
        }
        assert_eq!(ended.recv_timeout(PATIENCE).unwrap().unwrap(), 7);
        let (nested, undone) = made.recv_timeout(PATIENCE).unwrap();
        assert_eq!((nested.wait().unwrap(), undone.wait().unwrap()), (3, 5));
    }
    drop(inner);
    drop((_outer, _inner));
    chain.end();
}

/// In another thread after the scope, or nowhere.
#[test]
fn calls_stay_tied_wherever_they_are_waited_for() {
    let chain = Chain::new("na+sm://", |token, handle, to| {
        let request = token.cancels_calls_in(|| handle.instance().rpc(HOLD, to, &1).start())?;
        token.cancels_calls_in(|| handle.instance().rpc(HOLD, to, &2).start())?.detach();
        let (sender, ended) = channel::unbounded();
        drop(std::thread::spawn(move || sender.send(request.wait()).unwrap()));
        ended.recv_timeout(PATIENCE).unwrap()
    });
    let first = chain.begin(0);
    let held = [chain.held(), chain.held()];
    first.cancel();
    for (token, _) in &held {
        assert_eq!(reason_of(token), CancelReason::Canceled);
    }
    drop(held);
    assert!(is_canceled(&chain.nested().1, false));
    chain.end();
}

#[test]
fn a_deadline_of_the_first_call_is_one_of_the_nested_call() {
    const SOON: Duration = Duration::from_millis(50);
    // A ULT of its own has no deadline, but for the token.
    for elsewhere in [false, true] {
        let chain = Chain::new("na+sm://", move |token, handle, to| {
            let (own, to, token) = (handle.instance().clone(), to.clone(), token.clone());
            let pool = own.layout().rpc_pool();
            let call = move || token.cancels_calls_in(|| own.forward(HOLD, &to, &1));
            if elsewhere { pool.spawn(call).unwrap().join().unwrap() } else { call() }
        });
        // On a loaded machine the time may be over before the last one has begun.
        loop {
            let first = chain.origin.forward_timed(RELAY, &chain.target(), &0, SOON);
            assert!(first.is_err());
            let Ok((token, handle)) = chain.held.try_recv() else { continue };
            let reason = reason_of(&token);
            match elsewhere {
                false => assert_eq!(reason, CancelReason::DeadlinePassed),
                true => assert_eq!(reason, CancelReason::Canceled),
            }
            drop(handle);
            break;
        }
        // Earlier ones may be among them.
        let mut ends = vec![chain.nested()];
        ends.extend(std::iter::from_fn(|| chain.nested.try_recv().ok()));
        for (_, end) in ends {
            let is_it = match elsewhere {
                false => matches!(end, Err(ForwardError::TimedOut { .. })),
                true => matches!(end, Err(ForwardError::Canceled { .. })),
            };
            assert!(is_it, "{end:?}");
        }
        chain.end();
    }
}

#[test]
fn an_answer_and_a_cancel_at_the_same_time_are_one_of_both() {
    const ROUNDS: usize = 200;
    bounded("rounds", || {
        for transport in CHAINS {
            let chain = Chain::new(transport, |token, handle, to| {
                token.cancels_calls_in(|| WAYS[*handle.args()](handle.instance(), to))
            });
            let answered = AtomicUsize::new(0);
            for round in 0..ROUNDS {
                let first = chain.begin(round % WAYS.len());
                let (_, handle) = chain.held();
                let both = Barrier::new(2);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        both.wait();
                        let _ = handle.respond(&9);
                    });
                    both.wait();
                    first.cancel();
                });
                match chain.nested().1 {
                    Ok(value) => {
                        assert_eq!(value, 9);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    end => assert!(is_canceled(&end, false), "{end:?}"),
                }
                if let Err(error) = first.wait() {
                    assert!(matches!(error, ForwardError::Canceled { .. }), "{error}");
                }
            }
            chain.end();
        }
    });
}

/// Not a test of its own: each process of the chain.
#[test]
fn service_process() {
    serve_if_asked(|own| {
        let (arrived, fired) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
        let (begin, tell) = (arrived.clone(), fired.clone());
        let pass_on = move |handle: Handle<Vec<String>, ()>| {
            let (own, token) = (handle.instance(), handle.cancel_token());
            let _ = begin.set(());
            if let [next, rest @ ..] = &handle.args()[..] {
                let to = ProviderHandle::from(own.lookup(next).unwrap());
                let rest = rest.to_vec();
                let _ = token.cancels_calls_in(|| own.forward(PASS_ON, &to, &rest));
            }
            let _ = tell.set(token.wait().to_string());
        };
        own.register(PASS_ON, pass_on).unwrap();
        own.serve(ARRIVED).function(move |()| *arrived.wait()).unwrap();
        own.serve(REASON).function(move |()| fired.wait().clone()).unwrap();
    });
}

#[test]
fn a_chain_of_processes_hears_that_its_first_one_cancels_or_is_killed() {
    for transport in TRANSPORTS {
        for killed in [false, true] {
            let mut chain: Vec<_> =
                (0..3).map(|_| Service::start(module_path!(), transport)).collect();
            let client = client_for(transport);
            let at =
                |service: &Service| ProviderHandle::from(client.lookup(&service.address).unwrap());
            let last = at(&chain[2]);
            let rest: Vec<_> = chain[1..].iter().map(|one| one.address.clone()).collect();
            let call = client.rpc(PASS_ON, &at(&chain[0]), &rest).start().unwrap();
            client.forward_timed(ARRIVED, &last, &(), PATIENCE).unwrap();
            let mut call = Some(call);
            match killed {
                false => drop(call.take()),
                true => chain[0].kill(),
            }
            let reason = client.forward_timed(REASON, &last, &(), PATIENCE).unwrap();
            assert_eq!(reason, CancelReason::Canceled.to_string());
            assert!(call.is_none_or(|call| call.wait().is_err()));
            drop(chain);
            client.finalize_and_wait().unwrap();
        }
    }
}
