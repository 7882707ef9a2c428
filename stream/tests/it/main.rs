//! The tests of streams: one program, a module for each behaviour.

mod common;
mod credit;
mod delivery;
mod ends;
mod items;
mod kill;
mod process;
mod routes;
