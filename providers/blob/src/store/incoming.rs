//! A file that is being written and is not a blob yet.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;

use super::{FILE_MODE, Folder, Scratch, Store};
use crate::name::RESERVED_PREFIX;
use crate::{BlobError, BlobName};

/// A file to fill and then [`publish`](Store::publish). Dropped before that, nothing is left of it.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    root: BorrowedFd<'a>,
    file: File,
    /// The file's reserved name in the directory, if it has one; to be removed in the end.
    name: Option<String>,
}

impl Store {
    /// Begins a blob that is to be called `name`.
    pub(crate) fn incoming(&self, name: &BlobName) -> Result<Incoming<'_>, BlobError> {
        Incoming::new(self.root.fd(), self.scratch).map_err(|errno| {
            // File systems differ in what they say of a directory that was removed.
            let is_removed =
                || rustix::fs::fstat(self.root.fd()).is_ok_and(|stat| stat.st_nlink == 0);
            if errno == Errno::NOENT || is_removed() {
                let (name, what) = (name.to_string(), "begin".to_owned());
                return BlobError::Io { name, what, detail: REMOVED.to_owned() };
            }
            BlobError::from_errno(name.as_str(), "begin", errno)
        })
    }
}

/// The text of the error then.
const REMOVED: &str =
    "the directory of the store was removed; make it anew and restart the provider";

impl<'a> Incoming<'a> {
    fn new(root: BorrowedFd<'a>, scratch: Scratch) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match scratch {
            Scratch::Unnamed => {
                let fd = rustix::fs::openat(root, ".", flags | OFlags::TMPFILE, FILE_MODE)?;
                Ok(Self { root, file: File::from(fd), name: None })
            }
            Scratch::Named => {
                let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                let (fd, name) =
                    with_fresh_name(|name| rustix::fs::openat(root, name, flags, FILE_MODE))?;
                Ok(Self { root, file: File::from(fd), name: Some(name) })
            }
        }
    }

    /// Finds out what the file system can do, by doing it.
    pub(super) fn probe(store: &'a Store) -> Result<Scratch, Errno> {
        let root = store.root.fd();
        let unnamed = Self::new(root, Scratch::Unnamed).and_then(|mut file| file.give_name());
        match unnamed {
            Ok(()) => Ok(Scratch::Unnamed),
            Err(errno) => {
                tracing::debug!(%errno, "no O_TMPFILE here; using reserved names");
                Self::new(root, Scratch::Named).map(|_removed_again| Scratch::Named)
            }
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file a reserved name, unless it has one.
    fn give_name(&mut self) -> Result<(), Errno> {
        if self.name.is_none() {
            let ((), name) = with_fresh_name(|name| link(&self.file, self.root, name))?;
            self.name = Some(name);
        }
        Ok(())
    }

    /// Names the file; fails with `EEXIST` when there is anything of that name.
    pub(super) fn link_new(&mut self, folder: &Folder<'_>, leaf: &str) -> Result<(), Errno> {
        match &self.name {
            None => link(&self.file, folder.as_fd(), leaf),
            // The reserved name is removed on drop.
            Some(name) => rustix::fs::linkat(self.root, name, folder, leaf, AtFlags::empty()),
        }
    }

    /// Names the file, in place of the blob of that name if there is one.
    pub(super) fn link_over(&mut self, folder: &Folder<'_>, leaf: &str) -> Result<(), Errno> {
        self.give_name()?;
        if let Some(name) = &self.name {
            rustix::fs::renameat(self.root, name, folder, leaf)?;
            self.name = None;
        }
        Ok(())
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take()
            && let Err(errno) = rustix::fs::unlinkat(self.root, &name, AtFlags::empty())
        {
            tracing::warn!(name, %errno, "cannot remove a temporary file; the next start will");
        }
    }
}

/// Gives a file without a name its first one.
fn link(file: &File, folder: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    match rustix::fs::linkat(file, "", folder, name, AtFlags::EMPTY_PATH) {
        // Before Linux 6.10 this needs a capability; the way through /proc does not.
        Err(Errno::NOENT | Errno::PERM) => {
            let magic = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
            rustix::fs::linkat(CWD, magic, folder, name, AtFlags::SYMLINK_FOLLOW)
        }
        result => result,
    }
}

/// Calls `make` with reserved names until one is free.
fn with_fresh_name<T>(
    mut make: impl FnMut(&str) -> Result<T, Errno>,
) -> Result<(T, String), Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let counter = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{RESERVED_PREFIX}{}-{counter}", std::process::id());
        match make(&name) {
            Err(Errno::EXIST) => {}
            result => return result.map(|made| (made, name)),
        }
    }
}
