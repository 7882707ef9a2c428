//! Listing blobs in the order of their names, page by page.
//!
//! Names are compared byte by byte as a whole. A folder's blobs sort where `folder/` sorts, so
//! walking each folder in that order gives all names in order without holding more than one folder
//! per level in memory.

use rustix::fs::{AtFlags, Dir, FileType, OFlags};
use rustix::io::Errno;

use super::Store;
use crate::name::{NAME_BYTES_MAX, is_component};
use crate::{BlobEntry, BlobError, BlobName, ListPage};

/// Most entries of a page, whatever is asked for.
pub(crate) const PAGE_ENTRIES_MAX: usize = 1000;

/// A page ends when its names have this many bytes.
const PAGE_BYTES_MAX: usize = 64 << 10;

/// Something found in a folder: a blob's full name, or a folder's with `/` at its end.
type Found = String;

impl Store {
    /// The first `max` blobs whose names begin with `prefix` and sort behind `after`.
    ///
    /// Each page reads the folders on its way completely, because file systems do not sort.
    pub(crate) fn list(
        &self,
        prefix: &str,
        after: &str,
        max: usize,
    ) -> Result<ListPage, BlobError> {
        let max = max.clamp(1, PAGE_ENTRIES_MAX);
        let mut page = ListPage { blobs: Vec::new(), more: false };
        let mut bytes = 0;
        let wanted = Wanted { prefix, after };
        // What is still to be visited, the next one last.
        let mut pending = self.read_folder(wanted.start(), &wanted)?;
        while let Some(found) = pending.pop() {
            if let Some(folder) = found.strip_suffix('/') {
                pending.append(&mut self.read_folder(folder, &wanted)?);
                continue;
            }
            if page.blobs.len() == max || bytes > PAGE_BYTES_MAX {
                page.more = true;
                break;
            }
            // Gone meanwhile: then it is not listed.
            if let Some(len) = self.len_of(&found)? {
                bytes += found.len();
                page.blobs.push(BlobEntry { name: found, len });
            }
        }
        Ok(page)
    }

    /// What of a folder may hold something wanted, in reverse order. Empty is the directory itself.
    fn read_folder(&self, folder: &str, wanted: &Wanted<'_>) -> Result<Vec<Found>, BlobError> {
        let failed = |errno| BlobError::from_errno(folder, "list", errno);
        let path = if folder.is_empty() { "." } else { folder };
        let opened = match self.root.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            // Removed, or replaced by something that is not followed: nothing to list.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(Vec::new()),
            result => result.map_err(failed)?,
        };
        let mut all = Vec::new();
        for entry in Dir::new(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(leaf) = entry.file_name().to_str() else { continue };
            if !is_component(leaf) {
                continue;
            }
            let mut found =
                if folder.is_empty() { leaf.to_owned() } else { format!("{folder}/{leaf}") };
            if found.len() > NAME_BYTES_MAX {
                continue;
            }
            match self.type_of(&found, entry.file_type()) {
                Some(FileType::RegularFile) => {}
                Some(FileType::Directory) => found.push('/'),
                _ => continue,
            }
            if wanted.maybe(&found) {
                all.push(found);
            }
        }
        all.sort_unstable_by(|a, b| b.cmp(a));
        Ok(all)
    }

    /// Some file systems do not say the type in the listing.
    fn type_of(&self, path: &str, listed: FileType) -> Option<FileType> {
        if listed != FileType::Unknown {
            return Some(listed);
        }
        let (folder, leaf) = match path.rsplit_once('/') {
            Some((folder, leaf)) => (Some(folder), leaf),
            None => (None, path),
        };
        let folder = self.root.folder(folder).ok()?;
        let stat = rustix::fs::statat(&folder, leaf, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    fn len_of(&self, path: &str) -> Result<Option<u64>, BlobError> {
        match self.root.open_at(path, OFlags::PATH) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd)
                    .map_err(|errno| BlobError::from_errno(path, "stat", errno))?;
                let is_blob = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                Ok(is_blob.then_some(stat.st_size.unsigned_abs()))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(BlobError::from_errno(path, "stat", errno)),
        }
    }
}

/// Which names are asked for.
struct Wanted<'a> {
    prefix: &'a str,
    after: &'a str,
}

impl<'a> Wanted<'a> {
    /// The innermost folder that holds everything with the prefix.
    fn start(&self) -> &'a str {
        match self.prefix.rsplit_once('/') {
            // Anything but a proper name is not opened; nothing will match it.
            Some((folder, _)) if BlobName::new(folder).is_ok() => folder,
            _ => "",
        }
    }

    /// Whether `found` is wanted or, if it is a folder, may hold something wanted.
    fn maybe(&self, found: &str) -> bool {
        if found.ends_with('/') {
            (found.starts_with(self.prefix) || self.prefix.starts_with(found))
                && (found > self.after || self.after.starts_with(found))
        } else {
            found.starts_with(self.prefix) && found > self.after
        }
    }
}
