//! Sockets that were accepted by an sm endpoint and have not said hello.

use std::os::fd::{AsFd, OwnedFd};

use na::{OpenOptions, PeerUsers};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::common::sm::{
    self as support, ChildNode, Hostile, Lingering, Node, dial, greet, hello, listening,
    recv_packet, role, say, send_packet, sleep_for_ever, without_waiting,
};
use crate::common::test_path;

/// Polls until it sleeps and nothing has happened that would wake it.
#[track_caller]
fn until_calm(node: &mut Node) {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    node.until("calm", |node| {
        let asleep = node.endpoint.prepare_wait();
        let fd = node.endpoint.wait_fd().expect("a descriptor to wait for");
        asleep && rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)) == Ok(0)
    });
}

/// A child that does nothing but to keep copies of descriptors, until this is dropped.
struct Child(rustix::process::Pid);

impl Child {
    /// It keeps what the endpoint has, and not the `dialers`, or they would not end.
    fn fork(dialers: &[&OwnedFd]) -> Self {
        na::conformance::hear_of_children();
        // SAFETY: the child only makes system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            for dialer in dialers {
                let fd = std::os::fd::AsRawFd::as_raw_fd(*dialer);
                // SAFETY: an open descriptor, which nothing in the child uses.
                unsafe { libc::close(fd) };
            }
            loop {
                // SAFETY: waits for the signal that ends it.
                unsafe { libc::pause() };
            }
        }
        Self(rustix::process::Pid::from_raw(child).expect("no second process"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let killed = rustix::process::kill_process(self.0, rustix::process::Signal::KILL);
        killed.expect("kill the child");
        let options = rustix::process::WaitOptions::empty();
        rustix::process::waitpid(Some(self.0), options).expect("wait for the child");
    }
}

/// A socket that the node has accepted.
#[track_caller]
fn accepted(node: &mut Node) -> OwnedFd {
    let socket = dial(node.endpoint.self_addr().uri());
    until_calm(node);
    socket
}

#[test]
fn a_stranger_that_a_child_keeps_is_heard_once() {
    let mut node = listening();
    let refused = accepted(&mut node);
    let leaves = accepted(&mut node);
    let _child = Child::fork(&[&refused, &leaves]);
    send_packet(&refused, b"not a hello", &[]);
    until_calm(&mut node);
    drop((refused, leaves));
    until_calm(&mut node);
    node.still_serves();
}

#[test]
fn a_late_stranger_that_a_child_keeps_is_not_heard_any_more() {
    let mut options = OpenOptions::listening(true);
    options.connect_timeout = std::time::Duration::from_millis(500);
    let mut node = Node::new(na::open("na+sm://", &options).expect("open"));
    let silent = accepted(&mut node);
    let _child = Child::fork(&[&silent]);
    // Over when it is told of the end, which a child that has the file does not hold back.
    node.until("the end of its time", |_| support::recv_packet(&silent).is_some());
    drop(silent);
    until_calm(&mut node);
}

/// More than there is room for, where two tests at a time have descriptors for so many.
fn crowd_len() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(150, |limit| (limit / 4).min(150)) as usize
}

/// A node that has no more room for strangers: the first of all, and a silent crowd.
fn crowded(connect_timeout: std::time::Duration) -> (Node, OwnedFd, Vec<OwnedFd>) {
    let mut options = OpenOptions::listening(true);
    options.connect_timeout = connect_timeout;
    let mut node = Node::new(na::open("na+sm://", &options).expect("open"));
    let first = accepted(&mut node);
    let uri = node.endpoint.self_addr().uri().to_owned();
    let crowd = (0..crowd_len()).map(|_| dial(&uri)).collect();
    (node, first, crowd)
}

#[test]
fn a_slow_dialer_is_not_turned_away_by_a_crowd() {
    let (mut node, slow, crowd) = crowded(8 * support::PATIENCE);
    (0..10_000).for_each(|_| node.poll());
    assert_eq!(support::recv_packet(&slow), None, "it is closed");
    let segment = support::memfd(support::SEGMENT, true);
    greet(&mut node, &slow, &support::hello("na+sm://", false), &[segment.as_fd()]);
    let mut answer = None;
    node.until("a welcome", |_| {
        answer = support::recv_packet(&slow);
        answer.is_some()
    });
    assert_eq!(answer.expect("just seen").get(6), Some(&2), "it is welcome");
    for silent in &crowd {
        // Where the process may have few descriptors, there are too many of them.
        let said = recv_packet(silent).unwrap_or_else(|| b"try again".to_vec());
        assert!(String::from_utf8_lossy(&said).contains("try again"), "it waits");
    }
    // Those who leave make room.
    drop(crowd);
    node.still_serves();
}

/// Returns whether there is a place for a process that connects now.
fn may_speak(node: &mut Node, uri: &str) -> bool {
    let socket = dial(uri);
    // Enough to have been accepted: refused, or told to go on where the kernel makes that
    // necessary.
    (0..2048).for_each(|_| node.poll());
    support::recv_any(&socket).is_none_or(|said| said.get(6) == Some(&4))
}

#[test]
fn a_silent_crowd_does_not_keep_others_out_for_good() {
    let (mut node, _first, _crowd) = crowded(std::time::Duration::from_secs(1));
    let uri = node.endpoint.self_addr().uri().to_owned();
    node.until("room", |node| may_speak(node, &uri));
    node.still_serves();
}

/// The user `nobody`.
const OTHER: u32 = 65534;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root can become another user");
    }
    root
}

fn become_another() {
    // SAFETY: changes this process only.
    assert_eq!(unsafe { libc::setresuid(OTHER, OTHER, OTHER) }, 0);
}

/// A user that may come fills all places and the kernel's queue, and dials again whenever it is
/// turned away.
#[test]
fn a_renewed_crowd_of_one_user_keeps_no_other_out() {
    if let Some(role) = role() {
        crowd_at(&role[0]);
    }
    if !is_root() {
        return;
    }
    let mut options = OpenOptions::listening(true);
    options.peer_users = PeerUsers::All;
    let mut node = Node::new(na::open("na+sm://", &options).expect("open"));
    let uri = node.endpoint.self_addr().uri().to_owned();
    let child =
        ChildNode::start(test_path!("a_renewed_crowd_of_one_user_keeps_no_other_out"), &uri);
    node.until("a crowd", |_| child.try_line().is_some_and(|line| line == "crowded"));
    node.still_serves();
    node.still_serves();
}

/// Keeps a crowd of connections to `uri` for ever. One that the node does not accept makes
/// `connect` wait, until the node's queue is drained.
fn crowd_at(uri: &str) -> ! {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limits = getrlimit(Resource::Nofile);
    let limits = Rlimit { current: limits.maximum, ..limits };
    setrlimit(Resource::Nofile, limits).expect("as many descriptors as may be");
    become_another();
    let full = limits.maximum.map_or(1400, |all| all.saturating_sub(64).min(1400)) as usize;
    let dialed = |socket: &OwnedFd| {
        let events = PollFlags::IN | PollFlags::HUP;
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut [PollFd::new(socket, events)], Some(&now));
        let refused = |packet: Vec<u8>| packet.get(6) != Some(&4);
        !(ready.is_ok_and(|ready| ready > 0) && recv_packet(socket).is_some_and(refused))
    };
    let mut crowd = Vec::new();
    for round in 0.. {
        while crowd.len() < full {
            crowd.push(dial(uri));
        }
        if round == 0 {
            say("crowded");
        }
        crowd.retain(dialed);
    }
    sleep_for_ever()
}

/// Files that a peer sends along with a packet are closed elsewhere, wherever they lie when the
/// connection ends.
#[test]
fn nobody_waits_for_what_a_stranger_sent_to_be_closed() {
    let lingering: Vec<_> = (0..4).map(|_| Lingering::new()).collect();
    let (files, peers): (Vec<_>, Vec<_>) =
        lingering.into_iter().map(|one| (one.file, one.peer)).unzip();
    without_waiting(move || {
        let mut files = files.into_iter();
        let mut next = || files.next().expect("one more");
        let mut node = listening();
        let uri = node.endpoint.self_addr().uri().to_owned();
        // Instead of the segment.
        let (socket, file) = (dial(&uri), next());
        greet(&mut node, &socket, &hello("na+sm://me", false), &[file.as_fd()]);
        drop(file);
        let mut said = Vec::new();
        node.until("a refusal", |_| {
            said = recv_packet(&socket).unwrap_or_default();
            !said.is_empty()
        });
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("do not belong there"), "{said}");
        node.still_serves();
        // In the place of a bell.
        let (hostile, addr) = Hostile::attach(&mut node);
        let (waiting, file) = (node.recv_expected(&addr, 9), next());
        send_packet(&hostile.socket, b"!", &[file.as_fd()]);
        drop(file);
        let error = node.error(waiting);
        assert!(matches!(error, na::Error::Protocol { .. }), "{error}");
        node.still_serves();
        // Behind a packet that ends the connection, and behind an empty one.
        let (hostile, addr) = Hostile::attach(&mut node);
        let (waiting, file) = (node.recv_expected(&addr, 9), next());
        send_packet(&hostile.socket, b"no bell", &[]);
        send_packet(&hostile.socket, b"", &[]);
        send_packet(&hostile.socket, b"!", &[file.as_fd()]);
        drop(file);
        node.error(waiting);
        node.still_serves();
        // In a connection that nobody has looked at when the endpoint is closed.
        let (hostile, _) = Hostile::attach(&mut node);
        let file = next();
        send_packet(&hostile.socket, b"!", &[file.as_fd()]);
        drop((file, node));
    });
    drop(peers);
}

#[test]
fn who_makes_us_wait_for_closing_gets_no_further_connection() {
    let mut node = listening();
    let uri = node.endpoint.self_addr().uri().to_owned();
    let (mut peers, mut told) = (Vec::new(), String::new());
    // More than may wait.
    for _ in 0..20 {
        let (socket, Lingering { file, peer }) = (dial(&uri), Lingering::new());
        peers.push(peer);
        let mut refused = None;
        node.until("leave to send descriptors, or none", |_| {
            refused = recv_packet(&socket);
            let sent = support::try_send_packet(&socket, b"x", &[file.as_fd()]);
            refused.is_some() || sent != Err(rustix::io::Errno::PERM)
        });
        // The last close of one that was not sent would wait.
        let _file = refused.is_some().then_some(file);
        told = String::from_utf8_lossy(&refused.unwrap_or_default()).into_owned();
        // Where the kernel lets everybody send descriptors, it is told after it has sent some.
        node.until("an end", |_| {
            let said = recv_packet(&socket);
            told += &String::from_utf8_lossy(said.as_deref().unwrap_or_default());
            said.is_some_and(|said| said.is_empty())
        });
        if told.contains("wait to be closed") {
            // Nobody else has them.
            peers.clear();
            break;
        }
    }
    assert!(told.contains("wait to be closed"), "{told}");
    // They can be closed now, so they are, and who sent them may come again.
    node.until("room", |node| may_speak(node, &uri));
    node.still_serves();
}
