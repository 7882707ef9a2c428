//! A message of one cache line, there and back: the least that an exchange between two cores costs.
//!
//! Three lines. `ping` belongs to the caller, `pong` to the responder; a message is 56 bytes and
//! the number that publishes it, so that both travel in the same 64-byte line, and the reader spins
//! on the number. `hello` counts how often the responder has begun to serve: it may say so while
//! the caller still has to read the last answer of the round before. A call may have more lines
//! than its own: they are written first, and read when it has come.
//!
//! Numbers only grow, over all rounds: nothing is ever reset, so no round can see the leftovers of
//! the one before.

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::channel::{self, CALL, Channel, HELLO};
use crate::base::{Cores, Deadline, Doing, Effort, OrFail, Result, Samples, ensure};

/// From this bit on, word 0 says how many lines a call has beside its own; below it is the kind.
const MORE_SHIFT: u32 = 8;

/// Lines that a call may have beside its own: 1 KiB.
const MORE_MAX: usize = 16;

/// Bytes of a line.
const LINE_BYTES: usize = 64;

/// One direction. 128 bytes apart: the adjacent-line prefetcher fetches pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Line {
    words: [AtomicU64; 7],
    number: AtomicU64,
}

/// A line of a long call.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct More([AtomicU64; LINE_BYTES / 8]);

/// Both directions.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Lines {
    ping: Line,
    pong: Line,
    hello: Line,
    /// The lines that calls carry beside `ping`.
    more: [More; MORE_MAX],
}

impl Lines {
    fn more(&self, count: usize) -> impl Iterator<Item = &AtomicU64> {
        self.more[..count].iter().flat_map(|line| &line.0)
    }
}

/// One side.
#[derive(Debug)]
pub(crate) struct End<L> {
    lines: L,
    is_caller: bool,
    /// Numbers of the last messages.
    put: u64,
    taken: u64,
    greeted: u64,
    /// Lines that a call carries.
    more: usize,
}

impl<L: Deref<Target = Lines>> End<L> {
    /// The side that asks; new lines have one.
    pub(crate) fn caller(lines: L) -> Self {
        Self { lines, is_caller: true, put: 0, taken: 0, greeted: 0, more: 0 }
    }

    /// The side that answers; new lines have one.
    pub(crate) fn responder(lines: L) -> Self {
        Self { is_caller: false, ..Self::caller(lines) }
    }

    /// The line of the calls, or that of the answers.
    #[inline]
    fn line(&self, of_calls: bool) -> &Line {
        if of_calls { &self.lines.ping } else { &self.lines.pong }
    }
}

impl<L: Deref<Target = Lines> + Send> Channel for End<L> {
    #[inline]
    fn put(&mut self, kind: u8, _deadline: Deadline) -> Result<()> {
        if kind == HELLO {
            // pair: LINES-HELLO
            self.lines.hello.number.fetch_add(1, Ordering::Release);
            return Ok(());
        }
        self.put += 1;
        let more = if kind == CALL { self.more } else { 0 };
        self.lines.more(more).for_each(|word| word.store(self.put, Ordering::Relaxed));
        let line = self.line(self.is_caller);
        line.words[0].store(u64::from(kind) | (more as u64) << MORE_SHIFT, Ordering::Relaxed);
        line.words[1..].iter().for_each(|word| word.store(self.put, Ordering::Relaxed));
        // pair: LINE
        line.number.store(self.put, Ordering::Release);
        Ok(())
    }

    /// Looks for the next message, and reads all of it.
    #[inline]
    fn try_take(&mut self) -> Result<Option<u8>> {
        let (line, number) = (self.line(!self.is_caller), self.taken + 1);
        // pair: LINE
        if line.number.load(Ordering::Acquire) != number {
            return Ok(None);
        }
        let word = line.words[0].load(Ordering::Relaxed);
        let more = self.lines.more((word >> MORE_SHIFT) as usize);
        let is_right = |word: &AtomicU64| word.load(Ordering::Relaxed) == number;
        let is_torn = !line.words[1..].iter().chain(more).all(is_right);
        ensure!(!is_torn, "message {number} is torn");
        self.taken = number;
        Ok(Some(word as u8))
    }

    fn greeted(&mut self) -> Result<bool> {
        // pair: LINES-HELLO
        let greeted = self.lines.hello.number.load(Ordering::Acquire) > self.greeted;
        self.greeted += u64::from(greeted);
        Ok(greeted)
    }

    fn carry(&mut self, bytes: usize) {
        self.more = bytes.div_ceil(LINE_BYTES).min(MORE_MAX);
    }
}

/// One round of round trips between two threads of this process, one on each core.
///
/// # Errors
///
/// When there is one core only, or the other one does not answer in time.
pub(crate) fn round(cores: Cores, samples: &mut Samples, deadline: Deadline) -> Result<()> {
    let lines = Lines::default();
    let (mut caller, mut responder) = (End::caller(&lines), End::responder(&lines));
    cores.run_on_both(
        || channel::round(&mut caller, samples, deadline, std::hint::spin_loop),
        || responder.answer(deadline),
    )?;
    Ok(())
}

/// Round-trip time of one cache line between the two cores, median, ns: the machine's state. A
/// virtual machine's cores may be near each other or far apart, and this may change while it runs.
///
/// # Errors
///
/// When there is one core only, or the other one does not answer.
pub(crate) fn probe_ns(cores: Cores) -> Result<f64> {
    let round_max = Duration::from_millis(20);
    let effort = Effort { rounds: 1, samples: 2_000, warmup: 200, round_max };
    let mut samples = effort.room(1);
    round(cores, &mut samples, Deadline::after(Duration::from_secs(5)))?;
    samples.quantile(500).or_fail("the probe took no sample")
}

/// [`Lines`] in memory that two processes share.
#[derive(Debug)]
pub(crate) struct SharedLines {
    file: OwnedFd,
    map: NonNull<Lines>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and holds atomics only.
unsafe impl Send for SharedLines {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedLines {}

impl SharedLines {
    /// New lines. Children started later can [`open`](Self::open) them by [`name`](Self::name).
    ///
    /// # Errors
    ///
    /// When the system gives no shared memory.
    pub(crate) fn new() -> Result<Self> {
        let file = rustix::fs::memfd_create("margo-bench-lines", MemfdFlags::CLOEXEC)
            .doing("creating shared memory")?;
        rustix::fs::ftruncate(&file, size_of::<Lines>() as u64).doing("sizing shared memory")?;
        Self::map(file)
    }

    /// A path under which another process of this user can open the lines while we live.
    pub(crate) fn name(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The lines that another process made.
    ///
    /// # Errors
    ///
    /// When that process is gone.
    pub(crate) fn open(name: &str) -> Result<Self> {
        let file = std::fs::File::options().read(true).write(true).open(name).doing(name)?;
        Self::map(file.into())
    }

    fn map(file: OwnedFd) -> Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing one.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_of::<Lines>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                file.as_fd(),
                0,
            )
        };
        let map = NonNull::new(map.doing("mapping shared memory")?.cast());
        map.map(|map| Self { file, map }).or_fail("mapped at address zero")
    }
}

impl Deref for SharedLines {
    type Target = Lines;

    fn deref(&self) -> &Lines {
        // SAFETY: a page-aligned mapping of the size of `Lines`, until `drop`, of a file that only
        // copies of this program open, and none truncates; a new file is zeros, which are valid
        // atomics; all fields are atomics, and no process makes a `&mut`.
        unsafe { self.map.as_ref() }
    }
}

impl Drop for SharedLines {
    fn drop(&mut self) {
        // SAFETY: `map` is our own mapping of that size, and no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), size_of::<Lines>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_and_its_number_share_a_line() {
        assert_eq!(size_of::<Line>(), 128);
        assert_eq!(std::mem::offset_of!(Line, number), 56);
        assert_eq!(std::mem::offset_of!(Lines, pong), 128);
    }

    #[test]
    fn every_message_is_answered_in_each_round() {
        let lines = SharedLines::new().unwrap();
        let same = SharedLines::open(&lines.name()).unwrap();
        let (mut caller, mut responder) = (End::caller(lines), End::responder(same));
        let deadline = Deadline::after(Duration::from_secs(60));
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                responder.answer(deadline).and_then(|()| responder.answer(deadline))
            });
            for bytes in [0, 1000] {
                caller.carry(bytes);
                caller.wait_for_hello(deadline, std::thread::yield_now).unwrap();
                for _ in 0..10 {
                    caller.round_trip(deadline).unwrap();
                }
                caller.stop(deadline).unwrap();
            }
            serving.join().unwrap().unwrap();
            assert_eq!(caller.greeted(), Ok(false), "two rounds were served, two were greeted");
        });
    }

    #[test]
    fn nobody_answers() {
        let lines = Lines::default();
        let late = Deadline::after(Duration::ZERO);
        let error = End::caller(&lines).round_trip(late).unwrap_err();
        assert!(error.to_string().contains("the other side's message"), "{error}");
    }
}
