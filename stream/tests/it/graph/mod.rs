//! Graphs in one process.

mod documents;
mod ends;
mod loops;
mod operators;
mod windows;
