//! A message of one cache line, there and back: the least that an exchange between two cores costs.
//!
//! Three lines. `ping` belongs to the caller, `pong` to the responder; a message is 56 bytes and
//! the number that publishes it, so that both travel in the same 64-byte line, and the reader spins
//! on the number. `hello` counts how often the responder has begun to serve: the caller may start
//! only then, and can ask without spinning, because the responder may need the caller's help to get
//! there (it may be a handler whose request is still to be sent).
//!
//! A call may have more lines than its own: they are written first, and read when it has come.
//!
//! Numbers only grow, over all rounds: nothing is ever reset, so no round can see the leftovers of
//! the one before.

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::wait::Deadline;

/// Word 0 of a message that wants an answer.
const CALL: u64 = 0;
/// Word 0 of the last message of a round.
const STOP: u64 = 1;
/// From this bit on, word 0 says how many lines a call has beside its own.
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

impl Line {
    fn publish(&self, number: u64, kind: u64) {
        self.words[0].store(kind, Ordering::Relaxed);
        for word in &self.words[1..] {
            word.store(number, Ordering::Relaxed);
        }
        // pair: LINE
        self.number.store(number, Ordering::Release);
    }

    /// Spins until message `number` is there, and reads all of it; its word 0.
    fn take(&self, number: u64, deadline: Deadline) -> Result<u64> {
        deadline.spin_until("the other core's cache line", || {
            // pair: LINE
            self.number.load(Ordering::Acquire) == number
        })?;
        if self.words[1..].iter().any(|word| word.load(Ordering::Relaxed) != number) {
            return Err(Failure::new(format!("message {number} is torn")));
        }
        Ok(self.words[0].load(Ordering::Relaxed))
    }
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

/// The side that asks.
#[derive(Debug)]
pub(crate) struct Caller<L> {
    lines: L,
    number: u64,
    greeted: u64,
    /// Lines that a call carries.
    more: usize,
}

impl<L: Deref<Target = Lines>> Caller<L> {
    /// The caller of new lines; they have one.
    pub(crate) fn new(lines: L) -> Self {
        Self { lines, number: 0, greeted: 0, more: 0 }
    }

    /// Returns true if the responder has begun to serve a round that was not asked about yet.
    pub(crate) fn greeted(&mut self) -> bool {
        // pair: LINES-HELLO
        let greeted = self.lines.hello.number.load(Ordering::Acquire) > self.greeted;
        self.greeted += u64::from(greeted);
        greeted
    }

    /// From now on calls carry so many bytes, at most 1 KiB, beside their own line.
    pub(crate) fn carry(&mut self, bytes: usize) {
        self.more = bytes.div_ceil(LINE_BYTES).min(MORE_MAX);
    }

    /// One round trip.
    ///
    /// # Errors
    ///
    /// When the answer does not come in time, or is torn.
    #[inline]
    pub(crate) fn round_trip(&mut self, deadline: Deadline) -> Result<()> {
        self.call(CALL, deadline)
    }

    /// Ends the responder's round.
    ///
    /// # Errors
    ///
    /// When it does not confirm in time.
    pub(crate) fn stop(&mut self, deadline: Deadline) -> Result<()> {
        self.call(STOP, deadline)
    }

    #[inline]
    fn call(&mut self, kind: u64, deadline: Deadline) -> Result<()> {
        self.number += 1;
        for word in self.lines.more[..self.more].iter().flat_map(|line| &line.0) {
            word.store(self.number, Ordering::Relaxed);
        }
        self.lines.ping.publish(self.number, kind | (self.more as u64) << MORE_SHIFT);
        self.lines.pong.take(self.number, deadline)?;
        Ok(())
    }
}

/// The side that answers.
#[derive(Debug)]
pub(crate) struct Responder<L> {
    lines: L,
    number: u64,
}

impl<L: Deref<Target = Lines>> Responder<L> {
    /// The responder of new lines; they have one.
    pub(crate) fn new(lines: L) -> Self {
        Self { lines, number: 0 }
    }

    /// Serves one round: answers each message until the caller stops.
    ///
    /// # Errors
    ///
    /// When no message comes until the deadline.
    pub(crate) fn answer(&mut self, deadline: Deadline) -> Result<()> {
        // pair: LINES-HELLO
        self.lines.hello.number.fetch_add(1, Ordering::Release);
        loop {
            self.number += 1;
            let word = self.lines.ping.take(self.number, deadline)?;
            let more = (word >> MORE_SHIFT) as usize;
            let mut words = self.lines.more[..more].iter().flat_map(|line| &line.0);
            if words.any(|word| word.load(Ordering::Relaxed) != self.number) {
                return Err(Failure::new(format!("call {} is torn", self.number)));
            }
            self.lines.pong.publish(self.number, word);
            if word & ((1 << MORE_SHIFT) - 1) == STOP {
                return Ok(());
            }
        }
    }
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
        map.map(|map| Self { file, map }).ok_or_else(|| Failure::new("mapped at address zero"))
    }
}

impl Deref for SharedLines {
    type Target = Lines;

    fn deref(&self) -> &Lines {
        // SAFETY:
        // - valid and aligned: a page-aligned mapping of the size of `Lines`, until `drop`, of a
        //   file that nobody truncates (only copies of this program open it);
        // - initialised: a new file is zeros, which are valid atomics;
        // - no aliasing `&mut`: no process makes one; all fields are atomics.
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
    use std::time::Duration;

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
        let (mut caller, mut responder) = (Caller::new(lines), Responder::new(same));
        let deadline = Deadline::after(Duration::from_secs(60));
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                responder.answer(deadline).and_then(|()| responder.answer(deadline))
            });
            for bytes in [0, 1000] {
                caller.carry(bytes);
                deadline.spin_until("hello", || caller.greeted()).unwrap();
                for _ in 0..10 {
                    caller.round_trip(deadline).unwrap();
                }
                caller.stop(deadline).unwrap();
            }
            serving.join().unwrap().unwrap();
            assert!(!caller.greeted(), "two rounds were served, two were greeted");
        });
    }

    #[test]
    fn nobody_answers() {
        let lines = Lines::default();
        let late = Deadline::after(Duration::ZERO);
        let error = Caller::new(&lines).round_trip(late).unwrap_err();
        assert!(error.to_string().contains("cache line"), "{error}");
    }
}
