//! The user's files.

use std::fs;
use std::path::{Path, PathBuf};

use margo_provider_blob::BlobName;

use crate::support::output;
use margo::daemon::Failure;

/// One regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) path: PathBuf,
    /// Under which name it is stored. Unique.
    pub(super) blob: String,
    /// Bytes, when it was found. It may change.
    pub(super) len: u64,
}

/// All files to store, in a fixed order.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) list: Vec<File>,
    /// Number of things that were found and are not stored: links, devices …
    pub(super) skipped: u64,
}

impl Files {
    /// Finds the files. What is named may be a link; links inside of folders are skipped.
    pub(super) fn gather(paths: &[PathBuf]) -> Result<Self, Failure> {
        let mut files = Self::default();
        for (index, path) in paths.iter().enumerate() {
            let kind = fs::metadata(path).map_err(|error| cannot_read(path, &error))?;
            let leaf = path.file_name().map_or_else(|| PathBuf::from("root"), PathBuf::from);
            if kind.is_dir() {
                files.folder(index, path, &leaf)?;
            } else {
                files.add(index, path.clone(), &leaf, &kind);
            }
        }
        if files.list.is_empty() {
            let named: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            return Err(Failure::Failed(format!("no regular files in {}", named.join(", "))));
        }
        Ok(files)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.list.iter().map(|file| file.len).sum()
    }

    fn folder(&mut self, index: usize, root: &Path, leaf: &Path) -> Result<(), Failure> {
        // Where it is, and what it is called in the store; the next one last.
        let mut pending = vec![(root.to_owned(), leaf.to_owned())];
        while let Some((path, name)) = pending.pop() {
            let listed = fs::read_dir(&path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| cannot_read(&path, &error))?;
            let mut entries: Vec<_> = listed.iter().map(fs::DirEntry::file_name).collect();
            entries.sort_unstable();
            let mut below = Vec::new();
            for entry in entries {
                let (path, name) = (path.join(&entry), name.join(&entry));
                let kind =
                    fs::symlink_metadata(&path).map_err(|error| cannot_read(&path, &error))?;
                if kind.is_dir() {
                    below.push((path, name));
                } else {
                    self.add(index, path, &name, &kind);
                }
            }
            pending.extend(below.into_iter().rev());
        }
        Ok(())
    }

    fn add(&mut self, index: usize, path: PathBuf, name: &Path, kind: &fs::Metadata) {
        if !kind.is_file() {
            let what = if kind.is_symlink() { "symbolic link" } else { "special file" };
            output::note(format_args!("skipping the {what} {}", path.display()));
            self.skipped += 1;
            return;
        }
        // The index keeps apart what is named twice, or has the same name in two places. What has
        // a name that a blob cannot have is stored under a number.
        let blob = name
            .to_str()
            .map(|name| format!("{index}/{name}"))
            .filter(|name| BlobName::new(name).is_ok())
            .unwrap_or_else(|| format!("{index}-by-number/{}", self.list.len()));
        self.list.push(File { path, blob, len: kind.len() });
    }
}

fn cannot_read(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format_args!("cannot read {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn finds_everything_once_and_names_it_apart() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("sub/empty")).unwrap();
        fs::write(root.join("b"), b"bb").unwrap();
        fs::write(root.join("a"), b"").unwrap();
        fs::write(root.join("sub/c"), b"ccc").unwrap();
        fs::write(root.join("back\\slash"), b"d").unwrap();
        fs::write(root.join(OsStr::from_bytes(b"\xff")), b"e").unwrap();
        symlink("b", root.join("link")).unwrap();
        symlink(&root, root.join("sub/loop")).unwrap();
        let arguments = [root.clone(), root.join("b"), root.join("link"), root.join("sub/..")];
        let files = Files::gather(&arguments).unwrap();

        let names: BTreeSet<_> = files.list.iter().map(|file| file.blob.as_str()).collect();
        assert_eq!(names.len(), files.list.len(), "{files:?}");
        assert!(names.iter().all(|name| BlobName::new(name).is_ok()), "{names:?}");
        let first: Vec<_> = files.list.iter().take(5).map(|file| file.blob.as_str()).collect();
        let expected = ["0/root/a", "0/root/b", "0-by-number/2", "0-by-number/3", "0/root/sub/c"];
        assert_eq!(first, expected);
        // A link that is named is followed; the folder's name need not be a name.
        assert_eq!((files.list[6].blob.as_str(), files.list[6].len), ("2/link", 2));
        assert_eq!(files.list[7].blob, "3/root/a");
        assert_eq!((files.list.len(), files.skipped), (12, 4));
        assert_eq!(files.bytes(), 7 + 2 + 2 + 7);
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let error = Files::gather(std::slice::from_ref(&missing)).unwrap_err().to_string();
        assert!(error.contains(missing.to_str().unwrap()), "{error}");
        let error = Files::gather(&[dir.path().to_owned()]).unwrap_err().to_string();
        assert!(error.contains("no regular files in"), "{error}");
    }
}
