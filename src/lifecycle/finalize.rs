//! Callbacks that run when an instance ends: before its network closes, or after.
//!
//! [`shutdown`] says when. Each stage is a stack: the last callback entered runs first, in the
//! order in which destructors would. A stage ends when its stack is empty; until then callbacks may
//! be entered, also by callbacks, and after that entering one is an error. So a callback runs once,
//! or is handed back, or its owner has removed it; it is never lost.
//!
//! Each callback runs on an OS thread of its own, which the shutdown waits for within the grace
//! period; then the next one runs beside it. So a callback that hangs delays the shutdown by one
//! grace period, and the callbacks after it still run in their stage. Callbacks that are entered
//! while a stage runs could go on for ever, each entering the next: a stage that has taken the
//! grace period takes no more.
//!
//! Code that the end of an instance waits for would wait for itself if it waited for the end. So
//! the end notes the thread, or ULT, on which it runs such code, with the instance and with its
//! parents, whose ends wait for its own; there waiting is an error.
//!
//! | state | under |
//! |---|---|
//! | a stage's stack and whether it takes more | the stage's lock, not held while a callback runs |
//! | who runs code that the end waits for | `runners`, for the length of a look-up |
//!
//! [`shutdown`]: crate::lifecycle::shutdown

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::error::StageOver;
use crate::instance::callbacks::{
    Callback, CallbackStage, Callbacks, Entered, Runner, runner_here,
};
use crate::instance::inner::Inner;
use crate::support::contain::contain;
use crate::support::event::Event;
use crate::support::log::log;
use crate::{FinalizeError, Instance};

/// The calling thread or ULT runs code that the end of an instance waits for, as long as this
/// lives.
pub(crate) struct EndBlocker {
    runner: Runner,
    /// The callbacks of the instance and of its parents.
    awaited_by: Vec<Arc<Callbacks>>,
}

impl EndBlocker {
    pub(crate) fn of(inner: &Inner) -> Self {
        let runner = runner_here();
        let mut awaited_by = vec![inner.callbacks.clone()];
        let mut next = inner.tree.parent();
        while let Some(parent) = next {
            awaited_by.push(parent.inner().callbacks.clone());
            next = parent.inner().tree.parent();
        }
        awaited_by.iter().for_each(|callbacks| callbacks.runners().push(runner));
        Self { runner, awaited_by }
    }
}

impl Drop for EndBlocker {
    fn drop(&mut self) {
        for callbacks in &self.awaited_by {
            let mut runners = callbacks.runners();
            // One of them: this may be inside of another.
            if let Some(place) = runners.iter().position(|runner| *runner == self.runner) {
                runners.swap_remove(place);
            }
        }
    }
}

/// Runs the callbacks of a stage and waits for each, for the grace period at most.
pub(crate) fn run(inner: &Arc<Inner>, stage: CallbackStage) {
    let (shutdown, began) = (&inner.shutdown, Instant::now());
    loop {
        let takes_more = began.elapsed() < shutdown.grace();
        let Some(entered) = inner.callbacks.next(stage, takes_more) else { return };
        let (own, at) = (inner.clone(), entered.at);
        if !shutdown.run_apart("margo-callback", move || run_here(&own, entered)) {
            let left = inner.callbacks.left(stage);
            log!(
                inner.log,
                ERROR,
                ?stage,
                left,
                grace = ?shutdown.grace(),
                "the finalize callback that was entered at {at} does not end; going on without it"
            );
        }
    }
}

/// Runs a callback on the calling thread.
fn run_here(inner: &Arc<Inner>, entered: Entered) {
    let Entered { callback, at, .. } = entered;
    let instance = Instance::new(inner.clone());
    let _running = EndBlocker::of(inner);
    let what = format_args!("the finalize callback that was entered at {at}");
    contain(&inner.log, what, || callback(&instance));
}

/// A finalize callback that was entered. Dropping this removes it; [`keep`](Self::keep) leaves it
/// in place for as long as the instance lives.
///
/// Whatever enters a callback, a provider for example, holds this, so that its callback goes with
/// it. That is what C Margo's owner pointers are for.
///
/// ```
/// use std::sync::mpsc;
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let (sender, ended) = mpsc::channel();
/// let callback = instance.on_finalize(move |_| {
///     let _ = sender.send("ended");
/// })?;
/// callback.keep();
/// let other = instance.on_finalize(|_| unreachable!("it is removed"))?;
/// assert!(other.remove(), "it has not run");
///
/// instance.finalize_and_wait()?;
/// assert_eq!(ended.recv()?, "ended");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `margo_provider_push_finalize_callback` and `_pop_`.
#[must_use = "dropping this removes the callback; `keep` leaves it in place"]
pub struct FinalizeCallback {
    callbacks: Weak<Callbacks>,
    stage: CallbackStage,
    number: u64,
}

impl FinalizeCallback {
    /// Leaves the callback in place.
    pub fn keep(self) {
        let mut own = self;
        own.callbacks = Weak::new();
    }

    /// Removes the callback. `true`: it has not run and never will, and was dropped. `false`: it
    /// has run, or runs; this does not wait for it.
    pub fn remove(self) -> bool {
        self.take().is_some()
    }

    fn take(&self) -> Option<Callback> {
        let callbacks = self.callbacks.upgrade()?;
        // In a child process the lock may be held for ever; there it is the parent's.
        if callbacks.process.is_other() { None } else { callbacks.remove(self.stage, self.number) }
    }
}

impl Drop for FinalizeCallback {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl fmt::Debug for FinalizeCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FinalizeCallback").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl Instance {
    /// Has `callback` run at the beginning of [`finalize`](Self::finalize), after the handlers have
    /// ended and before the network closes: it may make calls and wait. Requests are not taken any
    /// more.
    ///
    /// The callback entered last runs first; each runs once, after the one before has ended, on an
    /// OS thread of its own. A panic in one is caught and logged, and the next one runs.
    ///
    /// Each callback has the grace period ([`InstanceBuilder::grace`]). A callback that does not
    /// end in it is logged by the place where it was entered, and goes on beside the next one. When
    /// the last one has ended, or its time is over, the network closes, which ends the calls that
    /// they make. So callbacks that hang take a grace period each. With a grace period of zero all
    /// are started, and none is waited for.
    ///
    /// In a callback do not wait for the end, which waits for the callback:
    /// [`wait_for_finalize`](Self::wait_for_finalize) is an error there
    /// ([`FinalizeError::OwnCallback`]). Waiting by way of others, as by joining a ULT that waits
    /// for the end, uses up the callback's time.
    ///
    /// Use the instance that the callback is given. One that it owns would keep the instance from
    /// ending by itself when its last user drops it; what the callback shares with others can own
    /// a [`WeakInstance`](crate::WeakInstance).
    ///
    /// # Errors
    ///
    /// [`StageOver`]: the instance has gone past this point; `callback` was dropped. While these
    /// callbacks run more may be entered, by them too, until they have taken the grace period
    /// together.
    ///
    /// Counterpart: `margo_push_prefinalize_callback`.
    ///
    /// [`InstanceBuilder::grace`]: crate::InstanceBuilder::grace
    #[track_caller]
    pub fn on_prefinalize(
        &self,
        callback: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<FinalizeCallback, StageOver> {
        self.enter(CallbackStage::Before, Box::new(callback))
    }

    /// Has `callback` run in [`finalize`](Self::finalize) after the network has closed: all calls
    /// and transfers have ended, and no handler is registered any more. ULTs can still run; the
    /// configuration and statistics can be read. Otherwise as
    /// [`on_prefinalize`](Self::on_prefinalize).
    ///
    /// # Errors
    ///
    /// As `on_prefinalize`.
    ///
    /// Counterpart: `margo_push_finalize_callback`.
    #[track_caller]
    pub fn on_finalize(
        &self,
        callback: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<FinalizeCallback, StageOver> {
        self.enter(CallbackStage::After, Box::new(callback))
    }

    #[track_caller]
    fn enter(
        &self,
        stage: CallbackStage,
        callback: Callback,
    ) -> Result<FinalizeCallback, StageOver> {
        let at = Location::caller();
        let callbacks = &self.inner().callbacks;
        if self.inner().is_forked() {
            return Err(StageOver);
        }
        let number = callbacks.enter(stage, callback, at).ok_or(StageOver)?;
        Ok(FinalizeCallback { callbacks: Arc::downgrade(callbacks), stage, number })
    }
}

/// Ends an instance from a signal handler; see [`Instance::signal_finalizer`].
///
/// ```
/// use std::sync::OnceLock;
/// use margo::{Instance, SignalFinalizer};
///
/// static STOP: OnceLock<SignalFinalizer> = OnceLock::new();
///
/// // Installed with `sigaction` or a crate for that.
/// extern "C" fn on_sigterm(_signal: i32) {
///     if let Some(stop) = STOP.get() {
///         stop.finalize();
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let instance = Instance::builder("na+sm://").start()?;
/// let _ = STOP.set(instance.signal_finalizer()?);
/// # on_sigterm(15);
/// instance.wait_for_finalize()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SignalFinalizer {
    event: Arc<Event>,
}

impl SignalFinalizer {
    /// Begins to shut down, as [`Instance::finalize`] does. Async-signal-safe: it writes to an
    /// eventfd and does nothing else, keeps `errno`, and may be called any number of times. In a
    /// child process that was forked off it has no effect.
    pub fn finalize(&self) {
        self.event.ring();
    }
}

impl Instance {
    /// Something with which a signal handler can end this instance. The first call starts a thread
    /// that sleeps until then.
    ///
    /// # Errors
    ///
    /// [`FinalizeError::Thread`] when there is no descriptor or thread left;
    /// [`FinalizeError::Forked`].
    pub fn signal_finalizer(&self) -> Result<SignalFinalizer, FinalizeError> {
        let failed = |error: std::io::Error| FinalizeError::Thread(error.to_string());
        let shutdown = &self.inner().shutdown;
        if self.inner().is_forked() {
            return Err(FinalizeError::Forked);
        }
        let mut place = shutdown.signal.event();
        if let Some(event) = &*place {
            return Ok(SignalFinalizer { event: event.clone() });
        }
        let event = Arc::new(Event::new().map_err(failed)?);
        let finalizer = SignalFinalizer { event: event.clone() };
        if shutdown.has_begun() {
            return Ok(finalizer);
        }
        let (own, instance) = (event.clone(), Arc::downgrade(self.inner()));
        std::thread::Builder::new()
            .name("margo-signal".into())
            .spawn(move || {
                own.wait();
                if let Some(inner) = instance.upgrade() {
                    inner.begin_shutdown();
                }
            })
            .map_err(failed)?;
        *place = Some(event);
        Ok(finalizer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(callbacks: &Callbacks, stage: CallbackStage) -> Option<u64> {
        callbacks.enter(stage, Box::new(|_| ()), Location::caller())
    }

    #[test]
    fn the_last_one_entered_comes_first_and_a_removed_one_never() {
        let callbacks = Callbacks::default();
        let numbers: Vec<_> =
            (0..4).map(|_| enter(&callbacks, CallbackStage::Before).unwrap()).collect();
        assert!(callbacks.remove(CallbackStage::Before, numbers[1]).is_some());
        assert!(callbacks.remove(CallbackStage::Before, numbers[1]).is_none());
        assert!(callbacks.remove(CallbackStage::After, numbers[0]).is_none(), "another stage");
        assert_eq!(callbacks.left(CallbackStage::Before), 3);
        for number in [numbers[3], numbers[2], numbers[0]] {
            assert_eq!(callbacks.next(CallbackStage::Before, true).unwrap().number, number);
        }
        assert_eq!(callbacks.left(CallbackStage::Before), 0);
    }

    #[test]
    fn a_stage_is_over_when_its_stack_is_empty_and_not_before() {
        let callbacks = Callbacks::default();
        enter(&callbacks, CallbackStage::After).unwrap();
        assert!(callbacks.next(CallbackStage::After, true).is_some());
        assert!(enter(&callbacks, CallbackStage::After).is_some(), "by the one that runs");
        assert!(callbacks.next(CallbackStage::After, true).is_some());
        assert!(callbacks.next(CallbackStage::After, true).is_none());
        assert!(enter(&callbacks, CallbackStage::After).is_none());
        assert!(!callbacks.stack(CallbackStage::Before).is_over);
        assert!(callbacks.next(CallbackStage::Before, true).is_none());
        assert!(enter(&callbacks, CallbackStage::Before).is_none());
    }

    #[test]
    fn a_stage_that_takes_no_more_still_runs_what_it_has() {
        let callbacks = Callbacks::default();
        let numbers = [(); 2].map(|()| enter(&callbacks, CallbackStage::Before).unwrap());
        assert_eq!(callbacks.next(CallbackStage::Before, false).unwrap().number, numbers[1]);
        assert!(enter(&callbacks, CallbackStage::Before).is_none());
        assert_eq!(callbacks.next(CallbackStage::Before, false).unwrap().number, numbers[0]);
        assert!(callbacks.next(CallbackStage::Before, false).is_none());
    }

    #[test]
    fn only_who_runs_for_the_end_is_told_so() {
        let own = crate::init("{}").unwrap();
        let child = own.init_child("{}").unwrap();
        let told = |instance: &Instance| instance.inner().callbacks.awaits_caller();
        let outer = EndBlocker::of(own.inner());
        let inner = EndBlocker::of(child.inner());
        assert!(told(&own) && told(&child));
        let others = own.clone();
        assert!(!std::thread::spawn(move || told(&others)).join().unwrap());
        drop(inner);
        assert!(told(&own) && !told(&child));
        drop(outer);
        assert!(!told(&own));
        own.finalize_and_wait().unwrap();
    }
}
