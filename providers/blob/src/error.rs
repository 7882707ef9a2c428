//! Errors about a blob, at the target and at the origin.

use margo::config::Errors;
use margo::config::text::printable;
use margo::{BulkError, ForwardError, RegisterError};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The reason why the target refused or failed. Travels to the origin as a value.
///
/// A blob that was to be made or replaced is never left half-written: it has its old contents, or
/// its new ones, or does not exist. One that was being written in place may have some of the bytes.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target);
/// use margo_provider_blob::{BlobError, ClientError};
///
/// blobs.put_new("config", b"a = 1", limit)?;
/// match blobs.put_new("config", b"a = 2", limit) {
///     Err(ClientError::Blob(BlobError::AlreadyExists { name })) => assert_eq!(name, "config"),
///     other => panic!("{other:?}"),
/// }
/// let error = blobs.put("../config", b"a = 2", limit).unwrap_err();
/// assert!(matches!(error, ClientError::Blob(BlobError::BadName { .. })));
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BlobError {
    /// There is no blob of that name.
    #[error("there is no blob `{}`", printable(name))]
    NotFound {
        /// The blob.
        name: String,
    },
    /// There is a blob of that name, and overwriting was not asked for.
    #[error("blob `{}` already exists", printable(name))]
    AlreadyExists {
        /// The blob.
        name: String,
    },
    /// The text is not a blob's name; see [`BlobName`](crate::BlobName) for the rules.
    #[error("`{}` is not a blob name: {}", printable(name), printable(reason))]
    BadName {
        /// The text, shortened.
        name: String,
        /// Which rule it breaks.
        reason: String,
    },
    /// Something that is not a blob has that name, or stands in the way of it: a folder where a
    /// blob is meant, a blob where a folder is meant, or what others put into the directory.
    #[error("`{}` cannot be a blob here: {}", printable(name), printable(reason))]
    Conflict {
        /// The blob.
        name: String,
        /// Says what is in the way.
        reason: String,
    },
    /// The range is not inside the blob, or not inside the memory that the origin exposed.
    #[error("{len} bytes at {offset} are not inside the {size} bytes of {}", printable(what))]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// How many there are.
        size: u64,
        /// The thing that is meant: the blob, or the origin's memory.
        what: String,
    },
    /// The list of extents has too many, or one that ends beyond what a blob may have.
    #[error("these extents cannot be used for blob `{}`: {}", printable(name), printable(reason))]
    BadExtents {
        /// The blob.
        name: String,
        /// Says what is wrong with them.
        reason: String,
    },
    /// The store would hold more than its configuration allows (`max_bytes`, `max_blobs`). Remove
    /// something and try again.
    #[error("blob `{}` would make {needed} {what} of the {max} of this store", printable(name))]
    OverQuota {
        /// The blob.
        name: String,
        /// "bytes" or "blobs".
        what: String,
        /// How many there would be.
        needed: u64,
        /// How many there may be.
        max: u64,
    },
    /// The bytes of a block are not those that were written: the disk, or somebody, has changed
    /// them. Other blocks can be read. Writing the whole block, or the blob, makes it good again.
    #[error(
        "block {block} of blob `{}` is damaged: bytes {} to {}",
        printable(name),
        block.saturating_mul(*bytes),
        block.saturating_add(1).saturating_mul(*bytes).saturating_sub(1)
    )]
    Damaged {
        /// The blob.
        name: String,
        /// The block's number.
        block: u64,
        /// Bytes of a block.
        bytes: u64,
    },
    /// The blob would be larger than this store accepts (`max_blob_bytes` of its configuration).
    #[error("{len} bytes are more than the {max} bytes that this store accepts for one blob")]
    TooLarge {
        /// Number of bytes.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// The file system, or the store's share of it, is full. Remove something and try again.
    #[error("no space left for blob `{}`", printable(name))]
    NoSpace {
        /// The blob.
        name: String,
    },
    /// The file system failed otherwise.
    #[error("cannot {} blob `{}`: {}", printable(what), printable(name), printable(detail))]
    Io {
        /// The blob.
        name: String,
        /// The operation: "open", "write" …
        what: String,
        /// The text of the operating system.
        detail: String,
    },
    /// The data could not be moved between the two processes: the origin took its memory back, is
    /// gone, or the network failed.
    #[error("cannot move the data of blob `{}`: {}", printable(name), printable(detail))]
    Transfer {
        /// The blob.
        name: String,
        /// The text of the transport.
        detail: String,
    },
    /// Nobody waits for the answer any more, so the target stopped before it changed anything.
    #[error("given up for blob `{}`, as nobody waits for the answer any more", printable(name))]
    GivenUp {
        /// The blob; the prefix, of a list.
        name: String,
    },
}

impl BlobError {
    /// Translates the operating system's `errno` for blob `name` while doing `what`.
    pub(crate) fn from_errno(name: &str, what: &str, errno: Errno) -> Self {
        let name = name.to_owned();
        match errno {
            // A component that is no folder: then there is no such blob either.
            Errno::NOENT | Errno::NOTDIR => Self::NotFound { name },
            Errno::EXIST => Self::AlreadyExists { name },
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace { name },
            Errno::LOOP => conflict(name, "a symbolic link is in the way"),
            Errno::XDEV => conflict(name, "another file system is mounted in the way"),
            Errno::ISDIR => conflict(name, "it is a folder"),
            Errno::NAMETOOLONG => {
                Self::BadName { name, reason: "too long for the file system".to_owned() }
            }
            other => Self::Io { name, what: what.to_owned(), detail: other.to_string() },
        }
    }

    pub(crate) fn from_io(name: &str, what: &str, error: &std::io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(errno) => Self::from_errno(name, what, errno),
            None => {
                Self::Io { name: name.to_owned(), what: what.to_owned(), detail: error.to_string() }
            }
        }
    }

    pub(crate) fn transfer(name: &str, error: &BulkError) -> Self {
        Self::Transfer { name: name.to_owned(), detail: error.to_string() }
    }
}

pub(crate) fn conflict(name: String, reason: &str) -> BlobError {
    BlobError::Conflict { name, reason: reason.to_owned() }
}

pub(crate) fn given_up(name: &str) -> BlobError {
    BlobError::GivenUp { name: name.to_owned() }
}

/// The reason why a store cannot be opened.
///
/// ```
/// # use margo::{Instance, ProviderId};
/// use margo_provider_blob::{BlobConfig, BlobProvider, OpenError, StartError};
///
/// # let directory = tempfile::tempdir()?;
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = |id| service.provider(ProviderId::new(id), &service.layout().rpc_pool());
/// let config = BlobConfig::new(directory.path());
/// let running = BlobProvider::start(provider(1), &config)?;
/// let error = BlobProvider::start(provider(2), &config).unwrap_err();
/// assert!(matches!(error, StartError::Open(OpenError::InUse { .. })), "by provider 1");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another provider, of this or another process, uses the directory.
    #[error("the directory `{path}` is in use by another blob provider")]
    InUse {
        /// The directory.
        path: String,
    },
    /// The directory cannot be used.
    #[error("cannot {what} the directory `{path}`: {source}")]
    Directory {
        /// The operation that failed.
        what: &'static str,
        /// The directory.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// The reason why a blob provider does not start.
///
/// ```
/// # use margo::{Instance, ProviderId};
/// use margo_provider_blob::{BlobConfig, BlobProvider, StartError};
///
/// # let directory = tempfile::tempdir()?;
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// let mut config = BlobConfig::new(directory.path());
/// config.chunk_bytes = 1;
/// match BlobProvider::start(provider, &config) {
///     Err(StartError::Config(errors)) => println!("correct the settings: {errors}"),
///     other => panic!("{other:?}"),
/// }
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The provider's configuration is wrong.
    #[error(transparent)]
    Config(#[from] Errors),
    /// The provider's directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The provider's RPCs cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// The reason why a call of a [`BlobClient`](crate::BlobClient) has no result.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_blob::*;
/// # let (directory, limit) = (tempfile::tempdir()?, std::time::Duration::from_secs(10));
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let running = BlobProvider::start(provider, &BlobConfig::new(directory.path()))?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let blobs = BlobClient::new(&service, target);
/// use margo::ForwardError;
/// use margo_provider_blob::{BlobError, ClientError};
///
/// // The target answered: the blob, or the request, is at fault.
/// let error = blobs.get("nothing", limit).unwrap_err();
/// assert!(matches!(error, ClientError::Blob(BlobError::NotFound { .. })));
///
/// // There is no answer of a blob provider.
/// drop(running);
/// let error = blobs.get("nothing", limit).unwrap_err();
/// assert!(matches!(error, ClientError::Forward(ForwardError::NotRegistered { .. })));
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The target answered that it could not.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// There is no answer; see [`ForwardError`] for whether the request may have run.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The data could not be exposed to the target. Nothing was sent.
    #[error(transparent)]
    Bulk(#[from] BulkError),
    /// There is not enough memory here for the blob. Read it in parts with
    /// [`read`](crate::BlobClient::read).
    #[error("no memory for the {bytes} bytes of blob `{}`", printable(name))]
    NoMemory {
        /// The blob.
        name: String,
        /// The length of the blob.
        bytes: u64,
    },
    /// The target's answer contradicts the request: it is not a blob provider, or another version.
    #[error(
        "the answer of the target about blob `{}` makes no sense: {}",
        printable(name),
        printable(detail)
    )]
    BadAnswer {
        /// The blob.
        name: String,
        /// Says what does not fit.
        detail: String,
    },
}
