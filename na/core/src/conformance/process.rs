//! Second processes: the test binary again, for the same test, with a role in its environment.
//!
//! The child runs the same case function, which finds its role with [`role`] and plays it instead.
//! It speaks to its parent in marked lines on standard output; it dies with the thread that started
//! it (`PR_SET_PDEATHSIG`), or when the [`ChildNode`] is dropped.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use super::Case;

const ROLE: &str = "NA_CONFORMANCE_ROLE";
const ARGUMENT: &str = "NA_CONFORMANCE_ARGUMENT";
const PARENT: &str = "NA_CONFORMANCE_PARENT";
const MARK: &str = "na-child: ";

/// In a child: the role and argument that it was started with. From now on it dies with the thread
/// that started it.
pub(super) fn role() -> Option<(String, String)> {
    let role = (std::env::var(ROLE).ok()?, std::env::var(ARGUMENT).ok()?);
    let kill = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(kill)).expect("die with the parent");
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_pid().to_string());
    if parent != std::env::var(PARENT).ok() {
        // It had died before.
        std::process::exit(1);
    }
    Some(role)
}

/// In a child: one line for the parent.
pub(super) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // libtest may have left an unfinished line.
    writeln!(out, "\n{MARK}{text}").expect("the parent reads");
    out.flush().expect("the parent reads");
}

/// In a child: sleeps until the parent kills it.
pub(super) fn sleep_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Lets a program that is executed next have descriptor `fd`.
fn inherit(fd: RawFd) -> std::io::Result<()> {
    // SAFETY: a descriptor of the parent that stays open while it starts the child.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?)
}

/// A child, from the parent's side. Killed and reaped when dropped.
pub(super) struct ChildNode {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl ChildNode {
    pub(super) fn start(case: &Case<'_>, role: &str, argument: &str) -> Self {
        Self::start_with(case, role, argument, None)
    }

    /// Starts a child as [`start`](Self::start) does; it inherits `kept` under the same number.
    pub(super) fn start_with(
        case: &Case<'_>,
        role: &str,
        argument: &str,
        kept: Option<RawFd>,
    ) -> Self {
        super::hear_of_children();
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command
            .args([case.test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ARGUMENT, argument)
            .env(PARENT, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        // Without a closure the child borrows our memory until it executes its program; else it is
        // given a copy of all page tables first.
        if let Some(fd) = kept {
            // SAFETY: the closure runs between fork and exec and makes one system call, which is
            // async-signal-safe and touches no memory.
            unsafe { command.pre_exec(move || inherit(fd)) };
        }
        let mut child = command.spawn().expect("start the test binary again");
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Self { child, lines }
    }

    /// The next marked line. The child must not need us while we wait for it.
    pub(super) fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).expect("the child's output");
            assert!(read > 0, "the child ended without saying what it had to");
            if let Some(text) = line.trim_end().strip_prefix(MARK) {
                return text.to_owned();
            }
        }
    }

    pub(super) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signal the child");
    }

    /// Stops it, and waits until the kernel has: another processor may run it a little longer.
    pub(super) fn stop(&self) {
        use rustix::process::{Signal, WaitOptions, waitpid};
        self.signal(Signal::STOP);
        let pid = rustix::process::Pid::from_child(&self.child);
        let status = waitpid(Some(pid), WaitOptions::UNTRACED).expect("wait for the child");
        assert!(status.is_some_and(|(_, status)| status.stopped()), "the child has ended");
    }

    /// Waits until it has ended by itself.
    pub(super) fn wait(&mut self) {
        self.child.wait().expect("reap the child");
    }

    /// Kills it with SIGKILL and waits until it is dead.
    pub(super) fn kill(&mut self) {
        end_child(&mut self.child);
    }
}

impl Drop for ChildNode {
    fn drop(&mut self) {
        end_child(&mut self.child);
    }
}

/// Kills a child with SIGKILL, waits until it is dead, and removes the shared memory that libfabric
/// leaves behind then, `PID:USER:NUMBER`: a later process with the same number could open no
/// `ofi+shm`. Does nothing to a child that has ended: its number may be another one's by now.
pub fn end_child(child: &mut Child) {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    let _ = child.kill();
    let _ = child.wait();
    let mine = format!("{}:", child.id());
    for file in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        if file.file_name().to_string_lossy().starts_with(&mine) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}
