//! `margo stream run`: one loop, which waits for output, ends and signals.

use std::fs::{File, TryLockError};
use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use margo::daemon::Failure;
use margo_stream::graph::{GraphDocument, GroupNews};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::termios::tcgetwinsize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use tempfile::NamedTempFile;

use super::command::{command, launcher};
use super::group::{Blame, GroupProcess, Printed};
use super::table::FigureTable;
use crate::args::StreamRunArgs;
use crate::security::secret::fresh;
use crate::support::signals::not_ignored;
use crate::support::{caught, output};

/// Time in which groups may end after SIGTERM.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// Time in which a group that others blame for their end may end itself, and the others after it.
const PEERS: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &StreamRunArgs) -> Result<(), Failure> {
    let file = &args.graph.file;
    let document = super::read(file)?;
    let _lock = lock(file)?;
    let interval = Duration::from_secs_f64(args.interval);
    let launcher = args.launcher.as_deref().map(launcher);
    let given = (&args.graph.program[..], launcher.as_ref());
    let secret = document.wants_secret().then(fresh_secret).transpose()?;
    let path = |file: &NamedTempFile| file.path().display().to_string();
    let path = secret.as_ref().map(|file| (GraphDocument::SECRET.to_owned(), path(file)));
    let news = (GroupNews::VARIABLE.to_owned(), interval.as_millis().to_string());
    let more = [Some(news), path].into_iter().flatten().collect();
    let names = document.groups.keys();
    // What can be wrong with any of them is said before one is started.
    let commands = names
        .map(|name| Ok((name, command(&document, (name, file), given, &more)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    let signals = watched_signals().map_err(|error| Failure::new("cannot catch signals", error))?;
    let groups = commands.into_iter().map(|(name, made)| GroupProcess::start(name, made));
    let groups = groups.collect::<Result<Vec<_>, _>>()?;
    let is_terminal = io::stderr().is_terminal();
    let (shows, next) = (args.table || is_terminal, Instant::now() + interval);
    let width = groups.iter().map(|group| group.name.chars().count()).max().unwrap_or(0);
    let board = Board { width, is_terminal, drawn: 0, lines: Vec::new(), trouble: None };
    let (table, look) = (FigureTable::new(), shows.then_some((next, interval)));
    let mut running = GraphRun { groups, board, table, look, over: None, ending: None };
    running.wait(&signals)?;
    running.outcome()
}

/// A file with a secret for this run, gone with it. In this folder, which launchers on other hosts
/// see as well if they see the document.
fn fresh_secret() -> Result<NamedTempFile, Failure> {
    let failed = |error| Failure::new("cannot make a secret for this run", error);
    let folder = std::env::current_dir().map_err(failed)?;
    let mut made = tempfile::Builder::new();
    let made = made.prefix(".margo-stream-").suffix(".secret").tempfile_in(folder);
    let mut file = made.map_err(failed)?;
    file.write_all(fresh()?.as_bytes()).map_err(failed)?;
    Ok(file)
}

/// Takes the lock of the document. Where there are no locks, those of the endpoints tell.
fn lock(file: &Path) -> Result<Option<File>, Failure> {
    let Ok(lock) = File::open(file) else { return Ok(None) };
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Err(Failure::Failed(format!(
            "{}: another `margo stream run` runs this document",
            file.display()
        ))),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// The signals that end all, each with a stream that tells of it. The second one ends this process
/// at once, whatever it does, and with it its children.
fn watched_signals() -> io::Result<Vec<(i32, UnixStream)>> {
    let is_second = Arc::new(AtomicBool::new(false));
    let signals = [SIGINT, SIGTERM].into_iter().chain(not_ignored(&[SIGHUP]));
    let watch = |signal| {
        flag::register_conditional_shutdown(signal, 128 + signal, is_second.clone())?;
        flag::register(signal, is_second.clone())?;
        Ok((signal, caught([signal])?))
    };
    signals.map(watch).collect()
}

/// All groups, until the last has ended.
struct GraphRun {
    groups: Vec<GroupProcess>,
    board: Board,
    table: FigureTable,
    /// The next look at the figures, and the time between two.
    look: Option<(Instant, Duration)>,
    /// The reason why all are ended that is no failure of theirs.
    over: Option<Failure>,
    /// The signal that those which still run get next, and when. `None`: they go on.
    ending: Option<(Instant, Option<Signal>)>,
}

impl GraphRun {
    fn wait(&mut self, signals: &[(i32, UnixStream)]) -> Result<(), Failure> {
        while self.groups.iter().any(|group| group.end.is_none()) {
            self.board.draw();
            let ready = self.poll(signals)?;
            for ready in ready {
                match ready {
                    Ready::Signal(signal) => {
                        let number = u8::try_from(signal).unwrap_or(0);
                        self.over.get_or_insert(Failure::Signal(number));
                    }
                    Ready::Ended(at) => {
                        self.groups[at].reap()?;
                        self.take(at);
                    }
                    Ready::Printed(at) => self.take(at),
                }
            }
            self.over = self.over.take().or(self.board.trouble.take());
            self.end_others();
            self.show();
        }
        self.board.erase();
        Ok(())
    }

    /// Waits until something has happened.
    fn poll(&self, signals: &[(i32, UnixStream)]) -> Result<Vec<Ready>, Failure> {
        let mut fds = Vec::new();
        let mut whose = Vec::new();
        for (signal, stream) in signals.iter().filter(|_| self.over.is_none()) {
            fds.push(PollFd::new(stream, PollFlags::IN));
            whose.push(Ready::Signal(*signal));
        }
        let running = self.groups.iter().enumerate().filter(|(_, group)| group.end.is_none());
        for (at, group) in running {
            fds.extend(group.stdout.pipe().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            fds.extend(group.stderr.pipe().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            whose.resize(fds.len(), Ready::Printed(at));
            fds.push(PollFd::new(&group.pidfd, PollFlags::IN));
            whose.push(Ready::Ended(at));
        }
        let ending = self.ending.filter(|(_, signal)| signal.is_some()).map(|(at, _)| at);
        let until = self.look.map(|(at, _)| at).into_iter().chain(ending).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Failure::new("cannot wait for the groups", errno)),
        }
        let ready = fds.iter().zip(whose).filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, whose)| whose).collect())
    }

    fn take(&mut self, at: usize) {
        let Self { groups, board, table, .. } = self;
        let print = |name: &str, printed, line: &[u8]| board.print(name, printed, line);
        groups[at].take(print, |name, news| table.take(name, news));
    }

    /// Ends those that still run, if there is a reason.
    fn end_others(&mut self) {
        let now = Instant::now();
        let failed = self.groups.iter().filter_map(GroupProcess::blame);
        let first = failed.map(|(blame, _)| blame).min();
        let has_cause = self.over.is_some() || first.is_some_and(|first| first < Blame::Peer);
        let due = match self.ending {
            None | Some((_, Some(Signal::TERM))) if has_cause => Some(Signal::TERM),
            None if first == Some(Blame::Peer) => {
                // Whom it blames is going to say more.
                self.ending = Some((now + PEERS, Some(Signal::TERM)));
                None
            }
            Some((at, signal)) if at <= now => signal,
            _ => None,
        };
        let Some(signal) = due else { return };
        self.groups.iter_mut().for_each(|group| group.signal(signal));
        let next = (signal == Signal::TERM).then_some(Signal::KILL);
        self.ending = Some((now + GRACE, next));
    }

    /// Shows the figures if it is time.
    fn show(&mut self) {
        if let Some((at, interval)) = self.look
            && at <= Instant::now()
        {
            self.look = Some((Instant::now() + interval, interval));
            self.board.show(self.table.look());
        }
    }

    fn outcome(self) -> Result<(), Failure> {
        if let Some(over) = self.over {
            return Err(over);
        }
        let failed = self.groups.iter().filter_map(|group| Some((group.blame()?, group)));
        if let Some((_, group)) = failed.min_by_key(|(blame, _)| *blame) {
            return Err(Failure::Failed(group.explain()));
        }
        let _ = writeln!(io::stderr(), "{}", self.table.summary(&self.groups).join("\n"));
        Ok(())
    }
}

/// Something that has happened, to one of the groups mostly.
#[derive(Clone, Copy)]
enum Ready {
    Signal(i32),
    Printed(usize),
    Ended(usize),
}

/// Standard output and standard error: what groups print, and below it the table.
struct Board {
    /// Characters of the longest name.
    width: usize,
    /// Standard error is one.
    is_terminal: bool,
    /// Lines of the table that stand on the terminal.
    drawn: usize,
    lines: Vec<String>,
    /// Nobody takes what is printed.
    trouble: Option<Failure>,
}

impl Board {
    fn print(&mut self, name: &str, printed: Printed, line: &[u8]) {
        self.erase();
        let width = self.width;
        let mut text = format!("{:<width$} | ", output::printable(name)).into_bytes();
        text.extend_from_slice(line);
        text.push(b'\n');
        if printed == Printed::Stderr {
            // Lost if nobody reads it.
            let _ = io::stderr().lock().write_all(&text);
        } else if let Err(error) = io::stdout().lock().write_all(&text) {
            self.trouble.get_or_insert(match error.kind() {
                io::ErrorKind::BrokenPipe => Failure::OutputClosed,
                _ => Failure::new("cannot write to standard output", output::why(&error)),
            });
        }
    }

    fn show(&mut self, lines: Vec<String>) {
        self.erase();
        self.lines = lines;
        if !self.is_terminal {
            let _ = writeln!(io::stderr(), "{}", self.lines.join("\n"));
        }
    }

    /// Draws the table below all, if it does not stand there.
    fn draw(&mut self) {
        if !self.is_terminal || self.drawn > 0 || self.lines.is_empty() {
            return;
        }
        let size = tcgetwinsize(io::stderr()).ok().filter(|size| size.ws_col > 0);
        let (columns, rows) = size.map_or((80, 24), |size| (size.ws_col, size.ws_row));
        let lines = self.lines.iter().take(usize::from(rows).saturating_sub(1));
        let cut = |line: &String| line.chars().take(columns.into()).chain(['\n']).collect();
        let lines: Vec<String> = lines.map(cut).collect();
        let _ = io::stderr().lock().write_all(lines.concat().as_bytes());
        self.drawn = lines.len();
    }

    fn erase(&mut self) {
        if self.drawn > 0 {
            let _ = write!(io::stderr(), "\x1b[{}A\x1b[J", self.drawn);
            self.drawn = 0;
        }
    }
}
