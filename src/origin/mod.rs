//! Calls, at the side that makes them: encode, send, wait, and end by a reply, a deadline, a cancel
//! or the death of the peer.
//!
//! May import the folders up to `polling`. Read `rpc_call.rs` (the ways to call), `forward.rs`
//! (a call from top to bottom), then `forward_request.rs` (a call that goes on beside its caller),
//! `callback.rs` and `call_result.rs`; `sharded_handle.rs`.
//!
//! | step of a call | function |
//! |---|---|
//! | limits of the caller: its own, inherited ones, a token | `CallLimits` (`operation/deadline.rs`) |
//! | the call, shared with the RPC layer | `Call` (`operation/call.rs`), `Token` (`operation/token.rs`) |
//! | encode and send | `Instance::start` (`forward.rs`) |
//! | wait: poll for a while, then suspend | `Inner::stand_in`, `Inner::wait_for` (`polling/callers.rs`) |
//! | end by a reply, or by the death of the peer | the sink of `polling/driver.rs`, `Call::complete` |
//! | end by a deadline | `Call::time_out`, called by the caller or a `DeadlineTimer` |
//! | end by a cancel | `Call::cancel`, called by a `CallGuard`, a `Canceler` or a `CancelLink` |
//! | decode, or say why there is nothing | `Call::read` |

pub(crate) mod call_result;
pub(crate) mod callback;
pub(crate) mod forward;
pub(crate) mod forward_request;
pub(crate) mod rpc_call;
pub(crate) mod sharded_handle;
