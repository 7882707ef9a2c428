//! What every other folder may use, and what knows none of them: the errors of this crate and small
//! tools without a state of their own.
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
