//! Cases about sleeping on `wait_fd`: whatever gives `poll` something to do ends the sleep.
//!
//! A sleep that is not ended fails after [`PATIENCE`](super::PATIENCE); none of the cases succeeds
//! by a timeout. A transport without `wait_fd` passes by polling.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::PollFd;
use rustix::time::Timespec;

use super::node::{Node, drive, greet, pattern, sleep};
use super::peers::{is_child, pending_on, stalled_child};
use super::{Case, PATIENCE};
use crate::{Access, Addr, Error, OpId, Tag, Transfer};

/// Polls `node` until `done`, sleeping whenever it says that it has nothing to do.
#[track_caller]
pub(super) fn sleep_until(node: &Node, what: &str, mut done: impl FnMut(&Node) -> bool) {
    loop {
        while node.poll() > 0 {}
        if done(node) {
            return;
        }
        sleep(&[node], what);
    }
}

/// With nothing to do the descriptor is not readable, so that sleeping saves anything.
pub fn an_idle_endpoint_can_sleep(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    greet(&origin, &target);
    let nodes = [&target, &origin];
    drive(&nodes, "both endpoints to become idle", || {
        nodes.iter().all(|node| {
            let Some(fd) = node.endpoint.wait_fd() else { return true };
            if !node.endpoint.prepare_wait() {
                return false;
            }
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&at_once)) == Ok(0)
        })
    });
}

/// Sleeping endpoints, connected and with receives posted, are not woken for nothing and use next
/// to no processor time.
pub fn a_sleeper_costs_no_processor_time(case: &Case<'_>) {
    const WINDOW: Duration = Duration::from_millis(500);
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let nodes = [&target, &origin];
    if nodes.iter().any(|node| node.endpoint.wait_fd().is_none()) {
        return;
    }
    let waiting = [target.recv_expected(&to_origin, 2), target.recv_unexpected()];
    let answers = [origin.recv_expected(&to_target, 2), origin.recv_unexpected()];
    let (started, used) = (Instant::now(), processor_time());
    let mut woken = 0;
    while started.elapsed() < WINDOW {
        nodes.iter().for_each(|node| while node.poll() > 0 {});
        if !nodes.iter().all(|node| node.endpoint.prepare_wait()) {
            continue;
        }
        let fds: Vec<_> = nodes.iter().filter_map(|node| node.endpoint.wait_fd()).collect();
        let mut fds: Vec<_> =
            fds.iter().map(|fd| PollFd::new(fd, rustix::event::PollFlags::IN)).collect();
        let left = WINDOW.saturating_sub(started.elapsed());
        let limit = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&limit)));
        woken += ready.expect("poll");
    }
    let used = processor_time() - used;
    assert!(used < WINDOW / 5, "{used:?} of processor time while nothing happened");
    assert!(woken < 50, "woken {woken} times for nothing");
    assert_eq!(target.count_done(&waiting) + origin.count_done(&answers), 0);
    // The sleep still ends when there is a reason.
    origin.send_expected(&to_target, 2, b"a reason");
    drive(&nodes, "a message after the sleep", || target.is_done(waiting[0]));
}

fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// So many requests to `target`; `wait` waits for the end of an operation.
fn ask(origin: &Node, target: &Addr, rounds: u32, wait: impl Fn(&str, OpId)) {
    for round in 0..rounds {
        let answered = origin.recv_expected(target, round);
        origin.send_unexpected(target, round, b"ping");
        wait("an answer", answered);
    }
}

/// Answers as many.
fn answer(target: &Node, origin: &Addr, rounds: u32, wait: impl Fn(&str, OpId)) {
    for round in 0..rounds {
        wait("a request", target.recv_unexpected());
        wait("the answer's send", target.send_expected(origin, round, b"pong"));
    }
}

/// Both sides of a ping-pong sleep between the messages.
pub fn a_message_wakes_a_sleeper(case: &Case<'_>) {
    const ROUNDS: u32 = 1000;
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            answer(&target, &to_origin, ROUNDS, |what, op| {
                sleep_until(&target, what, |node| node.is_done(op));
            });
        });
        ask(&origin, &to_target, ROUNDS, |what, op| {
            sleep_until(&origin, what, |node| node.is_done(op));
        });
    });
}

/// Polls `node` until `done`, but only while there may be something to find.
#[track_caller]
fn look_until(node: &Node, what: &str, mut done: impl FnMut(&Node) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        while node.poll() > 0 {}
        if done(node) {
            return;
        }
        while !node.endpoint.may_find() {
            assert!(Instant::now() < deadline, "waited too long for: {what}");
            std::thread::yield_now();
        }
    }
}

/// A look sees messages, more of them than a connection holds, transfers on both sides, and what
/// another thread has ended.
pub fn who_looks_before_it_polls_misses_nothing(case: &Case<'_>) {
    const ROUNDS: u32 = 300;
    const LEN: usize = 1 << 20;
    let (target, origin) = Node::pair(case);
    let (to_target, to_origin) = greet(&origin, &target);
    let remote = target.register(pattern(1, LEN), Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    let burst = pattern(2, origin.endpoint.limits().unexpected_bytes_max);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            answer(&target, &to_origin, ROUNDS, |what, op| {
                look_until(&target, what, |node| node.is_done(op));
            });
            for _ in 0..ROUNDS {
                let received = target.recv_unexpected();
                look_until(&target, "one of many", |node| node.is_done(received));
            }
            let end = target.recv_unexpected();
            look_until(&target, "the end", |node| node.is_done(end));
        });
        ask(&origin, &to_target, ROUNDS, |what, op| {
            look_until(&origin, what, |node| node.is_done(op));
        });
        let sends: Vec<_> =
            (0..ROUNDS).map(|round| origin.send_unexpected(&to_target, round, &burst)).collect();
        look_until(&origin, "the sends", |node| node.all_done(&sends));
        for len in [100, LEN] {
            for is_get in [true, false] {
                let transfer = Transfer {
                    local: origin.register(vec![0; len], Access::ReadWrite),
                    local_offset: 0,
                    remote: described.clone(),
                    remote_offset: 0,
                    len: len as u64,
                };
                let op = match is_get {
                    true => origin.get(&to_target, transfer),
                    false => origin.put(&to_target, transfer),
                };
                look_until(&origin, "a transfer", |node| node.is_done(op));
                origin.succeeded(op);
            }
        }
        let (op, endpoint) = (origin.recv_unexpected(), origin.endpoint.clone());
        scope.spawn(move || endpoint.cancel(op));
        look_until(&origin, "a canceled receive", |node| node.is_done(op));
        let sent = origin.send_unexpected(&to_target, 1, b"end");
        look_until(&origin, "the last send", |node| node.is_done(sent));
    });
}

/// The owner of the memory is woken to serve a transfer, and the requester when it is over.
pub fn a_transfer_wakes_both_sleepers(case: &Case<'_>) {
    const ROUNDS: u64 = 40;
    const LEN: usize = 3 << 20;
    let (target, origin) = Node::pair(case);
    let (to_target, _) = greet(&origin, &target);
    let remote = target.register(pattern(1, LEN), Access::ReadWrite);
    let described = target.described_to(&origin, &remote);
    let end = target.recv_unexpected();
    std::thread::scope(|scope| {
        scope.spawn(move || sleep_until(&target, "the end", |node| node.is_done(end)));
        for round in 0..ROUNDS {
            let len = if round % 4 == 0 { LEN } else { 100 };
            let transfer = Transfer {
                local: origin.register(vec![0; len], Access::ReadWrite),
                local_offset: 0,
                remote: described.clone(),
                remote_offset: 0,
                len: len as u64,
            };
            let op = match round % 2 {
                0 => origin.get(&to_target, transfer),
                _ => origin.put(&to_target, transfer),
            };
            sleep_until(&origin, "a transfer", |node| node.is_done(op));
            origin.succeeded(op);
        }
        let sent = origin.send_unexpected(&to_target, 1, b"end");
        sleep_until(&origin, "the last send", |node| node.is_done(sent));
    });
}

/// A completion without the network's help (a cancel, a close) ends the sleep too.
pub fn a_local_completion_wakes_a_sleeper(case: &Case<'_>) {
    let (target, origin) = Node::pair(case);
    let (to_target, _) = greet(&origin, &target);
    let (sender, posted) = mpsc::channel::<Option<OpId>>();
    let endpoint = origin.endpoint.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while let Ok(Some(op)) = posted.recv() {
                endpoint.cancel(op);
            }
            endpoint.close();
        });
        for round in 0..200 {
            let op = match round % 2 {
                0 => origin.recv_unexpected(),
                _ => origin.recv_expected(&to_target, round),
            };
            sender.send(Some(op)).expect("the other thread listens");
            sleep_until(&origin, "a canceled receive", |node| node.is_done(op));
            assert!(matches!(origin.error(op), Error::Canceled));
        }
        let op = origin.recv_unexpected();
        sender.send(None).expect("the other thread listens");
        sleep_until(&origin, "a closed receive", |node| node.is_done(op));
        assert!(matches!(origin.error(op), Error::Closed));
    });
}

/// An operation that another thread starts is carried out although the progress thread sleeps.
pub fn an_operation_of_another_thread_wakes_a_sleeper(case: &Case<'_>) {
    const ROUNDS: u64 = 20;
    let target = Node::open(case, true);
    let receives: Vec<_> = (0..ROUNDS).map(|_| target.recv_unexpected()).collect();
    let uri = target.endpoint.self_addr().uri().to_owned();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            sleep_until(&target, "all messages", |node| node.all_done(&receives));
        });
        for round in 0..ROUNDS {
            // A fresh endpoint has to connect first.
            let origin = Node::open(case, false);
            let to_target = origin.endpoint.lookup(&uri).expect("the target's address");
            let (endpoint, op) = (origin.endpoint.clone(), OpId(1 << 40 | round));
            scope.spawn(move || {
                let buf = endpoint.alloc_msg();
                endpoint.send_unexpected(op, &to_target, Tag(1), buf).expect("send");
            });
            sleep_until(&origin, "the other thread's send", |node| node.is_done(op));
            origin.succeeded(op);
            origin.endpoint.close();
        }
    });
}

/// A sender that was held back sleeps until there is room; the receiver until there is a message.
pub fn room_for_a_held_back_sender_wakes_it(case: &Case<'_>) {
    const COUNT: usize = 6000;
    let (target, origin) = Node::pair(case);
    let (to_target, _) = greet(&origin, &target);
    let bytes = pattern(1, origin.endpoint.limits().unexpected_bytes_max);
    let sends: Vec<_> = (0..COUNT)
        .map(|number| origin.send_unexpected(&to_target, number as u32, &bytes))
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..COUNT {
                let received = target.recv_unexpected();
                sleep_until(&target, "a message", |node| node.is_done(received));
                assert_eq!(target.received(received).0.tag, Tag(number as u32));
            }
        });
        sleep_until(&origin, "the sends", |node| node.all_done(&sends));
    });
}

/// SIGKILL of a peer ends the sleep of an endpoint that waits for it.
pub fn a_dead_peer_is_reported_to_a_sleeper(case: &Case<'_>) {
    if is_child(case) {
        return;
    }
    let node = Node::open(case, true);
    let (mut child, to_child, described) = stalled_child(case, &node);
    let ops = pending_on(&node, &to_child, &described);
    std::thread::scope(|scope| {
        scope.spawn(move || child.kill());
        sleep_until(&node, "the peer's death", |node| node.all_done(&ops));
    });
    for op in ops {
        assert!(matches!(node.error(op), Error::PeerGone { .. }));
    }
}
