//! `margo-bench scale`: rates over the number of cores, with clients in processes of their own.
//!
//! `run.rs` is the run: it takes the steps of `plan.rs` one after the other, each with processes of
//! its own, prints a line for each and writes it as JSON. A step of RPCs (`rpc.rs`) starts a server
//! (`server.rs`) in one of the layouts of `layout.rs`, and a client (`client.rs`) on each core that
//! is left; `meter.rs` counts. A step of units (`units.rs`) is one process. `peers.rs` has the same
//! for other runtimes, `programs.rs` for programs that are handed in.
//!
//! # A new layout
//!
//! A variant of [`Layout`](layout::Layout) with its word and the documents of its instances.

mod arguments;
mod child;
mod client;
mod layout;
mod line;
mod meter;
#[cfg(feature = "peers")]
mod peers;
mod plan;
mod programs;
mod rpc;
mod run;
mod server;
mod units;

pub(crate) use arguments::Arguments;
pub(crate) use child::child;
pub(crate) use line::Line;
pub(crate) use run::run;
