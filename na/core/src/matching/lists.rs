//! First-in-first-out lists by (peer, tag), all in one slab.
//!
//! A list exists only while it has entries, and posting a receive allocates nothing once the slab
//! and the table have grown to what the endpoint needs. An entry that is alone, as for a caller
//! with one call in flight, is kept beside both: it is found by one comparison.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use crate::Tag;
use crate::base::cheap::IntBuildHasher;

/// The pair by which an expected message is matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    /// The sender's number within the endpoint.
    pub(crate) peer: u64,
    /// The sender's tag.
    pub(crate) tag: Tag,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // One multiplication for both.
        state.write_u64(self.peer.rotate_left(32) ^ u64::from(self.tag.0));
    }
}

const NONE: usize = usize::MAX;

struct Ends {
    first: usize,
    last: usize,
}

struct ListNode<T> {
    key: Key,
    /// The next entry of the same list, or of the free list; `NONE` at the end.
    next: usize,
    /// `None` in the free list.
    entry: Option<T>,
}

/// Lists of `T`. See the module's documentation.
pub(crate) struct Lists<T> {
    /// The only entry. While it is there, slab and table hold none.
    lone: Option<(Key, T)>,
    ends: HashMap<Key, Ends, IntBuildHasher>,
    slots: Vec<ListNode<T>>,
    free: usize,
    len: usize,
    /// Where [`remove_where`](Self::remove_where) has found something last.
    found: usize,
    /// Slots that it has looked at.
    #[cfg(test)]
    looks: usize,
}

/// Slots that stay when no entry is left. More came with a burst, and each search would look at
/// them.
const SLOTS_KEPT: usize = 1024;

impl<T> Lists<T> {
    pub(crate) fn new() -> Self {
        Self {
            lone: None,
            ends: HashMap::default(),
            slots: Vec::new(),
            free: NONE,
            len: 0,
            found: 0,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Entries in all lists.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends to the list of `key`.
    #[inline]
    pub(crate) fn push(&mut self, key: Key, entry: T) {
        self.len += 1;
        if self.len == 1 {
            self.lone = Some((key, entry));
            return;
        }
        if self.lone.is_some() {
            self.append_lone();
        }
        self.append(key, entry);
    }

    /// Makes sure that one more entry finds its memory; `false`: there is none.
    pub(crate) fn try_reserve_one(&mut self) -> bool {
        // The lone one may move with it.
        self.slots.try_reserve(2).is_ok() && self.ends.try_reserve(2).is_ok()
    }

    #[inline(never)]
    fn append_lone(&mut self) {
        if let Some((key, entry)) = self.lone.take() {
            self.append(key, entry);
        }
    }

    #[inline(always)]
    fn append(&mut self, key: Key, entry: T) {
        let at = if self.free == NONE {
            self.slots.push(ListNode { key, next: NONE, entry: Some(entry) });
            self.slots.len() - 1
        } else {
            let at = self.free;
            let slot = &mut self.slots[at];
            self.free = slot.next;
            // One by one: put together elsewhere first, they would have to be waited for.
            slot.key = key;
            slot.next = NONE;
            slot.entry = Some(entry);
            at
        };
        let ends = self.ends.entry(key).or_insert(Ends { first: at, last: at });
        if ends.last != at {
            self.slots[ends.last].next = at;
            ends.last = at;
        }
    }

    /// Returns whether the list of `key` has an entry.
    pub(crate) fn contains(&self, key: Key) -> bool {
        self.lone.as_ref().is_some_and(|(lone, _)| *lone == key) || self.ends.contains_key(&key)
    }

    /// Takes the first entry of the list of `key`.
    #[inline]
    pub(crate) fn pop(&mut self, key: Key) -> Option<T> {
        match &self.lone {
            _ if self.len == 0 => None,
            Some((lone, _)) if *lone != key => None,
            Some(_) => self.take_lone().map(|(_, entry)| entry),
            None => self.pop_list(key),
        }
    }

    #[inline]
    fn take_lone(&mut self) -> Option<(Key, T)> {
        let lone = self.lone.take()?;
        self.len = 0;
        Some(lone)
    }

    fn pop_list(&mut self, key: Key) -> Option<T> {
        let ends = self.ends.get_mut(&key)?;
        let at = ends.first;
        if ends.last == at {
            self.ends.remove(&key);
        } else {
            ends.first = self.slots[at].next;
        }
        self.release(at)
    }

    /// The slot of the entry for which `wanted` holds. Looks at every slot, from where the last one
    /// was found: entries that are canceled together were mostly posted together.
    fn find(&mut self, wanted: impl Fn(&T) -> bool) -> Option<usize> {
        let from = self.found.min(self.slots.len());
        for at in (from..self.slots.len()).chain(0..from) {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            if self.slots[at].entry.as_ref().is_some_and(&wanted) {
                self.found = at;
                return Some(at);
            }
        }
        None
    }

    /// Takes the entry for which `wanted` holds, wherever it is.
    pub(crate) fn remove_where(&mut self, wanted: impl Fn(&T) -> bool) -> Option<(Key, T)> {
        if self.lone.as_ref().is_some_and(|(_, entry)| wanted(entry)) {
            return self.take_lone();
        }
        if self.lone.is_some() || self.len == 0 {
            return None;
        }
        let at = self.find(wanted)?;
        let ListNode { key, next, .. } = self.slots[at];
        let ends = self.ends.get_mut(&key)?;
        if ends.first == at {
            return Some((key, self.pop(key)?));
        }
        let mut before = ends.first;
        while self.slots[before].next != at {
            before = self.slots[before].next;
        }
        self.slots[before].next = next;
        if ends.last == at {
            ends.last = before;
        }
        Some((key, self.release(at)?))
    }

    /// All entries with their keys.
    #[allow(dead_code, reason = "see `Matcher::awaited`")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let lone = self.lone.iter().map(|(key, entry)| (*key, entry));
        lone.chain(self.slots.iter().filter_map(|slot| Some((slot.key, slot.entry.as_ref()?))))
    }

    /// Empties the lists of `peer`. Looks at every list.
    pub(crate) fn drain_peer(&mut self, peer: u64, each: impl FnMut(T)) {
        self.drain(|key| key.peer == peer, each);
    }

    /// Empties every list.
    pub(crate) fn drain_all(&mut self, each: impl FnMut(T)) {
        self.drain(|_| true, each);
    }

    fn drain(&mut self, wanted: impl Fn(&Key) -> bool, mut each: impl FnMut(T)) {
        if self.lone.as_ref().is_some_and(|(key, _)| wanted(key)) {
            return self.take_lone().into_iter().for_each(|(_, entry)| each(entry));
        }
        let keys: Vec<Key> = self.ends.keys().filter(|key| wanted(key)).copied().collect();
        for key in keys {
            while let Some(entry) = self.pop(key) {
                each(entry);
            }
        }
    }

    fn release(&mut self, at: usize) -> Option<T> {
        let slot = &mut self.slots[at];
        slot.next = self.free;
        self.free = at;
        self.len -= 1;
        let entry = slot.entry.take();
        if self.len == 0 && self.slots.len() > SLOTS_KEPT {
            self.slots = Vec::new();
            self.free = NONE;
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::collections::VecDeque;

    #[derive(Debug, Clone)]
    enum Step {
        Push(u64, u32),
        Pop(u64, u32),
        Remove(usize),
        DrainPeer(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..3u64, 0..3u32).prop_map(|(peer, tag)| Step::Push(peer, tag)),
            3 => (0..3u64, 0..3u32).prop_map(|(peer, tag)| Step::Pop(peer, tag)),
            2 => (0..40usize).prop_map(Step::Remove),
            1 => (0..3u64).prop_map(Step::DrainPeer),
        ]
    }

    #[test]
    fn many_that_are_taken_in_the_order_in_which_they_came_cost_little_and_leave_nothing() {
        const COUNT: usize = 10_000;
        let mut lists = Lists::new();
        let key = |n: usize| Key { peer: 1, tag: Tag(n as u32) };
        (0..COUNT).for_each(|n| lists.push(key(n), n));
        for n in 0..COUNT {
            assert_eq!(lists.remove_where(|entry| *entry == n), Some((key(n), n)));
        }
        assert!(lists.looks <= 3 * COUNT, "{} looks", lists.looks);
        let before = lists.looks;
        lists.push(key(0), 0);
        lists.push(key(1), 1);
        assert_eq!(lists.remove_where(|entry| *entry == 7), None);
        assert_eq!(lists.looks - before, 2, "of a burst nothing is left");
        assert_eq!((lists.pop(key(1)), lists.pop(key(0))), (Some(1), Some(0)));
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_of_queues(steps in prop::collection::vec(step(), 0..80)) {
            let mut lists = Lists::new();
            let mut model: BTreeMap<(u64, u32), VecDeque<usize>> = BTreeMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(peer, tag) => {
                        lists.push(Key { peer, tag: Tag(tag) }, number);
                        model.entry((peer, tag)).or_default().push_back(number);
                    }
                    Step::Pop(peer, tag) => {
                        let expected =
                            model.get_mut(&(peer, tag)).and_then(VecDeque::pop_front);
                        prop_assert_eq!(lists.pop(Key { peer, tag: Tag(tag) }), expected);
                    }
                    Step::Remove(entry) => {
                        let mut expected = None;
                        for ((peer, tag), queue) in &mut model {
                            if let Some(at) = queue.iter().position(|other| *other == entry) {
                                queue.remove(at);
                                expected = Some((Key { peer: *peer, tag: Tag(*tag) }, entry));
                            }
                        }
                        prop_assert_eq!(lists.remove_where(|other| *other == entry), expected);
                    }
                    Step::DrainPeer(peer) => {
                        let mut drained = Vec::new();
                        lists.drain_peer(peer, |entry| drained.push(entry));
                        let mut expected: Vec<usize> = Vec::new();
                        for ((other, _), queue) in &mut model {
                            if *other == peer {
                                expected.extend(queue.drain(..));
                            }
                        }
                        drained.sort_unstable();
                        expected.sort_unstable();
                        prop_assert_eq!(drained, expected);
                    }
                }
                prop_assert_eq!(lists.len(), model.values().map(VecDeque::len).sum::<usize>());
                prop_assert_eq!(lists.iter().count(), lists.len());
                let is_there = |key: Key, entry| {
                    model.get(&(key.peer, key.tag.0)).is_some_and(|queue| queue.contains(entry))
                };
                prop_assert!(lists.iter().all(|(key, entry)| is_there(key, entry)));
            }
        }
    }
}
