//! A key-value store.
//!
//! Keys and values are bytes; keys are ordered. Changes are made one after the other, alone or in
//! atomic batches, under conditions on versions and values; lists show one moment, however many
//! pages they have; calls may wait for a key. Short values travel in the messages, long ones move
//! straight from and into the caller's memory.
//!
//! ```
//! use std::time::Duration;
//!
//! use margo::{Instance, ProviderHandle, ProviderId};
//! use margo_provider_kv::{Condition, KvClient, KvConfig, KvProvider, Selection};
//! use margo_provider_kv::{MemoryOrder, StoreConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = Instance::builder("na+sm://").start()?;
//! let id = ProviderId::new(1);
//! let provider = service.provider(id, &service.layout().rpc_pool());
//! let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
//! let running = KvProvider::start(provider, &config)?;
//!
//! let client = Instance::builder("na+sm://").listen(false).start()?;
//! let target = client.lookup(service.self_addr().uri())?;
//! let limit = Duration::from_secs(10);
//! let kv = KvClient::connect(&client, ProviderHandle::new(target, id), limit)?;
//! let version = kv.put(b"fruit/apple", b"red", limit)?;
//! kv.put_if(b"fruit/apple", b"green", Condition::Version(version), limit)?;
//! for entry in kv.entries(Selection::prefix("fruit/"), limit) {
//!     assert_eq!(entry?.value.as_deref(), Some(&b"green"[..]));
//! }
//!
//! client.finalize_and_wait()?;
//! running.close(limit)?; // the database is free for another one now
//! service.finalize_and_wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Reading order
//!
//! `model.rs` (changes and their outcomes) · `members.rs` (several servers) · `rpc.rs` and
//! `steps.rs` (what is said) · `provider/` (the target) · `client/` (the origin) · `engine/`
//! (databases).
#![cfg_attr(not(feature = "lmdb"), forbid(unsafe_code))]
// Opening a database of LMDB is unsafe: `engine/store/lmdb.rs`.
#![deny(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/src/kv.md")]
struct Guide;

mod client;
mod config;
mod engine;
mod error;
mod members;
mod model;
mod provider;
mod rpc;
mod steps;
mod store_config;

pub use client::{Collection, Entries, KvBatch, KvClient, KvRequest, MemberChange, MemberProgress};
pub use config::KvConfig;
pub use error::{ClientError, KvError, StartError};
pub use members::{KvMember, Membership};
pub use model::{Batch, Change, Changed, Condition, Durability, KeyRange, Outcomes};
pub use provider::{KvComponent, KvProvider};
pub use rpc::{
    CHANGE, COUNT, ChangeArgs, CountArgs, Entry, FLUSH, Found, GET, GET_MANY, GetArgs, GetManyArgs,
    IDENTITY, KvStat, LIST, Lengths, ListArgs, MEASURE, Meta, PUT, Page, PageToken, Part, PutArgs,
    READ, ReadArgs, STAT, Selection, WAIT, WaitArgs,
};
pub use store_config::{Integrity, MemoryOrder, StoreConfig, StoreKind, SyncPolicy};
