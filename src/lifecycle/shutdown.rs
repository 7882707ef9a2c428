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

use std::sync::Arc;
use std::time::Duration;

use crate::admission::moved_requests::CLOSING;
use crate::dispatch::admit;
use crate::elastic::RuntimeOwner;
use crate::instance::callbacks::CallbackStage;
use crate::instance::inner::Inner;
use crate::lifecycle::finalize::{self, EndBlocker};
use crate::observe::dump_signal::DumpOnSignal;
use crate::observe::monitor::{self, LifeEvent};
use crate::observe::profile;
use crate::support::contain::contain;
use crate::support::log::log;
use crate::{FinalizeError, Instance};

impl Instance {
    /// Begins to shut down and returns at once. Safe from anywhere, any number of times, also from
    /// a handler.
    ///
    /// From now on peers' requests are refused. In this order:
    ///
    /// - instances that have this one as their [parent](crate::InstanceBuilder::parent) end;
    /// - handlers that run, and ULTs to which they have moved their [`Handle`](crate::Handle), have
    ///   [`InstanceBuilder::grace`](crate::InstanceBuilder::grace) to end or answer, and may still
    ///   make calls;
    /// - the callbacks of [`on_prefinalize`](Self::on_prefinalize) run, the last one first;
    /// - timers are disarmed, and do not fire; see [`Timer`](crate::timers::Timer);
    /// - the network is closed, which ends all calls and transfers with errors;
    /// - the callbacks of [`on_finalize`](Self::on_finalize) run;
    /// - the execution streams end, unless they are a parent's or
    ///   [the program's](crate::InstanceBuilder::runtime).
    ///
    /// Each step, and each of those callbacks, has the grace period, so this comes to its end
    /// whatever handlers and peers do. From a signal handler use
    /// [`signal_finalizer`](Self::signal_finalizer). In a child process that was forked off this
    /// does nothing: the instance is the parent's.
    ///
    /// Counterpart: `margo_finalize`.
    pub fn finalize(&self) {
        begin(self.inner());
    }

    /// Waits until this instance has been finalized, by whomever. From an OS thread: until
    /// everything has ended, execution streams included. From one of its own ULTs: until the
    /// callbacks have run (its execution stream cannot end before that ULT does). Typical last line
    /// of a service's `main`.
    ///
    /// # Errors
    ///
    /// [`FinalizeError`] when something did not end, and names what; or when the caller must not
    /// wait: a tasklet, a child process that was forked off, or a callback that the end waits for
    /// ([`FinalizeError::OwnCallback`]).
    ///
    /// Counterpart: `margo_wait_for_finalize`.
    pub fn wait_for_finalize(&self) -> Result<(), FinalizeError> {
        wait(self.inner())
    }

    /// [`finalize`](Self::finalize), then [`wait_for_finalize`](Self::wait_for_finalize). In a
    /// handler this uses up the grace period, because the handler waits for itself: call `finalize`
    /// there.
    ///
    /// # Errors
    ///
    /// As `wait_for_finalize`.
    ///
    /// Counterpart: `margo_finalize_and_wait`.
    pub fn finalize_and_wait(&self) -> Result<(), FinalizeError> {
        self.finalize();
        self.wait_for_finalize()
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
    let _running = EndBlocker::of(inner);
    if contain(&inner.log, "finalize", || run(inner)).is_none() {
        end_at_once(inner, FinalizeError::Panicked);
    }
}

/// Ends an instance whose steps of shutdown cannot be taken in their order. The network closes, and
/// the execution streams end with the last holder of the runtime.
fn end_at_once(inner: &Arc<Inner>, error: FinalizeError) {
    let _running = EndBlocker::of(inner);
    forget_address(inner);
    contain(&inner.log, "finalize", || {
        finalize::run(inner, CallbackStage::Before);
        inner.timers.close();
        inner.standing_transfers.close();
        answer_moved(inner);
        stop_progress(inner);
        finalize::run(inner, CallbackStage::After);
    });
    let _ = inner.shutdown.closed.set(());
    end_metrics(inner);
    inner.dump_on_signal.iter().for_each(DumpOnSignal::end);
    inner.tree.keep(Vec::new());
    let _ = inner.shutdown.done.set(Err(error));
    inner.tree.leave();
}

/// Asks every progress ULT to close the network and end; whether there is one.
pub(crate) fn stop_progress(inner: &Arc<Inner>) -> bool {
    let mut any = false;
    // Whoever adds a shard is done with it, or will not.
    inner.shards.are_complete();
    for progress in inner.shards.iter().filter_map(|shard| shard.progress.get()) {
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
        let mut shards = inner.shards.iter();
        shards.any(|shard| shard.core.endpoint().keeps_memory())
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
            for shard in inner.shards.iter() {
                // It is closed and has told all ends.
                let _ = shard.core.endpoint().poll(0, &mut |_| ());
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
        let _running = EndBlocker::of(&own);
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
    admit::refuse_waiting(inner);
    end_children(inner);
    shutdown.drain(&inner.log);
    inner.cancels.close();
    finalize::run(inner, CallbackStage::Before);
    end_timers(inner);
    inner.standing_transfers.close();
    answer_moved(inner);
    if stop_progress(inner) {
        // Bounded: a handler that blocks the execution stream itself blocks the progress ULT too.
        if !shutdown.within_own_grace(&shutdown.network_closed) {
            log!(
                inner.log,
                ERROR,
                grace = ?shutdown.own_grace(),
                "the progress ULT does not run: something blocks its execution stream"
            );
        }
    }
    watch_kept(inner);
    let own = inner.clone();
    run_users(inner, "a destructor of a handler", move || own.core.deregister_all());
    finalize::run(inner, CallbackStage::After);
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
    if let Some(audit) = &inner.audit
        && !shutdown.within_grace(audit.close())
    {
        let path = audit.path().display();
        let why = "the audit file is not known to be whole after the grace period";
        log!(inner.log, ERROR, %path, "{why}; what is there may end early");
    }
    let _ = shutdown.closed.set(());
    let result = match inner.runtime_owner {
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
    inner.tree.keep(Vec::new());
    // Whoever waits for the end may end the process, and what was logged is to be read by then.
    tracing::flush(Duration::from_millis(100));
    let _ = shutdown.done.set(result);
    inner.tree.leave();
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

/// Finalizes the children and waits for them. Bounded, as each step of theirs is.
fn end_children(inner: &Inner) {
    let children = inner.tree.take_children();
    children.iter().for_each(begin);
    for child in &children {
        // What did not end there has been logged there.
        let _ = child.shutdown.wait_done();
    }
}

/// Answers the requests that were left to other ULTs.
fn answer_moved(inner: &Inner) {
    let (code, detail) = CLOSING;
    for reply in inner.moved_requests.close() {
        reply.fail(code, detail);
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
            grace = ?inner.shutdown.grace(),
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
    let stopped = inner.runtime.shutdown_timeout(inner.shutdown.own_grace());
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
    if inner.callbacks.awaits_caller() && !inner.shutdown.is_done() {
        return Err(FinalizeError::OwnCallback);
    }
    if inner.runtime_owner == RuntimeOwner::Own && inner.runtime.is_current() {
        inner.shutdown.closed.wait();
        return Ok(());
    }
    inner.shutdown.wait_done().clone()
}

#[cfg(test)]
mod tests {
    use ult::Eventual;

    use super::*;
    use crate::instance::shutdown::Shutdown;

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
