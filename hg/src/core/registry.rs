//! The registry: which RPCs there are.
//!
//! The table is copied on every change and read as a whole: each shard keeps the copy that it saw
//! last, and looks at one number to learn that there is a newer one. So a look-up on the path of a
//! call takes no lock of its own and reads no cache line that other threads write.
//!
//! A request counts the entry with which it is handed up, so a shard of several makes entries of
//! its own from those of the table: their counts are written by that shard alone. Registrations
//! are told apart by numbers that are never used again.
//!
//! A request keeps the entry with which it was handed up, so replacing or removing an RPC leaves
//! nothing dangling: a request that a handler has is answered as before, and a later one finds the
//! new entry, or none.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use prim::sync::lock;

use crate::{Core, HgError, ProviderId, RpcId};

/// The properties that an RPC is registered with.
///
/// ```
/// # use hg::*;
/// # use std::sync::Arc;
/// # let endpoint = na::open("na+sim://doc-registration/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// let sum = || Registration::margo("sum", ProviderId::new(3)).data(Arc::new("of the provider"));
/// let id = core.register(sum())?;
/// let there = core.registered(id).ok_or("not registered")?;
/// assert_eq!((there.name(), there.data_as()), ("sum of provider 3", Some(&"of the provider")));
/// assert!(matches!(core.register(sum()), Err(HgError::Registered { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: the arguments of `HG_Register`, `HG_Register_data` and
/// `HG_Registered_disable_response`.
// Apart from its counts, which requests change: whoever handles one reads what is here.
#[repr(align(128))]
pub struct Registration {
    /// The number of this registration, which a shard's own entry for it has, too. 0: it has none
    /// yet.
    number: u64,
    id: RpcId,
    name: Box<str>,
    serves: bool,
    no_response: bool,
    data: Option<RegistrationData>,
    /// The data of the shards from shard 1 on, where each has its own.
    of_others: Box<[RegistrationData]>,
    /// All entries of this registration.
    holders: Holders,
}

/// The data that an RPC is registered with.
pub(crate) type RegistrationData = Arc<dyn Any + Send + Sync>;

impl Registration {
    fn new(id: RpcId, name: String) -> Self {
        let (name, data, of_others) = (name.into(), None, Box::default());
        let holders = Holders::default();
        Self { number: 0, id, name, serves: true, no_response: false, data, of_others, holders }
    }

    /// By number. The name is for messages to people.
    pub fn with_id(id: RpcId, name: impl Into<String>) -> Self {
        Self::new(id, name.into())
    }

    /// By name, as plain Mercury numbers it. Counterpart: `HG_Register_name`.
    pub fn mercury(name: &str) -> Self {
        Self::new(RpcId::mercury(name), name.to_owned())
    }

    /// By name, as Margo numbers it at a provider. Counterpart: `margo_provider_register_name`.
    pub fn margo(name: &str, provider: ProviderId) -> Self {
        let shown = match provider {
            ProviderId::DEFAULT => name.to_owned(),
            provider => format!("{name} of provider {provider}"),
        };
        Self::new(RpcId::margo(name, provider), shown)
    }

    /// Only for calls of ours; requests for it are refused. Counterpart: no `hg_rpc_cb_t`.
    pub fn client_only(self) -> Self {
        Self { serves: false, ..self }
    }

    /// No call of this RPC takes a response, whatever the caller says. Both sides have to agree.
    pub fn no_response(self) -> Self {
        Self { no_response: true, ..self }
    }

    /// Sets the data that [`RequestHandle::data`](crate::RequestHandle::data) gives to the code
    /// that serves the RPC.
    pub fn data(self, data: RegistrationData) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Sets data of their own for the shards of a group: `first` for shard 0, the others in their
    /// order; those beyond have that of shard 0. What is known of the RPC as a whole
    /// ([`Core::registered`] of shard 0) has that of shard 0, too.
    pub fn data_of_shards(self, first: RegistrationData, others: Vec<RegistrationData>) -> Self {
        Self { data: Some(first), of_others: others.into(), ..self }
    }

    /// The entry of a shard for the same registration.
    fn of_shard(&self, shard: u8) -> Arc<Self> {
        let Self { number, id, serves, no_response, .. } = *self;
        let own = usize::from(shard).checked_sub(1).and_then(|at| self.of_others.get(at));
        let (name, data) = (self.name.clone(), own.or(self.data.as_ref()).cloned());
        let (of_others, holders) = (Box::default(), self.holders.clone());
        let own = Self { number, id, name, serves, no_response, data, of_others, holders };
        own.entered()
    }

    fn numbered(self) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), ..self }.entered()
    }

    fn entered(self) -> Arc<Self> {
        let entry = Arc::new(self);
        entry.holders.add(&entry);
        entry
    }

    /// Holders of this registration, through whichever shard.
    pub fn holders(&self) -> &Holders {
        &self.holders
    }

    fn is(&self, other: &Self) -> bool {
        self.number == other.number
    }

    /// The number.
    #[inline]
    pub fn id(&self) -> RpcId {
        self.id
    }

    /// The name.
    #[inline]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether requests for it are taken.
    #[inline]
    pub fn serves(&self) -> bool {
        self.serves
    }

    /// Returns whether it takes no response.
    #[inline]
    pub fn is_no_response(&self) -> bool {
        self.no_response
    }

    /// Returns whether it was registered with data.
    #[inline]
    pub(crate) fn has_data(&self) -> bool {
        self.data.is_some()
    }

    /// The data that it was registered with, if it is of type `D`; with data by shard, that of the
    /// shard from which this entry is.
    pub fn data_as<D: Any>(&self) -> Option<&D> {
        self.data.as_deref()?.downcast_ref()
    }

    /// The data of all shards, if it is of type `D`, of an entry from shard 0.
    pub fn all_data<D: Any>(&self) -> impl Iterator<Item = &D> {
        let all = self.data.iter().chain(&self.of_others);
        all.filter_map(|data| data.downcast_ref())
    }
}

/// The holders of a registration: of its entry in the table, and of those of the shards. Does not
/// keep it.
///
/// ```
/// # use hg::*;
/// # let endpoint = na::open("na+sim://doc-holders/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// let registration = core.registered(id).ok_or("not registered")?;
/// let before = registration.holders().count();
/// let another = registration.clone();
/// assert_eq!(registration.holders().count(), before + 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Holders(Arc<Mutex<Vec<Weak<Registration>>>>);

impl Holders {
    fn add(&self, entry: &Arc<Registration>) {
        let mut entries = lock(&self.0);
        entries.retain(|earlier| earlier.strong_count() > 0);
        entries.push(Arc::downgrade(entry));
    }

    /// Returns how many there are. Of a registration that is not in the table any more, these are
    /// the requests that have it.
    pub fn count(&self) -> usize {
        lock(&self.0).iter().map(Weak::strong_count).sum()
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({} as {})", self.name, self.id)
    }
}

/// An RPC id is a hash already; its two halves only have to be brought together. A peer chooses
/// which ids it asks for, but not which ones are in the table.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub(crate) type Table = HashMap<RpcId, Arc<Registration>, BuildHasherDefault<IdHasher>>;

/// All RPCs of a core, for all of its shards.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    table: Mutex<Arc<Table>>,
    /// Changes of the table. A reader that sees a number sees that table or a later one, because it
    /// takes the table under its lock.
    version: AtomicU64,
}

/// Most clones of an entry that are made at a time.
const SPARES_MAX: usize = 64;

/// A shard's copy of the table.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    table: Arc<Table>,
    /// The number of this shard, and the entries of it alone; `None`: there is no other shard, and
    /// those of the table do.
    own: Option<(u8, Table)>,
    /// The latest look-up, if it is in the table: the same RPC is often asked for again.
    last: Option<Arc<Registration>>,
    /// Clones of it for the next requests. Each drops one, on another core as a rule, which has the
    /// line of their count until the next are made.
    spares: Vec<Arc<Registration>>,
    /// So many are made when there are none: more each time, as the same RPC is asked for again.
    more: usize,
    version: u64,
    /// Registrations that were removed or replaced, until the caller that did so takes them. An
    /// entry's data is the user's, and `get` runs under the shard's lock, which the user's `Drop`
    /// may need.
    outdated: Vec<Arc<Registration>>,
}

/// The part of the registry that a shard held and has no use for. To be dropped without locks.
#[derive(Debug)]
pub(crate) struct Outdated {
    _table: Arc<Table>,
    _entries: Vec<Arc<Registration>>,
}

impl Seen {
    /// Nothing yet, for one of so many shards.
    pub(crate) fn of_shard(shard: u8, shards: usize) -> Self {
        Self { own: (shards > 1).then(|| (shard, Table::default())), ..Self::default() }
    }

    #[inline]
    pub(crate) fn get(&mut self, registry: &Registry, id: RpcId) -> Option<&Arc<Registration>> {
        if registry.version.load(Ordering::Relaxed) != self.version {
            self.catch_up(registry);
        }
        if self.last.as_ref().is_none_or(|last| last.id != id) {
            // Nothing is dropped: the table has what was there.
            let there = self.table.get(&id)?;
            let found = match &mut self.own {
                None => there.clone(),
                Some((shard, own)) => {
                    own.entry(id).or_insert_with(|| there.of_shard(*shard)).clone()
                }
            };
            self.forget_last();
            self.last = Some(found);
        }
        self.last.as_ref()
    }

    /// A clone of what [`get`](Self::get) has returned last.
    #[inline]
    pub(crate) fn take_last(&mut self) -> Option<Arc<Registration>> {
        if self.spares.is_empty() {
            self.make_spares();
        }
        self.spares.pop()
    }

    #[inline(never)]
    fn make_spares(&mut self) {
        self.more = (2 * self.more).clamp(1, SPARES_MAX);
        let last = self.last.iter();
        self.spares.extend(last.flat_map(|last| (0..self.more).map(|_| last.clone())));
    }

    /// Drops no entry, if there is a clone elsewhere.
    fn forget_last(&mut self) {
        self.last = None;
        self.spares.clear();
        self.more = 0;
    }

    /// Takes the newest table, and drops no entry of the old one.
    #[cold]
    fn catch_up(&mut self, registry: &Registry) {
        let old = self.exchange(registry);
        let Self { table, own, outdated, .. } = self;
        let is_gone = |old: &Arc<Registration>| table.get(&old.id).is_none_or(|new| !new.is(old));
        outdated.extend(old.values().filter(|old| is_gone(old)).cloned());
        if let Some((_, own)) = own {
            outdated.extend(own.extract_if(|_, old| is_gone(old)).map(|(_, old)| old));
        }
    }

    /// Takes the newest table; returns what is outdated by that, or was before.
    pub(crate) fn renew(&mut self, registry: &Registry) -> Outdated {
        let _table = self.exchange(registry);
        if let Some((_, own)) = &mut self.own {
            self.outdated.extend(own.drain().map(|(_, entry)| entry));
        }
        Outdated { _table, _entries: std::mem::take(&mut self.outdated) }
    }

    fn exchange(&mut self, registry: &Registry) -> Arc<Table> {
        // Drops no entry: the table that the caller gets has it.
        self.forget_last();
        let table = lock(&registry.table);
        self.version = registry.version.load(Ordering::Relaxed);
        std::mem::replace(&mut self.table, table.clone())
    }
}

impl Registry {
    /// Adds an entry.
    pub(crate) fn insert(&self, new: Registration) -> Result<RpcId, HgError> {
        let (id, mut table) = (new.id, lock(&self.table));
        let there = table.get(&id).map(|there| there.name.clone());
        match there {
            None => drop(self.change(&mut table, |table| drop(table.insert(id, new.numbered())))),
            Some(there) => {
                // An entry's data is the user's.
                drop(table);
                return Err(occupied(new, &there));
            }
        }
        Ok(id)
    }

    /// Puts an entry in the place of `old`, if that is still there.
    pub(crate) fn replace(
        &self,
        old: &Arc<Registration>,
        new: Registration,
    ) -> Result<(), HgError> {
        if new.name != old.name {
            return Err(occupied(new, &old.name));
        }
        let mut table = lock(&self.table);
        if table.get(&new.id).is_some_and(|there| there.is(old)) {
            // Drops no entry: the caller has a count of the one that was there.
            drop(self.change(&mut table, |table| drop(table.insert(new.id, new.numbered()))));
            return Ok(());
        }
        // An entry's data is the user's.
        drop(table);
        Err(HgError::Outdated { id: new.id, name: new.name.into() })
    }

    /// Removes an entry.
    pub(crate) fn remove(&self, id: RpcId) -> Option<Arc<Registration>> {
        let mut table = lock(&self.table);
        let removed = table.get(&id)?.clone();
        let old = self.change(&mut table, |table| drop(table.remove(&id)));
        drop(table);
        drop(old);
        Some(removed)
    }

    /// Removes that entry, if it is still there; returns the table in which it was. Drops nothing.
    fn remove_this(&self, entry: &Arc<Registration>) -> Option<Arc<Table>> {
        let mut table = lock(&self.table);
        if !table.get(&entry.id).is_some_and(|there| there.is(entry)) {
            return None;
        }
        // The caller has a count of it.
        Some(self.change(&mut table, |table| drop(table.remove(&entry.id))))
    }

    /// Removes all.
    pub(crate) fn clear(&self) {
        let mut table = lock(&self.table);
        let old = self.change(&mut table, Table::clear);
        drop(table);
        drop(old);
    }

    /// Changes a copy of the table, which takes its place; returns the table that was there.
    fn change(&self, table: &mut Arc<Table>, change: impl FnOnce(&mut Table)) -> Arc<Table> {
        let mut changed = Table::clone(table);
        change(&mut changed);
        self.version.fetch_add(1, Ordering::Relaxed);
        std::mem::replace(table, Arc::new(changed))
    }

    #[inline]
    pub(crate) fn get(&self, id: RpcId) -> Option<Arc<Registration>> {
        lock(&self.table).get(&id).cloned()
    }
}

/// The last references that the RPC core has to a deregistered RPC. To be dropped without locks.
///
/// ```
/// # use hg::*;
/// # let endpoint = na::open("na+sim://doc-removed/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// let there = core.registered(id).ok_or("not registered")?;
/// let removed: Option<Removed<'_, _>> = core.deregister_this(&there);
/// assert!(removed.is_some() && core.registered(id).is_none());
/// drop(removed); // data that it was registered with may be dropped here
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it is to be dropped where a destructor of the user's may run"]
pub struct Removed<'a, T> {
    core: &'a Core<T>,
    _table: Arc<Table>,
}

impl<T> Drop for Removed<'_, T> {
    fn drop(&mut self) {
        self.core.forget_old_tables();
    }
}

impl<T> std::fmt::Debug for Removed<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Removed").finish_non_exhaustive()
    }
}

/// Why an RPC is not registered where `there` is.
fn occupied(new: Registration, there: &str) -> HgError {
    let (id, name) = (new.id, String::from(new.name));
    match name == there {
        true => HgError::Registered { id, name },
        false => HgError::Collision { id, name, other: there.to_owned() },
    }
}

impl<T> Core<T> {
    /// Registers an RPC, for all shards. Returns its number.
    ///
    /// # Errors
    ///
    /// [`HgError::Registered`] if it is already, [`HgError::Collision`] if another one has the same
    /// number.
    ///
    /// Counterpart: `HG_Register`, `HG_Register_name`.
    pub fn register(&self, registration: Registration) -> Result<RpcId, HgError> {
        self.class.registry.insert(registration)
    }

    /// Registers an RPC in the place of `old`, which has the same number and name. Requests that
    /// were handed up keep what they were handed up with; later ones get the new one.
    ///
    /// # Errors
    ///
    /// [`HgError::Outdated`] if `old` is not what is registered under that number any more,
    /// [`HgError::Collision`] if their names differ. Nothing changes then.
    pub fn replace(&self, old: &Arc<Registration>, new: Registration) -> Result<(), HgError> {
        self.class.registry.replace(old, new)?;
        self.forget_old_tables();
        Ok(())
    }

    /// Forgets an RPC; returns what was registered. Requests for it that were not handed up yet are
    /// answered with [`ReturnCode::NoEntry`](crate::ReturnCode::NoEntry); those that were can be
    /// answered as before. Calls of ours that are in flight go on; new ones fail with
    /// [`HgError::NotRegistered`].
    ///
    /// Counterpart: `HG_Deregister`.
    pub fn deregister(&self, id: RpcId) -> Option<Arc<Registration>> {
        let removed = self.class.registry.remove(id);
        self.forget_old_tables();
        removed
    }

    /// [`deregister`](Self::deregister), if `registration` is the one that is registered under its
    /// number; `None`: it is not, any more, and nothing changes. Drops nothing that is the user's:
    /// that goes with the value that is returned, or later.
    pub fn deregister_this(&self, registration: &Arc<Registration>) -> Option<Removed<'_, T>> {
        let table = self.class.registry.remove_this(registration)?;
        Some(Removed { core: self, _table: table })
    }

    /// Forgets all RPCs.
    pub fn deregister_all(&self) {
        self.class.registry.clear();
        self.forget_old_tables();
    }

    /// Lets go of the copies of the registry that shards keep, and so of entries that were
    /// removed.
    fn forget_old_tables(&self) {
        for shard in self.class.all() {
            let old = shard.state().seen.renew(&self.class.registry);
            // Outside of the lock: an entry's data is the user's.
            drop(old);
        }
    }

    /// All that is registered, in no order.
    pub fn registrations(&self) -> Vec<Arc<Registration>> {
        lock(&self.class.registry.table).values().cloned().collect()
    }

    /// Returns the registration under that number, with the data of this shard. Counterpart:
    /// `HG_Registered`, `HG_Registered_data`.
    pub fn registered(&self, id: RpcId) -> Option<Arc<Registration>> {
        let there = self.class.registry.get(id)?;
        Some(if self.id == 0 { there } else { there.of_shard(self.id) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_hashes_and_a_number_name_an_rpc() {
        let provider = ProviderId::new(7);
        for (registration, id, name) in [
            (Registration::mercury("open"), RpcId::mercury("open"), "open"),
            (
                Registration::margo("open", provider),
                RpcId::margo("open", provider),
                "open of provider 7",
            ),
            (Registration::with_id(RpcId(9), "nine"), RpcId(9), "nine"),
        ] {
            assert_eq!((registration.id(), registration.name()), (id, name));
        }
    }

    #[test]
    fn a_collision_names_both() {
        let registry = Registry::default();
        registry.insert(Registration::with_id(RpcId(1), "a")).unwrap();
        let again = registry.insert(Registration::with_id(RpcId(1), "a")).unwrap_err();
        assert!(matches!(&again, HgError::Registered { name, .. } if name == "a"), "{again}");
        let there = registry.get(RpcId(1)).unwrap();
        let other = || Registration::with_id(RpcId(1), "b");
        for refused in [registry.insert(other()).map(drop), registry.replace(&there, other())] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("`a`") && text.contains("`b`"), "{text}");
        }
    }

    #[test]
    fn what_was_deregistered_or_replaced_is_not_replaced() {
        let registry = Registry::default();
        let new = |n: u32| Registration::with_id(RpcId(1), "a").data(Arc::new(n));
        registry.insert(new(1)).unwrap();
        let first = registry.get(RpcId(1)).unwrap();
        registry.replace(&first, new(2)).unwrap();
        let error = registry.replace(&first, new(3)).unwrap_err();
        assert!(matches!(error, HgError::Outdated { id: RpcId(1), .. }), "{error}");
        let second = registry.get(RpcId(1)).unwrap();
        assert_eq!(second.data_as(), Some(&2u32));
        registry.remove(RpcId(1)).unwrap();
        let error = registry.replace(&second, new(4)).unwrap_err();
        assert!(matches!(error, HgError::Outdated { id: RpcId(1), .. }), "{error}");
        assert!(registry.get(RpcId(1)).is_none(), "its provider was dropped");
        // One that came later is another one's.
        registry.insert(new(5)).unwrap();
        registry.replace(&second, new(6)).unwrap_err();
        assert!(registry.remove_this(&second).is_none());
        let there = registry.get(RpcId(1)).unwrap();
        assert_eq!(there.data_as(), Some(&5u32));
        assert!(registry.remove_this(&there).is_some() && registry.get(RpcId(1)).is_none());
    }

    #[test]
    fn a_shard_sees_changes_and_what_it_holds_lives_on() {
        let (registry, mut seen) = (Registry::default(), Seen::default());
        assert!(seen.get(&registry, RpcId(1)).is_none());
        let first = Registration::with_id(RpcId(1), "a").data(Arc::new(1u32));
        registry.insert(first).unwrap();
        let held = seen.get(&registry, RpcId(1)).unwrap().clone();
        let second = Registration::with_id(RpcId(1), "a").data(Arc::new(2u32)).no_response();
        registry.replace(&held, second).unwrap();
        assert_eq!(seen.get(&registry, RpcId(1)).unwrap().data_as(), Some(&2u32));
        assert!(registry.remove(RpcId(1)).is_some() && registry.remove(RpcId(1)).is_none());
        assert!(seen.get(&registry, RpcId(1)).is_none() && registry.get(RpcId(1)).is_none());
        assert_eq!(held.data_as(), Some(&1u32));
        assert_eq!(held.data_as::<u64>(), None);
    }

    /// Says when it is dropped.
    struct Tells(Arc<std::sync::atomic::AtomicBool>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn clones_for_requests_go_with_the_entry() {
        let (registry, mut seen) = (Registry::default(), Seen::default());
        for id in [1, 2] {
            registry.insert(Registration::with_id(RpcId(id), "a").data(Arc::new(id))).unwrap();
        }
        let count = |id| Arc::strong_count(&registry.get(RpcId(id)).unwrap()) - 1;
        let mut taken = Vec::new();
        for _ in 0..3 * SPARES_MAX {
            let there = seen.get(&registry, RpcId(1)).unwrap().clone();
            let clone = seen.take_last().unwrap();
            assert!(Arc::ptr_eq(&there, &clone));
            taken.push(clone);
        }
        // That of the table, the last one looked up, and spare ones.
        assert!((2..2 + SPARES_MAX).contains(&(count(1) - taken.len())), "{}", count(1));
        // Another one is looked up.
        seen.get(&registry, RpcId(2)).unwrap();
        assert_eq!(seen.take_last().unwrap().data_as(), Some(&2u64));
        assert_eq!((count(1), count(2)), (1 + taken.len(), 2));
        let second = registry.get(RpcId(2)).unwrap();
        registry.remove(RpcId(2)).unwrap();
        drop(seen.renew(&registry));
        assert_eq!(Arc::strong_count(&second), 1, "it is kept");
    }

    #[test]
    fn a_shard_drops_nothing_of_the_users_while_it_looks_up() {
        let change: [fn(&Registry); 3] = [
            |registry| {
                let old = registry.get(RpcId(1)).unwrap();
                registry.replace(&old, Registration::with_id(RpcId(1), "a")).unwrap();
            },
            |registry| drop(registry.remove(RpcId(1))),
            Registry::clear,
        ];
        for (change, shards) in change.into_iter().flat_map(|one| [(one, 1), (one, 2)]) {
            let (registry, mut seen) = (Registry::default(), Seen::of_shard(0, shards));
            let dropped = Arc::default();
            let data = Arc::new(Tells(Arc::clone(&dropped)));
            registry.insert(Registration::with_id(RpcId(1), "a").data(data)).unwrap();
            assert!(seen.get(&registry, RpcId(1)).is_some());
            change(&registry);
            // Before who made the change has come to this shard.
            seen.get(&registry, RpcId(1));
            assert!(!dropped.load(Ordering::Relaxed), "dropped under the shard's lock");
            drop(seen.renew(&registry));
            assert!(dropped.load(Ordering::Relaxed), "kept for ever");
        }
    }

    #[test]
    fn each_of_several_shards_has_entries_of_its_own() {
        let (registry, data) = (Registry::default(), Arc::new(7u32));
        for id in [1, 2] {
            registry.insert(Registration::with_id(RpcId(id), "a").data(data.clone())).unwrap();
        }
        let (mut first, mut second) = (Seen::of_shard(0, 2), Seen::of_shard(1, 2));
        let own = |seen: &mut Seen, id| seen.get(&registry, RpcId(id)).unwrap().clone();
        let (here, there) = (own(&mut first, 1), own(&mut second, 1));
        assert!(!Arc::ptr_eq(&here, &there) && here.is(&there));
        assert!(here.data_as::<u32>().is_some_and(|data| *data == 7));
        own(&mut first, 2);
        assert!(Arc::ptr_eq(&here, &own(&mut first, 1)), "the same one each time");
        // Either stands for the registration.
        assert!(registry.remove_this(&there).is_some());
        assert!(first.get(&registry, RpcId(1)).is_none());
        let new = Registration::with_id(RpcId(2), "a");
        let new = new.data_of_shards(Arc::new("first"), vec![Arc::new("second")]);
        registry.replace(&own(&mut first, 2), new).unwrap();
        let third = &mut Seen::of_shard(2, 2);
        let found = [&mut first, &mut second, third].map(|seen| own(seen, 2));
        let found = found.each_ref().map(|entry| *entry.data_as::<&str>().unwrap());
        assert_eq!(found, ["first", "second", "first"]);
        assert_eq!(registry.get(RpcId(2)).unwrap().all_data::<&str>().count(), 2);
    }

    #[test]
    fn registrations_may_come_from_many_threads() {
        let registry = Registry::default();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let registry = &registry;
                scope.spawn(move || {
                    for n in 0..50 {
                        let id = RpcId(thread << 32 | n);
                        registry.insert(Registration::with_id(id, "x")).unwrap();
                    }
                });
            }
        });
        assert_eq!(lock(&registry.table).len(), 200);
    }
}
