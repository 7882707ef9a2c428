//! Rows below the ULTs: messages, transfers and calls.

pub(crate) mod echo;
pub(crate) mod fabric;
mod hg_node;
pub(crate) mod hg_proc;
mod na_node;
pub(crate) mod na_sm;
pub(crate) mod na_tcp;
