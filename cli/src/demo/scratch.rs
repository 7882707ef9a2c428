//! The directory of a demo. It is removed when the demo ends; the next demo removes the directory
//! of one that was killed.
//!
//! Each demo holds a lock on a file in its directory for as long as it lives, and a process that
//! gets the lock may remove the directory. Unlike a process number, the lock means the same
//! wherever the directory is seen.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use margo::daemon::Failure;

const PREFIX: &str = "margo-demo-";
const LOCK: &str = "lock";

#[derive(Debug)]
pub(super) struct Scratch {
    /// Before `dir`, which takes an open file to remove.
    _lock: File,
    dir: TempDir,
}

impl Scratch {
    pub(super) fn new() -> Result<Self, Failure> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        Self::within(&parent)
            .map_err(|error| Failure::new("cannot make a temporary directory", error))
    }

    fn within(parent: &Path) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let lock = File::create_new(dir.path().join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { _lock: lock, dir })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes the directories of demos that are no more. What cannot be removed is somebody else's,
/// or will be next time.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_demo = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Not through a link, which somebody else may have put there.
        if !is_demo || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        // One without the file is being made just now.
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dead_have_left_goes_and_what_the_living_use_stays() {
        let parent = tempfile::tempdir().unwrap();
        let living = Scratch::within(parent.path()).unwrap();
        let dead = Scratch::within(parent.path()).unwrap();
        fs::write(dead.path().join("blobs"), "some").unwrap();
        // As a kill does: the lock goes, the directory stays.
        let Scratch { _lock, dir } = dead;
        let left = dir.keep();
        drop(_lock);
        let foreign = [format!("{PREFIX}begins"), "margo-other".to_owned()];
        for name in &foreign {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        sweep(parent.path());
        assert!(!left.exists() && living.path().exists());
        assert!(foreign.iter().all(|name| parent.path().join(name).exists()));
    }
}
