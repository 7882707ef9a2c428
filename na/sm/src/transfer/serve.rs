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
//! | ring | cheaper lately, or nothing else works | we send *data* | we *pull*, and take *supply* |
//! | attach | it is permitted | we write into the requester | we read from the requester |
//!
//! In a long transfer by attaching, the requester copies the first half at the same time (*share*,
//! then *finished*). The system takes several times as long for a page as copying its bytes would,
//! and two processors need little over half the time of one.
//!
//! The first path that applies is taken. The ring needs both sides: while the requester is awake,
//! the way that was cheaper lately is taken (`costs.rs`). A service that may not attach (any more),
//! or whose grant the requester cannot use, starts again on another path.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::awaited_reports::{AwaitedReports, Get};
use super::block::{Mapped, PeerBlocks};
use super::cma::{self, Direction};
use super::costs::{Choice, Cost, Costs, Way};
use super::fallback::{Chunk, Span};
use super::offer::Offered;
use crate::link::record::{PARTS_MAX, Piece, Request, Status};
use crate::link::{Conn, Control};
use na_core::loopback::Outcome;
use na_core::memory::copy::{SPLIT_FROM, copy_between, skip_bytes};
use na_core::{CopyHelper, DeniedReason, LocalMem, Principal, RegionTable};

/// Bytes that one service moves before the next one has its turn.
const CHUNK_BYTES: u64 = 1 << 20;

/// Longest transfer that is sent through the ring to a side that sleeps: it has to be woken anyway.
const SLEEPER_BYTES: u64 = 16 << 10;

/// Smallest transfer that the requester is let do itself.
const GRANT_FROM: u64 = 16 << 10;

/// Longest transfer of plain memory that one side attaches for alone. Up to here both together take
/// four fifths of the time of one, of 256 KiB and more little over half; a length of its own in
/// `costs.rs` ends here too.
const ALONE_MAX: u64 = 64 << 10;

/// A requester copies a multiple of this, bytes: so of memory that begins at a page nobody copies
/// half of one.
const SHARE_UNIT: u64 = 4096;

/// The sending half of the connection, as far as services use it.
pub(crate) trait ToPeer {
    /// The connection.
    fn conn(&self) -> &Conn;

    /// Sends a record, after those that wait.
    fn push_control(&mut self, control: Control);

    /// Sends data of a get through the ring; `None`: there is no room.
    fn send_data(
        &mut self,
        measure: bool,
        part: u64,
        memory: &LocalMem,
        span: &mut Span,
    ) -> Option<u64>;
}

/// The transfers that one peer asked of us.
#[derive(Debug)]
pub(crate) struct Services {
    open: VecDeque<Service>,
    /// We may attach to the peer.
    attach: bool,
    /// The peer can map our memory, as far as we know.
    grant: bool,
    /// The peer can attach to us, as far as we know.
    share: bool,
    helper: Option<CopyHelper>,
    costs: Costs,
    /// The part that is measured and had no other beside it so far, and when it began.
    alone: Option<(u64, Instant)>,
    /// Gets through the ring that are measured and have ended here.
    untaken: AwaitedReports,
    pub(crate) offered: Offered,
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

impl From<Way> for Path {
    fn from(way: Way) -> Self {
        match way {
            Way::Ring => Self::Ring,
            Way::Attach => Self::Attach,
        }
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
    /// The state of its first bytes, if we attach: they are not in `span` then.
    front: Front,
    /// How long was copied, as `costs.rs` counts it, if that is measured.
    spent: Option<Duration>,
}

/// The first bytes of a service where the requester may copy them while we copy the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    /// They are copied, or are none, or ours to copy in order.
    Settled,
    /// The requester is at it. When it is not any more, how ours has ended is to be told, or
    /// everything to be copied through the ring.
    Theirs { len: u64, then: Then },
    /// So many that the requester could not copy: to be copied after the others.
    Left(u64),
}

/// The step that waits for the requester's copying to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Nothing, as far as we have come.
    Go,
    End(Status),
    Restart,
}

/// The tables and the connection that a request is checked against.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub(crate) regions: &'a RegionTable,
    pub(crate) blocks: &'a PeerBlocks,
    pub(crate) conn: &'a Conn,
    /// The user who asks.
    pub(crate) who: Principal,
}

/// How a turn ended.
enum ServiceStep {
    Moved,
    /// Nothing can be done until the peer acts.
    Waits,
    Ended(Status),
    Restart,
}

impl Services {
    pub(crate) fn new(attach: bool, helper: Option<CopyHelper>) -> Self {
        let (costs, alone, untaken, offered) = Default::default();
        let (open, grant, share) = (VecDeque::new(), true, true);
        Self { open, attach, grant, share, helper, costs, alone, untaken, offered }
    }

    /// Returns whether we copy without the peer's help.
    pub(crate) fn attaches(&self) -> bool {
        self.attach
    }

    /// Returns whether nothing is open.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns whether a service needs room in the ring.
    pub(crate) fn wants_room(&self) -> bool {
        self.open.iter().any(|service| matches!(service.path, Path::Ring) && !service.put)
    }

    /// Takes a request. `announce` makes sure that the peer can map our memory, to read or to
    /// write, and says its block. Returns what to answer at once.
    ///
    /// # Errors
    ///
    /// The rule that the peer broke.
    pub(crate) fn begin(
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
        let lease = match place.regions.lease_by(key, offset, len, put, || place.who) {
            Ok(lease) => lease,
            Err(reason) => return done(Status::Denied(reason)),
        };
        if len == 0 {
            return done(Status::Ok);
        }
        // Memory with terms we copy ourselves: who has mapped it, or knows where it is, could come
        // back without asking.
        let may_lend = !lease.region().has_terms();
        let grant = may_lend && self.grant && len >= GRANT_FROM && lease.region().block().is_some();
        let (mut measure, mut front) = (false, Front::Settled);
        // The requester may do without us what it can do: it knows what is cheaper for it.
        let may_offer = may_lend && (self.attach || lease.region().block().is_some());
        let (path, answer) = if let Some(mapped) = place.blocks.resolve(&pieces, !put) {
            (Path::Mapped(mapped), None)
        } else if grant && let Some(block) = announce(&lease, put) {
            // A region with a block is that block.
            (Path::Granted, Some(Control::Grant { part, block, offset }))
        } else {
            let choice = self.choose(put, len, place.conn);
            measure = choice.measure;
            let answer = match choice.way {
                Way::Ring => put.then_some(Control::Pull { part, measure }),
                Way::Attach if !may_lend => None,
                Way::Attach => self.shared(len, place.conn).and_then(|len| {
                    let piece = lease.region().lone_piece(offset, len)?;
                    front = Front::Theirs { len, then: Then::Go };
                    Some(Control::Share { part, addr: piece.ptr.expose_provenance() as u64, len })
                }),
            };
            (choice.way.into(), answer)
        };
        if may_offer {
            self.offered.requested(&lease, len);
        }
        let span = Span { offset, len, done: 0 };
        let spent = measure.then_some(Duration::ZERO);
        self.alone = (measure && self.open.is_empty()).then(|| (part, Instant::now()));
        let (piece, before) = (0, 0);
        let mut service =
            Service { part, put, lease, span, pieces, piece, before, path, front, spent };
        if let Front::Theirs { len, .. } = front {
            service.has_come_to(len);
        }
        self.open.push_back(service);
        Ok(answer)
    }

    /// How much of so many bytes that we attach for the requester is let do meanwhile, if anything.
    fn shared(&self, len: u64, conn: &Conn) -> Option<u64> {
        // With helpers of our own it would be less than half; who sleeps would have to be woken.
        let worth = len > ALONE_MAX && self.share && self.helper.is_none();
        let share = worth && conn.segment.peer_bell().is_awake();
        share.then_some(len / 2 / SHARE_UNIT * SHARE_UNIT)
    }

    /// A transfer is over.
    fn ended(&mut self, service: &Service) {
        let way = match service.path {
            Path::Ring => Way::Ring,
            Path::Attach => Way::Attach,
            Path::Mapped(_) | Path::Granted => return,
        };
        let Some(copied) = service.spent else { return };
        let (part, len) = (service.part, service.span.len);
        let alone = self.alone.filter(|(alone, _)| *alone == part);
        let alone = alone.map(|(_, began)| began.elapsed().max(copied));
        if way == Way::Ring && !service.put {
            // Half of it: the requester copies too.
            self.untaken.push(Get { part, len, copied, alone });
            return;
        }
        let cost = Cost::of_one(service.put, len, alone.unwrap_or(copied));
        self.costs.measured(cost, way);
    }

    /// The requester says how long it took the data of a get: all of it, and the last chunk.
    pub(crate) fn taken(&mut self, part: u64, nanos: u64, last: u64) {
        if let Some((len, cost)) = self.untaken.take(part, nanos, last) {
            self.costs.measured(Cost::of_one(false, len, cost), Way::Ring);
        }
    }

    /// How memory goes that nobody has mapped.
    fn choose(&mut self, put: bool, len: u64, conn: &Conn) -> Choice {
        if !self.attach {
            return Choice::unmeasured(Way::Ring);
        }
        if conn.segment.peer_bell().is_awake() {
            return self.costs.choose(put, len);
        }
        Choice::unmeasured(if len > SLEEPER_BYTES { Way::Attach } else { Way::Ring })
    }

    /// The requester has copied in our memory, for so long, or says that it cannot. Returns what to
    /// answer.
    pub(crate) fn finished(
        &mut self,
        part: u64,
        copied: Option<Duration>,
        conn: &Conn,
        out: &mut Outcome,
    ) -> Option<Control> {
        let copies = |service: &Service| {
            let shared = matches!(service.front, Front::Theirs { .. });
            service.part == part && (shared || matches!(service.path, Path::Granted))
        };
        // A transfer that was canceled meanwhile is not here any more.
        let at = self.open.iter().position(copies)?;
        if let Front::Theirs { len, then } = self.open[at].front {
            self.share &= copied.is_some();
            return self.finished_shared(at, (len, then), copied, out);
        }
        if copied.is_some() {
            out.memory.extend(self.open.remove(at).map(|service| service.lease));
            return None;
        }
        self.grant = false;
        let Service { put, span, .. } = self.open[at];
        let Choice { way, measure } = self.choose(put, span.len, conn);
        let service = &mut self.open[at];
        (service.path, service.spent) = (way.into(), measure.then_some(Duration::ZERO));
        (put && way == Way::Ring).then_some(Control::Pull { part, measure })
    }

    /// The requester has copied its share of a service, for so long, or cannot. Returns what to
    /// answer.
    fn finished_shared(
        &mut self,
        at: usize,
        (len, then): (u64, Then),
        copied: Option<Duration>,
        out: &mut Outcome,
    ) -> Option<Control> {
        let service = self.open.get_mut(at)?;
        service.front = match copied {
            Some(_) => Front::Settled,
            None => Front::Left(len),
        };
        // Both copy at the same time: the slower one counts. What is copied twice says nothing.
        service.spent = service.spent.zip(copied).map(|(ours, theirs)| ours.max(theirs));
        let status = match then {
            Then::Restart => return self.restart(at),
            Then::Go => return None,
            Then::End(Status::Ok) if copied.is_none() => {
                service.turn_to_front(len);
                return None;
            }
            Then::End(status) => status,
        };
        let service = self.open.remove(at)?;
        self.end(service, status, out)
    }

    /// A service is over. Returns what to answer.
    fn end(&mut self, service: Service, status: Status, out: &mut Outcome) -> Option<Control> {
        if status == Status::Ok {
            self.ended(&service);
        }
        out.memory.push(service.lease);
        Some(Control::Done { part: service.part, status })
    }

    /// We cannot attach: nobody's memory goes that way any more, and this service through the ring
    /// from its start. Returns what to say.
    fn restart(&mut self, at: usize) -> Option<Control> {
        self.attach = false;
        let service = self.open.get_mut(at)?;
        service.restart_through_ring();
        service.put.then_some(Control::Pull { part: service.part, measure: false })
    }

    /// The requester gave up. A service that has ended meanwhile was answered already.
    pub(crate) fn cancel(&mut self, part: u64, out: &mut Outcome) -> Option<Control> {
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
    pub(crate) fn supply(
        &mut self,
        chunk: &Chunk<'_>,
        out: &mut Outcome,
    ) -> Result<Option<Control>, &'static str> {
        let wrong = "bulk data for an unknown transfer";
        let (part, offset, nanos) = chunk.prefix().ok_or(wrong)?;
        let at = self.open.iter().position(|service| service.part == part).ok_or(wrong)?;
        let service = &mut self.open[at];
        if !service.put || !matches!(service.path, Path::Ring) {
            return Err("bulk data that nobody asked for");
        }
        let mut taken = service.spent.map(|_| Duration::ZERO);
        timed(&mut taken, || chunk.take(offset, &service.lease, &mut service.span))?;
        if let Some((spent, taken)) = service.spent.as_mut().zip(taken) {
            // Both sides copy at the same time: the slower one counts.
            *spent = spent.saturating_add(taken.max(Duration::from_nanos(nanos)));
        }
        if service.span.left() > 0 {
            return Ok(None);
        }
        if let Some(service) = self.open.remove(at) {
            self.ended(&service);
            out.memory.push(service.lease);
        }
        Ok(Some(Control::Done { part, status: Status::Ok }))
    }

    /// Gives each service turns until `budget` bytes are moved or none can go on. `link` runs its
    /// argument with the connection's link, if that still exists. Returns whether anything moved.
    pub(crate) fn run<L: ToPeer>(
        &mut self,
        conn: &Conn,
        budget: &mut u64,
        out: &mut Outcome,
        mut link: impl FnMut(&mut dyn FnMut(&mut L)),
    ) -> bool {
        let mut progress = false;
        let mut stuck = 0;
        while *budget > 0 && stuck < self.open.len() {
            let Some(mut service) = self.open.pop_front() else { break };
            let before = service.span.done;
            let turn = match service.path {
                Path::Mapped(_) => service.mapped_turn(conn, self.helper.as_ref()),
                Path::Attach => {
                    let turn = service.attach_turn(conn, self.helper.as_ref());
                    service.beside_theirs(turn)
                }
                Path::Ring if !service.put => {
                    let mut turn = ServiceStep::Waits;
                    link(&mut |link| turn = service.ring_turn(link));
                    turn
                }
                Path::Ring | Path::Granted => ServiceStep::Waits,
            };
            *budget = budget.saturating_sub(service.span.done.saturating_sub(before));
            stuck = if matches!(turn, ServiceStep::Waits) { stuck + 1 } else { 0 };
            progress |= stuck == 0;
            let answer = match turn {
                ServiceStep::Moved | ServiceStep::Waits => {
                    self.open.push_back(service);
                    continue;
                }
                ServiceStep::Restart => {
                    self.open.push_back(service);
                    self.restart(self.open.len() - 1)
                }
                ServiceStep::Ended(status) => self.end(service, status, out),
            };
            if let Some(answer) = answer {
                link(&mut |link| link.push_control(answer));
            }
        }
        progress
    }

    /// Ends everything; the connection is gone, and its gate shut. Memory that the peer may still
    /// be copying is returned.
    pub(crate) fn fail_all(&mut self, conn: &Conn, out: &mut Outcome) -> Vec<LocalMem> {
        let quiet = !conn.segment.peer_copies();
        let mut kept = Vec::new();
        if !quiet {
            kept.extend(self.offered.regions());
        }
        for service in self.open.drain(..) {
            let theirs = matches!(service.front, Front::Theirs { .. });
            let copied = (theirs || matches!(service.path, Path::Granted)) && !quiet;
            if copied { &mut kept } else { &mut out.memory }.push(service.lease);
        }
        kept
    }
}

/// Runs `copy`, and adds how long it took to `spent` if that is measured.
fn timed<T>(spent: &mut Option<Duration>, copy: impl FnOnce() -> T) -> T {
    let Some(spent) = spent else { return copy() };
    let began = Instant::now();
    let copied = copy();
    *spent += began.elapsed();
    copied
}

impl Service {
    fn restart_through_ring(&mut self) {
        self.turn_to_front(self.pieces.iter().map(|piece| piece.len).sum());
        (self.path, self.spent) = (Path::Ring, None);
    }

    /// Copies the first `len` bytes, and is at its end then.
    fn turn_to_front(&mut self, len: u64) {
        self.front = Front::Settled;
        (self.span.len, self.span.done) = (len, 0);
        (self.piece, self.before) = (0, 0);
    }

    /// So many bytes from its start on are done, or not ours.
    fn has_come_to(&mut self, done: u64) {
        self.span.done = done;
        while let Some(piece) = self.pieces.get(self.piece)
            && self.before + piece.len <= done
        {
            self.before += piece.len;
            self.piece += 1;
        }
    }

    /// Returns the outcome of a turn while the requester copies, too. The end of our part is put
    /// off until the first bytes are copied as well.
    fn beside_theirs(&mut self, turn: ServiceStep) -> ServiceStep {
        match (&mut self.front, turn) {
            (Front::Theirs { then, .. }, ServiceStep::Ended(status)) => *then = Then::End(status),
            (Front::Theirs { then, .. }, ServiceStep::Restart) => *then = Then::Restart,
            (&mut Front::Left(len), ServiceStep::Ended(Status::Ok)) => self.turn_to_front(len),
            (_, turn) => return turn,
        }
        ServiceStep::Moved
    }

    /// Copies a chunk in user space.
    fn mapped_turn(&mut self, conn: &Conn, helper: Option<&CopyHelper>) -> ServiceStep {
        let Path::Mapped(mapped) = &self.path else { return ServiceStep::Waits };
        let gate = conn.segment.gate_as_copier();
        if !gate.enter() {
            // The requester has left; its end of file follows.
            return ServiceStep::Waits;
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
        if self.span.left() == 0 { ServiceStep::Ended(Status::Ok) } else { ServiceStep::Moved }
    }

    /// Copies a chunk with cross-memory attach.
    fn attach_turn(&mut self, conn: &Conn, helper: Option<&CopyHelper>) -> ServiceStep {
        if let Front::Theirs { then: Then::End(_) | Then::Restart, .. } = self.front {
            return ServiceStep::Waits;
        }
        let gate = conn.segment.gate_as_copier();
        if !gate.enter() {
            // The requester has left; its end of file follows.
            return ServiceStep::Waits;
        }
        let direction = if self.put { Direction::FromPeer } else { Direction::ToPeer };
        let mut spent = self.spent;
        // The process id is that of the peer as far as this says.
        let result = match conn.was_alive() {
            true => timed(&mut spent, || self.copy_chunk(conn.pid(), direction, helper)),
            false => Err(Errno::SRCH),
        };
        self.spent = spent;
        gate.leave();
        match result {
            Ok(0) | Err(Errno::FAULT | Errno::INVAL) => {
                ServiceStep::Ended(Status::Denied(DeniedReason::CopyFailed))
            }
            Ok(_) if self.span.left() == 0 => ServiceStep::Ended(Status::Ok),
            Ok(_) => ServiceStep::Moved,
            // It has ended, which we shall hear.
            Err(Errno::SRCH) if !conn.is_alive() => ServiceStep::Waits,
            // It is ending, or its first thread alone has: nobody can attach to the others then.
            Err(Errno::SRCH) => ServiceStep::Restart,
            Err(errno) => {
                tracing::warn!(
                    "cross-memory attach to process {} failed ({errno}); copying through the ring",
                    conn.pid()
                );
                ServiceStep::Restart
            }
        }
    }

    fn copy_chunk(
        &mut self,
        pid: i32,
        direction: Direction,
        helper: Option<&CopyHelper>,
    ) -> Result<u64, Errno> {
        let chunk = self.span.left().min(CHUNK_BYTES);
        let local = self.lease.region().pieces(self.span.offset + self.span.done, chunk);
        let (mut skip, mut left) = (self.span.done - self.before, chunk);
        let remote = self.pieces[self.piece..].iter().map_while(|piece| {
            let len = (piece.len - skip).min(left);
            let part = Piece { addr: piece.addr + skip, len, block: 0 };
            (skip, left) = (0, left - len);
            (len > 0).then_some(part)
        });
        let copied = match helper.filter(|_| chunk >= SPLIT_FROM as u64) {
            // SAFETY: pieces of a leased region, which stay valid for what the lease allows, and to
            // whose bytes nobody holds a reference (contract of `Memory::from_raw`).
            None => unsafe { cma::copy(pid, local, remote, direction) },
            Some(helper) => {
                let (local, remote): (Vec<_>, Vec<_>) = (local.collect(), remote.collect());
                // SAFETY: the same; the helper's threads are done with them when it returns.
                unsafe { cma::copy_split(pid, (&local, &remote, chunk), direction, helper) }
            }
        }?;
        self.has_come_to(self.span.done + copied);
        Ok(copied)
    }

    /// Sends data through the ring while there is room.
    fn ring_turn(&mut self, link: &mut impl ToPeer) -> ServiceStep {
        let Self { part, lease, span, spent, .. } = self;
        let (before, measure) = (span.done, spent.is_some());
        timed(spent, || {
            while span.left() > 0
                && span.done - before < CHUNK_BYTES
                && link.send_data(measure, *part, lease, span).is_some()
            {}
        });
        if self.span.done != before {
            link.conn().wake_peer(crate::wake::doorbell::RECORDS);
        }
        match self.span.left() {
            0 => ServiceStep::Ended(Status::Ok),
            _ if self.span.done == before => ServiceStep::Waits,
            _ => ServiceStep::Moved,
        }
    }
}
