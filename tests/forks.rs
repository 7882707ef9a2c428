//! Forked child processes: a child's copy of an instance returns errors, and the parent's instance
//! is not harmed.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod bulk_support;
mod call_support;
mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bulk_support::idle::idle_owner;
use bulk_support::{Node, pattern};
use call_support::{HOLD, Held};
use common::{PATIENCE, TRANSPORTS, bounded, on_each};
use futures_lite::future::block_on;
use margo::hg::{BulkOp, HgError, HgOptions};
use margo::monitor::{Monitor, Statistics};
use margo::{
    Access, Bulk, BulkRequest, Exposed, ForwardError, ForwardRequest, Handle, Instance,
    ProviderHandle, ProviderId, RegisterError, RespondError, RespondRequest, Rpc,
    bulk_memory::BulkBuffer, cancel::CancelReason, cancel::CancelToken, device,
    elasticity::ElasticityError, errors::FinalizeError, errors::ProfileError, errors::TimerError,
};
use na::conformance::in_forked_child;

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const END: Rpc<(), ()> = Rpc::new("end");

/// Checks that a forked child gets errors from everything it uses, and does not hang.
fn use_all(
    own: Instance,
    timer: margo::timers::Timer,
    target: &ProviderHandle,
    (lent, mut buffer): (Exposed, BulkBuffer),
) -> Result<(), i32> {
    let check = |holds: bool, code: i32| if holds { Ok(()) } else { Err(code) };
    let forward = own.forward(SUM, target, &(1, 1));
    check(forward.is_err_and(|error| error.never_ran()), 2)?;
    check(own.memory().bulk_buffer(8).is_err(), 3)?;
    check(own.memory().expose_ref(&[0; 8], |_| ()).is_err(), 4)?;
    check(own.pull(&own.self_addr(), lent.bulk(), 0, &mut buffer, 0..8).is_err(), 5)?;
    check(lent.release().is_ok_and(|bytes| bytes == [5; 8]), 24)?;
    check(matches!(timer.restart(Duration::ZERO), Err(TimerError::Forked)), 6)?;
    check(matches!(timer.cancel(), Err(TimerError::Forked)), 7)?;
    check(own.on_finalize(|_| ()).is_err(), 8)?;
    check(matches!(own.register(END, |_| ()), Err(RegisterError::Forked)), 9)?;
    own.finalize();
    check(matches!(own.wait_for_finalize(), Err(FinalizeError::Forked)), 10)?;
    check(
        own.config().margo.address == "na+sm://" && own.monitoring().stats().requests_sent == 1,
        11,
    )?;
    check(own.monitoring().start_profiling() == Err(ProfileError::Forked), 12)?;
    own.monitoring().stop_profiling();
    let not_here = |error: std::io::Error| error.kind() == std::io::ErrorKind::Unsupported;
    check(own.monitoring().write_profile().is_err_and(not_here), 13)?;
    check(own.monitoring().write_monitor_files().is_err_and(not_here), 14)?;
    check(own.monitoring().monitor_dump(true)["series"]["pools"] == serde_json::json!({}), 15)?;
    own.monitoring().start_statistics(1);
    check(own.monitoring().statistics() == Statistics::default(), 16)?;
    drop(own.monitoring().add_monitor(Arc::new(Deaf)));
    let late = own.timer(|_| ());
    check(matches!(late.start(Duration::ZERO), Err(TimerError::Forked)), 17)?;
    drop(late);
    let forked = |changed: Result<(), ElasticityError>| {
        changed.is_err_and(|error| matches!(error, ElasticityError::Forked))
    };
    check(forked(own.layout().add_pool_from_json("{}").map(drop)), 18)?;
    check(forked(own.layout().remove_pool("__primary__")), 19)?;
    check(forked(own.layout().migrate_progress("__primary__")), 20)?;
    check(forked(own.layout().transfer_pool_content("__primary__", "__primary__").map(drop)), 21)?;
    let moved = own.layout().set_handler_pool(SUM, ProviderId::DEFAULT, &own.layout().rpc_pool());
    check(matches!(moved, Err(RegisterError::Forked)), 22)?;
    let child = Instance::builder("na+sm://").parent(&own).start();
    check(child.is_err_and(|error| error.to_string().contains("parent of this process")), 23)?;
    let metrics = own.metrics();
    check(
        metrics.address == own.self_addr().uri() && metrics.process.id == std::process::id(),
        24,
    )?;
    // Of these nothing is here, and whoever asks for them may wait for ever.
    check(metrics.pools.is_empty() && metrics.xstreams.is_empty(), 25)?;
    check(metrics.prometheus().contains("margo_phase{phase=\"running\"} 1"), 26)?;
    let dump = own.monitoring().state_dump_with_stacks();
    check(dump.busy_xstreams.is_empty() && dump.ults.is_empty() && dump.timers.is_empty(), 27)?;
    check(dump.metrics.address == metrics.address && dump.config.margo.address == "na+sm://", 28)?;
    drop(timer);
    drop(own);
    Ok(())
}

/// A monitor that does nothing.
struct Deaf;

impl Monitor for Deaf {}

#[test]
fn a_forked_child_gets_errors_and_the_parent_process_goes_on() {
    let own = Instance::builder("na+sm://").start().unwrap();
    own.serve(SUM).function(|(a, b)| a + b).unwrap();
    let target = ProviderHandle::from(own.self_addr());
    assert_eq!(own.forward(SUM, &target, &(1, 1)).unwrap(), 2);
    let (sender, ticks) = mpsc::channel();
    let timer = own.timer(move |_| sender.send(()).unwrap());
    timer.start_every(Duration::from_millis(5)).unwrap();
    let memory =
        (own.expose(vec![5; 8], Access::ReadOnly).unwrap(), own.memory().bulk_buffer(8).unwrap());
    // SAFETY: the child uses only what the C library keeps usable after a fork (memory), and ends
    // by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = use_all(own, timer, &target, memory).err().unwrap_or(0);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0, "cannot fork");
    let status = bounded("the forked child", move || {
        let mut status = -1;
        // SAFETY: a child of ours that nobody else waits for; the pointer is to a live variable.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        status
    });
    assert_eq!(libc::WEXITSTATUS(status), 0, "the step of `use_all` that failed");
    assert!(libc::WIFEXITED(status));
    // Nothing of the parent's has suffered.
    assert_eq!(own.forward(SUM, &target, &(20, 1)).unwrap(), 21);
    let (lent, mut buffer) = memory;
    own.pull(&own.self_addr(), lent.bulk(), 0, &mut buffer, 0..8).unwrap();
    assert_eq!(buffer[..], [5; 8]);
    while ticks.try_recv().is_ok() {}
    ticks.recv_timeout(PATIENCE).unwrap();
    assert!(timer.cancel().unwrap());
    own.finalize_and_wait().unwrap();
}

/// Handlers of the parent's provider may hold its locks, and never run on in the child.
#[test]
fn a_forked_child_leaves_the_provider_of_its_parent_as_it_is() {
    const OTHER: Rpc<(), u32> = Rpc::new("other");
    on_each(|pair| {
        let (service, held) = (&pair.service, Held::serve(&pair.service));
        let id = ProviderId::new(7);
        let own = service.layout().add_pool_from_json(r#"{ "name": "own" }"#).unwrap().pool;
        let mut provider = Some(service.provider_of(id, &service.layout().rpc_pool(), 5_u32));
        let there = |provider: &Option<margo::Provider<u32>>| {
            provider.as_ref().unwrap().serve(OTHER).returning_method(|n: &u32, _| *n)
        };
        there(&provider).unwrap();
        let call = pair.client.rpc(HOLD, &pair.target(), &1).start().unwrap();
        held.begun(1);
        let code = in_forked_child(&mut || {
            let mine = provider.take().ok_or(70)?;
            check(matches!(mine.set_pool(&own), Err(RegisterError::Forked)), 71)?;
            check(!mine.deregister(OTHER) && !service.deregister(OTHER, id), 72)?;
            check(matches!(mine.set_identity("x"), Err(RegisterError::Forked)), 73)?;
            check(!service.network().deregister_identity(id), 74)?;
            check(mine.pool() == service.layout().rpc_pool() && **mine.object() == 5, 75)?;
            let refused = mine.close(PATIENCE).err().ok_or(76)?;
            check(refused.requests() == 0 && refused.to_string().contains("forked"), 77)?;
            // Dropped there, too.
            drop(refused.into_provider());
            let late = service.provider(ProviderId::new(8), &own);
            check(matches!(late.register(OTHER, |_| ()), Err(RegisterError::Forked)), 78)
        });
        assert_eq!(code, 0, "the step that failed");
        let to = ProviderHandle::new(pair.target().addr().clone(), id);
        assert_eq!(pair.client.forward(OTHER, &to, &()).unwrap(), 5);
        provider.as_ref().unwrap().set_pool(&own).unwrap();
        assert_eq!(service.layout().handler_pool(OTHER, id).unwrap(), own);
        assert_eq!(*provider.take().unwrap().close(PATIENCE).unwrap(), 5);
        held.go(1);
        call.wait().unwrap();
        pair.end();
    });
}

#[test]
fn a_forked_child_does_not_keep_the_port_of_the_metrics() {
    let mut listen = String::from("127.0.0.1:0");
    // With a port that the system has chosen, and with one that was given.
    for _ in 0..2 {
        let own = Instance::builder("na+sm://").metrics_listen(&listen).start().unwrap();
        listen = own.monitoring().metrics_addr().unwrap().to_string();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let child = std::thread::spawn(move || {
            in_forked_child(&mut || {
                let begins = (&theirs).write_all(b"x");
                begins.and_then(|()| (&theirs).read_exact(&mut [0])).map_err(|_| 1)
            })
        });
        ours.read_exact(&mut [0]).unwrap();
        own.finalize_and_wait().unwrap();
        // Not bound anew by this test: a child of another test would keep such a listener.
        assert!(TcpStream::connect(&listen).is_err(), "the child listens");
        ours.write_all(b"x").unwrap();
        assert_eq!(child.join().unwrap(), 0);
    }
}

/// Forks, in a handler, a child that answers as well, and goes on switching between ULTs; its exit
/// status.
const FORK: Rpc<(), i32> = Rpc::new("fork");

/// Runs in a child that a handler forks off. Returns its exit status.
fn in_child_of_a_handler(request: &margo::Handle<(), i32>) -> i32 {
    let answered = request.respond(&0).is_err();
    // Long enough for its copy of the progress ULT to poll, and to be about to sleep.
    for _ in 0..100 {
        ult::yield_now();
    }
    ult::sleep(Duration::from_millis(30));
    if answered { 7 } else { 1 }
}

#[test]
fn a_child_that_a_handler_forks_off_leaves_the_network_alone() {
    for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let service = Instance::builder(transport).start().unwrap();
        service.serve(SUM).function(|(a, b)| a + b).unwrap();
        let fork = |request: margo::Handle<(), i32>| {
            let code = in_forked_child(&mut || Err(in_child_of_a_handler(&request)));
            let _ = request.respond(&code);
        };
        service.register(FORK, fork).unwrap();
        let client = Instance::builder(transport).listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        for round in 0..3 {
            let forked = client.rpc(FORK, &target, &()).timeout(PATIENCE).start().unwrap();
            // The service's only xstream waits for the child, which could take these.
            let mut sums = Vec::new();
            while !forked.test() && sums.len() < 200 {
                let n = sums.len() as i64;
                sums.push(client.rpc(SUM, &target, &(n, round)).timeout(PATIENCE).start().unwrap());
                std::thread::sleep(Duration::from_micros(300));
            }
            for (n, sum) in (0..).zip(sums) {
                assert_eq!(sum.wait().unwrap(), n + round, "over {transport}");
            }
            assert_eq!(forked.wait().unwrap(), 7, "what the child has come to, over {transport}");
        }
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

fn check(holds: bool, code: i32) -> Result<(), i32> {
    if holds { Ok(()) } else { Err(code) }
}

/// Returns whether a call is said to be the parent's, which may have run.
fn is_parents(result: Result<u32, ForwardError>) -> bool {
    result.is_err_and(|error| {
        !error.never_ran()
            && matches!(error, ForwardError::Network { source: HgError::InParent, .. })
    })
}

fn wait_for_calls(requests: &mut Vec<ForwardRequest<u32>>) -> Result<(), i32> {
    let mut next = || requests.pop().ok_or(30);
    check(is_parents(next()?.wait()), 31)?;
    let request = next()?;
    check(request.test() && ult::wait_any(&[request.ready()], None) == Some(0), 32)?;
    check(request.try_wait().is_ok_and(is_parents), 33)?;
    check(next()?.wait_timeout(PATIENCE).is_ok_and(is_parents), 34)?;
    check(is_parents(block_on(next()?)), 35)?;
    next()?.cancel();
    let all = margo::wait_all([next()?, next()?]);
    check(all.into_iter().all(is_parents), 36)?;
    let first = margo::wait_any(requests);
    check(first.is_some_and(|(at, result)| at == 0 && is_parents(result)), 37)?;
    requests.clear();
    Ok(())
}

#[test]
fn a_forked_child_does_not_wait_for_calls_of_its_parent() {
    const KEEP: Rpc<(), ()> = Rpc::new("keep");
    on_each(|pair| {
        let held = Held::serve(&pair.service);
        let (sender, kept) = mpsc::channel::<(CancelToken, Handle<(), ()>)>();
        let keep = move |handle: Handle<(), ()>| {
            sender.send((handle.cancel_token(), handle)).unwrap();
        };
        pair.service.register(KEEP, keep).unwrap();
        let target = pair.target();
        let start = |timed| match timed {
            false => pair.client.rpc(HOLD, &target, &1).start().unwrap(),
            true => pair.client.rpc(HOLD, &target, &1).timeout(PATIENCE * 10).start().unwrap(),
        };
        let mut requests: Vec<_> = (0..10).map(|n| start(n % 2 == 0)).collect();
        held.begun(requests.len());
        assert_eq!(
            in_forked_child(&mut || wait_for_calls(&mut requests)),
            0,
            "the step that failed"
        );
        let keeps = pair.client.rpc(KEEP, &target, &()).start().unwrap();
        let (token, handle) = kept.recv_timeout(PATIENCE).unwrap();
        let told = in_forked_child(&mut || {
            check(token.reason() == Some(CancelReason::Forked) && token.is_canceled(), 40)?;
            check(token.wait() == CancelReason::Forked, 41)?;
            check(token.wait_timeout(PATIENCE) == Some(CancelReason::Forked), 42)?;
            check(*token.event().wait() == CancelReason::Forked, 43)
        });
        assert_eq!(told, 0, "the step that failed");
        // The parent's go on, also those that the child has cancelled or dropped.
        assert!(!token.is_canceled());
        handle.respond(&()).unwrap();
        keeps.wait().unwrap();
        held.go(requests.len());
        for result in margo::wait_all(requests) {
            assert_eq!(result.unwrap(), 1);
        }
        pair.end();
    });
}

/// Owners of which a peer that stops in the middle of a transfer has not got everything: over
/// shared memory, where nobody attaches, the two copy by turns.
const OWNERS: [&str; 2] = [
    r#"{ "margo": { "address": "na+sm://", "network": { "cross_memory_attach": false } } }"#,
    r#"{ "margo": { "address": "na+tcp://127.0.0.1:0" } }"#,
];

/// Bytes, more than sockets and lanes hold.
const LONG: usize = 64 << 20;

/// A peer in the middle of fetching memory of which all bytes are [`Pulling::BYTE`].
struct Pulling {
    peer: Node,
    local: na::LocalMem,
}

impl Pulling {
    const BYTE: u8 = 7;

    fn begin(owner: &Instance, bulk: &Bulk) -> Self {
        let own = owner.self_addr();
        let scheme = own.uri().split("://").next().unwrap();
        let mut peer = Node::open(&format!("{scheme}://"), false, HgOptions::default());
        let local = peer.expose(vec![vec![0; LONG]], Access::ReadWrite);
        let addr = peer.core.lookup(own.uri()).unwrap();
        peer.core.transfer(BulkOp::Pull, &addr, bulk, 0, &local, 0, LONG as u64, 1).unwrap();
        let started = Instant::now();
        let mut first = [0];
        while first != [Self::BYTE] {
            peer.turn();
            assert!(local.read_at(0, &mut first));
            assert!(started.elapsed() < PATIENCE, "a transfer does not begin");
        }
        assert!(peer.log.bulks.is_empty(), "it is not in flight any more");
        Self { peer, local }
    }

    /// It goes on, whatever children have done.
    fn end(mut self) {
        let started = Instant::now();
        while self.peer.log.bulks.is_empty() {
            self.peer.turn();
            assert!(started.elapsed() < PATIENCE, "a transfer does not end");
        }
        self.peer.bulk_end(1).unwrap().unwrap();
        let bytes = bulk_support::contents(&self.local);
        assert!(bytes.iter().all(|byte| *byte == Self::BYTE));
        self.peer.core.close();
    }
}

// Slow: 64 MiB for each transport, copied and looked at in both processes.
#[test]
fn a_forked_child_has_its_copy_of_lent_memory_at_once() {
    for json in OWNERS {
        let owner = margo::init(json).unwrap();
        let mut lent = Some(owner.expose(vec![Pulling::BYTE; LONG], Access::ReadOnly).unwrap());
        let pulling = Pulling::begin(&owner, lent.as_ref().unwrap().bulk());
        let mut released = || lent.take().and_then(|lent| lent.release().ok()).ok_or(60);
        let of_child = in_forked_child(&mut || {
            let bytes = released()?;
            check(bytes.len() == LONG && bytes.iter().all(|byte| *byte == Pulling::BYTE), 61)
        });
        assert_eq!(of_child, 0, "the step that failed");
        // The parent's waits for the peer.
        let released = lent.take().unwrap();
        let released = std::thread::spawn(move || released.release().unwrap());
        pulling.end();
        assert_eq!(released.join().unwrap().len(), LONG);
        owner.finalize_and_wait().unwrap();
    }
}

// Slow: 64 MiB for each transport, copied and looked at in both processes.
#[test]
fn a_scope_ends_at_once_in_a_child_that_was_forked_off_in_it() {
    /// Seconds after which a child that hangs is ended.
    const CHILD_SECONDS: u32 = 30;
    for json in OWNERS {
        let owner = margo::init(json).unwrap();
        let (parent, data) = (std::process::id(), vec![Pulling::BYTE; LONG]);
        owner
            .memory()
            .expose_ref(&data, |bulk| {
                let pulling = Pulling::begin(&owner, bulk);
                // SAFETY: the child uses only what goes on without other threads, and ends by
                // `_exit`, or by a signal if it hangs.
                let child = unsafe { libc::fork() };
                assert!(child >= 0, "cannot fork");
                if child == 0 {
                    // SAFETY: no handler is set; the default ends the process.
                    unsafe { libc::alarm(CHILD_SECONDS) };
                    std::mem::forget(pulling);
                    return;
                }
                let mut status = -1;
                // SAFETY: a child of ours that nobody else waits for; the pointer is to a live
                // variable.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(waited, child);
                assert!(libc::WIFEXITED(status), "the child hangs");
                assert_eq!(libc::WEXITSTATUS(status), 0);
                pulling.end();
            })
            .unwrap();
        if std::process::id() != parent {
            let code = i32::from(data.iter().any(|byte| *byte != Pulling::BYTE));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        owner.finalize_and_wait().unwrap();
    }
}

/// Answers that were on their way at the fork.
fn wait_for_answers(requests: &mut Vec<RespondRequest>) -> Result<(), i32> {
    let is_parents = |result: Result<(), RespondError>| {
        result.is_err_and(|error| {
            matches!(error, RespondError::Network { source: HgError::InParent, .. })
        })
    };
    let mut next = || requests.pop().ok_or(80);
    check(is_parents(next()?.wait()), 81)?;
    let request = next()?;
    check(request.test() && ult::wait_any(&[request.ready()], None) == Some(0), 82)?;
    request.cancel();
    check(request.try_wait().is_ok_and(is_parents), 83)?;
    check(next()?.wait_timeout(PATIENCE).is_ok_and(is_parents), 84)?;
    check(is_parents(block_on(next()?)), 85)
}

#[test]
fn a_forked_child_does_not_wait_for_answers_of_its_parent() {
    const LIST: Rpc<(), Vec<u8>> = Rpc::new("list");
    on_each(|pair| {
        let (sender, requests) = mpsc::channel::<Handle<(), Vec<u8>>>();
        pair.service.register(LIST, move |handle| sender.send(handle).unwrap()).unwrap();
        let target = pair.target();
        let calls: Vec<_> =
            (0..4).map(|_| pair.client.rpc(LIST, &target, &()).start().unwrap()).collect();
        let handles: Vec<_> =
            calls.iter().map(|_| requests.recv_timeout(PATIENCE).unwrap()).collect();
        // The client fetches nothing meanwhile.
        let (held, go) = (ult::Eventual::<()>::new(), ult::Eventual::<()>::new());
        let progress = pair.client.layout().progress_pool();
        ult::scope(|scope| {
            let holds = scope.spawn(&progress, || {
                let _ = held.set(());
                let began = Instant::now();
                while !go.is_ready() && began.elapsed() < PATIENCE {
                    std::hint::spin_loop();
                }
            });
            let holds = holds.unwrap();
            held.wait();
            let start = |handle: &Handle<(), Vec<u8>>| handle.irespond(&pattern(100_000, 1));
            let mut answers: Vec<_> = handles.iter().map(|it| start(it).unwrap()).collect();
            assert!(!answers.iter().any(RespondRequest::test), "nobody fetches them");
            assert_eq!(
                in_forked_child(&mut || wait_for_answers(&mut answers)),
                0,
                "the step that failed"
            );
            let _ = go.set(());
            holds.join().unwrap();
            for answer in answers {
                answer.wait().unwrap();
            }
        });
        for call in margo::wait_all(calls) {
            assert_eq!(call.unwrap(), pattern(100_000, 1));
        }
        pair.end();
    });
}

fn wait_for_transfers(requests: &mut Vec<BulkRequest<BulkBuffer>>) -> Result<(), i32> {
    let mut next = || requests.pop().ok_or(50);
    let request = next()?.wait_timeout(PATIENCE).err().ok_or(51)?;
    let request = request.try_wait().err().ok_or(52)?;
    check(!request.test() && ult::wait_any(&[request.ready()], None) == Some(0), 53)?;
    request.cancel();
    let panics = |wait: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(wait)).is_err();
    let mut request = Some(request);
    check(panics(&mut || drop(request.take().map(BulkRequest::wait))), 54)?;
    let mut request = Some(next()?);
    check(panics(&mut || drop(request.take().map(block_on))), 55)?;
    requests.clear();
    Ok(())
}

// Slow: three transfers of 64 MiB over each transport, all of which is looked at.
#[test]
fn a_forked_child_does_not_wait_for_transfers_of_its_parent() {
    for transport in TRANSPORTS {
        let (mut owner, _lent, bulk, mover, addr) = idle_owner(transport, LONG);
        let start = || {
            let buffer = mover.memory().bulk_buffer(LONG).unwrap();
            mover.bulk(&addr, &bulk).start_pull(0, buffer, 0..LONG)
        };
        let mut requests = vec![start(), start(), start()];
        assert_eq!(
            in_forked_child(&mut || wait_for_transfers(&mut requests)),
            0,
            "the step that failed"
        );
        let started = Instant::now();
        while !requests.iter().all(BulkRequest::test) {
            owner.turn();
            assert!(started.elapsed() < PATIENCE, "a transfer does not end");
        }
        for request in requests {
            let (result, buffer) = request.wait();
            result.unwrap();
            assert!(buffer[..] == pattern(LONG, 0));
        }
        mover.finalize_and_wait().unwrap();
    }
}

/// Memory of a device belongs to the process that has the driver.
#[test]
fn a_forked_child_cannot_move_memory_of_a_device_and_harms_none() {
    let own = Instance::builder("na+sm://").start().unwrap();
    let fake = device::fake::Fake::new(1, 1);
    let memory = fake.driver().unwrap().device(0).unwrap().alloc(64).unwrap();
    memory.write_at(0, &[7; 64]).unwrap();
    let exposed = own.expose(memory, Access::ReadOnly).unwrap();
    let mut buffer = own.memory().bulk_buffer(64).unwrap();
    let (remote, before) = (exposed.bulk().clone(), fake.in_use());
    let mut exposed = Some(exposed);
    let check = |holds: bool, code: i32| if holds { Ok(()) } else { Err(code) };
    let code = in_forked_child(&mut || {
        let moved = own.pull(&own.self_addr(), &remote, 0, &mut buffer, 0..64);
        check(moved.is_err(), 2)?;
        let memory = exposed.take().ok_or(3)?.release().map_err(|_| 4)?;
        check(matches!(memory.read_at(0, &mut [0; 8]), Err(device::DeviceError::Forked)), 5)?;
        check(own.expose(memory, Access::ReadOnly).is_err(), 6)?;
        check(fake.in_use() == before, 7)
    });
    assert_eq!(code, 0, "the step that failed");
    own.pull(&own.self_addr(), &remote, 0, &mut buffer, 0..64).unwrap();
    assert_eq!(buffer[..], [7; 64]);
    drop((exposed, buffer));
    own.finalize_and_wait().unwrap();
    drop(own);
    let end = Instant::now() + PATIENCE;
    while fake.in_use() != device::fake::InUse::default() {
        assert!(Instant::now() < end, "{:?}", fake.in_use());
        std::thread::yield_now();
    }
    assert_eq!(fake.faults(), Vec::<String>::new());
}

/// Lent memory stays so until the process that has lent it takes it back.
#[test]
fn a_forked_child_takes_no_lent_memory_back_and_ends_no_mapping() {
    let start = || {
        let mut config = margo::config::Config::default();
        config.margo.address = "na+sm://".to_owned();
        config.margo.device.share = true;
        margo::InstanceBuilder::from_config(config).start().unwrap()
    };
    let (owner, own) = (start(), start());
    let fake = device::fake::Fake::new(1, 1);
    let gpu = fake.driver().unwrap().device(0).unwrap();
    let (there, here) = (gpu.alloc(64).unwrap(), gpu.alloc_exportable(64).unwrap());
    there.write_at(0, &[7; 64]).unwrap();
    let exposed = owner.expose(there, Access::ReadOnly).unwrap();
    let (remote, from) = (exposed.bulk().clone(), own.lookup(owner.self_addr().uri()).unwrap());
    let mut local = Some(own.expose(here, Access::ReadOnly).unwrap());
    let pull = |local: &mut Option<Exposed<device::DeviceMemory>>| {
        own.pull(&from, &remote, 0, local.as_mut().unwrap(), 0..64)
    };
    pull(&mut local).unwrap();
    let before = fake.in_use();
    let check = |holds: bool, code: i32| if holds { Ok(()) } else { Err(code) };
    let code = in_forked_child(&mut || {
        check(pull(&mut local).is_err(), 2)?;
        let memory = local.take().ok_or(3)?.release().map_err(|_| 4)?;
        check(matches!(memory.export(), Err(device::DeviceError::Forked)), 5)?;
        drop(memory);
        check(fake.in_use() == before, 6)
    });
    assert_eq!(code, 0, "the step that failed");
    assert_eq!(owner.metrics().memory.device_mappings, 1);
    pull(&mut local).unwrap();
    drop(local.take().unwrap().release().unwrap());
    assert_eq!(owner.metrics().memory.device_mappings, 0);
    drop(exposed);
    for instance in [own, owner] {
        instance.finalize_and_wait().unwrap();
        drop(instance);
    }
    drop(gpu);
    let end = Instant::now() + PATIENCE;
    while fake.in_use() != device::fake::InUse::default() {
        assert!(Instant::now() < end, "{:?}", fake.in_use());
        std::thread::yield_now();
    }
    assert_eq!(fake.faults(), Vec::<String>::new());
}
