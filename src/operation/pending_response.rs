//! An answer that a caller waits for: its end, and what may bring that about.
//!
//! Answers that no caller waits for, as nearly all are, have none of this: see `run_handler.rs`.
//! As with a [`Call`](crate::operation::call::Call), the RPC layer has one count of an
//! [`PendingResponse`], as the token of its operation, and ends it once, on the progress ULT; the
//! waiting caller has the other one. Code that ends it early first notes the reason, and then
//! cancels the operation.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hg::{HgError, OpRef};
use ult::Eventual;

use crate::observe::monitor::SpanOfRequest;
use crate::operation::deadline_timer::DeadlineTimer;
use crate::operation::early::EndsEarly;
use crate::support::why_over::{GaveUp, WhyOver};
use crate::{Addr, RespondError};

/// The callback that runs at the end, wherever the end is brought about.
pub(crate) type Callback = Box<dyn FnOnce(Arc<PendingResponse>) + Send>;

/// The state of one answer.
pub(crate) struct PendingResponse {
    pub(crate) done: Eventual<Result<(), HgError>>,
    given_up: WhyOver,
    alarm: DeadlineTimer,
    callback: Mutex<Option<Callback>>,
    span: Option<SpanOfRequest>,
}

/// The RPC, the origin and the limit of an answer, for its errors.
pub(crate) struct Where {
    pub(crate) rpc: &'static str,
    pub(crate) origin: Addr,
    /// The time that it may take.
    pub(crate) limit: Option<Duration>,
}

impl PendingResponse {
    pub(crate) fn new(span: Option<SpanOfRequest>, callback: Option<Callback>) -> Arc<Self> {
        let (done, given_up, alarm) =
            (Eventual::new(), WhyOver::default(), DeadlineTimer::default());
        Arc::new(Self { done, given_up, alarm, callback: Mutex::new(callback), span })
    }

    /// The RPC layer has ended it.
    pub(crate) fn complete(self: Arc<Self>, result: Result<(), HgError>) {
        delivered(self.span.as_ref(), &result);
        self.end(result);
    }

    /// It is over: as the RPC layer says, or at once.
    pub(crate) fn end(self: Arc<Self>, result: Result<(), HgError>) {
        // One of the two, and once, so nobody can have been first.
        let _ = self.done.set(result);
        self.alarm.end();
        let callback = self.callback.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(callback) = callback {
            callback(self);
        }
    }

    /// Sees to it that the answer ends at `due`, whether or not a caller waits.
    pub(crate) fn set_alarm(self: &Arc<Self>, by: &Arc<impl EndsEarly>, op: OpRef, due: Instant) {
        self.alarm.set(&**by, due, || {
            // Not a count of the instance, which ends its answers before it ends.
            let (answer, by) = (Arc::downgrade(self), Arc::downgrade(by));
            move || {
                if let Some((answer, by)) = answer.upgrade().zip(by.upgrade()) {
                    answer.give_up(&*by, op, GaveUp::TimedOut);
                }
            }
        });
    }

    /// Ends the answer early, unless it is over or is being ended already. The end follows on the
    /// progress ULT.
    pub(crate) fn give_up(&self, by: &dyn EndsEarly, op: OpRef, why: GaveUp) {
        if !self.done.is_ready() && !by.is_forked() && self.given_up.is_first(why) {
            by.end(op);
        }
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.is_given()
    }

    /// How it has ended; in a child process that was forked off before, that it has not there.
    pub(crate) fn result(&self, about: &Where) -> Result<(), RespondError> {
        let error = match self.done.try_get() {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => error.clone(),
            None => HgError::InParent,
        };
        let (rpc, peer) = (about.rpc, about.origin.to_string());
        Err(match (error, about.limit) {
            (HgError::Canceled, Some(limit)) if self.given_up.timed_out() => {
                RespondError::TimedOut { rpc, peer, limit }
            }
            (HgError::Canceled, _) if self.given_up.is_given() => {
                RespondError::Canceled { rpc, peer }
            }
            (HgError::GivenUp, _) => RespondError::Unread { rpc, peer, given_up: true },
            (HgError::Unread, _) => RespondError::Unread { rpc, peer, given_up: false },
            (source, _) => RespondError::Network { rpc, source },
        })
    }
}

/// The network has let go of an answer, which is told to whom the request's span is told.
pub(crate) fn delivered(span: Option<&SpanOfRequest>, result: &Result<(), HgError>) {
    let has_left = matches!(result, Ok(()) | Err(HgError::GivenUp | HgError::Unread));
    if let Some(span) = span.filter(|_| has_left) {
        span.sent();
    }
}

impl fmt::Debug for PendingResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingResponse")
            .field("is_over", &self.done.is_ready())
            .finish_non_exhaustive()
    }
}
