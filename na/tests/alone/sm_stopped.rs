//! A process that was stopped for longer than its own limits, and its conclusions about its peers.

use std::time::{Duration, Instant};

use na::{Arrival, OpenOptions, Tag};

use crate::alone;
use crate::common::sm::{ChildNode, Node, listening, role, say};
use crate::common::test_path;

/// The limits of the process that is stopped.
const LIMIT: Duration = Duration::from_millis(1500);

/// Calls the target at `uri`, sleeping in between, and says what became of it.
fn call_for_ever(uri: &str) -> ! {
    let mut options = OpenOptions::listening(false);
    (options.liveness_limit, options.connect_timeout) = (LIMIT, LIMIT);
    let mut origin = Node::new(na::open("na+sm://", &options).expect("open"));
    let to_target = origin.endpoint.lookup(uri).expect("look up");
    loop {
        let answered = origin.recv_expected(&to_target, 5);
        let sent = origin.send(&to_target, 5, b"call");
        say("called");
        loop {
            origin.poll();
            // With the time: the other process wants a poll after a time of its own.
            say(&format!("ran {}", now_ns()));
            if origin.is_done(answered) {
                break;
            }
            if origin.is_done(sent)
                && let na::Completion::Send { result: Err(error), .. } = origin.finish(sent)
            {
                say(&format!("failed: {error}"));
            }
            if origin.endpoint.prepare_wait() {
                let fd = origin.endpoint.wait_fd().expect("a descriptor to wait for");
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                // Broken off by a signal: look again.
                let _ = rustix::event::poll(&mut fds, None);
            }
        }
        match origin.finish(answered) {
            na::Completion::Recv { result: Ok(_), .. } => say("answered"),
            other => say(&format!("failed: {other:?}")),
        }
    }
}

/// Time on a clock of all processes, ns.
fn now_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// The next thing it says that is not how far it has come.
#[track_caller]
fn said(origin: &ChildNode) -> String {
    loop {
        let line = origin.line();
        if !line.starts_with("ran ") {
            return line;
        }
    }
}

/// Waits until it has polled at `time` or later.
#[track_caller]
fn has_polled(origin: &ChildNode, time: i64) {
    loop {
        let line = origin.line();
        let polled = line.strip_prefix("ran ").unwrap_or_else(|| panic!("{line}"));
        if polled.parse::<i64>().expect("a time") >= time {
            return;
        }
    }
}

/// Waits until all its threads sleep, so that it goes on with a poll.
fn until_asleep(origin: &ChildNode) {
    let tasks = format!("/proc/{}/task", origin.child.id());
    let sleeps = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.expect("a task").path().join("stat"));
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
    };
    while !std::fs::read_dir(&tasks).expect("its tasks").all(sleeps) {
        std::thread::yield_now();
    }
}

/// Lets it stand still for longer than its limits, `meanwhile` running, and then look at them
/// before anything else happens.
#[track_caller]
fn stop_for_long(origin: &ChildNode, mut meanwhile: impl FnMut()) {
    until_asleep(origin);
    origin.stop();
    let until = Instant::now() + LIMIT * 4 / 3;
    while Instant::now() < until {
        meanwhile();
        std::thread::yield_now();
    }
    let from = now_ns();
    origin.signal(rustix::process::Signal::CONT);
    has_polled(origin, from);
}

/// Slow: the process is stopped three times, each time for longer than its limit.
#[test]
fn a_process_that_was_stopped_itself_does_not_give_up_its_peers() {
    if let Some(role) = role() {
        call_for_ever(&role[0]);
    }
    let _alone = alone();
    let mut target = listening();
    let test = test_path!("a_process_that_was_stopped_itself_does_not_give_up_its_peers");
    let origin = ChildNode::start(test, target.endpoint.self_addr().uri());
    assert_eq!(said(&origin), "called");
    // It waits for a welcome, which only a poll of the target sends.
    has_polled(&origin, 0);
    stop_for_long(&origin, || ());
    for target_is_stopped in [false, true] {
        let asked = target.recv();
        let (Arrival { from, tag, .. }, _) = target.received(asked);
        // Now it waits for an answer. After half of its limit it asks for a sign of life, which
        // comes while it is stopped, or not if the target was stopped as well, like two processes
        // in a machine that is paused.
        has_polled(&origin, now_ns() + (LIMIT * 5 / 8).as_nanos() as i64);
        stop_for_long(&origin, || {
            if !target_is_stopped {
                target.poll();
            }
        });
        let (op, buf) = (target.op(), target.endpoint.alloc_msg());
        target.endpoint.send_expected(op, &from, Tag(tag.0), buf).expect("answer");
        target.finish(op);
        assert_eq!(said(&origin), "answered");
        assert_eq!(said(&origin), "called");
    }
}
