//! Remote keys: the peers that have them, and the messages of both sides before memory is its
//! owner's again.
//!
//! A requester *wants* the key of memory that it uses; the owner answers with the *key*, or that
//! there is none. When the memory is to be given back the owner says *revoke*; the requester says
//! *returned* once no transfer of its own uses the key. A requester may return a key before, too,
//! because it has too many: that may cross the owner's *revoke*, which is then skipped. All keys of
//! a session end with it.
//!
//! Nothing here knows UCX: `remote.rs` does.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use na_core::base::cheap::IntBuildHasher;
use na_core::memory::region::{Offer, RetiredMemory};
use prim::sync::{Arc, Mutex, lock};

/// Keys that a requester may have of one owner at a time, or have asked for.
pub(crate) const KEYS_MAX: usize = 256;

/// How the bell of an endpoint is called, should it be lost.
pub(crate) const BELL_NAME: &str = "the eventfd that wakes the progress of a ucx endpoint";

/// A rule that a peer breaks.
const UNASKED: &str = "it answers for a remote key that was not asked for";

/// How a transfer may go.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeyRoute<K> {
    /// The owner is asked for the transfer.
    Ask,
    /// It waits for a key. `want`: the owner is to be asked for that; `returned`: and is to be told
    /// before that another one is used no more.
    Wait { want: bool, returned: Option<u64> },
    /// It uses this key, until [`HeldKeys::let_go`].
    Use(K),
}

enum KeyState<K> {
    /// Memory of this key was used once, without its remote key.
    Seen,
    /// The owner was asked, by these transfers.
    Wanted(Vec<u64>),
    Held {
        key: K,
        uses: u32,
        is_revoked: bool,
    },
    /// The owner gives none.
    Refused,
}

/// The keys of one owner that a requester has.
pub(crate) struct HeldKeys<K> {
    states: HashMap<u64, KeyState<K>, IntBuildHasher>,
    /// The keys of `states`, the oldest first.
    order: VecDeque<u64>,
}

impl<K> Default for HeldKeys<K> {
    fn default() -> Self {
        Self { states: HashMap::default(), order: VecDeque::new() }
    }
}

impl<K: Clone> HeldKeys<K> {
    /// How a transfer, `id`, with the memory of `key` goes. `at_once`: it is worth a key by itself;
    /// else the second one with this memory is. `covers`: whether a key allows the transfer. One
    /// that is not allowed is for the owner to deny.
    pub(crate) fn route(
        &mut self,
        key: u64,
        id: u64,
        at_once: bool,
        covers: impl FnOnce(&K) -> bool,
    ) -> KeyRoute<K> {
        match self.states.get_mut(&key) {
            Some(KeyState::Held { key, uses, is_revoked: false }) if covers(key) => {
                *uses += 1;
                KeyRoute::Use(key.clone())
            }
            Some(KeyState::Wanted(waiting)) => {
                waiting.push(id);
                KeyRoute::Wait { want: false, returned: None }
            }
            Some(seen @ KeyState::Seen) => {
                *seen = KeyState::Wanted(vec![id]);
                KeyRoute::Wait { want: true, returned: None }
            }
            Some(KeyState::Held { .. } | KeyState::Refused) => KeyRoute::Ask,
            None => {
                if !at_once {
                    self.seen(key);
                    return KeyRoute::Ask;
                }
                let Some(returned) = self.make_room() else { return KeyRoute::Ask };
                self.states.insert(key, KeyState::Wanted(vec![id]));
                self.order.push_back(key);
                KeyRoute::Wait { want: true, returned }
            }
        }
    }

    /// Notes that memory was used without its remote key, if there is room.
    fn seen(&mut self, key: u64) {
        let is_dispensable = |known: &u64| {
            matches!(self.states.get(known), Some(KeyState::Seen | KeyState::Refused))
        };
        if self.states.len() >= KEYS_MAX {
            // No key is given up for a note.
            let Some(at) = self.order.iter().position(is_dispensable) else { return };
            let Some(oldest) = self.order.remove(at) else { return };
            self.states.remove(&oldest);
        }
        self.states.insert(key, KeyState::Seen);
        self.order.push_back(key);
    }

    /// Makes room for one more; the key that is returned for that. `None`: all are in use.
    fn make_room(&mut self) -> Option<Option<u64>> {
        if self.states.len() < KEYS_MAX {
            return Some(None);
        }
        let states = &self.states;
        let is_free = |key: &u64| match states.get(key) {
            Some(KeyState::Held { uses, .. }) => *uses == 0,
            Some(KeyState::Wanted(_)) => false,
            Some(KeyState::Seen | KeyState::Refused) | None => true,
        };
        let key = self.order.remove(self.order.iter().position(is_free)?)?;
        let was = self.states.remove(&key);
        Some(matches!(was, Some(KeyState::Held { .. })).then_some(key))
    }

    fn remove(&mut self, key: u64) {
        self.states.remove(&key);
        self.order.retain(|known| *known != key);
    }

    /// Returns whether a key was asked for.
    ///
    /// # Errors
    ///
    /// The rule that an answer breaks.
    pub(crate) fn check(&self, number: u64) -> Result<(), &'static str> {
        match self.states.get(&number) {
            Some(KeyState::Wanted(_)) => Ok(()),
            _ => Err(UNASKED),
        }
    }

    /// The owner gives a key; the transfers that wait for it.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn came(&mut self, number: u64, key: K) -> Result<Vec<u64>, &'static str> {
        self.answered(number, KeyState::Held { key, uses: 0, is_revoked: false })
    }

    /// The owner gives none; the transfers that wait for it.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn refused(&mut self, number: u64) -> Result<Vec<u64>, &'static str> {
        self.answered(number, KeyState::Refused)
    }

    fn answered(&mut self, number: u64, state: KeyState<K>) -> Result<Vec<u64>, &'static str> {
        match self.states.get_mut(&number) {
            Some(wanted @ KeyState::Wanted(_)) => match std::mem::replace(wanted, state) {
                KeyState::Wanted(waiting) => Ok(waiting),
                _ => Ok(Vec::new()),
            },
            _ => Err(UNASKED),
        }
    }

    /// The owner takes a key back; whether it is to be told at once that nothing uses it.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn revoked(&mut self, number: u64) -> Result<bool, &'static str> {
        match self.states.get_mut(&number) {
            Some(KeyState::Held { is_revoked: true, .. }) => {
                Err("it takes a remote key back twice")
            }
            Some(KeyState::Held { uses: 0, .. }) => {
                self.remove(number);
                Ok(true)
            }
            Some(KeyState::Held { is_revoked, .. }) => {
                *is_revoked = true;
                Ok(false)
            }
            // It was returned meanwhile.
            Some(KeyState::Seen | KeyState::Wanted(_) | KeyState::Refused) | None => Ok(false),
        }
    }

    /// A transfer uses a key no more; whether the owner is to be told that none does.
    pub(crate) fn let_go(&mut self, number: u64) -> bool {
        let Some(KeyState::Held { uses, is_revoked, .. }) = self.states.get_mut(&number) else {
            return false;
        };
        *uses = uses.saturating_sub(1);
        let is_over = *is_revoked && *uses == 0;
        if is_over {
            self.remove(number);
        }
        is_over
    }
}

/// Names a key that a peer has: the peer, the session, and the memory.
pub(crate) type Name = (usize, u64, u64);

/// Keys that are to be taken back. They are behind a lock of their own, because any thread that
/// lets go of memory adds some.
pub(crate) struct Recalls {
    state: Mutex<RecallState>,
    /// The bell that wakes a sleeper; `None`: nobody sleeps.
    bell: Option<Arc<OwnedFd>>,
}

#[derive(Default)]
struct RecallState {
    names: Vec<Name>,
    is_asleep: bool,
}

impl Recalls {
    pub(crate) fn new(bell: Option<Arc<OwnedFd>>) -> Self {
        Self { state: Mutex::default(), bell }
    }

    fn add(&self, name: Name) {
        let mut state = lock(&self.state);
        state.names.push(name);
        let is_asleep = std::mem::take(&mut state.is_asleep);
        drop(state);
        if let (true, Some(bell)) = (is_asleep, &self.bell) {
            prim::lost::ring(bell, BELL_NAME);
        }
    }

    /// Takes them all.
    pub(crate) fn take(&self) -> Vec<Name> {
        let mut state = lock(&self.state);
        state.is_asleep = false;
        std::mem::take(&mut state.names)
    }

    /// Returns whether there are none; then a thread that adds one rings.
    pub(crate) fn may_sleep(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_asleep = state.names.is_empty();
        state.is_asleep
    }
}

/// A key that a peer has of memory here.
pub(crate) struct Standing {
    name: Name,
    recalls: Arc<Recalls>,
    state: Mutex<StandingState>,
}

struct StandingState {
    is_withdrawn: bool,
    is_over: bool,
    /// The memory, once its user wants it back.
    held: Option<RetiredMemory>,
}

impl Standing {
    pub(crate) fn new(name: Name, recalls: Arc<Recalls>) -> Arc<Self> {
        let stand = StandingState { is_withdrawn: false, is_over: false, held: None };
        Arc::new(Self { name, recalls, state: Mutex::new(stand) })
    }

    /// The peer cannot use it any more; the memory to drop, without a lock.
    pub(crate) fn end(&self) -> Option<RetiredMemory> {
        let mut state = lock(&self.state);
        state.is_over = true;
        state.held.take()
    }
}

impl Offer for Standing {
    fn withdraw(&self) {
        let mut state = lock(&self.state);
        let is_news = !state.is_withdrawn && !state.is_over;
        state.is_withdrawn = true;
        drop(state);
        if is_news {
            self.recalls.add(self.name);
        }
    }

    fn stands(&self) -> bool {
        let state = lock(&self.state);
        !state.is_withdrawn && !state.is_over
    }

    fn is_used(&self) -> bool {
        !lock(&self.state).is_over
    }

    fn keep(&self, held: RetiredMemory) {
        let mut state = lock(&self.state);
        if !state.is_over {
            state.held = Some(held);
            return;
        }
        // It has ended since it was asked. What is dropped asks the others.
        drop(state);
        drop(held);
    }
}

/// A key that a peer was given.
pub(crate) struct Given {
    pub(crate) standing: Arc<Standing>,
    is_revoked: bool,
}

/// The keys that one peer was given and has not returned.
#[derive(Default)]
pub(crate) struct GivenKeys(HashMap<u64, Given, IntBuildHasher>);

impl GivenKeys {
    /// Returns whether a peer may ask for one more.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn check(&self, key: u64) -> Result<(), &'static str> {
        if self.0.contains_key(&key) {
            return Err("it asks for a remote key that it has");
        }
        match self.0.len() < KEYS_MAX {
            true => Ok(()),
            false => Err("it asks for too many remote keys"),
        }
    }

    pub(crate) fn add(&mut self, key: u64, standing: Arc<Standing>) {
        self.0.insert(key, Given { standing, is_revoked: false });
    }

    /// The memory is wanted back; whether the peer is to be told.
    pub(crate) fn revoke(&mut self, key: u64) -> bool {
        let given = self.0.get_mut(&key).filter(|given| !given.is_revoked);
        given.map(|given| given.is_revoked = true).is_some()
    }

    /// Returns whether the peer owes one that was taken back.
    pub(crate) fn are_owed(&self) -> bool {
        self.0.values().any(|given| given.is_revoked)
    }

    /// The peer returns one.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    pub(crate) fn returned(&mut self, key: u64) -> Result<Given, &'static str> {
        self.0.remove(&key).ok_or("it returns a remote key that it does not have")
    }

    /// The session has ended, or all has.
    pub(crate) fn take(&mut self) -> Vec<(u64, Given)> {
        self.0.drain().collect()
    }
}

/// Keys of a session that has ended, until its connection has, too.
pub(crate) struct EndedKeys {
    pub(crate) given: Vec<(u64, Given)>,
    /// True if adapters reach the memory.
    pub(crate) by_adapter: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

    use std::sync::mpsc;

    use super::*;
    use na_core::{Access, LocalMem, Memory, RegionTable};

    const ANY: fn(&char) -> bool = |_| true;

    fn waits(want: bool) -> KeyRoute<char> {
        KeyRoute::Wait { want, returned: None }
    }

    #[test]
    fn transfers_wait_for_a_key_and_use_it_until_the_last_of_them_is_over() {
        let mut keys = HeldKeys::default();
        assert_eq!(keys.route(5, 1, true, ANY), waits(true));
        assert_eq!(keys.route(5, 2, true, ANY), waits(false));
        assert_eq!(keys.came(5, 'k'), Ok(vec![1, 2]));
        assert_eq!(keys.route(5, 1, true, ANY), KeyRoute::Use('k'));
        assert_eq!(keys.route(5, 2, true, ANY), KeyRoute::Use('k'));
        assert_eq!(keys.revoked(5), Ok(false), "it is used");
        assert_eq!(keys.route(5, 3, true, ANY), KeyRoute::Ask, "nothing begins under it");
        assert!(!keys.let_go(5));
        assert!(keys.let_go(5), "it is returned now");
        assert!(!keys.let_go(5), "once");
        assert_eq!(keys.route(5, 4, true, ANY), waits(true), "and may be asked for anew");
    }

    #[test]
    fn short_transfers_want_a_key_when_they_come_again() {
        let mut keys = HeldKeys::default();
        assert_eq!(keys.route(5, 1, false, ANY), KeyRoute::Ask);
        assert_eq!(keys.route(5, 2, false, ANY), waits(true));
        assert_eq!(keys.came(5, 'k'), Ok(vec![2]));
        assert_eq!(keys.route(5, 2, false, ANY), KeyRoute::Use('k'));
    }

    #[test]
    fn a_transfer_that_a_key_does_not_cover_is_for_the_owner_to_deny() {
        let mut keys = HeldKeys::default();
        assert_eq!(keys.route(5, 1, true, ANY), waits(true));
        assert_eq!(keys.came(5, 'k'), Ok(vec![1]));
        assert_eq!(keys.route(5, 1, true, |_| false), KeyRoute::Ask);
        assert_eq!(keys.revoked(5), Ok(true), "nothing has used it");
        assert_eq!(keys.route(6, 2, true, ANY), waits(true));
        assert_eq!(keys.refused(6), Ok(vec![2]));
        assert_eq!(keys.route(6, 2, true, ANY), KeyRoute::Ask);
        assert_eq!(keys.route(6, 3, true, ANY), KeyRoute::Ask, "and is not asked for again");
    }

    #[test]
    fn an_owner_that_answers_what_nobody_asked_breaks_a_rule() {
        let mut keys = HeldKeys::default();
        assert!(keys.came(5, 'k').is_err());
        assert!(keys.refused(5).is_err());
        assert_eq!(keys.route(5, 1, false, ANY), KeyRoute::Ask);
        assert!(keys.came(5, 'k').is_err(), "it was not wanted yet");
        assert_eq!(keys.route(5, 1, true, ANY), waits(true));
        assert!(keys.came(6, 'k').is_err(), "another one");
        assert!(keys.check(6).is_err() && keys.check(5).is_ok());
        assert_eq!(keys.came(5, 'k'), Ok(vec![1]));
        assert!(keys.came(5, 'k').is_err(), "twice");
        assert!(keys.refused(5).is_err());
        assert_eq!(keys.route(5, 1, true, ANY), KeyRoute::Use('k'));
        assert_eq!(keys.revoked(5), Ok(false));
        assert!(keys.revoked(5).is_err(), "taken back twice");
    }

    #[test]
    fn who_has_too_many_returns_the_oldest_one_that_is_not_in_use() {
        let mut keys = HeldKeys::default();
        for key in 0..KEYS_MAX as u64 {
            assert_eq!(keys.route(key, key, true, ANY), waits(true));
            assert_eq!(keys.came(key, 'k'), Ok(vec![key]));
        }
        assert_eq!(keys.route(0, 1, true, ANY), KeyRoute::Use('k'));
        let next = KEYS_MAX as u64;
        let returns = KeyRoute::Wait { want: true, returned: Some(1) };
        assert_eq!(keys.route(next, 2, true, ANY), returns);
        // What the owner said before it has heard that.
        assert_eq!(keys.revoked(1), Ok(false));
        assert_eq!(keys.states.len(), KEYS_MAX);
        assert_eq!(keys.order.len(), KEYS_MAX);
        for key in 2..next {
            assert_eq!(keys.route(key, 3, true, ANY), KeyRoute::Use('k'));
        }
        assert_eq!(keys.route(next + 1, 4, true, ANY), KeyRoute::Ask, "all are in use");
    }

    fn memory() -> (RegionTable, LocalMem) {
        let table = RegionTable::new();
        let memory = table.register(Memory::from_vec(vec![0; 8]), Access::ReadWrite).unwrap();
        (table, memory)
    }

    /// Memory with a key that a peer has, and what tells that it has come back.
    struct OfPeer {
        given: GivenKeys,
        recalls: Arc<Recalls>,
        released: mpsc::Receiver<()>,
        revoke: Box<dyn FnOnce()>,
        key: u64,
    }

    fn of_peer() -> OfPeer {
        let (_table, memory) = memory();
        let (recalls, key) = (Arc::new(Recalls::new(None)), memory.key());
        let standing = Standing::new((3, 9, key), recalls.clone());
        assert!(memory.region().offer(standing.clone()));
        let mut given = GivenKeys::default();
        assert_eq!(given.check(key), Ok(()));
        given.add(key, standing);
        let (sender, released) = mpsc::channel();
        let revoke = Box::new(move || memory.revoke(move |_| sender.send(()).unwrap()));
        OfPeer { given, recalls, released, revoke, key }
    }

    #[test]
    fn memory_comes_back_when_its_key_was_returned() {
        let OfPeer { mut given, recalls, released, revoke, key } = of_peer();
        assert!(given.check(key).is_err(), "asked for twice");
        assert!(!given.are_owed());
        assert!(recalls.may_sleep());
        revoke();
        assert!(released.try_recv().is_err(), "the peer may be using it");
        assert!(!recalls.may_sleep());
        assert_eq!(recalls.take(), [(3, 9, key)]);
        assert!(recalls.may_sleep());
        assert!(given.revoke(key) && !given.revoke(key), "the peer is told once");
        assert!(given.are_owed());
        let returned = given.returned(key).unwrap();
        assert!(!given.are_owed());
        assert!(given.returned(key).is_err(), "returned twice");
        assert!(given.returned(key + 1).is_err(), "one that it never had");
        drop(returned.standing.end());
        assert_eq!(released.try_recv(), Ok(()));
    }

    #[test]
    fn a_key_that_was_returned_before_holds_up_nothing() {
        let OfPeer { mut given, recalls, released, revoke, key } = of_peer();
        let returned = given.returned(key).unwrap();
        assert!(returned.standing.end().is_none());
        revoke();
        assert_eq!(released.try_recv(), Ok(()));
        assert!(recalls.take().is_empty());
        assert!(!given.revoke(key));
    }

    #[test]
    fn the_end_of_the_session_gives_memory_back_revoked_or_not() {
        for is_told in [false, true] {
            let OfPeer { mut given, released, revoke, key, .. } = of_peer();
            revoke();
            if is_told {
                assert!(given.revoke(key));
            }
            let all = given.take();
            assert!(!given.are_owed() && released.try_recv().is_err());
            for (_, given) in all {
                drop(given.standing.end());
            }
            assert_eq!(released.try_recv(), Ok(()));
        }
        let OfPeer { mut given, released, revoke, .. } = of_peer();
        given.take().into_iter().for_each(|(_, given)| drop(given.standing.end()));
        revoke();
        assert_eq!(released.try_recv(), Ok(()));
    }

    #[test]
    fn memory_waits_for_every_peer_that_has_a_key_of_it() {
        let (_table, memory) = memory();
        let recalls = Arc::new(Recalls::new(None));
        let standing = [1, 2].map(|peer| {
            let standing = Standing::new((peer, 9, memory.key()), recalls.clone());
            assert!(memory.region().offer(standing.clone()));
            standing
        });
        let (sender, released) = mpsc::channel();
        memory.revoke(move |_| sender.send(()).unwrap());
        assert_eq!(recalls.take().len(), 2);
        drop(standing[1].end());
        assert!(released.try_recv().is_err());
        drop(standing[0].end());
        assert_eq!(released.try_recv(), Ok(()));
    }

    #[test]
    fn memory_that_was_revoked_gets_no_key_and_reclaimed_memory_waits_for_none_that_ended() {
        let (_table, memory) = memory();
        let recalls = Arc::new(Recalls::new(None));
        let standing = Standing::new((1, 9, memory.key()), recalls.clone());
        assert!(memory.region().offer(standing.clone()));
        let memory = memory.reclaim().err().unwrap();
        drop(standing.end());
        assert!(memory.reclaim().is_ok());
        let (_table, memory) = self::memory();
        let late = Standing::new((1, 9, memory.key()), recalls);
        let region = memory.region().clone();
        memory.revoke(|_| ());
        assert!(!region.offer(late));
    }

    #[test]
    fn a_peer_may_have_so_many_keys_and_no_more() {
        let mut given = GivenKeys::default();
        let recalls = Arc::new(Recalls::new(None));
        for key in 0..KEYS_MAX as u64 {
            assert_eq!(given.check(key), Ok(()));
            given.add(key, Standing::new((1, 9, key), recalls.clone()));
        }
        assert!(given.check(KEYS_MAX as u64).is_err());
        assert!(given.returned(7).is_ok());
        assert_eq!(given.check(KEYS_MAX as u64), Ok(()));
    }
}
