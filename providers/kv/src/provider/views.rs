//! The views that are kept between the pages of a list, so that all of them are of one moment.
//!
//! The callers of a host or user have an eighth of them at most, and give their oldest up for a new
//! one. When all are in use, those who have most give up that which was used least lately: a crowd
//! of lists ends its own ones. A view that is not used for a while goes with the next change, as
//! that is what a store has to keep old records for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use margo::{Addr, Principal};

use crate::KvError;
use crate::engine::View;
use crate::members::Served;

pub(super) struct Views {
    most: usize,
    idle: Duration,
    state: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// The id of the next one.
    next: u64,
    views: Vec<KeptView>,
}

struct KeptView {
    id: u64,
    owner: Addr,
    principal: Principal,
    view: ServedView,
    used: Instant,
}

/// A view, and which of its keys were served when it was opened.
#[derive(Clone)]
pub(super) struct ServedView {
    pub(super) records: Arc<dyn View>,
    pub(super) served: Arc<Served>,
}

impl Views {
    pub(super) fn new(most: u64, idle: Duration) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
        Self { most, idle, state: Mutex::default() }
    }

    /// Keeps a view for `owner`. Returns its id.
    pub(super) fn keep(&self, owner: &Addr, principal: Principal, view: ServedView) -> u64 {
        let now = Instant::now();
        let mut state = self.state();
        let own = state.of(principal);
        let left = match own >= (self.most / 8).max(1) {
            true => state.take_oldest_of(principal),
            false if state.views.len() >= self.most => {
                state.of_most().and_then(|principal| state.take_oldest_of(principal))
            }
            false => None,
        };
        let id = state.next;
        state.next += 1;
        state.views.push(KeptView { id, owner: owner.clone(), principal, view, used: now });
        // A view that is dropped may close files: not under the lock.
        drop(state);
        drop(left);
        id
    }

    /// The view of that id, if `owner` has it.
    pub(super) fn find(&self, id: u64, owner: &Addr) -> Result<ServedView, KvError> {
        let mut state = self.state();
        let mut views = state.views.iter_mut();
        let found = views.find(|kept| kept.id == id && kept.owner == *owner);
        let kept = found.ok_or(KvError::Gone)?;
        kept.used = Instant::now();
        Ok(kept.view.clone())
    }

    /// Keeps that view of `owner` no longer.
    pub(super) fn end(&self, id: u64, owner: &Addr) {
        self.remove(|kept| kept.id == id && kept.owner == *owner);
    }

    /// Keeps those no longer that have not been used for a while.
    pub(super) fn sweep(&self, now: impl FnOnce() -> Instant) {
        if self.len() > 0 {
            let now = now();
            self.remove(|kept| now.saturating_duration_since(kept.used) >= self.idle);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.state().views.len()
    }

    fn remove(&self, is_out: impl Fn(&KeptView) -> bool) {
        let mut state = self.state();
        let out: Vec<_> = state.views.extract_if(.., |kept| is_out(kept)).collect();
        drop(state);
        drop(out);
    }

    fn state(&self) -> MutexGuard<'_, Kept> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn of(&self, principal: Principal) -> usize {
        self.views.iter().filter(|kept| kept.principal == principal).count()
    }

    /// The principal whose callers have most.
    fn of_most(&self) -> Option<Principal> {
        let mut counts: HashMap<Principal, usize> = HashMap::new();
        self.views.iter().for_each(|kept| *counts.entry(kept.principal).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(most, _)| most)
    }

    fn take_oldest_of(&mut self, principal: Principal) -> Option<KeptView> {
        let views = self.views.iter().enumerate();
        let own = views.filter(|(_, kept)| kept.principal == principal);
        let (oldest, _) = own.min_by_key(|(_, kept)| kept.used)?;
        Some(self.views.swap_remove(oldest))
    }
}

#[cfg(test)]
mod tests {
    use margo::Instance;

    use super::*;
    use crate::engine::Database;

    #[test]
    fn who_has_most_makes_room_and_what_is_not_used_goes() {
        let service = Instance::builder("na+sm://").start().unwrap();
        let callers: Vec<_> =
            (0..4).map(|n| service.lookup(&format!("na+sm://nobody-{n}")).unwrap()).collect();
        let records = Database::default().view().unwrap();
        let view = ServedView { records, served: Arc::default() };
        let idle = Duration::from_secs(10);
        let views = Views::new(16, idle);
        let keep = |views: &Views, caller: usize| {
            let principal = Principal::User(u32::try_from(caller).unwrap());
            views.keep(&callers[caller], principal, view.clone())
        };
        let has = |id, owner: &Addr| views.find(id, owner).is_ok();

        // An eighth of them for each principal.
        let ids: Vec<_> = (0..3).map(|_| keep(&views, 0)).collect();
        assert!(!has(ids[0], &callers[0]) && has(ids[1], &callers[0]) && has(ids[2], &callers[0]));
        assert!(!has(ids[1], &callers[1]), "of another caller");
        views.end(ids[2], &callers[1]);
        assert!(has(ids[2], &callers[0]), "another caller cannot end it");

        // All in use: who has most gives one up.
        let small = Views::new(2, idle);
        let first = keep(&small, 0);
        let second = keep(&small, 1);
        small.find(first, &callers[0]).unwrap();
        let third = keep(&small, 2);
        assert_eq!(small.len(), 2);
        assert!(small.find(third, &callers[2]).is_ok());
        assert!(small.find(first, &callers[0]).is_ok() != small.find(second, &callers[1]).is_ok());

        views.sweep(Instant::now);
        assert_eq!(views.len(), 2, "they were used just now");
        views.sweep(|| Instant::now() + idle);
        assert_eq!(views.len(), 0);
        service.finalize_and_wait().unwrap();
    }
}
