//! Child processes: copies of this program that end when it does, and other programs that do.
//!
//! Three generations: the *supervisor* (what the user started) runs each row in a *row process*,
//! and that one starts the *peer* it needs. A child is told what to do by a JSON order on its
//! command line, and answers in lines on its standard output.
//!
//! # Nobody is left behind
//!
//! - Normal end, error, panic: [`ChildProcess`] kills and reaps when it is dropped.
//! - The parent is killed: each child asks the kernel for `SIGKILL` on its parent's death, before
//!   it becomes the program that it shall be; a copy of this program then checks that its parent
//!   was not dead already. The kernel means the *thread* that started the child, so children are
//!   started from a process's main thread only.
//! - Ctrl-C and a killed row process: see `signals.rs`.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::signals::interrupted;
use crate::base::{Deadline, Doing, Failure, OrFail, Result, ensure, fail};

/// Longest sleep of a wait, so that an interrupt between its check and its sleep is seen.
const NAP: Duration = Duration::from_millis(100);

/// The kind of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Measures one row.
    Row,
    /// The other side of a two-process row.
    Peer,
    /// A server, a client or a measurement of `scale`.
    Scale,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::Row => "__row",
            Self::Peer => "__peer",
            Self::Scale => "__scale",
        }
    }

    /// The role that a command line asks for: `__row PARENT ORDER`. Not for users.
    pub(crate) fn of(word: &str) -> Option<Self> {
        [Self::Row, Self::Peer, Self::Scale].into_iter().find(|role| role.word() == word)
    }
}

/// A running child with its pipes. Dropping it kills and reaps the process.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Child,
    stdout: ChildStdout,
    /// Output that has been read and not yet handed out.
    pending: Vec<u8>,
    deadline: Deadline,
}

impl ChildProcess {
    /// Starts a copy of this program as `role` with `order`, which answers until `deadline`. Main
    /// thread only, see above.
    ///
    /// # Errors
    ///
    /// When the system starts no process.
    pub(crate) fn start(role: Role, order: &impl Serialize, deadline: Deadline) -> Result<Self> {
        let order = serde_json::to_string(order).doing("writing an order")?;
        // This program, also when its file has been replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg(role.word()).arg(std::process::id().to_string()).arg(order);
        Self::spawn(command.stdin(Stdio::piped()), deadline)
    }

    /// Starts another program, of which only the output is read. Main thread only.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(crate) fn program(command: &mut Command, deadline: Deadline) -> Result<Self> {
        Self::spawn(command.stdin(Stdio::null()).stderr(Stdio::null()), deadline)
    }

    fn spawn(command: &mut Command, deadline: Deadline) -> Result<Self> {
        let die_with_us = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY:
        // - between `fork` and `exec` it makes one system call: no allocation, no lock, no panic.
        unsafe { command.pre_exec(die_with_us) };
        let mut child = command.stdout(Stdio::piped()).spawn().doing("starting a process")?;
        let stdout = child.stdout.take().or_fail("starting a process: no pipe to it")?;
        Ok(Self { child, stdout, pending: Vec::new(), deadline })
    }

    /// The child's process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its output, which [`send`] or [`send_failure`] wrote.
    ///
    /// # Errors
    ///
    /// The failure that the child sent, or: the deadline passes, the process ends, the line is no
    /// `T`, the user interrupts.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self, what: &str) -> Result<T> {
        let line = loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                break self.pending.drain(..=end).collect::<Vec<u8>>();
            }
            if !self.fill(what)? {
                let how = self.child.wait().doing(what)?;
                fail!("{what}: the process ended early ({how})");
            }
        };
        let told: Result<T, String> = serde_json::from_slice(&line).doing(what)?;
        told.map_err(Failure::new)
    }

    /// Reads what has come, waiting for it until the deadline; `false`: that is the end.
    fn fill(&mut self, what: &str) -> Result<bool> {
        while !readable(&self.stdout, self.deadline.left().min(NAP))? {
            ensure!(!interrupted(), "interrupted");
            self.deadline.check(what)?;
        }
        let mut chunk = [0; 64 << 10];
        let count = self.stdout.read(&mut chunk).doing(what)?;
        self.pending.extend_from_slice(&chunk[..count]);
        Ok(count > 0)
    }

    /// All that a program prints.
    ///
    /// # Errors
    ///
    /// When it fails, or does not end in time.
    pub(crate) fn output(mut self) -> Result<String> {
        while self.fill("a program's output")? {}
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended with {status}");
        String::from_utf8(std::mem::take(&mut self.pending)).doing("a program's output")
    }

    /// Checks that a program has not ended; `what` says which it is.
    ///
    /// # Errors
    ///
    /// When it has.
    pub(crate) fn check(&mut self, what: &str) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(how) => fail!("{what} ended early ({how})"),
        }
    }

    /// Says the word for which the process waits, see [`wait_for_word`].
    ///
    /// # Errors
    ///
    /// When the process is gone.
    pub(crate) fn say_word(&mut self) -> Result<()> {
        let stdin = self.child.stdin.as_mut().or_fail("no pipe to the process")?;
        stdin.write_all(b"\n").doing("writing to a process")
    }

    /// Asks the process to end: its standard input ends.
    pub(crate) fn ask_to_finish(&mut self) {
        self.child.stdin = None;
    }

    /// Asks the process to end and waits for it.
    ///
    /// # Errors
    ///
    /// When it has not ended well by the deadline; it is killed then.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.ask_to_finish();
        let end = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        while !readable(&end, self.deadline.left().min(NAP))? {
            self.deadline.check("the end of the peer")?;
        }
        let status = self.child.wait()?;
        ensure!(status.success(), "the peer ended with {status}");
        Ok(())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Both fail only for a process that is gone and reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns true if `fd` has input, an end or an error to report, waiting at most `limit`.
fn readable(fd: impl AsFd, limit: Duration) -> Result<bool> {
    let timeout = Timespec::try_from(limit)?;
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => fail!("waiting for a process: {errno}"),
    }
}

/// Has this child die with `parent`, the process that started it. Called before anything else. Asks
/// the kernel once more, for a child that was started by hand.
///
/// # Errors
///
/// When the parent is dead already.
pub(crate) fn die_with_parent(parent: &str) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).doing("asking to die with the parent")?;
    let now = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
    ensure!(now.to_string() == parent, "the parent {parent} is gone");
    Ok(())
}

/// In a child: sends `value` as a line to the parent.
///
/// # Errors
///
/// When the parent does not read any more.
pub(crate) fn send(value: &impl Serialize) -> Result<()> {
    send_line(&Result::<_, ()>::Ok(value))
}

/// In a child: tells the parent that there will be no value, and why.
///
/// # Errors
///
/// When the parent does not read any more.
pub(crate) fn send_failure(failure: &Failure) -> Result<()> {
    send_line(&Result::<(), _>::Err(failure.to_string()))
}

fn send_line(told: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(told).doing("writing a line to the parent")?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).doing("writing to the parent")
}

/// In a child: sleeps until the parent says a word, once.
///
/// # Errors
///
/// When the parent asks for the end instead.
pub(crate) fn wait_for_word() -> Result<()> {
    std::io::stdin().read_exact(&mut [0]).doing("waiting for the parent's word")
}

/// In a child: whether the parent has asked for the end.
///
/// # Errors
///
/// When standard input cannot be read.
pub(crate) fn finish_asked() -> Result<bool> {
    // Nothing more is written to a child that asks: all there is to read is the end.
    readable(std::io::stdin(), Duration::ZERO)
}

/// In a child: runs `poll` until the parent asks for the end, since its last answer may still need
/// help to leave.
///
/// # Errors
///
/// When standard input cannot be read, the deadline passes, or `poll` fails.
pub(crate) fn poll_until_finish(
    deadline: Deadline,
    mut poll: impl FnMut() -> Result<()>,
) -> Result<()> {
    while !finish_asked()? {
        poll()?;
        deadline.check("the end of the caller")?;
    }
    Ok(())
}

/// In a child: sleeps until the parent asks for the end, see [`ChildProcess::finish`].
///
/// # Errors
///
/// When standard input cannot be read.
pub(crate) fn wait_for_finish() -> Result<()> {
    let mut byte = [0];
    while std::io::stdin().read(&mut byte).doing("waiting for the parent")? > 0 {}
    Ok(())
}
