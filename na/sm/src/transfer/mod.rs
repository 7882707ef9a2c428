//! Remote memory access: which way bulk data takes, and both sides of a put and a get.
//!
//! - Imports: of `sm`, `link/`, `wake/` and what these import; of the crate, all below the
//!   transports.
//! - Reading order: `rma.rs` (our puts and gets) · `serve.rs` (those of peers) · `block.rs` (memory
//!   that the other side maps), `cma.rs` (cross-memory attach), `fallback.rs` (through shared
//!   memory) · `offer.rs` (copies without a word to the owner) · `costs.rs`, `awaited_reports.rs`
//!   (which way is the cheapest) · `kept.rs` (memory that outlives a connection).

mod awaited_reports;
pub(super) mod block;
pub(super) mod cma;
pub(super) mod costs;
pub(super) mod fallback;
pub(super) mod kept;
pub(super) mod offer;
pub(super) mod rma;
pub(super) mod serve;
