//! Peers' puts and gets on our memory: the owner's side of remote memory access.
//!
//! The poll alone touches this. A request takes a lease, which keeps the region alive, and becomes
//! a [`Service`]. Each round moves a bounded number of bytes, a chunk per service in turn, so that
//! neither a large transfer blocks the poll nor a small one waits behind it.
//!
//! | path | get | put |
//! |---|---|---|
//! | attach | we write into the requester | we read from the requester |
//! | ring | we send *data* | we ask with *pull*, and take *supply* |
//!
//! A service that may not attach (any more) starts again through the ring.

use std::collections::VecDeque;

use rustix::io::Errno;

use super::cma::{self, Direction, VECTORS};
use super::fallback::{self, Span};
use super::link::{Conn, Control, Outcome, TxLink};
use super::record::{PARTS_MAX, Piece, Request, Status};
use super::ring::{Consumer, Record};
use super::segment::MappedRing;
use super::socket;
use crate::{DeniedReason, LocalMem, RawSegment, RegionTable};

/// Bytes that one service moves before the next one has its turn.
const CHUNK_BYTES: u64 = 1 << 20;

/// The transfers that one peer asked of us.
#[derive(Debug)]
pub(super) struct Services {
    open: VecDeque<Service>,
    /// We may attach to the peer.
    attach: bool,
}

#[derive(Debug)]
struct Service {
    part: u64,
    put: bool,
    lease: LocalMem,
    span: Span,
    pieces: Vec<Piece>,
    /// Piece that holds byte `span.done`, and the bytes of the transfer before it.
    piece: usize,
    before: u64,
    attach: bool,
}

/// How a turn ended.
enum Turn {
    Moved,
    /// Nothing can be done until the peer acts.
    Waits,
    Ended(Status),
    Restart,
}

impl Services {
    pub(super) fn new(attach: bool) -> Self {
        Self { open: VecDeque::new(), attach }
    }

    /// Whether we copy without the peer's help.
    pub(super) fn attaches(&self) -> bool {
        self.attach
    }

    /// Whether nothing is open.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether a service needs room in the ring.
    pub(super) fn wants_room(&self) -> bool {
        self.open.iter().any(|service| !service.attach && !service.put)
    }

    /// Takes a request. Returns what to answer at once.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke.
    pub(super) fn begin(
        &mut self,
        request: Request,
        put: bool,
        regions: &RegionTable,
    ) -> Result<Option<Control>, &'static str> {
        let Request { part, key, offset, len, pieces } = request;
        if self.open.len() >= PARTS_MAX {
            return Err("more transfers at once than allowed");
        }
        if self.open.iter().any(|service| service.part == part) {
            return Err("a transfer number is used twice");
        }
        let done = |status| Ok(Some(Control::Done { part, status }));
        let lease = match regions.lease(key, offset, len, put) {
            Ok(lease) => lease,
            Err(reason) => return done(Status::Denied(reason)),
        };
        if len == 0 {
            return done(Status::Ok);
        }
        let attach = self.attach;
        let span = Span { offset, len, done: 0 };
        let service = Service { part, put, lease, span, pieces, piece: 0, before: 0, attach };
        self.open.push_back(service);
        Ok((put && !attach).then_some(Control::Pull { part }))
    }

    /// The requester gave up. A service that has ended meanwhile was answered already.
    pub(super) fn cancel(&mut self, part: u64, out: &mut Outcome) -> Option<Control> {
        let at = self.open.iter().position(|service| service.part == part)?;
        let service = self.open.remove(at)?;
        out.memory.push(service.lease);
        Some(Control::Done { part, status: Status::Canceled })
    }

    /// Data of a put has come through the ring. Returns what to answer.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke.
    pub(super) fn supply(
        &mut self,
        consumer: &Consumer<MappedRing>,
        record: &Record,
        out: &mut Outcome,
    ) -> Result<Option<Control>, &'static str> {
        let wrong = "bulk data for an unknown transfer";
        let (part, offset) = fallback::chunk_prefix(consumer, record).ok_or(wrong)?;
        let at = self.open.iter().position(|service| service.part == part).ok_or(wrong)?;
        let service = &mut self.open[at];
        if !service.put || service.attach {
            return Err("bulk data that nobody asked for");
        }
        fallback::take_chunk(consumer, record, offset, &service.lease, &mut service.span)?;
        if service.span.left() > 0 {
            return Ok(None);
        }
        if let Some(service) = self.open.remove(at) {
            out.memory.push(service.lease);
        }
        Ok(Some(Control::Done { part, status: Status::Ok }))
    }

    /// Gives each service turns until `budget` bytes are moved or none can go on. `link` runs its
    /// argument with the connection's link, if that still exists. Returns whether anything moved.
    pub(super) fn run(
        &mut self,
        conn: &Conn,
        budget: &mut u64,
        out: &mut Outcome,
        mut link: impl FnMut(&mut dyn FnMut(&mut TxLink)),
    ) -> bool {
        let mut progress = false;
        let mut stuck = 0;
        while *budget > 0 && stuck < self.open.len() {
            let Some(mut service) = self.open.pop_front() else { break };
            let before = service.span.done;
            let turn = if service.attach {
                service.attach_turn(conn)
            } else if service.put {
                Turn::Waits
            } else {
                let mut turn = Turn::Waits;
                link(&mut |link| turn = service.ring_turn(link));
                turn
            };
            *budget = budget.saturating_sub(service.span.done.saturating_sub(before));
            stuck = if matches!(turn, Turn::Waits) { stuck + 1 } else { 0 };
            progress |= stuck == 0;
            let answer = match turn {
                Turn::Moved | Turn::Waits => {
                    self.open.push_back(service);
                    continue;
                }
                Turn::Restart => {
                    self.attach = false;
                    service.restart_through_ring();
                    let answer = service.put.then_some(Control::Pull { part: service.part });
                    self.open.push_back(service);
                    answer
                }
                Turn::Ended(status) => {
                    out.memory.push(service.lease);
                    Some(Control::Done { part: service.part, status })
                }
            };
            if let Some(answer) = answer {
                link(&mut |link| link.push_control(answer));
            }
        }
        progress
    }

    /// Ends everything; the connection is gone.
    pub(super) fn fail_all(&mut self, out: &mut Outcome) {
        out.memory.extend(self.open.drain(..).map(|service| service.lease));
    }
}

impl Service {
    fn restart_through_ring(&mut self) {
        self.attach = false;
        self.span.done = 0;
        (self.piece, self.before) = (0, 0);
    }

    /// Copies a chunk with cross-memory attach.
    fn attach_turn(&mut self, conn: &Conn) -> Turn {
        let gate = conn.segment.gate_as_owner();
        if !gate.enter() {
            // The requester has left; its end of file follows.
            return Turn::Waits;
        }
        // The process id is certain while the peer's process holds its socket.
        let result = if socket::is_alive(&conn.socket) {
            self.copy_chunk(conn.pid())
        } else {
            Err(Errno::SRCH)
        };
        gate.leave();
        match result {
            Ok(0) | Err(Errno::FAULT | Errno::INVAL) => {
                Turn::Ended(Status::Denied(DeniedReason::CopyFailed))
            }
            Ok(_) if self.span.left() == 0 => Turn::Ended(Status::Ok),
            Ok(_) => Turn::Moved,
            Err(Errno::SRCH) => Turn::Waits,
            Err(errno) => {
                tracing::warn!(
                    "cross-memory attach to process {} failed ({errno}); copying through the ring",
                    conn.pid()
                );
                Turn::Restart
            }
        }
    }

    fn copy_chunk(&mut self, pid: i32) -> Result<u64, Errno> {
        let chunk = self.span.left().min(CHUNK_BYTES);
        let empty = RawSegment { ptr: std::ptr::null_mut(), len: 0 };
        let mut local = [empty; VECTORS];
        let mut local_len = 0;
        for (place, piece) in local
            .iter_mut()
            .zip(self.lease.region().pieces(self.span.offset + self.span.done, chunk))
        {
            *place = piece;
            local_len += 1;
        }
        let mut remote = [Piece { addr: 0, len: 0 }; VECTORS];
        let mut remote_len = 0;
        let mut skip = self.span.done - self.before;
        let mut left = chunk;
        for (place, piece) in remote.iter_mut().zip(&self.pieces[self.piece..]) {
            if left == 0 {
                break;
            }
            let len = (piece.len - skip).min(left);
            *place = Piece { addr: piece.addr + skip, len };
            (skip, left) = (0, left - len);
            remote_len += 1;
        }
        let direction = if self.put { Direction::FromPeer } else { Direction::ToPeer };
        // SAFETY: pieces of a leased region, which stay valid for what the lease allows, and to
        // whose bytes nobody holds a reference (contract of `Memory::from_raw`).
        let copied =
            unsafe { cma::copy(pid, &local[..local_len], &remote[..remote_len], direction) }?;
        self.span.done += copied;
        while let Some(piece) = self.pieces.get(self.piece)
            && self.before + piece.len <= self.span.done
        {
            self.before += piece.len;
            self.piece += 1;
        }
        Ok(copied)
    }

    /// Sends data through the ring while there is room.
    fn ring_turn(&mut self, link: &mut TxLink) -> Turn {
        let before = self.span.done;
        while self.span.left() > 0
            && self.span.done - before < CHUNK_BYTES
            && link.send_data(self.part, &self.lease, &mut self.span).is_some()
        {}
        if self.span.done != before {
            link.conn.wake_peer(super::doorbell::RECORDS);
        }
        match self.span.left() {
            0 => Turn::Ended(Status::Ok),
            _ if self.span.done == before => Turn::Waits,
            _ => Turn::Moved,
        }
    }
}
