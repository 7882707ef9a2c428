//! Operations in flight: a call, a bulk transfer, a response that somebody waits for; and all that
//! ends one early: a deadline, a cancel, the death of the peer, the end of the instance.
//!
//! May import the folders up to `observe`; knows no instance, but what an operation needs of one
//! (`early.rs`). Read `call.rs`, `bulk_call.rs` and `pending_response.rs`, which `token.rs` gives
//! to the RPC layer; then `deadline.rs` and `deadline_timer.rs`, `cancel.rs`, `canceler.rs` and
//! `cancel_link.rs`; `on_behalf.rs`; last `standing_transfers.rs`.

pub(crate) mod bulk_call;
pub(crate) mod call;
pub(crate) mod cancel;
pub(crate) mod cancel_link;
pub(crate) mod canceler;
pub(crate) mod deadline;
pub(crate) mod deadline_timer;
pub(crate) mod early;
pub(crate) mod on_behalf;
pub(crate) mod pending_response;
pub(crate) mod standing_transfers;
pub(crate) mod token;
