//! Calls, at the side that makes them: encode, send, wait, and end by a reply, a deadline, a cancel
//! or the death of the peer.
//!
//! May import `support`, `layout` and `observe`. Read `forward.rs` (how a call is started),
//! `call.rs` (how it ends), `request.rs` (a call that goes on beside its caller), `callback.rs` and
//! `call_result.rs`; then `deadline.rs`, `alarm.rs`, `tie.rs` and `early.rs`, which end calls.

pub(crate) mod alarm;
pub(crate) mod call;
pub(crate) mod call_result;
pub(crate) mod callback;
pub(crate) mod deadline;
pub(crate) mod early;
pub(crate) mod forward;
pub(crate) mod request;
pub(crate) mod tie;
