//! Requests, at the side that serves them: registration, admission, the handler, the answer.
//!
//! May import `support`, `layout`, `observe`, `origin` and `bulk`. Read `serve.rs` and
//! `register.rs` (what is served), `handler.rs` (from an arrived request to its ULT), `handle.rs`
//! (what a handler gets), `respond.rs`, `respond_request.rs` and `answer.rs` (the answer); then
//! `admission.rs`, `request_shares.rs`, `cancel.rs`, `canceler.rs`, `unanswered.rs`, `counters.rs`
//! and `token.rs`; then the providers.

pub(crate) mod admission;
pub(crate) mod answer;
pub(crate) mod cancel;
pub(crate) mod canceler;
pub(crate) mod counters;
pub(crate) mod handle;
pub(crate) mod handler;
pub(crate) mod identity;
pub(crate) mod provider;
pub(crate) mod provider_close;
pub(crate) mod provider_rpcs;
pub(crate) mod register;
pub(crate) mod register_error;
pub(crate) mod request_shares;
pub(crate) mod respond;
pub(crate) mod respond_request;
pub(crate) mod serve;
pub(crate) mod token;
pub(crate) mod unanswered;
