//! The RPCs of a key-value provider and what they carry. Both sides use these definitions.
//!
//! Bytes travel in the request where they are short, and come from the origin's memory by bulk
//! transfer where they would not fit: [`Part`] says which. The type parameters are for origins,
//! which send what they borrow.

use std::ops::Bound;

use margo::encoding::Bytes;
use margo::service::{MethodDescription, ServiceDescription};
use margo::{Bulk, DecodeInPlace, Rpc};
use serde::{Deserialize, Serialize};

use crate::KvError;
use crate::members::Told;
#[cfg(doc)]
use crate::model::Change;
use crate::model::{Batch, Condition, Durability, KeyRange, Outcomes};

/// The identity that a provider of this crate tells clients that ask.
pub const IDENTITY: &str = "kv";

/// Tells the value of a key.
pub const GET: Rpc<GetArgs, Result<Found, KvError>> = Rpc::new("kv_get");

/// Tells the values of several keys, each with its own result, as they were at one moment.
pub const GET_MANY: Rpc<GetManyArgs, Result<Vec<Result<Found, KvError>>, KvError>> =
    Rpc::new("kv_get_many");

/// Copies the value of a key into the origin's memory.
pub const READ: Rpc<ReadArgs, Result<Meta, KvError>> = Rpc::new("kv_read");

/// Tells how long the values of keys are; nothing for a key that is not there.
pub const MEASURE: Rpc<Vec<Bytes>, Result<Vec<Option<Meta>>, KvError>> = Rpc::new("kv_measure");

/// Sets the value of a key, and tells its version.
pub const PUT: Rpc<PutArgs, Result<u64, KvError>> = Rpc::new("kv_put");

/// Makes changes, each with its own outcome.
pub const CHANGE: Rpc<ChangeArgs, Result<Outcomes, KvError>> = Rpc::new("kv_change");

/// Counts keys.
pub const COUNT: Rpc<CountArgs, Result<u64, KvError>> = Rpc::new("kv_count");

/// Lists keys in their order, and their values if wanted, a page at a time.
pub const LIST: Rpc<ListArgs, Result<Page, KvError>> = Rpc::new("kv_list");

/// Waits until a key is there.
pub const WAIT: Rpc<WaitArgs, Result<Found, KvError>> = Rpc::new("kv_wait");

/// Returns when all that was acknowledged is on the disk.
pub const FLUSH: Rpc<(), Result<(), KvError>> = Rpc::new("kv_flush");

/// Tells what the database has, and what the provider holds for its callers.
pub const STAT: Rpc<(), Result<KvStat, KvError>> = Rpc::new("kv_stat");

/// Tells which servers share out the keys.
pub(crate) const MEMBERS: Rpc<(), Result<Told, KvError>> = Rpc::new("kv_members");

/// The RPCs for callers without this crate.
pub(crate) fn description() -> ServiceDescription {
    let all = [
        MethodDescription::of(GET, &[]).about("The value of a key."),
        MethodDescription::of(GET_MANY, &[]).about("The values of keys, each with its result."),
        MethodDescription::of(READ, &[]).about("Copies a value into exposed memory."),
        MethodDescription::of(MEASURE, &["keys"]).about("How long values are."),
        MethodDescription::of(PUT, &[]).about("Sets a value; its version."),
        MethodDescription::of(CHANGE, &[]).about("Puts, appends and erases, all of them or each."),
        MethodDescription::of(COUNT, &[]).about("The number of keys."),
        MethodDescription::of(LIST, &[]).about("Keys in their order, by pages of one moment."),
        MethodDescription::of(WAIT, &[]).about("Waits until a key is there."),
        MethodDescription::of(FLUSH, &[]).about("Waits until all changes are on the disk."),
        MethodDescription::of(STAT, &[]).about("What the provider holds for its callers."),
        MethodDescription::of(MEMBERS, &[]).about("The servers that share out the keys."),
    ];
    let service = ServiceDescription::new(IDENTITY).about("A key-value store.");
    all.into_iter().fold(service, ServiceDescription::method)
}

/// A value and its version.
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
/// use margo_provider_kv::Found;
///
/// let put = kv.put(b"apple", b"red", limit)?;
/// let Found { version, value } = kv.get(b"apple", limit)?;
/// assert_eq!((version, &value[..]), (put, &b"red"[..]));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found<B = Bytes> {
    /// The version, which grows with every change of the database.
    pub version: u64,
    /// The value.
    pub value: B,
}

/// The length of a value and its version.
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
/// use margo_provider_kv::Meta;
///
/// let version = kv.put(b"apple", b"red", limit)?;
/// assert_eq!(kv.measure(b"apple", limit)?, Some(Meta { version, len: 3 }));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The version, which grows with every change of the database.
    pub version: u64,
    /// Bytes of the value.
    pub len: u64,
}

/// Arguments of [`GET`].
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
/// use margo_provider_kv::{GET, GetArgs, KvError};
///
/// kv.put(b"apple", b"red", limit)?;
/// let get = |most| {
///     let args = GetArgs { key: Bytes(&b"apple"[..]), most };
///     service.forward(GET.sending(), &target, &args)
/// };
/// assert_eq!(get(100)??.value.0, b"red");
/// assert_eq!(get(2)?, Err(KvError::TooSmall { need: 3 }));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GetArgs<B = Bytes> {
    /// The key.
    pub key: B,
    /// Longest value that is wanted in the answer; [`KvError::TooSmall`] tells how long it is
    /// otherwise, for a [`READ`].
    pub most: u64,
}

impl DecodeInPlace for GetArgs {
    type InPlace<'a> = GetArgs<Bytes<&'a [u8]>>;
}

/// Arguments of [`GET_MANY`].
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
/// use margo_provider_kv::{GET_MANY, GetManyArgs, KvError};
///
/// kv.put(b"apple", b"red", limit)?;
/// let args = GetManyArgs { keys: vec![Bytes(&b"apple"[..]), Bytes(b"pear")], most: 100 };
/// let found = service.forward(GET_MANY.sending(), &target, &args)??;
/// assert_eq!(found[0].as_ref().map(|found| &found.value[..]), Ok(&b"red"[..]));
/// assert_eq!(found[1], Err(KvError::NotFound));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GetManyArgs<B = Bytes> {
    /// The keys.
    pub keys: Vec<B>,
    /// Longest value that is wanted in the answer, as in [`GetArgs`]. Values that the answer has no
    /// room for (`page_bytes` of the provider) are [`KvError::TooSmall`], too.
    pub most: u64,
}

impl DecodeInPlace for GetManyArgs {
    type InPlace<'a> = GetManyArgs<Bytes<&'a [u8]>>;
}

/// Arguments of [`READ`].
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
/// use margo_provider_kv::{READ, ReadArgs};
///
/// kv.put(b"apple", b"red", limit)?;
/// let mut value = [0; 3];
/// let read = service.memory().expose_mut(&mut value, |bulk| {
///     let args = ReadArgs { key: Bytes(&b"apple"[..]), view: None, bulk: bulk.clone() };
///     service.forward(READ.sending(), &target, &args)
/// })???;
/// assert_eq!((read.len, &value), (3, b"red"));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReadArgs<B = Bytes> {
    /// The key.
    pub key: B,
    /// The view to read from, of a [`PageToken`]. Default: the database as it is.
    pub view: Option<u64>,
    /// The origin's memory, writable; filled from its beginning. [`KvError::TooSmall`] if the value
    /// is longer.
    pub bulk: Bulk,
}

/// Arguments of [`PUT`].
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
/// use margo_provider_kv::{Condition, PUT, PutArgs};
///
/// let (key, value) = (Bytes(&b"apple"[..]), Bytes(&b"red"[..]));
/// let args = PutArgs { key, value, when: Condition::Absent, durability: None };
/// let version = service.forward(PUT.sending(), &target, &args)??;
/// assert_eq!(kv.get(b"apple", limit)?.version, version);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PutArgs<B = Bytes> {
    /// The key.
    pub key: B,
    /// The new value. For one that is longer than the eager size of the transport, [`CHANGE`] is
    /// quicker.
    pub value: B,
    /// As in [`Change::Put`].
    pub when: Condition<B>,
    /// As in [`ChangeArgs`].
    pub durability: Option<Durability>,
}

impl DecodeInPlace for PutArgs {
    type InPlace<'a> = PutArgs<Bytes<&'a [u8]>>;
}

/// Bytes of a [`ChangeArgs`].
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
/// use margo_provider_kv::{Batch, CHANGE, Change, ChangeArgs, Condition, Part};
///
/// let (key, long) = (Part::Here(Bytes(&b"image"[..])), vec![7; 1 << 20]);
/// let value = Part::There(long.len() as u64); // pulled from `long`
/// let changes = vec![Change::Put { key, value, when: Condition::Always }];
/// let batch = Batch { is_atomic: false, only_if: Vec::new(), changes };
/// service.memory().expose_ref(&long, |bulk| {
///     let bulk = Some(bulk.clone());
///     let args = ChangeArgs { batch, durability: None, bulk, skip: 0, epoch: 0 };
///     service.forward(CHANGE.sending(), &target, &args)
/// })???;
/// assert_eq!(kv.get(b"image", limit)?.value.0, long);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part<B = Bytes> {
    /// In the request.
    Here(B),
    /// So many bytes of the origin's memory, behind those of the parts before it in the request.
    There(u64),
}

/// Arguments of [`CHANGE`].
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
/// use margo_provider_kv::{Batch, CHANGE, Change, ChangeArgs, Condition, Durability, Part};
///
/// let [key, value] = ["apple", "red"].map(|text| Part::Here(Bytes(text.as_bytes().to_vec())));
/// let changes = vec![Change::Put { key, value, when: Condition::Always }];
/// let batch = Batch { is_atomic: true, only_if: Vec::new(), changes };
/// let durability = Some(Durability::Synced);
/// let args = ChangeArgs { batch, durability, bulk: None, skip: 0, epoch: 0 };
/// assert!(service.forward(CHANGE, &target, &args)??[0].is_ok());
/// assert_eq!(kv.get(b"apple", limit)?.value.0, b"red");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChangeArgs<B = Bytes> {
    /// The changes. Their parts are in the order in which they are encoded.
    pub batch: Batch<Part<B>>,
    /// Asks for more than what the provider's setting says, or for nothing in particular.
    pub durability: Option<Durability>,
    /// The origin's memory, readable, if a part is there.
    pub bulk: Option<Bulk>,
    /// Bytes of it before the first part.
    pub skip: u64,
    /// As in [`ListArgs`], for changes of ranges.
    pub epoch: u64,
}

/// Least and most bytes of a key, or of a value.
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
/// use margo_provider_kv::{Lengths, Selection};
///
/// kv.put(b"apple", b"red", limit)?;
/// kv.put(b"pear", b"", limit)?;
/// let value_bytes = Lengths { least: 1, ..Lengths::default() };
/// let selection = Selection { value_bytes, ..Selection::default() };
/// assert_eq!(kv.count(&selection, limit)?, 1);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lengths {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
}

impl Default for Lengths {
    fn default() -> Self {
        Self { least: 0, most: u64::MAX }
    }
}

impl Lengths {
    pub(crate) fn have(self, len: usize) -> bool {
        (self.least..=self.most).contains(&(len as u64))
    }
}

/// The keys that a count or a list is about. Default: all of them.
///
/// ```
/// use margo_provider_kv::Selection;
///
/// let finished = Selection::prefix("job/").suffix("/done").backwards();
/// assert_eq!(finished.prefix.0, b"job/");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Keys of this range.
    pub range: KeyRange,
    /// Keys that begin so.
    pub prefix: Bytes,
    /// Keys that end so.
    pub suffix: Bytes,
    /// Keys that are so long.
    pub key_bytes: Lengths,
    /// Keys whose values are so long.
    pub value_bytes: Lengths,
    /// The last key comes first.
    pub is_backwards: bool,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            range: KeyRange { from: Bound::Unbounded, to: Bound::Unbounded },
            prefix: Bytes::default(),
            suffix: Bytes::default(),
            key_bytes: Lengths::default(),
            value_bytes: Lengths::default(),
            is_backwards: false,
        }
    }
}

impl Selection {
    /// The keys that begin so.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        Self { prefix: Bytes(prefix.into()), ..Self::default() }
    }

    /// The keys of a range, such as `b"a"..b"b"`.
    pub fn range<K: AsRef<[u8]>>(range: impl std::ops::RangeBounds<K>) -> Self {
        Self { range: KeyRange::of(range), ..Self::default() }
    }

    /// Leaves out keys that do not end so.
    #[must_use]
    pub fn suffix(self, suffix: impl Into<Vec<u8>>) -> Self {
        Self { suffix: Bytes(suffix.into()), ..self }
    }

    /// Leaves out keys that have not so many bytes.
    #[must_use]
    pub fn key_bytes(self, lengths: std::ops::RangeInclusive<u64>) -> Self {
        let key_bytes = Lengths { least: *lengths.start(), most: *lengths.end() };
        Self { key_bytes, ..self }
    }

    /// Leaves out keys whose values have not so many bytes.
    #[must_use]
    pub fn value_bytes(self, lengths: std::ops::RangeInclusive<u64>) -> Self {
        let value_bytes = Lengths { least: *lengths.start(), most: *lengths.end() };
        Self { value_bytes, ..self }
    }

    /// The last key first.
    #[must_use]
    pub fn backwards(self) -> Self {
        Self { is_backwards: true, ..self }
    }
}

impl KeyRange {
    /// A range of keys, such as `b"a"..b"b"`.
    pub fn of<K: AsRef<[u8]>>(range: impl std::ops::RangeBounds<K>) -> Self {
        let owned = |bound: Bound<&K>| bound.map(|key| Bytes(key.as_ref().to_vec()));
        Self { from: owned(range.start_bound()), to: owned(range.end_bound()) }
    }
}

/// Arguments of [`LIST`].
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
/// use margo_provider_kv::{LIST, ListArgs, Selection};
///
/// kv.put(b"fruit/apple", b"red", limit)?;
/// let selection = Selection::prefix("fruit/");
/// let (token, shard) = (None, None);
/// let args = ListArgs { selection, values: true, max: 100, token, shard, epoch: 0 };
/// let page = service.forward(LIST, &target, &args)??;
/// assert_eq!(page.entries[0].value.as_deref(), Some(&b"red"[..]));
/// assert!(page.next.is_none(), "that was all");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListArgs {
    /// The keys.
    pub selection: Selection,
    /// The values are wanted, too.
    pub values: bool,
    /// Most keys of the page. The target may send fewer.
    pub max: u32,
    /// The place to go on, of the page before. None: to begin.
    pub token: Option<PageToken>,
    /// The shard whose keys are listed. None: the only one.
    pub shard: Option<u8>,
    /// The epoch of the members that the caller knows of
    /// ([`Membership::epoch`](crate::Membership::epoch)), who asks them for their keys as well; 0:
    /// it knows of none. [`KvError::Moved`] if there are later ones.
    pub epoch: u64,
}

/// Arguments of [`COUNT`].
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
/// use margo_provider_kv::{COUNT, CountArgs, Selection};
///
/// kv.put(b"apple", b"red", limit)?;
/// let args = CountArgs { selection: Selection::default(), epoch: 0 };
/// assert_eq!(service.forward(COUNT, &target, &args)?, Ok(1));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CountArgs {
    /// The keys.
    pub selection: Selection,
    /// As in [`ListArgs`].
    pub epoch: u64,
}

/// The place where a list goes on.
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
/// use margo_provider_kv::{LIST, ListArgs, PageToken, Selection};
///
/// kv.batch().put(b"apple", b"red").put(b"pear", b"green").run(limit)?;
/// let selection = Selection::default();
/// let (token, shard) = (None, None);
/// let mut args = ListArgs { selection, values: false, max: 1, token, shard, epoch: 0 };
/// let token: PageToken = service.forward(LIST, &target, &args)??.next.expect("there is more");
/// assert_eq!(token.after.0, b"apple");
///
/// kv.erase(b"pear", limit)?;
/// args.token = Some(token); // goes on in the database as it was
/// assert_eq!(service.forward(LIST, &target, &args)??.entries[0].key.0, b"pear");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageToken {
    /// The view of the database that the pages of a list come from. It is kept for the caller who
    /// began the list, for as long as that asks often enough.
    pub view: u64,
    /// The last key that the list had.
    pub after: Bytes,
}

/// Result of [`LIST`].
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
/// use margo_provider_kv::{LIST, ListArgs, Page, Selection};
///
/// kv.batch().put(b"apple", b"red").put(b"pear", b"green").run(limit)?;
/// let selection = Selection::default();
/// let (token, shard) = (None, None);
/// let mut args = ListArgs { selection, values: false, max: 1, token, shard, epoch: 0 };
/// let mut keys = Vec::new();
/// loop {
///     let Page { entries, next } = service.forward(LIST, &target, &args)??;
///     keys.extend(entries.into_iter().map(|entry| entry.key.0));
///     args.token = next;
///     if args.token.is_none() {
///         break;
///     }
/// }
/// assert_eq!(keys, [&b"apple"[..], b"pear"]);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Keys, in their order.
    pub entries: Vec<Entry>,
    /// The place to go on; none: that was all.
    pub next: Option<PageToken>,
}

/// A key of a list.
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
/// use margo_provider_kv::{Entry, Selection};
///
/// kv.put(b"apple", b"red", limit)?;
/// let Entry { key, len, value, .. } = kv.keys(Selection::default(), limit).next().expect("one")?;
/// assert_eq!((&key[..], len, value), (&b"apple"[..], 3, None));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// The version, which grows with every change of the database.
    pub version: u64,
    /// Bytes of the value.
    pub len: u64,
    /// The value, if it was wanted. One that is longer than a page is left out, and ends the page:
    /// a [`READ`] of the same view has it.
    pub value: Option<Bytes>,
}

/// Arguments of [`WAIT`].
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
/// use margo_provider_kv::{WAIT, WaitArgs};
///
/// let args = WaitArgs { key: Bytes(&b"done"[..]), above: 0, most: 100 };
/// let waiting = service.rpc(WAIT.sending(), &target, &args).start()?;
/// kv.put(b"done", b"at noon", limit)?;
/// assert_eq!(waiting.wait()??.value.0, b"at noon");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WaitArgs<B = Bytes> {
    /// The key.
    pub key: B,
    /// It is to have a higher version than this.
    pub above: u64,
    /// Longest value that is wanted in the answer, as in [`GetArgs`].
    pub most: u64,
}

/// Result of [`STAT`].
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
/// use margo_provider_kv::KvStat;
///
/// kv.put(b"apple", b"red", limit)?;
/// let KvStat { keys, changes, commits, .. } = kv.stat(limit)?[0];
/// assert_eq!((keys, changes, commits), (1, 1, 1));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvStat {
    /// The id of the database: a random number, which it was given when it was made. On disk it
    /// keeps it, and snapshots have it. Decides which keys it has among several servers.
    pub id: u64,
    /// How many shards the database has. The other figures are sums.
    pub shards: u8,
    /// How many shards its instance has (`margo.shards`): those of the database that have the same
    /// number, modulo this one, are called through that.
    pub instance_shards: u8,
    /// Keys; of fjall an estimate.
    pub keys: u64,
    /// Bytes of keys and values; of fjall those of its files.
    pub bytes: u64,
    /// Requests that wait for the thread that writes.
    pub queued_requests: u64,
    /// Bytes of their keys and values.
    pub queued_bytes: u64,
    /// Commits since the database was opened. Divides [`changes`](Self::changes) to how many go
    /// together.
    pub commits: u64,
    /// Keys that were set or erased since then.
    pub changes: u64,
    /// Milliseconds since the disk had all changes, if it had any yet.
    pub ms_since_sync: Option<u64>,
    /// Views that are kept for lists.
    pub views: u64,
    /// Calls that wait for keys.
    pub waiters: u64,
    /// Bytes of values that are moved by bulk transfer at the moment.
    pub bulk_bytes: u64,
}
