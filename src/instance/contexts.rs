//! Several network contexts in one instance, each with a progress ULT of its own.
//!
//! `mercury.max_contexts` and `margo.more_progress_pools` of the configuration ask for them. All
//! share the one endpoint and address:
//!
//! - a call or transfer belongs to the context that is nearest to its caller (see
//!   [`Inner::core_here`]), whose progress ULT tells its end;
//! - a request belongs to the context that its origin has named
//!   ([`ProviderHandle::in_context`](crate::ProviderHandle::in_context)), whose progress ULT makes
//!   the handler. Most origins name none: then it is context 0.
//!
//! The progress ULT that polls the network takes the completions of all (`core/class.rs` of
//! hg), so none waits for another that is busy, and each sleeps when there is nothing.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `Context::progress` | the progress ULT, once, before `init` returns | anybody |
//! | `Shutdown::progressing` | each progress ULT at its end | the last of them; pair: PROGRESS-END |

use std::sync::{Arc, OnceLock};

use hg::Core;

use crate::Instance;
use crate::instance::inner::Inner;
use crate::operation::token::Token;
use crate::progress::control::Progress;

impl Inner {
    /// The RPC core and the place of the progress ULT of a context that there is.
    pub(crate) fn context(&self, id: usize) -> (&Arc<Core<Token>>, &OnceLock<Progress>) {
        match id.checked_sub(1).and_then(|index| self.more_contexts.get(index)) {
            Some(context) => (&context.core, &context.progress),
            None => (&self.core, &self.progress),
        }
    }

    pub(crate) fn contexts(&self) -> impl Iterator<Item = (&Arc<Core<Token>>, Option<&Progress>)> {
        let ids = 0..=self.more_contexts.len();
        ids.map(|id| self.context(id)).map(|(core, progress)| (core, progress.get()))
    }

    /// The context for operations that the caller starts: the one whose progress ULT shares its
    /// execution stream, so that both talk without a wake-up; else one that goes with the execution
    /// stream's index; context 0 for other OS threads.
    #[inline]
    pub(crate) fn core_here(&self) -> &Arc<Core<Token>> {
        if self.more_contexts.is_empty() { &self.core } else { self.core_near() }
    }

    fn core_near(&self) -> &Arc<Core<Token>> {
        let Some(xstream) = self.runtime.index_here() else { return &self.core };
        let here = |progress: &Progress| progress.xstream() == xstream;
        let near = self.contexts().find(|(_, progress)| progress.is_some_and(here));
        match near {
            Some((core, _)) => core,
            None => self.context(xstream % (self.more_contexts.len() + 1)).0,
        }
    }

    /// [`kick`](Self::kick) where there are several: whatever the caller has queued is still there,
    /// or its context is awake.
    #[cold]
    pub(crate) fn kick_several(&self) {
        for (core, progress) in self.contexts() {
            if let Some(progress) = progress.filter(|_| core.has_queued()) {
                progress.kick();
            }
        }
    }

    /// An operation of a caller has started, or might have.
    #[inline]
    pub(crate) fn operation_started(&self) {
        if self.when_needed.is_on() {
            self.wake_needed();
        }
    }

    #[cold]
    fn wake_needed(&self) {
        for (core, progress) in self.contexts() {
            if let Some(progress) = progress.filter(|_| core.in_flight() > 0) {
                progress.kick();
            }
        }
    }

    /// Returns whether no caller waits for the progress of this context.
    pub(crate) fn is_unneeded(&self, core: &Core<Token>) -> bool {
        self.when_needed.is_on() && core.in_flight() == 0
    }
}

impl Instance {
    /// Lets progress spin only while operations of this instance are in flight, or (`false`, the
    /// default) also for a while after that. For clients that share their cores with something else
    /// and call now and then: between calls they use no processor time at all, also with
    /// `mercury.na_no_block`, which then polls without a break during calls only. A call after a
    /// pause costs waking the execution stream of the progress ULT, some tens of microseconds,
    /// unless its caller runs there.
    ///
    /// May be changed at any time, from anywhere; holds from the end of the next spin on. (An
    /// instance that began with `na_no_block` and without this has no descriptor to sleep on over
    /// `na+sm`, `ofi+…` and `ucx+…`, and looks at the network every millisecond between calls.)
    /// In a server, requests are not operations in flight: those that come after a pause wait for
    /// a wake-up by the kernel.
    ///
    /// The key of the configuration is `margo.progress_when_needed`.
    ///
    /// Counterpart: `margo_set_progress_when_needed`. There an idle instance does not look at the
    /// network at all.
    pub fn set_progress_when_needed(&self, on: bool) {
        self.inner().when_needed.set(on);
    }

    /// Returns whether progress spins only while operations are in flight; see
    /// [`set_progress_when_needed`](Self::set_progress_when_needed).
    pub fn progress_when_needed(&self) -> bool {
        self.inner().when_needed.is_on()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ult::Eventual;

    use crate::{ProviderHandle, Rpc};

    const WAIT: Rpc<(), ()> = Rpc::new("wait");

    #[test]
    fn a_call_belongs_to_the_context_next_to_its_caller() {
        let document = r#"{ "mercury": { "max_contexts": 3 }, "rpc_thread_count": 1 }"#;
        let own = crate::init(document).unwrap();
        let (go, begun) = (Arc::new(Eventual::new()), Arc::new(ult::Semaphore::new(0)));
        let (may_end, has_begun) = (go.clone(), begun.clone());
        own.register(WAIT, move |request| {
            has_begun.release(1);
            may_end.wait();
            let _ = request.respond(&());
        })
        .unwrap();
        let in_flight = || own.inner().contexts().map(|(core, _)| core.in_flight());
        let mut expected = [0; 3];
        let mut calls = Vec::new();
        for (context, pool) in own.progress_pools().enumerate() {
            let caller = own.clone();
            let target = ProviderHandle::from(own.self_addr());
            calls.push(pool.spawn(move || caller.forward(WAIT, &target, &())).unwrap());
            begun.acquire(1).forget();
            expected[context] = 1;
            assert_eq!(in_flight().collect::<Vec<_>>(), expected);
        }
        go.set(()).unwrap();
        for call in calls {
            call.join().unwrap().unwrap();
        }
        assert_eq!(in_flight().sum::<usize>(), 0);
        own.finalize_and_wait().unwrap();
    }
}
