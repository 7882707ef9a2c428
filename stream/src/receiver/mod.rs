//! Receiving: [`Receiver`], and what it hands out.
//!
//! Imports nothing of `sender`. Read `session.rs` (order and credit of one sender), `table.rs` (the
//! senders of a stream, and its end), `handlers.rs` (what senders say), then `batch.rs` and
//! `serve.rs` (what the program sees).

pub(crate) mod batch;
mod handlers;
pub(crate) mod serve;
mod session;
mod table;
