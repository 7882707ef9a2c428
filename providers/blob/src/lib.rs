//! A blob store: files under one directory, moved by bulk transfer.
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
//! # Reading order
//!
//! `rpc.rs` (what is said) · `provider/` (the target) · `client.rs` (the origin) · `store/` (blobs
//! as files: how a write is atomic, and why nothing outside the directory can be reached).
#![forbid(unsafe_code)]

mod client;
mod config;
mod error;
mod name;
mod provider;
mod rpc;
mod store;

pub use client::BlobClient;
pub use config::{BlobConfig, CHUNK_BYTES};
pub use error::{BlobError, ClientError, OpenError, StartError};
pub use name::{BlobName, COMPONENT_BYTES_MAX, NAME_BYTES_MAX, RESERVED_PREFIX};
pub use provider::{BlobComponent, BlobProvider};
pub use rpc::{
    BlobEntry, BlobStat, CREATE, Checksum, CreateArgs, IDENTITY, LIST, ListArgs, ListPage, READ,
    REMOVE, ReadArgs, ReadDone, RemoveArgs, STAT, StatArgs, WRITE, WriteArgs,
};
