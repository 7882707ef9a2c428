//! Progress at work: ULTs, and callers that wait, poll the network and end what it has ended.
//!
//! May import the folders up to `dispatch`. Read `driver.rs` (the progress ULT and its loop), then
//! `callers.rs` (callers that wait, and poll in its place).

pub(crate) mod callers;
pub(crate) mod driver;
