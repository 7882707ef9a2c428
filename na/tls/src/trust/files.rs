//! The files that say whom to believe: read only if nobody else may have written them.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// Most bytes of a file.
const BYTES_MAX: u64 = 1 << 20;

/// Others who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    Anybody,
    /// Nobody; but the group where it belongs to root, which is how systems hand keys out.
    Nobody,
}

/// A file as it was when it was read, to see that it has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    path: PathBuf,
    /// Device, inode, bytes, seconds and nanoseconds of its last change.
    state: Option<[i64; 5]>,
}

impl Stamp {
    pub(crate) fn of(path: &Path) -> Self {
        let state = std::fs::metadata(path).ok().map(|found| {
            let number = |value: u64| value.cast_signed();
            let place = [number(found.dev()), number(found.ino()), number(found.size())];
            [place[0], place[1], place[2], found.mtime(), found.mtime_nsec()]
        });
        Self { path: path.to_owned(), state }
    }

    pub(crate) fn has_changed(&self) -> bool {
        Self::of(&self.path) != *self
    }
}

/// The contents of a file that only its owner, ourselves or root, may have written.
pub(crate) fn read(path: &Path, readers: Readers) -> Result<Zeroizing<Vec<u8>>, String> {
    let shown = path.display();
    let failed = |error| format!("cannot read {shown}: {error}");
    // Without waiting for somebody who writes, should it be a pipe.
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(format!("{shown} is no file"));
    }
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        return Err(format!(
            "{shown} belongs to user {}: it must belong to user {own}, which this process runs as, \
             or to root",
            found.uid()
        ));
    }
    let mode = found.mode() & 0o777;
    let (forbidden, may_not) = match readers {
        Readers::Anybody => (0o022, "write"),
        Readers::Nobody if found.uid() == own => (0o077, "read"),
        Readers::Nobody => (0o037, "read"),
    };
    if mode & forbidden != 0 {
        return Err(format!(
            "{shown} has mode {mode:03o}: others must not be able to {may_not} it (chmod {:03o})",
            mode & !forbidden
        ));
    }
    if found.len() > BYTES_MAX {
        return Err(format!("{shown} has {} bytes, of at most {BYTES_MAX}", found.len()));
    }
    // One allocation: nothing that is freed in between holds a part of it.
    let mut bytes = Zeroizing::new(Vec::with_capacity(found.len() as usize + 1));
    file.take(found.len()).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
