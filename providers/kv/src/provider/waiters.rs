//! The calls that wait for keys, each of which is woken by a change of its key.
//!
//! A caller enters before it looks at the database, so that no change comes in between unseen; it
//! looks again whenever it is woken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use margo::Principal;
use margo::ult::Eventual;

use crate::KvError;
use crate::model::{Batch, Change};

pub(super) struct Waiters {
    most: usize,
    state: Mutex<Entered>,
    closed: Eventual<()>,
}

#[derive(Default)]
struct Entered {
    count: usize,
    of_callers: HashMap<Principal, usize>,
    of_keys: HashMap<Vec<u8>, Vec<Arc<Eventual<()>>>>,
}

/// A call that waits; it leaves when this is dropped.
pub(super) struct KeyWait<'a> {
    waiters: &'a Waiters,
    caller: Principal,
    key: &'a [u8],
    woken: Arc<Eventual<()>>,
}

/// The keys whose waiters are to be woken by a batch.
pub(super) enum Wake {
    /// These.
    Keys(Vec<Vec<u8>>),
    /// All: nobody waited when the batch began.
    All,
}

impl Wake {
    /// The keys that `batch` may set, if anybody waits.
    pub(super) fn of(batch: &Batch, waiters: &Waiters) -> Self {
        if waiters.len() == 0 {
            return Self::All;
        }
        let set = batch.changes.iter().filter_map(|change| match change {
            Change::Put { key, .. } | Change::Append { key, .. } => Some(key.to_vec()),
            Change::Erase { .. } | Change::EraseRange(_) => None,
        });
        Self::Keys(set.collect())
    }

    /// As [`of`](Self::of), of a change of one key.
    pub(super) fn of_key(key: &[u8], waiters: &Waiters) -> Self {
        if waiters.len() == 0 { Self::All } else { Self::Keys(vec![key.to_vec()]) }
    }
}

impl Waiters {
    pub(super) fn new(most: u64) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self { most, state: Mutex::default(), closed: Eventual::new() }
    }

    /// Begins to wait for a change of `key`.
    pub(super) fn enter<'a>(
        &'a self,
        caller: Principal,
        key: &'a [u8],
    ) -> Result<KeyWait<'a>, KvError> {
        let woken = Arc::new(Eventual::new());
        let mut state = self.state();
        let own = state.of_callers.get(&caller).copied().unwrap_or(0);
        if state.count >= self.most || own >= (self.most / 2).max(1) {
            return Err(KvError::Busy);
        }
        state.count += 1;
        state.of_callers.insert(caller, own + 1);
        state.of_keys.entry(key.to_vec()).or_default().push(woken.clone());
        Ok(KeyWait { waiters: self, caller, key, woken })
    }

    /// Wakes those who wait.
    pub(super) fn wake(&self, wake: Wake) {
        let mut state = self.state();
        if state.of_keys.is_empty() {
            return;
        }
        let woken: Vec<_> = match wake {
            Wake::All => state.of_keys.drain().map(|(_, waiting)| waiting).collect(),
            Wake::Keys(keys) => keys.iter().filter_map(|key| state.of_keys.remove(key)).collect(),
        };
        drop(state);
        // One in the table has not been set.
        woken.iter().flatten().for_each(|woken| _ = woken.set(()));
    }

    /// Wakes all, for good.
    pub(super) fn close(&self) {
        // Closed twice is closed.
        let _ = self.closed.set(());
    }

    /// The event of [`close`](Self::close).
    pub(super) fn closed(&self) -> &Eventual<()> {
        &self.closed
    }

    pub(super) fn len(&self) -> usize {
        self.state().count
    }

    fn state(&self) -> MutexGuard<'_, Entered> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyWait<'_> {
    /// The event of a change.
    pub(super) fn woken(&self) -> &Eventual<()> {
        &self.woken
    }
}

impl Drop for KeyWait<'_> {
    fn drop(&mut self) {
        let mut state = self.waiters.state();
        state.count -= 1;
        if let Some(own) = state.of_callers.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                state.of_callers.remove(&self.caller);
            }
        }
        if let Some(waiting) = state.of_keys.get_mut(self.key) {
            waiting.retain(|other| !Arc::ptr_eq(other, &self.woken));
            if waiting.is_empty() {
                state.of_keys.remove(self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_has_half_of_all_and_the_bound_holds() {
        let waiters = Waiters::new(4);
        let enter = |user| waiters.enter(Principal::User(user), b"k");
        let own = [enter(1).unwrap(), enter(1).unwrap()];
        assert_eq!(enter(1).err(), Some(KvError::Busy));
        let others = [enter(2).unwrap(), enter(3).unwrap()];
        assert_eq!(enter(4).err(), Some(KvError::Busy));
        drop(own);
        assert_eq!(waiters.len(), 2);
        drop([enter(1).unwrap(), enter(4).unwrap()]);
        drop(others);
        assert_eq!(waiters.len(), 0);
        assert!(waiters.state().of_callers.is_empty() && waiters.state().of_keys.is_empty());
    }
}
