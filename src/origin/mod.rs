//! Calls, at the side that makes them: encode, send, wait, and end by a reply, a deadline, a cancel
//! or the death of the peer.
//!
//! May import the folders up to `polling`. Read `forward.rs` (a call from top to bottom),
//! `request.rs` (a call that goes on beside its caller), `callback.rs` and `call_result.rs`;
//! `operation/call.rs` has the call itself.

pub(crate) mod call_result;
pub(crate) mod callback;
pub(crate) mod forward;
pub(crate) mod request;
