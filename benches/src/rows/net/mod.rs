//! Rows below the ULTs: messages, transfers, and calls of the RPC layer.
//!
//! Imports from `base`, `process` and `floors`. Read `echo.rs` (round trips of a node),
//! `na_node.rs` and `hg_node.rs` (a node of each layer); then, each for itself, `crowd.rs`,
//! `rates.rs`, `oneway.rs`, `handshakes.rs`, `group.rs`, `transfers.rs`, `hg_proc.rs`.

pub(crate) mod crowd;
pub(crate) mod echo;
pub(crate) mod group;
pub(crate) mod handshakes;
pub(crate) mod hg_node;
pub(crate) mod hg_proc;
pub(crate) mod na_node;
pub(crate) mod oneway;
pub(crate) mod rates;
pub(crate) mod transfers;
