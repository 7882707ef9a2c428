//! Rows `ult.memory_1m`, `ult.create_1m`, `ult.create_join.1m` and `ult.tasklet.1m`: a million
//! units at once.
//!
//! In the first two 1,000,000 ULTs (5,000 with `--quick`) of the default stack size have started,
//! called one function and wait for the same eventual; guards are on.
//!
//! - `ult.memory_1m`: resident memory of the process for each of them, with descriptors, queues and
//!   the allocator's share. Floor: one page, since each has a stack of its own. Beside it: the same
//!   with the kernel's page tables, which are not resident memory of the process, but memory.
//! - `ult.create_1m`: time from the first spawn until all wait, for all together. Floor: as many
//!   bare stacks of the same size, each with its guard and its top page touched; so the kernel
//!   provides two pages for each, the other one for its page table. With `--quick` both are scaled
//!   up to a million, so that the target can be looked at. Both reuse memory that the process has
//!   just given back: the host of a virtual machine may take several microseconds for each page
//!   that it has to provide itself, which is printed beside it and is not what we are after.
//!
//! The others make as many units that return at once, and then join them: time for each, the median
//! of some rounds. Floor: as many blocks of a descriptor's size, two lines of which are written
//! three times, as the spawn, the run and the join do. Beside it: the first round, for which the
//! kernel provides the pages.

use std::hint::black_box;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use ult::{Eventual, PoolRef, UltBuilder};

use super::on_ult::{Streams, on_ult, yield_until};
use crate::base::{Deadline, Doing, Figure, OrFail, Result, ensure};
use crate::process::Context;

const MILLION: u64 = 1_000_000;

/// Row `ult.memory_1m`.
pub(crate) fn memory(context: &Context) -> Result<Figure> {
    let (count, grown) = measure(context)?;
    let floor = rustix::param::page_size() as f64;
    let each = |bytes: u64| bytes as f64 / count as f64;
    let with_tables = each(grown.memory.resident + grown.memory.page_tables);
    let figure = Figure::single(each(grown.memory.resident), Some(floor));
    Ok(figure.beside("with page tables", Some(with_tables)))
}

/// Row `ult.create_1m`.
pub(crate) fn create(context: &Context) -> Result<Figure> {
    let first = bare_stacks(count(context))?;
    let floor = bare_stacks(count(context))?;
    let (count, grown) = measure(context)?;
    let scaled = |time: Duration| time.as_nanos() as f64 * MILLION as f64 / count as f64;
    let figure = Figure::single(scaled(grown.time), Some(scaled(floor)));
    Ok(figure.beside("bare, fresh memory", Some(scaled(first))))
}

/// Rows `ult.create_join.1m` and `ult.tasklet.1m`.
pub(crate) fn lives(
    context: &Context,
    unit: impl Fn(&PoolRef) -> UltBuilder<'_> + Send + 'static,
) -> Result<Figure> {
    const ROUNDS: usize = 7;
    let (count, deadline) = (count(context), context.deadline);
    let streams = Streams::start(&[context.cores.origin])?;
    let pool = streams.pools[0].clone();
    let rounds = on_ult(&streams.pools[0], deadline, move || {
        let mut blocks = vec![[0_u64; DESCRIPTOR_WORDS]; usize::try_from(count).unwrap_or(0)];
        let rounds =
            (0..ROUNDS).map(|_| Ok([three_passes(&mut blocks), life(&pool, count, &unit)?]));
        rounds.collect::<Result<Vec<_>>>()
    })?;
    streams.stop()?;
    let each = |time: Duration| time.as_nanos() as f64 / count as f64;
    let median = |which: usize| {
        let mut later: Vec<_> = rounds.iter().skip(1).map(|round| round[which]).collect();
        later.sort_unstable();
        each(later[later.len() / 2])
    };
    let figure = Figure::single(median(1), Some(median(0)));
    Ok(figure.beside("first round", Some(each(rounds[0][1]))))
}

/// Words of a descriptor.
const DESCRIPTOR_WORDS: usize = 48;

/// How long it takes to write two lines of each block three times.
fn three_passes(blocks: &mut [[u64; DESCRIPTOR_WORDS]]) -> Duration {
    let start = Instant::now();
    for pass in 0..3 {
        for block in &mut *blocks {
            block[0] = block[8].wrapping_add(pass);
            block[8] = block[0];
        }
        black_box(&mut *blocks);
    }
    start.elapsed()
}

/// How long it takes to make `count` units and to join them.
fn life(pool: &PoolRef, count: u64, unit: impl Fn(&PoolRef) -> UltBuilder<'_>) -> Result<Duration> {
    let start = Instant::now();
    let spawned = (0..count).map(|_| unit(pool).spawn(|| ()).doing("spawning"));
    for handle in spawned.collect::<Result<Vec<_>>>()? {
        handle.join().doing("joining")?;
    }
    Ok(start.elapsed())
}

fn count(context: &Context) -> u64 {
    if context.quick { 5_000 } else { MILLION }
}

/// Bytes of the default stack.
const STACK_BYTES: usize = 2 << 20;
/// Not in the libc crate yet.
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// How long it takes to make `count` stacks with nothing on them.
fn bare_stacks(count: u64) -> Result<Duration> {
    let page = rustix::param::page_size();
    let each = STACK_BYTES + page;
    let count = usize::try_from(count).doing("counting stacks")?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
    let start = Instant::now();
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing one.
    let map = unsafe { mmap_anonymous(ptr::null_mut(), count * each, prot, flags) }
        .doing("mapping stacks")?;
    // SAFETY: our own fresh mapping. An error only means that the floor is not a floor.
    let _ = unsafe { madvise(map, count * each, Advice::LinuxNoHugepage) };
    for index in 0..count {
        let low = map.cast::<u8>().wrapping_add(index * each);
        // SAFETY: the first page of our own part. Kernels that cannot do it make a lower floor.
        unsafe { libc::madvise(low.cast(), page, MADV_GUARD_INSTALL) };
        let top = low.wrapping_add(each - 64);
        // SAFETY:
        // - inside our own writable mapping, above the guard; nobody else knows it.
        unsafe { top.write_volatile(1) };
    }
    let time = start.elapsed();
    // SAFETY: exactly the mapping made above, which nothing uses any more.
    unsafe { munmap(map, count * each) }.doing("unmapping stacks")?;
    Ok(time)
}

fn measure(context: &Context) -> Result<(u64, Grown)> {
    let (count, deadline) = (count(context), context.deadline);
    let streams = Streams::start(&[context.cores.origin])?;
    let pool = streams.pools[0].clone();
    let grown = on_ult(&streams.pools[0], deadline, move || grown_by(&pool, count, deadline))?;
    streams.stop()?;
    Ok((count, grown))
}

/// The memory and time that suspending the ULTs took.
#[derive(Debug)]
struct Grown {
    memory: Memory,
    time: Duration,
}

/// Returns the growth of the process when `count` ULTs are suspended.
fn grown_by(pool: &PoolRef, count: u64, deadline: Deadline) -> Result<Grown> {
    let release = Arc::new(Eventual::<()>::new());
    let (waiting, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let before = Memory::now()?;
    let start = Instant::now();
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
    let time = start.elapsed();
    let after = Memory::now();
    ensure!(release.set(()).is_ok(), "the eventual was set already");
    yield_until("ULTs to end", deadline, || ended.load(Ordering::Relaxed) == count)?;
    Ok(Grown { memory: after?.since(&before), time })
}

/// Memory of this process that is really there, in bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    pub(crate) page_tables: u64,
}

impl Memory {
    /// The memory at this moment.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell.
    pub(crate) fn now() -> Result<Self> {
        let path = "/proc/self/status";
        let text = std::fs::read_to_string(path).doing(path)?;
        let field = |name| bytes_of(&text, name).or_fail("a field in kB is missing");
        Ok(Self { resident: field("VmRSS:")?, page_tables: field("VmPTE:")? })
    }

    /// The memory added since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            resident: self.resident.saturating_sub(before.resident),
            page_tables: self.page_tables.saturating_sub(before.page_tables),
        }
    }
}

/// The bytes of a field in kB of the kernel's text.
pub(crate) fn bytes_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_is_resident() {
        // Other tests of this process may give as much back meanwhile, but not each time.
        const TRIES: usize = 20;
        let mut seen = Vec::new();
        let is_seen = (0..TRIES).any(|_| {
            let before = Memory::now().unwrap().resident;
            let memory = std::hint::black_box(vec![1u8; 64 << 20]);
            let after = Memory::now().unwrap().resident;
            seen.push((before, after));
            after >= before + (memory.len() as u64 / 2)
        });
        assert!(is_seen, "{seen:?}");
    }

    #[test]
    fn the_floor_touches_and_gives_back() {
        assert!(bare_stacks(1_000).unwrap() > Duration::ZERO);
    }

    #[test]
    fn fields_are_found_and_scaled() {
        let text = "VmPeak:\t  12 kB\nVmRSS:\t    7 kB\n";
        assert_eq!(bytes_of(text, "VmRSS:"), Some(7 * 1024));
        assert_eq!(bytes_of(text, "VmPTE:"), None);
    }
}
