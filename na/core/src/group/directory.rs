//! Identities of peers that several endpoints of a group know, each by connections of its own.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Weak;

use prim::sync::{Arc, Mutex, lock};

/// The number of a peer in its group, kept by whatever names the peer.
///
/// ```
/// use na_core::group::directory::{Directory, Identity};
///
/// let directory = Directory::new(1);
/// let identity: Identity = directory.identity("na+tcp://10.0.0.1:7000");
/// assert_eq!(identity, directory.identity("na+tcp://10.0.0.1:7000"), "for any shard");
/// ```
pub type Identity = Arc<u64>;

/// Identities by what is known of a peer. Touched when a peer becomes known, and never again.
///
/// ```
/// use na_core::group::directory::Directory;
///
/// let directory = Directory::new(1);
/// let (one, other) = (directory.identity("one"), directory.identity("other"));
/// assert_ne!(one, other);
/// assert_eq!(directory.family(), 1);
/// ```
#[derive(Debug)]
pub struct Directory<K> {
    family: u64,
    known: Mutex<Known<K>>,
}

#[derive(Debug)]
struct Known<K> {
    identities: HashMap<K, Weak<u64>>,
    next: u64,
}

impl<K: Eq + Hash> Directory<K> {
    /// An empty directory of the group with the number `family`, which no endpoint has.
    pub fn new(family: u64) -> Self {
        Self { family, known: Mutex::new(Known { identities: HashMap::new(), next: 0 }) }
    }

    /// The number of the group.
    pub fn family(&self) -> u64 {
        self.family
    }

    /// Returns the identity of the peer `key`: the same one as long as anything keeps it.
    pub fn identity(&self, key: K) -> Identity {
        let mut known = lock(&self.known);
        if let Some(identity) = known.identities.get(&key).and_then(Weak::upgrade) {
            return identity;
        }
        if known.identities.len() == known.identities.capacity() {
            known.identities.retain(|_, identity| identity.strong_count() > 0);
        }
        let identity = Arc::new(known.next);
        known.next += 1;
        known.identities.insert(key, Arc::downgrade(&identity));
        identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_keeps_its_identity_while_it_is_known() {
        let directory = Directory::new(1);
        let first = directory.identity("a");
        assert_eq!(first, directory.identity("a"));
        assert_ne!(first, directory.identity("b"));
        let before = *first;
        drop(first);
        assert_ne!(*directory.identity("a"), before, "an identity is never used again");
        (0..1000).for_each(|_| drop(directory.identity("c")));
        assert!(lock(&directory.known).identities.len() < 16);
    }
}
