//! The declarations against the installed headers of libfabric, and its library in this process.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod layout;
mod signals;
