//! Calls: the origin's side of an RPC.
//!
//! A request that the network takes at once is sent and the receive of its response posted in one
//! operation ([`na::Endpoint::call_now`]); otherwise the receive comes first. From then on a call
//! waits for its parts, in whatever order they end:
//!
//! | what happens | what the call does |
//! |---|---|
//! | a response arrives | ends with it, at once |
//! | a response arrives that overflowed | fetches the result, then ends and acknowledges |
//! | the send fails | cancels the receive; ends with the send's error |
//! | the receive fails | waits for the send to end, whose error may know that nothing was sent |
//! | it is canceled | ends at once; unless nothing was sent, its receive waits for the late response, to acknowledge it |
//!
//! A one-way call ends when it is sent and, if it overflowed, acknowledged. Arguments that
//! overflowed are exposed until then, or until the response.

use std::time::Instant;

use na::lock::BiasedGuard;
use na::{Access, Addr, LocalMem, Memory, MsgBuf, Refused, Tag};

use crate::core::cancel::Ended;
use crate::core::context::{Core, Op, State};
use crate::core::watch::WATCH;
use crate::memory::buffers::Payload;
use crate::memory::slots::ExposedPayload;
use crate::memory::spare;
use crate::ops::slab::{CONTEXTS_MAX, OpRef, Role};
use crate::origin::ask_build::{Asking, LONGER_BY};
use crate::overflow::results::Kept;
use crate::proc::Written;
use crate::progress::poll::{Event, RequestExtension};
use crate::wire::checksum::PayloadSum;
use crate::wire::format::Build;
use crate::wire::header::RequestHeader;
use crate::wire::{self, Unencoded};
use crate::{BulkDesc, Extension, HgError, ProcError, Response, RpcId, TraceParent, Writer};

/// The options of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ForwardOptions {
    /// The target is not to answer; the call ends when the request was sent. Default: no, unless
    /// the RPC is registered so.
    pub no_response: bool,
    /// The context that shall handle the request, below 128. One that the target does not have is
    /// taken for context 0. Default: none in particular, which is context 0.
    ///
    /// Counterpart: `HG_Set_target_id`.
    pub target_context: Option<u8>,
    /// Call although the RPC need not be registered here: for layers whose types say what a
    /// registration would. Default: no.
    pub undeclared: bool,
    /// When the caller gives up. The target is told how long that is from now, if it is one of our
    /// own, and sees how much of it the request spends on its way; nothing ends the call here.
    /// Default: nothing is said.
    pub deadline: Option<Instant>,
    /// The trace that this call is part of, across processes; for targets of our own. Default: none
    /// is sent.
    pub trace: Option<TraceParent>,
}

impl ForwardOptions {
    const DEFAULT: Self = Self {
        no_response: false,
        target_context: None,
        undeclared: false,
        deadline: None,
        trace: None,
    };

    /// A call that is not to be answered.
    pub const fn one_way() -> Self {
        Self { no_response: true, ..Self::DEFAULT }
    }

    /// A call to a certain context of the target.
    pub const fn to_context(id: u8) -> Self {
        Self { target_context: Some(id), ..Self::DEFAULT }
    }

    /// Makes it a call of an RPC that need not be registered here.
    pub const fn undeclared(self) -> Self {
        Self { undeclared: true, ..self }
    }
}

/// A call in flight.
#[derive(Debug)]
pub(crate) struct Forward<T> {
    /// `None` once it went back.
    token: Option<T>,
    /// Gives the tag.
    pub(crate) number: u64,
    pub(crate) target: Option<u8>,
    one_way: bool,
    /// The target of a call whose message the network did not take at once.
    to: Option<Addr>,
    /// Parts in flight.
    sending: bool,
    pub(crate) receiving: bool,
    pub(crate) fetching: Option<Box<Fetching>>,
    outcome: Option<Result<Response, HgError>>,
    pub(crate) canceled: bool,
    /// The arguments, while the target may fetch them.
    exposed: Option<Box<ExposedPayload>>,
    /// How its request is written, where peers are asked for that.
    pub(crate) build: Build,
    pub(crate) asking: Option<Box<Asking>>,
}

/// A result that is being fetched, and whom to tell when it is here.
#[derive(Debug)]
pub(crate) struct Fetching {
    pub(crate) memory: LocalMem,
    pub(crate) sum: Option<PayloadSum>,
    pub(crate) peer: Addr,
    pub(crate) tag: Tag,
}

impl<T> Forward<T> {
    #[inline]
    fn new(token: T, number: u64, target: Option<u8>, one_way: bool) -> Self {
        Self {
            token: Some(token),
            number,
            target,
            one_way,
            to: None,
            sending: false,
            receiving: !one_way,
            fetching: None,
            outcome: None,
            canceled: false,
            exposed: None,
            build: Build::Plain,
            asking: None,
        }
    }

    fn fail(&mut self, error: HgError) {
        self.outcome.get_or_insert(Err(error));
    }

    /// The question comes first; its answer is received in any case.
    pub(crate) fn ask(&mut self, asking: Asking) {
        self.receiving = true;
        self.asking = Some(Box::new(asking));
    }

    /// The question was answered. A call that has ended meanwhile asks no more.
    pub(crate) fn told(&mut self, build: Build) {
        self.receiving = false;
        match &mut self.asking {
            Some(asking) if self.token.is_some() && self.outcome.is_none() => {
                asking.set_told(build);
            }
            _ => self.asking = None,
        }
    }

    /// Returns whether its question was answered and has left: its message is next.
    pub(crate) fn may_go_on(&self) -> bool {
        let told = self.asking.as_ref().and_then(|asking| asking.build());
        told.is_some() && !self.sending && self.outcome.is_none() && self.token.is_some()
    }

    /// Takes the request of a call that has asked first, if it is the turn of the request to be
    /// sent.
    pub(crate) fn take_told(&mut self) -> Option<Box<Asking>> {
        let asking = if self.may_go_on() { self.asking.take() } else { None }?;
        (self.build, self.receiving) = (asking.build()?, asking.is_received());
        Some(asking)
    }

    /// The send ended. Returns what is to be canceled because of that.
    pub(crate) fn sent(&mut self, result: Result<(), na::Error>) -> Option<Role> {
        self.sending = false;
        // A call that waits for its response only must own nothing, see `take_plain`.
        self.to = None;
        let error = result.err()?;
        match &self.outcome {
            // What the receive said is less precise.
            Some(Err(_)) if error.never_arrived() => self.outcome = Some(Err(error.into())),
            _ => self.fail(error.into()),
        }
        self.receiving.then_some(self.reply_role())
    }

    /// Whom it calls, if its message is under way and may be sent in another way.
    pub(crate) fn in_sending(&self) -> Option<&Addr> {
        self.to.as_ref().filter(|_| self.sending && !self.canceled && self.exposed.is_none())
    }

    /// The arguments are exposed, instead of being in the message.
    pub(crate) fn has_overflowed(&mut self, exposed: ExposedPayload) {
        self.exposed = Some(Box::new(exposed));
        self.receiving = true;
    }

    /// The acknowledgement of a one-way call came, or will not.
    pub(crate) fn acknowledged(&mut self, result: Result<(), na::Error>) {
        self.receiving = false;
        match result {
            Ok(()) => self.release(),
            Err(error) => self.fail(error.into()),
        }
    }

    /// The target has said that it is done with the arguments. They go with the call, which is
    /// dropped outside of the lock.
    pub(crate) fn release(&mut self) {
        if let Some(exposed) = &mut self.exposed {
            exposed.done();
        }
    }

    /// The receive of the response ended.
    pub(crate) fn received(&mut self, result: Result<Response, HgError>) {
        self.receiving = false;
        (self.fetching, self.asking) = (None, None);
        // The response proves that the target is done with the arguments.
        if matches!(result, Ok(_) | Err(HgError::Remote(_) | HgError::Foreign(_))) {
            self.release();
        }
        self.outcome.get_or_insert(result);
    }

    /// The result was fetched, or will not be.
    pub(crate) fn fetched(&mut self, result: Result<Response, HgError>) {
        self.fetching = None;
        self.outcome.get_or_insert(result);
    }

    /// Takes the token of a call that waits for its response and for nothing else, and owns nothing
    /// more: it is not dropped.
    #[inline]
    pub(crate) fn take_plain(&mut self) -> Option<T> {
        let plain = self.receiving
            && !self.one_way
            && !self.sending
            && self.to.is_none()
            && !self.canceled
            && self.fetching.is_none()
            && self.outcome.is_none()
            && self.exposed.is_none()
            && self.asking.is_none();
        if plain { self.token.take() } else { None }
    }

    /// Returns the role of the receive of the response, or of the receive that stands for it.
    pub(crate) fn reply_role(&self) -> Role {
        if self.one_way && self.asking.is_none() { Role::Ack } else { Role::Reply }
    }

    pub(crate) fn is_canceled(&self) -> bool {
        self.canceled
    }

    /// Gives up. Returns the parts to cancel, and what to drop after the lock; the receive is not
    /// among the parts, see [`State::give_up`](crate::core::context::State).
    /// `asks_owners`: arguments may be revoked while the target fetches them; else they stay, with
    /// the receive, until the late response, or the end of the peer, unless nothing was sent.
    pub(crate) fn cancel(&mut self, asks_owners: bool) -> Ended {
        self.canceled = true;
        self.fail(HgError::Canceled);
        let revoked = if asks_owners { self.exposed.take() } else { None };
        let parts = [(self.sending, Role::Send), (self.fetching.is_some(), Role::Fetch)];
        Ended::of(parts, revoked)
    }

    /// Counts the arguments that stay after a [cancel](Self::cancel), for as long as they do.
    pub(crate) fn count_arguments(&mut self, kept: &Kept) {
        if let Some(exposed) = &mut self.exposed {
            exposed.count(kept);
        }
    }

    /// Those are about to go, and not counted any more; whether there were some.
    pub(crate) fn uncount_arguments(&mut self) -> bool {
        self.exposed.as_mut().is_some_and(|exposed| exposed.uncount())
    }

    /// Returns the event that is to be told, if any, and whether the call is over.
    #[inline]
    pub(crate) fn settle(&mut self) -> (Option<Event<T>>, bool) {
        let flying = self.sending
            || self.receiving
            || self.fetching.is_some()
            || (self.asking.is_some() && self.outcome.is_none());
        if self.one_way && !flying && self.token.is_some() {
            self.outcome.get_or_insert(Ok(Response::empty()));
        }
        let due = match &self.outcome {
            Some(Ok(_)) => true,
            Some(Err(_)) => self.canceled || !flying,
            None => false,
        };
        if !due {
            return (None, !flying);
        }
        let ended = self.token.take().zip(self.outcome.take());
        (ended.map(|(token, result)| Event::Response { token, result }), !flying)
    }
}

impl<T> Core<T> {
    /// Calls RPC `id` at `to`. The bytes that `encode` writes follow Mercury's headers; they go
    /// straight into the send buffer. The call ends through
    /// [`Sink::response`](crate::Sink::response), once, with `token`.
    ///
    /// # Errors
    ///
    /// When nothing was sent, [`HgError::NotRegistered`] among them; `token` comes back here and
    /// not through the sink.
    ///
    /// Counterpart: `HG_Forward`.
    pub fn forward(
        &self,
        to: &Addr,
        id: RpcId,
        options: ForwardOptions,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<OpRef, Box<(HgError, T)>> {
        let local = self.options.loopback && *to == self.self_addr;
        let Started { op, tag, no_response } = self.admit_call(id, options, local, token)?;
        let mut admitted = Admitted { core: self, op, armed: true };
        let known =
            if self.asks && !local { self.format_for(to) } else { Some(self.accept.format) };
        let format = known.unwrap_or_default();
        let header =
            RequestHeader { no_response, cookie: self.id, ..RequestHeader::in_format(id, format) };
        let mut max = self.limits.unexpected_bytes_max;
        let mut room = max;
        if self.asks {
            self.note_build(op, format.build());
            // Headers may be longer than `options` say, or may have to grow.
            room -= LONGER_BY;
            max = if known.is_none() { room } else { max };
        }
        let buf = self.buffers.take();
        let says_more = options.deadline.is_some() || options.trace.is_some();
        // Apart, and neither put together nor moved: what was just written in parts has to be
        // waited for when it is read as a whole.
        let mut extension_bytes = 0;
        let encoded = if says_more && !local {
            let beside = (options, &mut extension_bytes);
            self.encode_extended(to, header, beside, buf, (max, room), encode)
        } else {
            wire::encode_request(header, buf, max, self.writer_limits(room), encode)
        };
        admitted.armed = false;
        let written = match encoded {
            // Nearly always, and one word, where the whole would be moved.
            Ok(Written::Fits(buf)) if !local && known.is_some() => {
                return self.launch(to, op, tag, (!no_response).then_some(Role::Reply), buf);
            }
            Ok(Written::Fits(buf)) if !local => {
                let receive = (!no_response).then_some(Role::Reply);
                return self.ask_and_launch(to, op, tag, receive, buf);
            }
            Ok(written) => written,
            Err(unencoded) => return self.withdraw(op, true, self.unencoded(unencoded)),
        };
        if local {
            let ForwardOptions { deadline, trace, target_context, .. } = options;
            let beside =
                says_more.then(|| Box::new(RequestExtension { deadline, trace, place: None }));
            return Ok(self.hand_to_ourselves(op, header, target_context, written, beside));
        }
        let Written::Overflow(buf, bytes) = written else { unreachable!("was launched") };
        let header = RequestHeader { extension_bytes, ..header };
        match self.expose_overflow(to, header.payload_at(), buf, bytes, max) {
            Ok((buf, exposed)) => {
                self.note_overflow(op, exposed);
                let receive = Some(if no_response { Role::Ack } else { Role::Reply });
                match known {
                    Some(_) => self.launch(to, op, tag, receive, buf),
                    None => self.ask_and_launch(to, op, tag, receive, buf),
                }
            }
            Err(error) => self.withdraw(op, true, error),
        }
    }

    /// Encodes a request with its extension, if the peer understands it, into a message of at most
    /// `max` bytes. `room` of these are left for headers as long as the options tell, and the
    /// payload.
    #[inline(never)]
    fn encode_extended(
        &self,
        to: &Addr,
        header: RequestHeader,
        (options, extension_bytes): (ForwardOptions, &mut u16),
        buf: MsgBuf,
        (max, room): (usize, usize),
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
    ) -> Result<Written, Unencoded> {
        let ForwardOptions { deadline, trace, .. } = options;
        let extension = if self.endpoint.carries_extensions(to) {
            // What follows counts as waiting: encoding, and this side's own queues.
            let now = Instant::now();
            let said =
                |at: Instant| (at.saturating_duration_since(now), self.class.clock.stamp(now));
            let (remaining, sent) = deadline.map(said).unzip();
            Extension { remaining, sent, trace, ..Extension::default() }
        } else {
            Extension::default()
        };
        *extension_bytes = extension.bytes(header.format) as u16;
        let header = RequestHeader { extension_bytes: *extension_bytes, ..header };
        let limits = self.writer_limits(room.saturating_sub(usize::from(*extension_bytes)));
        wire::encode_extended_request(header, &extension, buf, max, limits, encode)
    }

    /// Makes room for a call.
    #[inline]
    fn admit_call(
        &self,
        id: RpcId,
        options: ForwardOptions,
        local: bool,
        token: T,
    ) -> Result<Started, Box<(HgError, T)>> {
        let ForwardOptions { mut no_response, target_context: target, undeclared, .. } = options;
        if let Some(target) = target.filter(|id| usize::from(*id) >= CONTEXTS_MAX) {
            let text = format!("context {target}: contexts have numbers below {CONTEXTS_MAX}");
            return Err(Box::new((HgError::Na(na::Error::InvalidArgument(text)), token)));
        }
        let mut state = self.state();
        if !undeclared {
            match state.seen.get(&self.class.registry, id) {
                Some(there) => no_response |= there.is_no_response(),
                None => return Err(Box::new((HgError::NotRegistered(id), token))),
            }
        }
        if let Err(error) = state.may_admit() {
            return Err(Box::new((error, token)));
        }
        let (op, tag) = if local {
            (state.ops.insert(Op::Local(token)), Tag(0))
        } else {
            let mut number = state.number(target.is_some());
            if number.as_ref().is_ok_and(|number| self.space.tag(*number, target) == WATCH) {
                number = state.number(target.is_some());
            }
            let number = match number {
                Ok(number) => number,
                Err(error) => return Err(Box::new((error, token))),
            };
            let call = Forward::new(token, number, target, no_response);
            (state.ops.insert(Op::Forward(call)), self.space.tag(number, target))
        };
        state.tokens += 1;
        state.hot.rpc_req_sent += 1;
        Ok(Started { op, tag, no_response })
    }

    /// How the request of a call is written, where peers are asked for that.
    #[cold]
    fn note_build(&self, op: OpRef, build: Build) {
        if let Some(Op::Forward(call)) = self.state().ops.get_mut(op) {
            call.build = build;
        }
    }

    /// The arguments of a call did not fit, and are exposed for the target.
    fn note_overflow(&self, op: OpRef, exposed: ExposedPayload) {
        self.counts.req_extra.bump();
        let mut state = self.state();
        if let Some(Op::Forward(call)) = state.ops.get_mut(op) {
            call.has_overflowed(exposed);
        }
    }

    /// Starts the parts of a call: `receive` is what its receive is, if it has one.
    #[inline]
    pub(crate) fn launch(
        &self,
        to: &Addr,
        op: OpRef,
        tag: Tag,
        receive: Option<Role>,
        buf: MsgBuf,
    ) -> Result<OpRef, Box<(HgError, T)>> {
        if receive != Some(Role::Reply) {
            return self.launch_in_turn(to, op, tag, receive, buf);
        }
        match self.endpoint.call_now(op.part(Role::Reply), to, tag, buf) {
            Ok(()) => Ok(op),
            Err(buf) => self.launch_in_turn(to, op, tag, receive, buf),
        }
    }

    /// Launches the two one after the other: the receive, then the send. In this order the receive
    /// ends with the peer, also with one that ends right after the send.
    #[inline(never)]
    fn launch_in_turn(
        &self,
        to: &Addr,
        op: OpRef,
        tag: Tag,
        receive: Option<Role>,
        buf: MsgBuf,
    ) -> Result<OpRef, Box<(HgError, T)>> {
        if let Some(role) = receive {
            let reply = self.buffers.take();
            if let Err(refused) = self.endpoint.recv_expected(op.part(role), to, tag, reply) {
                self.buffers.put(refused.buf);
                self.buffers.put(buf);
                return self.withdraw(op, true, refused.error.into());
            }
        }
        if self.endpoint.send_unexpected_now(to, tag, buf.as_slice()) {
            self.buffers.put(buf);
            if receive != Some(Role::Reply) {
                self.one_way_sent(op);
            }
            return Ok(op);
        }
        if !self.begin_send(op, to) {
            self.buffers.put(buf);
            return Ok(op);
        }
        let sent = self.endpoint.send_unexpected(op.part(Role::Send), to, tag, buf);
        let Err(Refused { error, buf }) = sent else { return Ok(op) };
        if self.sends_otherwise(op, &error, buf) {
            return Ok(op);
        }
        let withdrawn = self.withdraw(op, false, error.into());
        if let Some(role) = receive {
            self.endpoint.cancel(op.part(role));
        }
        withdrawn
    }

    /// The send is about to start; `false`: the call is over, because its receive has failed.
    fn begin_send(&self, op: OpRef, to: &Addr) -> bool {
        let mut state = self.state();
        let Some(Op::Forward(call)) = state.ops.get_mut(op) else { return false };
        (call.sending, call.to) = (true, Some(to.clone()));
        true
    }

    /// A one-way call was sent at once.
    fn one_way_sent(&self, op: OpRef) {
        self.settle_and_queue(self.state(), op);
    }

    /// After a step of an operation outside of trigger: what is to be told waits for it.
    fn settle_and_queue(&self, mut state: BiasedGuard<'_, State<T>>, op: OpRef) {
        let (event, gone) = state.settle(op);
        if let Some(event) = event {
            self.queue(&mut state, event);
        }
        drop(state);
        drop(gone);
    }

    /// A call could not be encoded, or a part of it was refused, so nothing was sent: gives the
    /// token back.
    fn withdraw(
        &self,
        op: OpRef,
        not_receiving: bool,
        error: HgError,
    ) -> Result<OpRef, Box<(HgError, T)>> {
        let mut state = self.state();
        let (token, gone) = match state.ops.get_mut(op) {
            Some(Op::Forward(call)) => {
                call.sending = false;
                call.receiving &= !not_receiving;
                let token = call.token.take();
                // An outcome that nobody can be told any more.
                (call.outcome, call.asking) = (None, None);
                (token, state.settle(op).1)
            }
            Some(Op::Local(_)) => match state.ops.remove(op) {
                Some(Op::Local(token)) => (Some(token), None),
                _ => (None, None),
            },
            _ => return Ok(op),
        };
        let Some(token) = token else { return Ok(op) };
        state.tokens -= 1;
        state.hot.rpc_req_sent -= 1;
        drop(state);
        drop(gone);
        Err(Box::new((error, token)))
    }

    /// A payload that does not leave the process.
    pub(crate) fn local_payload(&self, start: usize, written: Written) -> Payload {
        match written {
            Written::Fits(buf) => Payload::Message(buf, start),
            Written::Overflow(buf, bytes) => {
                self.buffers.put(buf);
                Payload::Overflow(bytes)
            }
        }
    }

    /// Keeps the buffer of a message that could not be encoded.
    pub(crate) fn unencoded(&self, Unencoded { error, buf }: Unencoded) -> HgError {
        self.buffers.put(buf);
        error.into()
    }

    /// Finishes a message: exposes what did not fit, and describes it there instead.
    pub(crate) fn expose_overflow(
        &self,
        peer: &Addr,
        start: usize,
        buf: MsgBuf,
        bytes: Vec<u8>,
        message_max: usize,
    ) -> Result<(MsgBuf, ExposedPayload), HgError> {
        let len = bytes.len() as u64;
        let (memory, exposed) = match self.expose_bytes(peer, bytes) {
            Ok(exposed) => exposed,
            Err(error) => {
                self.buffers.put(buf);
                return Err(error.into());
            }
        };
        let access = u32::from(Access::ReadOnly.bits());
        let parts = self.endpoint.mem_parts(&memory).filter(|parts| !parts.is_empty());
        let descriptor = match &parts {
            Some(parts) => BulkDesc::of_parts(parts, access, None).to_bytes(),
            None => {
                let handle = self.endpoint.mem_to_bytes(&memory);
                BulkDesc::opaque(len, access, &handle).to_bytes()
            }
        };
        wire::finish_overflow_at(start, buf, message_max, &descriptor)
            .map(|buf| (buf, exposed))
            .map_err(|unencoded| self.unencoded(unencoded))
    }

    /// Lets `peer` fetch a payload: from a slot, or from where it is.
    fn expose_bytes(
        &self,
        peer: &Addr,
        bytes: Vec<u8>,
    ) -> Result<(LocalMem, ExposedPayload), na::Error> {
        if let Some(exposed) = self.slots.expose(peer, &bytes)
            && let Some(memory) = exposed.memory().cloned()
        {
            spare::give(bytes);
            return Ok((memory, exposed));
        }
        let memory = Memory::from_vec_with(bytes, spare::give);
        let memory = self.endpoint.register(memory, Access::ReadOnly)?;
        Ok((memory.clone(), ExposedPayload::once(memory)))
    }
}

/// A call that was admitted.
struct Started {
    op: OpRef,
    tag: Tag,
    no_response: bool,
}

/// Withdraws a call whose arguments panic while they are encoded.
struct Admitted<'a, T> {
    core: &'a Core<T>,
    op: OpRef,
    armed: bool,
}

impl<T> Drop for Admitted<'_, T> {
    fn drop(&mut self) {
        if self.armed {
            let _ = self.core.withdraw(self.op, true, HgError::Canceled);
        }
    }
}
