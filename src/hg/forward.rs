//! Calls: the origin's side of an RPC.
//!
//! The receive for the response is posted before the request is sent. From then on a call waits for
//! its parts, in whatever order they end:
//!
//! | what happens | what the call does |
//! |---|---|
//! | a response arrives | ends with it, at once |
//! | a response arrives that overflowed | fetches the result, then ends and acknowledges |
//! | the send fails | cancels the receive; ends with the send's error |
//! | the receive fails | waits for the send to end, whose error may know that nothing was sent |
//! | it is canceled | ends at once; its receive waits for the late response, to acknowledge it |
//!
//! A one-way call ends when it is sent and, if it overflowed, acknowledged. Arguments that
//! overflowed are exposed until then, or until the response.

use na::{Access, Addr, Arrival, LocalMem, Memory, MsgBuf};

use super::buffers::Payload;
use super::checksum::PayloadSum;
use super::context::{Event, Incoming};
use super::core::{Core, Op};
use super::handle::Reply;
use super::header::{Format, RequestHeader, ResponseHeader};
use super::ops::{OpRef, Role};
use super::proc::Written;
use super::wire::{self, Body, Unencoded};
use super::{Bulk, HgError, ProcError, Response, ReturnCode, RpcId, Writer};

/// How one call behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ForwardOptions {
    /// The target is not to answer; the call ends when the request was sent. Default: no.
    pub no_response: bool,
}

impl ForwardOptions {
    /// A call that is not to be answered.
    pub const fn one_way() -> Self {
        Self { no_response: true }
    }
}

/// A call in flight.
#[derive(Debug)]
pub(super) struct Forward<T> {
    /// `None` once it went back.
    token: Option<T>,
    pub(super) peer: Addr,
    /// Gives the tag.
    pub(super) number: u64,
    one_way: bool,
    /// Parts in flight.
    sending: bool,
    receiving: bool,
    pub(super) fetching: Option<LocalMem>,
    /// Of the result that is being fetched.
    pub(super) payload_sum: Option<PayloadSum>,
    outcome: Option<Result<Response, HgError>>,
    canceled: bool,
    /// The arguments, while the target may fetch them.
    exposed: Option<LocalMem>,
}

impl<T> Forward<T> {
    fn fail(&mut self, error: HgError) {
        self.outcome.get_or_insert(Err(error));
    }

    /// The send ended. Returns what is to be canceled because of that.
    pub(super) fn sent(&mut self, result: Result<(), na::Error>) -> Option<Role> {
        self.sending = false;
        let error = result.err()?;
        match &self.outcome {
            // What the receive said is less precise.
            Some(Err(_)) if error.never_arrived() => self.outcome = Some(Err(error.into())),
            _ => self.fail(error.into()),
        }
        self.receiving.then_some(self.reply_role())
    }

    /// The acknowledgement of a one-way call came, or will not.
    pub(super) fn acknowledged(&mut self, result: Result<(), na::Error>) {
        self.receiving = false;
        if let Err(error) = result {
            self.fail(error.into());
        }
    }

    /// The receive of the response ended.
    fn received(&mut self, result: Result<Response, HgError>) {
        self.receiving = false;
        self.fetching = None;
        self.outcome.get_or_insert(result);
        // The response proves that the target is done with the arguments.
        if matches!(self.outcome, Some(Ok(_) | Err(HgError::Remote(_)))) {
            self.exposed = None;
        }
    }

    /// The result was fetched, or will not be.
    pub(super) fn fetched(&mut self, result: Result<Response, HgError>) {
        self.fetching = None;
        self.outcome.get_or_insert(result);
    }

    /// What the receive of the response, or of what stands for it, is.
    pub(super) fn reply_role(&self) -> Role {
        if self.one_way { Role::Ack } else { Role::Reply }
    }

    /// Gives up. Returns the parts to cancel; the receive is not among them, see
    /// [`State::give_up`](super::core::State).
    pub(super) fn cancel(&mut self) -> Vec<Role> {
        self.canceled = true;
        self.fail(HgError::Canceled);
        self.exposed = None;
        let parts = [(self.sending, Role::Send), (self.fetching.is_some(), Role::Fetch)];
        parts.into_iter().filter_map(|(flying, role)| flying.then_some(role)).collect()
    }

    /// What there is to tell, and whether the call is over.
    pub(super) fn settle(&mut self) -> (Option<Event<T>>, bool) {
        let flying = self.sending || self.receiving || self.fetching.is_some();
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
    /// Calls RPC `id` at `to`. What `encode` writes follows Mercury's headers; it goes straight
    /// into the send buffer. The call ends through [`Sink::response`](super::Sink::response), once,
    /// with `token`.
    ///
    /// # Errors
    ///
    /// When nothing was sent; `token` comes back here and not through the sink.
    ///
    /// Counterpart: `HG_Forward`.
    pub fn forward(
        &self,
        to: &Addr,
        id: RpcId,
        options: ForwardOptions,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<OpRef, (HgError, T)> {
        let format = self.options.format();
        let no_response = options.no_response;
        let header = RequestHeader { no_response, ..RequestHeader::in_format(id, format) };
        let encoded = wire::encode_request(
            header,
            self.buffers.take(),
            self.limits.unexpected_bytes_max,
            self.writer_limits(),
            encode,
        );
        let written = match encoded {
            Ok(written) => written,
            Err(unencoded) => return Err((self.unencoded(unencoded), token)),
        };
        if self.options.loopback && *to == self.self_addr {
            return self.forward_local(header, written, token);
        }
        let max = self.limits.unexpected_bytes_max;
        let (buf, exposed) = match self.expose_overflow(format, written, max) {
            Ok(finished) => finished,
            Err(error) => return Err((error, token)),
        };
        let one_way = no_response;
        if exposed.is_some() {
            self.counts.req_extra.bump();
        }
        let call = Forward {
            token: Some(token),
            peer: to.clone(),
            number: 0,
            one_way,
            sending: true,
            receiving: !one_way || exposed.is_some(),
            fetching: None,
            payload_sum: None,
            outcome: None,
            canceled: false,
            exposed,
        };
        self.launch(call, buf)
    }

    /// Starts the parts of a call.
    fn launch(&self, mut call: Forward<T>, buf: MsgBuf) -> Result<OpRef, (HgError, T)> {
        let role = call.reply_role();
        let (to, receives) = (call.peer.clone(), call.receiving);
        let admitted = {
            let mut state = self.state();
            call.number = state.number();
            let number = call.number;
            let admitted = state.admit(Op::Forward(call)).map(|op| (op, Self::tag(number)));
            if admitted.is_ok() {
                state.tokens += 1;
            }
            admitted
        };
        let (op, tag) = match admitted {
            Ok(admitted) => admitted,
            Err(refused) => {
                self.buffers.put(buf);
                return match *refused {
                    (error, Op::Forward(Forward { token: Some(token), .. })) => Err((error, token)),
                    _ => Ok(OpRef::NONE),
                };
            }
        };
        if receives {
            let reply = self.buffers.take();
            let posted = self.endpoint.recv_expected(op.part(role), &to, tag, reply);
            if let Err(refused) = posted {
                self.buffers.put(refused.buf);
                self.buffers.put(buf);
                return self.withdraw(op, true, refused.error);
            }
        }
        match self.endpoint.send_unexpected(op.part(Role::Send), &to, tag, buf) {
            Ok(()) => {
                self.counts.rpc_req_sent.bump();
                Ok(op)
            }
            Err(refused) => {
                self.buffers.put(refused.buf);
                let withdrawn = self.withdraw(op, false, refused.error);
                self.endpoint.cancel(op.part(role));
                withdrawn
            }
        }
    }

    /// A part of a call was refused, so nothing was sent: gives the token back.
    fn withdraw(
        &self,
        op: OpRef,
        not_receiving: bool,
        error: na::Error,
    ) -> Result<OpRef, (HgError, T)> {
        let mut state = self.state();
        let Some(Op::Forward(call)) = state.ops.get_mut(op) else { return Ok(op) };
        call.sending = false;
        call.receiving &= !not_receiving;
        let token = call.token.take();
        // An outcome that nobody can be told any more.
        call.outcome = None;
        let (_, gone) = state.settle(op);
        if token.is_some() {
            state.tokens -= 1;
        }
        drop(state);
        drop(gone);
        match token {
            Some(token) => Err((error.into(), token)),
            None => Ok(op),
        }
    }

    /// A call to ourselves: the encoded arguments go up as they are.
    fn forward_local(
        &self,
        header: RequestHeader,
        written: Written,
        token: T,
    ) -> Result<OpRef, (HgError, T)> {
        let payload = self.local_payload(header.format, written);
        let mut state = self.state();
        let (reply, op, done) = if header.no_response {
            if state.closed {
                return Err((HgError::Closed, token));
            }
            (Reply::None, OpRef::NONE, Some(token))
        } else {
            match state.admit(Op::Local(token)) {
                Ok(op) => (Reply::Local(op), op, None),
                Err(refused) => match *refused {
                    (error, Op::Local(token)) => return Err((error, token)),
                    _ => return Ok(OpRef::NONE),
                },
            }
        };
        state.tokens += 1;
        let origin = self.self_addr.clone();
        let incoming = Incoming { header, origin, reply, payload, held: false };
        self.counts.rpc_req_sent.bump();
        self.counts.rpc_req_recv.bump();
        self.queue(&mut state, Event::Request(incoming));
        if let Some(token) = done {
            let result = Ok(Response::empty());
            self.queue(&mut state, Event::Response { token, result });
        }
        Ok(op)
    }

    /// A payload that does not leave the process.
    pub(super) fn local_payload(&self, format: Format, written: Written) -> Payload {
        match written {
            Written::Fits(buf) => Payload::Message(buf, format.header_bytes()),
            Written::Overflow(buf, bytes) => {
                self.buffers.put(buf);
                Payload::Overflow(bytes)
            }
        }
    }

    /// Keeps the buffer of a message that could not be encoded.
    pub(super) fn unencoded(&self, Unencoded { error, buf }: Unencoded) -> HgError {
        self.buffers.put(buf);
        error.into()
    }

    /// Finishes a message: exposes what did not fit, and describes it there instead.
    pub(super) fn expose_overflow(
        &self,
        format: Format,
        written: Written,
        message_max: usize,
    ) -> Result<(MsgBuf, Option<LocalMem>), HgError> {
        let (buf, bytes) = match written {
            Written::Fits(buf) => return Ok((buf, None)),
            Written::Overflow(buf, bytes) => (buf, bytes),
        };
        let memory = match self.endpoint.register(Memory::from_vec(bytes), Access::ReadOnly) {
            Ok(memory) => memory,
            Err(error) => {
                self.buffers.put(buf);
                return Err(error.into());
            }
        };
        let handle = Bulk::of_local(&*self.endpoint, &memory);
        wire::finish_overflow(format, buf, message_max, handle.as_bytes())
            .map(|buf| (buf, Some(memory)))
            .map_err(|unencoded| self.unencoded(unencoded))
    }

    /// The receive of a response ended.
    pub(super) fn on_reply(
        &self,
        op: OpRef,
        buf: MsgBuf,
        result: Result<Arrival, na::Error>,
    ) -> Option<Event<T>> {
        let result = match result {
            Err(error) => {
                self.buffers.put(buf);
                Err(error.into())
            }
            Ok(_) => {
                self.counts.rpc_resp_recv.bump();
                self.read_response(op, buf)?
            }
        };
        let mut state = self.state();
        let Some(Op::Forward(call)) = state.ops.get_mut(op) else { return None };
        call.received(result);
        self.settle(state, op)
    }

    /// `None`: the result is being fetched.
    fn read_response(&self, op: OpRef, buf: MsgBuf) -> Option<Result<Response, HgError>> {
        let result = match wire::decode_response(self.options.format(), buf.as_slice()) {
            Ok((header, _)) if header.code != ReturnCode::Success => {
                Err(HgError::Remote(header.code))
            }
            Ok((header, Body::Inline(_))) => {
                let payload = Payload::Message(buf, header.format.header_bytes());
                return Some(Ok(Response::new(payload, &self.buffers)));
            }
            Ok((header, Body::Overflow(desc))) => {
                self.counts.resp_extra.bump();
                match self.fetch_response(op, &header, &desc) {
                    Ok(None) => {
                        self.buffers.put(buf);
                        return None;
                    }
                    Ok(Some(bytes)) => Ok(Response::new(Payload::Overflow(bytes), &self.buffers)),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error @ HgError::Wire(_)) = &result {
            self.counts.malformed(error);
        }
        self.buffers.put(buf);
        Some(result)
    }

    /// Where the response to a call comes from, and under which tag; and whether its result is to
    /// be fetched: not if the call was canceled.
    pub(super) fn response_source(&self, op: OpRef) -> Option<(Addr, na::Tag, bool)> {
        let mut state = self.state();
        let Some(Op::Forward(call)) = state.ops.get_mut(op) else { return None };
        Some((call.peer.clone(), Self::tag(call.number), !call.canceled))
    }

    /// The response came and its result is being fetched into `memory`; `false`: the call is over.
    pub(super) fn begin_fetch(
        &self,
        op: OpRef,
        header: &ResponseHeader,
        memory: &LocalMem,
    ) -> bool {
        let mut state = self.state();
        let Some(Op::Forward(call)) = state.ops.get_mut(op) else { return false };
        call.receiving = false;
        call.fetching = Some(memory.clone());
        call.payload_sum = header.payload_sum;
        true
    }
}
