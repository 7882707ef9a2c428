//! A group that runs: its process, what it prints and tells, how it ended.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use margo::daemon::Failure;
use margo_stream::graph::GroupNews;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::command::GroupCommand;
use super::lines::LinePipe;

/// Lines of standard error that are repeated when a group has failed, and characters of each.
const TAIL_LINES: usize = 10;
const TAIL_CHARS: usize = 400;

/// Turns in which a pipe is emptied whose writers have ended, as far as they are known to us: more
/// than it holds.
const LAST_TURNS: usize = 32;

/// The end of a group.
#[derive(Debug)]
pub(super) struct GroupEnd {
    pub(super) status: ExitStatus,
    pub(super) at: Instant,
    pub(super) elapsed: Duration,
    /// We had asked it to end before.
    is_asked: bool,
}

/// The kinds of failures, the likeliest cause of the others first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Blame {
    Killed,
    Own,
    /// By its own account, another group has failed.
    Peer,
    /// We had asked it to end.
    Asked,
}

/// The streams of a group, as lines of both are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Printed {
    Stdout,
    Stderr,
}

/// A group, from its start on.
#[derive(Debug)]
pub(super) struct GroupProcess {
    pub(super) name: String,
    child: Child,
    /// Readable when the process has ended.
    pub(super) pidfd: OwnedFd,
    pub(super) stdout: LinePipe<ChildStdout>,
    pub(super) stderr: LinePipe<ChildStderr>,
    /// Closed to have it end, where it may not be our child.
    stdin: Option<ChildStdin>,
    since: Instant,
    tail: VecDeque<String>,
    /// The reason that it gives for its failure, and the group that it blames.
    failure: Option<(String, Option<String>)>,
    is_asked: bool,
    pub(super) end: Option<GroupEnd>,
}

impl GroupProcess {
    /// Starts it. On the main thread: children end with the thread that has started them.
    pub(super) fn start(name: &str, made: GroupCommand) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(format_args!("cannot start group `{name}`"), error)
        };
        let mut command = super::child(&made.words);
        command.envs(made.environment).process_group(0);
        command.stdin(if made.is_behind { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            // By which it knows that this is not any input, see `graph/launched.rs`. If it has
            // ended already, that is found out.
            let _ = stdin.write_all(b"\n");
        }
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let pidfd = pidfd.map_err(|errno| failed(errno.into()))?;
        let none = || failed(std::io::ErrorKind::BrokenPipe.into());
        let stdout = LinePipe::new(child.stdout.take().ok_or_else(none)?).map_err(failed)?;
        let stderr = LinePipe::new(child.stderr.take().ok_or_else(none)?).map_err(failed)?;
        let (name, since, tail) = (name.to_owned(), Instant::now(), VecDeque::new());
        let (failure, is_asked, end) = (None, false, None);
        Ok(Self { name, child, pidfd, stdout, stderr, stdin, since, tail, failure, is_asked, end })
    }

    /// Takes what it has printed: a turn of each stream, or the rest when it has ended. `print`
    /// gets the lines, and `news` the figures of edges.
    pub(super) fn take(
        &mut self,
        mut print: impl FnMut(&str, Printed, &[u8]),
        mut news: impl FnMut(&str, GroupNews),
    ) {
        let Self { name, stdout, stderr, tail, failure, end, .. } = self;
        let turns = if end.is_some() { LAST_TURNS } else { 1 };
        let _ = (0..turns).find(|_| !stdout.take(|line| print(name, Printed::Stdout, line)));
        let mut heard = |line: &[u8]| {
            // The program may have begun a line.
            let mark = line.iter().position(|byte| *byte == GroupNews::MARK);
            let told = mark.and_then(|at| Some((at, GroupNews::parse(&line[at..])?)));
            let line = told.as_ref().map_or(line, |(at, _)| &line[..*at]);
            let is_news = told.is_some();
            match told {
                Some((_, GroupNews::Failed { why, peer })) => *failure = Some((why, peer)),
                Some((_, figures)) => news(name, figures),
                None => {}
            }
            if !is_news || !line.is_empty() {
                tail.push_back(String::from_utf8_lossy(line).chars().take(TAIL_CHARS).collect());
                if tail.len() > TAIL_LINES {
                    tail.pop_front();
                }
                print(name, Printed::Stderr, line);
            }
        };
        let _ = (0..turns).find(|_| !stderr.take(&mut heard));
        if end.is_some() {
            stderr.end(heard);
            stdout.end(|line| print(name, Printed::Stdout, line));
        }
    }

    /// Asks it to end, or ends it.
    pub(super) fn signal(&mut self, signal: Signal) {
        if self.end.is_some() {
            return;
        }
        self.is_asked = true;
        self.stdin = None;
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Takes note of the end of its process, of which nothing stays.
    pub(super) fn reap(&mut self) -> Result<(), Failure> {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let status = self.child.wait().map_err(|error| Failure::new(&self.name, error))?;
        let (at, is_asked) = (Instant::now(), self.is_asked);
        self.end = Some(GroupEnd { status, at, elapsed: at - self.since, is_asked });
        Ok(())
    }

    /// The kind of failure that its end is, and the time.
    pub(super) fn blame(&self) -> Option<(Blame, Instant)> {
        let end = self.end.as_ref().filter(|end| !end.status.success())?;
        let blame = match &self.failure {
            None if end.is_asked => Blame::Asked,
            None if end.status.signal().is_some() => Blame::Killed,
            Some((_, Some(_))) => Blame::Peer,
            _ => Blame::Own,
        };
        Some((blame, end.at))
    }

    /// Says how it has failed, with the last lines of its standard error.
    pub(super) fn explain(&self) -> String {
        let Some(GroupEnd { status, .. }) = &self.end else { return String::new() };
        let mut text = match &self.failure {
            Some((why, _)) => format!("group `{}` failed ({status}): {why}", self.name),
            None => format!("group `{}` failed: {status}", self.name),
        };
        if !self.tail.is_empty() {
            text.push_str("; the end of its standard error:");
            self.tail.iter().for_each(|line| text.extend(["\n  ", line.trim_end()]));
        }
        text
    }
}

impl Drop for GroupProcess {
    fn drop(&mut self) {
        if self.end.is_none() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
