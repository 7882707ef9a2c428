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
use crate::memory::{Payload, spare};
use crate::ops::{Ack, ArgumentsFetch, Event, IncomingRequest, ResultFetch, Role};
use crate::proc::descriptor::{Handles, flags};
use crate::wire::header::ResponseHeader;
use crate::{BulkDesc, Core, HgError, OpRef, Response, ReturnCode, WireError};

/// How to come by an overflowed payload.
enum Source {
    /// It was in the descriptor after all, or is empty.
    Here(Vec<u8>),
    /// By a get.
    There { remote: RemoteMem, memory: LocalMem },
}

/// The fetches from one origin that are under way.
#[derive(Default)]
struct OriginFetches {
    fetches: usize,
    bytes: u64,
    /// Bytes of the longest one, and which that is.
    longest: Option<(u64, OpRef)>,
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

    /// Fetches the arguments of a request that arrived with this tag. The request goes up when they
    /// are here.
    pub(crate) fn fetch_request(
        &self,
        request: IncomingRequest,
        tag: Tag,
        desc: &BulkDesc<'_>,
    ) -> Option<Event<T>> {
        let max = self.options.overflow_held_max;
        // What is too long by itself is refused for that.
        let is_short = desc.len <= self.options.overflow_bytes_max as u64;
        let len = if is_short { desc.len } else { 0 };
        if !self.class.held.hold(len, max as u64) {
            self.make_room(&request.origin);
            return self.not_fetched(request, tag, 0, HgError::Overflows { max });
        }
        match self.locate(desc) {
            Ok(Source::Here(bytes)) => self.fetched_request(request, tag, len, Ok(bytes)),
            Ok(Source::There { remote, memory }) => self.start_fetch(request, tag, remote, memory),
            Err(error) => self.not_fetched(request, tag, len, error),
        }
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
        let fetches_max = {
            let receives = &mut self.state().receives;
            if !receives.begin_look(now, newcomer) {
                return;
            }
            receives.fetches_max()
        };
        let mut oldest: Option<(u64, OpRef)> = None;
        let mut shards = 0;
        let mut shares: HashMap<Addr, OriginFetches> = HashMap::new();
        let mut in_vain = Vec::new();
        for shard in self.class.all() {
            let mut state = shard.state();
            let before = state.receives.old_fetches(now);
            shards += 1;
            for (name, op) in state.ops.iter() {
                let Op::Fetch(fetch) = op else { continue };
                let ArgumentsFetch { request, memory, number, .. } = fetch;
                if fetch.gives_way {
                    continue;
                }
                if *number < before && oldest.is_none_or(|oldest| *number < oldest.0) {
                    oldest = Some((*number, name));
                }
                let deadline = request.beside.as_ref().and_then(|said| said.deadline);
                if deadline.is_some_and(|at| at <= now) {
                    in_vain.push(name);
                    continue;
                }
                let share = shares.entry(request.origin.clone()).or_default();
                share.fetches += 1;
                share.bytes = share.bytes.saturating_add(memory.len());
                if share.longest.is_none_or(|(longest, _)| memory.len() > longest) {
                    share.longest = Some((memory.len(), name));
                }
            }
        }
        for (origin, share) in shares {
            if share.fetches <= shards * fetches_max / 2 && share.bytes <= max / 2 {
                continue;
            }
            if origin == *newcomer {
                self.state().receives.has_spared(newcomer);
            } else {
                in_vain.extend(share.longest.map(|(_, name)| name));
            }
        }
        match oldest {
            Some((_, name)) => in_vain.push(name),
            None => self.class.all().for_each(|s| s.state().receives.no_fetch_is_old(now)),
        }
        for op in in_vain {
            let Some(shard) = self.class.get(op.shard()) else { continue };
            if let Some(Op::Fetch(fetch)) = shard.state().ops.get_mut(op) {
                fetch.gives_way = true;
            }
            shard.endpoint.cancel(op.part(Role::Fetch));
        }
    }

    fn start_fetch(
        &self,
        request: IncomingRequest,
        tag: Tag,
        remote: RemoteMem,
        memory: LocalMem,
    ) -> Option<Event<T>> {
        let (origin, held) = (request.origin.clone(), memory.len());
        let begun = self.state().receives.begin_fetch();
        let number = match begun {
            Ok(number) => number,
            Err(max) => {
                self.make_room(&origin);
                return self.not_fetched(request, tag, held, HgError::Fetches { max });
            }
        };
        let fetch =
            ArgumentsFetch { request, tag, memory: memory.clone(), number, gives_way: false };
        let admitted = self.state().admit(Op::Fetch(fetch)).map_err(|refused| *refused);
        let (error, fetch) = match admitted {
            Err((error, fetch)) => (error, Some(fetch)),
            Ok(op) => match self.get(op, &origin, remote, memory) {
                Ok(()) => return None,
                Err(error) => {
                    let gone = self.state().ops.remove(op);
                    (error.into(), gone)
                }
            },
        };
        self.state().receives.end_fetch();
        let Some(Op::Fetch(fetch)) = fetch else { return None };
        self.not_fetched(fetch.request, tag, held, error)
    }

    /// Refuses a request whose arguments are not here, and for which `held` bytes were to be. Tells
    /// a one-way origin that it can free them; others learn it from the response.
    fn not_fetched(
        &self,
        request: IncomingRequest,
        tag: Tag,
        held: u64,
        error: HgError,
    ) -> Option<Event<T>> {
        let IncomingRequest { header, origin, .. } = request;
        if header.no_response {
            self.send_ack(&origin, tag, Ack::Done);
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
        self.class.held.release(held);
        self.reject(Some(header), &origin, tag, code, &error);
        None
    }

    /// The arguments of a request are here, or will not be.
    fn fetched_request(
        &self,
        request: IncomingRequest,
        tag: Tag,
        held: u64,
        bytes: Result<Vec<u8>, HgError>,
    ) -> Option<Event<T>> {
        let header = request.header;
        match bytes.and_then(|bytes| Ok(header.verify(&bytes).map(|()| bytes)?)) {
            Ok(bytes) => {
                if header.no_response {
                    self.send_ack(&request.origin, tag, Ack::Done);
                }
                let payload = Payload::Overflow(bytes);
                Some(Event::Request(IncomingRequest { payload, ..request }))
            }
            Err(error) => self.not_fetched(request, tag, held, error),
        }
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
        self.state().receives.end_fetch();
        let ArgumentsFetch { request, tag, memory, .. } = fetch;
        let held = memory.len();
        let bytes = result.and_then(|()| into_vec(memory)).map_err(HgError::from);
        self.fetched_request(request, tag, held, bytes)
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
        // It is dropping the last one in this moment, or keeps it, see `LocalMem::revoke`.
        None => receiver.recv().map(vec_of).map_err(|_| {
            let what = format!("{len} bytes that were fetched do not come back from the network");
            na::Error::io(what, std::io::ErrorKind::Other)
        }),
    }
}
