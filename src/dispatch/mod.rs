//! Requests that arrive: from the message through the gates to a ULT, its handler and the response.
//!
//! May import the folders up to `instance`. Read `registered_rpc.rs`, then `run_handler.rs` (from
//! an arrived request to its response); `admit.rs` (gates where requests wait, and refusals) and
//! `error_response.rs` (answers without a result); last `in_place.rs` and `member.rs`.

pub(crate) mod admit;
pub(crate) mod error_response;
pub(crate) mod in_place;
pub(crate) mod member;
pub(crate) mod registered_rpc;
pub(crate) mod run_handler;
