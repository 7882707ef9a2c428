//! The errors that a database gives, and that travel to callers as values.

use margo::config::Errors;
use margo::config::text::printable;
use margo::errors::IdentityError;
use margo::{BulkError, ForwardError, RegisterError};
use serde::{Deserialize, Serialize};

/// An error of a key-value store.
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
/// use margo_provider_kv::{ClientError, Condition, KvError};
///
/// let old = kv.put(b"apple", b"red", limit)?;
/// let new = kv.put(b"apple", b"green", limit)?;
/// let error = kv.put_if(b"apple", b"blue", Condition::Version(old), limit).unwrap_err();
/// let ClientError::Kv(KvError::Conflict { version }) = error else { panic!("{error}") };
/// assert_eq!(version, new);
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum KvError {
    /// The key is not there.
    #[error("there is no such key")]
    NotFound,
    /// The key is there, and a change asked for the opposite.
    #[error("the key exists")]
    Exists,
    /// The key has another version or value than a change asked for.
    #[error("the key has changed: its version is {version}")]
    Conflict {
        /// The version that it has.
        version: u64,
    },
    /// The caller's memory is too small for the value.
    #[error("the value has {need} bytes, and the caller's memory is too small for it")]
    TooSmall {
        /// Bytes of the value.
        need: u64,
    },
    /// A key or a value is longer than the database takes.
    #[error("{what} of {len} bytes is longer than the {most} that this database takes")]
    TooLong {
        /// `a key` or `a value`.
        what: String,
        /// The bytes that it has.
        len: u64,
        /// The most that is taken.
        most: u64,
    },
    /// The disk or the memory that the database may have is full; it can be read.
    #[error("the database is full: {0}")]
    Full(String),
    /// Damage of what is stored.
    #[error("damaged: {0}")]
    Corrupted(String),
    /// The key is at another server, or on its way there; nothing was changed. Clients follow by
    /// themselves.
    #[error("the key is at provider {provider} of {} (epoch {epoch})", printable(.address))]
    Moved {
        /// The epoch of the members, or of those that follow.
        epoch: u64,
        /// The address of the server that has the key, or gets it.
        address: String,
        /// The id of the provider there.
        provider: u16,
    },
    /// Too many changes, or callers, wait; the same call may be made again.
    #[error("too many wait: come again later")]
    Busy,
    /// The deadline passed before the change was made; it was not made.
    #[error("the deadline has passed, and nothing was changed")]
    Deadline,
    /// The store failed.
    #[error("the store failed: {0}")]
    Failed(String),
    /// The request makes no sense; nothing was changed.
    #[error("the request makes no sense: {0}")]
    Invalid(String),
    /// The view that pages of a list come from is not kept any more: it was not used for too long,
    /// had to make room for others, or was of another caller. Begin the list again.
    #[error("the view of the database that the list was read from is not kept any more")]
    Gone,
    /// No answer about this key, though there are answers about others of the same call, from other
    /// servers: of a change, it may have been made. Clients say so; a server, while members change,
    /// of another one.
    #[error("no answer: {}", printable(.0))]
    Unanswered(String),
    /// The provider closes, so what is waited for is not told any more.
    #[error("the provider closes")]
    Closing,
}

/// The reason why a key-value provider does not start.
///
/// ```
/// # use margo::{Instance, ProviderId};
/// use margo_provider_kv::{KvConfig, KvProvider, StartError, StoreConfig, StoreKind};
///
/// # let service = Instance::builder("na+sm://").start()?;
/// let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// let config = KvConfig::new(StoreConfig::new(StoreKind::Redb, "/"));
/// let started = KvProvider::start(provider, &config);
/// assert!(matches!(started, Err(StartError::Open(_))), "the root is no file");
/// # drop(started);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The provider's configuration is wrong.
    #[error(transparent)]
    Config(#[from] Errors),
    /// The database cannot be opened.
    #[error("cannot open the database: {0}")]
    Open(#[from] KvError),
    /// The provider's RPCs cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// The reason why a call of a [`KvClient`](crate::KvClient) has no result.
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
/// use margo::ForwardError;
///
/// // The target answered.
/// let error = kv.get(b"nothing", limit).unwrap_err();
/// assert!(matches!(error, ClientError::Kv(KvError::NotFound)));
///
/// // There is no answer of a key-value provider.
/// drop(running);
/// let error = kv.get(b"nothing", limit).unwrap_err();
/// assert!(matches!(error, ClientError::Forward(ForwardError::NotRegistered { .. })));
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The target answered that it could not.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// There is no answer; see [`ForwardError`] for whether the request may have run.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A value could not be exposed to the target. Nothing was sent.
    #[error(transparent)]
    Bulk(#[from] BulkError),
    /// There is not enough memory here for a value.
    #[error("no memory for a value of {bytes} bytes")]
    NoMemory {
        /// Bytes of the value.
        bytes: u64,
    },
    /// The target is no key-value provider.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The keys of a batch that is atomic, or has conditions of the whole, are at several servers,
    /// or shards of one. Nothing was sent.
    #[error("the keys of a batch that is made as a whole are at several servers or shards")]
    SeveralOwners,
    /// Two servers of a cluster have one database, or a snapshot of the other one's.
    #[error("{first} and {second} have the same database")]
    SameDatabase {
        /// A server.
        first: String,
        /// Another one.
        second: String,
    },
    /// A server knows of no others, while another one that was named does: its keys would not be
    /// found. See [`KvClient::change_members`](crate::KvClient::change_members).
    #[error("{server} stands alone, and is no member of the servers that were named with it")]
    NoMember {
        /// The server.
        server: String,
    },
    /// The target's answer contradicts the request: it is not a key-value provider, or another
    /// version.
    #[error("the answer of the target makes no sense: {}", printable(.0))]
    BadAnswer(String),
}
