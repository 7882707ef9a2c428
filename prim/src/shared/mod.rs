//! Shared ownership for values that are made and dropped in the path of every call.
//!
//! As `std::sync::Arc`, with two differences. The last owner sees by a plain load that it is the
//! last, so of two owners only one pays for an atomic read-modify-write when they let go, and who
//! is alone may change the value (`Shared::get_mut`) for the price of a load. And a value can be
//! born with two owners (`UninitShared::fill_pair`).
//!
//! `Arc` has its second count in another word and needs more such operations, because two counts
//! that are read one after the other tell nothing.

pub mod counts;

#[cfg(not(loom))]
pub use self::pointer::{Shared, UninitShared, WeakShared};

#[cfg(not(loom))]
mod pointer;
