//! An sm endpoint with more peers than it looks at in each round.

use na::{Access, Addr, Completion, Memory, OpId, OpenOptions, Tag, Transfer};

use crate::common::sm::{self as support, Node, listening};

/// Two tests at a time find descriptors for so many where a process may have 256.
const PEERS: usize = 10;

/// Rounds after which a quiet peer is left for certain.
const QUIET: usize = 20_000;

fn client() -> Node {
    Node::new(na::open("na+sm://", &OpenOptions::default()).expect("open"))
}

/// A target, and clients that have each been answered once; with the target's names for them.
fn connected() -> (Node, Vec<(Node, Addr)>, Vec<Addr>) {
    let mut target = listening();
    let uri = target.endpoint.self_addr().uri().to_owned();
    let mut clients = Vec::new();
    let mut names = Vec::new();
    for tag in 0..PEERS as u32 {
        let mut client = client();
        let to = client.endpoint.lookup(&uri).expect("look up");
        let asked = target.recv();
        client.send(&to, tag, b"hello");
        target.until("a request", |target| {
            client.poll();
            target.is_done(asked)
        });
        names.push(target.received(asked).0.from);
        clients.push((client, to));
    }
    (target, clients, names)
}

fn rest(target: &mut Node) {
    (0..QUIET).for_each(|_| target.poll());
}

#[test]
fn each_of_many_quiet_peers_is_heard() {
    let (mut target, mut clients, names) = connected();
    for round in 0..3 {
        rest(&mut target);
        for (index, (client, to)) in clients.iter_mut().enumerate() {
            let tag = (round * PEERS + index) as u32;
            let asked = target.recv();
            client.send(to, tag, b"again");
            target.until("a request", |target| target.is_done(asked));
            let (arrival, _) = target.received(asked);
            assert_eq!((arrival.from, arrival.tag), (names[index].clone(), Tag(tag)));
        }
    }
}

#[test]
fn quiet_peers_are_answered_and_their_sends_reported() {
    let (mut target, mut clients, names) = connected();
    rest(&mut target);
    for (index, (client, to)) in clients.iter_mut().enumerate() {
        let answered = client.recv_expected(to, 7);
        let (op, mut buf) = (target.op(), target.endpoint.alloc_msg());
        assert!(buf.try_extend(&[index as u8]));
        target.endpoint.send_expected(op, &names[index], Tag(7), buf).expect("answer");
        target.until("the end of a send", |target| target.is_done(op));
        client.until("an answer", |client| client.is_done(answered));
        assert_eq!(client.received(answered).1, [index as u8]);
    }
}

#[test]
fn quiet_peers_get_and_put() {
    let (mut target, mut clients, names) = connected();
    let memory = target
        .endpoint
        .register(Memory::from_vec(vec![3; 100_000]), Access::ReadWrite)
        .expect("register");
    let described = target.endpoint.mem_to_bytes(&memory);
    rest(&mut target);
    for (client, to) in &mut clients {
        let local = client
            .endpoint
            .register(Memory::from_vec(vec![0; 100_000]), Access::ReadWrite)
            .expect("register");
        let remote = client.endpoint.mem_from_bytes(&described).expect("a description");
        let op = client.op();
        let len = 100_000;
        let transfer =
            Transfer { local: local.clone(), local_offset: 0, remote, remote_offset: 0, len };
        client.endpoint.get(op, to, transfer).expect("get");
        client.until("a transfer", |client| {
            target.poll();
            client.is_done(op)
        });
        assert!(matches!(client.finish(op), Completion::Transfer { result: Ok(()), .. }));
        let mut byte = [0];
        assert!(local.read_at(99_999, &mut byte) && byte == [3]);
    }
    drop(names);
}

#[test]
fn a_sleeper_is_woken_by_a_quiet_peer() {
    let (mut target, mut clients, _names) = connected();
    for index in [0, PEERS - 1, 6] {
        rest(&mut target);
        let asked = target.recv();
        target.until("sleep", |target| target.endpoint.prepare_wait());
        let (client, to) = &mut clients[index];
        client.send(to, index as u32, b"wake up");
        let fd = target.endpoint.wait_fd().expect("a descriptor");
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let limit =
            rustix::event::Timespec { tv_sec: support::PATIENCE.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).expect("poll"), 1, "not woken");
        target.until("the message", |target| target.is_done(asked));
        assert_eq!(target.received(asked).0.tag, Tag(index as u32));
        // And heard without a bell afterwards.
        let asked = target.recv();
        let (client, to) = &mut clients[(index + 1) % PEERS];
        client.send(to, 5, b"again");
        target.until("a message", |target| target.is_done(asked));
    }
}

/// The round that looks once more before a sleep leaves no peer, however long they were quiet. The
/// number of rounds before it decides which of them it would leave.
#[test]
fn a_sleeper_is_woken_by_each_peer_after_any_number_of_rounds() {
    let (mut target, mut clients, _names) = connected();
    for rounds in 56..64 + 2 * PEERS {
        for index in 0..PEERS {
            // Now all of them are looked at.
            for (client, to) in &mut clients {
                let asked = target.recv();
                client.send(to, 1, b"here");
                target.until("a message", |target| target.is_done(asked));
                target.received(asked);
                client.poll();
            }
            (0..rounds).for_each(|_| target.poll());
            let asked = target.recv();
            target.until("a sleep", |target| target.endpoint.prepare_wait());
            let (client, to) = &mut clients[index];
            client.send(to, 2, b"wake up");
            target.woken();
            target.until("the message", |target| target.is_done(asked));
            assert_eq!(target.received(asked).0.tag, Tag(2));
        }
    }
}

#[test]
fn quiet_peers_that_leave_are_noticed_and_replaced() {
    let (mut target, mut clients, names) = connected();
    rest(&mut target);
    let waiting: Vec<OpId> = names.iter().map(|name| target.recv_expected(name, 1)).collect();
    clients.truncate(PEERS / 2);
    for op in waiting.iter().skip(PEERS / 2) {
        target.until("the end of a peer", |target| target.is_done(*op));
    }
    assert!(waiting.iter().take(PEERS / 2).all(|op| !target.is_done(*op)));
    for (index, (client, to)) in clients.iter_mut().enumerate() {
        let asked = target.recv();
        client.send(to, index as u32, b"still here");
        target.until("a request", |target| target.is_done(asked));
        assert_eq!(target.received(asked).0.from, names[index]);
    }
    target.still_serves();
}
