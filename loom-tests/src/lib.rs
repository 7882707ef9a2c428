//! Loom models of the concurrency cores of `margo-prim`, `margo-ult`, `margo-na` and `margo`; they
//! are in `tests/`.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p margo-loom-tests
//! ```
//!
//! `LOOM_MAX_PREEMPTIONS` bounds how often a thread may be interrupted in one execution, 3 unless
//! it is set, for models that do not set a bound themselves. Without the flag there is nothing to
//! run.

/// Runs a model in which threads are interrupted at most as often in one execution as
/// `LOOM_MAX_PREEMPTIONS` says; by default three times, enough for what two threads can do to each
/// other.
#[cfg(loom)]
pub fn check(model: impl Fn() + Sync + Send + 'static) {
    let set = std::env::var("LOOM_MAX_PREEMPTIONS").ok().and_then(|bound| bound.parse().ok());
    check_bounded(set.unwrap_or(3), model);
}

/// Runs the model as [`check`] does, with another bound.
#[cfg(loom)]
pub fn check_bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
