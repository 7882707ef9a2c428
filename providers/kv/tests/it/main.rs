//! The key-value provider through its client, over every transport, in one process.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod bounds;
mod changes;
mod cluster;
mod common;
mod hostile;
mod killed_members;
mod life;
mod lists;
mod members;
mod values;
mod waits;
