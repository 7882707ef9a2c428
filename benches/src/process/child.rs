//! Child processes: copies of this program that end when it does.
//!
//! Three generations: the *supervisor* (what the user started) runs each row in a *row process*,
//! and that one starts the *peers* it needs. A child is told what to do by a JSON order on its
//! command line, and answers in lines on its standard output.
//!
//! # Nobody is left behind
//!
//! - Normal end, error, panic: [`ChildProcess`] kills and reaps when it is dropped.
//! - The parent is killed: each child asks the kernel for `SIGKILL` on its parent's death, before
//!   it becomes the program that it shall be; a copy of this program then checks that its parent
//!   was not dead already. The kernel means the *thread* that started the child, so children are
//!   started from a process's main thread only.
//! - Ctrl-C: [`catch_interrupts`] makes the supervisor's waits end, so its guards run.
//! - A killed row process leaves dead peers: they become children of the supervisor
//!   ([`adopt_orphans`]), which reaps them after each row ([`reap_orphans`]).

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, set_parent_process_death_signal,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::base::failure::{Doing, Failure, Result};
use crate::base::wait::Deadline;

/// Set by the signal handler, which may do nothing else.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Longest sleep of a wait, so that an interrupt between its check and its sleep is seen.
const NAP: Duration = Duration::from_millis(100);

/// The kind of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Measures one row.
    Row,
    /// The other side of a two-process row.
    Peer,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::Row => "__row",
            Self::Peer => "__peer",
        }
    }

    /// The role that a command line asks for: `__row PARENT ORDER`. Not for users.
    pub(crate) fn of(word: &str) -> Option<Self> {
        [Self::Row, Self::Peer].into_iter().find(|role| role.word() == word)
    }
}

/// A running child with its pipes. Dropping it kills and reaps the process.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Reaped,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// Output that has been read and not yet handed out.
    pending: Vec<u8>,
}

impl ChildProcess {
    /// Starts a copy of this program as `role` with `order`. Main thread only, see above.
    ///
    /// # Errors
    ///
    /// When the system starts no process.
    pub(crate) fn start(role: Role, order: &impl Serialize) -> Result<Self> {
        let order = serde_json::to_string(order).doing("writing an order")?;
        // This program, also when its file has been replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg(role.word())
            .arg(std::process::id().to_string())
            .arg(order)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = Reaped(spawn(&mut command).doing("starting a process")?);
        let (stdin, stdout) = (child.0.stdin.take(), child.0.stdout.take());
        let stdout = stdout.ok_or_else(|| Failure::new("starting a process: no pipe to it"))?;
        Ok(Self { child, stdin, stdout, pending: Vec::new() })
    }

    /// The child's process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// The next line of its output, which [`send`] or [`send_failure`] wrote.
    ///
    /// # Errors
    ///
    /// The failure that the child sent, or: the deadline passes, the process ends, the line is no
    /// `T`, the user interrupts.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        what: &str,
        deadline: Deadline,
    ) -> Result<T> {
        let line = loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                break self.pending.drain(..=end).collect::<Vec<u8>>();
            }
            self.fill(what, deadline)?;
        };
        let told: std::result::Result<T, String> = serde_json::from_slice(&line).doing(what)?;
        told.map_err(Failure::new)
    }

    /// Reads what has come, waiting for it until the deadline.
    fn fill(&mut self, what: &str, deadline: Deadline) -> Result<()> {
        while !readable(self.stdout.as_fd(), deadline.left().min(NAP))? {
            if interrupted() {
                return Err(Failure::new("interrupted"));
            }
            deadline.check(what)?;
        }
        let mut chunk = [0; 64 << 10];
        let count = self.stdout.read(&mut chunk).doing(what)?;
        if count == 0 {
            let how = self.child.0.wait().doing(what)?;
            return Err(Failure::new(format!("{what}: the process ended early ({how})")));
        }
        self.pending.extend_from_slice(&chunk[..count]);
        Ok(())
    }

    /// Asks the process to end: its standard input ends.
    pub(crate) fn ask_to_finish(&mut self) {
        self.stdin = None;
    }

    /// Asks the process to end and waits for it.
    ///
    /// # Errors
    ///
    /// When it has not ended well by the deadline; it is killed then.
    pub(crate) fn finish(mut self, deadline: Deadline) -> Result<()> {
        self.ask_to_finish();
        let end = pidfd_open(Pid::from_child(&self.child.0), PidfdFlags::empty())
            .doing("watching a process")?;
        while !readable(&end, deadline.left().min(NAP))? {
            deadline.check("the end of the peer")?;
        }
        let status = self.child.0.wait().doing("reaping a process")?;
        let failed = || Failure::new(format!("the peer ended with {status}"));
        if status.success() { Ok(()) } else { Err(failed()) }
    }
}

/// A process that is killed and reaped on drop.
#[derive(Debug)]
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // Both fail only for a process that is gone and reaped already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program that does not outlive the calling thread. Main thread only.
fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let die_with_us = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY:
    // - between `fork` and `exec` it makes one system call: no allocation, no lock, no panic.
    unsafe { command.pre_exec(die_with_us) };
    command.spawn()
}

/// Another program, on a core of its own. Dropping it kills and reaps the process.
pub(crate) struct Program(Reaped);

impl Program {
    /// Starts it. Main thread only.
    ///
    /// # Errors
    ///
    /// When it cannot be started on that core.
    pub(crate) fn start(command: &mut Command, core: usize) -> Result<Self> {
        let mut cores = CpuSet::new();
        cores.set(core);
        let pin = move || Ok(sched_setaffinity(None, &cores)?);
        // SAFETY:
        // - between `fork` and `exec` it makes one system call: no allocation, no lock, no panic.
        unsafe { command.pre_exec(pin) };
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(Reaped(spawn(command).doing("starting a program")?)))
    }

    /// Checks that the child has not ended.
    ///
    /// # Errors
    ///
    /// When it has; `what` says which it is.
    pub(crate) fn check(&mut self, what: &str) -> Result<()> {
        match self.0.0.try_wait().doing("watching a program")? {
            None => Ok(()),
            Some(how) => Err(Failure::new(format!("{what} ended early ({how})"))),
        }
    }
}

/// Returns what another program prints, without its errors. Main thread only.
///
/// # Errors
///
/// When it cannot be started, fails, or does not end in time; it is killed then.
pub(crate) fn output_of(program: &mut Command, deadline: Deadline) -> Result<String> {
    let program = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Reaped(spawn(program).doing("starting a program")?);
    let mut stdout = child.0.stdout.take().ok_or_else(|| Failure::new("no pipe to a program"))?;
    let mut text = Vec::new();
    loop {
        while !readable(&stdout, deadline.left().min(NAP))? {
            deadline.check("a program's output")?;
        }
        let mut chunk = [0; 1024];
        match stdout.read(&mut chunk).doing("a program's output")? {
            0 => break,
            count => text.extend_from_slice(&chunk[..count]),
        }
    }
    let status = child.0.wait().doing("reaping a program")?;
    let text = String::from_utf8(text).doing("a program's output")?;
    if status.success() { Ok(text) } else { Err(Failure::new(format!("it ended with {status}"))) }
}

/// Returns true if `fd` has input, an end or an error to report, waiting at most `limit`.
fn readable(fd: impl AsFd, limit: Duration) -> Result<bool> {
    let timeout = Timespec::try_from(limit).doing("a time limit")?;
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(Failure::new(format!("waiting for a process: {errno}"))),
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
    if now.to_string() == parent {
        Ok(())
    } else {
        Err(Failure::new(format!("the parent {parent} is gone")))
    }
}

/// In a child: sends `value` as a line to the parent.
///
/// # Errors
///
/// When the parent does not read any more.
pub(crate) fn send(value: &impl Serialize) -> Result<()> {
    send_line(&std::result::Result::<_, ()>::Ok(value))
}

/// In a child: tells the parent that there will be no value, and why.
///
/// # Errors
///
/// When the parent does not read any more.
pub(crate) fn send_failure(failure: &Failure) -> Result<()> {
    send_line(&std::result::Result::<(), _>::Err(failure.to_string()))
}

fn send_line(told: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(told).doing("writing a line to the parent")?;
    line.push('\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line.as_bytes()).doing("writing to the parent")?;
    stdout.flush().doing("writing to the parent")
}

/// In a child: whether the parent has asked for the end.
///
/// # Errors
///
/// When standard input cannot be read.
pub(crate) fn finish_asked() -> Result<bool> {
    let stdin = std::io::stdin();
    // The parent never writes: all there is to read is the end.
    readable(stdin.as_fd(), Duration::ZERO)
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

/// Makes Ctrl-C and `SIGTERM` end the supervisor's waits instead of the supervisor.
pub(crate) fn catch_interrupts() {
    extern "C" fn note(_signal: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    let handler = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY:
        // - `handler` is a function of the signature that `signal` expects, alive for ever;
        // - it is async-signal-safe: one atomic store;
        // - no thread relies on the replaced default action. Children get it back at `exec`.
        unsafe { libc::signal(signal, handler) };
    }
}

/// Returns true if the user asked for the end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Makes this process the parent of its children's orphans.
///
/// # Errors
///
/// When the kernel refuses.
pub(crate) fn adopt_orphans() -> Result<()> {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).doing("adopting orphans")
}

/// Reaps the orphans. They die with the row process that started them, so there is little to wait
/// for. No [`ChildProcess`] of this process may be alive: it would be reaped as well.
pub(crate) fn reap_orphans() {
    let deadline = Deadline::after(Duration::from_secs(2));
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) if deadline.left().is_zero() => return,
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return, // no children left
        }
    }
}
