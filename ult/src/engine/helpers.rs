//! Threads that run what may block the calling thread, so that an execution stream need not: the
//! closures of [`blocking`](crate::blocking()), the resolver, the disk.
//!
//! Each runtime has one group. A thread is started when work finds none idle and there may be one
//! more; one without work for a while ends. The threads run on all CPUs of the runtime and take no
//! signals of the process.
//!
//! | queue | whose work | runs on |
//! |---|---|---|
//! | [`Lane::Program`] | closures of the program | at most as many threads as the builder was told |
//! | [`Lane::Runtime`] | names and files of margo itself | any thread, and before the other queue |
//!
//! A few threads more than the program may take are there for the second queue. So closures that
//! never return hold up neither a look-up nor a shutdown that removes a file.
//!
//! Each entry has a ULT that waits for it, and is withdrawn when that ULT is cancelled: that bounds
//! the queues. One lock guards everything. Nobody joins the threads: a closure that hangs must not
//! keep a runtime from its end. A child process that was forked off has none of them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, PoisonError};
use std::time::Duration;

use prim::fork::Process;
use prim::signals;

use crate::base::contain::contained_alone;
use crate::sync::{Arc, Mutex, MutexGuard, lock, thread};
use crate::topology::{CpuSet, bind_this_thread};

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

/// Threads that only [`Lane::Runtime`] may take.
const RESERVED: usize = 8;

/// Work, with everything that it must not let escape but panics of destructors.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// The queue that work waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Program,
    Runtime,
}

/// An entry of a queue, to be taken out by [`Helpers::withdraw`].
#[derive(Debug)]
pub(crate) struct QueuedWork(Lane, u64);

/// The threads of a runtime, and what waits for them.
pub(crate) struct Helpers {
    program_max: usize,
    cpus: CpuSet,
    process: Process,
    state: Mutex<HelpersState>,
    wake: Condvar,
}

#[derive(Default)]
struct HelpersState {
    program: VecDeque<(u64, Work)>,
    runtime: VecDeque<(u64, Work)>,
    /// All threads, those that start included.
    threads: usize,
    /// Threads that have not looked for work yet.
    starting: usize,
    idle: usize,
    running: usize,
    program_running: usize,
    done: u64,
    last_number: u64,
    is_over: bool,
}

/// Counts of the threads for [`blocking`](crate::blocking()) and of their work; see
/// [`Runtime::blocking_stats`](crate::Runtime::blocking_stats).
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let sum = pool.spawn(|| ult::blocking(|| (1..=100).sum::<u32>()))?;
/// assert_eq!(sum.join()?, 5050);
/// // The thread stays for a while, in case there is more to do.
/// let stats = runtime.blocking_stats();
/// assert_eq!((stats.threads, stats.queued), (1, 0));
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockingStats {
    /// Threads that exist.
    pub threads: usize,
    /// Closures that run, also those whose ULT was cancelled meanwhile.
    pub running: usize,
    /// Closures that wait for a thread.
    pub queued: usize,
    /// Closures that have run to their end, since the start of the runtime.
    pub done: u64,
}

impl HelpersState {
    fn queue(&mut self, lane: Lane) -> &mut VecDeque<(u64, Work)> {
        match lane {
            Lane::Program => &mut self.program,
            Lane::Runtime => &mut self.runtime,
        }
    }

    /// How many entries may run now.
    fn ready(&self, program_max: usize) -> usize {
        let program = program_max.saturating_sub(self.program_running);
        self.runtime.len() + self.program.len().min(program)
    }

    /// Takes the next entry that may run, and counts it as running.
    fn take(&mut self, program_max: usize) -> Option<(Lane, Work)> {
        let (lane, work) = match self.runtime.pop_front() {
            Some((_, work)) => (Lane::Runtime, work),
            None if self.program_running < program_max => {
                let (_, work) = self.program.pop_front()?;
                self.program_running += 1;
                (Lane::Program, work)
            }
            None => return None,
        };
        self.running += 1;
        Some((lane, work))
    }

    fn end(&mut self, lane: Lane) {
        self.running -= 1;
        self.program_running -= usize::from(lane == Lane::Program);
        self.done += 1;
    }
}

impl Helpers {
    /// No threads yet. The program gets at most `program_max` at a time, and at least one.
    pub(crate) fn new(program_max: usize, cpus: CpuSet) -> Self {
        Self {
            program_max: program_max.max(1),
            cpus,
            process: Process::current(),
            state: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    /// Returns whether this is the process that has the threads, and no child of it.
    pub(crate) fn are_here(&self) -> bool {
        !self.process.is_other()
    }

    fn lock(&self) -> MutexGuard<'_, HelpersState> {
        lock(&self.state)
    }

    /// Has `work` run by a thread. Gives it back if there is none and none can be made.
    pub(crate) fn submit(self: &Arc<Self>, lane: Lane, work: Work) -> Result<QueuedWork, Work> {
        let mut state = self.lock();
        state.last_number += 1;
        let number = state.last_number;
        state.queue(lane).push_back((number, work));
        // Each thread that is idle or starts takes one of those that are ready already.
        let is_short = state.idle + state.starting < state.ready(self.program_max)
            && state.threads < self.program_max + RESERVED;
        state.threads += usize::from(is_short);
        state.starting += usize::from(is_short);
        drop(state);
        if !is_short {
            self.wake.notify_one();
            return Ok(QueuedWork(lane, number));
        }
        let own = self.clone();
        let started = thread::Builder::new().name("ult-blocking".to_owned()).spawn(move || {
            own.serve();
        });
        if started.is_ok() {
            return Ok(QueuedWork(lane, number));
        }
        let mut state = self.lock();
        state.threads -= 1;
        state.starting -= 1;
        // Those that start may fail as well.
        let is_alone = state.threads == state.starting;
        drop(state);
        let entry = QueuedWork(lane, number);
        // If there are others they take it in time.
        match is_alone.then(|| self.withdraw(&entry)).flatten() {
            Some(work) => Err(work),
            None => Ok(entry),
        }
    }

    /// Takes work out of its queue. `None`: a thread has taken it.
    pub(crate) fn withdraw(&self, entry: &QueuedWork) -> Option<Work> {
        let mut state = self.lock();
        let queue = state.queue(entry.0);
        let at = queue.iter().position(|(number, _)| *number == entry.1)?;
        Some(queue.remove(at)?.1)
    }

    /// Has threads without work leave; the others follow when they are done.
    pub(crate) fn end(&self) {
        if self.are_here() {
            self.lock().is_over = true;
            self.wake.notify_all();
        }
    }

    /// The counters. In a forked child, where nobody may hold the lock for good: zeros.
    pub(crate) fn stats(&self) -> BlockingStats {
        if !self.are_here() {
            return BlockingStats::default();
        }
        let state = self.lock();
        BlockingStats {
            threads: state.threads,
            running: state.running,
            queued: state.program.len() + state.runtime.len(),
            done: state.done,
        }
    }

    /// Works until there was nothing to do for a while.
    fn serve(&self) {
        signals::block_all();
        // A thread begins where its maker is bound, which is some execution stream. One that the
        // system does not let go from there works as well.
        let _ = bind_this_thread(&self.cpus);
        let mut state = self.lock();
        state.starting -= 1;
        loop {
            if let Some((lane, work)) = state.take(self.program_max) {
                let has_more = state.idle > 0 && state.ready(self.program_max) > 0;
                drop(state);
                if has_more {
                    self.wake.notify_one();
                }
                // The outcome, or what the closure holds, of a ULT that is gone.
                contained_alone("a destructor of what `ult::blocking` was given", work);
                state = self.lock();
                state.end(lane);
                continue;
            }
            if state.is_over {
                break;
            }
            state.idle += 1;
            let is_idle =
                |state: &mut HelpersState| state.ready(self.program_max) == 0 && !state.is_over;
            let waited = self.wake.wait_timeout_while(state, IDLE, is_idle);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if timeout.timed_out() {
                break;
            }
        }
        state.threads -= 1;
    }
}

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Helpers").field(&self.stats()).finish()
    }
}
