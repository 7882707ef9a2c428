//! Park and unpark: the simplest way to wait, for ULTs and OS threads alike.
//!
//! Every ULT and every thread has a token. `unpark` stores it and wakes, `park` waits for it and
//! takes it. Other waits (mutex, eventual, join) have flags of their own and never take the token,
//! so an unpark that comes while its target waits for a lock is there at the next `park`.

use std::time::{Duration, Instant};

use crate::base::park_word::ThreadParker;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::unit::UltRef;
use crate::engine::waiting::waiter::thread_parker;
use crate::engine::xstream::cancel;
use crate::engine::xstream::current;
use crate::engine::xstream::push::resume;
use crate::engine::xstream::switch;
use crate::sync::Arc;

/// Ends a [`park`] of the ULT or thread that made it; see [`unparker`].
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let (sender, receiver) = ult::channel::bounded(1);
/// let waits = pool.spawn(move || {
///     sender.send(ult::unparker()).expect("the receiver is there");
///     ult::park();
///     "unparked"
/// })?;
/// receiver.recv()?.unpark();
/// assert_eq!(waits.join()?, "unparked");
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Unparker(pub(crate) Target);

#[derive(Debug)]
pub(crate) enum Target {
    Ult(UltRef),
    Thread(Arc<ThreadParker>),
}

impl Clone for Target {
    fn clone(&self) -> Self {
        match self {
            Self::Ult(ult) => Self::Ult(UltRef::share(ult.ptr())),
            Self::Thread(parker) => Self::Thread(parker.clone()),
        }
    }
}

impl Unparker {
    /// Ends the current or the next `park` of the target; several unparks before one park count
    /// once. Never blocks; may be called from ULTs of any runtime and from OS threads, and has no
    /// effect on a ULT that has ended.
    ///
    /// Counterpart: `ABT_thread_resume`, but never lost.
    pub fn unpark(&self) {
        match &self.0 {
            Target::Ult(ult) => {
                ult.ptr().leave_token();
                resume(ult.ptr());
            }
            Target::Thread(parker) => parker.leave_token(),
        }
    }
}

/// A handle with which anybody can end a [`park`] of the calling ULT or thread.
#[must_use]
pub fn unparker() -> Unparker {
    match current::ult() {
        Some(ult) => Unparker(Target::Ult(UltRef::share(ult))),
        None => Unparker(Target::Thread(thread_parker())),
    }
}

/// Waits for the token of the calling ULT or thread and takes it. Never returns without one. A
/// cancellation point.
///
/// A tasklet cannot suspend, nor can a ULT in a destructor during unwinding: there it blocks the
/// xstream and looks for the token every millisecond.
///
/// Counterpart: `ABT_self_suspend`.
pub fn park() {
    park_until(None);
}

/// Like [`park`], but no longer than until `deadline` (`None`: no limit). `true`: the token came.
pub fn park_deadline(deadline: Option<Instant>) -> bool {
    park_until(deadline)
}

fn park_until(deadline: Option<Instant>) -> bool {
    let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if let Some(ult) = current::suspendable() {
        ult.state.waits.set(WaitKind::Park);
        let has_token = std::cell::Cell::new(false);
        switch::suspend_until(ult, deadline, || {
            has_token.set(has_token.get() || ult.take_token());
            has_token.get() || cancel::is_pending(ult)
        });
        if !has_token.get() {
            switch::check(ult);
        }
        return has_token.get();
    }
    if let Some(ult) = current::ult() {
        const NAP: Duration = Duration::from_millis(1);
        loop {
            if ult.take_token() {
                return true;
            }
            match left() {
                Some(left) if left.is_zero() => return false,
                left => std::thread::sleep(left.map_or(NAP, |left| left.min(NAP))),
            }
        }
    }
    let parker = thread_parker();
    loop {
        if parker.take_token() {
            return true;
        }
        let left = left();
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        parker.park(left);
    }
}
