//! The destination of a joined file: a name that the file gets when it is complete, or standard
//! output, a pipe or a device.

use std::fs::File;
use std::io::{self, ErrorKind, Stdout, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

use super::read::Reader;
use crate::support::output;
use crate::support::signals::Caught;
use margo::daemon::Failure;

/// The file that is written to.
pub(super) struct Out {
    /// The name that the user gave.
    name: PathBuf,
    to: To,
}

enum To {
    /// Standard output, under whatever name.
    Stdout(Stdout),
    /// A device or a pipe.
    Stream(File),
    /// Beside `path`, which it will be.
    File { temp: NamedTempFile, path: PathBuf },
}

impl Out {
    /// # Errors
    ///
    /// It cannot be written; or it is what a process has recorded, which nobody means to lose.
    pub(super) fn open(out: &Path, interrupt: &Interrupt) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(out.display(), error);
        let named = |to| Self { name: out.to_owned(), to };
        let kind = match out.symlink_metadata() {
            Ok(_) => Some(out.metadata().map_err(failed)?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        let Some(kind) = kind else {
            return Ok(named(interrupt.temp(out.to_owned()).map_err(failed)?));
        };
        let stdout = rustix::fs::fstat(io::stdout());
        if stdout.is_ok_and(|stdout| (stdout.st_dev, stdout.st_ino) == (kind.dev(), kind.ino())) {
            return Ok(named(To::Stdout(io::stdout())));
        }
        if !kind.is_file() {
            return File::options()
                .write(true)
                .open(out)
                .map(To::Stream)
                .map_err(failed)
                .map(named);
        }
        if Reader::is_recorded(out) {
            return Err(Failure::Usage(format!(
                "{}: a process has recorded this, and OUT is replaced: name the file to write \
                 first, then those to read",
                out.display()
            )));
        }
        // The file, not a link to it.
        let path = out.canonicalize().map_err(failed)?;
        Ok(named(interrupt.temp(path).map_err(failed)?))
    }

    /// All is written: it gets its name.
    pub(super) fn end(mut self) -> Result<Ended, Failure> {
        self.flush().map_err(|error| self.failed(error))?;
        let is_stdout = matches!(self.to, To::Stdout(_));
        let name = self.name;
        if let To::File { temp, path } = self.to {
            let named = allow_others(&temp).and_then(|()| Ok(temp.persist(path)?));
            named.map_err(|error| Failure::new(name.display(), error))?;
        }
        Ok(Ended { name, is_stdout })
    }

    /// It cannot be written.
    pub(super) fn failed(&self, error: io::Error) -> Failure {
        match self.to {
            To::Stdout(_) if error.kind() == ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::new(self.name.display(), output::why(&error)),
        }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            To::Stdout(stdout) => stdout.write(bytes),
            To::Stream(file) => file.write(bytes),
            To::File { temp, .. } => temp.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Stdout(stdout) => stdout.flush(),
            To::Stream(file) => file.flush(),
            To::File { temp, .. } => temp.flush(),
        }
    }
}

/// A file that has been written whole.
pub(super) struct Ended {
    name: PathBuf,
    is_stdout: bool,
}

impl Ended {
    /// Prints a message: to standard error where the file is standard output.
    pub(super) fn say(&self, what: std::fmt::Arguments) -> Result<(), Failure> {
        let text = format_args!("{}: {what}", self.name.display());
        if self.is_stdout {
            output::note(text);
            return Ok(());
        }
        output::line(text)
    }
}

/// A temporary file is its owner's alone; what the user has asked for is like any other file.
fn allow_others(temp: &NamedTempFile) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    let mode = 0o666 & !mask.as_raw_mode();
    temp.as_file().set_permissions(std::fs::Permissions::from_mode(mode))
}

/// Tells that the user wants no more of it, and which file must not stay behind then.
#[derive(Default)]
pub(super) struct Interrupt {
    is_wanted: AtomicBool,
    temp: Mutex<Option<PathBuf>>,
}

impl Interrupt {
    /// From now on a call of [`check`](Self::check) reports a signal; a second one ends the
    /// process.
    pub(super) fn catch(signals: &Caught) -> Arc<Self> {
        let own = Arc::new(Self::default());
        let (stop, clean_up) = (own.clone(), own.clone());
        signals.handle(
            // Nothing is handed over by it.
            move || stop.is_wanted.store(true, Ordering::Relaxed),
            move || {
                if let Some(temp) = &*clean_up.slot() {
                    // It may have its name, or be gone.
                    let _ = std::fs::remove_file(temp);
                }
            },
        );
        own
    }

    /// # Errors
    ///
    /// [`Failure::Interrupted`].
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.is_wanted.load(Ordering::Relaxed) {
            true => Err(Failure::Interrupted),
            false => Ok(()),
        }
    }

    /// A file beside `path`. It is not there before it is known what to remove.
    fn temp(&self, path: PathBuf) -> io::Result<To> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut slot = self.slot();
        let temp = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        *slot = Some(temp.path().to_owned());
        Ok(To::File { temp, path })
    }

    fn slot(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.temp.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
