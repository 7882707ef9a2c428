//! Blobs as files below one directory.
//!
//! A blob `a/b` is the regular file `a/b` below the directory; folders are made when a blob needs
//! them and removed when the last blob below them is. Whatever else is there (symbolic links,
//! devices, other file systems, files whose names are no blob names) is never followed, listed or
//! changed.
//!
//! # How a blob comes to be
//!
//! 1. [`Incoming`]: a file without a name in the directory (`O_TMPFILE`). It vanishes with the
//!    process, so nothing is left of a write that did not end.
//! 2. With `sync`, the data goes to the disk.
//! 3. [`Store::publish`] gives it its name in one step: a link, which fails if the name is taken;
//!    or, to overwrite, a link to a reserved name in the directory and a rename over the old blob.
//!    Readers see the old blob or the new one; a reader that has the old one open keeps reading it.
//! 4. With `sync`, the folder goes to the disk.
//!
//! A caller that gave a write up may have tried again, or removed the blob, and been told that it
//! is done. So the last thing before step 3, and before a removal, is to ask whether anybody still
//! waits. What remains is the time between that question and the one system call behind it,
//! microseconds unless the thread loses its CPU just then: a write or removal that is given up
//! within it is done all the same, and may come after what its caller did next.
//!
//! Where the file system has no `O_TMPFILE`, the file has a reserved name from the beginning.
//! Reserved names that a killed process left are removed by the next [`Store::open`]; empty folders
//! that it left, when a blob of such a name is to be made.
//!
//! # Who may touch what
//!
//! A lock on the directory (`flock`, which ends with the process) keeps other stores away, so that
//! nobody removes our files as leftovers. `folders` orders publishing, which may make folders,
//! against removal, which may remove them; it is held for a few system calls, never while a ULT
//! suspends. Data moves without any lock.
//!
//! All of this blocks the calling thread for as long as the file system does.
//!
//! Imports the files at the top but those of the two sides. Read this file, then `confine.rs`.

mod confine;
mod incoming;
mod list;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use self::confine::{Folder, Root, type_at};
pub(crate) use self::incoming::Incoming;
use self::list::PAGE_ENTRIES_MAX;
use crate::error::{OpenError, conflict, given_up};
use crate::name::{RESERVED_PREFIX, folder_and_leaf, is_component};
use crate::{BlobConfig, BlobEntry, BlobError, BlobName};

/// How to get a file that is not a blob yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scratch {
    /// `O_TMPFILE`.
    Unnamed,
    /// A file with a reserved name.
    Named,
}

/// The blobs below one directory.
#[derive(Debug)]
pub(crate) struct Store {
    root: Root,
    scratch: Scratch,
    sync: bool,
    /// Read: makes folders. Write: removes folders.
    folders: RwLock<()>,
}

impl Drop for Store {
    fn drop(&mut self) {
        // Not by closing alone: a child that this process is about to start may have a copy of the
        // descriptor until it runs its program.
        let _ = rustix::fs::flock(self.root.fd(), FlockOperation::Unlock);
    }
}

impl Store {
    /// Opens the directory, makes it if it is missing, and removes what a killed predecessor left.
    pub(crate) fn open(config: &BlobConfig) -> Result<Self, OpenError> {
        let path = &config.path;
        let failed = |what, source: std::io::Error| OpenError::Directory {
            what,
            path: path.display().to_string(),
            source,
        };
        std::fs::create_dir_all(path).map_err(|error| failed("create", error))?;
        let root = Root::open(path).map_err(|errno| failed("open", errno.into()))?;
        Self::lock(&root, path)?;
        let mut store =
            Self { root, scratch: Scratch::Named, sync: config.sync, folders: RwLock::new(()) };
        store.sweep().map_err(|errno| failed("clean", errno.into()))?;
        store.scratch =
            Incoming::probe(&store).map_err(|errno| failed("write to", errno.into()))?;
        Ok(store)
    }

    fn lock(root: &Root, path: &Path) -> Result<(), OpenError> {
        match rustix::fs::flock(root.fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK) => Err(OpenError::InUse { path: path.display().to_string() }),
            Err(errno) => {
                // Some network file systems have no locks; that is no reason not to serve.
                tracing::warn!(path = %path.display(), %errno, "cannot lock the blob directory");
                Ok(())
            }
        }
    }

    /// Removes reserved names; they only ever are in the directory itself.
    fn sweep(&self) -> Result<(), Errno> {
        let directory = self.root.open_at(".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let reserved = entry.file_name().to_bytes().starts_with(RESERVED_PREFIX.as_bytes());
            if reserved && entry.file_type() != FileType::Directory {
                tracing::info!(name = ?entry.file_name(), "removing what a killed process left");
                match rustix::fs::unlinkat(self.root.fd(), entry.file_name(), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(())
    }

    /// Opens a blob for reading. It stays the same blob, even if it is overwritten or removed.
    pub(crate) fn open_blob(&self, name: &BlobName) -> Result<Blob, BlobError> {
        // NONBLOCK: a FIFO put there by others must not hang the open; no effect on files.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = self.root.open_at(name.as_str(), flags);
        let fd = opened.map_err(|errno| BlobError::from_errno(name.as_str(), "open", errno))?;
        let file = File::from(fd);
        let failed = |error| BlobError::from_io(name.as_str(), "stat", &error);
        let metadata = file.metadata().map_err(failed)?;
        refuse_other_types(name, FileType::from_raw_mode(metadata.mode()))?;
        let modified = metadata.modified().map_err(failed)?;
        Ok(Blob { file, len: metadata.len(), modified })
    }

    /// Copies each blob to another store, which has none of these names. What is written or removed
    /// meanwhile is copied or not, but each blob is whole.
    pub(crate) fn copy_to(&self, other: &Self) -> Result<(), BlobError> {
        let mut after = String::new();
        loop {
            let page = self.list("", &after, PAGE_ENTRIES_MAX, &|| true)?;
            for BlobEntry { name, .. } in page.blobs {
                match self.copy_blob(&BlobName::new(&name)?, other) {
                    Ok(()) | Err(BlobError::NotFound { .. }) => after = name,
                    Err(error) => return Err(error),
                }
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    fn copy_blob(&self, name: &BlobName, other: &Self) -> Result<(), BlobError> {
        let mut blob = self.open_blob(name)?;
        let incoming = other.incoming(name)?;
        std::io::copy(&mut blob.file, &mut incoming.file())
            .map_err(|error| BlobError::from_io(name.as_str(), "copy", &error))?;
        other.publish(incoming, name, false, &|| true)
    }

    /// Fails if there is a blob of that name, or something else.
    pub(crate) fn refuse_existing(&self, name: &BlobName) -> Result<(), BlobError> {
        match self.open_blob(name) {
            Ok(_) => Err(BlobError::AlreadyExists { name: name.to_string() }),
            Err(BlobError::NotFound { .. }) => Ok(()),
            Err(BlobError::Conflict { .. }) if self.remove_empty(name).is_ok() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes `incoming` the blob `name`, in one step, if it is `still_wanted` when all else is
    /// done.
    pub(crate) fn publish(
        &self,
        mut incoming: Incoming<'_>,
        name: &BlobName,
        overwrite: bool,
        still_wanted: &dyn Fn() -> bool,
    ) -> Result<(), BlobError> {
        if self.sync {
            incoming
                .file()
                .sync_data()
                .map_err(|error| BlobError::from_io(name.as_str(), "sync", &error))?;
        }
        let folder = self.link(&mut incoming, name, overwrite, still_wanted)?;
        self.sync_folder(&folder, name)
    }

    /// Sends a folder to the disk, with `sync`.
    fn sync_folder(&self, folder: &Folder<'_>, name: &BlobName) -> Result<(), BlobError> {
        if self.sync {
            rustix::fs::fsync(folder)
                .map_err(|errno| BlobError::from_errno(name.as_str(), "sync", errno))?;
        }
        Ok(())
    }

    fn link(
        &self,
        incoming: &mut Incoming<'_>,
        name: &BlobName,
        overwrite: bool,
        still_wanted: &dyn Fn() -> bool,
    ) -> Result<Folder<'_>, BlobError> {
        let mut link = || {
            let _no_removal = self.folders.read().unwrap_or_else(PoisonError::into_inner);
            let folder = self.root.make_folder(name.folder(), self.sync)?;
            // Behind all that may take long: the data, the lock, new folders.
            if !still_wanted() {
                return Err(Errno::CANCELED);
            }
            if overwrite && !is_other(&folder, name.leaf()) {
                incoming.link_over(&folder, name.leaf())?;
            } else {
                incoming.link_new(&folder, name.leaf())?;
            }
            Ok(folder)
        };
        let mut linked = link();
        if matches!(linked, Err(Errno::EXIST)) && self.remove_empty(name).is_ok() {
            linked = link();
        }
        linked.map_err(|errno| {
            self.prune(name);
            match errno {
                // Names exist, but a blob is where a folder would have to be.
                Errno::NOTDIR | Errno::NOENT => {
                    conflict(name.to_string(), "a part of its path is no folder")
                }
                Errno::EXIST => self.what_exists(name),
                Errno::CANCELED => given_up(name.as_str()),
                errno => BlobError::from_errno(name.as_str(), "name", errno),
            }
        })
    }

    /// Tells a blob from whatever else may have the name.
    fn what_exists(&self, name: &BlobName) -> BlobError {
        match self.open_blob(name) {
            Err(error @ BlobError::Conflict { .. }) => error,
            _ => BlobError::AlreadyExists { name: name.to_string() },
        }
    }

    /// Removes a blob, if that is `still_wanted`, and the folders that are empty then.
    pub(crate) fn remove(
        &self,
        name: &BlobName,
        still_wanted: &dyn Fn() -> bool,
    ) -> Result<(), BlobError> {
        let failed = |errno| BlobError::from_errno(name.as_str(), "remove", errno);
        let folder = self.root.folder(name.folder()).map_err(failed)?;
        refuse_other_types(name, type_at(&folder, name.leaf()).map_err(failed)?)?;
        if !still_wanted() {
            return Err(given_up(name.as_str()));
        }
        rustix::fs::unlinkat(&folder, name.leaf(), AtFlags::empty()).map_err(failed)?;
        self.sync_folder(&folder, name)?;
        drop(folder);
        self.prune(name);
        Ok(())
    }

    /// Nothing is published until the guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold_publishing(&self) -> std::sync::RwLockWriteGuard<'_, ()> {
        self.folders.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the folders of `name` that are empty, innermost first.
    fn prune(&self, name: &BlobName) {
        let _no_publishing = self.folders.write().unwrap_or_else(PoisonError::into_inner);
        let mut folder = name.folder();
        while let Some(path) = folder {
            match self.remove_folder(path) {
                // Not there: never made, or removed by an earlier prune. Look further up.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {
                    folder = folder_and_leaf(path).0;
                }
                // Not empty, or not ours to remove: then so is everything above it.
                Err(_) => break,
            }
        }
    }

    /// Removes the folder that has the name, if nothing but empty folders is below it: a process
    /// that was killed before it named a blob, or between the removal of a blob and that of its
    /// folders, leaves such. Stops at the first thing that is no empty folder.
    fn remove_empty(&self, name: &BlobName) -> Result<(), Errno> {
        let _no_publishing = self.folders.write().unwrap_or_else(PoisonError::into_inner);
        let mut path = name.to_string();
        loop {
            if let Some(leaf) = self.first_in(&path)? {
                path = format!("{path}/{leaf}");
                continue;
            }
            self.remove_folder(&path)?;
            if path.len() == name.as_str().len() {
                return Ok(());
            }
            path.truncate(path.rfind('/').unwrap_or_default());
        }
    }

    /// The first that is listed in a folder. Fails if that is nothing that this store makes.
    fn first_in(&self, folder: &str) -> Result<Option<String>, Errno> {
        let opened = self.root.open_at(folder, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Dir::new(opened)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                Ok(leaf) if is_component(leaf) => return Ok(Some(leaf.to_owned())),
                _ => return Err(Errno::NOTEMPTY),
            }
        }
        Ok(None)
    }

    /// Removes a folder, if it is empty.
    fn remove_folder(&self, path: &str) -> Result<(), Errno> {
        let (above, leaf) = folder_and_leaf(path);
        rustix::fs::unlinkat(self.root.folder(above)?, leaf, AtFlags::REMOVEDIR)
    }
}

/// An open blob.
#[derive(Debug)]
pub(crate) struct Blob {
    pub(crate) file: File,
    /// Bytes.
    pub(crate) len: u64,
    /// When it was written.
    pub(crate) modified: SystemTime,
}

fn refuse_other_types(name: &BlobName, file_type: FileType) -> Result<(), BlobError> {
    let reason = match file_type {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "it is a folder",
        FileType::Symlink => "a symbolic link is in the way",
        _ => "it is not a regular file",
    };
    Err(conflict(name.to_string(), reason))
}

/// Returns true if something that is not a blob has the name; it is not to be overwritten.
fn is_other(folder: &Folder<'_>, leaf: &str) -> bool {
    type_at(folder, leaf).is_ok_and(|kind| kind != FileType::RegularFile)
}

/// Mode of new files; the process's umask takes away from it.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

#[cfg(test)]
mod tests;
