//! Requests that arrive: from the message through the gates to a ULT, its handler and the response.
//!
//! May import the folders up to `instance`. Read `handler.rs` (from an arrived request to the end
//! of its handler), then `respond.rs` (the request as its handler holds it, and the response).

pub(crate) mod handler;
pub(crate) mod respond;
