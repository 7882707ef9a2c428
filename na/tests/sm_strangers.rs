//! Sockets that were accepted by an sm endpoint and have not said hello.
#![cfg(feature = "sm")]

use std::os::fd::{AsFd, OwnedFd};

use na::OpenOptions;
use rustix::event::{PollFd, PollFlags, Timespec};

#[path = "sm_support/mod.rs"]
mod support;

use support::{Node, dial, listening, send_packet};

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

/// More than there is room for.
const CROWD: usize = 150;

/// A node that has no more room for strangers: the first of all, and a silent crowd.
fn crowded(connect_timeout: std::time::Duration) -> (Node, OwnedFd, Vec<OwnedFd>) {
    let mut options = OpenOptions::listening(true);
    options.connect_timeout = connect_timeout;
    let mut node = Node::new(na::open("na+sm://", &options).expect("open"));
    let first = accepted(&mut node);
    let uri = node.endpoint.self_addr().uri().to_owned();
    let crowd = (0..CROWD).map(|_| dial(&uri)).collect();
    (node, first, crowd)
}

#[test]
fn a_slow_dialer_is_not_turned_away_by_a_crowd() {
    let (mut node, slow, crowd) = crowded(8 * support::PATIENCE);
    (0..10_000).for_each(|_| node.poll());
    assert_eq!(support::recv_packet(&slow), None, "it is closed");
    let segment = support::memfd(support::SEGMENT, true);
    send_packet(&slow, &support::hello("na+sm://", false), &[segment.as_fd()]);
    let mut answer = None;
    node.until("a welcome", |_| {
        answer = support::recv_packet(&slow);
        answer.is_some()
    });
    assert_eq!(answer.expect("just seen").get(6), Some(&2), "it is welcome");
    assert!(crowd.iter().all(|silent| support::recv_packet(silent).is_none()), "they wait");
    // Those who leave make room.
    drop(crowd);
    node.still_serves();
}

#[test]
fn a_silent_crowd_does_not_keep_others_out_for_good() {
    let (mut node, _first, _crowd) = crowded(std::time::Duration::from_secs(1));
    node.still_serves();
}
