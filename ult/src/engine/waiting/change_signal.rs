//! A place to wait until something has changed, for parties that then look for themselves.
//!
//! The party that changes something tells the waiters; it may be a scheduler, so nothing here waits
//! for a ULT: the list of waiters is behind an OS lock that is held for a few instructions.

use std::ptr::NonNull;

use crate::base::limit::Limit;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::model::waiter::{ChangeSignal, ParkedWaiter, Waiter};
use crate::engine::model::xstream_shared::XstreamShared;
use crate::sync::lock;

impl ChangeSignal {
    /// Wakes all waiters; they look again.
    pub(crate) fn tell(&self) {
        let entries = std::mem::take(&mut *lock(&self.0));
        for ParkedWaiter(waiter) in entries {
            // SAFETY:
            // - alive, unlinked: it was in the list, which we took whole;
            // - not touched afterwards.
            unsafe { Waiter::wake(waiter) };
        }
    }

    /// Returns whether nobody waits.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Waits until `test` holds, and looks at it whenever somebody has told. `false`: the limit
    /// was over first.
    pub(crate) fn wait_until(&self, limit: &mut Limit, test: impl Fn() -> bool) -> bool {
        loop {
            if test() {
                return true;
            }
            if limit.is_over() {
                return false;
            }
            let waiter = Waiter::new(WaitKind::Condvar);
            let entry = ParkedWaiter(NonNull::from(&waiter));
            lock(&self.0).push(ParkedWaiter(entry.0));
            let unlink = || {
                let mut entries = lock(&self.0);
                let at = entries.iter().position(|other| *other == entry);
                at.map(|at| entries.swap_remove(at)).is_some()
            };
            // A change between the first test and the entry has told nobody.
            if test() {
                if !unlink() {
                    waiter.block_fully();
                }
                return true;
            }
            limit.spend(|deadline| waiter.settle(deadline, unlink));
        }
    }
}

impl RuntimeCore {
    /// `xstream` has left, or could not start, and does not come back.
    pub(crate) fn forget_xstream(&self, xstream: &XstreamShared) {
        xstream.set_removed();
        lock(&self.parts).living_xstreams.retain(|other| other.index != xstream.index);
        // A shutdown may wait until it has seen the phase.
        self.tell_news();
    }

    /// Tells a waiting shutdown that something has changed.
    pub(crate) fn tell_news(&self) {
        self.news.tell();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::{Acquire, Release};
    use std::time::Duration;

    use super::*;
    use crate::runtime::layout::make_xstream;
    use crate::sync::Arc;
    use crate::{PoolSpec, Runtime, XstreamSpec};

    #[test]
    fn who_waits_is_told_of_an_xstream_that_could_not_start() {
        let x = XstreamSpec::new("x").pools(["p"]);
        let runtime = Runtime::builder().pool(PoolSpec::new("p")).xstream(x).start().unwrap();
        // The looks of `x` are news, too: it has begun, and hears nothing of the rest.
        runtime.pool("p").unwrap().spawn(|| ()).unwrap().join().unwrap();
        runtime.add_pool(PoolSpec::new("q")).unwrap();
        let core = runtime.owner.core.clone();
        let layout = core.lock_layout();
        let spec = XstreamSpec::new("y").pools(["q"]);
        let failed = make_xstream(&core, &spec, None).unwrap();
        let inner = core.clone();
        let looks = Arc::new(AtomicUsize::new(0));
        let counts = looks.clone();
        let (told, is_told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let test = || {
                let is_gone = inner.xstreams().len() == 1;
                counts.fetch_add(1, Release);
                is_gone
            };
            // Without a limit, since one is waited for in parts, with a look after each.
            told.send(inner.news.wait_until(&mut Limit::none(), test)).unwrap();
        });
        // After the second look it waits for news.
        while looks.load(Acquire) < 2 {
            std::thread::yield_now();
        }
        crate::runtime::layout::set_pools(&core, &failed, Vec::new());
        core.forget_xstream(&failed);
        drop(layout);
        assert_eq!(is_told.recv_timeout(Duration::from_secs(60)), Ok(true));
        runtime.shutdown().unwrap();
    }
}
