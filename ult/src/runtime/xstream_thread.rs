//! The OS thread of an xstream, from its set-up to its end.

use std::io;
use std::sync::mpsc;

use crate::engine::error::StartError;
use crate::engine::model::interfaces::{OwnScheduler, own};
use crate::engine::model::runtime_core::{EXIT, RuntimeCore};
use crate::engine::model::xstream_shared::{State, XstreamShared};
use crate::engine::run::sched::BasicWait;
use crate::engine::run::stack_overflow::AltStack;
use crate::engine::xstream::current::EnterGuard;
use crate::engine::xstream::owner::Xstream;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Arc, lock, thread};
use crate::topology::{bind_this_thread, current_binding};

/// Starts the thread of an xstream and waits until it is set up.
pub(crate) fn start(
    core: &Arc<RuntimeCore>,
    xstream: &Arc<XstreamShared>,
) -> Result<(), StartError> {
    let (report, reports) = mpsc::channel();
    let (thread_core, thread_xstream) = (core.clone(), xstream.clone());
    let body = move || match set_up(&thread_core, &thread_xstream) {
        Ok(_guard) => serve(&thread_core, &thread_xstream, || {
            // The other side waits for this report.
            let _ = report.send(Ok(()));
        }),
        Err(error) => {
            let _ = report.send(Err(error));
        }
    };
    // The system's names end at a zero byte, and the standard library panics at one.
    let name = xstream.name.replace('\0', "?");
    let system =
        |what, source| StartError::System { xstream: xstream.name.to_string(), what, source };
    let thread = thread::Builder::new().name(name).spawn(body);
    let thread = thread.map_err(|source| system("start its thread", source))?;
    let result = reports.recv().unwrap_or_else(|_| {
        let source = io::Error::other("the thread ended before it was set up");
        Err(system("set up its thread", source))
    });
    match result {
        Ok(()) => *lock(&xstream.thread) = Some(thread),
        // Its panic, if any, has been printed by the panic hook.
        Err(_) => wait_for(thread),
    }
    result
}

/// Prepares the calling thread to be an xstream.
pub(crate) fn set_up(core: &RuntimeCore, xstream: &XstreamShared) -> Result<AltStack, StartError> {
    let cpus = lock(&xstream.cpus).clone();
    if cpus.is_empty() {
        // Who has made this thread may be bound itself, which threads inherit.
        if current_binding().is_ok_and(|inherited| inherited != core.cpus) {
            // If those are not to be had any more, these are as good.
            let _ = bind_this_thread(&core.cpus);
        }
    } else {
        bind_this_thread(&cpus.into_iter().collect()).map_err(|source| {
            let what = "bind it to its processors";
            StartError::System { xstream: xstream.name.to_string(), what, source }
        })?;
    }
    // Otherwise the kernel may end every timed sleep 50 us late.
    //
    // SAFETY: changes the timer slack of this thread; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    Ok(AltStack::ensure())
}

/// Serves as an xstream until the runtime ends or the xstream is asked to leave.
pub(super) fn serve(core: &Arc<RuntimeCore>, shared: &Arc<XstreamShared>, on_start: impl FnOnce()) {
    let xstream = Xstream::new(core.clone(), shared.clone());
    let seat = EnterGuard::take(&xstream);
    // SAFETY: asks for a number; no memory is involved.
    shared.system_thread.store(unsafe { libc::gettid() }, Relaxed);
    // Whoever waits for the start finds it in charge of its pools.
    xstream.enter_pools();
    on_start();
    let scheduler = shared.take_scheduler();
    let scheduler = xstream.main(scheduler.unwrap_or_else(|| own(Box::new(BasicWait::new()))));
    leave(&xstream, scheduler);
    drop(seat);
}

/// The last thing that an xstream does.
fn leave(xstream: &Xstream, scheduler: OwnScheduler) {
    let shared = xstream.shared();
    xstream.give_up_pools();
    xstream.give_up_timers();
    xstream.stacks.drain(&shared.stacks);
    xstream.descriptors.drain(&xstream.core.depot);
    // Perhaps nobody else looks at what is cold.
    xstream.core.depot.take_chains_apart();
    drop(shared.put_scheduler(scheduler));
    shared.set_state(State::Terminated);
    shared.end_life();
    xstream.core.tell_news();
}

/// Ends what runs of a runtime that could not be started.
pub(crate) fn stop_all(core: &Arc<RuntimeCore>) {
    core.set_phase(EXIT);
    join_all(core);
    core.bury();
}

/// Waits for the threads of all xstreams, which have been told to leave.
pub(crate) fn join_all(core: &RuntimeCore) {
    for xstream in core.xstreams() {
        join(&xstream);
    }
    core.diag.monitor.join();
}

/// Waits for the thread of an xstream that has been told to leave.
pub(crate) fn join(xstream: &XstreamShared) {
    let thread = lock(&xstream.thread).take();
    if let Some(thread) = thread {
        wait_for(thread);
    }
}

/// Waits for a thread's end.
pub(crate) fn wait_for(thread: thread::JoinHandle<()>) {
    // Its panic, if any, has been printed by the panic hook.
    thread.join().unwrap_or_else(crate::base::contain::discard_panic);
}
