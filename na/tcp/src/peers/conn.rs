//! Connections, and the table in which the poller finds them.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::peers::group::{CallerKey, Handed};
use crate::peers::peer::Peer;
use crate::stream::frame_reader::FrameReader;
use na_core::Addr;
use na_core::Principal;
use na_core::group::placement::Permit;
use na_tls::{Sealer, Turn};
use prim::sync::Arc;

/// Connecting to one address of a peer, until its hello is there. `next` is the address to try if
/// this one fails, or has not got so far at `until`. The last one may take until `deadline`.
#[derive(Clone)]
pub(crate) struct Attempt {
    pub(crate) peer: Arc<Peer>,
    pub(crate) next: usize,
    pub(crate) until: Instant,
    pub(crate) deadline: Instant,
}

/// How far a connection has come.
pub(crate) enum Stage {
    /// The kernel is connecting.
    Connecting(Attempt),
    /// We have dialed, and wait for the other side's hello.
    Greeting(Attempt),
    /// Somebody has dialed us, and owes us its hello since then.
    Accepted { since: Instant, deadline: Instant },
    /// Carries frames of `peer`, which arriving messages call `addr`.
    Up { peer: Arc<Peer>, addr: Addr },
}

/// How long nothing of each kind has happened on a connection, see `liveness.rs`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    /// Nothing came, though the peer owes us something.
    pub(crate) silent: Duration,
    /// We sent nothing.
    pub(crate) quiet: Duration,
    /// The peer took nothing of what we have for it.
    pub(crate) stuck: Duration,
    /// Bytes that had been sent at the last tick.
    pub(crate) taken: u64,
}

/// Why a connection is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A message waits in the buffer until the matcher has room for it.
    Room,
    /// The peer reads too little of what it asks for; see `unread.rs`.
    Unread,
}

/// A connection. Only the poller touches it.
pub(crate) struct Conn {
    pub(crate) key: u64,
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) stage: Stage,
    pub(crate) incoming: FrameReader,
    /// A handshake of TLS is under way, before anything else is said.
    pub(crate) securing: Option<Arc<Turn>>,
    /// Seals what is sent, from the handshake on until a link with the peer has it.
    pub(crate) sealer: Option<Box<Sealer>>,
    /// The identity that the peer has proven in the handshake, or else its host.
    pub(crate) principal: Principal,
    /// There may be something to read.
    pub(crate) readable: bool,
    /// The socket may have room again.
    pub(crate) writable: bool,
    /// The other side sends no more; what is in the socket is the rest.
    pub(crate) hung_up: bool,
    pub(crate) paused: Option<Pause>,
    /// It was paused, and is read once, whatever its peer reads.
    pub(crate) is_tried: bool,
    /// In the poller's queue.
    pub(crate) queued: bool,
    /// A peer made it, and has said its hello: its place in the group.
    pub(crate) permit: Option<Permit<CallerKey, Handed>>,
    /// Among those that are read in every poll.
    pub(crate) hot: bool,
    /// Not in the epoll set. Only while it is hot.
    pub(crate) muted: bool,
    /// The socket was full when it was last read.
    pub(crate) blocked: bool,
    /// Something has come since the last tick.
    pub(crate) heard: bool,
    pub(crate) times: Times,
    /// Reads in a row that found nothing.
    pub(crate) idle_reads: u32,
}

impl Conn {
    pub(crate) fn new(socket: OwnedFd, stage: Stage, message_bytes_max: usize) -> Self {
        Self {
            key: 0,
            socket: Arc::new(socket),
            stage,
            incoming: FrameReader::new(message_bytes_max),
            securing: None,
            sealer: None,
            principal: Principal::Unknown,
            readable: false,
            writable: false,
            hung_up: false,
            paused: None,
            is_tried: false,
            queued: false,
            permit: None,
            hot: false,
            muted: false,
            blocked: false,
            heard: false,
            times: Times::default(),
            idle_reads: 0,
        }
    }

    /// The peer, if the connection carries its frames.
    pub(crate) fn up(&self) -> Option<&Arc<Peer>> {
        match &self.stage {
            Stage::Up { peer, .. } => Some(peer),
            Stage::Connecting(_) | Stage::Greeting(_) | Stage::Accepted { .. } => None,
        }
    }

    /// The peer, if it is known.
    pub(crate) fn peer(&self) -> Option<&Arc<Peer>> {
        match &self.stage {
            Stage::Connecting(Attempt { peer, .. }) | Stage::Greeting(Attempt { peer, .. }) => {
                Some(peer)
            }
            Stage::Up { peer, .. } => Some(peer),
            Stage::Accepted { .. } => None,
        }
    }

    /// Returns whether there is something to do for it at once.
    pub(crate) fn has_work(&self) -> bool {
        self.securing.is_none() && ((self.readable && self.paused.is_none()) || self.writable)
    }

    /// Until when it must have come further.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Connecting(attempt) | Stage::Greeting(attempt) => Some(attempt.until),
            Stage::Accepted { deadline, .. } => Some(*deadline),
            Stage::Up { .. } => None,
        }
    }

    /// Since when a caller that is not known owes us something. `None`: it is our turn.
    pub(crate) fn owes_since(&self) -> Option<Instant> {
        match (&self.stage, &self.securing) {
            (Stage::Accepted { .. }, Some(turn)) => turn.of_peer_since(),
            (Stage::Accepted { since, .. }, None) => Some(*since),
            _ => None,
        }
    }
}

struct ConnSlot {
    generation: u32,
    conn: Option<Box<Conn>>,
}

/// Connections by key. A key holds the slot and its generation, so that an event of a connection
/// that is gone does not reach its successor.
#[derive(Default)]
pub(crate) struct Conns {
    slots: Vec<ConnSlot>,
    free: Vec<u32>,
}

fn key(index: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | index as u64
}

impl Conns {
    /// Adds a connection and sets its key.
    pub(crate) fn insert(&mut self, mut conn: Conn) -> u64 {
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None => {
                self.slots.push(ConnSlot { generation: 0, conn: None });
                self.slots.len() - 1
            }
        };
        let slot = &mut self.slots[index];
        conn.key = key(index, slot.generation);
        let key = conn.key;
        slot.conn = Some(Box::new(conn));
        key
    }

    fn slot(&mut self, key: u64) -> Option<&mut ConnSlot> {
        let slot = self.slots.get_mut((key & u64::from(u32::MAX)) as usize)?;
        (u64::from(slot.generation) == key >> 32).then_some(slot)
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut Conn> {
        self.slot(key)?.conn.as_deref_mut()
    }

    /// Takes a connection out to work on it; its key stays reserved until
    /// [`put_back`](Self::put_back) or [`remove`](Self::remove).
    pub(crate) fn take(&mut self, key: u64) -> Option<Box<Conn>> {
        self.slot(key)?.conn.take()
    }

    /// Undoes [`take`](Self::take).
    pub(crate) fn put_back(&mut self, conn: Box<Conn>) {
        if let Some(slot) = self.slot(conn.key) {
            slot.conn = Some(conn);
        }
    }

    /// Forgets a connection; its key is invalid from now on.
    pub(crate) fn remove(&mut self, key: u64) -> Option<Box<Conn>> {
        let slot = self.slot(key)?;
        let conn = slot.conn.take()?;
        // The last generation is not used: together with the last index it would be a key of the
        // poller's own descriptors.
        slot.generation = (slot.generation + 1) % u32::MAX;
        self.free.push((key & u64::from(u32::MAX)) as u32);
        Some(conn)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Conn> {
        self.slots.iter_mut().filter_map(|slot| slot.conn.as_deref_mut())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Conn> {
        self.slots.iter().filter_map(|slot| slot.conn.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn() -> Conn {
        let socket = std::os::unix::net::UnixStream::pair().unwrap().0.into();
        let since = Instant::now();
        let deadline = since + Duration::from_secs(1);
        Conn::new(socket, Stage::Accepted { since, deadline }, 4096)
    }

    #[test]
    fn a_key_dies_with_its_connection() {
        let mut conns = Conns::default();
        let first = conns.insert(conn());
        let second = conns.insert(conn());
        assert_ne!(first, second);
        let taken = conns.take(first).unwrap();
        assert!(conns.get_mut(first).is_none(), "taken");
        conns.put_back(taken);
        assert!(conns.remove(first).is_some());
        assert!(conns.remove(first).is_none());
        let third = conns.insert(conn());
        assert_ne!(third, first, "the slot is the same, the generation is not");
        assert!(conns.get_mut(first).is_none());
        assert_eq!(conns.iter().count(), 2);
    }
}
