//! Callers that wait, and poll in the stead of the progress ULT where that helps.
//!
//! A ULT that waits for its call suspends, and the progress ULT takes the answer in and wakes it.
//! Where the two are alone on their execution stream, that is two switches for nothing: the caller
//! could as well have polled itself. So it does, before it suspends, for a while that is bounded
//! (`POLLS_MAX`), and stops as soon as anything else can run or the progress ULT is wanted.
//!
//! It stands in only while the progress ULT waits for its turn on the caller's execution stream:
//! both are never in a poll at once. Events of these polls go to the same `Dispatch`; that makes
//! ULTs and wakes them, but runs no handler, callback or timer, so only polls are done on the
//! caller's stack. Units that are ready to run have their turn when the caller stops polling: a
//! switch that comes after some 50 us at the latest, also if the caller goes on with call after
//! call.
//!
//! # Destructors of a ULT that unwinds
//!
//! Such a ULT cannot suspend: the count of panics is the thread's. It blocks its execution stream,
//! and if the progress ULT lives there, nothing would ever end the wait: a guard that gives back a
//! lock by a call would hang its whole instance. So the waiting ULT does what progress would do.
//! Progress is in no poll then, because it shares the thread and does not run. Nothing else runs
//! there until the wait is over: no handler either, so a call to a handler of the same execution
//! stream ends by its deadline, or not at all. With less stack than a poll may need
//! ([`STACK_BYTES`]) nothing is polled, and the wait blocks until something else ends it.
//!
//! # Who may touch what
//!
//! | state | owner |
//! |---|---|
//! | `CallerPolling::place` | written by the progress ULT; who finds its own place there shares a thread with it |
//! | the rest | that thread |

use std::sync::Arc;
use std::time::Instant;

use hg::Core;
use ult::Eventual;

use crate::instance::inner::Inner;
use crate::operation::token::Token;
use crate::polling::driver::poll;
use crate::progress::control::Progress;

/// Looks at the network for each look at what else could run.
const LOOKS_PER_TURN: u32 = 8;
/// Looks between two polls that found nothing, in turns. More than progress makes: what arrives
/// during a poll for something else waits for its end, and here an answer is on its way.
const TURNS_PER_POLL: u32 = 24;
/// Stack that a poll may need: it makes ULTs, logs, and tells monitors. Code that is not optimised
/// needs more.
const STACK_BYTES: usize = if cfg!(debug_assertions) { 48 } else { 24 } * 1024;
/// Runnable on this execution stream, if nothing else is: the progress ULT.
const PROGRESS_ALONE: usize = 1;
/// Polls in a row that find nothing before the processor is offered to other threads.
const POLLS_PER_YIELD: u32 = 64;

impl Inner {
    /// The caller is about to wait until `is_over`. If it is a ULT beside which nothing but the
    /// progress ULT can run, polls in that one's stead; returns when it is over, or has to be
    /// waited for in the ordinary way.
    #[inline]
    pub(crate) fn stand_in(self: &Arc<Self>, is_over: &dyn Fn() -> bool) {
        let shard = self.shard_here();
        if let Some(progress) = shard.progress.get()
            && progress.stand_in.may(self.runtime.index_here())
            // Where many call at once it ends here.
            && !others_wait(progress)
            && ult::stack_left() >= STACK_BYTES
        {
            stand_in(self, &shard.core, progress, is_over);
        }
    }

    /// Waits until `done`, which progress sets; `false`: it was not at `until`.
    #[inline]
    pub(crate) fn wait_for<T>(
        self: &Arc<Self>,
        done: &Eventual<T>,
        until: Option<Instant>,
    ) -> bool {
        if std::thread::panicking() {
            self.bring_on(&|| done.is_ready(), until);
        }
        match until {
            Some(until) => done.wait_ready_deadline(until),
            None => {
                done.wait_ready();
                true
            }
        }
    }

    /// Waits for the end of an operation until `until`, and polls meanwhile where that is of use.
    /// If `due` comes before, the operation is given up, and the end that follows is waited for.
    #[inline]
    pub(crate) fn wait_for_end<T>(
        self: &Arc<Self>,
        done: &Eventual<T>,
        until: Option<Instant>,
        due: impl FnOnce() -> Option<Instant>,
        give_up: impl FnOnce(),
    ) -> bool {
        if !done.is_ready() && until.is_none_or(|until| until > Instant::now()) {
            self.stand_in(&|| done.is_ready());
        }
        if let Some(due) = due().filter(|due| until.is_none_or(|until| *due <= until)) {
            if self.wait_for(done, Some(due)) {
                return true;
            }
            give_up();
        }
        self.wait_for(done, until)
    }
}

// Not inlined: each kind of call would have a copy of the poll.
#[inline(never)]
fn stand_in(
    inner: &Arc<Inner>,
    core: &Arc<Core<Token>>,
    progress: &Progress,
    is_over: &dyn Fn() -> bool,
) {
    while !is_over() {
        if !look(core, progress) {
            return;
        }
        let found = poll(inner, core);
        let may_again = progress.stand_in.polled(found);
        // What was found may be somebody else's, and a poll may take as long as many looks.
        if !may_again || !is_over() && others_wait(progress) {
            return;
        }
    }
}

/// Returns whether another unit is to have the execution stream.
#[inline]
fn others_wait(progress: &Progress) -> bool {
    progress.is_ordered() || ult::integration::has_runnable_beyond(PROGRESS_ALONE)
}

/// Looks until a poll would find something, or there was none for a while; `false`: others want
/// their turn.
#[inline]
fn look(core: &Core<Token>, progress: &Progress) -> bool {
    for _ in 0..TURNS_PER_POLL {
        for _ in 0..LOOKS_PER_TURN {
            if core.may_find() {
                return true;
            }
        }
        if others_wait(progress) {
            return false;
        }
    }
    true
}

// Destructors of a ULT that unwinds.

impl Inner {
    /// In a destructor of a ULT that unwinds: polls for the shards whose progress it holds up,
    /// until `is_over` or `until`.
    #[cold]
    pub(crate) fn bring_on(self: &Arc<Self>, is_over: &dyn Fn() -> bool, until: Option<Instant>) {
        let Some(xstream) = self.runtime.index_here() else { return };
        let held_up: Vec<_> = self
            .shards
            .iter()
            .filter_map(|shard| Some((&shard.core, shard.progress.get()?)))
            .filter(|(_, progress)| progress.xstream() == xstream && !progress.is_caller())
            .collect();
        if held_up.is_empty() || ult::stack_left() < STACK_BYTES || self.is_forked() {
            return;
        }
        let mut idle = 0;
        while !is_over() && until.is_none_or(|until| Instant::now() < until) {
            let mut found = 0;
            for (core, progress) in &held_up {
                if progress.is_stopping() {
                    core.close();
                }
                found += poll(self, core);
            }
            idle = if found > 0 { 0 } else { idle + 1 };
            if idle >= POLLS_PER_YIELD {
                idle = 0;
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use crate::{Instance, ProviderHandle, Rpc};

    const NULL: Rpc<(), ()> = Rpc::new("null");
    const LONG: Duration = Duration::from_secs(60);

    /// A service with an execution stream of its own, and what calls it.
    fn pair(client: &str) -> (Instance, Instance, ProviderHandle) {
        let service = Instance::builder("na+sm://").start().unwrap();
        service.register(NULL, |request| drop(request.respond(&()))).unwrap();
        let client = crate::init(client).unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        (service, client, target)
    }

    fn end(service: &Instance, client: &Instance) {
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }

    /// Units that have run on the caller's execution stream while it made one call.
    fn run_during_a_call(client: &Instance, target: &ProviderHandle) -> u64 {
        let before = ult::integration::units_run();
        client.forward(NULL, target, &()).unwrap();
        ult::integration::units_run() - before
    }

    #[test]
    fn who_is_alone_with_progress_calls_without_a_switch() {
        let (service, client, target) = pair(r#"{ "margo": { "address": "na+sm://" } }"#);
        let own = client.clone();
        let calls = client.layout().rpc_pool().spawn(move || {
            let start = Instant::now();
            // The system may take the processor from the service at times.
            while run_during_a_call(&own, &target) > 0 {
                assert!(start.elapsed() < LONG, "each call suspends");
            }
        });
        calls.unwrap().join().unwrap();
        end(&service, &client);
    }

    #[test]
    fn who_has_little_stack_left_suspends() {
        let (service, client, target) = pair(r#"{ "margo": { "address": "na+sm://" } }"#);
        let own = client.clone();
        let pool = client.layout().rpc_pool();
        let calls = pool
            .ult()
            .stack_bytes(super::STACK_BYTES)
            .spawn(move || (0..200).filter(|_| run_during_a_call(&own, &target) == 0).count());
        assert_eq!(calls.unwrap().join().unwrap(), 0);
        end(&service, &client);
    }

    #[test]
    fn others_have_their_turn_at_each_call() {
        let (service, client, target) = pair(r#"{ "margo": { "address": "na+sm://" } }"#);
        let (turns, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, until) = (turns.clone(), is_over.clone());
        let other = client.layout().rpc_pool().spawn(move || {
            while !until.load(Ordering::Relaxed) {
                count.fetch_add(1, Ordering::Relaxed);
                ult::yield_now();
            }
        });
        let own = client.clone();
        let calls = client.layout().rpc_pool().spawn(move || {
            let without = (0..200).filter(|_| {
                let before = turns.load(Ordering::Relaxed);
                own.forward(NULL, &target, &()).unwrap();
                turns.load(Ordering::Relaxed) == before
            });
            let without = without.count();
            is_over.store(true, Ordering::Relaxed);
            without
        });
        assert_eq!(calls.unwrap().join().unwrap(), 0);
        other.unwrap().join().unwrap();
        end(&service, &client);
    }

    #[test]
    fn timers_go_off_and_progress_moves_beside_a_caller_without_a_pause() {
        let (service, client, target) = pair(
            r#"{ "argobots": { "pools": [{ "name": "near" }, { "name": "far" }], "xstreams": [
                { "scheduler": { "pools": ["near"] } }, { "scheduler": { "pools": ["far"] } } ] },
              "progress_pool": "near", "rpc_pool": "near", "margo": { "address": "na+sm://" } }"#,
        );
        let is_over = Arc::new(AtomicBool::new(false));
        let (own, until) = (client.clone(), is_over.clone());
        let calls = client.layout().rpc_pool().spawn(move || {
            let mut calls = 0u64;
            while !until.load(Ordering::Relaxed) {
                own.forward(NULL, &target, &()).unwrap();
                calls += 1;
            }
            calls
        });
        let rang = Arc::new(ult::Eventual::new());
        let bell = rang.clone();
        let timer = client.timer(move |_| _ = bell.set(()));
        timer.start(Duration::from_millis(2)).unwrap();
        assert!(rang.wait_ready_timeout(LONG), "the timer does not go off");
        for pool in ["far", "near", "far"] {
            client.layout().migrate_progress(pool).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(calls.unwrap().join().unwrap() > 0);
        end(&service, &client);
    }
}
