//! Row `ult.memory`: resident memory of the process per suspended ULT.
//!
//! 100,000 ULTs (5,000 with `--quick`) of the default stack size have started, called one function
//! and wait for the same eventual; guards are on. Includes descriptors, queues and the allocator's
//! share. Floor: one page, since each has a stack of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ult::{Eventual, PoolRef};

use super::on_ult::{on_ult, yield_until};
use super::ult_switch::Streams;
use crate::context::Context;
use crate::failure::{Doing, Failure, Result};
use crate::row::Figure;
use crate::wait::Deadline;

/// Row `ult.memory`.
pub(crate) fn run(context: &Context) -> Result<Figure> {
    let count: u64 = if context.quick { 5_000 } else { 100_000 };
    let deadline = context.deadline;
    let streams = Streams::start(&[context.cores.origin])?;
    let pool = streams.pools[0].clone();
    let bytes = on_ult(&streams.pools[0], deadline, move || grown_by(&pool, count, deadline))?;
    streams.stop()?;
    let floor = rustix::param::page_size() as f64;
    Ok(Figure::single(bytes as f64 / count as f64, Some(floor)))
}

/// Bytes by which the process grows when `count` ULTs are suspended.
fn grown_by(pool: &PoolRef, count: u64, deadline: Deadline) -> Result<u64> {
    let release = Arc::new(Eventual::<()>::new());
    let (waiting, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let before = resident_bytes()?;
    for _ in 0..count {
        let (release, waiting, ended) = (release.clone(), waiting.clone(), ended.clone());
        let wait = move || {
            waiting.fetch_add(1, Ordering::Relaxed);
            release.wait();
            ended.fetch_add(1, Ordering::Relaxed);
        };
        pool.ult().spawn_detached(wait).doing("spawning")?;
    }
    // One xstream: when we run and all have counted, all are suspended.
    yield_until("ULTs to suspend", deadline, || waiting.load(Ordering::Relaxed) == count)?;
    let after = resident_bytes();
    if release.set(()).is_err() {
        return Err(Failure::new("the eventual was set already"));
    }
    yield_until("ULTs to end", deadline, || ended.load(Ordering::Relaxed) == count)?;
    Ok(after?.saturating_sub(before))
}

/// Memory of this process that is really there.
fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").doing("reading /proc/self/statm")?;
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| Failure::new("/proc/self/statm has no second number"))?;
    Ok(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_is_resident() {
        let before = resident_bytes().unwrap();
        let memory = vec![1u8; 64 << 20];
        let after = resident_bytes().unwrap();
        assert!(after >= before + (32 << 20), "{before} -> {after} for {} bytes", memory.len());
    }
}
