//! Memory that peers make an endpoint hold: one sum over all of them, and one for each host.
//!
//! A bound for each peer does not bound a crowd, because a host can open as many connections as it
//! likes. So memory that waits for a peer which does not take it is charged to three accounts at
//! once: that of the peer, of its [`Principal`] and of the endpoint. An [`Account`] holds what one
//! peer is charged with and gives it back when it is dropped, so that nothing stays charged for a
//! peer that is gone.
//!
//! Charging touches lines that all threads share. So only data that has to wait is charged; data
//! that leaves at once is not.

use std::collections::HashMap;
use std::sync::Weak;

use crate::Principal;
use prim::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use prim::sync::{Arc, Mutex, lock};

/// A peak from which on memory that has become free is worth giving back to the system, bytes.
const PEAK_MIN: usize = 16 << 20;

/// Memory counts as free again when so many times less is held than at the peak.
const DRAINED: usize = 4;

/// The bounds of a [`Budget`], bytes.
///
/// ```
/// use na_core::limits::budget::{Broken, BudgetLimits};
///
/// let bounds = BudgetLimits { of_peer: 10, of_host: 15, of_all: 25 };
/// assert_eq!(bounds.broken_by(10, 15, 25), None);
/// assert_eq!(bounds.broken_by(10, 16, 25), Some(Broken::Host));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetLimits {
    /// The bound of a peer.
    pub of_peer: usize,
    /// The bound of all peers of a host.
    pub of_host: usize,
    /// The bound of all peers.
    pub of_all: usize,
}

impl BudgetLimits {
    /// The bound that is broken by what a peer, its host and all of them hold.
    pub fn broken_by(&self, peer: usize, host: usize, all: usize) -> Option<Broken> {
        match () {
            () if peer > self.of_peer => Some(Broken::Peer),
            () if host > self.of_host => Some(Broken::Host),
            () if all > self.of_all => Some(Broken::All),
            () => None,
        }
    }
}

/// A bound that is broken.
///
/// ```
/// use na_core::limits::budget::{Broken, BudgetLimits};
///
/// let bounds = BudgetLimits { of_peer: 10, of_host: 15, of_all: 25 };
/// assert_eq!(bounds.broken_by(11, 16, 26), Some(Broken::Peer), "the narrowest one");
/// assert_eq!(bounds.broken_by(1, 1, 26), Some(Broken::All));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The peer holds too much.
    Peer,
    /// The peers of its host hold too much.
    Host,
    /// All peers hold too much.
    All,
}

/// The memory that an endpoint may hold for its peers. See the module's documentation.
///
/// ```
/// use na_core::Principal;
/// use na_core::limits::budget::{Budget, BudgetLimits};
///
/// let budget = Budget::new(BudgetLimits { of_peer: 10, of_host: 15, of_all: 25 });
/// let mut account = budget.account(Principal::User(1000));
/// account.set(11);
/// assert_eq!(budget.held(), 11);
/// assert!(budget.take_call(), "a bound is broken: somebody is to look after it");
/// ```
#[derive(Debug)]
pub struct Budget {
    /// The bounds.
    pub bounds: BudgetLimits,
    held: AtomicUsize,
    /// The most that was held since memory was last given back.
    peak: AtomicUsize,
    /// A bound was broken, or memory has become free.
    calls: AtomicBool,
    shares: Mutex<HashMap<Principal, Weak<ByteShare>>>,
}

/// The bytes that are charged to one principal.
#[derive(Debug, Default)]
struct ByteShare {
    held: AtomicUsize,
}

/// The bytes that are charged to one peer; given back when it is dropped.
///
/// ```
/// use na_core::Principal;
/// use na_core::limits::budget::{Budget, BudgetLimits};
///
/// let budget = Budget::new(BudgetLimits { of_peer: 10, of_host: 15, of_all: 25 });
/// let mut account = budget.account(Principal::User(1000));
/// account.set(7);
/// account.set(5); // in place of 7
/// assert_eq!((account.held(), budget.held()), (5, 5));
/// drop(account);
/// assert_eq!(budget.held(), 0);
/// ```
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    share: Arc<ByteShare>,
    held: usize,
}

impl Budget {
    /// A budget of which nothing is used.
    pub fn new(bounds: BudgetLimits) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            held: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            calls: AtomicBool::new(false),
            shares: Mutex::default(),
        })
    }

    /// An account, with nothing in it, of a peer that `whose` is behind.
    pub fn account(self: &Arc<Self>, whose: Principal) -> Account {
        let mut shares = lock(&self.shares);
        let known = shares.get(&whose).and_then(Weak::upgrade);
        let share = known.unwrap_or_else(|| {
            if shares.len() == shares.capacity() {
                shares.retain(|_, share| share.strong_count() > 0);
            }
            let share = Arc::<ByteShare>::default();
            shares.insert(whose, Arc::downgrade(&share));
            share
        });
        Account { budget: self.clone(), share, held: 0 }
    }

    /// Bytes that all peers hold.
    #[inline]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns whether somebody has to look after a bound, or after memory that has become free.
    #[inline]
    pub fn calls(&self) -> bool {
        self.calls.load(Ordering::Relaxed)
    }

    /// The caller looks after it now.
    pub fn take_call(&self) -> bool {
        self.calls.swap(false, Ordering::Relaxed)
    }

    /// Returns whether much less is held than once was; tells it once.
    pub fn take_drained(&self) -> bool {
        let (held, peak) = (self.held(), self.peak.load(Ordering::Relaxed));
        let drained = is_drained(held, peak);
        if drained {
            self.peak.store(held, Ordering::Relaxed);
        }
        drained
    }
}

fn is_drained(held: usize, peak: usize) -> bool {
    peak >= PEAK_MIN && held <= peak / DRAINED
}

impl Account {
    /// Bytes charged.
    #[inline]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Charges `bytes` in place of what was charged before.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        let Self { budget, share, held } = self;
        match bytes.checked_sub(*held) {
            Some(0) => return,
            Some(more) => {
                let all = budget.held.fetch_add(more, Ordering::Relaxed) + more;
                let host = share.held.fetch_add(more, Ordering::Relaxed) + more;
                budget.peak.fetch_max(all, Ordering::Relaxed);
                if budget.bounds.broken_by(bytes, host, all).is_some() {
                    budget.calls.store(true, Ordering::Relaxed);
                }
            }
            None => {
                let less = *held - bytes;
                let all = budget.held.fetch_sub(less, Ordering::Relaxed) - less;
                share.held.fetch_sub(less, Ordering::Relaxed);
                if is_drained(all, budget.peak.load(Ordering::Relaxed)) {
                    budget.calls.store(true, Ordering::Relaxed);
                }
            }
        }
        self.held = bytes;
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Arc<Budget> {
        Budget::new(BudgetLimits { of_peer: 10, of_host: 15, of_all: 25 })
    }

    fn host(last: u8) -> Principal {
        Principal::of_host([10, 0, 0, last].into())
    }

    #[test]
    fn each_bound_calls_when_it_is_broken() {
        let budget = budget();
        let [mut first, mut second] = [1, 1].map(|last| budget.account(host(last)));
        let [mut third, mut fourth] = [2, 3].map(|last| budget.account(host(last)));
        first.set(10);
        assert!(!budget.calls());
        first.set(11);
        assert!(budget.take_call(), "the peer's own");
        first.set(10);
        assert!(!budget.take_call());
        second.set(6);
        assert!(budget.take_call(), "the host's");
        second.set(5);
        third.set(9);
        assert!(!budget.take_call());
        fourth.set(2);
        assert!(budget.take_call(), "all of them");
        assert_eq!(budget.bounds.broken_by(2, 2, budget.held()), Some(Broken::All));
        assert_eq!(budget.bounds.broken_by(11, 16, 26), Some(Broken::Peer));
        assert_eq!(budget.bounds.broken_by(10, 16, 26), Some(Broken::Host));
        assert_eq!(budget.bounds.broken_by(10, 15, 25), None);
    }

    #[test]
    fn nothing_stays_charged_for_who_is_gone() {
        let budget = budget();
        let mut accounts: Vec<_> = (0..100).map(|last| budget.account(host(last))).collect();
        for (at, account) in accounts.iter_mut().enumerate() {
            account.set(at);
            account.set(at / 2);
            assert_eq!(account.held(), at / 2);
        }
        assert_eq!(budget.held(), (0..100).map(|at| at / 2).sum::<usize>());
        let shares = accounts[7].share.clone();
        drop(accounts);
        assert_eq!((budget.held(), shares.held.load(Ordering::Relaxed)), (0, 0));
        drop(shares);
        // Of hosts that are gone no more is kept than of those that are there.
        for round in 0..1000u16 {
            let [high, low] = round.to_be_bytes();
            drop(budget.account(Principal::of_host([10, 1, high, low].into())));
        }
        assert!(lock(&budget.shares).capacity() < 1000);
    }

    #[test]
    fn a_drained_budget_tells_it_once() {
        let bounds = BudgetLimits { of_peer: usize::MAX, of_host: usize::MAX, of_all: usize::MAX };
        let budget = Budget::new(bounds);
        let mut account = budget.account(Principal::Unknown);
        account.set(PEAK_MIN);
        account.set(PEAK_MIN / 2);
        assert!(!budget.calls() && !budget.take_drained());
        account.set(PEAK_MIN / DRAINED);
        assert!(budget.take_call() && budget.take_drained() && !budget.take_drained());
        account.set(PEAK_MIN - 1);
        drop(account);
        assert!(!budget.calls() && !budget.take_drained(), "that was little");
    }
}
