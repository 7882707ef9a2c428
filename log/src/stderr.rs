//! Lines on standard error, of which nobody waits for one.
//!
//! A thread that is there while there are lines writes them. If standard error takes nothing, the
//! thread waits and further lines are lost, but for some that it still has; how many were is told
//! when it goes on.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Lines that wait at most.
const LINES_MAX: usize = 256;

struct Lines {
    waiting: VecDeque<String>,
    lost: u64,
    /// The process that has a thread which writes; 0: none.
    written_by: u32,
}

static LINES: Mutex<Lines> = Mutex::new(Lines { waiting: VecDeque::new(), lost: 0, written_by: 0 });

/// The lines, for a moment. `None`: somebody has them for good, which happens in a child process
/// that was forked off at a bad moment.
fn lines() -> Option<MutexGuard<'static, Lines>> {
    let until = Instant::now() + Duration::from_secs(1);
    loop {
        match LINES.try_lock() {
            Ok(lines) => return Some(lines),
            Err(TryLockError::Poisoned(lines)) => return Some(lines.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() > until => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// Has a line written, which ends with a line feed.
pub(crate) fn write(line: String) {
    let Some(mut lines) = lines() else { return };
    let process = std::process::id();
    if lines.written_by != process && lines.written_by != 0 {
        // The parent's, with whose thread they are.
        lines.waiting.clear();
        (lines.lost, lines.written_by) = (0, 0);
    }
    if lines.waiting.len() >= LINES_MAX {
        lines.lost += 1;
        return;
    }
    lines.waiting.push_back(line);
    if lines.written_by == 0 {
        let thread = std::thread::Builder::new().name("margo-stderr".to_owned());
        // Without a thread, the next line tries again.
        if thread.spawn(write_all).is_ok() {
            lines.written_by = process;
        }
    }
}

fn write_all() {
    block_signals();
    while let Some(line) = next() {
        // Nobody can be told if standard error is closed.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

fn next() -> Option<String> {
    let mut lines = lines()?;
    if let Some(line) = lines.waiting.pop_front() {
        return Some(line);
    }
    if lines.lost > 0 {
        let lost = std::mem::take(&mut lines.lost);
        return Some(format!("margo: warning: {lost} lines were lost before this one\n"));
    }
    lines.written_by = 0;
    None
}

/// Waits until what was logged is on standard error, for `limit` at most. For the end of a program,
/// which takes the thread with it that writes.
pub fn flush(limit: Duration) {
    let until = Instant::now() + limit;
    let is_done = || lines().is_none_or(|lines| lines.written_by != std::process::id());
    while !is_done() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Standard error may be a pipe that nobody reads any more: that is an error of the write, and not
/// the end of a program that lets SIGPIPE end it.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY:
    // - memory: the call initialises the set, and looks at nothing else.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY:
    // - memory: the set was initialised just above and is only read; no old mask is stored;
    // - the mask is this thread's own.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut()) };
}
