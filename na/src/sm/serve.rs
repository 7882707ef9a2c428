//! Peers' puts and gets on our memory: the owner's side of remote memory access.
//!
//! The poll alone touches this. A request takes a lease, which keeps the region alive, and becomes
//! a [`Service`]. Each round moves a bounded number of bytes, a chunk per service in turn, so that
//! neither a large transfer blocks the poll nor a small one waits behind it.
//!
//! | path | when | get | put |
//! |---|---|---|---|
//! | mapped | its memory is from `alloc` | we write there | we read there |
//! | granted | ours is from `alloc` | *grant*: it reads ours, then *finished* | it writes ours |
//! | ring | faster lately, or nothing else works | we send *data* | we *pull*, and take *supply* |
//! | attach | it is permitted | we write into the requester | we read from the requester |
//!
//! The first that applies is taken. Through the ring both sides copy at the same time, which can be
//! twice as fast as attaching; but it needs both, and cores that share a cache. So while the
//! requester is awake, the way that was faster lately is taken ([`Speeds`]). A service that may not
//! attach (any more), or whose grant the requester cannot use, starts again on another path.

use std::collections::VecDeque;
use std::time::Instant;

use rustix::io::Errno;

use super::block::{Mapped, PeerBlocks};
use super::cma::{self, Direction, VECTORS};
use super::copy::{copy_between, skip_bytes};
use super::fallback::{Chunk, Span};
use super::link::{Conn, Control, Outcome, TxLink};
use super::offer::Offered;
use super::record::{PARTS_MAX, Piece, Request, Status};
use crate::{CopyHelper, DeniedReason, LocalMem, RawSegment, RegionTable};

/// Bytes that one service moves before the next one has its turn.
const CHUNK_BYTES: u64 = 1 << 20;

/// Longest transfer that is sent through the ring to a side that sleeps: it has to be woken anyway.
const SLEEPER_BYTES: u64 = 16 << 10;

/// Smallest transfer that the requester is let do itself.
const GRANT_FROM: u64 = 16 << 10;

/// The transfers that one peer asked of us.
#[derive(Debug)]
pub(super) struct Services {
    open: VecDeque<Service>,
    /// We may attach to the peer.
    attach: bool,
    /// The peer can map our memory, as far as we know.
    grant: bool,
    helper: Option<CopyHelper>,
    speeds: [Speeds; CLASSES],
    pub(super) offered: Offered,
}

/// How the data of a service moves.
#[derive(Debug)]
enum Path {
    /// We copy in the requester's memory, which is mapped here.
    Mapped(Mapped),
    /// The requester copies in ours.
    Granted,
    /// We copy with cross-memory attach.
    Attach,
    Ring,
}

/// How fast both ways of moving plain memory have been lately, in bytes per microsecond, for
/// transfers of one direction and about one length. Which is faster depends on that, on how far
/// apart the two cores are and whether the requester makes progress.
#[derive(Debug, Default)]
struct Speeds {
    ring: Option<f64>,
    attach: Option<f64>,
    asked: u32,
}

/// Gets from 16, 64 and 256 KiB and from 1 MiB, and puts.
const CLASSES: usize = 5;

/// Shortest get that is measured, bytes, and shortest put. How long a put takes through the ring
/// depends on when the requester sends its data, so that one among several short ones says little:
/// they go the way that is faster for long ones.
const MEASURED_FROM: [u64; 2] = [16 << 10, 256 << 10];

/// Which speeds count for such a transfer.
fn class(put: bool, len: u64) -> usize {
    if put {
        return CLASSES - 1;
    }
    let length = (len / MEASURED_FROM[0]).max(1).ilog2() as usize / 2;
    length.min(CLASSES - 2)
}

fn is_measured(put: bool, len: u64) -> bool {
    len >= MEASURED_FROM[usize::from(put)]
}

impl Speeds {
    /// Of so many choices, the first few try the slower way, which may have become the faster one:
    /// several in a row, because a way that was not used for a while finds its memory in no cache.
    const TRY_EVERY: u32 = 256;
    const TRIES: u32 = 8;

    fn prefer_attach(&mut self, put: bool, len: u64) -> bool {
        let faster = self.attach.zip(self.ring).is_some_and(|(attach, ring)| attach > ring);
        if !is_measured(put, len) {
            return len > SLEEPER_BYTES && faster;
        }
        let asked = self.asked;
        self.asked = asked.wrapping_add(1);
        if asked < 2 * Self::TRIES {
            // Both are measured first.
            return asked >= Self::TRIES;
        }
        faster != (asked % Self::TRY_EVERY < Self::TRIES)
    }

    /// A transfer is over.
    fn measured(&mut self, service: &Service) {
        let Some(began) = service.began else { return };
        let micros = began.elapsed().as_nanos().max(1) as f64 / 1000.0;
        let speed = service.span.len as f64 / micros;
        let place = match service.path {
            Path::Ring => &mut self.ring,
            Path::Attach => &mut self.attach,
            Path::Mapped(_) | Path::Granted => return,
        };
        *place = Some(place.map_or(speed, |old| (old + speed) / 2.0));
    }
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
    path: Path,
    /// When it began, if its speed is measured.
    began: Option<Instant>,
}

/// What a request is looked at with.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) regions: &'a RegionTable,
    pub(super) blocks: &'a PeerBlocks,
    pub(super) conn: &'a Conn,
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
    pub(super) fn new(attach: bool, helper: Option<CopyHelper>) -> Self {
        let (speeds, offered) = Default::default();
        Self { open: VecDeque::new(), attach, grant: true, helper, speeds, offered }
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
        self.open.iter().any(|service| matches!(service.path, Path::Ring) && !service.put)
    }

    /// Takes a request. `announce` makes sure that the peer can map our memory, to read or to
    /// write, and says its block. Returns what to answer at once.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke.
    pub(super) fn begin(
        &mut self,
        request: Request,
        put: bool,
        place: &Place<'_>,
        announce: impl FnOnce(&LocalMem, bool) -> Option<u64>,
    ) -> Result<Option<Control>, &'static str> {
        let Request { part, key, offset, len, pieces } = request;
        if self.open.len() >= PARTS_MAX {
            return Err("more transfers at once than allowed");
        }
        if self.open.iter().any(|service| service.part == part) {
            return Err("a transfer number is used twice");
        }
        let done = |status| Ok(Some(Control::Done { part, status }));
        let lease = match place.regions.lease(key, offset, len, put) {
            Ok(lease) => lease,
            Err(reason) => return done(Status::Denied(reason)),
        };
        if len == 0 {
            return done(Status::Ok);
        }
        self.offered.requested(&lease, len);
        let grant = self.grant && len >= GRANT_FROM && lease.region().block().is_some();
        let (path, answer) = if let Some(mapped) = place.blocks.resolve(&pieces, !put) {
            (Path::Mapped(mapped), None)
        } else if grant && let Some(block) = announce(&lease, put) {
            // A region with a block is that block.
            (Path::Granted, Some(Control::Grant { part, block, offset }))
        } else {
            self.unmapped_path(part, put, len, place.conn)
        };
        let span = Span { offset, len, done: 0 };
        let measured = matches!(path, Path::Attach | Path::Ring) && self.open.is_empty();
        let began = (measured && is_measured(put, len)).then(Instant::now);
        let (piece, before) = (0, 0);
        self.open.push_back(Service { part, put, lease, span, pieces, piece, before, path, began });
        Ok(answer)
    }

    /// A transfer is over.
    fn measured(&mut self, service: &Service) {
        self.speeds[class(service.put, service.span.len)].measured(service);
    }

    fn unmapped_path(
        &mut self,
        part: u64,
        put: bool,
        len: u64,
        conn: &Conn,
    ) -> (Path, Option<Control>) {
        let awake = conn.segment.peer_bell().is_awake();
        let attach = if awake {
            self.speeds[class(put, len)].prefer_attach(put, len)
        } else {
            len > SLEEPER_BYTES
        };
        if self.attach && attach {
            return (Path::Attach, None);
        }
        (Path::Ring, put.then_some(Control::Pull { part }))
    }

    /// The requester has copied in our memory, or says that it cannot. Returns what to answer.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke.
    pub(super) fn finished(
        &mut self,
        part: u64,
        status: u64,
        conn: &Conn,
        out: &mut Outcome,
    ) -> Result<Option<Control>, &'static str> {
        let granted =
            |service: &Service| service.part == part && matches!(service.path, Path::Granted);
        // A transfer that was canceled meanwhile is not here any more.
        let Some(at) = self.open.iter().position(granted) else { return Ok(None) };
        match status {
            0 => {
                out.memory.extend(self.open.remove(at).map(|service| service.lease));
                Ok(None)
            }
            1 => {
                self.grant = false;
                let Service { put, span, .. } = self.open[at];
                let (path, answer) = self.unmapped_path(part, put, span.len, conn);
                self.open[at].path = path;
                Ok(answer)
            }
            _ => Err("an unknown status"),
        }
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
        chunk: &Chunk<'_>,
        out: &mut Outcome,
    ) -> Result<Option<Control>, &'static str> {
        let wrong = "bulk data for an unknown transfer";
        let (part, offset) = chunk.prefix().ok_or(wrong)?;
        let at = self.open.iter().position(|service| service.part == part).ok_or(wrong)?;
        let service = &mut self.open[at];
        if !service.put || !matches!(service.path, Path::Ring) {
            return Err("bulk data that nobody asked for");
        }
        chunk.take(offset, &service.lease, &mut service.span)?;
        if service.span.left() > 0 {
            return Ok(None);
        }
        if let Some(service) = self.open.remove(at) {
            self.measured(&service);
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
            let turn = match service.path {
                Path::Mapped(_) => service.mapped_turn(conn, self.helper.as_ref()),
                Path::Attach => service.attach_turn(conn),
                Path::Ring if !service.put => {
                    let mut turn = Turn::Waits;
                    link(&mut |link| turn = service.ring_turn(link));
                    turn
                }
                Path::Ring | Path::Granted => Turn::Waits,
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
                    if status == Status::Ok {
                        self.measured(&service);
                    }
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

    /// Ends everything; the connection is gone, and its gate shut. Memory that the peer may still
    /// be copying is returned.
    pub(super) fn fail_all(&mut self, conn: &Conn, out: &mut Outcome) -> Vec<LocalMem> {
        let quiet = !conn.segment.peer_copies();
        let mut kept = Vec::new();
        if !quiet {
            kept.extend(self.offered.regions());
        }
        for service in self.open.drain(..) {
            let copied = matches!(service.path, Path::Granted) && !quiet;
            if copied { &mut kept } else { &mut out.memory }.push(service.lease);
        }
        kept
    }
}

impl Service {
    fn restart_through_ring(&mut self) {
        self.path = Path::Ring;
        self.began = None;
        self.span.done = 0;
        (self.piece, self.before) = (0, 0);
    }

    /// Copies a chunk in user space.
    fn mapped_turn(&mut self, conn: &Conn, helper: Option<&CopyHelper>) -> Turn {
        let Path::Mapped(mapped) = &self.path else { return Turn::Waits };
        let gate = conn.segment.gate_as_copier();
        if !gate.enter() {
            // The requester has left; its end of file follows.
            return Turn::Waits;
        }
        let chunk = self.span.left().min(CHUNK_BYTES);
        let ours = self.lease.region().pieces(self.span.offset + self.span.done, chunk);
        let theirs = skip_bytes(&mapped.pieces, self.span.done);
        // SAFETY: pieces of a leased region and of memory that `mapped` keeps, both valid for this
        // direction (checked with the lease and when they were resolved); nobody holds references
        // to them (contract of `Memory::from_raw`). They overlap if a process talks to itself and
        // names one block twice, and then only a copy without helpers is right.
        unsafe { copy_between(self.put, ours, theirs, helper) };
        gate.leave();
        self.span.done += chunk;
        if self.span.left() == 0 { Turn::Ended(Status::Ok) } else { Turn::Moved }
    }

    /// Copies a chunk with cross-memory attach.
    fn attach_turn(&mut self, conn: &Conn) -> Turn {
        let gate = conn.segment.gate_as_copier();
        if !gate.enter() {
            // The requester has left; its end of file follows.
            return Turn::Waits;
        }
        // The process id is certain while the peer's process has not ended.
        let result = if conn.is_alive() { self.copy_chunk(conn.pid()) } else { Err(Errno::SRCH) };
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
        let mut remote = [Piece { addr: 0, len: 0, block: 0 }; VECTORS];
        let mut remote_len = 0;
        let mut skip = self.span.done - self.before;
        let mut left = chunk;
        for (place, piece) in remote.iter_mut().zip(&self.pieces[self.piece..]) {
            if left == 0 {
                break;
            }
            let len = (piece.len - skip).min(left);
            *place = Piece { addr: piece.addr + skip, len, block: 0 };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Transfers at these speeds; how many of the last `count` attached.
    fn attached(speeds: &mut Speeds, ring: f64, attach: f64, count: u32) -> u32 {
        let mut chosen = 0;
        for _ in 0..count {
            let attaches = speeds.prefer_attach(false, 64 << 10);
            let (place, speed) = match attaches {
                true => (&mut speeds.attach, attach),
                false => (&mut speeds.ring, ring),
            };
            *place = Some(place.map_or(speed, |old| (old + speed) / 2.0));
            chosen += u32::from(attaches);
        }
        chosen
    }

    #[test]
    fn the_faster_way_is_taken_and_a_change_is_noticed() {
        let mut speeds = Speeds::default();
        assert_eq!(attached(&mut speeds, 20_000.0, 12_000.0, 2 * Speeds::TRIES), Speeds::TRIES);
        let rounds = 4 * Speeds::TRY_EVERY;
        assert!(attached(&mut speeds, 20_000.0, 12_000.0, rounds) <= 5 * Speeds::TRIES);
        attached(&mut speeds, 2_000.0, 7_000.0, 2 * Speeds::TRY_EVERY);
        let left = rounds - attached(&mut speeds, 2_000.0, 7_000.0, rounds);
        assert!(left <= 5 * Speeds::TRIES, "{left}");
    }

    #[test]
    fn lengths_are_told_apart_for_gets() {
        let starts = [16, 64, 256, 1024].map(|kib| kib << 10);
        for (index, start) in starts.into_iter().enumerate() {
            assert_eq!((class(false, start), class(false, 4 * start - 1)), (index, index));
            assert!(is_measured(false, start));
        }
        assert_eq!(class(false, u64::MAX), CLASSES - 2);
        assert!(!is_measured(false, (16 << 10) - 1) && !is_measured(true, (256 << 10) - 1));
        assert_eq!([0, 64 << 10, u64::MAX].map(|len| class(true, len)), [CLASSES - 1; 3]);
    }

    #[test]
    fn short_puts_follow_long_ones() {
        let mut speeds = Speeds::default();
        assert!(!speeds.prefer_attach(true, 64 << 10));
        (speeds.ring, speeds.attach) = (Some(1.0), Some(2.0));
        assert!(speeds.prefer_attach(true, 64 << 10));
        assert!(!speeds.prefer_attach(true, SLEEPER_BYTES) && speeds.asked == 0);
    }
}
