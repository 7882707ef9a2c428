//! Mercury's side: its types, its functions, its codes.
//!
//! - Imports: nothing of this crate.
//! - Reading order: `abi.rs` (types) · `status.rs` (codes) · `mercury.rs` (functions, version).

pub mod abi;
pub(crate) mod mercury;
pub(crate) mod status;
