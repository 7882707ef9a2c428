//! The end of an endpoint.

use std::time::{Duration, Instant};

use ucx_sys::ucp_ep_h;

use crate::operations::inbox::{ConnEvent, Event};
use crate::operations::keys::{EndedKeys, HeldKeys};
use crate::operations::slots::Work;
use crate::operations::transfer_sinks::Incomings;
use crate::operations::transfer_state::Landing;
use crate::state::driver::Driver;
use crate::ucp::worker::Worker;
use crate::wire::Control;
use na_core::{Completion, Error};

/// How long a close gives what was sent to leave.
const GRACE: Duration = Duration::from_millis(50);

/// How long ending connections by force may take.
const FORCED: Duration = Duration::from_secs(1);

impl Driver {
    /// Ends everything; what was sent gets a moment to leave, and what is known then is reported.
    pub(crate) fn close(&mut self) {
        if self.worker.is_none() {
            return;
        }
        let error = Error::Closed;
        // So that nothing new begins.
        self.reject_callers();
        self.sending.clear();
        self.reaching.clear();
        let mut queued = Vec::new();
        for peer in self.peers.iter_mut().flatten() {
            peer.waiting.clear();
            queued.extend(peer.queues.iter_mut().flat_map(|queue| queue.drain(..)));
        }
        self.queued = 0;
        for message in queued {
            self.done(message.end(Err(error.clone())));
        }
        self.settle_events();
        self.flush_links();
        self.settle_events();
        for window in &mut self.state().windows {
            window.incoming = Incomings::default();
        }
        let leases = self.peers.iter_mut().flatten().flat_map(|peer| peer.leases.drain());
        let leases: Vec<_> = leases.map(|(_, lease)| lease).collect();
        leases.into_iter().for_each(|lease| self.end_lease(lease));
        let transfers: Vec<_> = self.transfers.keys().copied().collect();
        transfers.into_iter().for_each(|id| self.end_transfer(id, Err(error.clone())));
        // What UCX is made to let go of.
        for (_, work) in self.slots.iter_mut() {
            if let Work::Send { end, .. } = work {
                end.get_or_insert_with(|| error.clone());
            }
        }
        for peer in self.peers.iter_mut().flatten() {
            // Those that UCX uses stay with their transfers.
            peer.keys = HeldKeys::default();
        }
        let given: Vec<_> = self.peers.iter_mut().flatten().map(|peer| peer.given.take()).collect();
        self.unmap_at_the_end();
        self.end_worker();
        self.settle_events();
        let given = given.into_iter().map(|given| EndedKeys { given, by_adapter: false });
        let closed = std::mem::take(&mut self.discards).into_ended();
        let given: Vec<_> = given.chain(closed).collect();
        given.into_iter().for_each(|ended| self.end_all_given(ended));
        let mut state = self.state();
        state.links.clear();
        state.failing.clear();
        state.due.clear();
        let mut out = Vec::new();
        state.matcher.fail_all(&error, &mut out);
        state.done.extend(out);
        drop(state);
        self.sending.clear();
        self.reaching.clear();
        self.let_go_of_slots(&error);
        // Those that a worker which is left behind has in hand.
        let transfers: Vec<_> = self.transfers.keys().copied().collect();
        transfers.into_iter().for_each(|id| self.complete(id, Err(error.clone())));
        self.leave_group();
        self.peers.clear();
        self.strangers.clear();
        self.by_key.clear();
        self.free.clear();
        (self.connecting, self.deadline_at) = (0, None);
        self.watch = None;
    }

    /// Ends what UCX has not ended.
    fn let_go_of_slots(&mut self, error: &Error) {
        for work in self.slots.drain() {
            match work {
                Work::Send { op: Some(op), buf, .. } => {
                    self.done(Completion::Send { op, buf, result: Err(error.clone()) });
                }
                Work::Lent(_, memory)
                | Work::Landing(Landing { memory, .. })
                | Work::Reached(_, memory, _) => {
                    self.memory.push(memory);
                }
                Work::Close(Some(ended)) => self.end_all_given(ended),
                Work::Discarded(all) => {
                    all.into_iter().for_each(|ended| self.end_all_given(ended));
                }
                _ => {}
            }
        }
    }

    /// Reports the operations of a closing endpoint that are known to be over. Requests for a
    /// connection are turned away, because UCX keeps a request that nobody answers.
    fn settle_events(&mut self) {
        loop {
            let Some(event) = self.state().events.pop_front() else { return };
            match event {
                Event::Finished(slot, status) => self.finished(slot, status),
                Event::Connection(request) => {
                    if let Some(worker) = &self.worker {
                        worker.reject(request);
                    }
                }
                Event::Conn(link, news @ ConnEvent::Whole(_)) => self.came(link, news),
                Event::Conn(link, ConnEvent::Control(bytes)) => {
                    let ends = matches!(
                        Control::from_bytes(&bytes),
                        Ok(Control::Done { .. } | Control::Deny { .. })
                    );
                    if ends {
                        self.came(link, ConnEvent::Control(bytes));
                    }
                }
                Event::Conn(..) => {}
            }
        }
    }

    /// Lets what was sent leave, if that takes no help of the peers, for [`GRACE`] at most.
    fn flush_links(&mut self) {
        let links: Vec<_> = self.peers.iter().flatten().filter_map(|peer| peer.link).collect();
        let flush = |link| {
            self.post(Work::Close(None), |worker, slots, slot| {
                // SAFETY: an open connection of this worker; the slot stays until the callback, or
                // until the worker is gone.
                unsafe { worker.flush(link, slots.pinned(slot)) }
            })
        };
        let slots: Vec<_> = links.into_iter().filter_map(flush).collect();
        let end = Instant::now() + GRACE;
        self.progress_until(end, |driver| {
            slots.iter().all(|slot| driver.slots.request(*slot).is_none())
        });
    }

    fn progress_until(&self, end: Instant, is_done: impl Fn(&Self) -> bool) {
        while !is_done(self) && Instant::now() < end {
            if let Some(worker) = &self.worker {
                worker.progress();
            }
        }
    }

    /// Returns whether UCX has something in hand: only then may a worker not be destroyed.
    fn has_unsent(&self) -> bool {
        self.slots.iter().any(|(slot, _)| self.slots.request(slot).is_some())
    }

    /// Destroys the worker, and with it all connections and whatever it had in hand.
    ///
    /// UCX aborts the process when a worker goes that has something to send (`ucp_ep_destroy_base`,
    /// ucp_ep.c). So connections are ended by force first, which makes it let go; over those that
    /// do not allow it the worker stays, with all that it may refer to.
    fn end_worker(&mut self) {
        self.withhold(|_| true);
        if self.has_unsent() && self.worker.as_ref().is_some_and(Worker::detects_failure) {
            let peers = self.peers.iter_mut().flatten();
            let mut links: Vec<_> = peers.filter_map(|peer| peer.link.take()).collect();
            links.extend(self.strangers.drain().map(|(link, _)| link as ucp_ep_h));
            links.into_iter().for_each(|link| self.drop_link(link));
            self.progress_until(Instant::now() + FORCED, |driver| !driver.has_unsent());
        }
        self.settle_events();
        let Some(worker) = self.worker.take() else { return };
        // Nothing is held at the moment: all events were settled.
        self.inbox().keeper.set(std::ptr::null_mut());
        if !self.has_unsent() {
            return drop(worker);
        }
        tracing::warn!(
            "ucx: a peer does not take what was sent; some memory and descriptors are left behind, \
             because UCX cannot give them up"
        );
        worker.abandon();
        self.slots.abandon();
        self.is_abandoned = true;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The worker calls back into the inbox while it is destroyed.
        self.worker = None;
        // A worker that was left behind keeps its address. In a child process what has come is its
        // parent's: offers that are dropped answer the peer.
        if self.is_abandoned || self.process.is_other() {
            return;
        }
        // SAFETY: made by `Box::into_raw`; the worker, and with it every callback, is gone, and the
        // slots only keep the address.
        drop(unsafe { Box::from_raw(self.inbox.as_ptr()) });
    }
}
