//! Ctrl-C, SIGTERM, and the end of the terminal: the first signal asks to stop, the second one
//! stops at once. While there is nothing to stop, the first one also stops at once. Also here: the
//! death of the parent.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io, thread};

use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::daemon::failure::Failure;

/// Makes a file at its limit (`ulimit -f`) an error of the write, and not the end of the process:
/// also standard error, and what libraries write.
pub fn outlive_file_limit() -> Result<(), Failure> {
    not_ignored(&[SIGXFSZ]).try_for_each(catch_for_nothing)
}

/// Lets this process wait for those that it starts, where it was started with SIGCHLD ignored: the
/// kernel would tell nobody how they ended.
pub fn hear_of_children() -> Result<(), Failure> {
    [SIGCHLD].into_iter().filter(|signal| is_ignored(*signal)).try_for_each(catch_for_nothing)
}

/// A handler in whose place programs that are executed later find the default.
fn catch_for_nothing(signal: i32) -> Result<(), Failure> {
    signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
        .map(drop)
        .map_err(|error| Failure::new("cannot catch signals", error))
}

type Action = Box<dyn FnOnce() + Send>;
type Again = Arc<dyn Fn() + Send + Sync>;

/// The actions at signals.
#[derive(Default)]
struct Actions {
    stop: Option<Action>,
    clean_up: Option<Action>,
    /// The action that SIGHUP asks for instead.
    at_hangup: Option<Again>,
}

impl fmt::Debug for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Actions").field("is_waiting", &self.stop.is_some()).finish()
    }
}

/// The signals, from now on.
#[derive(Debug)]
pub struct Caught(Arc<Mutex<Actions>>);

/// Yields the signals that were not ignored when the process started. A parent that ignores one
/// wants the process to go on when it comes (`nohup`).
pub fn not_ignored(signals: &[i32]) -> impl Iterator<Item = i32> {
    signals.iter().copied().filter(|signal| !is_ignored(*signal))
}

/// Returns true if the process was started with this signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn lock(actions: &Mutex<Actions>) -> MutexGuard<'_, Actions> {
    actions.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Caught {
    /// Starts the thread that hears them. Until [`handle`](Self::handle) says what is to be done
    /// the first one ends the process: nothing has been begun that would have to be ended in order,
    /// and what goes on may wait for something that never comes.
    pub fn new() -> Result<Self, Failure> {
        let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(not_ignored(&[SIGHUP])))
            .map_err(|error| Failure::new("cannot catch signals", error))?;
        let own = Arc::new(Mutex::new(Actions::default()));
        let actions = own.clone();
        let watch = move || {
            for signal in signals.forever() {
                let at_hangup = lock(&actions).at_hangup.clone().filter(|_| signal == SIGHUP);
                if let Some(again) = at_hangup {
                    again();
                    continue;
                }
                let stop = lock(&actions).stop.take();
                let Some(stop) = stop else {
                    let clean_up = lock(&actions).clean_up.take();
                    clean_up.into_iter().for_each(|clean_up| clean_up());
                    signal_hook::low_level::exit(128 + signal);
                };
                stop();
            }
        };
        let started: io::Result<_> =
            thread::Builder::new().name("margo-signals".to_owned()).spawn(watch);
        started
            .map(|_| Self(own))
            .map_err(|error| Failure::new("cannot start the signal thread", error))
    }

    /// From now on the first signal calls `stop`, which must not wait; the second one `clean_up`,
    /// and ends the process with status 128 plus the signal's number. Once.
    pub fn handle(
        &self,
        stop: impl FnOnce() + Send + 'static,
        clean_up: impl FnOnce() + Send + 'static,
    ) {
        let mut actions = lock(&self.0);
        actions.stop = Some(Box::new(stop));
        actions.clean_up = Some(Box::new(clean_up));
    }

    /// From now on SIGHUP calls `again`, which must not wait, as often as it comes; not where this
    /// process has a terminal, whose end it is.
    pub fn at_hangup(&self, again: impl Fn() + Send + Sync + 'static) {
        if std::fs::File::open("/dev/tty").is_err() {
            lock(&self.0).at_hangup = Some(Arc::new(again));
        }
    }
}

/// Makes this process end when its parent does, however that ends.
pub fn die_with(parent: i32) -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Failure::new("cannot follow the parent process", errno))?;
    // It may have started us as `/proc/self/exe`, which is no name to show in a process list.
    if let Ok(name) = std::ffi::CString::new(super::output::program()) {
        let _ = rustix::thread::set_name(&name);
    }
    // It may have ended before that.
    if rustix::process::getppid().map(Pid::as_raw_pid) == Some(parent) {
        Ok(())
    } else {
        Err(Failure::Failed(format!("the parent process {parent} is gone")))
    }
}
