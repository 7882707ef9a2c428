//! Writes lines to standard error without making their callers wait.
//!
//! A thread that exists while there are lines writes them. If standard error takes nothing, the
//! thread waits; `LINES_MAX` lines queue up, and further ones are lost. The thread reports their
//! number when it goes on.

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
    // Without a thread, the next line tries again.
    if lines.written_by == 0 && start_thread() {
        lines.written_by = process;
    }
}

/// Starts the thread that writes; `false`: there is none to be had. The standard library's threads
/// abort the process where there is no memory for their signal stack, which is when a process has
/// something to say.
fn start_thread() -> bool {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the call initialises the attributes, and looks at nothing else.
    if unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) } != 0 {
        return false;
    }
    let attributes = attributes.as_mut_ptr();
    // SAFETY: they were initialised above, and are used by this thread alone.
    unsafe { libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED) };
    let mut thread = std::mem::MaybeUninit::uninit();
    // SAFETY:
    // - memory: the attributes are as above, and the number of the thread has room;
    // - the function takes an argument that it does not use, and does not unwind: what it calls
    //   does not panic.
    let refusal = unsafe {
        libc::pthread_create(thread.as_mut_ptr(), attributes, write_all, std::ptr::null_mut())
    };
    // SAFETY: as for their use above, and the last one.
    unsafe { libc::pthread_attr_destroy(attributes) };
    refusal == 0
}

extern "C" fn write_all(_: *mut libc::c_void) -> *mut libc::c_void {
    block_signals();
    // SAFETY: a thread may always ask who it is.
    let own = unsafe { libc::pthread_self() };
    // SAFETY: the name is a C string of fewer than 16 bytes, of a thread that runs.
    unsafe { libc::pthread_setname_np(own, c"margo-stderr".as_ptr()) };
    while let Some(line) = next() {
        // Nobody can be told if standard error is closed.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    std::ptr::null_mut()
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
