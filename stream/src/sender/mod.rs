//! Sending: [`Sender`](connect::Sender), and where items go.
//!
//! Imports nothing of `receiver`. Read `route.rs`, `open_batch.rs` (items on their way into a
//! batch), `window.rs` (batches without an answer), `link.rs` (one receiver), `state.rs` (all of a
//! sender), `wait.rs` (waiting for a receiver), `linger.rs` (the ULT that sends what has waited),
//! then `connect.rs` and `send.rs` (what the program sees).

pub(crate) mod connect;
pub(crate) mod lent;
mod linger;
mod link;
mod open_batch;
pub(crate) mod route;
mod send;
mod state;
mod wait;
mod window;
