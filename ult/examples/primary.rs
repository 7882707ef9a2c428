//! The calling thread as an xstream: `main` is a ULT like any other.
//!
//! `RuntimeBuilder::run` suits programs that must stay on their first thread, or want no other.
//! Here one thread does everything: `main` waits for ULTs that borrow from its stack, then sleeps,
//! and the thread runs others meanwhile.
//!
//! ```text
//! cargo run -p margo-ult --example primary
//! ```
//!
//! Prints `sum 4950`, then `3 ticks while main slept`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ult::{PoolSpec, Runtime, XstreamSpec};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    Runtime::builder()
        .pool(PoolSpec::new("main"))
        .xstream(XstreamSpec::new("primary").pools(["main"]))
        .run(on_ult)?
}

fn on_ult(runtime: &Runtime) -> Result<(), Failure> {
    let pool = runtime.pool("main").ok_or("defined in main")?;

    // Scoped ULTs borrow; the scope ends when all of them have.
    let numbers: Vec<u64> = (0..100).collect();
    let (left, right) = numbers.split_at(50);
    let sum = ult::scope(|scope| {
        let left = scope.spawn(&pool, || left.iter().sum::<u64>())?;
        let right = scope.spawn(&pool, || right.iter().sum::<u64>())?;
        Ok::<_, Failure>(left.join()? + right.join()?)
    })?;
    println!("sum {sum}");

    let ticks = Arc::new(AtomicU32::new(0));
    let count = ticks.clone();
    let ticker = pool.ult().name("ticker").spawn(move || {
        for _ in 0..3 {
            ult::sleep(Duration::from_millis(1));
            count.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    ticker.join()?;
    println!("{} ticks while main slept", ticks.load(Ordering::Relaxed));
    Ok(())
}
