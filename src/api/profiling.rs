//! Profiles of the execution streams of an instance.

use std::io;
use std::path::PathBuf;

use crate::InstanceMonitoring;
use crate::observe::profile::write;
use crate::support::log::log;
use crate::{Instance, ProfileError};

impl InstanceMonitoring<'_> {
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
        self.inner().profile.start(self.instance.runtime())
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
        self.inner().profile.stop();
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
        ult::integration::blocking_reserved(move || write(&inner.profile, &inner.resolved))
    }
}

/// Begins if the configuration says so.
pub(crate) fn start(instance: &Instance) {
    if instance.inner().resolved.enable_abt_profiling
        && let Err(error) = instance.monitoring().start_profiling()
    {
        log!(instance.inner().log, WARN, %error, "enable_abt_profiling: no profile of its own");
    }
}
