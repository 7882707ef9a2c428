//! Calls to ourselves: the encoded arguments and results are handed over as they are, also between
//! the shards of a group. Events and counters are those of any other call.

use crate::core::state::{Op, State};
use crate::memory::Payload;
use crate::ops::{Event, IncomingRequest, RequestExtension, ResponsePath};
use crate::proc::Written;
use crate::wire::header::RequestHeader;
use crate::{Core, HgError, OpRef, Response};

impl<T> Core<T> {
    /// A call to ourselves: the encoded arguments go up as they are.
    pub(crate) fn hand_to_ourselves(
        &self,
        op: OpRef,
        header: RequestHeader,
        target: Option<u8>,
        written: Written,
        beside: Option<Box<RequestExtension>>,
    ) -> OpRef {
        let payload = self.local_payload(header.format.header_bytes(), written);
        let path = if header.no_response { ResponsePath::None } else { ResponsePath::Local(op) };
        let request = Event::Request(IncomingRequest {
            header,
            origin: self.self_addr.clone(),
            path,
            payload,
            held: false,
            uncounted: false,
            beside,
        });
        let other = target.filter(|id| *id != self.id).and_then(|id| self.class.get(id));
        if let Some(other) = other {
            other.queue_from_other(request);
            let mut state = self.state();
            self.end_one_way_to_ourselves(&mut state, op, header.no_response);
        } else {
            let mut state = self.state();
            state.hot.rpc_req_recv += 1;
            self.queue(&mut state, request);
            self.end_one_way_to_ourselves(&mut state, op, header.no_response);
        }
        op
    }

    /// Queues a request of another shard.
    fn queue_from_other(&self, request: Event<T>) {
        let mut state = self.state();
        state.hot.rpc_req_recv += 1;
        self.queue(&mut state, request);
        drop(state);
        self.wake();
    }

    fn end_one_way_to_ourselves(&self, state: &mut State<T>, op: OpRef, one_way: bool) {
        if one_way && let Some(Op::Local(token)) = state.ops.remove(op) {
            let result = Ok(Response::empty());
            self.queue(state, Event::Response { token, result });
        }
    }

    /// Ends a call to ourselves, unless it was canceled meanwhile.
    pub(crate) fn answer_local(&self, op: OpRef, result: Result<Response, HgError>) {
        if op.shard() == self.id {
            return self.take_local_answer(op, result);
        }
        // Another shard of ours called.
        if let Some(caller) = self.class.get(op.shard()) {
            caller.take_local_answer(op, result);
            caller.wake();
        }
    }

    fn take_local_answer(&self, op: OpRef, result: Result<Response, HgError>) {
        let mut state = self.state();
        state.hot.rpc_resp_sent += 1;
        if let Some(Op::Local(token)) = state.ops.remove(op) {
            state.hot.rpc_resp_recv += 1;
            self.queue(&mut state, Event::Response { token, result });
        }
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
}
