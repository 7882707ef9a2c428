//! Primitives that the other crates of the runtime share. None of them knows of networks, of
//! user-level threads or of RPC, and none of them imports another crate of the workspace.
//!
//! | module | what it has |
//! |---|---|
//! | [`sync`] | atomics, cells, locks and threads, which `--cfg loom` replaces |
//! | [`lock`] | locks for the path of every message; a thread that comes again and again pays no atomic read-modify-write |
//! | [`shared`] | a reference count whose last owner pays none either |
//! | [`claim`] | a value that the first caller gets to use, in place |
//! | [`parts`] | counts the parts of a block of memory that have come back |
//! | [`OwnLine`] | a value that shares no cache line with its neighbours |
//! | [`ThreadCells`] | counts that each thread keeps in a line of its own |
//! | [`glob`] | patterns in which `*` stands for any text |
//! | [`fork`] | tells a process from the children that were forked off it |
//! | [`lost`] | wake-ups through a descriptor, and the end of the process if other code closed it |
//! | [`signals`] | keeps signals off a thread of the runtime's |
//! | [`standard`] | keeps the numbers of standard input, output and error taken |
//! | [`panic`](mod@panic) | lets go of what a caught panic has left behind |
//! | [`prefetch`] | a hint to the cache about a line that is to be written |
//!
//! # Reading order
//!
//! `sync.rs`, `lines/` (`own_line.rs`, `thread_cells.rs`), then any of the others: `lock/`
//! (`plain.rs`, `barrier.rs`, `biased.rs`, `value.rs`) and `shared/` (`counts.rs`, `pointer.rs`)
//! separate the protocol, which a loom model checks, from the value.
//!
//! A function that a caller in another crate needs in its hot path is generic or `#[inline]`, so
//! that a build without link-time optimisation pays no call for it.

pub mod claim;
pub mod glob;
mod lines;
pub mod lock;
pub mod panic;
pub mod parts;
pub mod prefetch;
mod process;
pub mod shared;
pub mod sync;

pub use self::lines::{CellCount, OwnLine, ThreadCells};
#[cfg(not(loom))]
pub use self::process::fork;
pub use self::process::{lost, signals, standard};
