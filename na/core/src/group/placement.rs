//! The shard that gets a connection, and the hand-over to it.
//!
//! All of it is behind one lock, which is taken when a connection begins and when it ends. A poll
//! that looks into an inbox takes it only if something has come.
//!
//! A connection that was accepted is *admitted*: it gets a [`Permit`], which names its shard and
//! counts until it is dropped. If that is another shard, the connection is put into that shard's
//! inbox; the caller then rings its bell. A shard that is closed has no inbox any more. Whatever
//! lay in it, or comes too late, is given to a shard that is open. So each connection ends up with
//! one shard, or with nobody once all of them are closed.
//!
//! # Which shard
//!
//! The wanted one, if it is open. Otherwise the one with the fewest connections that nobody wanted
//! to be there; those in turn that have equally few. Connections that were wanted somewhere do not
//! count: if they did, callers that choose and a group that balances would drive each other.

//!
//! # One more shard
//!
//! A group may [grow](Placement::grow). The new shard is open at once, and gets the next
//! connections, for it has the fewest. Its number is that of no shard before it, closed ones
//! included.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

#[cfg(not(loom))]
use prim::fork::Process;
use prim::sync::atomic::{AtomicBool, Ordering};
use prim::sync::{Arc, Mutex, lock};

/// Most shards of a group.
pub const SHARDS_MAX: usize = if cfg!(loom) { 4 } else { 128 };

/// Why a connection, or one more shard, is not admitted.
///
/// ```
/// use na_core::group::placement::{NotAdmitted, Placement};
///
/// let group = Placement::<u8, ()>::new(1);
/// let held = Placement::admit(&group, None, None, 1).map_err(|why| format!("{why:?}"))?;
/// assert_eq!(Placement::admit(&group, None, None, 1).err(), Some(NotAdmitted::TooMany));
/// group.close(0);
/// drop(held);
/// assert_eq!(Placement::admit(&group, None, None, 1).err(), Some(NotAdmitted::Closed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The group has as many as it takes.
    TooMany,
    /// The caller has as many as one may have.
    TooManyOfCaller,
    /// All shards are closed.
    Closed,
}

/// A caller that several connections may come from, and how many of them it may have.
///
/// ```
/// use na_core::group::placement::{Caller, NotAdmitted, Placement};
///
/// let group = Placement::<&str, ()>::new(1);
/// let caller = Some(Caller { key: "one", connections_max: 1 });
/// let held = Placement::admit(&group, caller, None, 100);
/// assert!(held.is_ok());
/// let another = Placement::admit(&group, caller, None, 100);
/// assert_eq!(another.err(), Some(NotAdmitted::TooManyOfCaller));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Caller<K> {
    /// The name by which its connections are known to belong together.
    pub key: K,
    /// Most connections that it may have at a time.
    pub connections_max: usize,
}

/// The inboxes and the counts of a group.
///
/// ```
/// use na_core::group::placement::Placement;
///
/// let group = Placement::<u8, &str>::new(2);
/// let places = [(); 4].map(|()| Placement::admit(&group, None, None, 100));
/// let shards = places.each_ref().map(|place| place.as_ref().map(|place| place.shard()).ok());
/// assert_eq!(shards, [Some(0), Some(1), Some(0), Some(1)]);
///
/// assert_eq!(group.hand("a connection", |_| None), Some(0));
/// assert_eq!(group.take_news(0), ["a connection"]);
/// ```
pub struct Placement<K: Eq + Hash, T> {
    state: Mutex<Counts<K, T>>,
    /// For each shard that there may be: something was put into its inbox since it last looked.
    has_news: Box<[AtomicBool]>,
    #[cfg(not(loom))]
    process: Process,
}

struct Counts<K, T> {
    shards: Vec<Placed<T>>,
    callers: HashMap<K, usize>,
    connections: usize,
    /// The shard that is the next one among equals.
    turn: usize,
}

/// The part of one shard.
struct Placed<T> {
    /// `None`: it is closed.
    inbox: Option<Vec<T>>,
    /// Connections without a wish.
    unwished: usize,
}

impl<T> Placed<T> {
    fn open() -> Self {
        Self { inbox: Some(Vec::new()), unwished: 0 }
    }
}

impl<K: Eq + Hash + Clone, T> Placement<K, T> {
    /// A group of that many shards, all of them open.
    pub fn new(shards: usize) -> Arc<Self> {
        let has_news = (0..SHARDS_MAX).map(|_| AtomicBool::new(false)).collect();
        let shards = (0..shards).map(|_| Placed::open()).collect();
        let state = Counts { shards, callers: HashMap::new(), connections: 0, turn: 0 };
        Arc::new(Self {
            state: Mutex::new(state),
            has_news,
            #[cfg(not(loom))]
            process: Process::current(),
        })
    }

    /// Adds a shard, which is open, and returns its number.
    ///
    /// # Errors
    ///
    /// There are as many as there can be, or all of them are closed.
    pub fn grow(&self) -> Result<usize, NotAdmitted> {
        let mut state = lock(&self.state);
        let shard = state.shards.len();
        if state.shards.iter().all(|shard| shard.inbox.is_none()) {
            return Err(NotAdmitted::Closed);
        }
        if shard >= SHARDS_MAX {
            return Err(NotAdmitted::TooMany);
        }
        state.shards.push(Placed::open());
        Ok(shard)
    }

    /// Chooses the shard of a connection; `wanted` is that which its dialer would like. The group
    /// takes `connections_max` at a time.
    ///
    /// # Errors
    ///
    /// The bound that is reached.
    pub fn admit(
        this: &Arc<Self>,
        caller: Option<Caller<K>>,
        wanted: Option<usize>,
        connections_max: usize,
    ) -> Result<Permit<K, T>, NotAdmitted> {
        let mut state = lock(&this.state);
        if state.connections >= connections_max {
            return Err(NotAdmitted::TooMany);
        }
        if let Some(Caller { key, connections_max }) = &caller
            && state.callers.get(key).is_some_and(|count| count >= connections_max)
        {
            return Err(NotAdmitted::TooManyOfCaller);
        }
        let (shard, wished) = state.choose(wanted).ok_or(NotAdmitted::Closed)?;
        let caller = caller.map(|caller| caller.key);
        if let Some(key) = &caller {
            *state.callers.entry(key.clone()).or_default() += 1;
        }
        state.connections += 1;
        Ok(Permit { placement: this.clone(), shard, wished, caller })
    }

    /// Puts `item` into an inbox: that of the shard where its permit is, or of another one if that
    /// is closed; without a permit, that of the first shard which is open. Returns the shard whose
    /// bell is to be rung. `None`: all of them are closed, and `item` has ended.
    pub fn hand(
        &self,
        mut item: T,
        permit_of: impl Fn(&mut T) -> Option<&mut Permit<K, T>>,
    ) -> Option<usize> {
        loop {
            let shard = match permit_of(&mut item) {
                Some(permit) => permit.shard,
                None => self.first_open()?,
            };
            match self.put(shard, item) {
                Ok(()) => return Some(shard),
                Err(back) => item = back,
            }
            if permit_of(&mut item).is_some_and(|permit| !permit.choose_again()) {
                return None;
            }
        }
    }

    /// Puts `item` into the inbox of `shard`, or gives it back if that is closed.
    fn put(&self, shard: usize, item: T) -> Result<(), T> {
        match lock(&self.state).shards.get_mut(shard).and_then(|shard| shard.inbox.as_mut()) {
            Some(inbox) => {
                inbox.push(item);
                // pair: GROUP-NEWS
                self.has_news[shard].store(true, Ordering::Release);
                Ok(())
            }
            None => Err(item),
        }
    }

    /// Takes what is in the inbox of `shard`.
    pub fn take(&self, shard: usize) -> Vec<T> {
        lock(&self.state).shards[shard].inbox.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes what has come into the inbox of `shard` since this was last asked; cheap, mostly. What
    /// comes meanwhile is found by a later look.
    pub fn take_news(&self, shard: usize) -> Vec<T> {
        let has_news = &self.has_news[shard];
        // pair: GROUP-NEWS (it is in the inbox)
        match has_news.load(Ordering::Relaxed) && has_news.swap(false, Ordering::Acquire) {
            true => self.take(shard),
            false => Vec::new(),
        }
    }

    /// Closes `shard`, for good. Returns what is left in its inbox, to be given to others. One that
    /// there is not has nothing.
    pub fn close(&self, shard: usize) -> Vec<T> {
        let mut state = lock(&self.state);
        let inbox = state.shards.get_mut(shard).and_then(|shard| shard.inbox.take());
        inbox.unwrap_or_default()
    }

    /// Returns the first shard that is open.
    fn first_open(&self) -> Option<usize> {
        lock(&self.state).shards.iter().position(|shard| shard.inbox.is_some())
    }

    /// How many shards there are and have been.
    pub fn count(&self) -> usize {
        lock(&self.state).shards.len()
    }

    /// How many connections there are, and how many without a wish each shard has.
    pub fn counts(&self) -> (usize, Vec<usize>) {
        let state = lock(&self.state);
        (state.connections, state.shards.iter().map(|shard| shard.unwished).collect())
    }
}

impl<K, T> Counts<K, T> {
    /// The shard of a new connection, and whether that was the wanted one. Counts it there.
    fn choose(&mut self, wanted: Option<usize>) -> Option<(usize, bool)> {
        let is_open =
            |shard: &usize| self.shards.get(*shard).is_some_and(|shard| shard.inbox.is_some());
        if let Some(shard) = wanted.filter(is_open) {
            return Some((shard, true));
        }
        let count = self.shards.len();
        let in_turn = (self.turn..self.turn + count).map(|shard| shard % count).filter(is_open);
        let shard = in_turn.min_by_key(|shard| self.shards[*shard].unwished)?;
        self.shards[shard].unwished += 1;
        self.turn = shard + 1;
        Some((shard, false))
    }

    fn leave(&mut self, shard: usize, wished: bool) {
        if !wished {
            self.shards[shard].unwished -= 1;
        }
    }
}

impl<K: Eq + Hash, T> fmt::Debug for Placement<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placement").finish_non_exhaustive()
    }
}

/// The place of one connection at one shard. It counts until it is dropped.
///
/// ```
/// use na_core::group::placement::Placement;
///
/// let group = Placement::<u8, ()>::new(2);
/// let permit = Placement::admit(&group, None, Some(1), 100).map_err(|why| format!("{why:?}"))?;
/// assert_eq!((permit.shard(), group.counts().0), (1, 1));
/// drop(permit);
/// assert_eq!(group.counts().0, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Permit<K: Eq + Hash, T> {
    placement: Arc<Placement<K, T>>,
    shard: usize,
    /// The dialer has named the shard.
    wished: bool,
    caller: Option<K>,
}

impl<K: Eq + Hash, T> Permit<K, T> {
    /// Returns the shard of the connection.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Moves the place to `shard`, as if its dialer had wanted that; unless that is closed.
    pub fn stay_at(&mut self, shard: usize) {
        let mut state = lock(&self.placement.state);
        if state.shards.get(shard).is_some_and(|shard| shard.inbox.is_some()) {
            state.leave(self.shard, self.wished);
            (self.shard, self.wished) = (shard, true);
        }
    }

    /// Chooses another shard, since the one before is closed. `false`: all of them are.
    fn choose_again(&mut self) -> bool {
        let mut state = lock(&self.placement.state);
        state.leave(self.shard, self.wished);
        // Of nothing until one is found.
        self.wished = true;
        let Some((shard, wished)) = state.choose(None) else { return false };
        (self.shard, self.wished) = (shard, wished);
        true
    }
}

impl<K: Eq + Hash, T> Drop for Permit<K, T> {
    fn drop(&mut self) {
        // In a child process that was forked off the lock may be held for ever, by nobody.
        #[cfg(not(loom))]
        if self.placement.process.is_other() {
            return;
        }
        let mut state = lock(&self.placement.state);
        state.connections -= 1;
        state.leave(self.shard, self.wished);
        if let Some(key) = &self.caller
            && let Some(count) = state.callers.get_mut(key)
        {
            *count -= 1;
            if *count == 0 {
                state.callers.remove(key);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    type Numbers = Placement<u8, u32>;

    fn admit(of: &Arc<Numbers>, wanted: Option<usize>) -> Permit<u8, u32> {
        Placement::admit(of, None, wanted, 100).expect("a place")
    }

    #[test]
    fn connections_go_where_the_fewest_are_and_in_turn() {
        let group = Numbers::new(3);
        let mut held: Vec<_> = (0..6).map(|_| admit(&group, None)).collect();
        assert_eq!(held.iter().map(Permit::shard).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        held.remove(1);
        assert_eq!(admit(&group, None).shard(), 1, "it has one less");
        held.clear();
        // Short ones, one after the other, do not all go to the first shard.
        let turns: Vec<_> = (0..3).map(|_| admit(&group, None).shard()).collect();
        assert_eq!(turns, [2, 0, 1]);
        assert_eq!(group.counts(), (0, vec![0; 3]));
    }

    #[test]
    fn a_wish_is_granted_and_counts_for_nothing() {
        let group = Numbers::new(2);
        let wished: Vec<_> = (0..5).map(|_| admit(&group, Some(0))).collect();
        assert!(wished.iter().all(|permit| permit.shard() == 0));
        assert_eq!(group.counts(), (5, vec![0, 0]));
        assert_eq!(admit(&group, None).shard(), 0);
        assert_eq!(admit(&group, Some(2)).shard(), 1, "no such shard");
        assert_eq!(admit(&group, Some(usize::MAX)).shard(), 0);
    }

    #[test]
    fn a_closed_shard_gets_nothing_and_gives_back_what_it_had() {
        let group = Numbers::new(2);
        let mut permit = admit(&group, Some(1));
        group.put(1, 7).unwrap();
        assert_eq!(group.close(1), [7]);
        assert_eq!(group.put(1, 8), Err(8));
        assert!(group.take(1).is_empty() && group.close(1).is_empty());
        assert!(permit.choose_again());
        assert_eq!((permit.shard(), group.counts()), (0, (1, vec![1, 0])));
        assert_eq!(admit(&group, Some(1)).shard(), 0);
        assert_eq!(group.hand(9, |_| None), Some(0), "the first that is open");
        assert_eq!(group.take(0), [9]);
        group.close(0);
        assert!(!permit.choose_again() && group.hand(9, |_| None).is_none());
        assert_eq!(Placement::admit(&group, None, None, 100).unwrap_err(), NotAdmitted::Closed);
        drop(permit);
        assert_eq!(group.counts(), (0, vec![0, 0]));
    }

    /// Something with a permit.
    struct Item(Option<Permit<u8, Item>>);

    #[test]
    fn what_is_handed_over_goes_to_its_shard_or_to_an_open_one() {
        let group = Placement::<u8, Item>::new(3);
        let item = |wanted| Item(Placement::admit(&group, None, Some(wanted), 9).ok());
        let hand = |item| group.hand(item, |item: &mut Item| item.0.as_mut());
        assert_eq!(hand(item(2)), Some(2));
        let late = item(1);
        group.close(1);
        assert_eq!(hand(late), Some(0));
        let left = group.close(2);
        assert_eq!(left.into_iter().map(hand).collect::<Vec<_>>(), [Some(0)]);
        let taken = group.take_news(0);
        assert_eq!((taken.len(), group.counts()), (2, (2, vec![2, 0, 0])));
        assert!(group.take_news(0).is_empty() && group.take_news(1).is_empty());
        drop(taken);
        assert_eq!(group.counts(), (0, vec![0; 3]));
        let last = item(0);
        group.close(0);
        assert_eq!((hand(last), group.counts().0), (None, 0));
    }

    #[test]
    fn a_group_grows_by_shards_that_get_the_next_connections() {
        let group = Numbers::new(1);
        let held: Vec<_> = (0..3).map(|_| admit(&group, None)).collect();
        assert_eq!((group.grow(), group.count()), (Ok(1), 2));
        let next: Vec<_> = (0..4).map(|_| admit(&group, None)).collect();
        assert_eq!(next.iter().map(Permit::shard).collect::<Vec<_>>(), [1, 1, 1, 0]);
        group.close(1);
        assert_eq!(group.grow(), Ok(2), "no number is used again");
        assert_eq!(admit(&group, Some(2)).shard(), 2);
        group.put(2, 5).unwrap();
        assert_eq!((group.take_news(2), group.close(9)), (vec![5], vec![]));
        while group.grow().is_ok() {}
        assert_eq!((group.count(), group.grow()), (SHARDS_MAX, Err(NotAdmitted::TooMany)));
        drop((held, next));
        (0..SHARDS_MAX).for_each(|shard| drop(group.close(shard)));
        assert_eq!(group.grow(), Err(NotAdmitted::Closed));
    }

    #[test]
    fn a_place_can_be_kept_where_its_caller_is_known() {
        let group = Numbers::new(2);
        let mut permit = admit(&group, Some(1));
        permit.stay_at(0);
        assert_eq!((permit.shard(), group.counts()), (0, (1, vec![0, 0])));
        group.close(1);
        permit.stay_at(1);
        permit.stay_at(2);
        assert_eq!(permit.shard(), 0, "the others are no places");
    }

    #[test]
    fn callers_and_the_group_have_bounds() {
        let group = Numbers::new(2);
        let of = |key| Some(Caller { key, connections_max: 2 });
        let first = Placement::admit(&group, of(1), None, 3).unwrap();
        let _second = Placement::admit(&group, of(1), None, 3).unwrap();
        let refused = Placement::admit(&group, of(1), None, 3).unwrap_err();
        assert_eq!(refused, NotAdmitted::TooManyOfCaller);
        let _other = Placement::admit(&group, of(2), None, 3).unwrap();
        assert_eq!(Placement::admit(&group, of(3), None, 3).unwrap_err(), NotAdmitted::TooMany);
        drop(first);
        let _again = Placement::admit(&group, of(1), None, 3).unwrap();
        assert_eq!(group.counts().0, 3);
    }
}
