//! A connection, as all threads share it, and the short records that the protocol itself needs.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use super::alive::Alive;
use super::record::{self, CONTROL_WORDS, PARTS_MAX, Status};
use super::ring::{Producer, Violation};
use super::segment::{MappedRing, Segment};
use super::socket::{self, Credentials, Socket};
use super::turns::PageOwners;
use crate::wake::board::Board;
use crate::wake::doorbell::{BOARD, RECORDS, ROOM, settle};
use prim::sync::Arc;
use prim::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    /// Names it in the epoll set.
    pub(crate) token: u64,
    pub(crate) socket: Socket,
    pub(crate) segment: Arc<Segment>,
    /// We have made it, and nobody answers on it what came another way.
    pub(crate) is_apart: bool,
    /// The process at the other end, once it is known.
    process: OnceLock<Process>,
    /// The last answer to whether the peer's process is alive.
    alive: Alive,
    /// The place on our board: 1 + slot, zero if it has none.
    slot: AtomicU32,
    /// The poll does not look at it; a peer that makes work marks our board.
    left: AtomicBool,
    /// The peer may sleep, or has not said that it never does.
    peer_sleeps: AtomicBool,
    /// The peer's board, and our place there.
    peer_board: OnceLock<(Board, u32)>,
    /// Something waits in the link; the poll is to flush it.
    backlog: AtomicBool,
    /// The breach that a sender has noticed first.
    fault: OnceLock<Fault>,
    /// The side that each page belongs to.
    pub(crate) turns: PageOwners,
}

/// The peer's process.
#[derive(Debug)]
struct Process {
    /// It belongs to our user: it may map memory of `alloc`, and we its.
    shares: bool,
    pid: i32,
    /// Without a descriptor for it we do not attach.
    fd: Option<OwnedFd>,
}

/// A breach by the peer that a sender notices, because it shows where something is sent to that
/// peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Ring(Violation),
    /// More than [`CONTROL_WAITING_MAX`] records wait for it.
    Untaken,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(violation) => violation.fmt(f),
            Self::Untaken => f.write_str("it makes us answer without taking the answers"),
        }
    }
}

/// Control records that may wait for room. An honest peer has at most [`PARTS_MAX`] requests
/// without an answer, and we as many with it: to each of them belong a share, a verdict, a
/// measurement and a cancel at most. Blocks to forget and offers are as few.
pub(crate) const CONTROL_WAITING_MAX: usize = 16 * PARTS_MAX;

impl Conn {
    pub(crate) fn new(token: u64, socket: Socket, segment: Arc<Segment>) -> Self {
        let turns = segment.turns();
        Self {
            token,
            socket,
            segment,
            is_apart: false,
            process: OnceLock::new(),
            alive: Alive::default(),
            slot: AtomicU32::new(0),
            left: AtomicBool::new(false),
            peer_sleeps: AtomicBool::new(true),
            peer_board: OnceLock::new(),
            backlog: AtomicBool::new(false),
            fault: OnceLock::new(),
            turns,
        }
    }

    /// The place on our board. Set before the poll has it, and never changed.
    pub(crate) fn slot(&self) -> Option<u32> {
        self.slot.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(crate) fn set_slot(&self, slot: u32) {
        self.slot.store(slot + 1, Ordering::Relaxed);
    }

    pub(crate) fn clear_slot(&self) {
        self.slot.store(0, Ordering::Relaxed);
    }

    /// The peer has given us place `slot` on its board.
    pub(crate) fn set_peer_board(&self, board: Board, slot: u32) {
        // Only at the handshake, of which there is one.
        let _ = self.peer_board.set((board, slot));
    }

    /// Poll: will look at the board instead. Follow with [`settle`] and a last look.
    pub(crate) fn leave(&self) {
        self.segment.own_bell().leave();
        self.left.store(true, Ordering::Relaxed);
    }

    /// Poll: looks at the ring and the backlog again.
    pub(crate) fn watch(&self) {
        self.segment.own_bell().retract();
        self.left.store(false, Ordering::Relaxed);
    }

    /// Returns whether the poll has to be told of work by a mark; after
    /// [`settle`](crate::wake::doorbell::settle).
    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Returns whether memory of `alloc` may be mapped by the other side.
    pub(crate) fn shares(&self) -> bool {
        self.process.get().is_some_and(|process| process.shares)
    }

    /// The peer's process, zero if unknown yet or without a number here.
    pub(crate) fn pid(&self) -> i32 {
        self.process.get().map_or(0, |process| process.pid)
    }

    /// The peer's process.
    pub(crate) fn process(&self) -> Option<&OwnedFd> {
        self.process.get()?.fd.as_ref()
    }

    /// Returns whether the peer's process has not ended and nobody closed its socket.
    pub(crate) fn is_alive(&self) -> bool {
        socket::is_alive(&self.socket, self.process())
    }

    /// As [`is_alive`](Self::is_alive), or was a moment ago, for a copy that begins (`alive.rs`).
    #[inline]
    pub(crate) fn was_alive(&self) -> bool {
        self.alive.check(|| self.is_alive())
    }

    /// Stores the peer's credentials and its process, once they are known.
    pub(crate) fn set_credentials(
        &self,
        Credentials { pid, uid }: Credentials,
        fd: Option<OwnedFd>,
    ) {
        let shares = uid == crate::address::own_uid();
        // Again only where the hello could not be sent, and then it is the same process.
        let _ = self.process.set(Process { shares, pid, fd });
    }

    /// Returns whether [`settle`] is due before [`wake_peer_settled`](Self::wake_peer_settled): the
    /// peer has not said that it never sleeps (`doorbell.rs`).
    #[inline]
    pub(crate) fn peer_sleeps(&self) -> bool {
        self.peer_sleeps.load(Ordering::Relaxed)
    }

    /// At the handshake.
    pub(crate) fn set_peer_never_sleeps(&self) {
        self.peer_sleeps.store(false, Ordering::Relaxed);
    }

    /// Wakes the peer if it sleeps and waits for `RECORDS` or `ROOM`.
    #[inline]
    pub(crate) fn wake_peer(&self, reason: u32) {
        if self.peer_sleeps() {
            settle();
        }
        self.wake_peer_settled(reason);
    }

    /// As [`wake_peer`](Self::wake_peer), after [`settle`] if the peer sleeps.
    #[inline]
    pub(crate) fn wake_peer_settled(&self, reason: u32) {
        if !self.segment.peer_bell().is_silent() {
            self.wake_peer_slowly(reason);
        }
    }

    #[cold]
    fn wake_peer_slowly(&self, reason: u32) {
        let bell = self.segment.peer_bell();
        if bell.is_left()
            && let Some((board, slot)) = self.peer_board.get()
        {
            board.mark(*slot);
        }
        if bell.claim(reason) {
            socket::ring(&self.socket);
        }
    }

    /// Returns whether the poll has to look at the link. Read without the lock; the flag is a hint
    /// that is set before the poll is woken.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Relaxed)
    }

    pub(crate) fn set_backlog(&self, backlog: bool) {
        self.backlog.store(backlog, Ordering::Relaxed);
    }

    /// Returns the breach that a sender has noticed.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault.get().copied()
    }

    pub(crate) fn set_fault(&self, found: Fault) {
        let _ = self.fault.set(found);
        self.set_backlog(true);
    }
}

/// A short record that the protocol itself needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    Done { part: u64, status: Status },
    Pull { part: u64, measure: bool },
    Cancel { part: u64 },
    Grant { part: u64, block: u64, offset: u64 },
    Finished { part: u64, copied: bool, nanos: u64 },
    Share { part: u64, addr: u64, len: u64 },
    Forget { block: u64 },
    Offer { key: u64, block: u64, place: u64 },
    OfferPlain { key: u64, place: u64, addr: u64, len: u64 },
    Taken { part: u64, nanos: u64, last: u64 },
    Ping,
    Pong,
}

impl Control {
    /// We cannot copy ourselves.
    pub(crate) fn cannot(part: u64) -> Self {
        Self::Finished { part, copied: false, nanos: 0 }
    }

    /// Writes the record. `false`: there is no room.
    pub(crate) fn write(self, producer: &mut Producer<MappedRing>) -> Result<bool, Violation> {
        let (kind, words, count): (u8, [u64; CONTROL_WORDS], usize) = match self {
            Self::Done { part, status } => (record::DONE, [part, status.code(), 0, 0], 2),
            Self::Pull { part, measure } => (record::PULL, [part, measure.into(), 0, 0], 2),
            Self::Cancel { part } => (record::CANCEL, [part, 0, 0, 0], 1),
            Self::Grant { part, block, offset } => (record::GRANT, [part, block, offset, 0], 3),
            Self::Finished { part, copied, nanos } => {
                (record::FINISHED, [part, u64::from(!copied), nanos, 0], 3)
            }
            Self::Share { part, addr, len } => (record::SHARE, [part, addr, len, 0], 3),
            Self::Forget { block } => (record::FORGET, [block, 0, 0, 0], 1),
            Self::Offer { key, block, place } => (record::OFFER, [key, block, place, 0], 3),
            Self::OfferPlain { key, place, addr, len } => {
                (record::OFFER_PLAIN, [key, place, addr, len], 4)
            }
            Self::Taken { part, nanos, last } => (record::TAKEN, [part, nanos, last, 0], 3),
            Self::Ping => (record::PING, [0; 4], 0),
            Self::Pong => (record::PONG, [0; 4], 0),
        };
        let Some(slot) = producer.reserve(8 * count)? else { return Ok(false) };
        for (index, word) in words[..count].iter().enumerate() {
            producer.write(&slot, 8 * index, &word.to_le_bytes());
        }
        producer.publish(slot, kind, 0);
        Ok(true)
    }
}

/// Returns the reasons that the poll announces when it will sleep. It waits for records, and for
/// room if something is queued; and it goes on reading the board afterwards if it did before.
pub(crate) fn sleep_reasons(wants_room: bool, left: bool) -> u32 {
    RECORDS | if wants_room { ROOM } else { 0 } | if left { BOARD } else { 0 }
}
