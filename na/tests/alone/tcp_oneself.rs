//! A tcp endpoint that talks with its own address needs no socket.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use na::{Access, Addr, Completion, Endpoint, Memory, MsgBuf, OpId, OpenOptions, Tag, Transfer};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::alone;

/// While it lives, this process gets no further descriptor.
struct NoMoreDescriptors(Rlimit);

impl NoMoreDescriptors {
    fn new() -> Self {
        let before = getrlimit(Resource::Nofile);
        // The lowest number that is free.
        let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(next), ..before }).unwrap();
        let guard = Self(before);
        File::open("/dev/null").expect_err("the limit holds");
        guard
    }
}

impl Drop for NoMoreDescriptors {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}

/// Polls, or sleeps between polls, until `ops` have succeeded.
fn finish(endpoint: &Arc<dyn Endpoint>, sleeps: bool, ops: &[u64]) -> HashMap<u64, Completion> {
    let deadline = Instant::now() + na::conformance::PATIENCE;
    let mut done = HashMap::new();
    while !ops.iter().all(|op| done.contains_key(op)) {
        assert!(Instant::now() < deadline, "only {done:?} completed");
        if sleeps && endpoint.prepare_wait() {
            let wait_fd = endpoint.wait_fd().unwrap();
            let mut fds = [PollFd::new(&wait_fd, PollFlags::IN)];
            let patience = na::conformance::PATIENCE.try_into().unwrap();
            let woken = rustix::event::poll(&mut fds, Some(&patience)).unwrap();
            assert_eq!(woken, 1, "only {done:?} completed");
        }
        endpoint
            .poll(64, &mut |completion| drop(done.insert(ended(&completion), completion)))
            .unwrap();
    }
    done
}

/// The operation that has succeeded.
fn ended(completion: &Completion) -> u64 {
    match completion {
        Completion::Send { op, result: Ok(()), .. }
        | Completion::Recv { op, result: Ok(_), .. }
        | Completion::Transfer { op, result: Ok(()) } => op.0,
        other => panic!("failed: {other:?}"),
    }
}

fn message(endpoint: &Arc<dyn Endpoint>, bytes: &[u8]) -> MsgBuf {
    let mut buf = endpoint.alloc_msg();
    assert!(buf.try_extend(bytes));
    buf
}

fn talks_with(own: &Addr, endpoint: &Arc<dyn Endpoint>, sleeps: bool) {
    endpoint.recv_unexpected(OpId(1), endpoint.alloc_msg()).unwrap();
    endpoint.send_unexpected(OpId(2), own, Tag(7), message(endpoint, b"a note")).unwrap();
    let done = finish(endpoint, sleeps, &[1, 2]);
    let Completion::Recv { buf, result: Ok(arrival), .. } = &done[&1] else { panic!("{done:?}") };
    assert_eq!((buf.as_slice(), &arrival.from, arrival.tag), (&b"a note"[..], own, Tag(7)));

    endpoint.send_expected(OpId(3), own, Tag(8), message(endpoint, b"read")).unwrap();
    finish(endpoint, sleeps, &[3]);
    endpoint.recv_expected(OpId(4), own, Tag(8), endpoint.alloc_msg()).unwrap();
    let done = finish(endpoint, sleeps, &[4]);
    assert!(matches!(&done[&4], Completion::Recv { buf, .. } if buf.as_slice() == b"read"));

    // More than one poll copies.
    let len = 3 << 20;
    let memory = |byte| Memory::from_vec(vec![byte; len]);
    let local = endpoint.register(memory(5), Access::ReadWrite).unwrap();
    let remote = endpoint.register(memory(6), Access::ReadWrite).unwrap();
    let described = endpoint.mem_from_bytes(&endpoint.mem_to_bytes(&remote)).unwrap();
    let transfer = || Transfer {
        local: local.clone(),
        local_offset: 0,
        remote: described.clone(),
        remote_offset: 0,
        len: len as u64,
    };
    endpoint.put(OpId(5), own, transfer()).unwrap();
    finish(endpoint, sleeps, &[5]);
    endpoint.get(OpId(6), own, transfer()).unwrap();
    finish(endpoint, sleeps, &[6]);
}

#[test]
fn an_endpoint_needs_no_socket_to_reach_itself() {
    let _alone = alone();
    for (listen, sleeps) in [(true, false), (true, true), (false, false), (false, true)] {
        let endpoint = na::open("na+tcp://127.0.0.1:0", &OpenOptions::listening(listen)).unwrap();
        let own = endpoint.self_addr();
        let _none = NoMoreDescriptors::new();
        talks_with(&own, &endpoint, sleeps);
        if listen {
            talks_with(&endpoint.lookup(own.uri()).unwrap(), &endpoint, sleeps);
        }
    }
}

/// Through an address of its own that is not its self address, an endpoint reaches itself too.
#[test]
fn an_endpoint_answers_itself_at_another_address() {
    let _alone = alone();
    let endpoint = na::open("na+tcp://0.0.0.0:0", &OpenOptions::listening(true)).unwrap();
    let port = endpoint.self_addr().uri().rsplit(':').next().unwrap().to_owned();
    let other = endpoint.lookup(&format!("na+tcp://127.0.0.2:{port}")).unwrap();
    endpoint.recv_unexpected(OpId(1), endpoint.alloc_msg()).unwrap();
    endpoint.recv_expected(OpId(2), &other, Tag(8), endpoint.alloc_msg()).unwrap();
    endpoint.send_unexpected(OpId(3), &other, Tag(7), message(&endpoint, b"a call")).unwrap();
    let done = finish(&endpoint, false, &[1, 3]);
    let Completion::Recv { result: Ok(arrival), .. } = &done[&1] else { panic!("{done:?}") };
    endpoint.send_expected(OpId(4), &arrival.from, Tag(8), message(&endpoint, b"back")).unwrap();
    let done = finish(&endpoint, false, &[2, 4]);
    assert!(matches!(&done[&2], Completion::Recv { buf, .. } if buf.as_slice() == b"back"));
}
