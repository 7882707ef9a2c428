//! The command `margo`, run as a user runs it: one module for each subcommand or question.
//!
//! All tests share this process and start the command, or a service, in processes of their own.
//! No test may change anything of this process for others.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod admin;
mod common;
mod demo;
mod deploy;
mod kill;
mod kv;
mod new;
mod ping;
mod port;
mod security;
mod serve;
mod services;
mod shutdown;
mod stream;
mod top;
mod trace;
#[cfg(feature = "otlp")]
mod trace_export;
mod usage;
