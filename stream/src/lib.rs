//! Streams of items between processes, and graphs of stages that are joined by them.
//!
//! A [`Stream`] is a definition that both sides share, as an RPC is: a name and the type of its items.
#![forbid(unsafe_code)]

mod base;

pub use base::definition::Stream;
