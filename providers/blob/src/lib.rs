//! A blob store: files under one directory, or memory, moved by bulk transfer.
//!
//! A small, complete service, and a model for others: typed RPCs that both sides share, errors that
//! travel as values, bulk transfer for the data, a component that the configuration can start, and
//! a client type.
//!
//! ```
//! use std::time::Duration;
//!
//! use margo::{Instance, ProviderHandle, ProviderId};
//! use margo_provider_blob::{BlobClient, BlobConfig, BlobProvider};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//! let service = Instance::builder("na+sm://").start()?;
//! let id = ProviderId::new(1);
//! let provider = service.provider(id, &service.layout().rpc_pool());
//! let running = BlobProvider::start(provider, &BlobConfig::new(directory))?;
//!
//! let client = Instance::builder("na+sm://").listen(false).start()?;
//! let target = client.lookup(service.self_addr().uri())?;
//! let limit = Duration::from_secs(10);
//! let blobs = BlobClient::connect(&client, ProviderHandle::new(target, id), limit)?;
//! blobs.put("greetings/hello", b"hello, world", limit)?;
//! assert_eq!(blobs.get("greetings/hello", limit)?, b"hello, world");
//!
//! client.finalize_and_wait()?;
//! running.close(limit)?; // the directory is free for another one now
//! service.finalize_and_wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What a blob is
//!
//! A name and some bytes, which are replaced as a whole, in one step ([`BlobClient::put`]), or
//! changed in place: written at offsets, appended to, cut off. A blob may be sparse. Each block of
//! 64 KiB has a checksum at the target, which each read verifies; damage is an error that names the
//! block ([`BlobError::Damaged`]), and [`BlobClient::scrub`] looks for it.
//!
//! | a reader, beside | sees |
//! |---|---|
//! | `put`, `create_write`, `remove` | one version of the blob, from the first byte to the last |
//! | `write`, `append` | of each piece of the target's `chunk_bytes` nothing or all |
//! | `truncate` to a shorter length | the bytes, or zeros in their place |
//!
//! # What survives
//!
//! | the end of | `sync: false` | `sync: true`, or `persist` |
//! |---|---|---|
//! | the process | all that was answered | the same |
//! | the machine | what the kernel has written by itself | all that was answered before |
//!
//! Whatever ends in the midst of a `put` leaves the old blob. In the midst of a `write` it leaves
//! any mixture of old and new in the blocks that were being written; they are read unchecked, and
//! never count as damaged. When the machine ends without `sync`, blocks that were written since the
//! last `persist` may count as damaged, and no others.
//!
//! # Reading order
//!
//! `rpc.rs` (what is said) · `provider/` (the target) · `client/` (the origin) · `store/` (blobs in
//! memory and as files: how a write is atomic, and why nothing outside the directory can be
//! reached).
#![forbid(unsafe_code)]

mod client;
mod config;
mod error;
mod name;
mod provider;
mod rpc;
mod store;

pub use client::{BlobClient, BlobRequest};
pub use config::{BlobConfig, CHUNK_BYTES, StoreKind};
pub use error::{BlobError, ClientError, OpenError, StartError};
pub use name::{BlobName, COMPONENT_BYTES_MAX, NAME_BYTES_MAX, RESERVED_PREFIX};
pub use provider::{BlobComponent, BlobProvider};
pub use rpc::{
    APPEND, AppendArgs, BlobEntry, BlobStat, CREATE, Checksum, CreateArgs, EXTENTS_MAX, Extent,
    IDENTITY, LIST, ListArgs, ListPage, PERSIST, PUT, PersistArgs, PutArgs, READ, REMOVE, ReadArgs,
    ReadDone, RemoveArgs, SCRUB, STAT, ScrubArgs, Scrubbed, StatArgs, TRUNCATE, TruncateArgs,
    WRITE, WriteArgs,
};

// The guide's chapter, so that its code is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/src/blobs.md")]
struct Guide;
