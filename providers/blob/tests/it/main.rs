//! The blob provider through its client, on disks with room and without.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;
mod full_disk;
mod in_place;
mod rpc;
