//! Our puts and gets: the requester's side of remote memory access.
//!
//! A transfer is cut into *parts*, one request record each: consecutive bytes that at most
//! [`PIECES_MAX`] pieces of our memory hold (most transfers are one part of any length). At most
//! [`PARTS_MAX`] parts are open per connection; the rest wait here, in order. The owner of the
//! memory checks each part and either copies itself (cross-memory attach) or uses the ring: it
//! sends *data* records for a get, and asks with *pull* for the *supply* records of a put. With
//! *share* it may let us copy the first half of a long part at the same time. *Done* ends the part
//! in any case, and the last part ends the transfer.
//!
//! Our memory is held until then. A transfer that is canceled ends when the owner has answered for
//! its open parts, because the owner may be writing. If the owner does not answer within
//! [`ANSWER_LIMIT`], as one that is stopped does not, the transfer is reported all the same
//! ([`Requests::leave`]). A put then lets go of its memory, which the owner at most reads. The
//! memory of a get is marked ([`LingeringMemory`]) and held here until the answer comes or the
//! connection ends. So that such memory does not pile up, nothing more is asked of this owner
//! meanwhile.
//!
//! All this is state behind the peer's send lock. Memory that is no longer needed is handed to
//! [`Outcome`], to be released without that lock.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::block::Mapped;
use super::cma::{self, Direction};
use super::costs::{Cost, length};
use super::fallback::{Chunk, Source, Span};
use crate::link::record::{self, PARTS_MAX, PIECES_MAX, Piece, REQUEST_BYTES_MAX, Request, Status};
use crate::link::{Conn, Control, MappedRing, Producer, Violation};
use na_core::base::cheap::IntBuildHasher;
use na_core::loopback::Outcome;
use na_core::memory::copy::{copy_between, skip_bytes};
use na_core::memory::region::LingeringMemory;
use na_core::{Completion, Error, LocalMem, OpId, RemoteMem, Transfer};

/// How long a canceled transfer waits for the owner's answer. It is there at once from an owner
/// that runs; and as memory that is marked costs its user a copy, a busy one is given some time.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_millis(100);

/// The requester's state of one connection.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    transfers: HashMap<u64, Open, IntBuildHasher>,
    /// Transfers with bytes that were not asked for yet.
    waiting: VecDeque<u64>,
    parts: HashMap<u64, RmaPart, IntBuildHasher>,
    /// Parts whose data the owner pulls, and whether it wants to know how long that takes.
    pulled: VecDeque<(u64, bool)>,
    /// Parts that we copy ourselves.
    grants: VecDeque<Grant>,
    /// Transfers that have ended without the owner's answer. While there are any, no part is asked
    /// for.
    left: usize,
    next_id: u64,
    /// Transfers of one kind that are measured while there are any.
    flight: Option<Flight>,
    /// The cost of the last flight that was measured.
    pub(crate) cost: Option<Cost>,
}

/// See `costs.rs`.
#[derive(Debug)]
struct Flight {
    put: bool,
    /// Length of the first transfer.
    len: u64,
    began: Instant,
    /// Bytes of the transfers that have ended.
    bytes: u64,
}

/// Transfers after which a flight is measured that does not end.
const FLIGHT_MAX: u64 = 32;

#[derive(Debug)]
struct Open {
    op: OpId,
    put: bool,
    /// Our memory; none for a put that was left without an answer.
    local: Option<LocalMem>,
    local_offset: u64,
    remote: RemoteMem,
    remote_offset: u64,
    len: u64,
    /// Bytes asked for so far.
    asked: u64,
    parts: u32,
    failed: Option<Error>,
    /// The end was told although the owner has not answered for all parts.
    told: bool,
    /// The memory of a get whose end was told: the owner may still write there.
    late: Option<LingeringMemory>,
}

#[derive(Debug)]
struct RmaPart {
    transfer: u64,
    /// Place in our memory; `done` counts what went through the ring.
    span: Span,
    /// The owner has let us copy: it does so once.
    let_in: bool,
    /// How long we copied of what went through the ring, as far as the owner asks for it.
    taken: Duration,
}

/// A part of which the owner lets us copy the first bytes in its memory, or all of them.
#[derive(Debug)]
struct Grant {
    part: u64,
    memory: Granted,
    /// The place in our memory.
    span: Span,
    /// How long we copied.
    spent: Duration,
}

/// Memory of the owner.
#[derive(Debug)]
pub(crate) enum Granted {
    /// It is mapped, and all of the part is ours to copy.
    Mapped(Mapped),
    /// It is plain memory at that address; the owner copies the rest of the part meanwhile.
    Plain(u64),
}

/// Bytes that are copied under the send lock before others may have it.
const GRANT_CHUNK: u64 = 256 << 10;

impl Requests {
    /// Takes a transfer, to be asked for by [`issue`](Self::issue).
    pub(crate) fn start(&mut self, op: OpId, put: bool, transfer: Transfer, measure: bool) {
        let id = self.fresh_id();
        let len = transfer.len;
        if self.transfers.is_empty() {
            let flight = || Flight { put, len, began: Instant::now(), bytes: 0 };
            self.flight = measure.then(flight);
        } else {
            self.flight.take_if(|flight| (flight.put, length(flight.len)) != (put, length(len)));
        }
        let Transfer { local, local_offset, remote, remote_offset, len } = transfer;
        let open = Open {
            op,
            put,
            local: Some(local),
            local_offset,
            remote,
            remote_offset,
            len,
            asked: 0,
            parts: 0,
            failed: None,
            told: false,
            late: None,
        };
        self.transfers.insert(id, open);
        self.waiting.push_back(id);
    }

    /// Returns whether the owner has not answered for a transfer.
    pub(crate) fn has_transfers(&self) -> bool {
        !self.transfers.is_empty()
    }

    /// Returns whether the owner may be working for us.
    pub(crate) fn is_open(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns whether [`issue`](Self::issue) or [`supply`](Self::supply) have something to send.
    pub(crate) fn wants_room(&self) -> bool {
        !self.pulled.is_empty()
            || !self.grants.is_empty()
            || (!self.waiting.is_empty() && self.may_ask())
    }

    /// Returns whether another part may be asked for.
    fn may_ask(&self) -> bool {
        self.left == 0 && self.parts.len() < PARTS_MAX
    }

    /// Sends requests while there is room. Returns whether it sent some.
    ///
    /// `announce` makes sure that the owner can map our memory, to read or to write, and says its
    /// block, or zero.
    pub(crate) fn issue(
        &mut self,
        producer: &mut Producer<MappedRing>,
        mut announce: impl FnMut(&LocalMem, bool) -> u64,
    ) -> Result<bool, Violation> {
        let mut sent = false;
        while self.may_ask()
            && let Some(id) = self.waiting.front().copied()
        {
            let part = self.next_id + 1;
            let open = self.transfers.get_mut(&id).filter(|open| open.failed.is_none());
            let Some(open) = open else {
                self.waiting.pop_front();
                continue;
            };
            let Some(request) = open.next_request(part, &mut announce) else { return Ok(sent) };
            let Some(slot) = producer.reserve(request.encoded_len())? else { return Ok(sent) };
            let mut buffer = [0; REQUEST_BYTES_MAX];
            producer.write(&slot, 0, request.encode(&mut buffer));
            producer.publish(slot, if open.put { record::PUT } else { record::GET }, 0);
            let offset = open.local_offset + open.asked;
            open.asked += request.len;
            open.parts += 1;
            if open.asked == open.len {
                self.waiting.pop_front();
            }
            let span = Span { offset, len: request.len, done: 0 };
            let (let_in, taken) = (false, Duration::ZERO);
            self.parts.insert(part, RmaPart { transfer: id, span, let_in, taken });
            self.next_id = part;
            sent = true;
        }
        Ok(sent)
    }

    /// Sends the data of pulled puts while there is room and `budget` bytes last.
    pub(crate) fn supply(
        &mut self,
        source: &mut Source<'_>,
        budget: &mut u64,
    ) -> Result<bool, Violation> {
        let mut sent = false;
        while *budget > 0
            && let Some((id, measure)) = self.pulled.front().copied()
        {
            let part = self.parts.get_mut(&id);
            let found = part.and_then(|part| {
                let open = self.transfers.get(&part.transfer)?;
                Some((open.local.as_ref()?, &mut part.span))
            });
            let Some((memory, span)) = found.filter(|(_, span)| span.left() > 0) else {
                self.pulled.pop_front();
                continue;
            };
            let bytes = source.send_chunk((true, measure), id, memory, span)?;
            let Some(bytes) = bytes else { return Ok(sent) };
            *budget = budget.saturating_sub(bytes);
            sent = true;
        }
        Ok(sent)
    }

    /// The owner lets us copy part `id` in `memory`, or the first `share` bytes of it; without
    /// `memory` we cannot. Returns what to tell it.
    pub(crate) fn granted(
        &mut self,
        id: u64,
        memory: Option<Granted>,
        share: Option<u64>,
    ) -> Result<Option<Control>, &'static str> {
        let pulled = self.is_pulled(id);
        let part = self.parts.get_mut(&id).ok_or("a grant for an unknown transfer")?;
        let open = self.transfers.get(&part.transfer).ok_or("a grant for an unknown transfer")?;
        if share.is_some_and(|share| share == 0 || share >= part.span.len) {
            return Err("a share of nothing or of all");
        }
        if part.span.done != 0 || pulled || std::mem::replace(&mut part.let_in, true) {
            return Err("a grant where none may come");
        }
        let Some(memory) = memory else { return Ok(Some(Control::cannot(id))) };
        if open.failed.is_none() {
            let span = Span { len: share.unwrap_or(part.span.len), done: 0, ..part.span };
            self.grants.push_back(Grant { part: id, memory, span, spent: Duration::ZERO });
        }
        Ok(None)
    }

    fn is_granted(&self, id: u64) -> bool {
        self.grants.iter().any(|grant| grant.part == id)
    }

    /// Length of part `id` and whether it is a put; `None` when there is no such part.
    pub(crate) fn part(&self, id: u64) -> Option<(u64, bool)> {
        let part = self.parts.get(&id)?;
        Some((part.span.len, self.transfers.get(&part.transfer)?.put))
    }

    /// Copies a chunk of a granted part. `None`: there is nothing to copy; `Some`: a record for the
    /// owner, if one is due.
    pub(crate) fn copy_granted(
        &mut self,
        conn: &Conn,
        budget: &mut u64,
        out: &mut Outcome,
    ) -> Option<Option<Control>> {
        let grant = self.grants.front_mut().filter(|_| *budget > 0)?;
        let id = grant.part;
        let open = self.transfers.get(&self.parts.get(&id)?.transfer)?;
        // The owner must know when its memory is its own again, should the connection end now.
        let gate = conn.segment.gate_as_copier();
        if !gate.enter() {
            return None;
        }
        let chunk = grant.span.left().min(GRANT_CHUNK).min(*budget);
        let copied = grant.copy_chunk(open, chunk, conn);
        gate.leave();
        *budget -= copied.unwrap_or(chunk);
        if copied.is_some() && grant.span.left() > 0 {
            return Some(None);
        }
        let Grant { memory, spent, .. } = self.grants.pop_front()?;
        if let Granted::Mapped(_) = memory {
            // The peer's name serves errors only.
            let ended = self.done(id, Status::Ok, "", out);
            debug_assert!(ended.is_ok());
        }
        let finished =
            copied.map(|_| Control::Finished { part: id, copied: true, nanos: nanos(spent) });
        Some(Some(finished.unwrap_or(Control::cannot(id))))
    }

    /// The owner wants the data of a put.
    pub(crate) fn pull(&mut self, id: u64, measure: bool) -> Result<(), &'static str> {
        let part = self.parts.get(&id).ok_or("a pull for an unknown transfer")?;
        let open = self.transfers.get(&part.transfer).ok_or("a pull for an unknown transfer")?;
        if !open.put || part.span.done != 0 || self.is_pulled(id) || self.is_granted(id) {
            return Err("a pull where none may come");
        }
        if open.failed.is_none() {
            self.pulled.push_back((id, measure));
        }
        Ok(())
    }

    fn is_pulled(&self, id: u64) -> bool {
        self.pulled.iter().any(|(pulled, _)| *pulled == id)
    }

    /// Data of a get has come through the ring. Returns what to tell the owner.
    pub(crate) fn data(&mut self, chunk: &Chunk<'_>) -> Result<Option<Control>, &'static str> {
        let unknown = "bulk data for an unknown transfer";
        let (id, offset, measure) = chunk.prefix().ok_or(unknown)?;
        if self.is_granted(id) {
            return Err("bulk data beside a grant");
        }
        let part = self.parts.get_mut(&id).ok_or(unknown)?;
        if measure > 1 {
            return Err("bulk data with a wrong flag");
        }
        let open = self.transfers.get(&part.transfer).filter(|open| !open.put).ok_or(unknown)?;
        let local = open.local.as_ref().ok_or(unknown)?;
        let began = (measure == 1).then(Instant::now);
        chunk.take(offset, local, &mut part.span)?;
        let Some(began) = began else { return Ok(None) };
        let last = began.elapsed();
        part.taken = part.taken.saturating_add(last);
        let taken = Control::Taken { part: id, nanos: nanos(part.taken), last: nanos(last) };
        Ok((part.span.left() == 0).then_some(taken))
    }

    /// The owner has ended a part. Returns what to tell it: where a part has failed, that the
    /// others are given up, for it may wait for us with them.
    pub(crate) fn done(
        &mut self,
        id: u64,
        status: Status,
        peer: &str,
        out: &mut Outcome,
    ) -> Result<Vec<Control>, &'static str> {
        if status == Status::Ok && self.is_granted(id) {
            return Err("the end of a transfer that we still copy");
        }
        let part = self.parts.remove(&id).ok_or("the end of an unknown transfer")?;
        if status == Status::Ok && part.span.done != 0 && part.span.left() != 0 {
            return Err("the end of a transfer before its data");
        }
        self.pulled.retain(|(pulled, _)| *pulled != id);
        self.grants.retain(|grant| grant.part != id);
        let Some(open) = self.transfers.get_mut(&part.transfer) else { return Ok(Vec::new()) };
        open.parts -= 1;
        let error = match status {
            Status::Ok => None,
            Status::Denied(reason) => Some(Error::Denied { peer: peer.to_owned(), reason }),
            Status::Canceled => Some(Error::Canceled),
        };
        let mut cancels = Vec::new();
        if let Some(error) = error.filter(|_| open.failed.is_none()) {
            open.failed = Some(error);
            cancels = self.give_up(part.transfer);
        }
        self.finish(part.transfer, out);
        Ok(cancels)
    }

    /// Gives up the transfer `op`. `None`: there is no such transfer. The records are to be sent to
    /// the owner. If the transfer [is awaited](Self::awaits) after that, it is to be
    /// [left](Self::leave) in time.
    pub(crate) fn cancel(&mut self, op: OpId, out: &mut Outcome) -> Option<Vec<Control>> {
        let (&id, open) = self.find(op)?;
        if open.failed.is_some() {
            // The owner has been told.
            return Some(Vec::new());
        }
        open.failed = Some(Error::Canceled);
        let cancels = self.give_up(id);
        self.finish(id, out);
        Some(cancels)
    }

    fn find(&mut self, op: OpId) -> Option<(&u64, &mut Open)> {
        // The number of one whose end was told may be another's by now.
        self.transfers.iter_mut().find(|(_, open)| open.op == op && !open.told)
    }

    /// Returns whether the end of the transfer `op` was not told.
    pub(crate) fn awaits(&mut self, op: OpId) -> bool {
        self.find(op).is_some()
    }

    /// Tells the end of the transfer `op`, which was given up and has no answer of its owner.
    pub(crate) fn leave(&mut self, op: OpId, out: &mut Outcome) {
        let Some((_, open)) = self.find(op) else { return };
        let Some(error) = open.failed.clone() else { return };
        open.told = true;
        match open.put {
            true => out.memory.extend(open.local.take()),
            false => open.late = open.local.as_ref().map(LingeringMemory::new),
        }
        out.completions.push(Completion::Transfer { op, result: Err(error) });
        self.left += 1;
    }

    /// Forgets the open parts of a transfer that has failed, and returns the records that tell the
    /// owner so.
    fn give_up(&mut self, transfer: u64) -> Vec<Control> {
        let of_it = |(id, part): (&u64, &RmaPart)| (part.transfer == transfer).then_some(*id);
        let parts: Vec<_> = self.parts.iter().filter_map(of_it).collect();
        self.pulled.retain(|(pulled, _)| !parts.contains(pulled));
        self.grants.retain(|grant| !parts.contains(&grant.part));
        parts.into_iter().map(|part| Control::Cancel { part }).collect()
    }

    /// Ends everything with `error`; the connection is gone. Returns the memory where the owner may
    /// still write, if it may be copying.
    pub(crate) fn fail_all(
        &mut self,
        error: &Error,
        may_be_copied: bool,
        out: &mut Outcome,
    ) -> Vec<LingeringMemory> {
        let mut left = Vec::new();
        for (_, Open { op, put, local, parts, told, late, .. }) in
            std::mem::take(&mut self.transfers)
        {
            if may_be_copied && !put && parts > 0 {
                left.extend(late.or_else(|| local.as_ref().map(LingeringMemory::new)));
            }
            if !told {
                out.completions.push(Completion::Transfer { op, result: Err(error.clone()) });
            }
            out.memory.extend(local);
        }
        *self = Self { next_id: self.next_id, ..Self::default() };
        left
    }

    /// Completes the transfer if nothing of it is open any more.
    fn finish(&mut self, id: u64, out: &mut Outcome) {
        let Some(open) = self.transfers.get(&id) else { return };
        let asked = open.asked == open.len || open.failed.is_some();
        // Without parts it has not even asked, unless it failed.
        if open.parts > 0 || !asked {
            return;
        }
        if let Some(open) = self.transfers.remove(&id) {
            if open.asked < open.len {
                self.waiting.retain(|waiting| *waiting != id);
            }
            self.ended_in_flight(&open);
            let Open { op, local, failed, told, .. } = open;
            if told {
                self.left -= 1;
            } else {
                let result = failed.map_or(Ok(()), Err);
                out.completions.push(Completion::Transfer { op, result });
            }
            out.memory.extend(local);
        }
    }

    fn ended_in_flight(&mut self, open: &Open) {
        let Some(mut flight) = self.flight.take_if(|_| open.failed.is_none()) else {
            // What has failed says nothing.
            self.flight = None;
            return;
        };
        flight.bytes = flight.bytes.saturating_add(open.len);
        let goes_on = !self.transfers.is_empty();
        if goes_on && flight.bytes / FLIGHT_MAX < flight.len {
            self.flight = Some(flight);
            return;
        }
        let Flight { put, len, began, bytes } = flight;
        let now = Instant::now();
        self.cost = Some(Cost { put, len, bytes, took: now.saturating_duration_since(began) });
        self.flight = goes_on.then_some(Flight { put, len, began: now, bytes: 0 });
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl Grant {
    /// Copies the next `chunk` bytes, or fewer, inside the gate. `None`: it cannot be done.
    fn copy_chunk(&mut self, open: &Open, chunk: u64, conn: &Conn) -> Option<u64> {
        let local = open.local.as_ref()?.region();
        let local = local.pieces(self.span.offset + self.span.done, chunk);
        let copied = match &self.memory {
            Granted::Mapped(memory) => {
                let remote = skip_bytes(&memory.pieces, self.span.done);
                // SAFETY: pieces of our region, which the transfer keeps alive, and of memory that
                // the grant keeps mapped, valid for the access that was checked when they were
                // resolved.
                unsafe { copy_between(!open.put, local, remote, None) };
                chunk
            }
            // The process id is that of the peer as far as this says.
            Granted::Plain(_) if !conn.was_alive() => return None,
            Granted::Plain(addr) => {
                let theirs = Piece { addr: addr + self.span.done, len: chunk, block: 0 };
                let direction = if open.put { Direction::ToPeer } else { Direction::FromPeer };
                let (pid, began) = (conn.pid(), Instant::now());
                // SAFETY: pieces of our region, which the transfer keeps alive, valid for what it
                // allows, and to whose bytes nobody holds a reference (contract of
                // `Memory::from_raw`).
                let copied = unsafe { cma::copy(pid, local, std::iter::once(theirs), direction) };
                self.spent = self.spent.saturating_add(began.elapsed());
                copied.ok().filter(|copied| *copied > 0)?
            }
        };
        self.span.done += copied;
        Some(copied)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Open {
    fn next_request(
        &self,
        part: u64,
        announce: &mut impl FnMut(&LocalMem, bool) -> u64,
    ) -> Option<Request> {
        let Self { local, local_offset, remote, remote_offset, len, .. } = self;
        let local = local.as_ref()?;
        let block = announce(local, !self.put);
        let pieces: Vec<_> = local
            .region()
            .pieces(local_offset + self.asked, len - self.asked)
            .take(PIECES_MAX)
            .map(|piece| Piece {
                addr: piece.ptr.expose_provenance() as u64,
                len: piece.len as u64,
                block,
            })
            .collect();
        let len = pieces.iter().map(|piece| piece.len).sum();
        Some(Request { part, key: remote.key, offset: remote_offset + self.asked, len, pieces })
    }
}
