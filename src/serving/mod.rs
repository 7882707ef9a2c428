//! The side of a request that serves it: what is served, by whom, and what its handler is given.
//!
//! May import the folders up to `origin`. Read `serve.rs` and `register.rs` (what is served),
//! `handle.rs` (what a handler gets) and `irespond.rs` (a response that goes on), then the
//! providers: `provider.rs`, `provider_rpcs.rs`, `provider_close.rs`, `identity.rs`, `sharded.rs`,
//! `shard_place.rs`.

pub(crate) mod handle;
pub(crate) mod identity;
pub(crate) mod irespond;
pub(crate) mod provider;
pub(crate) mod provider_close;
pub(crate) mod provider_rpcs;
pub(crate) mod register;
pub(crate) mod respondable;
pub(crate) mod serve;
pub(crate) mod shard_place;
pub(crate) mod sharded;
