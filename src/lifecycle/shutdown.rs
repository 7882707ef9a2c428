//! The end of an instance: in order, once, and within bounds.
//!
//! [`begin`] may be called by anyone, any number of times; the first call starts one OS thread that
//! does the rest, because neither a ULT (its execution stream is to end) nor the caller (who may be
//! a handler, or a destructor) can. The steps:
//!
//! - **refuse**: from the moment of `begin`, requests that arrive are answered with
//!   `HG_PERMISSION`, and so are those that wait because of a bound; the file of
//!   `margo.address_file` is removed;
//! - **children**: instances that share our execution streams (`child.rs`) end first, wholly;
//! - **drain**: running handlers, and requests that handlers have left to other ULTs, get the grace
//!   period to end; they may still make calls. Those that are left are told by their cancel tokens;
//! - **callbacks** that were entered for the time before the network closes (`finalize.rs`), each
//!   for the grace period;
//! - **timers** are disarmed; their callbacks that run get the grace period;
//! - **answers**: requests that were left to other ULTs and have no answer are answered with an
//!   error (`moved_requests.rs`);
//! - **close**: the progress ULT closes the RPC layer. Every call and transfer in flight ends with
//!   an error, so every ULT that waits for one runs on; the progress ULT ends when all of them have
//!   been told;
//! - **forget**: handlers are dropped, and with them whatever they hold;
//! - **callbacks** that were entered for the time after. Callers that wait on one of our ULTs go on
//!   now;
//! - **stop**: the execution streams end when their ULTs have, again within the grace period; ULTs
//!   that wait for something that never comes are reported by name. Those of a parent, or of the
//!   program, go on.
//!
//! The instance as an object is there for as long as it is held: configuration, statistics and
//! address can be read after all of this. In a child process that was forked off, none of this
//! happens, see `na::fork`.
//!
//! The policy follows Margo's `margo_finalize`, which is not safe against concurrent callers and
//! waits without bound.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ult::{Eventual, Limit};

use crate::FinalizeError;
use crate::elastic::RuntimeOwner;
use crate::instance::inner::Inner;
use crate::lifecycle::finalize::{self, Callbacks, Running, SignalEvent, Stage};
use crate::observe::dump_signal::DumpOnSignal;
use crate::observe::monitor::{self, LifeEvent};
use crate::observe::profile;
use crate::support::contain::contain;
use crate::support::log::{Log, log};

/// Set in [`Shutdown::handlers`] when shutdown has begun.
const BEGUN: usize = 1;
/// One handler that runs, or whose request was left to another ULT and is not answered.
const HANDLER: usize = 2;

/// Keeps what each handler writes away from what each one reads.
#[repr(align(128))]
struct OwnLine<T>(T);

/// The shutdown state of an instance.
pub(crate) struct Shutdown {
    /// `BEGUN`, and `HANDLER` for each handler that is in hand. One word, so that a handler is
    /// either counted before shutdown begins or refused.
    handlers: OwnLine<AtomicUsize>,
    /// Shutdown has begun and no handler is in hand.
    drained: Eventual<()>,
    grace: Duration,
    /// Progress ULTs that have not ended.
    progressing: AtomicUsize,
    /// The network is closed and all waiters have been told.
    network_closed: Eventual<()>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) signal: SignalEvent,
    /// All callbacks have run: what a ULT of ours can wait for.
    closed: Eventual<()>,
    done: Eventual<Result<(), FinalizeError>>,
}

impl Shutdown {
    /// For an instance with so many progress ULTs.
    pub(crate) fn new(grace: Duration, progressing: usize) -> Self {
        Self {
            progressing: AtomicUsize::new(progressing),
            handlers: OwnLine(AtomicUsize::new(0)),
            drained: Eventual::new(),
            grace,
            network_closed: Eventual::new(),
            callbacks: Arc::default(),
            signal: SignalEvent::default(),
            closed: Eventual::new(),
            done: Eventual::new(),
        }
    }

    /// Returns whether shutdown has begun. A request admitted just before may still run.
    pub(crate) fn has_begun(&self) -> bool {
        self.handlers.0.load(Ordering::Acquire) & BEGUN != 0 // pair: FINALIZE-BEGUN
    }

    /// Counts a handler in, unless shutdown has begun.
    #[inline]
    pub(crate) fn admit(&self) -> bool {
        // pair: FINALIZE-BEGUN
        let admitted = self.handlers.0.fetch_add(HANDLER, Ordering::Acquire) & BEGUN == 0;
        if !admitted {
            self.leave();
        }
        admitted
    }

    /// Counts a handler out. The last one after the beginning, and only then, tells `drain`.
    pub(crate) fn leave(&self) {
        // pair: FINALIZE-BEGUN
        if self.handlers.0.fetch_sub(HANDLER, Ordering::AcqRel) == HANDLER | BEGUN {
            let _ = self.drained.set(());
        }
    }

    /// A progress ULT has closed the network and told all who waited in its context.
    pub(crate) fn progress_ended(&self) {
        // pair: PROGRESS-END
        if self.progressing.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire); // pair: PROGRESS-END (what the others have told)
            let _ = self.network_closed.set(());
        }
    }

    /// Begins; `false`: it had begun.
    fn begin(&self) -> bool {
        // pair: FINALIZE-BEGUN
        let before = self.handlers.0.fetch_or(BEGUN, Ordering::AcqRel);
        if before == 0 {
            let _ = self.drained.set(());
        }
        before & BEGUN == 0
    }

    /// Returns two events; once either has come, no poll gives anything back any more.
    pub(crate) fn network_ends(&self) -> [&Eventual<()>; 2] {
        [&self.network_closed, &self.closed]
    }

    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// Handlers that run now, or whose request is left to another ULT and not answered.
    pub(crate) fn handlers(&self) -> usize {
        self.handlers.0.load(Ordering::Relaxed) / HANDLER
    }

    /// Returns whether everything has ended, as far as it did.
    pub(crate) fn is_done(&self) -> bool {
        self.done.is_ready()
    }

    /// Waits until everything has ended, as far as it did.
    pub(crate) fn wait_done(&self) -> &Result<(), FinalizeError> {
        self.done.wait()
    }

    /// Waits for `end`, for the grace period at most. A pause of the process does not count.
    pub(crate) fn within_grace(&self, end: &Eventual<()>) -> bool {
        Limit::new(self.grace).wait(|deadline| match deadline {
            Some(deadline) => end.wait_ready_deadline(deadline),
            None => {
                end.wait_ready();
                true
            }
        })
    }

    /// Runs `work` on a thread of that name and waits for its end, for the grace period at most;
    /// `false`: it goes on by itself. If the process is out of threads it runs here, and is waited
    /// for.
    pub(crate) fn run_apart(&self, thread: &str, work: impl FnOnce() + Send + 'static) -> bool {
        /// Tells the end, also that by a panic.
        struct Tell(Arc<Eventual<()>>);
        impl Drop for Tell {
            fn drop(&mut self) {
                let _ = self.0.set(());
            }
        }
        let ended = Arc::new(Eventual::new());
        let (here, tell) = (Arc::new(Mutex::new(Some(work))), Tell(ended.clone()));
        let take = |work: &Mutex<Option<_>>| work.lock().ok().and_then(|mut work| work.take());
        let there = here.clone();
        let run = move || {
            let _tell = tell;
            if let Some(work) = take(&there) {
                work();
            }
        };
        match std::thread::Builder::new().name(thread.into()).spawn(run) {
            Ok(_detached) => self.within_grace(&ended),
            Err(_) => {
                if let Some(work) = take(&here) {
                    work();
                }
                true
            }
        }
    }

    fn drain(&self, log: &Log) {
        if !self.within_grace(&self.drained) {
            log!(
                log,
                WARN,
                handlers = self.handlers(),
                grace = ?self.grace,
                "handlers did not end, or answer, in the grace period; closing the network"
            );
        }
    }
}

impl Inner {
    /// Begins the shutdown if nobody has.
    pub(crate) fn begin_shutdown(self: &Arc<Self>) {
        begin(self);
    }
}

/// Begins the shutdown if nobody has.
pub(crate) fn begin(inner: &Arc<Inner>) {
    if inner.is_forked() || !inner.shutdown.begin() {
        return;
    }
    let own = inner.clone();
    let spawned = std::thread::Builder::new()
        .name("margo-finalize".into())
        .spawn(move || run_contained(&own, run));
    if let Err(error) = spawned {
        // The process is out of threads. Closing the network needs none and frees all waiters.
        end_at_once(inner, FinalizeError::Thread(error.to_string()));
    }
}

/// Runs the steps. Whatever panics in one of them, all who wait for the end are told of it.
fn run_contained(inner: &Arc<Inner>, run: impl FnOnce(&Arc<Inner>)) {
    // Monitors and destructors run here too.
    let _running = Running::of(inner);
    if contain(&inner.log, "finalize", || run(inner)).is_none() {
        end_at_once(inner, FinalizeError::Panicked);
    }
}

/// Ends an instance whose steps of shutdown cannot be taken in their order. The network closes, and
/// the execution streams end with the last holder of the runtime.
fn end_at_once(inner: &Arc<Inner>, error: FinalizeError) {
    let _running = Running::of(inner);
    forget_address(inner);
    contain(&inner.log, "finalize", || {
        finalize::run(inner, Stage::Before);
        inner.timers.close();
        inner.standing_transfers.close();
        inner.unanswered.close();
        stop_progress(inner);
        finalize::run(inner, Stage::After);
    });
    let _ = inner.shutdown.closed.set(());
    end_metrics(inner);
    inner.dump_on_signal.iter().for_each(DumpOnSignal::end);
    inner.family.keep(Vec::new());
    let _ = inner.shutdown.done.set(Err(error));
    inner.family.leave();
}

/// Asks every progress ULT to close the network and end; whether there is one.
pub(crate) fn stop_progress(inner: &Arc<Inner>) -> bool {
    let mut any = false;
    for progress in inner.contexts().filter_map(|(_, progress)| progress) {
        progress.stop();
        any = true;
    }
    any
}

/// Sees to memory that peers were copying when the network closed: progress has ended, and a peer
/// that is stopped may go on, or die, at any time. A caller that waits for such memory has it then.
fn watch_kept(inner: &Arc<Inner>) {
    /// The time between two looks. Only callers that want that memory wait for it.
    const EVERY: Duration = Duration::from_millis(20);
    let keeps = |inner: &Inner| {
        let mut contexts = inner.contexts();
        contexts.any(|(core, _)| core.endpoint().keeps_memory())
    };
    if !inner.shutdown.network_closed.is_ready() || !keeps(inner) {
        return;
    }
    // Not a count of the instance, whose endpoint leaks what is left when it goes.
    let kept = Arc::downgrade(inner);
    let watch = move || {
        while let Some(inner) = kept.upgrade()
            && keeps(&inner)
        {
            for (core, _) in inner.contexts() {
                // It is closed and has told all ends.
                let _ = core.endpoint().poll(0, &mut |_| ());
            }
            drop(inner);
            std::thread::sleep(EVERY);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("margo-kept".into()).spawn(watch) {
        let why =
            "memory that a stopped peer was copying stays with it: no thread can look after it";
        log!(inner.log, WARN, %error, "{why}");
    }
}

/// Runs users' code beside the shutdown, which goes on after the grace period.
fn run_users(inner: &Arc<Inner>, what: &'static str, run: impl FnOnce() + Send + 'static) {
    let own = inner.clone();
    let contained = move || {
        // It must not wait for the end, which waits for it.
        let _running = Running::of(&own);
        contain(&own.log, what, run);
    };
    if !inner.shutdown.run_apart("margo-end", contained) {
        let grace = inner.shutdown.grace();
        log!(inner.log, ERROR, ?grace, "{what} does not end; the shutdown goes on without it");
    }
}

fn tell_apart(inner: &Arc<Inner>, event: fn() -> LifeEvent<'static>) {
    if inner.monitoring.has_monitors() {
        let own = inner.clone();
        run_users(inner, "a monitor", move || own.monitoring.tell(&event()));
    }
}

fn run(inner: &Arc<Inner>) {
    let shutdown = &inner.shutdown;
    shutdown.signal.end();
    forget_address(inner);
    tell_apart(inner, || LifeEvent::Finalizing);
    crate::dispatch::handler::refuse_waiting(inner);
    inner.family.end_children();
    shutdown.drain(&inner.log);
    inner.cancels.close();
    finalize::run(inner, Stage::Before);
    end_timers(inner);
    inner.standing_transfers.close();
    inner.unanswered.close();
    if stop_progress(inner) {
        // Bounded: a handler that blocks the execution stream itself blocks the progress ULT too.
        if !shutdown.within_grace(&shutdown.network_closed) {
            log!(
                inner.log,
                ERROR,
                grace = ?shutdown.grace,
                "the progress ULT does not run: something blocks its execution stream"
            );
        }
    }
    watch_kept(inner);
    let own = inner.clone();
    run_users(inner, "a destructor of a handler", move || own.core.deregister_all());
    finalize::run(inner, Stage::After);
    end_monitor(inner);
    end_profile(inner);
    tell_apart(inner, || LifeEvent::Finalized);
    if let Some(tracer) = inner.monitoring.tracer()
        && !shutdown.within_grace(tracer.close())
    {
        let path = tracer.path().display();
        let why = "the trace is not known to be on its disk after the grace period";
        log!(inner.log, ERROR, %path, "{why}; what is there may end early");
    }
    let _ = shutdown.closed.set(());
    let result = match inner.landlord {
        RuntimeOwner::Own => stop_xstreams(inner),
        RuntimeOwner::Parent | RuntimeOwner::Program => Ok(()),
    };
    if let Err(error) = &result {
        log!(inner.log, ERROR, "{error}");
    }
    // To the last, so that one can see why the end takes long; whoever waits may use the port.
    end_metrics(inner);
    inner.dump_on_signal.iter().for_each(DumpOnSignal::end);
    // Before it is told: whoever waits may remove those pools then.
    inner.family.keep(Vec::new());
    // Whoever waits for the end may end the process, and what was logged is to be read by then.
    tracing::flush(Duration::from_millis(100));
    let _ = shutdown.done.set(result);
    inner.family.leave();
}

/// Writes the profile that the configuration asks for.
fn end_profile(inner: &Inner) {
    let write = profile::end(&inner.profile, &inner.resolved, &inner.log);
    if let Some(write) = write
        && !inner.shutdown.run_apart("margo-profile", write)
    {
        let grace = inner.shutdown.grace();
        log!(inner.log, ERROR, ?grace, "the profile cannot be written in the grace period");
    }
}

/// Writes the files of the default monitor that the configuration asks for.
fn end_monitor(inner: &Arc<Inner>) {
    if inner.resolved.monitor.is_none() {
        return;
    }
    let own = inner.clone();
    let write = move || {
        // Pools of users are asked how full they are.
        contain(&own.log, "a pool", || own.sample_series());
        if let Err(error) = monitor::files::write(&own.statistics_source()) {
            log!(own.log, ERROR, %error, "the files of the monitor are not written");
        }
    };
    if !inner.shutdown.run_apart("margo-monitor", write) {
        let grace = inner.shutdown.grace();
        log!(inner.log, ERROR, ?grace, "the monitor cannot write its files in the grace period");
    }
}

/// Removes the address, so that no client finds an instance that serves no more.
fn forget_address(inner: &Inner) {
    if let Some(file) = inner.address_file.get() {
        file.remove();
    }
}

/// The thread asks pools of users how full they are, and one may never answer.
fn end_metrics(inner: &Inner) {
    if !inner.metrics.server.end(|ended| inner.shutdown.within_grace(ended)) {
        log!(
            inner.log,
            ERROR,
            grace = ?inner.shutdown.grace,
            "the metrics server does not end and keeps its port: a pool that it asks for its \
             length does not answer"
        );
    }
}

fn end_timers(inner: &Inner) {
    let mut running = inner.timers.close();
    // The first that does not end has used the grace period up for all.
    while let Some(end) = running.pop() {
        if !inner.shutdown.within_grace(&end) {
            running.retain(|end| !end.is_ready());
            let callbacks = running.len() + 1;
            let log = &inner.log;
            log!(log, WARN, callbacks, "callbacks of timers did not end in the grace period");
            return;
        }
    }
}

fn stop_xstreams(inner: &Inner) -> Result<(), FinalizeError> {
    let stopped = inner.runtime.shutdown_timeout(inner.shutdown.grace);
    stopped.map_err(|error| FinalizeError::Stuck(error.to_string()))
}

/// Waits for the end, see [`Instance::wait_for_finalize`](crate::Instance::wait_for_finalize).
pub(crate) fn wait(inner: &Arc<Inner>) -> Result<(), FinalizeError> {
    if inner.is_forked() {
        return Err(FinalizeError::Forked);
    }
    if ult::is_tasklet() && !inner.shutdown.is_done() {
        return Err(FinalizeError::Inline);
    }
    if inner.shutdown.callbacks.awaits_caller() && !inner.shutdown.is_done() {
        return Err(FinalizeError::OwnCallback);
    }
    if inner.landlord == RuntimeOwner::Own && inner.runtime.is_current() {
        inner.shutdown.closed.wait();
        return Ok(());
    }
    inner.shutdown.wait_done().clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_apart_is_waited_for_in_the_grace_period_only() {
        let shutdown = Shutdown::new(Duration::from_millis(20), 1);
        let hold = Arc::new(Eventual::new());
        let (held, over) = (hold.clone(), Arc::new(Eventual::new()));
        let tell = over.clone();
        assert!(!shutdown.run_apart("test", move || {
            held.wait();
            let _ = tell.set(());
        }));
        hold.set(()).unwrap();
        over.wait();
        let patient = Shutdown::new(Duration::from_secs(60), 1);
        assert!(patient.run_apart("test", || ()));
        assert!(patient.run_apart("test", || panic!("a test")));
    }

    #[test]
    fn a_step_that_panics_is_an_error_for_all_who_wait() {
        let own = crate::init("{}").unwrap();
        let target = crate::ProviderHandle::from(own.self_addr());
        assert!(own.inner().shutdown.begin());
        let inner = own.inner().clone();
        std::thread::spawn(move || run_contained(&inner, |_| panic!("a step"))).join().unwrap();
        assert!(matches!(own.finalize_and_wait(), Err(FinalizeError::Panicked)));
        own.inner().shutdown.closed.wait();
        own.inner().shutdown.network_closed.wait();
        let call = crate::Rpc::<(), ()>::new("nothing");
        assert!(matches!(
            own.forward(call, &target, &()),
            Err(crate::ForwardError::Closing { .. })
        ));
    }
}
