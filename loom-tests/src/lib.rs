//! Loom models of the concurrency cores of `margo-ult`, `margo-na` and `margo`; they are in
//! `tests/`.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p margo-loom-tests
//! ```
//!
//! `LOOM_MAX_PREEMPTIONS` bounds how often a thread may be interrupted in one execution, for models
//! that do not set a bound themselves. Without the flag there is nothing to run.
