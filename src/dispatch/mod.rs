//! Requests that arrive: from the message through the gates to a ULT, its handler and the response.
//!
//! May import the folders up to `instance`. Read `registered_rpc.rs`, then `run_handler.rs` (from
//! an arrived request to the end of its handler) and `respond.rs` (the response); last `member.rs`.

pub(crate) mod member;
pub(crate) mod registered_rpc;
pub(crate) mod respond;
pub(crate) mod run_handler;
