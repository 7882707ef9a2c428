//! Completions of the network: each lets its operation make the next step.

use std::sync::Arc;

use na::{Completion, MsgBuf};

use crate::base::log::log;
use crate::core::send::NOT_SENT;
use crate::core::state::Op;
use crate::ops::{Event, Role};
use crate::{Core, OpRef, Sink};

impl<T> Core<T> {
    /// Takes the next step of the operation that `completion` belongs to. Events that every call
    /// has go straight to the sink.
    #[inline]
    pub(super) fn act_and_tell<S: Sink<T> + ?Sized>(
        self: &Arc<Self>,
        completion: Completion,
        sink: &mut S,
    ) {
        let event = match completion {
            Completion::Recv { op, buf, result: Ok(arrival) } => match OpRef::parse(op) {
                (_, Some(Role::Request)) => {
                    self.on_request(buf, arrival, |parts| sink.request_parts(self, parts))
                }
                (op, Some(Role::Response)) => {
                    self.on_response(op, buf, arrival, |token, result| sink.response(token, result))
                }
                (op, role) => self.on_other_receive(op, role, buf, Ok(())),
            },
            other => self.act(other),
        };
        if let Some(event) = event {
            self.deliver(event, sink);
        }
    }

    /// As [`act_and_tell`](Self::act_and_tell), for rare events.
    #[inline(never)]
    fn act(&self, completion: Completion) -> Option<Event<T>> {
        match completion {
            Completion::Recv { op, buf, result } => {
                let (op, role) = OpRef::parse(op);
                self.on_other_receive(op, role, buf, result.map(|_| ()))
            }
            Completion::Send { op, buf, result } => match (OpRef::parse(op), result) {
                ((op, Some(Role::Send)), Err(error)) => self.on_not_sent(op, error, buf),
                ((op, role), result) => {
                    self.buffers.put(buf);
                    self.on_send_over(op, role, result)
                }
            },
            Completion::Transfer { op, result } => match OpRef::parse(op) {
                (op, Some(Role::Fetch)) => self.on_fetched(op, result),
                (op, Some(Role::Piece(piece))) => self.on_piece(op, piece, result),
                (_, role) => unexpected(role),
            },
        }
    }

    /// A receive ended that is no request and no response.
    #[inline(never)]
    fn on_other_receive(
        &self,
        op: OpRef,
        role: Option<Role>,
        buf: MsgBuf,
        result: Result<(), na::Error>,
    ) -> Option<Event<T>> {
        let said = buf.as_slice().first().copied();
        self.buffers.put(buf);
        match (role, result) {
            (Some(Role::Ack), result) => self.on_ack(op, result.map(|()| said)),
            (Some(Role::Watch), result) => self.on_watch(op, result),
            (Some(Role::Response), Err(error)) => self.on_response_failed(op, error),
            (Some(Role::Request), Err(error)) => {
                let multi = self.large.is_some();
                self.lose_receives(|receives| receives.ended(multi));
                if !matches!(error, na::Error::Closed | na::Error::Canceled) {
                    log!(self.options.log, WARN, %error, "a receive for requests failed");
                }
                None
            }
            (role, _) => unexpected(role),
        }
    }

    /// A send ended, and not because a request or response cannot be sent.
    fn on_send_over(
        &self,
        op: OpRef,
        role: Option<Role>,
        result: Result<(), na::Error>,
    ) -> Option<Event<T>> {
        match role {
            Some(Role::Send) => self.on_sent(op, result),
            Some(Role::Loose) => {
                if let Err(error) = result {
                    log!(self.options.log, DEBUG, %error, "{NOT_SENT}");
                }
                None
            }
            role => unexpected(role),
        }
    }

    /// The network has not sent a request or response.
    #[cold]
    fn on_not_sent(&self, op: OpRef, error: na::Error, buf: MsgBuf) -> Option<Event<T>> {
        if self.sends_otherwise(op, &error, buf) {
            return None;
        }
        if matches!(error, na::Error::TooLong { .. }) {
            self.refuse_too_long(op);
        }
        self.on_sent(op, Err(error))
    }

    /// The send of a request or response ended.
    fn on_sent(&self, op: OpRef, result: Result<(), na::Error>) -> Option<Event<T>> {
        let mut state = self.state();
        // Nobody will answer what was not sent.
        let in_vain = match state.ops.get_mut(op)? {
            Op::Call(forward) => {
                let has_failed = result.is_err();
                let in_vain = forward.sent(result);
                if self.asks && forward.may_go_on() {
                    drop(state);
                    return self.go_on(op);
                }
                if self.asks && has_failed {
                    self.class.builds.forget();
                }
                in_vain
            }
            Op::Response(respond) => respond.sent(result),
            _ => None,
        };
        let event = self.settle(state, op);
        if let Some(role) = in_vain {
            self.endpoint.cancel(op.part(role));
        }
        event
    }

    /// The receive of an acknowledgement ended; what it said.
    fn on_ack(&self, op: OpRef, result: Result<Option<u8>, na::Error>) -> Option<Event<T>> {
        let mut state = self.state();
        match state.ops.get_mut(op)? {
            Op::Call(forward) => forward.acknowledged(result.map(drop)),
            Op::Response(respond) => respond.acknowledged(result),
            _ => {}
        }
        self.settle(state, op)
    }
}

/// The network completed an operation as another kind than it was started as.
fn unexpected<T>(role: Option<Role>) -> Option<Event<T>> {
    tracing::error!(
        target: concat!("margo::", module_path!()),
        ?role,
        "the transport completed an operation as another kind; ignored"
    );
    None
}
