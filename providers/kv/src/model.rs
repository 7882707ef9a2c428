//! The data that callers and stores speak of: conditions, changes, their outcomes, ranges of keys.
//!
//! Each type has a parameter for its bytes, so that an origin sends what it borrows, and a target
//! decodes what it may keep. Imports nothing of the crate but the errors.

use std::convert::Infallible;
use std::ops::Bound;

use margo::encoding::Bytes;
use serde::{Deserialize, Serialize};

use crate::KvError;

/// Most shards of a provider: so many are told apart on the wire.
pub(crate) const SHARDS_MAX: u8 = 128;

/// The state of a key that a change asks for.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let running = KvProvider::start(provider, &config)?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let kv = KvClient::new(&service, target);
/// use margo_provider_kv::Condition;
///
/// kv.put_if(b"lock", b"mine", Condition::Absent, limit)?;
/// assert!(kv.put_if(b"lock", b"yours", Condition::Absent, limit).is_err(), "it is taken");
/// assert!(kv.erase_if(b"lock", Condition::Value(b"mine"), limit)?);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Condition<B = Bytes> {
    /// Any.
    #[default]
    Always,
    /// The key is not there.
    Absent,
    /// The key is there.
    Present,
    /// The key is there with this version.
    Version(u64),
    /// The key is there with this value.
    Value(B),
}

/// A change of one key, or of a range of keys.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let running = KvProvider::start(provider, &config)?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let kv = KvClient::new(&service, target);
/// use margo_provider_kv::{Change, Condition};
///
/// let line = |value| Change::Append { key: &b"log"[..], value, when: Condition::Always };
/// kv.batch().change(line(b"begun, ")).change(line(b"ended")).run(limit)?;
/// assert_eq!(kv.get(b"log", limit)?.value.0, b"begun, ended");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<B = Bytes> {
    /// Sets the value of a key.
    Put {
        /// The key.
        key: B,
        /// The new value.
        value: B,
        /// Otherwise [`KvError::Conflict`], [`KvError::Exists`] or [`KvError::NotFound`].
        when: Condition<B>,
    },
    /// Adds bytes at the end of a value, which is empty where the key is not there.
    Append {
        /// The key.
        key: B,
        /// The bytes.
        value: B,
        /// As in [`Put`](Self::Put).
        when: Condition<B>,
    },
    /// Erases a key.
    Erase {
        /// The key.
        key: B,
        /// As in [`Put`](Self::Put).
        when: Condition<B>,
        /// The outcome has the value that is erased; a key that is not there is an error.
        take: bool,
    },
    /// Erases every key of a range.
    EraseRange(KeyRange<B>),
}

/// Changes that are made one after the other.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let running = KvProvider::start(provider, &config)?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let kv = KvClient::new(&service, target.clone());
/// use margo::encoding::Bytes;
/// use margo_provider_kv::{Batch, CHANGE, Change, ChangeArgs, Changed, Condition, Part};
///
/// kv.put(b"from", b"7", limit)?;
/// // As `KvClient::batch` sends it.
/// let [from, to] = [&b"from"[..], b"to"].map(|key| Part::Here(Bytes(key)));
/// let batch = Batch {
///     is_atomic: true,
///     only_if: vec![(to, Condition::Absent)],
///     changes: vec![Change::Erase { key: from, when: Condition::Present, take: false }],
/// };
/// let args = ChangeArgs { batch, durability: None, bulk: None, skip: 0, epoch: 0 };
/// let outcomes = service.forward(CHANGE.sending(), &target, &args)??;
/// assert_eq!(outcomes, [Ok(Changed::Erased { count: 1 })]);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Batch<B = Bytes> {
    /// All of them or none: the first one that fails undoes those before it.
    pub is_atomic: bool,
    /// Conditions that hold before the first change, or none is made.
    pub only_if: Vec<(B, Condition<B>)>,
    /// The changes.
    pub changes: Vec<Change<B>>,
}

/// The outcome of a change.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let running = KvProvider::start(provider, &config)?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let kv = KvClient::new(&service, target);
/// use margo_provider_kv::Changed;
///
/// let outcomes = kv.batch().put(b"apple", b"red").take(b"apple").run(limit)?;
/// let [Ok(Changed::Put { version }), Ok(Changed::Taken { version: last, value })] = &outcomes[..]
/// else {
///     panic!("{outcomes:?}");
/// };
/// assert_eq!((version, &value.0[..]), (last, &b"red"[..]));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changed {
    /// The key has this version now.
    Put {
        /// Grows with every change of the database.
        version: u64,
    },
    /// So many keys were erased.
    Erased {
        /// 0 or 1 for a single key.
        count: u64,
    },
    /// The key was erased, and had this value.
    Taken {
        /// The last version.
        version: u64,
        /// The last value.
        value: Bytes,
    },
}

impl<B> Change<B> {
    /// The key that it changes; none: the keys of a range.
    pub(crate) fn key(&self) -> Option<&B> {
        match self {
            Self::Put { key, .. } | Self::Append { key, .. } | Self::Erase { key, .. } => Some(key),
            Self::EraseRange(_) => None,
        }
    }

    fn try_map<C, E>(self, to: &mut impl FnMut(B) -> Result<C, E>) -> Result<Change<C>, E> {
        Ok(match self {
            Self::Put { key, value, when } => {
                Change::Put { key: to(key)?, value: to(value)?, when: when.try_map(to)? }
            }
            Self::Append { key, value, when } => {
                Change::Append { key: to(key)?, value: to(value)?, when: when.try_map(to)? }
            }
            Self::Erase { key, when, take } => {
                Change::Erase { key: to(key)?, when: when.try_map(to)?, take }
            }
            Self::EraseRange(KeyRange { from, to: end }) => {
                let (from, end) = (bound(from, to)?, bound(end, to)?);
                Change::EraseRange(KeyRange { from, to: end })
            }
        })
    }
}

impl<B> Batch<B> {
    /// The one that has all keys of the batch, among several of which `owner` says who has a key;
    /// the first, if it has no keys. `None`: there are several, or it has a range, which all have.
    pub(crate) fn only_owner(&self, owner: impl Fn(&B) -> usize) -> Option<usize> {
        let conditions = self.only_if.iter().map(|(key, _)| Some(key));
        let keys = conditions.chain(self.changes.iter().map(Change::key));
        let mut owners = keys.map(|key| key.map(&owner));
        let first = owners.next().unwrap_or(Some(0))?;
        owners.all(|other| other == Some(first)).then_some(first)
    }

    /// The batch with other bytes. `to` gets all bytes in the order in which they are encoded.
    pub(crate) fn try_map<C, E>(
        self,
        mut to: impl FnMut(B) -> Result<C, E>,
    ) -> Result<Batch<C>, E> {
        let Self { is_atomic, only_if, changes } = self;
        let only_if = only_if.into_iter().map(|(key, when)| Ok((to(key)?, when.try_map(&mut to)?)));
        let only_if = only_if.collect::<Result<_, E>>()?;
        let changes = changes.into_iter().map(|change| change.try_map(&mut to));
        Ok(Batch { is_atomic, only_if, changes: changes.collect::<Result<_, E>>()? })
    }
}

impl<B> Condition<B> {
    /// The condition with other bytes.
    pub(crate) fn map<C>(self, mut to: impl FnMut(B) -> C) -> Condition<C> {
        let Ok(condition) = self.try_map(&mut |bytes| Ok::<_, Infallible>(to(bytes)));
        condition
    }

    fn try_map<C, E>(self, to: &mut impl FnMut(B) -> Result<C, E>) -> Result<Condition<C>, E> {
        Ok(match self {
            Self::Always => Condition::Always,
            Self::Absent => Condition::Absent,
            Self::Present => Condition::Present,
            Self::Version(version) => Condition::Version(version),
            Self::Value(value) => Condition::Value(to(value)?),
        })
    }
}

fn bound<B, C, E>(bound: Bound<B>, to: &mut impl FnMut(B) -> Result<C, E>) -> Result<Bound<C>, E> {
    Ok(match bound {
        Bound::Included(key) => Bound::Included(to(key)?),
        Bound::Excluded(key) => Bound::Excluded(to(key)?),
        Bound::Unbounded => Bound::Unbounded,
    })
}

impl Changed {
    /// The outcome of a change of which one more place has told its part.
    pub(crate) fn sum(
        before: Option<Result<Self, KvError>>,
        more: Result<Self, KvError>,
    ) -> Result<Self, KvError> {
        match (before.transpose()?, more?) {
            (Some(Self::Erased { count }), Self::Erased { count: more }) => {
                Ok(Self::Erased { count: count.saturating_add(more) })
            }
            (_, more) => Ok(more),
        }
    }
}

/// How safe a change is before it is acknowledged.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let running = KvProvider::start(provider, &config)?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let kv = KvClient::new(&service, target);
/// use margo_provider_kv::Durability;
///
/// let careful = kv.with_durability(Durability::Synced);
/// careful.put(b"account/7", b"100", limit)?; // on the disk, if the store has one
/// kv.put(b"account/7/seen", b"today", limit)?; // as the provider's `sync` says
/// assert!(Durability::Synced > Durability::Written);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// It survives the end of the process, unless the machine ends with it.
    Written,
    /// It is on the disk.
    Synced,
}

/// A range of keys, in the order of their bytes.
///
/// ```
/// use std::ops::Bound;
///
/// use margo_provider_kv::KeyRange;
///
/// let range = KeyRange::of("a".."b");
/// let KeyRange { from: Bound::Included(from), to: Bound::Excluded(to) } = &range else {
///     panic!("{range:?}");
/// };
/// assert_eq!((&from[..], &to[..]), (&b"a"[..], &b"b"[..]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRange<B = Bytes> {
    /// The first one.
    pub from: Bound<B>,
    /// The last one.
    pub to: Bound<B>,
}

/// The outcome of each change of a batch, in its order.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let running = KvProvider::start(provider, &config)?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let kv = KvClient::new(&service, target);
/// use margo_provider_kv::{Condition, KvError, Outcomes};
///
/// let changes = kv.batch().put(b"apple", b"red").put_if(b"apple", b"green", Condition::Absent);
/// let outcomes: Outcomes = changes.run(limit)?;
/// assert!(outcomes[0].is_ok());
/// assert_eq!(outcomes[1], Err(KvError::Exists));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Outcomes = Vec<Result<Changed, KvError>>;
