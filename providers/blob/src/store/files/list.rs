//! Listing blobs in the order of their names, page by page.
//!
//! Names are compared byte by byte as a whole. A folder's blobs sort where `folder/` sorts, so
//! walking each folder in that order gives all names in order. Of a folder no more is held in
//! memory than a page may need, however many blobs it has.

use std::cell::Cell;
use std::collections::BinaryHeap;

use rustix::fs::{Dir, FileType, OFlags};
use rustix::io::Errno;

use super::super::{PAGE_BYTES_MAX, PAGE_ENTRIES_MAX, Wanted};
use super::confine::type_at;
use super::{Directory, blob_len};
use crate::error::given_up;
use crate::name::{NAME_BYTES_MAX, folder_and_leaf, is_component};
use crate::{BlobEntry, BlobError, BlobName, ListPage};

/// After so many entries a list that nobody waits for ends: some milliseconds.
const ENTRIES_PER_LOOK: usize = 2048;

/// A step that is still to be done.
enum Step {
    /// Something found in a folder: a blob's full name, or a folder's with `/` at its end.
    Visit(String),
    /// Look for the names that sort behind this one in a folder whose first ones were visited.
    GoOn { folder: String, behind: String },
}

impl Directory {
    /// The first `max` blobs whose names begin with `prefix` and sort behind `after`.
    ///
    /// Each page reads the folders on its way completely, because file systems do not sort. For a
    /// folder with many entries that takes long; it ends when it is not `still_wanted`.
    pub(super) fn list(
        &self,
        prefix: &str,
        after: &str,
        max: usize,
        still_wanted: Wanted<'_>,
    ) -> Result<ListPage, BlobError> {
        let max = max.clamp(1, PAGE_ENTRIES_MAX);
        let mut page = ListPage { blobs: Vec::new(), more: false };
        let mut bytes = 0;
        // One more, to know whether there is more; not fewer for a short page, since what is kept
        // may turn out to be no blob, and each time the folder is read once more.
        let keep = PAGE_ENTRIES_MAX + 1;
        let wanted = Sought { prefix, after, keep, looked: Cell::new(0), still_wanted };
        // The next one last.
        let mut pending = self.read_folder(wanted.start(), "", &wanted)?;
        while let Some(step) = pending.pop() {
            let found = match step {
                Step::Visit(found) => found,
                Step::GoOn { folder, behind } => {
                    pending.append(&mut self.read_folder(&folder, &behind, &wanted)?);
                    continue;
                }
            };
            if let Some(folder) = found.strip_suffix('/') {
                pending.append(&mut self.read_folder(folder, "", &wanted)?);
                continue;
            }
            if page.blobs.len() == max || bytes > PAGE_BYTES_MAX {
                page.more = true;
                break;
            }
            wanted.look()?;
            // Gone meanwhile: then it is not listed.
            if let Some(len) = self.len_of(&found)? {
                bytes += found.len();
                page.blobs.push(BlobEntry { name: found, len });
            }
        }
        Ok(page)
    }

    /// Reads the entries of a folder that sort behind `behind` and may hold something wanted, in
    /// reverse order: as many as may be needed, and where to go on. Empty is the directory itself.
    fn read_folder(
        &self,
        folder: &str,
        behind: &str,
        wanted: &Sought<'_>,
    ) -> Result<Vec<Step>, BlobError> {
        let failed = |errno| BlobError::from_errno(folder, "list", errno);
        let path = if folder.is_empty() { "." } else { folder };
        let opened = match self.root.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            // Removed, or replaced by something that is not followed: nothing to list.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(Vec::new()),
            result => result.map_err(failed)?,
        };
        let (mut first, mut is_cut) = (BinaryHeap::new(), false);
        for entry in Dir::new(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            wanted.look()?;
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
            if found.as_str() > behind && wanted.maybe(&found) {
                first.push(found);
            }
            if first.len() > wanted.keep {
                first.pop();
                is_cut = true;
            }
        }
        let last = first.peek().filter(|_| is_cut);
        let go_on = last.map(|last| (folder.to_owned(), last.clone()));
        let go_on = go_on.map(|(folder, behind)| Step::GoOn { folder, behind });
        let visits = first.into_sorted_vec().into_iter().rev().map(Step::Visit);
        Ok(go_on.into_iter().chain(visits).collect())
    }

    /// Some file systems do not say the type in the listing.
    fn type_of(&self, path: &str, listed: FileType) -> Option<FileType> {
        if listed != FileType::Unknown {
            return Some(listed);
        }
        let (folder, leaf) = folder_and_leaf(path);
        type_at(self.root.folder(folder).ok()?, leaf).ok()
    }

    fn len_of(&self, path: &str) -> Result<Option<u64>, BlobError> {
        match self.root.open_at(path, OFlags::PATH) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd)
                    .map_err(|errno| BlobError::from_errno(path, "stat", errno))?;
                let is_blob = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                // A file that is shorter than an empty blob is none.
                Ok(blob_len(stat.st_size.unsigned_abs()).filter(|_| is_blob))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(BlobError::from_errno(path, "stat", errno)),
        }
    }
}

/// Which names are asked for.
struct Sought<'a> {
    prefix: &'a str,
    after: &'a str,
    /// Most entries of a folder that are needed at once.
    keep: usize,
    /// Entries that were looked at.
    looked: Cell<usize>,
    still_wanted: Wanted<'a>,
}

impl<'a> Sought<'a> {
    /// Looks at one more entry, in its folder or for its length. Now and then this fails if nobody
    /// waits any more.
    fn look(&self) -> Result<(), BlobError> {
        let looked = self.looked.get() + 1;
        self.looked.set(looked);
        match looked.is_multiple_of(ENTRIES_PER_LOOK) && !(self.still_wanted)() {
            true => Err(given_up(self.prefix)),
            false => Ok(()),
        }
    }

    /// The innermost folder that holds everything with the prefix.
    fn start(&self) -> &'a str {
        match self.prefix.rsplit_once('/') {
            // Anything but a proper name is not opened; nothing will match it.
            Some((folder, _)) if BlobName::new(folder).is_ok() => folder,
            _ => "",
        }
    }

    /// Returns true if `found` is wanted or, if it is a folder, may hold something wanted.
    fn maybe(&self, found: &str) -> bool {
        if found.ends_with('/') {
            (found.starts_with(self.prefix) || self.prefix.starts_with(found))
                && (found > self.after || self.after.starts_with(found))
        } else {
            found.starts_with(self.prefix) && found > self.after
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::blocks::file_len;
    use super::*;
    use crate::BlobConfig;

    const WANTED: Wanted<'static> = &|| true;

    fn store() -> (tempfile::TempDir, Directory) {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::open(&BlobConfig::new(dir.path())).unwrap();
        (dir, store)
    }

    /// Makes a file that a list takes for a blob.
    fn touch(path: impl AsRef<Path>) {
        fs::File::create(path).unwrap().set_len(file_len(0)).unwrap();
    }

    fn names(page: ListPage) -> Vec<String> {
        page.blobs.into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn no_more_of_a_folder_is_kept_than_is_needed() {
        let (dir, store) = store();
        for n in 0..50 {
            touch(dir.path().join(format!("{n:02}")));
        }
        let wanted =
            Sought { prefix: "", after: "09", keep: 4, looked: Cell::new(0), still_wanted: WANTED };
        let mut behind = String::new();
        for first in [10, 14, 18] {
            let mut steps = store.read_folder("", &behind, &wanted).unwrap().into_iter().rev();
            let visits: Vec<_> = (first..first + 4).map(|n| format!("{n:02}")).collect();
            for visit in visits {
                assert!(matches!(steps.next(), Some(Step::Visit(name)) if name == visit));
            }
            let Some(Step::GoOn { folder, behind: last }) = steps.next() else { panic!("no more") };
            assert_eq!((folder.as_str(), steps.count()), ("", 0));
            behind = last;
        }
        let steps = store.read_folder("", "45", &wanted).unwrap();
        assert!(steps.iter().all(|step| matches!(step, Step::Visit(_))), "that is all of it");
        assert_eq!(steps.len(), 4);
    }

    #[test]
    fn folders_without_blobs_hide_no_blobs_behind_them() {
        let (dir, store) = store();
        for n in 0..20 {
            fs::create_dir(dir.path().join(format!("a{n:02}"))).unwrap();
            touch(dir.path().join(format!("b{n:02}")));
        }
        touch(dir.path().join("a19/blob"));
        let page = store.list("", "", 3, WANTED).unwrap();
        assert!(page.more);
        assert_eq!(names(page), ["a19/blob", "b00", "b01"]);
        let page = store.list("", "b17", 3, WANTED).unwrap();
        assert!(!page.more);
        assert_eq!(names(page), ["b18", "b19"]);
        let page = store.list("a", "", 1, WANTED).unwrap();
        assert_eq!((page.more, names(page)), (false, vec!["a19/blob".to_owned()]));
    }

    #[test]
    fn a_list_that_was_given_up_ends() {
        let (dir, store) = store();
        for n in 0..ENTRIES_PER_LOOK {
            touch(dir.path().join(format!("f{n:04}")));
        }
        let error = store.list("f", "", 3, &|| false).unwrap_err();
        assert_eq!(error, BlobError::GivenUp { name: "f".into() });
    }
}
