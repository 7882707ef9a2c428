//! Tools without a state of their own that every other folder may use, and the errors of this
//! crate. They know none of the other folders.
//!
//! - Imports: nothing of this crate.
//! - Reading order: `error.rs` · `plain.rs` (text that a peer chose) · `cheap.rs` (a hash for
//!   numbers of ours) · `ran.rs` (a clock that stops with this process) · `random.rs`.

pub(crate) mod cheap;
pub(crate) mod error;
/// For the layer above, too.
pub mod plain;
#[cfg(any(feature = "sm", feature = "tcp", feature = "ucx"))]
pub(crate) mod ran;
pub(crate) mod random;
