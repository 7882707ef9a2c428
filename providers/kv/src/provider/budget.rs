//! A bound on the bytes that requests hold for bulk transfers, first come, first served.
//!
//! The callers of a host or user have half of them at most, or one request, so that others find
//! some; who waits because of its own share is passed over. A request that waits for bytes that are
//! not there holds up those behind it: a large one would never have its turn otherwise.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use margo::Principal;
use margo::ult::{Eventual, Selectable, wait_any};

pub(super) struct Budget {
    most: u64,
    state: Mutex<Lent>,
}

#[derive(Default)]
struct Lent {
    bytes: u64,
    of_callers: HashMap<Principal, u64>,
    waiting: VecDeque<Arc<Turn>>,
}

struct Turn {
    caller: Principal,
    bytes: u64,
    granted: Eventual<()>,
}

/// Bytes that a request holds. Given back when this is dropped.
#[must_use = "the bytes are given back when this is dropped"]
pub(super) struct Loan<'a> {
    budget: &'a Budget,
    turn: Arc<Turn>,
}

impl Budget {
    pub(super) fn new(most: u64) -> Self {
        Self { most, state: Mutex::default() }
    }

    /// The most that one request may have.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// Bytes that are held.
    pub(super) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// Takes bytes, at most [`most`](Self::most); suspends until it is this request's turn. `None`:
    /// `canceled` was ready before.
    pub(super) fn take(
        &self,
        caller: Principal,
        bytes: u64,
        canceled: &dyn Selectable,
    ) -> Option<Loan<'_>> {
        debug_assert!(bytes <= self.most, "it would wait for ever");
        let turn = Turn { caller, bytes, granted: Eventual::new() };
        let turn = Arc::new(turn);
        let mut state = self.state();
        state.waiting.push_back(turn.clone());
        self.grant(state);
        // Gives back what was granted also if this ULT unwinds, or leaves the queue.
        let loan = Loan { budget: self, turn };
        wait_any(&[&loan.turn.granted, canceled], None);
        loan.turn.granted.is_ready().then_some(loan)
    }

    /// Lends to those whose turn it is.
    fn grant(&self, mut state: MutexGuard<'_, Lent>) {
        let mut granted = Vec::new();
        let mut at = 0;
        while let Some(turn) = state.waiting.get(at) {
            let own = state.of_callers.get(&turn.caller).copied();
            if own.is_some_and(|own| own + turn.bytes > self.most / 2) {
                at += 1;
            } else if state.bytes + turn.bytes > self.most {
                break;
            } else if let Some(turn) = state.waiting.remove(at) {
                state.bytes += turn.bytes;
                *state.of_callers.entry(turn.caller).or_default() += turn.bytes;
                granted.push(turn);
            }
        }
        // Told under the lock: who leaves sees under it which of the two it was.
        granted.iter().for_each(|turn| _ = turn.granted.set(()));
    }

    fn state(&self) -> MutexGuard<'_, Lent> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let Turn { caller, bytes, granted } = &*self.turn;
        let mut state = self.budget.state();
        if granted.is_ready() {
            state.bytes -= bytes;
            if let Some(own) = state.of_callers.get_mut(caller) {
                *own -= bytes;
                if *own == 0 {
                    state.of_callers.remove(caller);
                }
            }
        } else {
            state.waiting.retain(|other| !Arc::ptr_eq(other, &self.turn));
        }
        self.budget.grant(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_half_and_those_who_wait_have_their_turn() {
        let [first, second, third] = [1, 2, 3].map(Principal::User);
        let budget = Budget::new(100);
        let (never, at_once) = (Eventual::<()>::new(), Eventual::new());
        at_once.set(()).unwrap();

        let large = budget.take(first, 90, &never).unwrap();
        assert!(budget.take(first, 1, &at_once).is_none(), "more than half");
        assert!(budget.take(second, 11, &at_once).is_none(), "not there");
        let small = budget.take(second, 10, &never).unwrap();
        assert_eq!(budget.bytes(), 100);
        drop(small);

        // The first in the queue is over its own share and holds nobody up; the second is not.
        std::thread::scope(|scope| {
            let over = scope.spawn(|| budget.take(first, 5, &never).map(drop).is_some());
            while budget.state().waiting.is_empty() {
                std::thread::yield_now();
            }
            drop(budget.take(second, 10, &never).unwrap());
            let wide = scope.spawn(|| budget.take(second, 50, &never).map(drop).is_some());
            while budget.state().waiting.len() < 2 {
                std::thread::yield_now();
            }
            assert!(budget.take(third, 1, &at_once).is_none(), "behind one that waits");
            drop(large);
            assert!(over.join().unwrap() && wide.join().unwrap());
        });
        assert_eq!(budget.bytes(), 0);
        assert!(budget.state().of_callers.is_empty());
    }
}
