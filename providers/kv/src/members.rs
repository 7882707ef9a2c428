//! The servers that share out keys, and how keys change hands: everything that both sides, and the
//! databases, decide alike.
//!
//! A key belongs to the member for which [`weight`] is highest (rendezvous hashing): one more takes
//! its share from each of the others, and no key moves between those. All compute it alike, so the
//! function does not change.
//!
//! A change of the members goes from one [`Membership`] to the next. Every server of the two begins
//! it; then each source hands over the keys that leave it, in these steps:
//!
//! | step | the source | the destination |
//! |---|---|---|
//! | copying | serves the keys that leave, and remembers which of them are changed | keeps copies that nobody sees |
//! | held | makes no changes of them, and sends what is left | has all of them |
//! | closed, kept on the disk | serves them no more | – |
//! | opened, kept on the disk | – | serves them |
//! | given, kept on the disk | knows that they are served | – |
//! | finished, kept on the disk | erases its copies | – |
//!
//! So there is no moment at which two serve a key, whoever ends when. A key that is not served here
//! is [`KvError::Moved`]. Until a source has closed, the change can be taken back.
//!
//! [`Standing`] is what a server knows of it and keeps with its records, [`Served`] answers which
//! keys it serves. Imports the errors and the model.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use margo::sharded::part_of_key;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

use crate::KvError;
use crate::model::SHARDS_MAX;

/// Most members.
const MEMBERS_MAX: usize = 256;

/// The longest address of a member.
const ADDRESS_BYTES_MAX: usize = 512;

/// Bytes of the keys that a source remembers as changed; beyond, it copies all once more.
const DIRTY_BYTES_MAX: usize = 16 << 20;

/// Bytes of a key that is remembered, besides its own.
const DIRTY_ENTRY_BYTES: usize = 64;

/// The highest version that is taken from others: those that follow it have room.
const VERSION_MAX: u64 = u64::MAX / 2;

/// A server that shares out keys with others.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let start = |id| {
/// #     let provider = service.provider(ProviderId::new(id), &service.layout().rpc_pool());
/// #     KvProvider::start(provider, &config)
/// # };
/// # let running = [start(1)?, start(2)?];
/// # let target = |id| ProviderHandle::new(service.self_addr(), ProviderId::new(id));
/// # let [one, two] = [1, 2].map(target);
/// use margo_provider_kv::{KvMember, MemberChange};
///
/// let kv = KvClient::connect(&service, one, limit)?;
/// let members = kv.change_members(MemberChange::new().with(two), limit, |_| {})?.members;
/// let providers: Vec<_> = members.iter().map(|KvMember { provider, .. }| provider).collect();
/// assert_eq!(providers, [&1, &2]);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvMember {
    /// The id of its database ([`KvStat::id`](crate::KvStat::id)).
    pub id: u64,
    /// The seed of the hash that says which keys it has: its id, or the seed of the member that it
    /// has replaced.
    pub seed: u64,
    /// The address at which it was found last.
    pub address: String,
    /// The id of the provider there.
    pub provider: u16,
    /// How many shards its database has.
    pub shards: u8,
}

/// The servers that share out keys. They know it, and keep it with their keys.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let start = |id| {
/// #     let provider = service.provider(ProviderId::new(id), &service.layout().rpc_pool());
/// #     KvProvider::start(provider, &config)
/// # };
/// # let running = [start(1)?, start(2)?];
/// # let target = |id| ProviderHandle::new(service.self_addr(), ProviderId::new(id));
/// # let [one, two] = [1, 2].map(target);
/// use margo_provider_kv::MemberChange;
///
/// let kv = KvClient::connect(&service, one, limit)?;
/// assert!(kv.membership(limit)?.is_none(), "it stands alone");
/// kv.change_members(MemberChange::new().with(two), limit, |_| {})?;
/// let membership = kv.membership(limit)?.expect("there are two");
/// assert_eq!((membership.epoch, membership.members.len()), (2, 2));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Grows with every change of the members.
    pub epoch: u64,
    /// The members.
    pub members: Vec<KvMember>,
}

/// XXH64 of the key, with the seed of the member.
fn weight(seed: u64, key: &[u8]) -> u64 {
    XxHash64::oneshot(seed, key)
}

/// The part of a key by which its place is found. Those of a collection (`client/collection.rs`)
/// are found by its name, so that they are at one place.
pub(crate) fn routed(key: &[u8]) -> &[u8] {
    match key.iter().position(|byte| *byte == 0) {
        Some(name) if name > 0 && matches!(key.len() - name, 1 | 9) => &key[..name],
        _ => key,
    }
}

/// The shard that has a key, of so many that a provider has.
pub(crate) fn shard_of_key(key: &[u8], shards: usize) -> usize {
    match shards {
        ..=1 => 0,
        _ => part_of_key(routed(key), shards),
    }
}

fn invalid(text: impl Into<String>) -> KvError {
    KvError::Invalid(text.into())
}

impl Membership {
    /// The member that has a key.
    ///
    /// # Panics
    ///
    /// If there are no members; those that were checked have some.
    pub(crate) fn owner(&self, key: &[u8]) -> &KvMember {
        let routed = routed(key);
        let weighed = self.members.iter().max_by_key(|it| (weight(it.seed, routed), it.seed));
        weighed.unwrap_or_else(|| unreachable!("there are members"))
    }

    pub(crate) fn member(&self, id: u64) -> Option<&KvMember> {
        self.members.iter().find(|member| member.id == id)
    }

    fn has_seed(&self, seed: u64) -> bool {
        self.members.iter().any(|member| member.seed == seed)
    }

    /// Returns whether both have the same members, wherever these are.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let both = || self.members.iter().zip(&other.members);
        self.epoch == other.epoch
            && self.members.len() == other.members.len()
            && both().all(|(one, other)| (one.id, one.seed) == (other.id, other.seed))
    }

    /// Returns whether keys of `source` may be those of `destination` in the members that follow.
    pub(crate) fn gives(&self, to: &Self, source: u64, destination: u64) -> bool {
        let (Some(from), Some(into)) = (self.member(source), to.member(destination)) else {
            return false;
        };
        let is_of_another =
            || self.members.iter().all(|it| it.seed != into.seed || it.id == source);
        source != destination
            && (!self.has_seed(into.seed) || is_of_another() || !to.has_seed(from.seed))
    }

    pub(crate) fn check(&self) -> Result<(), KvError> {
        let count = self.members.len();
        if count == 0 || count > MEMBERS_MAX {
            return Err(invalid(format!("{count} members: there are from 1 to {MEMBERS_MAX}")));
        }
        for member in &self.members {
            let len = member.address.len();
            if len == 0 || len > ADDRESS_BYTES_MAX {
                let text = format!("an address of {len} bytes: from 1 to {ADDRESS_BYTES_MAX}");
                return Err(invalid(text));
            }
            if member.shards == 0 || member.shards > SHARDS_MAX {
                return Err(invalid(format!("a member of {} shards", member.shards)));
            }
        }
        let (mut ids, mut seeds) = (HashSet::new(), HashSet::new());
        match self.members.iter().all(|it| ids.insert(it.id) && seeds.insert(it.seed)) {
            true => Ok(()),
            false => Err(invalid("two members are the same database, or have the same seed")),
        }
    }
}

/// The members that a server knows of, and how far a change of them is. Kept with its records.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// The highest epoch that it was ever told.
    pub(crate) newest: u64,
    /// The members; none: it stands alone. A server that joins, or has left, is none of them.
    pub(crate) now: Option<Membership>,
    /// The change that has begun.
    pub(crate) change: Option<ChangeOfMembers>,
}

/// A change of the members that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChangeOfMembers {
    /// The members that follow.
    pub(crate) to: Membership,
    /// This server serves no keys any more that leave it.
    pub(crate) is_closed: bool,
    /// Their new owners serve them.
    pub(crate) is_given: bool,
    /// The ids of members whose keys are served here.
    pub(crate) opened: Vec<u64>,
    /// The server stood alone before.
    pub(crate) was_alone: bool,
}

/// The answer to [`MEMBERS`](crate::rpc::MEMBERS).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) id: u64,
    pub(crate) shards: u8,
    pub(crate) standing: Standing,
}

impl Standing {
    /// The epoch that ranges of keys have to be asked for with: that of the members that follow, if
    /// a change has begun. 0: it stands alone.
    pub(crate) fn epoch(&self) -> u64 {
        let change = self.change.as_ref().map(|change| &change.to);
        change.or(self.now.as_ref()).map_or(0, |members| members.epoch)
    }

    /// Begins a change, or has begun it: then the addresses are taken over.
    pub(crate) fn begin(&self, me: u64, from: Membership, to: Membership) -> Result<Self, KvError> {
        from.check()?;
        to.check()?;
        if from.epoch >= to.epoch || to.epoch == u64::MAX {
            return Err(invalid("the epoch of the members that follow is not higher"));
        }
        let has_moved = |it: &&KvMember| to.member(it.id).is_some_and(|to| to.seed != it.seed);
        if let Some(member) = from.members.iter().find(has_moved) {
            return Err(invalid(format!("the seed of the database {} changes", member.id)));
        }
        if from.member(me).or(to.member(me)).is_none() {
            return Err(invalid(format!("the database {me} is no member, before or after")));
        }
        let mut next = self.clone();
        if let Some(now) = next.now.as_mut().filter(|now| now.is_same(&to)) {
            *now = to;
            return Ok(next);
        }
        let is_now = next.now.as_ref().is_some_and(|now| now.is_same(&from));
        match next.change.as_mut() {
            Some(change) if is_now && change.to.is_same(&to) => {
                (next.now, change.to) = (Some(from), to);
                return Ok(next);
            }
            Some(change) => {
                let epoch = change.to.epoch;
                let text = format!("another change of members has begun, to epoch {epoch}");
                return Err(invalid(text));
            }
            None => {}
        }
        let is_member = next.now.as_ref().is_some_and(|now| now.member(me).is_some());
        if !is_now && (is_member || (next.now.is_some() && from.member(me).is_some())) {
            let epoch = next.now.map_or(0, |now| now.epoch);
            return Err(invalid(format!("it has other members, of epoch {epoch}")));
        }
        if to.epoch <= next.newest {
            return Err(invalid(format!("the epoch {} has been used before", to.epoch)));
        }
        next.newest = to.epoch;
        let (opened, was_alone) = (Vec::new(), next.now.is_none());
        next.now = Some(from);
        next.change =
            Some(ChangeOfMembers { to, is_closed: false, is_given: false, opened, was_alone });
        Ok(next)
    }

    /// Takes a change back. A database that stood alone and would have joined does so again; one
    /// that had left before still sends its callers to others.
    pub(crate) fn abort(&self, me: u64, epoch: u64) -> Result<Self, KvError> {
        let Some(change) = self.change.as_ref().filter(|change| change.to.epoch == epoch) else {
            return Ok(self.clone());
        };
        if change.is_closed || !change.opened.is_empty() {
            return Err(invalid("keys have changed hands already: the change can only go on"));
        }
        let mut next = self.clone();
        next.change = None;
        next.now = next.now.filter(|now| now.member(me).is_some() || !change.was_alone);
        Ok(next)
    }

    /// The change of that epoch.
    pub(crate) fn change(&self, epoch: u64) -> Result<&ChangeOfMembers, KvError> {
        let change = self.change.as_ref().filter(|change| change.to.epoch == epoch);
        change.ok_or_else(|| invalid(format!("no change of members to epoch {epoch} has begun")))
    }

    /// Ends a change, when all keys are where they belong, as far as this server knows.
    pub(crate) fn finish(&self, me: u64, epoch: u64) -> Result<Self, KvError> {
        if self.now.as_ref().is_some_and(|now| now.epoch == epoch) {
            return Ok(self.clone());
        }
        let change = self.change(epoch)?;
        let ids = |of: &Membership| of.members.iter().map(|it| it.id).collect::<Vec<_>>();
        let from = self.now.as_ref().unwrap_or(&change.to);
        let gives = |source, destination| from.gives(&change.to, source, destination);
        let has_given = change.is_given || !ids(&change.to).iter().any(|it| gives(me, *it));
        let has_all = ids(from).iter().all(|it| !gives(*it, me) || change.opened.contains(it));
        if !has_given || !has_all {
            return Err(invalid("not all keys have changed hands yet"));
        }
        Ok(Self { newest: self.newest, now: Some(change.to.clone()), change: None })
    }
}

/// Returns whether each key is served by one of these servers, which are all members before and
/// after. `to`: the members that follow, if a change is known.
pub(crate) fn serve_all_once(from: &Membership, to: &Membership, told: &[Told]) -> bool {
    // Whether the server has closed its keys, and those of which members it has opened.
    let state = |id: u64| -> Option<(bool, Option<&[u64]>)> {
        let standing = &told.iter().find(|told| told.id == id)?.standing;
        let now = standing.now.as_ref().map_or(0, |now| now.epoch);
        match &standing.change {
            None if now == to.epoch => Some((true, None)),
            None if now == from.epoch => Some((false, Some(&[]))),
            Some(change) if now == from.epoch && change.to.epoch == to.epoch => {
                Some((change.is_closed, Some(&change.opened)))
            }
            _ => None,
        }
    };
    from.members.iter().all(|source| {
        to.members.iter().filter(|it| from.gives(to, source.id, it.id)).all(|destination| {
            let (Some((is_closed, _)), Some((_, opened))) =
                (state(source.id), state(destination.id))
            else {
                return false;
            };
            is_closed == opened.is_none_or(|opened| opened.contains(&source.id))
        }) && state(source.id).is_some()
    })
}

/// The keys that leave a source and were changed since they were copied.
#[derive(Debug, Default)]
pub(crate) struct Dirty(Mutex<DirtyKeys>);

#[derive(Debug, Default)]
struct DirtyKeys {
    keys: HashSet<Vec<u8>>,
    bytes: usize,
    is_over: bool,
}

impl Dirty {
    fn state(&self) -> MutexGuard<'_, DirtyKeys> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, keys: impl IntoIterator<Item = Vec<u8>>) {
        let mut state = self.state();
        for key in keys {
            let bytes = key.len() + DIRTY_ENTRY_BYTES;
            if state.is_over || state.bytes + bytes > DIRTY_BYTES_MAX {
                *state = DirtyKeys { is_over: true, ..DirtyKeys::default() };
                return;
            }
            state.bytes += if state.keys.insert(key) { bytes } else { 0 };
        }
    }

    /// Takes all of them. `None`: there were too many, and all have to be copied once more.
    pub(crate) fn take(&self) -> Option<Vec<Vec<u8>>> {
        let mut state = self.state();
        if state.is_over {
            return None;
        }
        Some(std::mem::take(&mut *state).keys.into_iter().collect())
    }
}

/// The keys that a server serves. Does not change: there is another one after each step.
#[derive(Debug, Clone, Default)]
pub(crate) struct Served {
    /// The id of the database.
    pub(crate) me: u64,
    pub(crate) standing: Standing,
    /// Keys that leave are not changed for the moment.
    pub(crate) is_held: bool,
    /// While keys are copied: those that were changed.
    pub(crate) dirty: Option<Arc<Dirty>>,
}

impl Served {
    /// The owner of a key now, and the one that follows.
    fn owners(&self, key: &[u8]) -> Option<(&KvMember, &KvMember)> {
        let now = self.standing.now.as_ref()?.owner(key);
        let change = self.standing.change.as_ref();
        Some((now, change.map_or(now, |change| change.to.owner(key))))
    }

    fn moved(&self, to: &KvMember) -> KvError {
        let KvMember { address, provider, .. } = to;
        let epoch = self.standing.epoch();
        KvError::Moved { epoch, address: address.clone(), provider: *provider }
    }

    /// Returns whether a key may be read here.
    ///
    /// # Errors
    ///
    /// [`KvError::Moved`].
    pub(crate) fn reads(&self, key: &[u8]) -> Result<(), KvError> {
        let Some((old, new)) = self.owners(key) else { return Ok(()) };
        let change = self.standing.change.as_ref();
        let is_closed = change.is_some_and(|change| change.is_closed);
        let has_opened = || change.is_some_and(|change| change.opened.contains(&old.id));
        match (old.id == self.me, new.id == self.me) {
            (true, true) => Ok(()),
            (true, false) if !is_closed => Ok(()),
            (true, false) => Err(self.moved(new)),
            (false, true) if has_opened() => Ok(()),
            (false, _) => Err(self.moved(old)),
        }
    }

    /// Returns whether a key may be changed here.
    ///
    /// # Errors
    ///
    /// [`KvError::Moved`], also for the moment in which what has changed of a key is on the way.
    pub(crate) fn changes(&self, key: &[u8]) -> Result<(), KvError> {
        self.reads(key)?;
        match self.owners(key) {
            Some((_, new)) if self.is_held && new.id != self.me => Err(self.moved(new)),
            _ => Ok(()),
        }
    }

    /// Returns whether the caller, who asks for a range of keys, knows of the members.
    ///
    /// # Errors
    ///
    /// [`KvError::Moved`]: others have some of the keys.
    pub(crate) fn knows(&self, epoch: u64) -> Result<(), KvError> {
        let members = self.standing.now.as_ref().filter(|_| epoch < self.standing.epoch());
        let Some(now) = members else { return Ok(()) };
        // Any of them tells who the others are.
        let other = now.members.iter().find(|it| it.id != self.me).unwrap_or(&now.members[0]);
        Err(self.moved(other))
    }

    /// The owner that follows, of a key that leaves.
    pub(crate) fn leaves(&self, key: &[u8]) -> Option<u64> {
        let (old, new) = self.owners(key)?;
        (old.id == self.me && new.id != self.me).then_some(new.id)
    }

    /// Returns whether a key comes from that member.
    pub(crate) fn comes_from(&self, key: &[u8], source: u64) -> bool {
        let owners = self.owners(key);
        owners.is_some_and(|(old, new)| old.id == source && new.id == self.me && source != new.id)
    }

    /// Returns whether a key is a copy that nobody sees: it is neither served here nor leaves.
    pub(crate) fn is_useless(&self, key: &[u8]) -> bool {
        let owners = self.owners(key);
        owners.is_some_and(|(old, _)| old.id != self.me) && self.reads(key).is_err()
    }

    /// The members that keys of this server go to.
    pub(crate) fn receivers(&self) -> Vec<KvMember> {
        let (Some(now), Some(change)) = (&self.standing.now, &self.standing.change) else {
            return Vec::new();
        };
        let all = change.to.members.iter();
        all.filter(|it| now.gives(&change.to, self.me, it.id)).cloned().collect()
    }

    /// Checks that keys of `source` may come here now.
    pub(crate) fn receives(&self, epoch: u64, source: u64) -> Result<&ChangeOfMembers, KvError> {
        let change = self.standing.change(epoch)?;
        let now = self.standing.now.as_ref();
        match now.is_some_and(|now| now.gives(&change.to, source, self.me)) {
            true => Ok(change),
            false => Err(invalid(format!("the database {source} has no keys for this one"))),
        }
    }
}

/// Checks a version that another server tells.
pub(crate) fn check_version(version: u64) -> Result<(), KvError> {
    match version {
        ..=VERSION_MAX => Ok(()),
        _ => Err(invalid(format!("the version {version} leaves no room for later ones"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, seed: u64) -> KvMember {
        KvMember { id, seed, address: format!("na+sm://{id}"), provider: 1, shards: 1 }
    }

    fn members(epoch: u64, ids: &[u64]) -> Membership {
        Membership { epoch, members: ids.iter().map(|id| member(*id, *id)).collect() }
    }

    fn ids(count: u64) -> Vec<u64> {
        (1..=count).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
    }

    #[test]
    fn weights_are_the_hash_that_is_written_down() {
        // From the tests of xxHash: nothing, with its prime number 2654435761 as the seed.
        assert_eq!(weight(2_654_435_761, b""), 0xac75_fda2_929b_17ef);
        // Without a seed.
        assert_eq!(weight(0, b""), 0xef46_db37_51d8_e999);
        assert_eq!(weight(0, b"abc"), 0x44bc_2cf5_ad77_0999);
    }

    #[test]
    fn one_more_member_takes_its_share_and_no_other_key_moves() {
        const KEYS: u64 = 40_000;
        let ids = ids(5);
        for count in 1..ids.len() {
            let (few, more) = (members(1, &ids[..count]), members(2, &ids[..=count]));
            let mut moved = 0;
            for key in 0..KEYS {
                let key = format!("key/{key}");
                let (before, now) = (few.owner(key.as_bytes()), more.owner(key.as_bytes()));
                assert!(now.id == before.id || now.id == ids[count], "{key}");
                moved += u64::from(now.id != before.id);
            }
            let even = KEYS / more.members.len() as u64;
            assert!((even * 95 / 100..even * 105 / 100).contains(&moved), "{moved} of {even}");
        }
    }

    #[test]
    fn a_collection_has_one_owner() {
        let document = |id: u64| [b"events\0", &id.to_be_bytes()[..]].concat();
        assert_eq!(routed(b"events\0"), b"events");
        assert!((0..300).all(|id| routed(&document(id)) == b"events"));
        for key in
            [&b""[..], b"events", b"\0", b"\0\0\0\0\0\0\0\0\x01", b"a\0b", b"0123\0\0\0\0\0\0"]
        {
            assert_eq!(routed(key), key);
        }
    }

    /// Changes of every kind: a server more, less, in place of another one, and all of it at once.
    fn changes() -> Vec<(Membership, Membership)> {
        let ids = ids(6);
        let of = |list: &[(usize, usize)]| {
            let members = list.iter().map(|(id, seed)| member(ids[*id], ids[*seed]));
            members.collect::<Vec<_>>()
        };
        let three = of(&[(0, 0), (1, 1), (2, 2)]);
        let others = [
            of(&[(0, 0), (1, 1), (2, 2), (3, 3)]),
            of(&[(0, 0), (2, 2)]),
            of(&[(0, 0), (3, 1), (2, 2)]),
            of(&[(3, 1), (2, 2), (4, 4), (5, 5)]),
            of(&[(3, 3)]),
            three.clone(),
        ];
        let from = Membership { epoch: 1, members: three };
        others.map(|members| (from.clone(), Membership { epoch: 2, members })).to_vec()
    }

    #[test]
    fn keys_move_between_those_alone_who_give_and_receive() {
        for (from, to) in changes() {
            let mut pairs = HashSet::new();
            for key in 0..5_000 {
                let key = format!("key/{key}");
                let pair = (from.owner(key.as_bytes()).id, to.owner(key.as_bytes()).id);
                if pair.0 != pair.1 {
                    assert!(from.gives(&to, pair.0, pair.1), "{from:?} {to:?} {pair:?}");
                    pairs.insert(pair);
                }
            }
            for (source, destination) in from
                .members
                .iter()
                .flat_map(|source| to.members.iter().map(|to| (source.id, to.id)))
                .filter(|(source, destination)| from.gives(&to, *source, *destination))
            {
                assert!(pairs.contains(&(source, destination)), "{from:?} {to:?}");
            }
        }
    }

    /// Servers of which some have made their steps: each key is served by one at most, by exactly
    /// one unless it is just changing hands, and a list is taken for whole then only.
    #[test]
    fn no_key_is_served_by_two_in_whatever_order_servers_make_their_steps() {
        let keys: Vec<_> = (0..200).map(|key| format!("key/{key}").into_bytes()).collect();
        let mut random = fastrand::Rng::with_seed(5);
        for (from, to) in changes().into_iter().cycle().take(60) {
            let all: HashSet<u64> =
                from.members.iter().chain(&to.members).map(|member| member.id).collect();
            let joins = |id: u64| from.member(id).is_none();
            let mut servers: Vec<Served> = all
                .iter()
                .map(|id| {
                    let now = (!joins(*id) && random.bool()).then(|| from.clone());
                    let standing = Standing { now, ..Standing::default() };
                    Served { me: *id, standing, ..Served::default() }
                })
                .collect();
            for server in &mut servers {
                let (from, to) = (from.clone(), to.clone());
                server.standing = server.standing.begin(server.me, from, to).unwrap();
                let again = server.standing.begin(server.me, from_of(server), to_of(server));
                assert_eq!(again.as_ref(), Ok(&server.standing));
            }
            let mut left: Vec<(u64, u64)> = from
                .members
                .iter()
                .flat_map(|source| to.members.iter().map(|it| (source.id, it.id)))
                .filter(|(source, destination)| from.gives(&to, *source, *destination))
                .collect();
            random.shuffle(&mut left);
            let check = |servers: &[Served]| {
                let told: Vec<_> = servers
                    .iter()
                    .map(|it| Told { id: it.me, shards: 1, standing: it.standing.clone() })
                    .collect();
                let is_whole = serve_all_once(&from, &to, &told);
                let counts: Vec<_> = keys
                    .iter()
                    .map(|key| servers.iter().filter(|it| it.reads(key).is_ok()).count())
                    .collect();
                assert!(counts.iter().all(|count| *count <= 1), "{servers:#?}");
                assert_eq!(counts.iter().all(|count| *count == 1), is_whole, "{told:#?}");
            };
            check(&servers);
            while let Some((source, destination)) = left.pop() {
                let place = |id| servers.iter().position(|server| server.me == id).unwrap();
                let (source, destination) = (place(source), place(destination));
                let id = servers[source].me;
                servers[source].standing.change.as_mut().unwrap().is_closed = true;
                check(&servers);
                assert!(servers[source].standing.abort(id, 2).is_err());
                assert!(servers[destination].standing.finish(servers[destination].me, 2).is_err());
                servers[destination].standing.change.as_mut().unwrap().opened.push(id);
                check(&servers);
                if !left.iter().any(|(source, _)| *source == id) {
                    servers[source].standing.change.as_mut().unwrap().is_given = true;
                }
            }
            random.shuffle(&mut servers);
            for at in 0..servers.len() {
                let server = &mut servers[at];
                server.standing = server.standing.finish(server.me, 2).unwrap();
                assert_eq!(server.standing.finish(server.me, 2).as_ref(), Ok(&server.standing));
                check(&servers);
            }
        }
    }

    fn from_of(server: &Served) -> Membership {
        server.standing.now.clone().unwrap()
    }

    fn to_of(server: &Served) -> Membership {
        server.standing.change.clone().unwrap().to
    }

    #[test]
    fn a_change_is_taken_back_or_refused_with_a_reason() {
        let ids = ids(4);
        let (from, to) = (members(1, &ids[..2]), members(2, &ids[..3]));
        let alone = Standing::default();
        let old = alone.begin(ids[0], from.clone(), to.clone()).unwrap();
        let new = alone.begin(ids[2], from.clone(), to.clone()).unwrap();
        let back = old.abort(ids[0], 2).unwrap();
        assert_eq!((back.now.as_ref(), &back.change), (Some(&from), &None));
        assert_eq!(new.abort(ids[2], 2).unwrap().now, None, "it stands alone again");
        assert_eq!(old.abort(ids[0], 7), Ok(old.clone()), "another change");

        let refused = |standing: &Standing, me, from: &Membership, to: &Membership, text: &str| {
            let error = standing.begin(me, from.clone(), to.clone()).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        refused(&alone, 77, &from, &to, "is no member");
        refused(&back, ids[0], &from, &to, "has been used before");
        refused(&old, ids[0], &from, &members(3, &ids[..3]), "another change of members has begun");
        refused(&back, ids[0], &members(5, &ids[..2]), &members(6, &ids), "it has other members");
        refused(&alone, ids[0], &to, &from, "is not higher");
        refused(&alone, ids[0], &from, &members(2, &[]), "0 members");
        refused(&alone, ids[0], &from, &members(2, &[1, 1]), "the same database");
        let many: Vec<_> = (0..257).collect();
        refused(&alone, ids[0], &from, &members(2, &many), "257 members");
        let mut long = to.clone();
        long.members[0].address = "x".repeat(513);
        refused(&alone, ids[0], &from, &long, "an address of 513 bytes");
        let mut other = to.clone();
        other.members[0].seed = 7;
        refused(&alone, ids[0], &from, &other, "the seed of the database");

        // A server that has left may join anything.
        let left = Standing { newest: 2, now: Some(to), change: None };
        let (from, to) = (members(8, &ids[..1]), members(9, &[ids[0], ids[3]]));
        let joins = left.begin(ids[3], from.clone(), to.clone()).unwrap();
        // And does not serve what it has when that is taken back.
        assert_eq!(joins.abort(ids[3], 9).unwrap().now, Some(from.clone()));
        refused(&left, ids[1], &from, &members(9, &ids[..2]), "it has other members");
    }

    #[test]
    fn keys_that_were_changed_are_bounded() {
        let dirty = Dirty::default();
        dirty.add([b"a".to_vec(), b"a".to_vec()]);
        assert_eq!(dirty.take(), Some(vec![b"a".to_vec()]));
        assert_eq!(dirty.take(), Some(Vec::new()));
        let large = |n: usize| [&n.to_le_bytes()[..], &vec![7; 32 << 10]].concat();
        dirty.add((0..500).map(large));
        assert_eq!(dirty.take().map(|keys| keys.len()), Some(500));
        dirty.add((0..520).map(large));
        dirty.add([b"a".to_vec()]);
        assert_eq!(dirty.take(), None, "16 MiB");
    }
}
