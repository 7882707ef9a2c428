//! Completions and requests that pass from one context to another.

use std::sync::atomic::Ordering;

use na::Completion;
use prim::sync::lock;

use crate::base::log::log;
use crate::core::state::Op;
use crate::ops::{Event, Role};
use crate::{Core, Counters, OpRef};

impl<T> Core<T> {
    /// Hands a completion to the context that it belongs to. A request is counted here, where its
    /// receive ended, and not when that context comes to look: while it does not, the others'
    /// requests need receives.
    pub(crate) fn hand_over(&self, to: &Core<T>, mut completion: Completion) {
        if let Completion::Recv { op, result: Ok(_), .. } = &mut completion
            && OpRef::parse(*op).1 == Some(Role::Request)
        {
            self.count_arrival();
            *op = OpRef::single(Role::Counted, to.id, 0);
        }
        let mut arrived = lock(&to.arrived);
        arrived.push_back(completion);
        to.has_arrived.store(true, Ordering::Relaxed);
        drop(arrived);
        to.wake();
    }

    /// When this context ends: requests that wait for it go to context 0, as those will that come
    /// for it from now on. Arguments that are being fetched are given up; their origins are told
    /// to try again.
    pub(crate) fn leave_to_primary(&self) {
        if self.is_primary() {
            return;
        }
        let primary = self.primary();
        let (events, fetches) = {
            let mut state = self.state();
            let fetches = state.ops.iter().filter(|(_, op)| matches!(op, Op::Fetch(_)));
            let fetches: Vec<_> = fetches.map(|(name, _)| name).collect();
            (std::mem::take(&mut state.events), fetches)
        };
        let requests = events.into_iter().filter(|event| matches!(event, Event::Request(_)));
        requests.for_each(|request| primary.queue(&mut primary.state(), request));
        let mut requests = self.take_arrived();
        requests.retain(is_counted_request);
        if !requests.is_empty() {
            let mut arrived = lock(&primary.arrived);
            arrived.append(&mut requests);
            primary.has_arrived.store(true, Ordering::Relaxed);
        }
        for op in fetches {
            self.endpoint.cancel(op.part(Role::Fetch));
            self.on_fetched(op, Err(na::Error::Canceled));
        }
        primary.wake();
    }
}

fn is_counted_request(completion: &Completion) -> bool {
    matches!(completion, Completion::Recv { op, .. }
        if OpRef::parse(*op).1 == Some(Role::Counted))
}

impl<T> Drop for Core<T> {
    fn drop(&mut self) {
        let generation = self.state().ops.generation();
        self.class.retire(self.id, generation);
        self.leave_to_primary();
        if self.options.stats {
            let mut sum = Counters::default();
            let hot = self.state().hot;
            self.counts.add_to(hot, &mut sum);
            sum.multi_recv_copy = if self.is_primary() { self.copied() } else { 0 };
            log!(self.options.log, INFO, context = self.id, counters = ?sum, "RPC layer");
        }
    }
}
