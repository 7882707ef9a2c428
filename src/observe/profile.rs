//! The profile of ULTs and execution streams, as a timeline in a file: `enable_abt_profiling`.
//!
//! Execution streams record ([`ult::Runtime::record`]); this file decides when, and where the
//! record is written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use margo_config::Resolved;
use ult::{RecordOptions, Recording, Runtime, Trace};

use crate::support::files;
use crate::support::log::{Log, log};
use crate::{InitError, ProfileError};

/// The profile of an instance.
#[derive(Default)]
pub(crate) struct Profile {
    stage: Mutex<ProfileStage>,
    /// Tells its file from those of other instances of the process.
    file_number: OnceLock<u32>,
}

#[derive(Default)]
enum ProfileStage {
    #[default]
    Never,
    Runs(Recording),
    Stopped(Trace),
    /// The instance has ended.
    Ended,
}

impl Profile {
    fn stage(&self) -> MutexGuard<'_, ProfileStage> {
        // No code of others runs under this lock.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn start(&self, runtime: &Runtime) -> Result<(), ProfileError> {
        let mut stage = self.stage();
        match *stage {
            ProfileStage::Runs(_) => {}
            ProfileStage::Ended => return Err(ProfileError::Ended),
            ProfileStage::Never | ProfileStage::Stopped(_) => {
                *stage = ProfileStage::Runs(runtime.record(&RecordOptions::new())?);
            }
        }
        Ok(())
    }

    pub(crate) fn stop(&self) {
        let mut stage = self.stage();
        *stage = match std::mem::take(&mut *stage) {
            ProfileStage::Runs(recording) => ProfileStage::Stopped(recording.stop()),
            other => other,
        };
    }
}

pub(crate) fn write(profile: &Profile, resolved: &Resolved) -> io::Result<PathBuf> {
    let nothing = |text: &str| Err(io::Error::new(io::ErrorKind::NotFound, text));
    let trace = match &*profile.stage() {
        ProfileStage::Runs(recording) => recording.snapshot(),
        ProfileStage::Stopped(trace) => trace.clone(),
        ProfileStage::Never => {
            return nothing(
                "nothing was recorded: start_profiling, or enable_abt_profiling, comes first",
            );
        }
        ProfileStage::Ended => return nothing("the instance has ended, and its profile with it"),
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

/// The instance is at its end, but its execution streams are not: leaves them to others. The value
/// that is returned writes the file, if the configuration has asked for it.
pub(crate) fn end(
    profile: &Profile,
    resolved: &Resolved,
    log: &Log,
) -> Option<impl FnOnce() + Send + 'static> {
    let stage = std::mem::replace(&mut *profile.stage(), ProfileStage::Ended);
    if !resolved.enable_abt_profiling {
        return None;
    }
    let (path, log) = (path(profile, resolved), log.clone());
    Some(move || {
        let trace = match stage {
            ProfileStage::Runs(recording) => recording.stop(),
            ProfileStage::Stopped(trace) => trace,
            ProfileStage::Never | ProfileStage::Ended => return,
        };
        match write_trace(&path, &trace) {
            Ok(path) => log!(log, INFO, path = %path.display(), "the profile is written"),
            Err(error) => log!(log, ERROR, %error, "the profile is not written"),
        }
    })
}
