//! Callbacks that run when an instance ends: before its network closes, or after.
//!
//! [`shutdown`](crate::shutdown) says when. Each stage is a stack: the last callback entered runs
//! first, in the order in which destructors would. A stage ends when its stack is empty; until then
//! callbacks may be entered, also by callbacks, and after that entering one is an error. So a
//! callback runs once, or is handed back, or its owner has removed it; it is never lost.
//!
//! They run on an OS thread of their own, which the shutdown waits for within the grace period. A
//! callback that hangs therefore holds up nothing else.
//!
//! | state | under |
//! |---|---|
//! | a stage's stack and whether it is over | the stage's lock, never held while a callback runs |

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use na::fork::Process;

use crate::contain::contain;
use crate::error::StageOver;
use crate::instance::Inner;
use crate::log::log;
use crate::{FinalizeError, Instance};

type Callback = Box<dyn FnOnce(&Instance) + Send>;

/// When a callback runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The network works.
    Before,
    /// It is closed.
    After,
}

/// The callbacks of one stage, last one on top.
#[derive(Default)]
struct Stack {
    /// With numbers that grow.
    callbacks: Vec<(u64, Callback)>,
    entered: u64,
    is_over: bool,
}

/// The callbacks of an instance.
#[derive(Default)]
pub(crate) struct Callbacks {
    before: Mutex<Stack>,
    after: Mutex<Stack>,
    process: Process,
}

impl Callbacks {
    fn stack(&self, stage: Stage) -> MutexGuard<'_, Stack> {
        let stack = match stage {
            Stage::Before => &self.before,
            Stage::After => &self.after,
        };
        stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: the stage is over.
    fn enter(&self, stage: Stage, callback: Callback) -> Option<u64> {
        let mut stack = self.stack(stage);
        if stack.is_over {
            return None;
        }
        stack.entered += 1;
        let number = stack.entered;
        stack.callbacks.push((number, callback));
        Some(number)
    }

    fn remove(&self, stage: Stage, number: u64) -> Option<Callback> {
        let mut stack = self.stack(stage);
        let found = stack.callbacks.binary_search_by_key(&number, |entered| entered.0);
        found.ok().map(|place| stack.callbacks.remove(place).1)
    }

    /// Takes the next one to run. `None`: the stage is over now.
    fn next(&self, stage: Stage) -> Option<Callback> {
        let mut stack = self.stack(stage);
        let next = stack.callbacks.pop();
        stack.is_over = next.is_none();
        next.map(|(_, callback)| callback)
    }

    /// Whether there is nothing to run; then the stage is over.
    fn skip(&self, stage: Stage) -> bool {
        let mut stack = self.stack(stage);
        stack.is_over = stack.callbacks.is_empty();
        stack.is_over
    }
}

/// Runs the callbacks of a stage and waits for them, for the grace period at most.
pub(crate) fn run(inner: &Arc<Inner>, stage: Stage) {
    if inner.shutdown.callbacks.skip(stage) {
        return;
    }
    let own = inner.clone();
    if !inner.shutdown.run_apart("margo-callbacks", move || run_here(&own, stage)) {
        log!(
            inner.log,
            ERROR,
            ?stage,
            grace = ?inner.shutdown.grace(),
            "a finalize callback does not end; going on without it"
        );
    }
}

/// Runs the callbacks of a stage on the calling thread.
fn run_here(inner: &Arc<Inner>, stage: Stage) {
    let instance = Instance::new(inner.clone());
    while let Some(callback) = inner.shutdown.callbacks.next(stage) {
        contain(&inner.log, "a finalize callback", || callback(&instance));
    }
}

/// A finalize callback that was entered. Dropping this removes it; [`keep`](Self::keep) leaves it
/// in place for as long as the instance lives.
///
/// Whatever enters a callback, a provider for example, holds this, so that its callback goes with
/// it. That is what C Margo's owner pointers are for.
///
/// Counterpart: `margo_provider_push_finalize_callback` and `_pop_`.
#[must_use = "dropping this removes the callback; `keep` leaves it in place"]
pub struct FinalizeCallback {
    callbacks: Weak<Callbacks>,
    stage: Stage,
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
    /// OS thread of their own. A panic in one is caught and logged, and the next one runs. All of
    /// them together have the grace period ([`InstanceBuilder::grace`]); then the network closes,
    /// which ends the calls that they make.
    ///
    /// Use the instance that the callback is given. One that it owns would keep the instance from
    /// ending by itself when its last user drops it.
    ///
    /// # Errors
    ///
    /// [`StageOver`]: the instance has gone past this point; `callback` was dropped.
    ///
    /// Counterpart: `margo_push_prefinalize_callback`.
    ///
    /// [`InstanceBuilder::grace`]: crate::InstanceBuilder::grace
    pub fn on_prefinalize(
        &self,
        callback: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<FinalizeCallback, StageOver> {
        self.enter(Stage::Before, Box::new(callback))
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
    pub fn on_finalize(
        &self,
        callback: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<FinalizeCallback, StageOver> {
        self.enter(Stage::After, Box::new(callback))
    }

    fn enter(&self, stage: Stage, callback: Callback) -> Result<FinalizeCallback, StageOver> {
        let callbacks = &self.inner().shutdown.callbacks;
        if self.inner().is_forked() {
            return Err(StageOver);
        }
        let number = callbacks.enter(stage, callback).ok_or(StageOver)?;
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

/// What wakes the thread that waits for a signal.
#[derive(Debug)]
pub(crate) struct Event {
    fd: std::os::fd::OwnedFd,
    process: rustix::process::Pid,
}

impl Event {
    pub(crate) fn new() -> std::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, process: rustix::process::getpid() })
    }

    /// Async-signal-safe.
    pub(crate) fn ring(&self) {
        // The eventfd of a child is that of its parent.
        if rustix::process::getpid() == self.process {
            // It fails only if 2^64 - 2 rings are waiting.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn wait(&self) {
        let mut count = [0; 8];
        while let Err(rustix::io::Errno::INTR) = rustix::io::read(&self.fd, &mut count) {}
    }
}

/// The event of an instance, once there is one.
#[derive(Default)]
pub(crate) struct SignalEvent(Mutex<Option<Arc<Event>>>);

impl SignalEvent {
    fn event(&self) -> MutexGuard<'_, Option<Arc<Event>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The instance ends: so does the thread.
    pub(crate) fn end(&self) {
        if let Some(event) = self.event().take() {
            event.ring();
        }
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
                    crate::shutdown::begin(&inner);
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

    fn nothing() -> Callback {
        Box::new(|_| ())
    }

    #[test]
    fn the_last_one_entered_comes_first_and_a_removed_one_never() {
        let callbacks = Callbacks::default();
        let numbers: Vec<_> =
            (0..4).map(|_| callbacks.enter(Stage::Before, nothing()).unwrap()).collect();
        assert!(callbacks.remove(Stage::Before, numbers[1]).is_some());
        assert!(callbacks.remove(Stage::Before, numbers[1]).is_none());
        assert!(callbacks.remove(Stage::After, numbers[0]).is_none(), "another stage");
        let left = |callbacks: &Callbacks| {
            let stack = callbacks.stack(Stage::Before);
            stack.callbacks.iter().map(|entered| entered.0).collect::<Vec<_>>()
        };
        assert_eq!(left(&callbacks), [numbers[0], numbers[2], numbers[3]]);
        assert!(callbacks.next(Stage::Before).is_some());
        assert_eq!(left(&callbacks), [numbers[0], numbers[2]]);
    }

    #[test]
    fn a_stage_is_over_when_its_stack_is_empty_and_not_before() {
        let callbacks = Callbacks::default();
        callbacks.enter(Stage::After, nothing()).unwrap();
        assert!(!callbacks.skip(Stage::After));
        assert!(callbacks.next(Stage::After).is_some());
        assert!(callbacks.enter(Stage::After, nothing()).is_some(), "by the one that runs");
        assert!(callbacks.next(Stage::After).is_some());
        assert!(callbacks.next(Stage::After).is_none());
        assert!(callbacks.enter(Stage::After, nothing()).is_none());
        assert!(!callbacks.stack(Stage::Before).is_over);
        assert!(callbacks.skip(Stage::Before));
        assert!(callbacks.enter(Stage::Before, nothing()).is_none());
    }
}
