//! Limits of the memory that peers make an sm endpoint allocate: each place where a peer could make
//! an allocation grow is driven beyond its limit. (Limits of the handshake and of single records
//! are in `faults.rs`.)

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use na::{Access, Addr, Completion, Error, Memory, OpenOptions};

use crate::common::sm::{
    self as support, Hostile, Node, RING, SHARE, listening, register, with_attach,
};

/// Offset of the position that the endpoint publishes for the ring towards it.
const HEAD: usize = 128;

/// Writes records that wrap around, giving the endpoint turns until it has made room.
struct Flood<'a> {
    hostile: &'a Hostile,
    /// Bytes written, from the start of the ring.
    tail: usize,
}

impl Flood<'_> {
    /// `false`: the endpoint has ended the connection.
    fn write(&mut self, node: &mut Node, kind: u8, words: &[u64]) -> bool {
        let span = (8 + 8 * words.len()).next_multiple_of(64);
        assert_eq!(span, 64, "records of one line never need padding");
        let free = |hostile: &Hostile, tail: usize| {
            RING - (tail - hostile.word(HEAD).load(Ordering::Acquire) as usize)
        };
        while free(self.hostile, self.tail) < 128 {
            node.poll();
            if self.hostile.is_closed() {
                return false;
            }
        }
        let at = |tail: usize| 4096 + tail % RING;
        for (index, word) in words.iter().enumerate() {
            self.hostile.word(at(self.tail) + 8 + 8 * index).store(*word, Ordering::Relaxed);
        }
        self.hostile.word(at(self.tail + span)).store(0, Ordering::Relaxed);
        let commit = (8 * words.len() as u64) | (u64::from(kind) << 24);
        self.hostile.word(at(self.tail)).store(commit, Ordering::Release);
        self.tail += span;
        true
    }
}

/// Expects a breach when `kind` with these words comes for ever and no answer is taken.
#[track_caller]
fn expect_breach(what: &str, kind: u8, words: impl Fn(u64) -> Vec<u64>) {
    let mut node = listening();
    let (hostile, addr) = Hostile::attach(&mut node);
    expect_breach_of(what, (node, &hostile, &addr), kind, words);
}

#[track_caller]
fn expect_breach_of(
    what: &str,
    (mut node, hostile, addr): (Node, &Hostile, &Addr),
    kind: u8,
    words: impl Fn(u64) -> Vec<u64>,
) {
    let waiting = node.recv_expected(addr, 9);
    // One record of one line was the greeting.
    let mut flood = Flood { hostile, tail: 64 };
    let written = (0..20_000).take_while(|number| flood.write(&mut node, kind, &words(*number)));
    let written = written.count();
    assert!(written < 20_000, "{what}: all were taken though no answer was");
    let error = node.error(waiting);
    assert!(matches!(error, Error::Protocol { .. }), "{what}: {error}");
    node.still_serves();
}

#[test]
fn answers_that_are_not_taken_are_bounded() {
    const GET: u8 = 3;
    const PUT: u8 = 4;
    for (what, kind) in [("denied gets", GET), ("denied puts", PUT)] {
        // No piece and no byte: part, key, offset, length.
        expect_breach(what, kind, |number| vec![number, 5, 0, 0]);
    }
    // Verdicts that come some turns later: the endpoint attaches, for the peer sleeps.
    const LEN: usize = 20_000;
    const BELL: usize = 384;
    for (what, kind) in [("gets", GET), ("puts", PUT)] {
        let mut node = with_attach(true, true);
        let (hostile, addr) = Hostile::attach_open(&mut node);
        let memory = Memory::from_vec(vec![0; LEN]);
        let (memory, _) = register(&node, memory, Access::ReadWrite);
        let place = vec![0_u8; LEN];
        let (at, len) = (place.as_ptr().expose_provenance() as u64, LEN as u64);
        let ask = |number| {
            hostile.half(BELL).store(1, Ordering::Relaxed);
            vec![number, memory.key(), 0, len, at, len, 0]
        };
        expect_breach_of(what, (node, &hostile, &addr), kind, ask);
    }
}

#[test]
fn shares_of_no_transfer_are_not_answered() {
    for attaches in [false, true] {
        let mut node = with_attach(attaches, true);
        let (hostile, addr) = Hostile::attach(&mut node);
        let ends = (node, &hostile, &addr);
        expect_breach_of("shares of no transfer", ends, SHARE, |number| vec![number, 0, 1]);
    }
}

/// Pings are answered once, however many wait: the connection stays.
#[test]
fn pings_are_answered_together() {
    let mut node = listening();
    let (hostile, _) = Hostile::attach(&mut node);
    let mut flood = Flood { hostile: &hostile, tail: 64 };
    for _ in 0..5000 {
        assert!(flood.write(&mut node, 10, &[]));
    }
    node.still_serves();
    assert!(!hostile.is_closed());
}

/// Messages that nobody receives stay in the ring, which is as large as it was agreed.
#[test]
fn early_messages_are_bounded() {
    let mut node = listening();
    let (hostile, _) = Hostile::attach(&mut node);
    let mut held = 0;
    'flood: for tag in 0..100_000u64 {
        let at = |tail: usize| 4096 + tail % RING;
        let tail = 64 * (1 + held);
        let mut turns = 0;
        while RING - (tail - hostile.word(HEAD).load(Ordering::Acquire) as usize) < 128 {
            node.poll();
            turns += 1;
            if turns == 10_000 {
                break 'flood;
            }
        }
        hostile.word(at(tail + 64)).store(0, Ordering::Relaxed);
        hostile.word(at(tail)).store(8 | 1 << 24 | tag << 32, Ordering::Release);
        held += 1;
    }
    // 256 KiB of early messages, each with 64 bytes of overhead, and a ring full of them.
    assert!(held < (256 << 10) / 64 + RING / 64 + 64, "{held} messages were taken");
    let mut received = 0;
    let mut ops = Vec::new();
    for _ in 0..held {
        ops.push(node.recv());
    }
    for op in ops {
        match node.finish(op) {
            Completion::Recv { result: Ok(arrival), .. } => {
                assert_eq!(arrival.tag.0 as usize, received);
            }
            other => panic!("not a message: {other:?}"),
        }
        received += 1;
    }
    assert_eq!(received, held, "none is lost");
    node.still_serves();
}

/// A client, and whether `target` has taken a message of it or why not.
fn dial(target: &mut Node) -> (Node, Result<(), Error>) {
    let mut client = Node::new(na::open("na+sm://", &OpenOptions::default()).expect("open"));
    let told = knock(&mut client, target);
    (client, told)
}

/// Sends a message and an answer.
fn knock(client: &mut Node, target: &mut Node) -> Result<(), Error> {
    let to = client.endpoint.lookup(target.endpoint.self_addr().uri()).expect("look up");
    let asked = target.recv();
    let answered = client.recv_expected(&to, 2);
    let sent = client.send(&to, 1, b"me too");
    target.until("a request or its end", |target| {
        client.poll();
        target.is_done(asked) || client.is_done(sent)
    });
    if let Completion::Send { result: Err(error), .. } = client.finish(sent) {
        target.endpoint.cancel(asked);
        client.endpoint.cancel(answered);
        target.finish(asked);
        client.finish(answered);
        return Err(error);
    }
    let (arrival, _) = target.received(asked);
    let (op, buf) = (target.op(), target.endpoint.alloc_msg());
    target.endpoint.send_expected(op, &arrival.from, na::Tag(2), buf).expect("answer");
    target.until("the answer", |_| {
        client.poll();
        client.is_done(answered)
    });
    client.received(answered);
    Ok(())
}

#[test]
fn connections_beyond_the_limit_are_refused_and_told_why() {
    for (all, per_user, told) in [
        (2, 100, "refused: too many connections (2); raise `sm.connections_max`"),
        (100, 2, "(2); raise `sm.connections_per_user_max`"),
    ] {
        let mut options = OpenOptions::listening(true);
        (options.sm.connections_max, options.sm.connections_per_user_max) = (all, per_user);
        let mut target = Node::new(na::open("na+sm://", &options).expect("open"));
        let (mut first, welcome) = dial(&mut target);
        welcome.expect("room for the first");
        let (mut second, welcome) = dial(&mut target);
        welcome.expect("room for the second");
        let (mut third, refused) = dial(&mut target);
        let error = refused.expect_err("no room for a third");
        assert!(matches!(error, Error::Unreachable { .. }) && error.never_arrived(), "{error}");
        assert!(error.to_string().contains(told), "{error}");
        let error = knock(&mut third, &mut target).expect_err("still none");
        assert!(error.to_string().contains(told), "{error}");
        // The others are still served.
        knock(&mut first, &mut target).expect("the first goes on");
        knock(&mut second, &mut target).expect("the second goes on");
        // Connections that the endpoint makes itself take nobody's room, and are not limited.
        let mut own = listening();
        let to = target.endpoint.lookup(own.endpoint.self_addr().uri()).expect("look up");
        let (asked, sent) = (own.recv(), target.send(&to, 1, b"from here"));
        target.until("a message of the target", |target| {
            own.poll();
            target.is_done(sent) && own.is_done(asked)
        });
        // Room that is left is given away, once.
        drop(first);
        target.until("room", |target| knock(&mut third, target).is_ok());
        let (_, refused) = dial(&mut target);
        refused.expect_err("the room is taken");
        knock(&mut second, &mut target).expect("the second goes on");
    }
}

/// A peer with the largest rings costs nothing before they are used, and there are not many such.
#[test]
fn the_rings_of_peers_are_bounded_and_not_allocated_for_them() {
    const LARGE: usize = 8 << 20;
    const LEN: usize = 4096 + 2 * LARGE + 4 * 4096;
    let mut options = OpenOptions::listening(true);
    options.sm.connections_per_user_max = 100;
    let mut target = Node::new(na::open("na+sm://", &options).expect("open"));
    let uri = target.endpoint.self_addr().uri().to_owned();
    let mut bytes = support::hello("na+sm://large", false);
    bytes[16..20].copy_from_slice(&(LARGE as u32).to_le_bytes());
    let mut peers = Vec::new();
    // The second byte of the kind of an answer is zero: its first is at 6.
    let told = loop {
        let (socket, memory) = (support::dial(&uri), support::memfd(LEN, true));
        support::greet(&mut target, &socket, &bytes, &[memory.as_fd()]);
        let mut answer = None;
        target.until("an answer", |_| {
            answer = support::recv_packet(&socket);
            answer.is_some()
        });
        let answer = answer.expect("just seen");
        let taken = 512 * rustix::fs::fstat(&memory).expect("its size").st_blocks;
        if answer.get(6) != Some(&2) {
            assert_eq!(taken, 0, "of one that is refused nothing is touched");
            break String::from_utf8_lossy(&answer).into_owned();
        }
        assert!(taken <= 1 << 20, "{taken} bytes are allocated for a peer that uses none");
        peers.push((socket, memory));
        assert!(peers.len() < 100, "all are let in");
    };
    assert!(told.contains("rings of user"), "{told}");
    assert_eq!(peers.len(), (256 << 20) / LEN);
    drop(peers);
    target.still_serves();
}

#[test]
fn a_limit_of_zero_is_refused() {
    let zero: [fn(&mut OpenOptions); 2] =
        [|o| o.sm.connections_max = 0, |o| o.sm.connections_per_user_max = 0];
    for set in zero {
        let mut options = OpenOptions::listening(true);
        set(&mut options);
        let error = na::open("na+sm://", &options).expect_err("opened");
        assert!(matches!(error, Error::BadOption { .. }), "{error}");
        assert!(error.to_string().contains("connections"), "{error}");
    }
}

crate::common::in_groups! {
    answers_that_are_not_taken_are_bounded,
    shares_of_no_transfer_are_not_answered,
    pings_are_answered_together,
    early_messages_are_bounded,
}
