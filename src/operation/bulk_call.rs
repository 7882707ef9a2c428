//! A bulk transfer in flight: its end, and what may bring that about.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hg::{HgError, OpRef};
use ult::Eventual;

use crate::observe::monitor::{BulkWatch, Monitoring};
use crate::operation::deadline::{Deadline, is_past};
use crate::operation::deadline_timer::DeadlineTimer;
use crate::operation::early::EndsEarly;
use crate::support::why_over::{GaveUp, WhyOver};
use crate::{Addr, BulkError};

/// A transfer in flight. As of a [`Call`](super::call::Call), the RPC layer has one
/// count of it, and the caller that started it the other.
pub(crate) struct BulkCall {
    pub(crate) done: Eventual<Result<u64, HgError>>,
    pub(crate) given_up: WhyOver,
    pub(crate) watch: BulkWatch,
    timed: Option<Box<Timed>>,
    /// It has no deadline.
    may_stand: bool,
    stood_for: StoodFor,
    /// The buffer of a transfer that is not waited for any more: it goes with the last count, and
    /// so not before the transfer is over.
    pub(crate) kept: std::sync::Mutex<Option<Box<dyn Any + Send>>>,
    /// The part of the buffer that is written, of a request.
    moved: Range<usize>,
    /// The event that ends it early where the network does not know it: of device memory.
    ended_by: OnceLock<Arc<Eventual<()>>>,
}

/// The extra state of a transfer that has a deadline and may have no caller that waits for it.
struct Timed {
    term: Deadline,
    alarm: DeadlineTimer,
}

impl BulkCall {
    pub(crate) fn new() -> Self {
        let (done, given_up) = (Eventual::new(), WhyOver::default());
        let watch = BulkWatch::default();
        let (timed, may_stand, stood_for) = (None, true, StoodFor::default());
        let kept = std::sync::Mutex::new(None);
        let (moved, ended_by) = (0..0, OnceLock::new());
        Self { done, given_up, watch, timed, may_stand, stood_for, kept, moved, ended_by }
    }

    /// One that may have an alarm.
    pub(crate) fn with_term(term: Option<Deadline>) -> Self {
        let timed = term.map(|term| Box::new(Timed { term, alarm: DeadlineTimer::default() }));
        Self { may_stand: timed.is_none(), timed, ..Self::new() }
    }

    /// Lets what ends the call early set `early`, too. Before others have the call.
    pub(crate) fn ends_by(&self, early: Arc<Eventual<()>>) {
        let _ = self.ended_by.set(early);
    }

    /// Makes a call that writes that part of a buffer, and may have an alarm.
    pub(crate) fn of_part(term: Option<Deadline>, moved: Range<usize>) -> Self {
        Self { moved, ..Self::with_term(term) }
    }

    pub(crate) fn moved(&self) -> &Range<usize> {
        &self.moved
    }

    /// One whose caller does nothing else meanwhile.
    pub(crate) fn waited_for(may_stand: bool) -> Self {
        Self { watch: BulkWatch::waited_for(), may_stand, ..Self::new() }
    }

    /// Returns whether it ends if it stands still, for want of a deadline
    /// (`standing_transfers.rs`).
    pub(crate) fn may_stand(&self) -> bool {
        self.may_stand
    }

    /// It is about to be ended because it has stood still for so long.
    pub(crate) fn stands_still(&self, limit: Duration) {
        self.stood_for.set(limit);
    }

    pub(crate) fn complete(&self, monitoring: &Monitoring, mut result: Result<u64, HgError>) {
        // The alarm may come later still, on an execution stream that is busy.
        if result.is_ok() && is_past(self.term().map(|term| term.at)) {
            self.given_up.is_first(GaveUp::TimedOut);
            result = Err(HgError::Canceled);
        }
        self.watch.over(monitoring, &self.given_up, &result);
        // The RPC layer gives a token back once, so nobody can have been first.
        let _ = self.done.set(result);
        if let Some(timed) = &self.timed {
            timed.alarm.end();
        }
    }

    /// Returns the term that [`with_term`](Self::with_term) was given.
    pub(crate) fn term(&self) -> Option<Deadline> {
        self.timed.as_ref().map(|timed| timed.term)
    }

    /// When it has to be ended, if it has.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.term().filter(|_| !self.given_up.is_given()).map(|term| term.at)
    }

    /// Sees to it that the transfer ends at its deadline, whether or not a caller waits.
    pub(crate) fn set_alarm(self: &Arc<Self>, by: &Arc<impl EndsEarly>, op: OpRef) {
        let Some(timed) = self.timed.as_ref().filter(|_| !self.done.is_ready()) else { return };
        timed.alarm.set(&**by, timed.term.at, || {
            // Not a count of the instance, which ends its transfers before it ends.
            let (call, by) = (Arc::downgrade(self), Arc::downgrade(by));
            move || {
                if let Some((call, by)) = call.upgrade().zip(by.upgrade()) {
                    call.give_up(&*by, op, GaveUp::TimedOut);
                }
            }
        });
    }

    /// Ends the transfer early, unless it is over or is being ended already. It is over when the
    /// network no longer touches the memory.
    pub(crate) fn give_up(&self, by: &dyn EndsEarly, op: OpRef, why: GaveUp) {
        if !self.done.is_ready() && !by.is_forked() && self.given_up.is_first(why) {
            by.end(op);
            if let Some(early) = self.ended_by.get() {
                let _ = early.set(());
            }
        }
    }

    /// The result of one that is over. `limit`: the time that was allowed.
    pub(crate) fn result(&self, peer: &Addr, limit: Option<Duration>) -> Result<(), BulkError> {
        self.watch.resumed();
        let Err(error) = self.done.wait() else { return Ok(()) };
        let (peer, source) = (peer.to_string(), error.clone());
        if !matches!(error, HgError::Canceled) || !self.given_up.is_given() {
            return Err(BulkError::Transfer { peer, source });
        }
        if !self.given_up.timed_out() {
            return Err(BulkError::Canceled { peer });
        }
        match (limit, self.stood_for.get()) {
            (Some(limit), _) => Err(BulkError::TimedOut { peer, limit }),
            (None, Some(limit)) => Err(BulkError::StoodStill { peer, limit }),
            (None, None) => Err(BulkError::Canceled { peer }),
        }
    }
}

impl fmt::Debug for BulkCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkCall").field("is_over", &self.done.is_ready()).finish_non_exhaustive()
    }
}

/// How long a transfer has stood still that was ended for it.
#[derive(Debug, Default)]
pub(crate) struct StoodFor(AtomicU32);

impl StoodFor {
    pub(crate) fn set(&self, limit: Duration) {
        // Whoever reads it has seen the end of the transfer, which comes after this.
        self.0.store(u32::try_from(limit.as_millis()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<Duration> {
        let msec = self.0.load(Ordering::Relaxed);
        (msec > 0).then(|| Duration::from_millis(msec.into()))
    }
}
