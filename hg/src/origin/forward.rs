//! Calls: the origin's side of an RPC, from the arguments to the message, and from the message that
//! answers to the end of the call.
//!
//! A request that the network takes at once is sent and the receive of its response posted in one
//! operation ([`na::Endpoint::call_now`]); otherwise the receive comes first. From then on a call
//! waits for its parts: `ops/call.rs` says what it does about each. [`Core::on_response`] takes the
//! response.

use std::time::Instant;

use na::{Addr, Arrival, MsgBuf, Refused, Tag};

use crate::core::builds::LONGER_BY;
use crate::core::state::Op;
use crate::core::watch::WATCH;
use crate::memory::{ExposedPayload, Payload};
use crate::ops::{Call, Event, RequestExtension, Role, SHARDS_MAX};
use crate::origin::introduce::Standing;
use crate::proc::Written;
use crate::wire::extension::Proof;
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::wire::introduction::NOT_PROVEN;
use crate::wire::{Body, Unencoded};
use crate::{
    Build, Core, Extension, Format, HgError, OnBehalfOf, OpRef, ProcError, Response, ReturnCode,
    RpcId, TraceParent, Writer, wire,
};

/// The options of one call.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use hg::ForwardOptions;
///
/// let mut options = ForwardOptions::to_context(3).undeclared();
/// options.deadline = Some(Instant::now() + Duration::from_secs(1));
/// assert_eq!((options.target_context, options.no_response), (Some(3), false));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ForwardOptions {
    /// The target is not to answer; the call ends when the request was sent. Default: no, unless
    /// the RPC is registered so.
    pub no_response: bool,
    /// The shard of the target that the request is for, below 128; C programs take it for the
    /// number of a context. It is said in the tag, and changes nothing about the way of the
    /// request: that is a matter of the address ([`na::Endpoint::lookup_shard`]). A call to
    /// ourselves goes to that shard, if it is there. Default: none in particular.
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

    /// A call to a certain shard of the target.
    pub const fn to_context(id: u8) -> Self {
        Self { target_context: Some(id), ..Self::DEFAULT }
    }

    /// Makes it a call of an RPC that need not be registered here.
    pub const fn undeclared(self) -> Self {
        Self { undeclared: true, ..self }
    }
}

/// The facts that a request says beside its header: its options, on whose behalf it is made,
/// whether it proves something. The last is where the length of the extension goes.
type Beside<'a> = (ForwardOptions, Option<&'a OnBehalfOf>, bool, &'a mut u16);

/// The error of a call on behalf of somebody.
pub(crate) fn not_told(to: &Addr) -> HgError {
    let text = format!(
        "{to} may be a C program, which cannot be told on whose behalf a call is made, and would \
         take it for one of our own"
    );
    HgError::Na(na::Error::InvalidArgument(text))
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
    #[inline]
    pub fn forward(
        &self,
        to: &Addr,
        id: RpcId,
        options: ForwardOptions,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<OpRef, Box<(HgError, T)>> {
        self.forward_on_behalf(to, id, (options, None), encode, token)
    }

    /// As [`forward`](Self::forward), on behalf of somebody, of whom the target is told.
    ///
    /// # Errors
    ///
    /// As `forward`, and [`na::Error::InvalidArgument`] for a target that may not understand it.
    #[inline]
    pub fn forward_on_behalf(
        &self,
        to: &Addr,
        id: RpcId,
        (options, on_behalf_of): (ForwardOptions, Option<&OnBehalfOf>),
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<OpRef, Box<(HgError, T)>> {
        if on_behalf_of.is_some() && !self.may_understand(to) {
            return Err(Box::new((not_told(to), token)));
        }
        let local = self.options.loopback && *to == self.self_addr;
        let (op, tag, no_response) = self.admit_call(id, options, local, token)?;
        let mut admitted = Admitted { core: self, op, armed: true };
        let asks = self.asks();
        let (standing, known) = self.standing_and_format(to, local, asks);
        // Peers are asked for their build where we have none of our own.
        let format = known.unwrap_or(self.accept.format);
        let header =
            RequestHeader { no_response, cookie: self.id, ..RequestHeader::in_format(id, format) };
        let mut max = self.limits.unexpected_bytes_max;
        let mut room = max;
        if asks {
            self.note_build(op, format.build());
            // Headers may be longer than `options` say, or may have to grow.
            room -= LONGER_BY;
            max = if known.is_none() { room } else { max };
        }
        let buf = self.buffers.take();
        let is_own = !self.options.loopback && *to == self.self_addr;
        let is_timed = options.deadline.is_some() || options.trace.is_some();
        let is_proven = standing.is_proven();
        let says_more = is_timed || is_own || is_proven || on_behalf_of.is_some();
        // Apart, and neither put together nor moved: what was just written in parts has to be
        // waited for when it is read as a whole.
        let mut extension_bytes = 0;
        let encoded = if says_more && !local {
            let beside = (options, on_behalf_of, is_proven, &mut extension_bytes);
            self.encode_extended(to, header, beside, buf, (max, room), encode)
        } else {
            wire::encode_request(header, buf, max, self.writer_limits(room), encode)
        };
        admitted.armed = false;
        let way = (tag, &standing, known.is_some());
        let written = match encoded {
            // Nearly always, and one word, where the whole would be moved.
            Ok(Written::Fits(buf)) if !local => {
                let receive = (!no_response).then_some(Role::Response);
                return self.send_call(to, op, way, receive, buf);
            }
            Ok(written) => written,
            Err(unencoded) => return self.withdraw(op, true, self.unencoded(unencoded)),
        };
        if local {
            let ForwardOptions { deadline, trace, target_context, .. } = options;
            let beside = says_more.then(|| {
                let mut beside = RequestExtension::new(deadline, trace);
                beside.on_behalf_of = on_behalf_of.map(|who| Box::new(who.clone()));
                beside
            });
            return Ok(self.hand_to_ourselves(op, header, target_context, written, beside));
        }
        let Written::Overflow(buf, bytes) = written else { unreachable!("was launched") };
        let header = RequestHeader { extension_bytes, ..header };
        match self.expose_overflow(to, header.payload_at(), buf, bytes, max) {
            Ok((buf, exposed)) => {
                self.note_overflow(op, exposed);
                let receive = Some(if no_response { Role::Ack } else { Role::Response });
                self.send_call(to, op, way, receive, buf)
            }
            Err(error) => self.withdraw(op, true, error),
        }
    }

    /// Returns whether a peer understands what is said beside the header, or is to prove that it is
    /// one of ours.
    fn may_understand(&self, to: &Addr) -> bool {
        let is_local = self.options.loopback && *to == self.self_addr;
        let proves = self.options.membership.is_some() && !self.endpoint.knows_principals(to);
        is_local || proves || self.endpoint.carries_extensions(to)
    }

    /// Returns where we stand with the target of a call, and in which format that is written;
    /// `None`: that is to be asked.
    #[inline]
    fn standing_and_format(
        &self,
        to: &Addr,
        local: bool,
        asks: bool,
    ) -> (Standing, Option<Format>) {
        let standing = match self.options.membership.is_some() && !local {
            false => Standing::Plain,
            true => self.standing_with(to),
        };
        let known = match &standing {
            Standing::Unknown => None,
            Standing::Known(session) if asks && !self.endpoint.carries_extensions(to) => {
                Some(Format::from(session.build))
            }
            _ if asks && !local => self.format_for(to),
            _ => Some(self.accept.format),
        };
        (standing, known)
    }

    /// Sends the message of a call: with its proof, if there is a session, and behind a question,
    /// if something is to be known before.
    #[inline]
    fn send_call(
        &self,
        to: &Addr,
        op: OpRef,
        (tag, standing, is_known): (Tag, &Standing, bool),
        receive: Option<Role>,
        mut buf: MsgBuf,
    ) -> Result<OpRef, Box<(HgError, T)>> {
        if let Standing::Known(session) = standing {
            self.seal(session, &mut buf);
        }
        match is_known {
            true => self.launch(to, op, tag, receive, buf),
            false => self.ask_and_launch(to, op, (tag, standing.is_proven()), receive, buf),
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
        (options, on_behalf_of, is_proven, extension_bytes): Beside<'_>,
        buf: MsgBuf,
        (max, room): (usize, usize),
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
    ) -> Result<Written, Unencoded> {
        let ForwardOptions { deadline, trace, .. } = options;
        // One that proves nothing after all gets none, see `introduce.rs`.
        let extension = if is_proven || self.endpoint.carries_extensions(to) {
            // What follows counts as waiting: encoding, and this side's own queues.
            let now = Instant::now();
            let said =
                |at: Instant| (at.saturating_duration_since(now), self.class.clock.stamp(now));
            let (remaining, sent) = deadline.map(said).unzip();
            let is_own = !self.options.loopback && *to == self.self_addr;
            let own = if is_own { self.class.own_secret() } else { None };
            let proof = is_proven.then(Proof::default);
            let on_behalf_of = on_behalf_of.map(|who| Box::new(who.clone()));
            let more = Extension { own, on_behalf_of, proof, ..Extension::default() };
            Extension { remaining, sent, trace, ..more }
        } else {
            Extension::default()
        };
        *extension_bytes = extension.bytes(header.format) as u16;
        let header = RequestHeader { extension_bytes: *extension_bytes, ..header };
        let limits = self.writer_limits(room.saturating_sub(usize::from(*extension_bytes)));
        wire::encode_extended_request(header, &extension, buf, max, limits, encode)
    }

    /// Makes room for a call. Returns its name, its tag, and whether it is one-way.
    #[inline]
    fn admit_call(
        &self,
        id: RpcId,
        options: ForwardOptions,
        local: bool,
        token: T,
    ) -> Result<(OpRef, Tag, bool), Box<(HgError, T)>> {
        let ForwardOptions { mut no_response, target_context: target, undeclared, .. } = options;
        if let Some(target) = target.filter(|id| usize::from(*id) >= SHARDS_MAX) {
            let text = format!("shard {target}: shards have numbers below {SHARDS_MAX}");
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
            let call = Call::new(token, number, target, no_response);
            (state.ops.insert(Op::Call(call)), self.space.tag(number, target))
        };
        state.tokens += 1;
        state.hot.rpc_req_sent += 1;
        Ok((op, tag, no_response))
    }

    /// How the request of a call is written, where peers are asked for that.
    #[cold]
    fn note_build(&self, op: OpRef, build: Build) {
        if let Some(Op::Call(call)) = self.state().ops.get_mut(op) {
            call.build = build;
        }
    }

    /// The arguments of a call did not fit, and are exposed for the target.
    fn note_overflow(&self, op: OpRef, exposed: ExposedPayload) {
        self.counts.req_extra.bump();
        let mut state = self.state();
        if let Some(Op::Call(call)) = state.ops.get_mut(op) {
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
        if receive != Some(Role::Response) {
            return self.launch_in_turn(to, op, tag, receive, buf);
        }
        match self.endpoint.call_now(op.part(Role::Response), to, tag, buf) {
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
            let response = self.buffers.take();
            if let Err(refused) = self.endpoint.recv_expected(op.part(role), to, tag, response) {
                self.buffers.put(refused.buf);
                self.buffers.put(buf);
                return self.withdraw(op, true, refused.error.into());
            }
        }
        if self.endpoint.send_unexpected_now(to, tag, buf.as_slice()) {
            self.buffers.put(buf);
            if receive != Some(Role::Response) {
                self.settle_and_queue(self.state(), op);
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
        let Some(Op::Call(call)) = state.ops.get_mut(op) else { return false };
        call.begin_send(to);
        true
    }

    /// A call could not be encoded, or a part of it was refused, so nothing was sent: gives the
    /// token back.
    pub(crate) fn withdraw(
        &self,
        op: OpRef,
        not_receiving: bool,
        error: HgError,
    ) -> Result<OpRef, Box<(HgError, T)>> {
        let mut state = self.state();
        let (token, gone) = match state.ops.get_mut(op) {
            Some(Op::Call(call)) => {
                let token = call.withdraw(not_receiving);
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

impl<T> Core<T> {
    /// A response arrived. The end of the call is told at once, unless the call is a special one.
    #[inline]
    pub(crate) fn on_response(
        &self,
        op: OpRef,
        buf: MsgBuf,
        arrival: Arrival,
        end: impl FnOnce(T, Result<Response, HgError>),
    ) -> Option<Event<T>> {
        let format = match self.may_have_asked().then(|| self.format_of_response(op)) {
            None => self.accept.format,
            Some(Some(format)) => format,
            Some(None) => return self.on_told(op, buf, &arrival),
        };
        if !ResponseHeader::is_plain_success(format, buf.as_slice()) {
            let result = self.read_response(op, format, buf, arrival)?;
            return self.on_result(op, result, true);
        }
        let token = {
            let mut state = self.state();
            let token = state.end_plain_call(op);
            state.hot.rpc_resp_recv += u64::from(token.is_some());
            token
        };
        let payload = Payload::Message(buf, format.header_bytes());
        let result = Ok(Response::new(payload, &self.buffers));
        match token {
            Some(token) => {
                end(token, result);
                None
            }
            None => self.on_result(op, result, true),
        }
    }

    /// As [`on_response`](Self::on_response), whatever result and call are.
    #[inline(never)]
    fn on_result(
        &self,
        op: OpRef,
        result: Result<Response, HgError>,
        came: bool,
    ) -> Option<Event<T>> {
        let mut state = self.state();
        state.hot.rpc_resp_recv += u64::from(came);
        let Some(Op::Call(call)) = state.ops.get_mut(op) else { return None };
        call.received(result);
        self.settle(state, op)
    }

    /// The receive of a response failed.
    pub(crate) fn on_response_failed(&self, op: OpRef, error: na::Error) -> Option<Event<T>> {
        if self.may_have_asked() && !matches!(error, na::Error::Canceled) {
            self.forget_gone(&error);
        }
        self.on_result(op, Err(error.into()), false)
    }

    /// `None`: the result is being fetched.
    fn read_response(
        &self,
        op: OpRef,
        format: Format,
        buf: MsgBuf,
        arrival: Arrival,
    ) -> Option<Result<Response, HgError>> {
        let result = match wire::decode_response(format, buf.as_slice()) {
            Ok((header, _)) if header.code != ReturnCode::Success => {
                // C's own RPC layer says `HG_NOENTRY` of an RPC that is not registered.
                let is_own = wire::is_own_refusal(format, buf.as_slice());
                let of_layer = header.code == ReturnCode::NoEntry || is_own;
                let proves = self.options.membership.is_some() && is_own;
                Err(if proves && header.code == NOT_PROVEN {
                    self.was_not_believed(&arrival.from)
                } else if of_layer {
                    HgError::Remote(header.code)
                } else {
                    HgError::Foreign(header.code)
                })
            }
            Ok((header, Body::Inline(_))) => {
                let payload = Payload::Message(buf, header.format.header_bytes());
                return Some(Ok(Response::new(payload, &self.buffers)));
            }
            Ok((header, Body::Overflow(desc))) => {
                self.counts.resp_extra.bump();
                match self.fetch_response(op, &header, &arrival, &desc) {
                    Ok(None) => {
                        self.buffers.put(buf);
                        self.state().hot.rpc_resp_recv += 1;
                        return None;
                    }
                    Ok(Some(bytes)) => Ok(Response::new(Payload::Overflow(bytes), &self.buffers)),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error @ HgError::Wire(_)) = &result {
            self.response_unread(&arrival.from, arrival.tag, error);
        }
        self.buffers.put(buf);
        Some(result)
    }
}
