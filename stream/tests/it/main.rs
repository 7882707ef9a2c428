//! The tests of streams and graphs: one program, a module for each behaviour.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod common;
mod credit;
mod delivery;
mod ends;
mod examples;
mod figures;
mod graph;
mod groups;
mod items;
mod kill;
mod process;
mod routes;
mod sim;
mod traces;
