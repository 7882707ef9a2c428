//! Rows of user-level threads.
//!
//! Imports from `base`, `process` and `floors`. Read `on_ult.rs` (a measurement as a ULT, and the
//! runtimes), `switch.rs`; then, each for itself, `sync.rs`, `wake.rs`, `channel.rs`, `fifo.rs`,
//! `fib.rs`, `fork.rs`, `joins.rs`, `memory.rs`, `idle.rs`, `blocking.rs`.

pub(crate) mod blocking;
pub(crate) mod channel;
pub(crate) mod fib;
pub(crate) mod fifo;
pub(crate) mod fork;
pub(crate) mod idle;
pub(crate) mod joins;
pub(crate) mod memory;
pub(crate) mod on_ult;
pub(crate) mod switch;
pub(crate) mod sync;
pub(crate) mod wake;
