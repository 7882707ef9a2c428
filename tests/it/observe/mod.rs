//! Instances as others see them: metrics, monitors, statistics, profiles, dumps of the state.
//!
//! The log and traces have a test program of their own, `tests/log/main.rs`.

mod dump_signal;
mod metrics;
mod metrics_lacks;
mod metrics_support;
mod monitor;
mod ping;
mod port;
mod profile;
mod statistics;
