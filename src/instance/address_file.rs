//! The file that says where an instance listens: [`AddressFile`].

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use na::fork::Process;
use ult::integration::blocking_reserved;

use crate::support::files;

/// A file that holds the address of an instance, and a line feed, for as long as others shall find
/// it. An instance writes and removes that of `margo.address_file` by itself; a program that wants
/// to be found only later, when its providers have started, writes one of its own, as `margo serve`
/// does.
///
/// Dropping it removes the file.
///
/// ```
/// use margo::{AddressFile, Instance};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("address");
/// let instance = Instance::builder("na+sm://").start()?;
/// // … providers start …
/// let file = AddressFile::write(&path, instance.self_addr().uri())?;
/// assert_eq!(std::fs::read_to_string(&path)?.trim_end(), instance.self_addr().uri());
/// drop(file);
/// assert!(!path.exists());
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AddressFile {
    path: PathBuf,
    address: String,
    process: Process,
}

impl AddressFile {
    /// Writes the file, in place of an earlier one, in one step: no reader sees half an address.
    ///
    /// # Errors
    ///
    /// Those of the system, with the file's name.
    pub fn write(path: impl Into<PathBuf>, address: &str) -> io::Result<Self> {
        let (path, address) = (path.into(), address.to_owned());
        let process = Process::current();
        // The disk may take its time, which is not that of the others on a ULT's execution stream.
        blocking_reserved(move || {
            files::replace(&path, |out| writeln!(out, "{address}"))?;
            Ok(Self { path, address, process })
        })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, unless another service has put its own address there, or this process is a child
    /// that was forked off. Idempotent.
    pub fn remove(&self) {
        if self.process.is_other() {
            return;
        }
        let (path, address) = (self.path.clone(), self.address.clone());
        blocking_reserved(move || {
            let text = std::fs::read_to_string(&path);
            if text.is_ok_and(|text| text.trim_end() == address) {
                let _ = std::fs::remove_file(&path);
            }
        });
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_file_is_removed_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("address");
        let first = AddressFile::write(&path, "na+sm://1").unwrap();
        let second = AddressFile::write(&path, "na+sm://2").unwrap();
        drop(first);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "na+sm://2\n");
        drop(second);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_address_file_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/address");
        let error = AddressFile::write(&path, "na+sm://1").unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
}
