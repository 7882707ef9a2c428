//! Deadlines, which go on from call to call, and cancels, if they are to.
//!
//! A request that came with a deadline lends it to the ULT of its handler. Calls made there give up
//! by then, too, and tell their targets; transfers give up as well, and none is started later. So
//! nobody works for a caller that has given up, however long the chain. The deadline is a value of
//! that ULT alone ([`ult::UltLocal`]): ULTs that a handler spawns have none, unless they call with
//! a limit of their own.
//!
//! A cancel by the caller ends the calls that are made in [`CancelToken::cancels_calls_in`], and no
//! others. The token is a ULT-local value, too; a call takes it over when it is made
//! (`cancel_link.rs`).

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use ult::UltLocal;

use crate::{CancelToken, ForwardError};

/// When a call has to be over, and the time that this is from its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    pub(crate) limit: Duration,
}

impl Deadline {
    /// Returns the term of a call which starts now: its own limit, and when the request on whose
    /// behalf it is made expires. A limit beyond what the clock can count is no limit.
    #[inline]
    pub(crate) fn of_call(limit: Option<Duration>, inherited: Option<Instant>) -> Option<Self> {
        if limit.is_none() && inherited.is_none() {
            return None;
        }
        let now = Instant::now();
        let own = limit.and_then(|limit| now.checked_add(limit));
        let at = own.into_iter().chain(inherited).min()?;
        Some(Self { at, limit: at.saturating_duration_since(now) })
    }
}

/// Returns whether that time has come.
pub(crate) fn is_past(due: Option<Instant>) -> bool {
    due.is_some_and(|due| due <= Instant::now())
}

static DEADLINE: UltLocal<Cell<Option<Instant>>> = UltLocal::new(|| Cell::new(None));

/// The token of the innermost [`CancelToken::cancels_calls_in`].
static CANCELED_BY: UltLocal<RefCell<Option<CancelToken>>> = UltLocal::new(|| RefCell::new(None));

/// The caller is the unit of a handler whose request has this deadline.
pub(crate) fn begin(deadline: Instant) {
    DEADLINE.with(|own| own.set(Some(deadline)));
}

/// Returns the deadline of the request on whose behalf the caller runs.
fn inherited() -> Option<Instant> {
    DEADLINE.with_existing(Cell::get).flatten()
}

/// Returns the deadline that a caller has to observe when it starts a transfer.
#[inline]
pub(crate) fn of_starter() -> Option<Instant> {
    if ult::integration::is_tasklet_or_has_locals() { inherited() } else { None }
}

/// The bounds of a call, each of which ends it early.
#[derive(Default)]
pub(crate) struct CallLimits {
    pub(crate) term: Option<Deadline>,
    pub(crate) canceled_by: Option<CancelToken>,
}

impl CallLimits {
    /// Those of a call of `rpc` that its caller is about to wait for: the limit, and what it has to
    /// observe; or that it cannot wait at all.
    #[inline]
    pub(crate) fn of_caller(
        rpc: &'static str,
        limit: Option<Duration>,
    ) -> Result<Self, ForwardError> {
        match ult::integration::is_tasklet_or_has_locals() {
            true => Self::of_special_caller(rpc, limit),
            false => Ok(Self::of_limit(limit)),
        }
    }

    /// Those of a call that its caller starts and does not wait for.
    #[inline]
    pub(crate) fn of_starter(limit: Option<Duration>) -> Self {
        if ult::integration::is_tasklet_or_has_locals() {
            Self::inherited(limit)
        } else {
            Self::of_limit(limit)
        }
    }

    #[inline]
    fn of_limit(limit: Option<Duration>) -> Self {
        Self { term: Deadline::of_call(limit, None), canceled_by: None }
    }

    #[cold]
    fn of_special_caller(rpc: &'static str, limit: Option<Duration>) -> Result<Self, ForwardError> {
        match ult::is_tasklet() {
            true => Err(ForwardError::Tasklet { rpc, never_ran: true }),
            false => Ok(Self::inherited(limit)),
        }
    }

    fn inherited(limit: Option<Duration>) -> Self {
        let canceled_by = CANCELED_BY.with_existing(|token| token.borrow().clone()).flatten();
        Self { term: Deadline::of_call(limit, inherited()), canceled_by }
    }
}

impl CancelToken {
    /// Runs `work`, and lets this token cancel the calls that are made in it: they end with
    /// [`ForwardError::Canceled`] when it fires, and their targets are told in turn, as by
    /// [`ForwardRequest::cancel`](crate::ForwardRequest::cancel); one that would be made later is
    /// not sent ([`never_ran`](ForwardError::never_ran)). Calls whose deadline has passed by then
    /// end with [`ForwardError::TimedOut`]. So a handler that forwards says that its call is given
    /// up when its own caller gives up, and if all do, the last of a chain hears when the first one
    /// cancels.
    ///
    /// ```
    /// # use margo::{Handle, Instance, ProviderHandle, Rpc};
    /// # const SEARCH: Rpc<String, Vec<String>> = Rpc::new("search");
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # let next = ProviderHandle::from(service.self_addr());
    /// service.serve(SEARCH).returning(move |call: &Handle<String, Vec<String>>| {
    ///     let found = call.cancel_token().cancels_calls_in(|| {
    ///         // Also those that something deep below makes.
    ///         call.instance().forward(SEARCH, &next, call.args())
    ///     });
    ///     found.unwrap_or_default()
    /// })?;
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Unlike its deadline, which a handler knows from the beginning, a caller's cancel comes at
    /// any moment: a handler may have begun a change whose parts belong together. So calls go on
    /// unless the handler says otherwise, and it says so for reading, for calls that may be made
    /// twice, and for those that it can undo. Undoing itself is for
    /// [`without_deadline`](crate::cancel::without_deadline), in which this does not hold.
    ///
    /// It holds for every kind of call, blocking or not, and for one-way requests until they are
    /// sent, made by this ULT or thread in `work`: a call that is started there stays tied to the
    /// token for as long as it takes, also detached, or awaited elsewhere. It does not hold for
    /// ULTs that are spawned there, which may use a clone, nor for bulk transfers. If several are
    /// nested, the innermost counts. When the request is answered, its origin cannot give it up any
    /// more, and calls go on. Other calls cost nothing for this.
    ///
    /// Counterpart: none.
    pub fn cancels_calls_in<R>(&self, work: impl FnOnce() -> R) -> R {
        let _restore = Restore(CANCELED_BY.with(|token| token.replace(Some(self.clone()))));
        work()
    }
}

/// Puts the token back that counted before.
struct Restore(Option<CancelToken>);

impl Drop for Restore {
    fn drop(&mut self) {
        let before = self.0.take();
        // Dropped when nothing is borrowed any more.
        drop(CANCELED_BY.with_existing(|token| token.replace(before)));
    }
}

/// Runs `work` without the deadline that the caller's ULT has from the request that it handles:
/// calls and transfers in it take as long as they do. Nor does a token cancel them, in whose
/// [`cancels_calls_in`](CancelToken::cancels_calls_in) this is. For work that has to be completed
/// although the caller of the handler may give up: undoing, say, or what others wait for.
///
/// Outside of handlers, and in ULTs that they spawn, there is no such deadline anyway.
///
/// ```
/// assert_eq!(margo::cancel::without_deadline(|| 42), 42);
/// ```
pub fn without_deadline<R>(work: impl FnOnce() -> R) -> R {
    struct RestoreDeadline(Option<Instant>);
    impl Drop for RestoreDeadline {
        fn drop(&mut self) {
            if let Some(deadline) = self.0 {
                begin(deadline);
            }
        }
    }
    let _deadline = RestoreDeadline(DEADLINE.with_existing(Cell::take).flatten());
    let _token = Restore(CANCELED_BY.with_existing(RefCell::take).flatten());
    work()
}
