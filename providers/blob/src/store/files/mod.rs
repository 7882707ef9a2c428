//! Blobs as files below one directory.
//!
//! A blob `a/b` is the regular file `a/b` below the directory, with a checksum for each of its
//! blocks (`blocks.rs`); folders are made when a blob needs them and removed when the last blob
//! below them is. Whatever else is there (symbolic links, devices, other file systems, files whose
//! names are no blob names) is never followed, listed or changed. A regular file of others is
//! refused when it is opened.
//!
//! # How a version comes to be
//!
//! 1. [`IncomingFile`]: a file without a name in the directory (`O_TMPFILE`). It vanishes with the
//!    process, so nothing is left of a write that did not end.
//! 2. With `sync`, the data goes to the disk.
//! 3. [`Directory::publish`] gives it its name in one step: a link, which fails if the name is
//!    taken; or, to overwrite, a link to a reserved name in the directory and a rename over the old
//!    blob. Readers see the old blob or the new one; a reader that has the old one open keeps
//!    reading it.
//! 4. With `sync`, the folder goes to the disk.
//!
//! A caller that gave a write up may have tried again, or removed the blob, and been told that it
//! is done. So the last thing before step 3, and before a removal, is to ask whether anybody still
//! waits. What remains is the time between that question and the one system call behind it,
//! microseconds unless the thread loses its CPU just then: a write or removal that is given up
//! within it is done all the same, and may come after what its caller did next.
//!
//! Where the file system has no `O_TMPFILE`, the file has a reserved name from the beginning.
//! Reserved names that a killed process left are removed by the next [`Directory::open`]; empty
//! folders that it left, when a blob of such a name is to be made.
//!
//! # Who may touch what
//!
//! | lock | held for | excludes |
//! |---|---|---|
//! | `flock` of the directory | the life of the store | other stores, which would remove our files as leftovers |
//! | `names`, by name | replacing, removing | each other, so that what a blob took of the quota is given back once |
//! | `folders` | naming (shared), removing folders | folders that vanish before a blob is in them |
//! | `contents`, by file | a read (shared), a change of a part | readers of blocks whose sums are not written yet; writers of parts of one block |
//!
//! In this order. Each is held for some system calls, and none while a ULT suspends.
//!
//! Imports the files at the top but those of the two sides, `store/mod.rs` and the quota. Read this
//! file, then `blocks.rs`, then `confine.rs`.

mod blocks;
mod confine;
mod incoming;
mod list;
mod version;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

pub(crate) use self::blocks::{BLOCK_BYTES, Found, LEN_MAX, within};
use self::blocks::{BlockFile, Fault, blob_len};
use self::confine::{Folder, Root, type_at};
use self::incoming::{IncomingFile, probe};
use self::version::FileBlob;
use super::{Blob, Incoming, PAGE_ENTRIES_MAX, Quota, Store, Wanted};
use crate::error::{OpenError, conflict, given_up};
use crate::name::{RESERVED_PREFIX, folder_and_leaf, is_component};
use crate::{BlobConfig, BlobError, BlobName, ListPage};

/// Locks of names, and of contents. More than there are threads to wait for them.
const STRIPES: usize = 64;

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
pub(crate) struct FileStore(Arc<Directory>);

#[derive(Debug)]
struct Directory {
    root: Root,
    scratch: Scratch,
    sync: bool,
    quota: Quota,
    /// Read: makes folders. Write: removes folders.
    folders: RwLock<()>,
    names: [Mutex<()>; STRIPES],
    contents: [RwLock<()>; STRIPES],
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Not by closing alone: a child that this process is about to start may have a copy of the
        // descriptor until it runs its program.
        let _ = rustix::fs::flock(self.root.fd(), FlockOperation::Unlock);
    }
}

impl Store for FileStore {
    fn open(&self, name: &BlobName) -> Result<Arc<dyn Blob>, BlobError> {
        Ok(Arc::new(self.0.open_blob(name)?))
    }

    fn begin(&self, name: &BlobName) -> Result<Box<dyn Incoming>, BlobError> {
        Ok(Box::new(IncomingFile::begin(&self.0, name)?))
    }

    fn remove(&self, name: &BlobName, still_wanted: Wanted<'_>) -> Result<(), BlobError> {
        self.0.remove(name, still_wanted)
    }

    fn list(
        &self,
        prefix: &str,
        after: &str,
        max: usize,
        still_wanted: Wanted<'_>,
    ) -> Result<ListPage, BlobError> {
        self.0.list(prefix, after, max, still_wanted)
    }

    fn refuse_existing(&self, name: &BlobName) -> Result<(), BlobError> {
        self.0.refuse_existing(name)
    }

    fn blocks(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn hold_publishing(&self) -> std::sync::RwLockWriteGuard<'_, ()> {
        self.0.folders.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileStore {
    /// Opens the directory, makes it if it is missing, and removes what a killed predecessor left.
    pub(crate) fn open(config: &BlobConfig) -> Result<Self, OpenError> {
        Directory::open(config).map(|directory| Self(Arc::new(directory)))
    }
}

impl Directory {
    fn open(config: &BlobConfig) -> Result<Self, OpenError> {
        let path = &config.path;
        let failed = |what, source: std::io::Error| OpenError::Directory {
            what,
            path: path.display().to_string(),
            source,
        };
        std::fs::create_dir_all(path).map_err(|error| failed("create", error))?;
        let root = Root::open(path).map_err(|errno| failed("open", errno.into()))?;
        Self::lock(&root, path)?;
        let mut directory = Self {
            root,
            scratch: Scratch::Named,
            sync: config.sync,
            quota: Quota::of(config),
            folders: RwLock::new(()),
            names: std::array::from_fn(|_| Mutex::new(())),
            contents: std::array::from_fn(|_| RwLock::new(())),
        };
        directory.sweep().map_err(|errno| failed("clean", errno.into()))?;
        let scratch = probe(directory.root.fd());
        directory.scratch = scratch.map_err(|errno| failed("write to", errno.into()))?;
        directory.count().map_err(|error| failed("list", std::io::Error::other(error)))?;
        Ok(directory)
    }

    /// Counts what is there already, where that has a bound.
    fn count(&self) -> Result<(), BlobError> {
        let mut after = String::new();
        while self.quota.counts() {
            let page = self.list("", &after, PAGE_ENTRIES_MAX, &|| true)?;
            page.blobs.iter().for_each(|blob| self.quota.found(blob.len));
            match page.blobs.into_iter().next_back() {
                Some(last) if page.more => after = last.name,
                _ => break,
            }
        }
        Ok(())
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

    /// Opens a blob. It stays the same version, even if it is overwritten or removed.
    fn open_blob(self: &Arc<Self>, name: &BlobName) -> Result<FileBlob, BlobError> {
        // NONBLOCK: a FIFO put there by others must not hang the open; no effect on files.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = self.root.open_at(name.as_str(), flags);
        let fd = opened.map_err(|errno| BlobError::from_errno(name.as_str(), "open", errno))?;
        let file = File::from(fd);
        let failed = |error| BlobError::from_io(name.as_str(), "stat", &error);
        let metadata = file.metadata().map_err(failed)?;
        refuse_other_types(name, FileType::from_raw_mode(metadata.mode()))?;
        BlockFile(&file).check().map_err(|fault| fault_of(name, "open", fault))?;
        Ok(FileBlob::seen(self, file, &metadata, name))
    }

    /// Fails if there is a blob of that name, or something else.
    fn refuse_existing(self: &Arc<Self>, name: &BlobName) -> Result<(), BlobError> {
        match self.open_blob(name) {
            Ok(_) => Err(BlobError::AlreadyExists { name: name.to_string() }),
            Err(BlobError::NotFound { .. }) => Ok(()),
            Err(BlobError::Conflict { .. }) if self.remove_empty(name).is_ok() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes `incoming` the blob `name`, in one step, if it is `still_wanted` when all else is
    /// done.
    fn publish(
        self: &Arc<Self>,
        incoming: &mut IncomingFile,
        name: &BlobName,
        overwrite: bool,
        still_wanted: Wanted<'_>,
    ) -> Result<(), BlobError> {
        if self.sync {
            incoming
                .file()
                .sync_data()
                .map_err(|error| BlobError::from_io(name.as_str(), "sync", &error))?;
        }
        let _alone = self.names[stripe_of(name)].lock().unwrap_or_else(PoisonError::into_inner);
        let old = if overwrite && self.quota.counts() { self.open_blob(name).ok() } else { None };
        if old.is_none() {
            self.quota.add_blob(name)?;
        }
        let linked = self.link(incoming, name, overwrite, still_wanted);
        match (&linked, old) {
            (Ok(_), Some(old)) => old.give_back(),
            (Err(_), None) => self.quota.remove_blob(),
            _ => {}
        }
        self.sync_folder(&linked?, name)
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
        self: &Arc<Self>,
        incoming: &mut IncomingFile,
        name: &BlobName,
        overwrite: bool,
        still_wanted: Wanted<'_>,
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
    fn what_exists(self: &Arc<Self>, name: &BlobName) -> BlobError {
        match self.open_blob(name) {
            Err(error @ BlobError::Conflict { .. }) => error,
            _ => BlobError::AlreadyExists { name: name.to_string() },
        }
    }

    /// Removes a blob, if that is `still_wanted`, and the folders that are empty then.
    fn remove(
        self: &Arc<Self>,
        name: &BlobName,
        still_wanted: Wanted<'_>,
    ) -> Result<(), BlobError> {
        let failed = |errno| BlobError::from_errno(name.as_str(), "remove", errno);
        let alone = self.names[stripe_of(name)].lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.root.folder(name.folder()).map_err(failed)?;
        refuse_other_types(name, type_at(&folder, name.leaf()).map_err(failed)?)?;
        let old = if self.quota.counts() { Some(self.open_blob(name)?) } else { None };
        if !still_wanted() {
            return Err(given_up(name.as_str()));
        }
        rustix::fs::unlinkat(&folder, name.leaf(), AtFlags::empty()).map_err(failed)?;
        if let Some(old) = old {
            old.give_back();
            self.quota.remove_blob();
        }
        drop(alone);
        self.sync_folder(&folder, name)?;
        drop(folder);
        self.prune(name);
        Ok(())
    }

    /// Sends the folders of a blob to the disk, innermost first.
    fn persist_name(&self, name: &BlobName) -> Result<(), BlobError> {
        let failed = |errno| BlobError::from_errno(name.as_str(), "sync", errno);
        let mut folder = name.folder();
        loop {
            rustix::fs::fsync(self.root.folder(folder).map_err(failed)?).map_err(failed)?;
            let Some(path) = folder else { return Ok(()) };
            folder = folder_and_leaf(path).0;
        }
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

/// The lock of `names` that is a name's.
fn stripe_of(name: &BlobName) -> usize {
    let hash = name
        .as_str()
        .bytes()
        .fold(0usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)));
    hash % STRIPES
}

/// Translates the failure of a file for blob `name` while doing `what`.
fn fault_of(name: &BlobName, what: &str, fault: Fault) -> BlobError {
    match fault {
        Fault::Io(error) => BlobError::from_io(name.as_str(), what, &error),
        Fault::Damaged { block } => {
            BlobError::Damaged { name: name.to_string(), block, bytes: BLOCK_BYTES }
        }
        Fault::Foreign => conflict(name.to_string(), "it is no file of a store of this version"),
    }
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
