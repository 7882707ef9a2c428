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

use crate::instance::inner::Inner;
use crate::operation::token::Token;
use crate::polling::driver::Progress;

/// A context beside context 0.
pub(crate) struct Context {
    pub(crate) core: Arc<Core<Token>>,
    pub(crate) progress: OnceLock<Progress>,
}

impl Context {
    pub(crate) fn new(core: Arc<Core<Token>>) -> Self {
        Self { core, progress: OnceLock::new() }
    }
}

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
