//! The profile of ULTs and execution streams, as a timeline in a file: `enable_abt_profiling`.
//!
//! Execution streams record ([`ult::Runtime::record`]); this file decides when, and where the
//! record is written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use margo_config::Resolved;
use ult::{RecordOptions, Recording, Trace};

use crate::support::files;
use crate::support::log::{Log, log};
use crate::{InitError, Instance, ProfileError};

/// The profile of an instance.
#[derive(Default)]
pub(crate) struct Profile {
    stage: Mutex<Stage>,
    /// Tells its file from those of other instances of the process.
    file_number: OnceLock<u32>,
}

#[derive(Default)]
enum Stage {
    #[default]
    Never,
    Runs(Recording),
    Stopped(Trace),
    /// The instance has ended.
    Ended,
}

impl Profile {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        // No code of others runs under this lock.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Instance {
    /// Begins to record when units of the pools of this instance, and of all that share its
    /// execution streams, are created, run, yield, wait and are resumed, and when execution streams
    /// sleep. The events of an earlier profile are forgotten; a profile that runs goes on.
    ///
    /// The newest 262,143 events of each execution stream are kept, in 6 MiB; an event costs about
    /// as much as one look at the clock. `enable_abt_profiling` in the configuration does this at
    /// the start, and writes the file at the end.
    ///
    /// # Errors
    ///
    /// - [`ProfileError::Recording`]: the execution streams are being recorded already, by the
    ///   parent instance for example.
    /// - [`ProfileError::Ended`]: finalize has come to the point where profiles end.
    /// - [`ProfileError::Forked`].
    ///
    /// Counterpart: `margo_start_abt_profiling`.
    pub fn start_profiling(&self) -> Result<(), ProfileError> {
        if self.inner().is_forked() {
            return Err(ProfileError::Forked);
        }
        let mut stage = self.inner().profile.stage();
        match *stage {
            Stage::Runs(_) => {}
            Stage::Ended => return Err(ProfileError::Ended),
            Stage::Never | Stage::Stopped(_) => {
                *stage = Stage::Runs(self.runtime().record(&RecordOptions::new())?);
            }
        }
        Ok(())
    }

    /// Ends the recording. [`write_profile`](Self::write_profile) still has what was recorded. In a
    /// child process that was forked off it has no effect.
    ///
    /// It puts the events in order, which blocks the calling execution stream for about a
    /// microsecond per event.
    ///
    /// Counterpart: `margo_stop_abt_profiling`.
    pub fn stop_profiling(&self) {
        if self.inner().is_forked() {
            return;
        }
        let mut stage = self.inner().profile.stage();
        *stage = match std::mem::take(&mut *stage) {
            Stage::Runs(recording) => Stage::Stopped(recording.stop()),
            other => other,
        };
    }

    /// Writes what was recorded so far as a file for `ui.perfetto.dev` and `chrome://tracing`, in
    /// place of the one written before: `<profiling_dir>/margo-profile.<host>.<pid>.abt.json`, with
    /// a number before `abt` for further instances of a process. A recording goes on.
    ///
    /// The file is complete or not there: it gets its name when all of it is written. That takes
    /// about a microsecond per event, and as long as the system takes to write some hundred bytes
    /// for each; a ULT suspends meanwhile, and others run on its execution stream.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] if nothing was recorded, or the instance has ended;
    /// [`io::ErrorKind::Unsupported`] in a child process that was forked off; otherwise those of
    /// the system, with the file's name.
    ///
    /// Counterpart: `margo_dump_abt_profiling`, which writes sums as text.
    pub fn write_profile(&self) -> io::Result<PathBuf> {
        if self.inner().is_forked() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, ProfileError::Forked));
        }
        let inner = self.inner().clone();
        ult::helpers::FILERS.run(move || write(&inner.profile, &inner.resolved))
    }
}

fn write(profile: &Profile, resolved: &Resolved) -> io::Result<PathBuf> {
    let nothing = |text: &str| Err(io::Error::new(io::ErrorKind::NotFound, text));
    let trace = match &*profile.stage() {
        Stage::Runs(recording) => recording.snapshot(),
        Stage::Stopped(trace) => trace.clone(),
        Stage::Never => {
            return nothing(
                "nothing was recorded: start_profiling, or enable_abt_profiling, comes first",
            );
        }
        Stage::Ended => return nothing("the instance has ended, and its profile with it"),
    };
    write_trace(&path(profile, resolved), &trace)
}

const KIND: &str = "abt.json";

fn prefix(resolved: &Resolved) -> String {
    format!("{}/margo-profile", resolved.profiling_dir)
}

fn path(profile: &Profile, resolved: &Resolved) -> PathBuf {
    let prefix = prefix(resolved);
    let number = *profile.file_number.get_or_init(|| files::number(&prefix));
    files::path(&prefix, number, KIND)
}

/// Returns whether the file can be written when the instance ends, if the configuration asks for
/// it.
pub(crate) fn check(resolved: &Resolved) -> Result<(), InitError> {
    if !resolved.enable_abt_profiling {
        return Ok(());
    }
    let path = files::path(&prefix(resolved), 0, KIND);
    files::probe(&path).map_err(|source| InitError::Destination {
        key: "argobots.profiling_dir",
        path,
        source,
    })
}

fn write_trace(path: &Path, trace: &Trace) -> io::Result<PathBuf> {
    files::replace(path, |out| trace.write_chrome(out))?;
    Ok(path.to_owned())
}

/// Begins if the configuration says so.
pub(crate) fn start(instance: &Instance) {
    if instance.inner().resolved.enable_abt_profiling
        && let Err(error) = instance.start_profiling()
    {
        log!(instance.inner().log, WARN, %error, "enable_abt_profiling: no profile of its own");
    }
}

/// The instance is at its end, but its execution streams are not: leaves them to others. The value
/// that is returned writes the file, if the configuration has asked for it.
pub(crate) fn end(
    profile: &Profile,
    resolved: &Resolved,
    log: &Log,
) -> Option<impl FnOnce() + Send + 'static> {
    let stage = std::mem::replace(&mut *profile.stage(), Stage::Ended);
    if !resolved.enable_abt_profiling {
        return None;
    }
    let (path, log) = (path(profile, resolved), log.clone());
    Some(move || {
        let trace = match stage {
            Stage::Runs(recording) => recording.stop(),
            Stage::Stopped(trace) => trace,
            Stage::Never | Stage::Ended => return,
        };
        match write_trace(&path, &trace) {
            Ok(path) => log!(log, INFO, path = %path.display(), "the profile is written"),
            Err(error) => log!(log, ERROR, %error, "the profile is not written"),
        }
    })
}
