//! Tables that find the slots of canceled operations among all that libfabric has in hand.
//!
//! A call that goes well needs no table, so none is kept then. The first cancel makes a table of
//! all operations, which is kept up to date. It is dropped when as many operations again have begun
//! without another cancel. So a thousand calls that reach their deadline together, or are answered
//! after it, do not search through each other.

use std::collections::HashMap;
use std::hash::Hash;

use na_core::OpId;
use na_core::base::cheap::IntBuildHasher;

/// Operations that begin after the last question, beyond as many as were in hand, until a table is
/// dropped.
const PATIENCE: usize = 1024;

/// A table that is there while it is asked for.
#[derive(Debug)]
struct LookupTable<K> {
    entries: Option<HashMap<K, u32, IntBuildHasher>>,
    /// Operations that have begun since it was last asked for.
    unasked: usize,
    /// How often it was made.
    #[cfg(test)]
    made: usize,
}

impl<K> Default for LookupTable<K> {
    fn default() -> Self {
        Self {
            entries: None,
            unasked: 0,
            #[cfg(test)]
            made: 0,
        }
    }
}

impl<K: Hash + Eq> LookupTable<K> {
    /// The table, made of `all` if it is not there.
    fn ask(
        &mut self,
        all: impl FnOnce() -> HashMap<K, u32, IntBuildHasher>,
    ) -> &HashMap<K, u32, IntBuildHasher> {
        self.unasked = 0;
        #[cfg(test)]
        {
            self.made += usize::from(self.entries.is_none());
        }
        self.entries.get_or_insert_with(all)
    }

    /// To enter an operation that begins, if the table is there and shall stay.
    fn begin(&mut self) -> Option<&mut HashMap<K, u32, IntBuildHasher>> {
        let entries = self.entries.as_ref()?;
        self.unasked += 1;
        if self.unasked > entries.len() + PATIENCE {
            self.entries = None;
        }
        self.entries.as_mut()
    }
}

/// See [the module](self).
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    /// The slot of each message and receive.
    ops: LookupTable<OpId>,
    /// How many receives there are by peer and tag.
    receives: LookupTable<(u64, u32)>,
}

/// The keys under which an operation is found: its number, and of a receive the peer and the tag.
pub(crate) type Names = (Option<OpId>, Option<(u64, u32)>);

impl Lookup {
    /// An operation begins, in that slot.
    #[inline]
    pub(crate) fn begins(&mut self, index: u32, names: impl FnOnce() -> Names) {
        if self.ops.entries.is_some() || self.receives.entries.is_some() {
            self.enter(index, names());
        }
    }

    #[cold]
    fn enter(&mut self, index: u32, (op, receive): Names) {
        if let (Some(op), Some(ops)) = (op, self.ops.begin()) {
            ops.insert(op, index);
        }
        if let (Some(key), Some(receives)) = (receive, self.receives.begin()) {
            *receives.entry(key).or_default() += 1;
        }
    }

    /// The operation in that slot ends, or is about to be given up.
    #[inline]
    pub(crate) fn ends(&mut self, index: u32, names: impl FnOnce() -> Names) {
        if self.ops.entries.is_some() || self.receives.entries.is_some() {
            self.remove(index, names());
        }
    }

    #[cold]
    fn remove(&mut self, index: u32, (op, receive): Names) {
        if let (Some(op), Some(ops)) = (op, self.ops.entries.as_mut())
            && ops.get(&op) == Some(&index)
        {
            ops.remove(&op);
        }
        if let (Some(key), Some(receives)) = (receive, self.receives.entries.as_mut())
            && let Some(count) = receives.get_mut(&key)
        {
            *count -= 1;
            if *count == 0 {
                receives.remove(&key);
            }
        }
    }

    /// The slot of a message or receive, among `all`.
    pub(crate) fn slot_of(
        &mut self,
        op: OpId,
        all: impl Iterator<Item = (u32, Names)>,
    ) -> Option<u32> {
        let table = || all.filter_map(|(index, (op, _))| Some((op?, index))).collect();
        self.ops.ask(table).get(&op).copied()
    }

    #[cfg(test)]
    pub(crate) fn tables(&self) -> usize {
        self.ops.made + self.receives.made
    }

    #[cfg(test)]
    pub(crate) fn is_there(&self) -> bool {
        self.ops.entries.is_some() || self.receives.entries.is_some()
    }

    /// Returns whether there is a receive from that peer for that tag, among `all`.
    pub(crate) fn is_awaited(
        &mut self,
        receive: (u64, u32),
        all: impl Iterator<Item = (u32, Names)>,
    ) -> bool {
        let table = || {
            let mut counts = HashMap::default();
            let keys = all.filter_map(|(_, (_, receive))| receive);
            keys.for_each(|key| *counts.entry(key).or_default() += 1);
            counts
        };
        self.receives.ask(table).contains_key(&receive)
    }
}
