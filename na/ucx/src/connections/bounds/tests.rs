//! Peers that do not take the data for them, over UCX, where `MARGO_TEST_UCX=1` is set. Such a peer
//! sends control messages by its driver and is not polled.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::Ucx;
use crate::endpoint::UcxEndpoint;
use crate::operations::slots::Work;
use crate::wire::{CHUNK_BYTES, Control};
use na_core::conformance::{Optional, PATIENCE};
use na_core::{
    Access, Addr, Completion, Endpoint, Error, LocalMem, Memory, MsgBuf, OpId, OpenOptions, Plugin,
    Tag, Transfer, Uri,
};

const OPEN: Optional = Optional {
    variable: "MARGO_TEST_UCX",
    uri: "ucx+tcp://127.0.0.1:0",
    open: |uri, options| Ucx.open(&Uri::parse(uri)?, options),
};

/// The operation by which an owner learns what has become of its peer.
const END: OpId = OpId(99);

/// An owner, and a peer that is connected with it.
struct Pair {
    owner: UcxEndpoint,
    peer: UcxEndpoint,
    to_owner: Addr,
    /// As in its message.
    to_peer: Addr,
}

impl Pair {
    /// `None`: UCX is not to be tested.
    fn open(set: impl FnOnce(&mut OpenOptions)) -> Option<Self> {
        if let Some(lacks) = OPEN.lacks() {
            println!("SKIPPED: {lacks}");
            return None;
        }
        let uri = Uri::parse(OPEN.uri).unwrap();
        let mut options = OpenOptions::listening(true);
        set(&mut options);
        let owner = UcxEndpoint::open(&uri, &options).unwrap();
        let peer = UcxEndpoint::open(&uri, &OpenOptions::listening(true)).unwrap();
        let to_owner = peer.lookup(owner.self_addr().uri()).unwrap();
        owner.recv_unexpected(OpId(1), room(&owner)).unwrap();
        peer.send_unexpected(OpId(2), &to_owner, Tag(0), MsgBuf::with_capacity(0)).unwrap();
        let began = Instant::now();
        let (mut from, mut sent) = (None, false);
        while from.is_none() || !sent {
            assert!(began.elapsed() < PATIENCE, "they do not meet");
            for end in [&owner, &peer] {
                let mut sink = |completion| match completion {
                    Completion::Recv { result, .. } => from = Some(result.unwrap().from),
                    Completion::Send { result, .. } => sent = result.is_ok(),
                    other @ Completion::Transfer { .. } => panic!("{other:?}"),
                };
                end.poll(16, &mut sink).unwrap();
            }
        }
        let to_peer = from.unwrap();
        Some(Self { owner, peer, to_owner, to_peer })
    }

    /// The peer says these things.
    fn says(&self, all: impl IntoIterator<Item = Control>) {
        let say = |driver: &mut Driver| {
            let index = driver.index_of(&self.to_owner).unwrap();
            all.into_iter().for_each(|control| driver.tell(index, &control));
        };
        self.peer.with(say).unwrap();
    }

    /// Looks at the owner's state of the peer.
    fn known<R>(&self, look: impl FnOnce(&mut Driver, usize) -> R) -> R {
        let look = |driver: &mut Driver| {
            let index = driver.index_of(&self.to_peer).unwrap();
            look(driver, index)
        };
        self.owner.with(look).unwrap()
    }

    fn leases(&self) -> usize {
        self.known(|driver, index| driver.peer(index).unwrap().leases.len())
    }

    /// Counts the operations of that kind here that UCX has in hand.
    fn in_hand(&self, is_it: impl Fn(&Work) -> bool) -> usize {
        self.known(|driver, _| driver.slots.iter().filter(|(_, work)| is_it(work)).count())
    }

    fn chunks(&self) -> usize {
        self.in_hand(|work| matches!(work, Work::Chunk(..)))
    }

    /// Waits for the end of the peer.
    fn watch(&self) {
        self.owner.recv_expected(END, &self.to_peer, Tag(3), room(&self.owner)).unwrap();
    }

    /// Polls the owner; how the peer has ended, if it has.
    fn poll_owner(&self) -> Option<Error> {
        let mut end = None;
        let mut sink = |completion| match completion {
            Completion::Recv { op: END, result, .. } => end = result.err(),
            Completion::Send { .. } => {}
            other => panic!("{other:?}"),
        };
        self.owner.poll(64, &mut sink).unwrap();
        end
    }

    /// Fills the peer's connection with chunks of `memory`, until some of its gets wait.
    fn fill(&self, memory: &LocalMem) {
        let began = Instant::now();
        let served = || (self.owner.served(), self.leases());
        for id in 0.. {
            let before = served();
            // The same numbers again: chunks of one before are sent in the time of one that waits.
            self.says([get(id % 2, memory)]);
            while served() == before {
                assert!(began.elapsed() < PATIENCE, "it is not heard");
                assert!(self.poll_owner().is_none());
            }
            // Those that still go on.
            while self.leases() > 0 && self.chunks() < CHUNKS_MAX as usize {
                assert!(began.elapsed() < PATIENCE, "its get is not served");
                assert!(self.poll_owner().is_none());
            }
            assert!(self.chunks() <= CHUNKS_MAX as usize);
            if self.leases() > 1 {
                return;
            }
            assert!(id < 100_000, "no end");
        }
    }
}

fn room(of: &UcxEndpoint) -> MsgBuf {
    MsgBuf::with_capacity(of.limits().unexpected_bytes_max)
}

fn memory(of: &UcxEndpoint, bytes: usize) -> LocalMem {
    of.register(Memory::from_vec(vec![7; bytes]), Access::ReadWrite).unwrap()
}

fn get(id: u64, memory: &LocalMem) -> Control {
    Control::Ask { id, key: memory.key(), offset: 0, len: memory.len(), write: false }
}

/// It owes nothing but that.
#[test]
fn a_stopped_peer_that_holds_our_memory_is_noticed() {
    for put in [false, true] {
        let limit = |options: &mut OpenOptions| options.liveness_limit = Duration::from_secs(1);
        let Some(pair) = Pair::open(limit) else { return };
        // More than sockets hold.
        let (owned, own) = (memory(&pair.owner, 64 << 20), memory(&pair.peer, 64 << 20));
        let (len, remote) = (owned.len(), owned.region().describe());
        let transfer = Transfer { local: own, local_offset: 0, remote, remote_offset: 0, len };
        match put {
            true => pair.peer.put(OpId(5), &pair.to_owner, transfer).unwrap(),
            false => pair.peer.get(OpId(5), &pair.to_owner, transfer).unwrap(),
        }
        let began = Instant::now();
        while pair.leases() == 0 {
            assert!(began.elapsed() < PATIENCE, "nothing is asked");
            assert!(pair.poll_owner().is_none());
        }
        let (sender, released) = mpsc::channel();
        owned.revoke(move |memory| drop(sender.send(memory)));
        while released.try_recv().is_err() {
            assert!(began.elapsed() < PATIENCE, "the memory does not come back, put: {put}");
            assert!(pair.poll_owner().is_none());
        }
    }
}

#[test]
fn gets_of_a_peer_that_does_not_read_wait_and_go_on_when_it_reads() {
    let Some(pair) = Pair::open(|_| {}) else { return };
    let owned = memory(&pair.owner, CHUNK_BYTES * IN_HAND_MAX as usize);
    pair.fill(&owned);
    // Of these UCX has nothing, so nothing that it sends is theirs.
    let first = 1 << 40;
    pair.says((first..first + 8).map(|id| get(id, &owned)));
    let began = Instant::now();
    while pair.leases() < 8 {
        assert!(began.elapsed() < PATIENCE, "it is not heard");
        assert!(pair.poll_owner().is_none());
    }
    while pair.leases() + pair.chunks() > 0 {
        assert!(began.elapsed() < PATIENCE, "{} gets wait", pair.leases());
        assert!(pair.poll_owner().is_none());
        // It skips what it has not asked for.
        pair.peer.poll(16, &mut |completion| panic!("{completion:?}")).unwrap();
    }
    assert_eq!(pair.known(|driver, index| driver.peer(index).unwrap().load.chunks), 0);
}

#[test]
fn a_peer_that_gets_on_and_does_not_read_loses_its_connection() {
    let Some(pair) = Pair::open(|_| {}) else { return };
    let owned = memory(&pair.owner, CHUNK_BYTES * IN_HAND_MAX as usize);
    pair.fill(&owned);
    pair.watch();
    // It gives up half of them, of which the chunks stay in UCX's hands.
    let all = 1 << 40..(1 << 40) + 2 * ASKED_MAX as u64;
    pair.says(all.clone().step_by(2).map(|id| get(id, &owned)));
    pair.says(all.clone().step_by(2).map(|id| Control::Release { id }));
    pair.says(all.map(|id| get(id + (1 << 40), &owned)));
    let began = Instant::now();
    let end = loop {
        assert!(began.elapsed() < PATIENCE, "{} gets wait", pair.leases());
        assert!(pair.chunks() <= CHUNKS_MAX as usize && pair.leases() <= ASKED_MAX);
        if let Some(end) = pair.poll_owner() {
            break end;
        }
    };
    assert!(matches!(end, Error::Protocol { .. }), "{end}");
}

#[test]
fn a_peer_that_asks_and_reads_nothing_of_what_it_is_told_loses_its_connection() {
    type Asked = fn(u64) -> Control;
    let ask: Asked = |id| Control::Ask { id, key: 0, offset: 0, len: 1, write: true };
    let want: Asked = |id| Control::Want { key: id };
    for asked in [ask, want] {
        let Some(pair) = Pair::open(|_| {}) else { return };
        let owned = memory(&pair.owner, CHUNK_BYTES * IN_HAND_MAX as usize);
        pair.fill(&owned);
        pair.watch();
        let first = 1 << 40;
        pair.says((first..first + 2 * u64::from(TOLD_MAX)).map(asked));
        let began = Instant::now();
        let end = loop {
            assert!(began.elapsed() < PATIENCE, "it asks on");
            let told = pair.in_hand(|work| matches!(work, Work::Told(..)));
            assert!(told <= TOLD_MAX as usize + 1, "{told} answers wait");
            if let Some(end) = pair.poll_owner() {
                break end;
            }
        };
        assert!(matches!(end, Error::Protocol { .. }), "{end}");
        assert!(end.to_string().contains("reads nothing"), "{end}");
    }
}

/// Returns whether it says that it has taken them, or nothing; at its own bound, or as the one that
/// leaves most at the bound of all.
#[test]
fn a_peer_that_takes_no_answers_is_given_up() {
    const MAX: usize = 1 << 20;
    for (lies, of_all) in [(false, false), (true, false), (false, true)] {
        let bound = |options: &mut OpenOptions| match of_all {
            true => options.unread_answers_total_max = Some(MAX),
            false => options.unread_answers_max = Some(MAX),
        };
        let Some(pair) = Pair::open(bound) else { return };
        pair.watch();
        let began = Instant::now();
        let mut most = 0;
        let end = loop {
            assert!(began.elapsed() < PATIENCE, "{most} bytes wait");
            for _ in 0..16 {
                let mut buf = room(&pair.owner);
                buf.set_len(buf.capacity());
                pair.owner.send_expected(OpId(4), &pair.to_peer, Tag(4), buf).unwrap();
            }
            if lies {
                pair.says([Control::Taken([0, 16])]);
            }
            let unread = pair.known(|driver, index| {
                let waits = driver.peer(index).unwrap().queues.iter().flatten();
                let waiting: usize = waits.map(|message| message.buf.capacity()).sum();
                let sends = driver.slots.iter().filter_map(|(_, work)| match work {
                    Work::Send { buf, .. } => Some(buf.capacity()),
                    _ => None,
                });
                waiting + sends.sum::<usize>()
            });
            most = most.max(unread);
            if let Some(end) = pair.poll_owner() {
                break end;
            }
        };
        assert!(matches!(end, Error::PeerGone { .. }), "{end}");
        assert!(end.to_string().contains("it takes no answers"), "{end}");
        // What was sent between two turns that look.
        assert!(most <= MAX + 64 * pair.owner.limits().expected_bytes_max, "{most} bytes waited");
        assert_eq!(pair.known(|driver, index| driver.peer(index).unwrap().load.answers()), 0);
    }
}

#[test]
fn a_peer_that_takes_its_answers_late_is_not_given_up() {
    const COUNT: usize = 1000;
    let bound = |options: &mut OpenOptions| options.unread_answers_max = Some(COUNT * 8192);
    let Some(pair) = Pair::open(bound) else { return };
    for tag in 0..COUNT {
        let tag = Tag(tag as u32);
        pair.owner.send_expected(OpId(4), &pair.to_peer, tag, room(&pair.owner)).unwrap();
    }
    // One of those that wait.
    pair.owner.send_expected(OpId(6), &pair.to_peer, Tag(0), room(&pair.owner)).unwrap();
    pair.owner.cancel(OpId(6));
    let load = || pair.known(|driver, index| driver.peer(index).unwrap().load.answers());
    assert!(load() > (COUNT - 100) * 4096, "{} bytes", load());
    for tag in 0..COUNT {
        let tag = Tag(tag as u32);
        pair.peer.recv_expected(OpId(5), &pair.to_owner, tag, room(&pair.peer)).unwrap();
    }
    let (mut came, mut sent) = (0, 0);
    let began = Instant::now();
    while came < COUNT || sent < COUNT {
        assert!(began.elapsed() < PATIENCE, "{came} have come");
        for end in [&pair.owner, &pair.peer] {
            let mut sink = |completion| match completion {
                Completion::Recv { result, .. } => came += usize::from(result.is_ok()),
                Completion::Send { op: OpId(4), result, .. } => sent += usize::from(result.is_ok()),
                Completion::Send { op: OpId(6), result: Err(Error::Canceled), .. } => {}
                other => panic!("{other:?}"),
            };
            end.poll(64, &mut sink).unwrap();
        }
    }
    assert_eq!(load(), 0);
}
