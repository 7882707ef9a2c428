//! Payloads that did not fit into a message.
//!
//! The sender keeps such a payload in memory of its own, and the message says where: flag
//! `MORE_DATA` and a bulk descriptor. The receiver gets the whole payload before it hands the
//! message up. The sender may free it when it knows that the receiver is done:
//!
//! | what overflowed | told by |
//! |---|---|
//! | a request | the response |
//! | a one-way request | an acknowledgement |
//! | a response | an acknowledgement |
//!
//! An acknowledgement is an expected message of one byte under the tag of the RPC. It is also sent
//! when the get failed or was given up, so that the sender never waits for a receiver that lives.
//! The byte for a response says which of these happened ([`Ack`]). C sends a byte that means
//! nothing, so the sender has to know whether its peer is one of ours.

use std::collections::HashMap;
use std::io::ErrorKind::OutOfMemory;
use std::time::Instant;

use na::{Access, Addr, Arrival, LocalMem, Memory, RemoteMem, Tag, Transfer};

use crate::core::state::Op;
use crate::memory::buffers::Payload;
use crate::memory::spare;
use crate::ops::call::ResultFetch;
use crate::ops::event::Event;
use crate::ops::outgoing_response::Ack;
use crate::ops::request::{ArgumentsFetch, IncomingRequest, RequestExtension, ResponsePath};
use crate::ops::slab::Role;
use crate::proc::descriptor::{Handles, flags};
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::{BulkDesc, Core, HgError, OpRef, Response, ReturnCode, WireError};

/// How to come by an overflowed payload.
enum Source {
    /// It was in the descriptor after all, or is empty.
    Here(Vec<u8>),
    /// By a get.
    There { remote: RemoteMem, memory: LocalMem },
}

/// The fetches from one origin that are under way.
struct OriginFetches {
    fetches: usize,
    bytes: u64,
    /// Bytes of the longest one, and which that is.
    longest: (u64, OpRef),
}

impl OriginFetches {
    fn of(name: OpRef, len: u64) -> Self {
        Self { fetches: 1, bytes: len, longest: (len, name) }
    }

    fn add(&mut self, name: OpRef, len: u64) {
        self.fetches += 1;
        self.bytes = self.bytes.saturating_add(len);
        if len > self.longest.0 {
            self.longest = (len, name);
        }
    }
}

impl<T> Core<T> {
    /// Checks where a peer says that its payload is, and makes room for it.
    fn locate(&self, desc: &BulkDesc<'_>) -> Result<Source, HgError> {
        let max = self.options.overflow_bytes_max as u64;
        if desc.len > max {
            return Err(WireError::OverflowTooLong { len: desc.len, max }.into());
        }
        if desc.flags & flags::READ == 0 {
            return Err(WireError::OverflowForm("its memory does not allow reading").into());
        }
        if let Some(data) = desc.eager {
            return Ok(Source::Here(data.to_vec()));
        }
        if desc.len == 0 {
            return Ok(Source::Here(Vec::new()));
        }
        let Handles::One(Some(handle)) = &desc.handles else {
            return Err(WireError::OverflowForm("it has not exactly one memory handle").into());
        };
        let remote = self.endpoint.mem_from_bytes(handle)?;
        let room = spare::zeroed(desc.len as usize)?;
        let memory = self.endpoint.register_local(room, Access::WriteOnly)?;
        Ok(Source::There { remote, memory })
    }

    fn get(
        &self,
        op: OpRef,
        from: &Addr,
        remote: RemoteMem,
        memory: LocalMem,
    ) -> Result<(), na::Error> {
        let len = memory.len();
        let transfer = Transfer { local: memory, local_offset: 0, remote, remote_offset: 0, len };
        self.endpoint.get(op.part(Role::Fetch), from, transfer)
    }

    /// Fetches the arguments of a request that arrived. The request goes up when they are here.
    pub(crate) fn fetch_request(
        &self,
        header: RequestHeader,
        origin: &Addr,
        tag: Tag,
        desc: &BulkDesc<'_>,
        beside: Option<Box<RequestExtension>>,
    ) -> Result<Option<Event<T>>, (HgError, ReturnCode)> {
        let max = self.options.overflow_held_max;
        // What is too long by itself is refused for that.
        let is_short = desc.len <= self.options.overflow_bytes_max as u64;
        let len = if is_short { desc.len } else { 0 };
        if !self.primary().state().receives.hold_bytes(len, max as u64) {
            self.make_room(origin);
            return Err(self.not_fetched(header, origin, tag, HgError::Overflows { max }));
        }
        let started = self.start_fetch(header, origin, tag, desc, beside);
        started.inspect_err(|_| self.primary().state().receives.release_bytes(len))
    }

    /// Arguments of `newcomer` were refused for those of others. An origin that is stopped would
    /// keep its share for as long. So these are given up: fetches that come too late; one fetch,
    /// the longest, of an origin that has more than half of all bytes that may be held, or of all
    /// fetches that there may be; and the oldest of those that have taken
    /// [`FETCH_PATIENCE`](crate::core::receives::FETCH_PATIENCE). The room is there when the
    /// network has let go of it, over shared memory not before the origin runs again; a later
    /// attempt finds it then, or has another fetch give way. Nothing is looked for again within
    /// 10 ms, as others may be refused by the thousand.
    #[cold]
    fn make_room(&self, newcomer: &Addr) {
        let (now, max) = (Instant::now(), self.options.overflow_held_max as u64);
        let (fetches_max, before) = {
            let receives = &mut self.primary().state().receives;
            if !receives.begin_look(now, newcomer) {
                return;
            }
            (receives.fetches_max(), receives.old_fetches(now))
        };
        let mut oldest: Option<(u64, OpRef)> = None;
        let mut shares: HashMap<Addr, OriginFetches> = HashMap::new();
        let mut in_vain = Vec::new();
        for context in self.class.all() {
            for (name, op) in context.state().ops.iter() {
                let Op::Fetch(fetch) = op else { continue };
                let ArgumentsFetch { origin, memory, beside, number, .. } = fetch;
                if fetch.gives_way {
                    continue;
                }
                if *number < before && oldest.is_none_or(|oldest| *number < oldest.0) {
                    oldest = Some((*number, name));
                }
                if beside.as_ref().and_then(|said| said.deadline).is_some_and(|at| at <= now) {
                    in_vain.push(name);
                    continue;
                }
                let len = memory.len();
                match shares.get_mut(origin) {
                    Some(share) => share.add(name, len),
                    None => {
                        shares.insert(origin.clone(), OriginFetches::of(name, len));
                    }
                }
            }
        }
        for (origin, share) in shares {
            if share.fetches <= fetches_max / 2 && share.bytes <= max / 2 {
                continue;
            }
            if origin == *newcomer {
                self.primary().state().receives.has_spared(newcomer);
            } else {
                in_vain.push(share.longest.1);
            }
        }
        match oldest {
            Some((_, name)) => in_vain.push(name),
            None => self.primary().state().receives.no_fetch_is_old(now),
        }
        for op in in_vain {
            let context = self.class.all().into_iter().find(|own| own.id == op.context_id());
            if let Some(context) = context
                && let Some(Op::Fetch(fetch)) = context.state().ops.get_mut(op)
            {
                fetch.gives_way = true;
            }
            self.endpoint.cancel(op.part(Role::Fetch));
        }
    }

    fn start_fetch(
        &self,
        header: RequestHeader,
        origin: &Addr,
        tag: Tag,
        desc: &BulkDesc<'_>,
        beside: Option<Box<RequestExtension>>,
    ) -> Result<Option<Event<T>>, (HgError, ReturnCode)> {
        let source =
            self.locate(desc).map_err(|error| self.not_fetched(header, origin, tag, error))?;
        let (remote, memory) = match source {
            Source::Here(bytes) => {
                return self.fetched_request(header, origin, tag, bytes, beside).map(Some);
            }
            Source::There { remote, memory } => (remote, memory),
        };
        let begun = self.primary().state().receives.begin_fetch();
        let number = match begun {
            Ok(number) => number,
            Err(max) => {
                self.make_room(origin);
                return Err(self.not_fetched(header, origin, tag, HgError::Fetches { max }));
            }
        };
        let fetch = ArgumentsFetch {
            header,
            origin: origin.clone(),
            tag,
            memory,
            beside,
            number,
            gives_way: false,
        };
        self.begin_get(fetch, remote).map(|()| None).map_err(|error| {
            self.primary().state().receives.end_fetch();
            self.not_fetched(header, origin, tag, error)
        })
    }

    fn begin_get(&self, fetch: ArgumentsFetch, remote: RemoteMem) -> Result<(), HgError> {
        let (origin, memory) = (fetch.origin.clone(), fetch.memory.clone());
        let op = self.state().admit(Op::Fetch(fetch)).map_err(|refused| refused.0)?;
        self.get(op, &origin, remote, memory).map_err(|error| {
            let gone = self.state().ops.remove(op);
            drop(gone);
            error.into()
        })
    }

    /// Tells a one-way origin that it can free its arguments; others learn it from the response.
    fn not_fetched(
        &self,
        header: RequestHeader,
        origin: &Addr,
        tag: Tag,
        error: HgError,
    ) -> (HgError, ReturnCode) {
        if header.no_response {
            self.send_ack(origin, tag, Ack::Done);
        }
        let code = match &error {
            HgError::Wire(error) => ReturnCode::from(error),
            // Canceled to make room for others.
            HgError::Busy(_)
            | HgError::Overflows { .. }
            | HgError::Fetches { .. }
            | HgError::Canceled => ReturnCode::Again,
            HgError::Na(na::Error::Io { source, .. }) if source.kind() == OutOfMemory => {
                ReturnCode::NoMem
            }
            _ => ReturnCode::NaError,
        };
        (error, code)
    }

    fn fetched_request(
        &self,
        header: RequestHeader,
        origin: &Addr,
        tag: Tag,
        bytes: Vec<u8>,
        beside: Option<Box<RequestExtension>>,
    ) -> Result<Event<T>, (HgError, ReturnCode)> {
        if let Err(error) = header.verify(&bytes) {
            return Err(self.not_fetched(header, origin, tag, error.into()));
        }
        if header.no_response {
            self.send_ack(origin, tag, Ack::Done);
        }
        let payload = Payload::Overflow(bytes);
        let (origin, path) = (origin.clone(), ResponsePath::Network(tag));
        Ok(Event::Request(IncomingRequest {
            header,
            origin,
            path,
            payload,
            held: true,
            uncounted: false,
            beside,
        }))
    }

    /// Fetches the result of a call. `Some`: it was in the message.
    pub(crate) fn fetch_response(
        &self,
        op: OpRef,
        header: &ResponseHeader,
        Arrival { from: peer, tag }: &Arrival,
        desc: &BulkDesc<'_>,
    ) -> Result<Option<Vec<u8>>, HgError> {
        let source = match self.wants_result(op) {
            true => self.locate(desc),
            false => Err(HgError::Canceled),
        };
        let fetching = source.and_then(|source| match source {
            Source::Here(bytes) => {
                header.verify(&bytes)?;
                Ok(Some(bytes))
            }
            Source::There { remote, memory } => {
                let fetching = ResultFetch {
                    memory: memory.clone(),
                    sum: header.payload_sum,
                    peer: peer.clone(),
                    tag: *tag,
                };
                if !self.begin_fetch(op, fetching) {
                    return Err(HgError::Canceled);
                }
                self.get(op, peer, remote, memory)?;
                Ok(None)
            }
        });
        if !matches!(fetching, Ok(None)) {
            self.send_ack(peer, *tag, Ack::of(&fetching));
        }
        fetching
    }

    /// Returns whether the result of a call is to be fetched: not if the call is over or was
    /// canceled.
    fn wants_result(&self, op: OpRef) -> bool {
        matches!(self.state().ops.get_mut(op), Some(Op::Call(call)) if !call.canceled)
    }

    /// The response came and its result is being fetched; `false`: the call is over.
    fn begin_fetch(&self, op: OpRef, fetching: ResultFetch) -> bool {
        let mut state = self.state();
        let Some(Op::Call(call)) = state.ops.get_mut(op) else { return false };
        call.begin_fetch(fetching);
        true
    }

    /// A get of an overflowed payload ended.
    pub(crate) fn on_fetched(&self, op: OpRef, result: Result<(), na::Error>) -> Option<Event<T>> {
        let mut state = self.state();
        if let Some(Op::Call(call)) = state.ops.get_mut(op) {
            let canceled = call.canceled;
            let ResultFetch { memory, sum, peer, tag } = *call.fetching.take()?;
            drop(state);
            let result = result.map_err(HgError::from).and_then(|()| {
                let bytes = into_vec(memory)?;
                sum.map_or(Ok(()), |sum| sum.verify(&bytes))?;
                Ok(Response::new(Payload::Overflow(bytes), &self.buffers))
            });
            let ack = if canceled { Ack::GivenUp } else { Ack::of(&result) };
            self.send_ack(&peer, tag, ack);
            if let Err(error @ HgError::Wire(_)) = &result {
                self.response_unread(&peer, tag, error);
            }
            let mut state = self.state();
            if let Some(Op::Call(call)) = state.ops.get_mut(op) {
                call.fetched(result);
            }
            return self.settle(state, op);
        }
        let removed = state.ops.remove(op);
        drop(state);
        let Some(Op::Fetch(fetch)) = removed else { return None };
        self.primary().state().receives.end_fetch();
        let ArgumentsFetch { header, origin, tag, memory, beside, .. } = fetch;
        let len = memory.len();
        let fetched = match result.and_then(|()| into_vec(memory)) {
            Ok(bytes) => self.fetched_request(header, &origin, tag, bytes, beside),
            Err(error) => Err(self.not_fetched(header, &origin, tag, error.into())),
        };
        match fetched {
            Ok(event) => Some(event),
            Err((error, code)) => {
                self.primary().state().receives.release_bytes(len);
                self.reject(Some(header), &origin, tag, code, &error);
                None
            }
        }
    }
}

/// Takes the bytes out of memory that a get has filled.
fn into_vec(memory: LocalMem) -> Result<Vec<u8>, na::Error> {
    match memory.reclaim() {
        Ok(memory) => Ok(vec_of(memory)),
        Err(memory) => into_vec_in_use(memory),
    }
}

fn vec_of(memory: Memory) -> Vec<u8> {
    memory.into_owner().unwrap_or_default()
}

/// The network keeps it, see [`LocalMem::revoke`].
#[cold]
fn not_given_back(len: u64) -> na::Error {
    let what = format!("{len} bytes that were fetched do not come back from the network");
    na::Error::io(what, std::io::ErrorKind::Other)
}

/// Takes the bytes out of memory that the transport still refers to.
#[cold]
fn into_vec_in_use(memory: LocalMem) -> Result<Vec<u8>, na::Error> {
    let (len, weak) = (memory.len(), memory.downgrade());
    // With room for the one message: without a bound it would allocate for dozens.
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    memory.revoke(move |memory| {
        let _ = sender.send(memory);
    });
    if let Ok(memory) = receiver.try_recv() {
        return Ok(vec_of(memory));
    }
    match weak.upgrade() {
        // The transport has not dropped its reference yet: copy.
        Some(memory) => {
            let mut bytes = vec_of(Memory::zeroed(len as usize)?);
            let _ = memory.read_at(0, &mut bytes);
            Ok(bytes)
        }
        // It is dropping the last one in this moment.
        None => receiver.recv().map(vec_of).map_err(|_| not_given_back(len)),
    }
}
