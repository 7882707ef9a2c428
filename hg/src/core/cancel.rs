//! Cancel and close: operations that end before their time.

use prim::lock::BiasedGuard;

use crate::core::state::{Op, State};
use crate::ops::{Ended, Event};
use crate::{Core, HgError, OpRef};

impl<T> Core<T> {
    /// Gives up a call, an answer or a transfer. It ends through the sink as always, once: with
    /// [`HgError::Canceled`] unless it had ended before. An operation that is over is ignored.
    ///
    /// A call ends at once, whatever the peer does; the peer may handle it all the same. An answer
    /// ends when it is no longer being sent; its origin may have got it, and cannot fetch an
    /// overflowed result any more. A transfer ends as soon as the network no longer touches our
    /// memory. Any shard may be asked, whichever started the operation.
    ///
    /// Counterpart: `HG_Cancel`, `HG_Bulk_cancel`; there, calls to oneself cannot be canceled.
    pub fn cancel(&self, op: OpRef) {
        if op.shard() == self.id {
            return self.cancel_own(op);
        }
        if let Some(starter) = self.class.get(op.shard()) {
            starter.cancel_own(op);
            starter.wake();
        }
    }

    fn cancel_own(&self, op: OpRef) {
        let mut state = self.state();
        let (ended, forgotten) = match state.ops.get_mut(op) {
            Some(Op::Call(call)) if call.is_canceled() => return,
            Some(Op::Call(call)) => {
                let ended = call.cancel(self.endpoint.asks_owners());
                call.count_arguments(&self.class.kept_arguments);
                let max = self.options.overflow_held_max as u64;
                (ended, state.give_up(op, &self.class.kept_arguments, max))
            }
            Some(Op::Transfer(transfer)) => {
                (Ended { parts: transfer.cancel(), revoked: None }, Vec::new())
            }
            Some(Op::Response(answer)) if answer.has_failed() => return,
            Some(Op::Response(answer)) => (answer.cancel(HgError::Canceled), Vec::new()),
            Some(Op::Local(_)) => {
                self.counts.canceled.bump();
                if let Some(Op::Local(token)) = state.ops.remove(op) {
                    let result = Err(HgError::Canceled);
                    self.queue(&mut state, Event::Response { token, result });
                }
                return;
            }
            Some(Op::Fetch(_)) | None => return,
        };
        self.counts.canceled.bump();
        self.end_parts(state, op, ended);
        for (forgotten, role) in forgotten {
            self.endpoint.cancel(forgotten.part(role));
        }
    }

    /// Gives up an answer of any shard, because of `why`.
    pub(crate) fn give_answer_up(&self, op: OpRef, why: HgError) {
        let Some(starter) = self.class.get(op.shard()) else { return };
        let mut state = starter.state();
        let ended = match state.ops.get_mut(op) {
            Some(Op::Response(answer)) if !answer.has_failed() => answer.cancel(why),
            _ => return,
        };
        starter.end_parts(state, op, ended);
        starter.wake();
    }

    /// An operation was given up: what is to be told waits for trigger.
    fn end_parts(&self, state: BiasedGuard<'_, State<T>>, op: OpRef, ended: Ended) {
        self.settle_and_queue(state, op);
        drop(ended.revoked);
        for role in ended.parts {
            self.endpoint.cancel(op.part(role));
        }
    }

    /// Ends every operation of every shard with an error; see the module's documentation.
    /// Idempotent. Keep calling `progress` and `trigger`, or `poll`, of each shard until nothing is
    /// in flight.
    ///
    /// Counterpart: `HG_Context_destroy`.
    pub fn close(&self) {
        for shard in self.class.all() {
            shard.close_own();
            shard.endpoint.close();
            shard.wake();
        }
    }

    /// Returns whether it was closed: nothing can be started any more.
    pub fn is_closed(&self) -> bool {
        self.state().closed
    }

    fn close_own(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        let is_local = |(name, op): (OpRef, &Op<T>)| matches!(op, Op::Local(_)).then_some(name);
        let local = state.ops.iter().filter_map(is_local).collect::<Vec<_>>();
        for op in local {
            if let Some(Op::Local(token)) = state.ops.remove(op) {
                self.queue(&mut state, Event::Response { token, result: Err(HgError::Closed) });
            }
        }
    }
}
