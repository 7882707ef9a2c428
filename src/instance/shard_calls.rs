//! Which shard an operation of a caller is for, and when its progress ULT is woken.
//!
//! A call or transfer belongs to the shard that is nearest to its caller (`progress/shards.rs`),
//! whose progress ULT tells its end. A request belongs to the shard where it arrived: that is the
//! one to which the origin's connection was given, or which the origin has named
//! ([`ProviderHandle::in_shard`](crate::ProviderHandle::in_shard)).

use hg::Core;

use crate::Instance;
use crate::InstanceLayout;
use crate::instance::inner::Inner;
use crate::operation::token::Token;
use crate::progress::shards::Shard;

impl Inner {
    /// The shard for operations that the caller starts and which name no peer.
    #[inline]
    pub(crate) fn shard_here(&self) -> &Shard<Instance> {
        self.shards.here(&self.runtime)
    }

    /// An operation of a caller has started at a shard, or might have.
    #[inline]
    pub(crate) fn operation_started(&self, shard: &Shard<Instance>) {
        if self.when_needed.is_on() && shard.core.in_flight() > 0 {
            shard.kick();
        }
    }

    /// Returns whether no caller waits for the progress of this shard.
    pub(crate) fn is_unneeded(&self, core: &Core<Token>) -> bool {
        self.when_needed.is_on() && core.in_flight() == 0
    }
}

impl InstanceLayout<'_> {
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
    fn a_call_belongs_to_the_shard_next_to_its_caller() {
        let document = r#"{ "margo": { "shards": 3 }, "rpc_thread_count": 1 }"#;
        let own = crate::init(document).unwrap();
        let (go, begun) = (Arc::new(Eventual::new()), Arc::new(ult::Semaphore::new(0)));
        let (may_end, has_begun) = (go.clone(), begun.clone());
        own.register(WAIT, move |request| {
            has_begun.release(1);
            may_end.wait();
            let _ = request.respond(&());
        })
        .unwrap();
        let in_flight = || own.inner().shards.iter().map(|shard| shard.core.in_flight());
        let mut expected = [0; 3];
        let mut calls = Vec::new();
        for (shard, pool) in own.layout().progress_pools().enumerate() {
            let caller = own.clone();
            let target = ProviderHandle::from(own.self_addr());
            calls.push(pool.spawn(move || caller.forward(WAIT, &target, &())).unwrap());
            begun.acquire(1).forget();
            expected[shard] = 1;
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
