//! Memory of devices over the fake driver, and the declarations.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod copies;
mod drivers;
mod layout;
mod memory;
mod real;
mod two_processes;
