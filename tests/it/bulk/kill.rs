//! Bulk transfers whose other side dies: in each phase, over sm and tcp, and fabrics that are asked
//! for (`MARGO_TEST_OFI=1`, `MARGO_TEST_UCX=1`), by SIGKILL of a process, over sim by a crash or a
//! power failure at any virtual time. The surviving side is told, gets its memory back, has nothing
//! in flight, and works on with the next peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bulk_support::roles::{self, BYTES, Caller, Mover};
use crate::bulk_support::{Node, PATIENCE};
use crate::common::on_fabrics;
use crate::common::process::{self, Service, say};
use margo::hg::BulkOp;
use na::OpenOptions;
use na::sim::{Drive, LinkOptions, Network};

const ROLE: &str = "MARGO_TEST_BULK_KILL";

/// Not a test of its own: the other process of the tests below, which run this program again.
#[test]
fn service_process() {
    let Some(asked) = process::asked(ROLE) else { return };
    let words: Vec<_> = asked.split(' ').collect();
    let [role, own, peer] = words[..] else { panic!("{asked}") };
    let mut node = Node::open(own, true, roles::options());
    say(&format!("listening on {}", node.core.self_addr()));
    if role == "target" {
        let mut mover = Mover::default();
        loop {
            turn(&mut node);
            mover.step(&mut node);
        }
    }
    let peer = node.core.lookup(peer).unwrap();
    loop {
        let call = Caller::start(&node, &peer, BYTES);
        while call.ended(&mut node).is_none() {
            turn(&mut node);
        }
        drop(call.take_back());
    }
}

/// A turn; others go first if there was nothing to do, as processors are few.
fn turn(node: &mut Node) {
    if !node.turn() {
        std::thread::yield_now();
    }
}

/// Starts the other process, which is killed when dropped.
fn start_peer(role: &str, transport: &str, peer: &str) -> Service {
    Service::start_with(module_path!(), ROLE, &format!("{role} {transport} {peer}"))
}

/// Repeats `step` until it is true.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !step() {
        assert!(Instant::now() < deadline, "{what} does not happen");
    }
}

/// When the target is killed, as its origin sees it.
#[derive(Debug, Clone, Copy)]
enum CallPhase {
    BeforeTheCall,
    /// After so many turns of the origin.
    Turns(u32),
    PushedTo,
    /// Not before the end.
    Never,
}

fn targets_are_killed(transport: &str) {
    use CallPhase::{BeforeTheCall, Never, PushedTo, Turns};
    let mut origin = Node::open(transport, true, roles::options());
    for phase in
        [BeforeTheCall, Turns(0), Turns(1), Turns(10), Turns(100), Turns(1000), PushedTo, Never]
    {
        let mut target = start_peer("target", transport, "");
        let to = origin.core.lookup(&target.address).unwrap();
        if matches!(phase, BeforeTheCall) {
            target.kill();
        }
        let call = Caller::start(&origin, &to, BYTES);
        let mut ended = None;
        let mut turns = 0;
        until("the end of a call, or the moment to kill", || {
            let now = match phase {
                BeforeTheCall | Never => false,
                Turns(end) => turns == end,
                PushedTo => call.is_pushed_to(),
            };
            if now {
                target.kill();
            }
            turns += 1;
            turn(&mut origin);
            ended = ended.take().or_else(|| call.ended(&mut origin));
            now || ended.is_some()
        });
        until("the end of a call", || {
            turn(&mut origin);
            ended = ended.take().or_else(|| call.ended(&mut origin));
            ended.is_some()
        });
        let ended = ended.unwrap();
        match phase {
            BeforeTheCall => assert!(ended.is_err()),
            Never => ended.unwrap(),
            _ => {}
        }
        let back = call.take_back();
        until("the return of memory", || {
            turn(&mut origin);
            back.try_recv().is_ok()
        });
        assert_eq!(origin.core.in_flight(), 0, "{phase:?}");
    }
}

// Slow: a process of its own for each phase of a transfer.
#[test]
fn targets_are_killed_over_sm() {
    targets_are_killed("na+sm://");
}

#[test]
fn targets_are_killed_over_tcp() {
    targets_are_killed("na+tcp://127.0.0.1:0");
}

/// Targets are not killed over libfabric, which does not tell of it.
#[test]
fn targets_are_killed_over_fabrics() {
    on_fabrics(&["ucx+tcp"], targets_are_killed);
}

/// When the origin is killed, as its target sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum MovePhase {
    Arrived,
    HalfPulled,
    Pushing,
    /// After so many turns of the target while it pushes.
    PushedFor(u32),
    Answered,
    /// After some whole exchanges.
    Later,
}

fn origins_are_killed(transport: &str) {
    use MovePhase::{Answered, Arrived, HalfPulled, Later, PushedFor, Pushing};
    let mut target = Node::open(transport, true, roles::options());
    let address = target.core.self_addr();
    for phase in
        [Arrived, HalfPulled, Pushing, PushedFor(1), PushedFor(20), PushedFor(200), Answered, Later]
    {
        let mut origin = start_peer("origin", transport, address.uri());
        let mut mover = Mover::default();
        let mut pushed = 0;
        until("the moment to kill", || {
            turn(&mut target);
            mover.step(&mut target);
            let pushing = mover.jobs.iter().any(|job| job.op == BulkOp::Push);
            pushed += u32::from(pushing);
            match phase {
                Arrived => !mover.jobs.is_empty(),
                HalfPulled => mover.jobs.iter().any(roles::Job::is_half_pulled),
                Pushing => pushing,
                // It may have been quicker.
                PushedFor(turns) => pushed > turns || mover.answered > 0,
                Answered => mover.answered > 0,
                Later => mover.answered > 3,
            }
        });
        origin.kill();
        until("the end of all that the origin had asked for", || {
            turn(&mut target);
            mover.step(&mut target);
            mover.is_quiet(&target)
        });
        if matches!(phase, Arrived | HalfPulled | Pushing) {
            assert!(!mover.failed.is_empty(), "{phase:?}: nobody said that the origin is dead");
        }
        for error in &mover.failed {
            let dead = matches!(
                error,
                margo::HgError::Na(na::Error::PeerGone { .. } | na::Error::Unreachable { .. })
            );
            assert!(dead, "{phase:?}: {error}");
        }
    }
}

// Slow: a process of its own for each phase of a transfer.
#[test]
fn origins_are_killed_over_sm() {
    origins_are_killed("na+sm://");
}

#[test]
fn origins_are_killed_over_tcp() {
    origins_are_killed("na+tcp://127.0.0.1:0");
}

#[test]
fn origins_are_killed_over_fabrics() {
    // Over ofi nothing tells for sure that an origin has died: transfers with it may stay.
    on_fabrics(&["ucx+tcp"], origins_are_killed);
}

/// A transfer with a process that does not answer is cancelled; whatever it may still do to the
/// memory, its death ends it.
fn stopped_origins_are_killed(transport: &str) {
    let mut target = Node::open(transport, true, roles::options());
    let address = target.core.self_addr();
    for op in [BulkOp::Pull, BulkOp::Push] {
        let mut origin = start_peer("origin", transport, address.uri());
        let mut mover = Mover::default();
        until("a transfer", || {
            turn(&mut target);
            mover.step(&mut target);
            mover.jobs.iter().any(|job| job.op == op)
        });
        origin.stop();
        mover.cancel(&target);
        for _ in 0..100 {
            turn(&mut target);
            mover.step(&mut target);
        }
        origin.kill();
        until("the end of a cancelled transfer", || {
            turn(&mut target);
            mover.step(&mut target);
            mover.is_quiet(&target)
        });
        let [error] = &mover.failed[..] else { panic!("{:?}", mover.failed) };
        let expected = matches!(
            error,
            margo::HgError::Canceled | margo::HgError::Na(na::Error::PeerGone { .. })
        );
        assert!(expected, "{error}");
    }
}

#[test]
fn stopped_origins_are_killed_over_sm() {
    stopped_origins_are_killed("na+sm://");
}

#[test]
fn stopped_origins_are_killed_over_tcp() {
    stopped_origins_are_killed("na+tcp://127.0.0.1:0");
}

#[test]
fn stopped_origins_are_killed_over_fabrics() {
    on_fabrics(&["ofi+", "ucx+tcp"], stopped_origins_are_killed);
}

/// How a simulated node ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Crash,
    PowerOff,
}

/// An exchange in which `victim` ends at `at`; without one, until it is over. Returns when that was
/// and whether the survivor was told of a death.
fn simulate(seed: u64, victim: &'static str, end: Option<(End, Duration)>) -> (Duration, bool) {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    const LEN: usize = 200_000;
    let name = format!("bulk-kill-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let network = Network::builder(name).seed(seed).drive(Drive::Manual).build().unwrap();
    let _trace = network.trace_on_panic(60);
    // The first is without any trouble but the end.
    let link = LinkOptions::unreliable(if seed == 0 { 0.0 } else { 0.1 });
    network.set_link("origin", "target", link).unwrap();
    let mut options = OpenOptions::listening(true);
    options.liveness_limit = Duration::from_secs(5);
    let open = |name| Node::on(network.open(name, &options).unwrap(), roles::options());
    let mut nodes = [Some(open("origin")), Some(open("target"))];
    let over = Arc::new(AtomicBool::new(false));
    if let Some((end, at)) = end {
        let over = over.clone();
        network.schedule(at, move |network| {
            match end {
                End::Crash => network.crash(victim),
                End::PowerOff => network.power_off(victim),
            }
            over.store(true, Ordering::Relaxed);
        });
    }
    let mut mover = Mover::default();
    let mut call = nodes[0].as_ref().map(|origin| {
        let to = origin.core.lookup(nodes[1].as_ref().unwrap().core.self_addr().uri()).unwrap();
        Caller::start(origin, &to, LEN)
    });
    let (mut ended, mut back) = (None, None);
    until("the end of an exchange", || {
        let mut busy = false;
        for (node, name) in nodes.iter_mut().zip(["origin", "target"]) {
            if over.load(Ordering::Relaxed) && name == victim {
                *node = None;
            }
            busy |= node.as_mut().is_some_and(Node::turn);
        }
        if !busy {
            // Time passes when everybody waits.
            network.step();
        }
        let [origin, target] = &mut nodes;
        if let Some(target) = target {
            mover.step(target);
        }
        let Some(origin) = origin else {
            return target.as_ref().is_some_and(|target| mover.is_quiet(target));
        };
        ended = ended.take().or_else(|| call.as_ref()?.ended(origin));
        if ended.is_some() {
            back = back.take().or_else(|| call.take().map(Caller::take_back));
        }
        let returned = back.as_ref().is_some_and(|back| {
            matches!(back.try_recv(), Ok(_) | Err(std::sync::mpsc::TryRecvError::Disconnected))
        });
        // A target that lives may not know of the end of its answer yet.
        returned
            && origin.core.in_flight() == 0
            && target.as_ref().is_none_or(|target| mover.is_quiet(target))
    });
    let told = matches!(ended, Some(Err(_))) || !mover.failed.is_empty();
    (network.now(), told)
}

fn simulated_ends(victim: &'static str) {
    const MOMENTS: u32 = 16;
    for seed in 0..4 {
        let (whole, told) = simulate(seed, victim, None);
        assert!(!told);
        let mut deaths = 0;
        for moment in 0..MOMENTS {
            for end in [End::Crash, End::PowerOff] {
                let at = whole * moment / MOMENTS + Duration::from_nanos(1);
                deaths += u32::from(simulate(seed, victim, Some((end, at))).1);
            }
        }
        assert!(deaths > MOMENTS, "seed {seed}: only {deaths} of {} mattered", 2 * MOMENTS);
    }
}

#[test]
fn origins_crash_at_any_time_over_sim() {
    simulated_ends("origin");
}

#[test]
fn targets_crash_at_any_time_over_sim() {
    simulated_ends("target");
}
