//! Peers of the sm transport that are killed, stopped or dropped at a bad moment.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use na::{Access, Addr, Completion, Error, Memory, OpId, OpenOptions, RemoteMem, Tag, Transfer};

use crate::common::sm::{
    self as support, ChildNode, Hostile, Node, listening, registered, role, say, sleep_for_ever,
    whole, with_attach,
};
use crate::common::test_path;

const LARGE: usize = 256 << 20;

/// The child's part of the tests below: `<test role> <attach> <parent's uri>`.
fn play(role: &[String]) -> ! {
    let attach = role[1] == "true";
    let mut node = with_attach(attach, true);
    let to_parent = node.endpoint.lookup(&role[2]).expect("the parent's address");
    let memory = registered(&node, LARGE, Access::ReadWrite);
    let mut go = node.recv();
    node.send(&to_parent, 1, &node.endpoint.mem_to_bytes(&memory));
    match role[0].as_str() {
        // Serves the parent's transfers for two rounds, a small part, and then never again.
        "owner" => {
            node.received(go);
            node.poll();
            say("stalled");
        }
        // Starts transfers from and to the parent and goes on until it is killed.
        "requester" => {
            let (_, described) = node.received(go);
            let remote = node.endpoint.mem_from_bytes(&described).expect("a description");
            let (got, put) = (node.op(), node.op());
            node.endpoint.get(got, &to_parent, whole(&memory, &remote)).expect("get");
            node.endpoint.put(put, &to_parent, whole(&memory, &remote)).expect("put");
            node.send(&to_parent, 2, b"started");
            go = node.recv();
            node.until("the end, which does not come", |node| node.is_done(go));
        }
        // Is stopped by a signal, or only there.
        "polling" => {
            say("polling");
            loop {
                node.poll();
            }
        }
        other => panic!("unknown role {other}"),
    }
    sleep_for_ever()
}

/// A parent, its child, the child's address and memory.
fn with_child(
    test: &str,
    role: &str,
    attach: bool,
    node: &mut Node,
) -> (ChildNode, Addr, RemoteMem) {
    let uri = node.endpoint.self_addr().uri().to_owned();
    let child = ChildNode::start(test, &format!("{role} {attach} {uri}"));
    let first = node.recv();
    let (arrival, described) = node.received(first);
    let remote = node.endpoint.mem_from_bytes(&described).expect("a description");
    (child, arrival.from, remote)
}

fn transfer(node: &mut Node, put: bool, to: &Addr, transfer: Transfer) -> OpId {
    let op = node.op();
    let started = match put {
        true => node.endpoint.put(op, to, transfer),
        false => node.endpoint.get(op, to, transfer),
    };
    started.expect("start a transfer");
    op
}

#[test]
fn the_owner_is_killed_in_mid_transfer() {
    if let Some(role) = role() {
        play(&role);
    }
    for attach in [true, false] {
        let mut node = with_attach(attach, true);
        let test = test_path!("the_owner_is_killed_in_mid_transfer");
        let (mut child, addr, remote) = with_child(test, "owner", attach, &mut node);
        let memory = registered(&node, LARGE, Access::ReadWrite);
        let ops: Vec<_> = [false, true, false]
            .map(|put| transfer(&mut node, put, &addr, whole(&memory, &remote)))
            .into();
        node.send(&addr, 2, b"go");
        node.until("the child", |_| child.try_line().is_some());
        let (sender, released) = channel();
        memory.revoke(move |memory| sender.send(memory).expect("the test waits"));
        child.kill();
        for op in ops {
            let error = node.error(op);
            assert!(matches!(error, Error::PeerGone { .. }), "{error}");
        }
        node.until("the memory", |_| released.try_recv().is_ok());
        node.still_serves();
    }
}

#[test]
fn the_requester_is_killed_in_mid_transfer() {
    if let Some(role) = role() {
        play(&role);
    }
    for attach in [true, false] {
        let mut node = with_attach(attach, true);
        let test = test_path!("the_requester_is_killed_in_mid_transfer");
        let (mut child, addr, _) = with_child(test, "requester", attach, &mut node);
        let memory = registered(&node, LARGE, Access::ReadWrite);
        let started = node.recv();
        node.send(&addr, 2, &node.endpoint.mem_to_bytes(&memory));
        // Each poll moves a small part only, so both transfers are under way when it is killed.
        node.received(started);
        let (sender, released) = channel();
        memory.revoke(move |memory| sender.send(memory).expect("the test waits"));
        assert!(released.try_recv().is_err(), "transfers are under way");
        child.kill();
        node.until("the memory", |_| released.try_recv().is_ok());
        node.still_serves();
    }
}

#[test]
fn a_stopped_peer_exceeds_the_liveness_limit() {
    if let Some(role) = role() {
        play(&role);
    }
    let mut options = OpenOptions::listening(true);
    options.liveness_limit = Duration::from_millis(500);
    let mut node = Node::new(na::open("na+sm://", &options).expect("open"));
    let test = test_path!("a_stopped_peer_exceeds_the_liveness_limit");
    let (child, addr, _) = with_child(test, "polling", true, &mut node);
    assert_eq!(child.line(), "polling");
    child.signal(rustix::process::Signal::STOP);
    let waiting = node.recv_expected(&addr, 9);
    let error = node.error(waiting);
    assert!(matches!(&error, Error::PeerGone { .. }), "{error}");
    assert!(error.to_string().contains("no sign of life"), "{error}");
    node.still_serves();
}

/// The peer's signs of life wait behind messages that nobody receives, so that we cannot hear it.
#[test]
fn a_peer_whose_messages_wait_in_the_ring_is_not_given_up() {
    let mut options = OpenOptions::listening(true);
    options.liveness_limit = Duration::from_millis(200);
    let mut target = Node::new(na::open("na+sm://", &options).expect("open"));
    let mut client = Node::new(na::open("na+sm://", &OpenOptions::default()).expect("open"));
    let to = client.endpoint.lookup(target.endpoint.self_addr().uri()).expect("look up");
    let first = target.recv();
    // More than the 256 KiB of early messages that are held.
    for tag in 0..100 {
        client.send(&to, tag, &[7; 4000]);
    }
    target.until("a message", |target| {
        client.poll();
        target.is_done(first)
    });
    let from = target.received(first).0.from;
    let answered = target.recv_expected(&from, 9);
    let until = Instant::now() + 3 * options.liveness_limit;
    target.until("a time beyond the limit", |target| {
        client.poll();
        assert!(!target.is_done(answered), "{}", target.error(answered));
        Instant::now() > until
    });
    for _ in 1..100 {
        let waiting = target.recv();
        target.until("a message", |target| {
            client.poll();
            target.is_done(waiting)
        });
        assert_eq!(target.received(waiting).1, [7; 4000]);
    }
}

/// The holder of the only reference to an endpoint with transfers in flight may just drop it.
#[test]
fn an_endpoint_is_dropped_in_mid_transfer() {
    for attach in [true, false] {
        let mut owner = with_attach(attach, true);
        let memory = registered(&owner, LARGE, Access::ReadWrite);
        let described = owner.endpoint.mem_to_bytes(&memory);
        let uri = owner.endpoint.self_addr().uri().to_owned();
        let mut origin = with_attach(attach, false);
        let to_owner = origin.endpoint.lookup(&uri).expect("look up");
        let remote = origin.endpoint.mem_from_bytes(&described).expect("a description");
        let local = registered(&origin, LARGE, Access::ReadWrite);
        let asked = owner.recv();
        let got = transfer(&mut origin, false, &to_owner, whole(&local, &remote));
        origin.send(&to_owner, 1, b"on its way");
        owner.until("the request", |node| {
            origin.poll();
            node.is_done(asked)
        });
        assert!(!origin.is_done(got));
        let (sender, released) = channel();
        local.revoke(move |memory| sender.send(memory).expect("the test waits"));
        drop(origin);
        released.try_recv().expect("the memory is back when the endpoint is gone");
        let (sender, released) = channel();
        memory.revoke(move |memory| sender.send(memory).expect("the test waits"));
        owner.until("the owner's memory", |_| released.try_recv().is_ok());
        owner.still_serves();
    }
}

#[test]
fn a_name_is_not_given_to_another_process() {
    if let Some(role) = role() {
        play(&role);
    }
    let mut node = listening();
    let test = test_path!("a_name_is_not_given_to_another_process");
    let (child, true_addr, _) = with_child(test, "polling", true, &mut node);
    assert_eq!(node.endpoint.lookup(true_addr.uri()).expect("look up"), true_addr);
    let (_hostile, addr) = Hostile::attach_as(&mut node, true_addr.uri(), true);
    assert_ne!(addr, true_addr);
    drop(child);
    // Nor when the name is free.
    let (_hostile, addr) = Hostile::attach_as(&mut node, true_addr.uri(), true);
    assert_ne!(addr, true_addr);
    let (_hostile, addr) = Hostile::attach_as(&mut node, "no address", true);
    assert_ne!(addr, true_addr);
    node.still_serves();
}

/// A process connects, forks off a child that only sleeps and so keeps all of its descriptors, and
/// ends. Its peer notices at once, and does nothing to a process that gets its number.
#[test]
fn a_child_that_keeps_the_sockets_does_not_hide_a_death() {
    if let Some(role) = role() {
        fork_and_end(&role);
    }
    for blocking in [false, true] {
        let mut node = listening();
        let uri = node.endpoint.self_addr().uri().to_owned();
        let test = test_path!("a_child_that_keeps_the_sockets_does_not_hide_a_death");
        let mut child = ChildNode::start(test, &uri);
        let (first, second) = (node.recv(), node.recv());
        node.received(first);
        let (arrival, grandchild) = node.received(second);
        let grandchild = Killed(i32::from_le_bytes(grandchild[..4].try_into().expect("a number")));
        let waiting = node.recv_expected(&arrival.from, 9);
        child.kill();
        if blocking {
            sleep_until(&mut node, |node| node.is_done(waiting));
        }
        let error = node.error(waiting);
        assert!(matches!(error, Error::PeerGone { .. }), "{error}");
        assert!(error.to_string().contains("its process has ended"), "{error}");
        assert!(grandchild.lives(), "it was to outlive its parent");
        // Its name is nobody's, although its socket listens.
        let sent = node.send(&arrival.from, 3, b"is anybody there?");
        let error = node.error(sent);
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("forked"), "{error}");
        node.still_serves();
    }
}

/// Nobody can attach to a process whose first thread has ended, though the others live.
#[test]
fn a_process_without_its_first_thread_is_served() {
    if let Some(role) = role() {
        end_the_first_thread(&role);
    }
    let mut node = with_attach(true, true);
    let uri = node.endpoint.self_addr().uri().to_owned();
    let (memory, _) = support::register(&node, Memory::from_vec(vec![7; LONG]), Access::ReadOnly);
    let _child = ChildNode::start(test_path!("a_process_without_its_first_thread_is_served"), &uri);
    let (asked, ended) = (node.recv(), node.recv());
    let (arrival, _) = node.received(asked);
    let (op, described) = (node.op(), node.endpoint.mem_to_bytes(&memory));
    let mut answer = node.endpoint.alloc_msg();
    assert!(answer.try_extend(&described));
    node.endpoint.send_expected(op, &arrival.from, Tag(2), answer).expect("answer");
    let (_, bytes) = node.received(ended);
    assert_eq!(bytes, b"all is here");
}

/// Bytes of plain memory that one side does not attach for alone.
const LONG: usize = 128 << 10;

/// A process with a second thread that connects, and gets memory when the first has ended.
fn end_the_first_thread(role: &[String]) -> ! {
    // SAFETY: the child has this thread alone; it uses nothing that others could have locked but
    // the allocator, which the system's library makes usable there.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no second process");
    if child != 0 {
        sleep_for_ever();
    }
    let (sender, may_end) = std::sync::mpsc::channel();
    let to_parent = role[0].clone();
    let end_with_the_parent = || {
        let signal = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(signal).expect("its end");
    };
    end_with_the_parent();
    std::thread::spawn(move || {
        end_with_the_parent();
        let mut node = with_attach(true, false);
        let parent = node.endpoint.lookup(&to_parent).expect("the parent's address");
        let answer = node.recv_expected(&parent, 2);
        node.send(&parent, 1, b"hello");
        let (_, described) = node.received(answer);
        let remote = node.endpoint.mem_from_bytes(&described).expect("a description");
        sender.send(()).expect("the first thread");
        let first = format!("/proc/self/task/{}/stat", std::process::id());
        node.until("the end of the first thread", |_| {
            std::fs::read_to_string(&first).is_ok_and(|stat| stat.contains(") Z "))
        });
        for _ in 0..40 {
            let memory = registered(&node, LONG, Access::ReadWrite);
            let op = node.start(false, &parent, whole(&memory, &remote));
            let ended = node.finish(op);
            assert!(matches!(ended, Completion::Transfer { result: Ok(()), .. }), "{ended:?}");
            let mut bytes = vec![0; LONG];
            assert!(memory.read_at(0, &mut bytes) && bytes.iter().all(|byte| *byte == 7));
        }
        node.send(&parent, 2, b"all is here");
        node.until("its end", |_| false);
    });
    may_end.recv().expect("the second thread");
    // SAFETY: ends this thread alone, whose memory stays.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    sleep_for_ever()
}

/// A process that is killed when the test is over.
struct Killed(i32);

impl Killed {
    fn lives(&self) -> bool {
        rustix::process::test_kill_process(self.pid()).is_ok()
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_raw(self.0).expect("the number of a process")
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.pid(), rustix::process::Signal::KILL);
    }
}

/// Tells the parent the number of a child that keeps everything and does nothing.
fn fork_and_end(role: &[String]) -> ! {
    let mut node = listening();
    let to_parent = node.endpoint.lookup(&role[0]).expect("the parent's address");
    let connected = node.send(&to_parent, 1, b"hello");
    node.until("a connection", |node| node.is_done(connected));
    // SAFETY: the child makes system calls only.
    let grandchild = unsafe { libc::fork() };
    assert!(grandchild >= 0, "no second process");
    if grandchild == 0 {
        // It must outlive its parent, so it gets another end should the test not come to its own.
        // SAFETY: ends this process when the time is over.
        unsafe { libc::alarm(180) };
        loop {
            // SAFETY: waits.
            unsafe { libc::pause() };
        }
    }
    node.send(&to_parent, 2, &grandchild.to_le_bytes());
    node.until("its end", |_| false);
    sleep_for_ever()
}

/// Sleeps in the kernel until something has happened, and polls, until `done`.
#[track_caller]
fn sleep_until(node: &mut Node, done: impl Fn(&Node) -> bool) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec { tv_sec: support::PATIENCE.as_secs() as i64, tv_nsec: 0 };
    while !done(node) {
        if node.endpoint.prepare_wait() {
            let fd = node.endpoint.wait_fd().expect("it can be waited for");
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            assert_ne!(poll(&mut fds, Some(&patience)).expect("wait"), 0, "nothing happened");
        }
        node.poll();
    }
}

/// Nothing but the kernel knows of it, so the poll after a sleep asks: not one of the next thousand
/// only, nor one some milliseconds later.
#[test]
fn who_slept_learns_of_a_death_at_the_next_poll() {
    if let Some(role) = role() {
        play(&role);
    }
    let mut node = with_attach(true, true);
    let test = test_path!("who_slept_learns_of_a_death_at_the_next_poll");
    let (mut child, addr, _) = with_child(test, "polling", true, &mut node);
    assert_eq!(child.line(), "polling");
    let answer = node.recv_expected(&addr, 5);
    node.fall_asleep();
    child.kill();
    node.woken();
    node.poll();
    assert!(node.is_done(answer), "it does not know yet");
    let error = node.error(answer);
    assert!(matches!(error, Error::PeerGone { .. }), "{error}");
}

/// The first poll after a sleep accepts a new peer, too. Then both ask the kernel at every 16th
/// poll.
#[test]
fn who_slept_accepts_a_peer_at_the_next_poll() {
    let mut node = listening();
    node.fall_asleep();
    let mut peer = Node::new(na::open("na+sm://", &OpenOptions::default()).expect("open"));
    let to_node = peer.endpoint.lookup(node.endpoint.self_addr().uri()).expect("look up");
    peer.send(&to_node, 3, b"hello");
    peer.poll();
    node.woken();
    node.poll();
    for _ in 0..16 {
        peer.poll();
    }
    for _ in 0..16 {
        node.poll();
    }
    assert_eq!(node.endpoint.stats().peers.len(), 1, "it has not been let in yet");
}
