//! Threads for system calls that may wait, so that the execution stream of their caller need not:
//! the resolver, the disk.
//!
//! Each [`Helpers`] has a few threads of its own, so that what waits for one thing does not keep
//! others from another. A thread is started when work finds none idle and there may be one more;
//! one without work for a while ends. They run on all CPUs of the runtime, whatever their caller's
//! execution stream is bound to, and take no signals of the process.
//!
//! Each entry of a queue has a ULT that waits for it, which bounds the queue. Work whose caller was
//! cancelled meanwhile is dropped when its turn comes. A child process that was forked off has none
//! of these threads; its first use makes new ones, and leaves what was queued then to the parent.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, PoisonError};
use std::time::Duration;

use crate::engine::xstream::current::{suspendable, xstream};
use crate::sync::atomic::{AtomicPtr, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, lock, thread};
use crate::topology::{CpuSet, bind_this_thread};
use crate::wait::eventual::Eventual;

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The outcome of work, or its panic.
type Outcome<R> = Eventual<Mutex<Option<Result<R, Box<dyn Any + Send>>>>>;

/// Threads that wait for the system in place of ULTs.
#[derive(Debug)]
pub struct Helpers {
    name: &'static str,
    threads_max: usize,
    /// The threads of this process.
    team: AtomicPtr<Team>,
}

/// Resolves names: the system's resolver takes some seconds for a name that nobody knows.
pub static RESOLVERS: Helpers = Helpers::new("ult-names", 8);

/// Reads and writes files.
pub static FILERS: Helpers = Helpers::new("ult-files", 8);

/// The threads of one process.
#[derive(Debug)]
struct Team {
    process: u32,
    state: Mutex<HelpersState>,
    work: Condvar,
}

#[derive(Default)]
struct HelpersState {
    queue: VecDeque<(Job, CpuSet)>,
    threads: usize,
    idle: usize,
}

impl fmt::Debug for HelpersState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, threads, idle } = self;
        write!(f, "HelpersState({threads} threads, {idle} idle, {} jobs wait)", queue.len())
    }
}

impl Helpers {
    const fn new(name: &'static str, threads_max: usize) -> Self {
        let team = AtomicPtr::new(std::ptr::null_mut());
        Self { name, threads_max, team }
    }

    /// Runs `work`, which may wait for the system, and returns what it does, or goes on with its
    /// panic. A ULT suspends meanwhile and others run on its execution stream; a ULT that is
    /// cancelled does not wait for it. Where nobody can be suspended (an OS thread, a tasklet, a
    /// ULT that unwinds) and where no thread is to be had, `work` runs here.
    pub fn run<R: Send + 'static>(&'static self, work: impl FnOnce() -> R + Send + 'static) -> R {
        let Some(cpus) = suspendable().and_then(|_| Some(xstream()?.core.cpus.clone())) else {
            return work();
        };
        let here = Arc::new(Outcome::<R>::new());
        let there = here.clone();
        let job = Box::new(move || {
            // Nobody waits for it any more.
            if Arc::strong_count(&there) > 1 {
                let result = catch_unwind(AssertUnwindSafe(work));
                // Set once.
                let _ = there.set(Mutex::new(Some(result)));
            }
        });
        if let Err(job) = self.team().submit(self, job, cpus) {
            job();
        }
        let result = lock(here.wait()).take();
        match result.expect("an outcome is read once") {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// The threads of this process; those that a fork has left behind stay where they are.
    fn team(&self) -> &'static Team {
        let process = std::process::id();
        loop {
            let there = self.team.load(Ordering::Acquire); // pair: HELPERS-TEAM
            // SAFETY:
            // - valid: a team that was published is never freed, and only shared from then on;
            // - initialised: the release below comes before this load.
            if let Some(team) = unsafe { there.as_ref() }.filter(|team| team.process == process) {
                return team;
            }
            let (state, work) = (Mutex::new(HelpersState::default()), Condvar::new());
            let new = Box::into_raw(Box::new(Team { process, state, work }));
            let (done, lost) = (Ordering::Release, Ordering::Relaxed); // pair: HELPERS-TEAM
            if self.team.compare_exchange(there, new, done, lost).is_err() {
                // SAFETY: it came from a box just above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

impl Team {
    fn lock(&self) -> MutexGuard<'_, HelpersState> {
        lock(&self.state)
    }

    /// Has `job` run by a thread. Gives it back if there is none and none can be made.
    fn submit(&'static self, of: &'static Helpers, job: Job, cpus: CpuSet) -> Result<(), Job> {
        let mut state = self.lock();
        // Each idle thread takes one of those that are queued already.
        let is_short = state.idle <= state.queue.len() && state.threads < of.threads_max;
        state.queue.push_back((job, cpus));
        state.threads += usize::from(is_short);
        drop(state);
        self.work.notify_one();
        if !is_short {
            return Ok(());
        }
        let serve = move || self.serve();
        if thread::Builder::new().name(of.name.to_owned()).spawn(serve).is_ok() {
            return Ok(());
        }
        let mut state = self.lock();
        state.threads -= 1;
        // If there are others they take it in time.
        match state.threads {
            0 => state.queue.pop_back().map_or(Ok(()), |(job, _)| Err(job)),
            _ => Ok(()),
        }
    }

    /// Works until there was nothing to do for a while.
    fn serve(&self) {
        block_signals();
        let mut bound = CpuSet::default();
        let mut state = self.lock();
        loop {
            if let Some((job, cpus)) = state.queue.pop_front() {
                drop(state);
                if bound != cpus {
                    // A thread begins where its maker is bound, which is some execution stream.
                    // One that the system does not let go from there works as well.
                    let _ = bind_this_thread(&cpus);
                    bound = cpus;
                }
                job();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.work.wait_timeout_while(state, IDLE, |state| state.queue.is_empty());
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if timeout.timed_out() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// Signals of the process are for the program's own threads.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY:
    // - memory: the call initialises the set, and looks at nothing else.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY:
    // - memory: the set was initialised just above and is only read; no old mask is stored;
    // - the mask is this thread's own.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use super::*;
    use crate::{PoolSpec, Runtime, XstreamSpec};

    static TWO: Helpers = Helpers::new("two", 2);

    fn runtime() -> Runtime {
        let x = XstreamSpec::new("x").pools(["p"]);
        Runtime::builder().pool(PoolSpec::new("p")).xstream(x).start().unwrap()
    }

    #[test]
    fn others_run_on_the_xstream_while_a_ult_waits_for_the_system() {
        let runtime = runtime();
        let pool = runtime.pool("p").unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let turns = Arc::new(AtomicUsize::new(0));
        let waits = pool
            .spawn(move || {
                FILERS.run(move || {
                    wait.recv().unwrap();
                    std::thread::current().name().map(str::to_owned)
                })
            })
            .unwrap();
        let counted = turns.clone();
        let works = pool
            .spawn(move || {
                for _ in 0..100 {
                    counted.fetch_add(1, Ordering::Relaxed);
                    crate::yield_now();
                }
            })
            .unwrap();
        works.join().unwrap();
        assert_eq!(turns.load(Ordering::Relaxed), 100, "beside it");
        go.send(()).unwrap();
        assert_eq!(waits.join().unwrap().as_deref(), Some("ult-files"));
    }

    #[test]
    fn there_are_only_so_many_threads_and_all_work_is_done() {
        let runtime = runtime();
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let ults: Vec<_> = (0..40)
            .map(|n| {
                let (now, most) = (now.clone(), most.clone());
                let work = move || {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                    n
                };
                runtime.pool("p").unwrap().spawn(move || TWO.run(work)).unwrap()
            })
            .collect();
        let sum: usize = ults.into_iter().map(|ult| ult.join().unwrap()).sum();
        assert_eq!(sum, (0..40).sum::<usize>());
        assert!(most.load(Ordering::SeqCst) <= 2);
    }

    #[test]
    fn a_panic_comes_back_and_the_thread_stays() {
        let runtime = runtime();
        for _ in 0..3 {
            let panics = runtime.pool("p").unwrap().spawn(|| FILERS.run(|| panic!("of the work")));
            let error = panics.unwrap().join().unwrap_err();
            assert!(error.to_string().contains("of the work"), "{error}");
        }
        let works = runtime.pool("p").unwrap().spawn(|| FILERS.run(|| 7)).unwrap();
        assert_eq!(works.join().unwrap(), 7);
    }

    #[test]
    fn a_plain_thread_does_it_itself() {
        let here = std::thread::current().id();
        assert_eq!(FILERS.run(move || std::thread::current().id()), here);
    }
}
