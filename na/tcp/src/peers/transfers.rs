//! Puts and gets with one peer: those that we asked for, and those that we serve as owner.
//!
//! # As requester
//!
//! At most [`TRANSFERS_MAX`] are with the peer; the others wait their turn. A transfer that the
//! caller canceled completes at once, because only we touch our memory: a get's remaining data is
//! skipped, a put's remaining data is not sent, but for the rest of a frame that was sent in part,
//! which leaves from a copy. It stays in the table, *abandoned*, until the owner
//! has answered, so that its number keeps its meaning.
//!
//! # As owner
//!
//! A lease is taken when the request arrives and dropped when the last byte has moved. Every put
//! gets exactly one verdict: at once if denied, else when its data is complete or it is canceled. A
//! get is answered by its data, or by a verdict when it is denied, empty, or canceled before its
//! data was cut into frames. The data of a denied put is skipped.

use std::collections::{HashMap, VecDeque};

use crate::stream::frame_reader::{Destination, ExpectedData, ReadPlan};
use crate::stream::line::Line;
use crate::stream::outgoing::{Data, Harvest, Outgoing};
use crate::wire::frame::{Kind, Request, Status, TRANSFERS_MAX};
use na_core::base::cheap::IntBuildHasher;
use na_core::memory::region::Filled;
use na_core::{Completion, DeniedReason, Error, LocalMem, OpId, Principal, RegionTable, Transfer};

/// A transfer that we asked for.
struct Asked {
    op: OpId,
    put: bool,
    /// Our memory and the offset in it; `None` once abandoned.
    local: Option<(LocalMem, u64)>,
    /// Which bytes of the peer's memory.
    request: Request,
    /// Bytes of a get that have arrived or are arriving.
    received: u64,
}

/// A put that we serve.
struct Served {
    /// `None`: denied, and its data is skipped.
    lease: Option<(LocalMem, u64)>,
    len: u64,
    /// Bytes that have arrived or are arriving.
    received: u64,
}

/// Data that probably comes next.
struct Expected<'a> {
    kind: Kind,
    number: u64,
    /// Where the whole of it belongs.
    place: &'a (LocalMem, u64),
    received: u64,
    len: u64,
    careful: bool,
}

/// The transfers with one peer. See the module's documentation.
#[derive(Default)]
pub(crate) struct Transfers {
    next_number: u64,
    /// Transfers by number, ascending.
    asked: VecDeque<(u64, Asked)>,
    waiting: VecDeque<Asked>,
    /// Few, whatever numbers the peer chooses.
    served_puts: HashMap<u64, Served, IntBuildHasher>,
    served_gets: usize,
}

impl Transfers {
    /// How to read, given the data that may be arriving.
    pub(crate) fn appetite(&self) -> ReadPlan {
        let Some(expected) = self.expected() else { return ReadPlan::Any };
        let Expected { kind, number, place: (memory, begin), received, len, careful } = expected;
        let (memory, offset) = (memory.clone(), begin + received);
        ReadPlan::ExpectedData(ExpectedData { kind, number, memory, offset, len, careful })
    }

    /// Returns whether [`appetite`](Self::appetite) knows better than to read whatever there is.
    pub(crate) fn expects_data(&self) -> bool {
        self.expected().is_some()
    }

    /// The data that is worth guessing, if there is one transfer.
    fn expected(&self) -> Option<Expected<'_>> {
        if self.served_puts.len() + self.asked.len() != 1 {
            return None;
        }
        let puts = self.served_puts.iter().map(|(number, served)| {
            (Kind::PutData, *number, &served.lease, served.len, served.received)
        });
        let gets = self.asked.iter().filter(|(_, asked)| !asked.put).map(|(number, asked)| {
            (Kind::GetData, *number, &asked.local, asked.request.len, asked.received)
        });
        match puts.chain(gets).next()? {
            (kind, number, Some(place), whole, received) if received < whole => {
                let len = whole - received;
                // A get that is denied should leave our memory as it is.
                let careful = kind == Kind::GetData && received == 0;
                let expected = Expected { kind, number, place, received, len, careful };
                ExpectedData::is_worth_it(len, careful).then_some(expected)
            }
            _ => None,
        }
    }

    /// Returns whether anything is under way in either direction.
    pub(crate) fn is_busy(&self) -> bool {
        self.has_asked() || !self.served_puts.is_empty() || self.served_gets > 0
    }

    /// Returns whether a transfer of ours is under way, or waits for its turn.
    pub(crate) fn has_asked(&self) -> bool {
        !self.asked.is_empty() || !self.waiting.is_empty()
    }

    /// Starts a transfer, or queues it until the peer has fewer. `door`: see [`Outgoing`].
    pub(crate) fn start(
        &mut self,
        op: OpId,
        put: bool,
        transfer: Transfer,
        out: &mut Outgoing,
        door: Option<&mut Line>,
    ) {
        let Transfer { local, local_offset, remote, remote_offset, len } = transfer;
        let request = Request { key: remote.key, offset: remote_offset, len };
        let local = Some((local, local_offset));
        let asked = Asked { op, put, local, request, received: 0 };
        // What waits, waits for a place.
        match self.asked.len() < TRANSFERS_MAX {
            true => self.ask(asked, out, door),
            false => self.waiting.push_back(asked),
        }
    }

    fn ask(&mut self, asked: Asked, out: &mut Outgoing, door: Option<&mut Line>) {
        let number = self.next_number;
        self.next_number += 1;
        let request = asked.request.encode();
        match &asked.local {
            Some((memory, offset)) if asked.put && asked.request.len > 0 => {
                let data = Data { number, memory, offset: *offset, len: asked.request.len };
                if !out.send_short_put(door, &request, data) {
                    out.push_small(Kind::Put, number, &request);
                    out.push_bulk(Kind::PutData, data);
                }
            }
            _ if asked.put => out.send_small(door, Kind::Put, number, &request),
            _ => out.send_small(door, Kind::Get, number, &request),
        }
        self.asked.push_back((number, asked));
    }

    /// Asks for those that waited for a place.
    fn ask_waiting(&mut self, out: &mut Outgoing) {
        while self.asked.len() < TRANSFERS_MAX
            && let Some(asked) = self.waiting.pop_front()
        {
            self.ask(asked, out, None);
        }
    }

    /// Returns the place in `asked` of the transfer with that number.
    fn find(&self, number: u64) -> Option<usize> {
        self.asked.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    /// Ends the transfer `op`, if there is one. Also returns its number if data may be arriving.
    pub(crate) fn cancel(
        &mut self,
        op: OpId,
        out: &mut Outgoing,
        harvest: &mut Harvest,
    ) -> Option<Option<u64>> {
        let canceled = Completion::Transfer { op, result: Err(Error::Canceled) };
        if let Some(at) = self.waiting.iter().position(|asked| asked.op == op) {
            let local = self.waiting.remove(at).and_then(|asked| asked.local);
            harvest.memories.extend(local.map(|(memory, _)| memory));
            harvest.completions.push(canceled);
            return Some(None);
        }
        let (number, asked) = self
            .asked
            .iter_mut()
            .map(|(number, asked)| (*number, asked))
            .find(|(_, asked)| asked.op == op && asked.local.is_some())?;
        harvest.memories.extend(asked.local.take().map(|(memory, _)| memory));
        if asked.put {
            out.take_back_put(number, harvest);
        }
        out.push_small(Kind::Cancel, number, &[]);
        harvest.completions.push(canceled);
        Some((!asked.put).then_some(number))
    }

    /// The system cannot access our memory, to send a put of ours (`Put`), or to take the data of
    /// that kind. The transfer ends; data that still comes is skipped.
    #[cold]
    pub(crate) fn cannot_access(
        &mut self,
        kind: Kind,
        number: u64,
        out: &mut Outgoing,
        harvest: &mut Harvest,
    ) {
        if kind == Kind::PutData {
            let served = self.served_puts.get_mut(&number);
            if let Some((memory, _)) = served.and_then(|served| served.lease.take()) {
                harvest.memories.push(memory);
                let verdict = Status::Denied(DeniedReason::CopyFailed).encode();
                out.push_small(Kind::Done, number, &verdict);
            }
            return;
        }
        let Some(at) = self.find(number) else { return };
        let asked = &mut self.asked[at].1;
        let Some((memory, _)) = asked.local.take() else { return };
        harvest.memories.push(memory);
        let what = "the local memory of a transfer cannot be accessed: pages of a mapped file are \
                    gone";
        let result = Err(Error::io(what, std::io::Error::from_raw_os_error(libc::EFAULT)));
        harvest.completions.push(Completion::Transfer { op: asked.op, result });
        out.push_small(Kind::Cancel, number, &[]);
    }

    /// A peer's get or put arrived.
    pub(crate) fn serve(
        &mut self,
        kind: Kind,
        number: u64,
        request: Request,
        (regions, who): (&RegionTable, &dyn Fn() -> Principal),
        (out, door): (&mut Outgoing, Option<&mut Line>),
        harvest: &mut Harvest,
    ) -> Result<(), String> {
        let put = kind == Kind::Put;
        let running = if put { self.served_puts.len() } else { self.served_gets };
        if running >= TRANSFERS_MAX {
            return Err(format!("more than {TRANSFERS_MAX} transfers at once"));
        }
        // An honest peer waits for its verdicts. We keep none for one that does not take them.
        if out.verdicts() > 2 * TRANSFERS_MAX {
            return Err(format!("more than {TRANSFERS_MAX} transfers without taking the answers"));
        }
        if self.served_puts.contains_key(&number) {
            return Err(format!("transfer number {number} used twice"));
        }
        let Request { key, offset, len } = request;
        let lease = regions.lease_by(key, offset, len, put, who);
        let verdict = match &lease {
            Err(reason) => Some(Status::Denied(*reason)),
            Ok(_) if len == 0 => Some(Status::Ok),
            Ok(_) => None,
        };
        if let Some(status) = verdict {
            out.push_small(Kind::Done, number, &status.encode());
        }
        match lease {
            Ok(memory) if !put && len > 0 => {
                let data = Data { number, memory: &memory, offset, len };
                if !out.send_short_data(door, data) {
                    self.served_gets += 1;
                    out.push_bulk(Kind::GetData, data);
                }
                harvest.memories.push(memory);
            }
            lease if put && len > 0 => {
                let lease = lease.ok().map(|memory| (memory, offset));
                self.served_puts.insert(number, Served { lease, len, received: 0 });
            }
            // Nothing moves. That we have looked may have made us the last who holds the memory.
            lease => harvest.memories.extend(lease),
        }
        Ok(())
    }

    /// The last byte of a get that we serve was put into a frame.
    pub(crate) fn get_is_cut(&mut self) {
        self.served_gets -= 1;
    }

    /// A frame with data begins.
    pub(crate) fn begin_data(
        &mut self,
        kind: Kind,
        number: u64,
        len: u64,
    ) -> Result<Destination, String> {
        Ok(match self.place_of(kind, number, len)? {
            Some((memory, offset)) => Destination::Memory(memory.clone(), offset),
            None => Destination::Nowhere,
        })
    }

    /// A whole frame with data is there. `false`: the memory that it goes to cannot be written.
    pub(crate) fn take_data(
        &mut self,
        kind: Kind,
        number: u64,
        data: &[u8],
    ) -> Result<bool, String> {
        let Some((memory, offset)) = self.place_of(kind, number, data.len() as u64)? else {
            return Ok(true);
        };
        match memory.region().fill_at(offset, data) {
            Filled::All => Ok(true),
            Filled::Outside => Err("data beyond its memory".into()),
            Filled::Gone => Ok(false),
        }
    }

    /// Returns the place of the next `len` bytes of data, which are on their way there from now on.
    fn place_of(
        &mut self,
        kind: Kind,
        number: u64,
        len: u64,
    ) -> Result<Option<(&LocalMem, u64)>, String> {
        let unknown = || format!("{kind:?} for transfer {number}, which is not running");
        let (place, whole, received) = match kind {
            Kind::PutData => {
                let served = self.served_puts.get_mut(&number).ok_or_else(unknown)?;
                (&served.lease, served.len, &mut served.received)
            }
            _ => {
                let at = self.find(number).filter(|at| !self.asked[*at].1.put);
                let asked = &mut self.asked[at.ok_or_else(unknown)?].1;
                (&asked.local, asked.request.len, &mut asked.received)
            }
        };
        if len > whole - *received {
            return Err(format!("{kind:?} beyond the {whole} bytes of transfer {number}"));
        }
        let place = place.as_ref().map(|(memory, offset)| (memory, offset + *received));
        *received += len;
        Ok(place)
    }

    /// A frame with data has been read to its end.
    pub(crate) fn end_data(
        &mut self,
        kind: Kind,
        number: u64,
        (out, door): (&mut Outgoing, Option<&mut Line>),
        harvest: &mut Harvest,
    ) {
        if kind == Kind::PutData {
            let complete = |served: &Served| served.received == served.len;
            if self.served_puts.get(&number).is_some_and(complete)
                && let Some(served) = self.served_puts.remove(&number)
                && let Some((memory, _)) = served.lease
            {
                harvest.memories.push(memory);
                out.send_small(door, Kind::Done, number, &Status::Ok.encode());
            }
        } else if let Some(at) = self.find(number)
            && self.asked[at].1.received == self.asked[at].1.request.len
        {
            self.finish(at, Ok(()), out, harvest);
        }
    }

    fn finish(
        &mut self,
        at: usize,
        result: Result<(), Error>,
        out: &mut Outgoing,
        harvest: &mut Harvest,
    ) {
        if let Some((_, asked)) = self.asked.remove(at)
            && let Some((memory, _)) = asked.local
        {
            harvest.memories.push(memory);
            harvest.completions.push(Completion::Transfer { op: asked.op, result });
        }
        self.ask_waiting(out);
    }

    /// The owner's verdict on a transfer of ours.
    pub(crate) fn verdict(
        &mut self,
        number: u64,
        status: Status,
        peer: &str,
        out: &mut Outgoing,
        harvest: &mut Harvest,
    ) -> Result<(), String> {
        let Some(at) = self.find(number) else {
            return Err(format!("verdict on transfer {number}, which is not running"));
        };
        let asked = &self.asked[at].1;
        let unsent = asked.put && out.take_back_put(number, harvest);
        let result = match status {
            Status::Ok if unsent || (!asked.put && asked.request.len > 0) => {
                return Err(format!("transfer {number} declared done before its data"));
            }
            Status::Canceled if asked.local.is_some() => {
                return Err(format!("transfer {number} canceled by its owner"));
            }
            Status::Ok | Status::Canceled => Ok(()),
            Status::Denied(reason) => Err(Error::Denied { peer: peer.to_owned(), reason }),
        };
        if unsent {
            // The owner still expects the data in order to skip it.
            out.push_small(Kind::Cancel, number, &[]);
        }
        self.finish(at, result, out, harvest);
        Ok(())
    }

    /// The requester canceled a transfer that we serve, or may have served.
    pub(crate) fn canceled_by_peer(
        &mut self,
        number: u64,
        out: &mut Outgoing,
        harvest: &mut Harvest,
    ) {
        let answer = match self.served_puts.remove(&number) {
            Some(Served { lease: Some((memory, _)), .. }) => {
                harvest.memories.push(memory);
                true
            }
            Some(Served { lease: None, .. }) => false,
            None if out.remove_bulk(Kind::GetData, number, harvest) => {
                self.served_gets -= 1;
                true
            }
            None => false,
        };
        if answer {
            out.push_small(Kind::Done, number, &Status::Canceled.encode());
        }
    }

    /// Ends all transfers of ours with `error`, and forgets those of the peer.
    pub(crate) fn fail_all(&mut self, error: &Error, harvest: &mut Harvest) {
        for asked in self.asked.drain(..).map(|(_, asked)| asked).chain(self.waiting.drain(..)) {
            if let Some((memory, _)) = asked.local {
                harvest.memories.push(memory);
                let result = Err(error.clone());
                harvest.completions.push(Completion::Transfer { op: asked.op, result });
            }
        }
        let leases = self.served_puts.drain().filter_map(|(_, served)| served.lease);
        harvest.memories.extend(leases.map(|(memory, _)| memory));
        self.served_gets = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use na_core::{Access, Memory};

    #[test]
    fn memory_that_was_only_looked_at_is_dropped_by_nobody_who_holds_a_lock() {
        let regions = RegionTable::new();
        let memory = regions.register(Memory::from_vec(vec![0; 8]), Access::ReadWrite).unwrap();
        let request = Request { key: memory.key(), offset: 8, len: 0 };
        for kind in [Kind::Get, Kind::Put] {
            let (mut transfers, mut out) = (Transfers::default(), Outgoing::default());
            let mut harvest = Harvest::default();
            let place: (_, &dyn Fn() -> _) = (&regions, &|| Principal::Unknown);
            transfers.serve(kind, 0, request, place, (&mut out, None), &mut harvest).unwrap();
            assert_eq!((harvest.memories.len(), out.verdicts()), (1, 1), "{kind:?}");
        }
    }
}
