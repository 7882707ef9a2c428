//! Tools without a state of their own that every other folder may use, and the errors of this
//! crate. They know none of the other folders.
//!
//! - Imports: nothing of this crate.
//! - Reading order: `error.rs` · `plain.rs` (text that a peer chose) · `cheap.rs` (a hash for
//!   numbers of ours) · `ran.rs` (a clock that stops with this process) · `random.rs` ·
//!   `secret.rs` (memory and files of secrets).

pub mod cheap;
pub mod error;
/// For the layer above, too.
pub mod plain;
pub mod ran;
pub mod random;
/// For the layer above, too.
pub mod secret;
