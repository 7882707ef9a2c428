//! The locks of the hot path: one atomic read-modify-write per critical section, or none.
//!
//! A mutex needs a second one to learn, at unlock, whether somebody sleeps. Here nobody sleeps: a
//! waiter spins shortly and then gives its processor away between looks, so a holder that lost its
//! processor gets on. Sections under it are short, but for the poll's, which has one caller at a
//! time by contract.
//!
//! `Lock` is for what lives as long as a request. `BiasedLock` is for what lives as long as an
//! endpoint and is mostly taken by one thread, as everything is on an xstream that both makes
//! progress and serves: that thread takes it by plain loads and stores (see `biased`).

pub mod barrier;
pub mod biased;
#[cfg(loom)]
mod modelled;
pub mod plain;
#[cfg(not(loom))]
mod value;

#[cfg(loom)]
pub use self::modelled::ModelLock as Lock;
#[cfg(not(loom))]
pub use self::value::{BiasedGuard, BiasedLock, Guard, Lock};
