//! Tasklets and work stealing: many small units that never wait.
//!
//! A tasklet has no stack of its own: it runs on its xstream's from beginning to end, and costs
//! half of a ULT. Here a ULT divides a range until the pieces are small, and tasklets count the
//! primes of the pieces. Each xstream has a deque; when that is empty, it steals from the other's.
//!
//! ```text
//! cargo run --release -p margo-ult --example tasklets
//! ```
//!
//! Prints `9592 primes below 100000`.

use std::ops::Range;

use ult::{JoinHandle, PoolKind, PoolRef, PoolSpec, RandWs, Runtime, XstreamSpec};

const LIMIT: u32 = 100_000;
const PIECE: u32 = 1_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn primes(range: Range<u32>) -> usize {
    let is_prime =
        |n: &u32| *n > 1 && (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    range.filter(is_prime).count()
}

/// Runs as a ULT, because it waits for its halves.
fn divide(pool: &PoolRef, range: Range<u32>) -> Result<usize, Failure> {
    if range.len() <= PIECE as usize {
        let piece: JoinHandle<usize> = pool.tasklet().spawn(move || primes(range))?;
        return Ok(piece.join()?);
    }
    let middle = range.start.midpoint(range.end);
    let (left, right) = (range.start..middle, middle..range.end);
    let inner = pool.clone();
    let left = pool.spawn(move || divide(&inner, left))?;
    Ok(divide(pool, right)? + left.join()??)
}

fn main() -> Result<(), Failure> {
    let deque = |name| PoolSpec::new(name).kind(PoolKind::RandWs);
    // The first pool of an xstream is its own, the others are those that it steals from.
    let runtime = Runtime::builder()
        .pool(deque("left"))
        .pool(deque("right"))
        .xstream(XstreamSpec::new("x0").pools(["left", "right"]).scheduler(Box::new(RandWs::new())))
        .xstream(XstreamSpec::new("x1").pools(["right", "left"]).scheduler(Box::new(RandWs::new())))
        .start()?;
    let pool = runtime.pool("left").ok_or("defined above")?;
    let inner = pool.clone();
    let found = pool.spawn(move || divide(&inner, 0..LIMIT))?.join()??;
    println!("{found} primes below {LIMIT}");
    runtime.shutdown()?;
    Ok(())
}
