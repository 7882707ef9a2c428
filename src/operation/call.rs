//! A call in flight: its end, and what may bring that about.
//!
//! The RPC layer has one count of a [`Call`], as the token of its operation, and ends it once, on
//! the progress ULT; the caller has the other one. Code that ends a call early first notes the
//! reason in [`Call::given_up`], and then cancels the operation: the end that follows says only
//! that it was cancelled.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `done` | the progress ULT, once | anybody |
//! | `given_up` | the first who gives up | whoever reads the result, after the end |
//! | `CallExtra::alarm` | the caller sets it, the end takes it | |
//! | `CallExtra::callback` | the caller, before the call starts; the end takes it | |
//! | `CallExtra::tie` | the caller sets it, the end takes it; see `cancel_link.rs` | |

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hg::{Core, HgError, OpRef, Response, ReturnCode, margo, proc};
use na::shared::Shared;
use serde::de::DeserializeOwned;
use ult::Eventual;

use crate::observe::monitor::{CallWatch, Monitoring};
use crate::operation::cancel_link::CancelLink;
use crate::operation::canceler::CancelTarget;
use crate::operation::deadline::{CallLimits, Deadline, is_past};
use crate::operation::deadline_timer::DeadlineTimer;
use crate::operation::early::EndsEarly;
use crate::support::why_over::{GaveUp, WhyOver};
use crate::{Canceler, ForwardError, ProviderHandle};

/// How a call ended.
pub(crate) type Outcome = Result<Response, HgError>;

/// The callback that runs at the end, on the progress ULT.
pub(crate) type Callback = Box<dyn FnOnce(Shared<Call>) + Send>;

/// A call in flight. See the module documentation.
pub(crate) struct Call {
    done: Eventual<Outcome>,
    given_up: WhyOver,
    pub(crate) watch: CallWatch,
    /// State that only calls with a callback, a deadline, or a cancel token need.
    extra: Option<Box<CallExtra>>,
}

struct CallExtra {
    /// When it has to be over.
    due: Option<Instant>,
    alarm: DeadlineTimer,
    callback: Mutex<Option<Callback>>,
    tie: Option<CancelLink>,
}

/// The RPC, the target and the term of a call, for its errors.
#[derive(Clone, Copy)]
pub(crate) struct CallInfo<'a> {
    pub(crate) rpc: &'static str,
    pub(crate) to: &'a ProviderHandle,
    /// `None`: it may take any time.
    pub(crate) term: Option<Deadline>,
}

impl CallInfo<'_> {
    /// Refuses a call that would begin after its deadline, for calls that no alarm ends.
    pub(crate) fn is_in_time(self) -> Result<(), ForwardError> {
        match self.term.filter(|term| term.at <= Instant::now()) {
            None => Ok(()),
            Some(Deadline { limit, .. }) => {
                let peer = self.to.addr().to_string();
                Err(ForwardError::TimedOut { rpc: self.rpc, peer, limit, never_ran: true })
            }
        }
    }
}

impl Call {
    /// A call that its caller waits for.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let (done, given_up) = (Eventual::new(), WhyOver::default());
        Self { done, given_up, watch: CallWatch::default(), extra: None }
    }

    /// Makes a call whose caller does nothing else meanwhile.
    #[inline(always)]
    pub(crate) fn waited_for() -> Self {
        Self { watch: CallWatch::waited_for(), ..Self::new() }
    }

    /// A call within these bounds, and at whose end `callback` runs, on the progress ULT.
    pub(crate) fn with_extra(bounds: CallLimits, callback: Option<Callback>) -> Self {
        let CallLimits { term, canceled_by } = bounds;
        let (due, alarm) = (term.map(|term| term.at), DeadlineTimer::default());
        let (callback, tie) = (Mutex::new(callback), canceled_by.map(CancelLink::new));
        Self { extra: Some(Box::new(CallExtra { due, alarm, callback, tie })), ..Self::new() }
    }

    /// Makes a call with these bounds whose caller does nothing else meanwhile.
    #[cold]
    pub(crate) fn waited_for_within(bounds: CallLimits) -> Self {
        Self { watch: CallWatch::waited_for(), ..Self::with_extra(bounds, None) }
    }

    /// The end.
    #[inline]
    pub(crate) fn done(&self) -> &Eventual<Outcome> {
        &self.done
    }

    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.done.is_ready()
    }

    /// The RPC layer has ended it.
    ///
    /// # Safety
    ///
    /// Once for each call.
    // Inlined, and errors apart, so that a response is written where it stays.
    #[inline(always)]
    pub(crate) unsafe fn complete(this: Shared<Self>, monitoring: &Monitoring, outcome: Outcome) {
        match outcome {
            Ok(response) if this.is_late() => {
                drop(response);
                // The alarm or a waiter may have said so already, or somebody has cancelled it.
                this.given_up.is_first(GaveUp::TimedOut);
                // SAFETY: this and the other arms are all that sets it, and one of them runs, once
                // (contract).
                unsafe { this.end_with(monitoring, HgError::Canceled) };
            }
            Ok(response) => {
                monitoring.call_answered(&this.watch, response.payload());
                // SAFETY: the same.
                unsafe { this.done.set_alone(Ok(response)) };
            }
            // SAFETY: the same.
            Err(error) => unsafe { this.end_with(monitoring, error) },
        }
        if this.extra.is_some() {
            Self::end_extra(this);
        }
    }

    /// Returns whether an answer comes after the deadline. The alarm may come later still: its
    /// execution stream was busy, and it waits for its turn behind the answer.
    #[inline(always)]
    fn is_late(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| is_past(extra.due))
    }

    /// # Safety
    ///
    /// As for [`complete`](Self::complete).
    #[cold]
    #[inline(never)]
    unsafe fn end_with(&self, monitoring: &Monitoring, error: HgError) {
        monitoring.call_failed(&self.watch, &self.given_up, &error);
        // SAFETY: the contract.
        unsafe { self.done.set_alone(Err(error)) };
    }

    #[cold]
    fn end_extra(this: Shared<Self>) {
        let Some(extra) = &this.extra else { return };
        extra.alarm.end();
        extra.tie.iter().for_each(CancelLink::end);
        let callback = lock(&extra.callback).take();
        if let Some(callback) = callback {
            callback(this.clone());
        }
    }

    /// Ends the call because its deadline passed, unless it is over or is being ended already. The
    /// end follows on the progress ULT. Its target knows the deadline, if it can know of one.
    pub(crate) fn time_out(&self, by: &dyn EndsEarly, op: OpRef) {
        if !self.is_over() && !by.is_forked() && self.given_up.is_first(GaveUp::TimedOut) {
            by.end(op);
        }
    }

    /// Cancels the call because it is not wanted any more, and tells its target.
    pub(crate) fn cancel(&self, by: &dyn EndsEarly, op: OpRef, to: &ProviderHandle) {
        // In a child process that was forked off it is the parent's to cancel.
        if !self.is_over() && !by.is_forked() && self.given_up.is_first(GaveUp::Canceled) {
            by.end_call(op, to.addr());
        }
    }

    /// Cancels the call because those for whom it is made have given up; past its deadline it times
    /// out instead.
    pub(crate) fn give_up(&self, by: &dyn EndsEarly, op: OpRef, to: &ProviderHandle) {
        match self.is_late() {
            true => self.time_out(by, op),
            false => self.cancel(by, op, to),
        }
    }

    /// Returns whether it is to begin: not if those have given up for whom it is.
    #[inline]
    pub(crate) fn is_wanted(&self, site: CallInfo<'_>) -> Result<(), ForwardError> {
        match &self.extra {
            None => Ok(()),
            Some(extra) => extra.is_wanted(site),
        }
    }

    /// It is under way: sees to it that it ends when its token fires, if it has one.
    pub(crate) fn tie(
        this: &Shared<Self>,
        by: &Arc<impl EndsEarly>,
        op: OpRef,
        to: &ProviderHandle,
    ) {
        if let Some(tie) = this.extra.as_ref().and_then(|extra| extra.tie.as_ref()) {
            tie.set(&Self::canceler(this, by, op, to));
        }
    }

    pub(crate) fn canceler(
        this: &Shared<Self>,
        by: &Arc<impl EndsEarly>,
        op: OpRef,
        to: &ProviderHandle,
    ) -> Canceler {
        Canceler::new(by, op, CancelTarget::Call(Shared::downgrade(this), to.clone()))
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.is_given()
    }

    /// Sees to it that the call ends when it is due, whether or not a caller waits.
    pub(crate) fn set_alarm(this: &Shared<Self>, by: &Arc<impl EndsEarly>, op: OpRef) {
        let Some(extra) = this.extra.as_ref().filter(|_| !this.is_over()) else { return };
        let Some(due) = extra.due else { return };
        extra.alarm.set(&**by, due, || {
            // Not a count of the instance, which ends its calls before it ends.
            let (call, by) = (Shared::downgrade(this), Arc::downgrade(by));
            move || {
                if let Some((call, by)) = call.upgrade().zip(by.upgrade()) {
                    call.time_out(&*by, op);
                }
            }
        });
    }

    #[cfg(test)]
    pub(crate) fn end_alarm(&self) {
        self.extra.as_ref().unwrap().alarm.end();
    }

    /// Reads the result of a call that is over.
    pub(crate) fn read<R: DeserializeOwned, T>(
        &self,
        (core, monitoring): (&Core<T>, &Monitoring),
        site: CallInfo<'_>,
    ) -> Result<R, ForwardError> {
        self.watch.resumed();
        let result = self.result((core, monitoring), site);
        self.watch.read();
        result
    }

    fn result<R: DeserializeOwned, T>(
        &self,
        (core, monitoring): (&Core<T>, &Monitoring),
        site: CallInfo<'_>,
    ) -> Result<R, ForwardError> {
        let response = match self.done.wait() {
            Ok(response) => response,
            Err(HgError::Canceled) => return Err(self.early_end(site)),
            Err(error) => return Err(failure(site, error.clone())),
        };
        let decode_error = |source| {
            monitoring.call_decoded(&self.watch, false);
            let peer = site.to.addr().to_string();
            ForwardError::Decode { rpc: site.rpc, peer, source }
        };
        let (code, body) = margo::split_response(response.payload()).map_err(decode_error)?;
        if code == ReturnCode::Success {
            let limits = core.proc_limits();
            let result = proc::from_slice_within(body, limits).map_err(decode_error)?;
            monitoring.call_decoded(&self.watch, true);
            return Ok(result);
        }
        let Some(detail) = margo::read_failure(body) else {
            return Err(failure(site, HgError::Foreign(code)));
        };
        let detail = na::plain::text(&detail).into_owned();
        if code == ReturnCode::Timeout && site.term.is_some_and(|term| !is_past(Some(term.at))) {
            // Its target takes our clock for ahead of what it is.
            core.clock_is_misjudged();
        }
        Err(refusal(site, code, detail))
    }

    /// Waits for a one-way call, which has no result.
    pub(crate) fn sent(&self, site: CallInfo<'_>) -> Result<(), ForwardError> {
        match self.done.wait() {
            Ok(_) => Ok(()),
            Err(HgError::Canceled) => Err(self.early_end(site)),
            Err(error) => Err(failure(site, error.clone())),
        }
    }

    #[cold]
    fn early_end(&self, site: CallInfo<'_>) -> ForwardError {
        let (rpc, peer) = (site.rpc, site.to.addr().to_string());
        match site.term.filter(|_| self.given_up.timed_out()) {
            Some(Deadline { limit, .. }) => {
                ForwardError::TimedOut { rpc, peer, limit, never_ran: false }
            }
            None => ForwardError::Canceled { rpc, peer, never_ran: false },
        }
    }
}

impl CallExtra {
    #[cold]
    fn is_wanted(&self, site: CallInfo<'_>) -> Result<(), ForwardError> {
        if self.tie.as_ref().is_none_or(|tie| tie.token().reason().is_none()) {
            return Ok(());
        }
        site.is_in_time()?;
        let (rpc, peer) = (site.rpc, site.to.addr().to_string());
        Err(ForwardError::Canceled { rpc, peer, never_ran: true })
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("is_over", &self.is_over()).finish_non_exhaustive()
    }
}

/// The meaning of [`ReturnCode::Again`] from a peer's RPC layer, see `hg/src/overflow/fetch.rs`.
const NO_ROOM_TO_FETCH: &str = "it holds too many bytes of long arguments, or has too many \
     operations in flight (HG_AGAIN); try again later, or raise its bound \
     (`margo.overflow_held_max`)";

/// The explanation of codes from peers that are not our own.
const FOREIGN_CODE: &str = "a C program, or an older version, said so: its runtime, or a handler \
     that may have done anything before";

/// Returns the error that the return code of one of our own peers means.
fn refusal(site: CallInfo<'_>, code: ReturnCode, detail: String) -> ForwardError {
    let (rpc, peer, provider) = (site.rpc, site.to.addr().to_string(), site.to.id());
    if let (ReturnCode::Timeout, Some(Deadline { limit, .. })) = (code, site.term) {
        return ForwardError::TimedOut { rpc, peer, limit, never_ran: true };
    }
    match code {
        ReturnCode::NoEntry => ForwardError::NotRegistered { rpc, peer, provider },
        ReturnCode::Fault => ForwardError::Panicked { rpc, peer, detail },
        ReturnCode::ProtocolError => ForwardError::BadArguments { rpc, peer, detail },
        ReturnCode::Again if detail.is_empty() => {
            let detail = "it answered HG_AGAIN".to_owned();
            ForwardError::Busy { rpc, peer, detail }
        }
        ReturnCode::Again | ReturnCode::Busy => ForwardError::Busy { rpc, peer, detail },
        ReturnCode::Permission if detail.is_empty() => ForwardError::PeerClosing { rpc, peer },
        ReturnCode::Permission => ForwardError::Permission { rpc, peer },
        code => ForwardError::Failed { rpc, peer, code, detail },
    }
}

/// Returns the error that an error of the RPC layer means for a call.
pub(crate) fn failure(site: CallInfo<'_>, error: HgError) -> ForwardError {
    match error {
        // Of the codes that its RPC layer sends alone this is the one with a reason worth a text.
        HgError::Remote(ReturnCode::Again) => {
            refusal(site, ReturnCode::Again, NO_ROOM_TO_FETCH.to_owned())
        }
        HgError::Remote(code) => refusal(site, code, String::new()),
        HgError::Foreign(code) => {
            let (peer, detail) = (site.to.addr().to_string(), FOREIGN_CODE.to_owned());
            ForwardError::Failed { rpc: site.rpc, peer, code, detail }
        }
        HgError::Proc(source) => ForwardError::Encode { rpc: site.rpc, source },
        HgError::Closed => ForwardError::Closing { rpc: site.rpc },
        HgError::Na(na::Error::Closed) => ForwardError::Closing { rpc: site.rpc },
        source => {
            let peer = site.to.addr().to_string();
            ForwardError::Network { rpc: site.rpc, peer, source }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No code of others runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ult::Semaphore;

    use super::*;
    use crate::{Instance, Rpc};

    const HOLD: Rpc<(), ()> = Rpc::new("hold");
    const FAR: Duration = Duration::from_secs(3600);

    /// A service that answers `HOLD` only when it gets a permit, and a client.
    fn pair(transport: &str) -> (Instance, Instance, ProviderHandle, Arc<Semaphore>) {
        let service = Instance::builder(transport).start().unwrap();
        let client = Instance::builder(transport).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let go = Arc::new(Semaphore::new(0));
        let may_go = go.clone();
        service
            .register(HOLD, move |handle| {
                may_go.acquire(1).forget();
                let _ = handle.respond(&());
            })
            .unwrap();
        (service, client, target, go)
    }

    fn until_none_in_flight(client: &Instance) {
        let started = Instant::now();
        while client.inner().core.in_flight() != 0 {
            assert!(started.elapsed() < Duration::from_secs(60), "a call is still in flight");
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_goes_away_leaves_no_call_behind() {
        for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
            let (service, client, target, go) = pair(transport);
            let start = || client.rpc(HOLD, &target, &()).start().unwrap();
            drop(start());
            until_none_in_flight(&client);
            // A future that was polled.
            let mut request = start();
            assert!(ult::block_on_deadline(&mut request, Instant::now()).is_none());
            drop(request);
            until_none_in_flight(&client);
            // A ULT that waits.
            for timed in [false, true] {
                let (own, to) = (client.clone(), target.clone());
                let ult = client.layout().rpc_pool().spawn(move || match timed {
                    true => own.forward_timed(HOLD, &to, &(), FAR),
                    false => own.forward(HOLD, &to, &()),
                });
                let ult = ult.unwrap();
                while client.inner().core.in_flight() == 0 {
                    std::thread::yield_now();
                }
                ult.cancel();
                assert!(ult.join().is_err());
                until_none_in_flight(&client);
            }
            // Unlike that, this one goes on.
            start().detach();
            assert_eq!(client.inner().core.in_flight(), 1);
            go.release(100);
            until_none_in_flight(&client);
            client.finalize_and_wait().unwrap();
            service.finalize_and_wait().unwrap();
        }
    }

    #[test]
    fn a_late_answer_is_none_also_if_no_alarm_was_in_time() {
        for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
            let (service, client, target, go) = pair(transport);
            let limit = Duration::from_millis(20);
            let request = client.rpc(HOLD, &target, &()).timeout(limit).start().unwrap();
            let due = Instant::now() + limit;
            request.without_alarm();
            while Instant::now() < due {
                std::thread::yield_now();
            }
            go.release(100);
            until_none_in_flight(&client);
            let result = request.wait();
            assert!(matches!(result, Err(ForwardError::TimedOut { .. })), "{result:?}");
            // In time.
            client.rpc(HOLD, &target, &()).timeout(FAR).start().unwrap().wait().unwrap();
            client.finalize_and_wait().unwrap();
            service.finalize_and_wait().unwrap();
        }
    }

    #[test]
    fn the_deadline_of_one_does_not_wait_for_the_end_of_another() {
        let (service, client, target, go) = pair("na+sm://");
        let first = client.rpc(HOLD, &target, &()).start().unwrap();
        let limit = Duration::from_millis(20);
        let second = client.rpc(HOLD, &target, &()).timeout(limit).start().unwrap();
        second.without_alarm();
        let waits = std::thread::spawn(move || crate::wait_all([first, second]));
        let started = Instant::now();
        while client.inner().core.in_flight() != 1 {
            assert!(started.elapsed() < Duration::from_secs(60), "it outlives its deadline");
            std::thread::yield_now();
        }
        go.release(100);
        let [first, second] = waits.join().unwrap().try_into().unwrap();
        assert!(
            first.is_ok() && matches!(second, Err(ForwardError::TimedOut { .. })),
            "{second:?}"
        );
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }

    #[test]
    fn who_has_no_room_says_for_what() {
        let (service, client, to, _) = pair("na+sm://");
        let site = CallInfo { rpc: "hold", to: &to, term: None };
        let peer = to.addr();
        let text = |error: ForwardError| {
            assert!(matches!(error, ForwardError::Busy { .. }) && error.never_ran(), "{error:?}");
            error.to_string()
        };
        let refused = |code, detail: &str| text(refusal(site, code, detail.to_owned()));
        let bounds = "is too busy for `hold`: try again later, or raise its bounds";
        assert_eq!(refused(ReturnCode::Busy, ""), format!("{peer} {bounds} (`margo.admission`)"));
        for code in [ReturnCode::Busy, ReturnCode::Again] {
            assert_eq!(refused(code, "no ULT"), format!("{peer} did not take `hold`: no ULT"));
        }
        // Of a C peer, for instance.
        let again = refused(ReturnCode::Again, "");
        assert_eq!(again, format!("{peer} did not take `hold`: it answered HG_AGAIN"));
        let again = text(failure(site, HgError::Remote(ReturnCode::Again)));
        assert!(again.contains("`margo.overflow_held_max`"), "{again}");
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}
