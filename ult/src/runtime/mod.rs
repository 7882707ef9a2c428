//! The runtime as a whole: how it starts, how it changes while it runs, how it ends.
//!
//! It may import every folder but [`observe`](crate::observe).
//!
//! Read `specs.rs` and `builder.rs` first, then `xstream_thread.rs` (the thread of an xstream, from
//! start to end), `handle.rs` and `shutdown.rs`. `layout.rs` adds and removes pools and xstreams;
//! `xstream_ref.rs` and `pool_ops.rs` have what a program does with one xstream and with the units
//! of one pool.

pub(crate) mod builder;
pub(crate) mod handle;
pub(crate) mod layout;
pub(crate) mod pool_ops;
pub(crate) mod shutdown;
pub(crate) mod specs;
pub(crate) mod xstream_ref;
pub(crate) mod xstream_thread;
