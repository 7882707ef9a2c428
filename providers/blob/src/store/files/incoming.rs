//! A file that is being written and is not a blob yet.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;

use super::super::{Blob, Incoming, Wanted};
use super::{BlockFile, Directory, FILE_MODE, FileBlob, Folder, Scratch};
use crate::name::RESERVED_PREFIX;
use crate::{BlobError, BlobName};

/// A version to fill and then publish. Dropped before that, nothing is left of it.
#[derive(Debug)]
pub(super) struct IncomingFile {
    directory: Arc<Directory>,
    name: BlobName,
    blob: Arc<FileBlob>,
    /// The file's reserved name in the directory, if it has one; to be removed in the end.
    reserved: Option<String>,
    is_published: bool,
}

impl Incoming for IncomingFile {
    fn blob(&self) -> Arc<dyn Blob> {
        self.blob.clone()
    }

    fn publish(
        mut self: Box<Self>,
        overwrite: bool,
        still_wanted: Wanted<'_>,
    ) -> Result<(), BlobError> {
        let (directory, name) = (self.directory.clone(), self.name.clone());
        directory.publish(&mut self, &name, overwrite, still_wanted)?;
        self.is_published = true;
        Ok(())
    }
}

impl IncomingFile {
    /// Begins a version of a blob that is to be called `name`.
    pub(super) fn begin(directory: &Arc<Directory>, name: &BlobName) -> Result<Self, BlobError> {
        let root = directory.root.fd();
        let (file, reserved) = open_scratch(root, directory.scratch).map_err(|errno| {
            // File systems differ in what they say of a directory that was removed.
            let is_removed = || rustix::fs::fstat(root).is_ok_and(|stat| stat.st_nlink == 0);
            if errno == Errno::NOENT || is_removed() {
                let (name, what) = (name.to_string(), "begin".to_owned());
                return BlobError::Io { name, what, detail: REMOVED.to_owned() };
            }
            BlobError::from_errno(name.as_str(), "begin", errno)
        })?;
        let (directory, name) = (directory.clone(), name.clone());
        let blob = Arc::new(FileBlob::unseen(&directory, file, &name));
        // From here on its reserved name is removed again.
        let incoming = Self { directory, name, blob, reserved, is_published: false };
        let formatted = BlockFile(incoming.file()).format();
        formatted.map_err(|error| BlobError::from_io(incoming.name.as_str(), "begin", &error))?;
        Ok(incoming)
    }

    pub(super) fn file(&self) -> &File {
        self.blob.file()
    }

    /// Names the file; fails with `EEXIST` when there is anything of that name.
    pub(super) fn link_new(&self, folder: &Folder<'_>, leaf: &str) -> Result<(), Errno> {
        match &self.reserved {
            None => link(self.file(), folder.as_fd(), leaf),
            // The reserved name is removed on drop.
            Some(name) => {
                let root = self.directory.root.fd();
                rustix::fs::linkat(root, name, folder, leaf, AtFlags::empty())
            }
        }
    }

    /// Names the file, in place of the blob of that name if there is one.
    pub(super) fn link_over(&mut self, folder: &Folder<'_>, leaf: &str) -> Result<(), Errno> {
        let root = self.directory.root.fd();
        let reserved = match self.reserved.take() {
            Some(name) => name,
            None => with_fresh_name(|name| link(self.file(), root, name))?.1,
        };
        let renamed = rustix::fs::renameat(root, &reserved, folder, leaf);
        if renamed.is_err() {
            self.reserved = Some(reserved);
        }
        renamed
    }
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        if let Some(name) = self.reserved.take() {
            remove_reserved(self.directory.root.fd(), &name);
        }
        if !self.is_published {
            self.blob.give_back();
        }
    }
}

/// Finds out what the file system can do, by doing it.
pub(super) fn probe(root: BorrowedFd<'_>) -> Result<Scratch, Errno> {
    let unnamed = open_scratch(root, Scratch::Unnamed)
        .and_then(|(file, _)| with_fresh_name(|name| link(&file, root, name)));
    let (found, name) = match unnamed {
        Ok(((), name)) => (Scratch::Unnamed, Some(name)),
        Err(errno) => {
            tracing::debug!(%errno, "no O_TMPFILE here; using reserved names");
            (Scratch::Named, open_scratch(root, Scratch::Named)?.1)
        }
    };
    name.iter().for_each(|name| remove_reserved(root, name));
    Ok(found)
}

/// A new file, and its reserved name if it has one.
fn open_scratch(root: BorrowedFd<'_>, scratch: Scratch) -> Result<(File, Option<String>), Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match scratch {
        Scratch::Unnamed => {
            let fd = rustix::fs::openat(root, ".", flags | OFlags::TMPFILE, FILE_MODE)?;
            Ok((File::from(fd), None))
        }
        Scratch::Named => {
            let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let (fd, name) =
                with_fresh_name(|name| rustix::fs::openat(root, name, flags, FILE_MODE))?;
            Ok((File::from(fd), Some(name)))
        }
    }
}

fn remove_reserved(root: BorrowedFd<'_>, name: &str) {
    if let Err(errno) = rustix::fs::unlinkat(root, name, AtFlags::empty()) {
        tracing::warn!(name, %errno, "cannot remove a temporary file; the next start will");
    }
}

/// The text of the error when there is no directory any more.
const REMOVED: &str =
    "the directory of the store was removed; make it anew and restart the provider";

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
