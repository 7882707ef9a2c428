//! Bulk transfers: memory that is lent to peers, and data that moves between two processes.
//!
//! May import `support`, `layout`, `observe` and `origin`. Read `transfer.rs` (memory, and a
//! transfer that is waited for), `request.rs` and `chunks.rs` (those that go on), `exposed.rs`,
//! `releasing.rs` and `segments.rs` (who owns the memory), `pool/`, `bind.rs`; then `copy_pool.rs`
//! and `standing_transfers.rs`. `misuse.rs` has programs that must not compile.

pub(crate) mod bind;
pub(crate) mod chunks;
pub(crate) mod copy_claims;
pub(crate) mod copy_pool;
pub(crate) mod exposed;
#[cfg(doctest)]
mod misuse;
pub(crate) mod pool;
pub(crate) mod releasing;
pub(crate) mod request;
pub(crate) mod segments;
pub(crate) mod standing_transfers;
pub(crate) mod transfer;
