//! A bound on how many requests are worked on at a time, first come, first served.
//!
//! A request that leaves its place gives it to the first that waits. A ULT that waits leaves the
//! queue when its request is canceled. A [`Semaphore`](margo::ult::Semaphore) has only one of the
//! two: a ULT that waits for it together with something else has no turn, and is woken for each
//! permit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use margo::ult::{Eventual, Selectable, wait_any};

pub(crate) struct Places(Mutex<State>);

struct State {
    /// Free places; zero while a request waits.
    free: usize,
    waiting: VecDeque<Arc<Eventual<()>>>,
}

/// A place. Free again, or the next one's, when it is dropped.
#[must_use = "the place is given back when this is dropped"]
pub(crate) struct Place<'a>(&'a Places);

impl Places {
    pub(crate) fn new(count: usize) -> Self {
        Self(Mutex::new(State { free: count, waiting: VecDeque::new() }))
    }

    /// A place; suspends until it is this one's turn. `None`: `canceled` was ready before.
    pub(crate) fn take(&self, canceled: &dyn Selectable) -> Option<Place<'_>> {
        let mut state = self.state();
        if state.free > 0 {
            state.free -= 1;
            return Some(Place(self));
        }
        let turn = Arc::new(Eventual::new());
        state.waiting.push_back(turn.clone());
        drop(state);
        let mut wait = Wait { places: self, turn: Some(turn.clone()) };
        wait_any(&[&*turn, canceled], None);
        wait.leave()
    }

    /// A place, if one is free.
    pub(crate) fn try_take(&self) -> Option<Place<'_>> {
        let mut state = self.state();
        state.free = state.free.checked_sub(1)?;
        Some(Place(self))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        match state.waiting.pop_front() {
            // A turn in the queue has not been set.
            Some(turn) => drop(turn.set(())),
            None => state.free += 1,
        }
    }
}

/// A waiting request. Dropped before [`leave`](Self::leave) when its ULT unwinds.
struct Wait<'a> {
    places: &'a Places,
    turn: Option<Arc<Eventual<()>>>,
}

impl<'a> Wait<'a> {
    /// Leaves the queue. A request that is not in it any more has been given a place, which is
    /// returned.
    fn leave(&mut self) -> Option<Place<'a>> {
        let turn = self.turn.take()?;
        let waiting = &mut self.places.state().waiting;
        match waiting.iter().position(|other| Arc::ptr_eq(other, &turn)) {
            Some(at) => {
                waiting.remove(at);
                None
            }
            None => Some(Place(self.places)),
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn who_came_first_is_first_and_who_was_canceled_is_passed_over() {
        let service = margo::init("{}").unwrap();
        let pool = service.layout().rpc_pool();
        let places = Arc::new(Places::new(1));
        let never = Eventual::<()>::new();
        let held = places.take(&never).unwrap();
        let (count, canceled) = (Arc::new(AtomicUsize::new(0)), Arc::new(Eventual::<()>::new()));
        let waits: Vec<_> = (0..4)
            .map(|number| {
                let (same, count, canceled) = (places.clone(), count.clone(), canceled.clone());
                let never = Eventual::<()>::new();
                let wait = pool.spawn(move || {
                    let end = if number == 1 { &*canceled } else { &never };
                    same.take(end).map(|_place| count.fetch_add(1, Ordering::Relaxed))
                });
                while places.waiting() <= number {
                    std::thread::yield_now();
                }
                wait.unwrap()
            })
            .collect();
        canceled.set(()).unwrap();
        while places.waiting() == 4 {
            std::thread::yield_now();
        }
        drop(held);
        let got: Vec<_> = waits.into_iter().map(|wait| wait.join().unwrap()).collect();
        assert_eq!(got, [Some(0), None, Some(1), Some(2)]);
        assert!(places.take(&never).is_some(), "it came back");
        service.finalize_and_wait().unwrap();
    }
}
