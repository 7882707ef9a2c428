//! Opening paths that cannot leave the directory, whatever is inside it.
//!
//! The kernel does it (`openat2`: beneath the directory, no symbolic links, no other file system).
//! Where there is no `openat2` (seccomp filters of old container runtimes forbid it), the path is
//! walked component by component, each opened without following a link; a component that somebody
//! exchanges meanwhile is then either seen as the link that it is, or was opened before.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Mode of new folders; the process's umask takes away from it.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);

/// How paths are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resolver {
    /// `openat2`.
    Kernel,
    /// Component by component.
    Steps,
}

/// The directory.
#[derive(Debug)]
pub(super) struct Root {
    fd: OwnedFd,
    device: u64,
    pub(super) resolver: Resolver,
}

/// A folder: the directory itself, or one below it.
#[derive(Debug)]
pub(super) enum Folder<'a> {
    Root(BorrowedFd<'a>),
    Below(OwnedFd),
}

impl AsFd for Folder<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Root(fd) => *fd,
            Self::Below(fd) => fd.as_fd(),
        }
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// How often `openat2` is tried again when it cannot rule out that a rename elsewhere mattered.
const RETRIES: usize = 100;

impl Root {
    /// Opens the directory. `path` is the configuration's: links in it are followed.
    pub(super) fn open(path: &Path) -> Result<Self, Errno> {
        let fd = rustix::fs::openat(CWD, path, FOLDER | OFlags::CLOEXEC, Mode::empty())?;
        let device = rustix::fs::fstat(&fd)?.st_dev;
        let mut root = Self { fd, device, resolver: Resolver::Kernel };
        if let Err(errno) = root.by_kernel(".", FOLDER) {
            tracing::debug!(%errno, "no openat2; paths are opened component by component");
            root.resolver = Resolver::Steps;
        }
        Ok(root)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens `path`, a well-formed relative path or `.`, without creating anything.
    ///
    /// Fails with `ELOOP` at a symbolic link and with `EXDEV` at another file system.
    pub(super) fn open_at(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self.resolver {
            Resolver::Kernel => self.by_kernel(path, flags),
            Resolver::Steps => self.by_steps(path, flags),
        }
    }

    fn by_kernel(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let confined = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        for _ in 0..RETRIES {
            let flags = flags | OFlags::CLOEXEC;
            match rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), confined) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    fn by_steps(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut above: Option<OwnedFd> = None;
        let mut rest = path;
        while let Some((component, after)) = rest.split_once('/') {
            let here = above.as_ref().map_or(self.fd(), OwnedFd::as_fd);
            above = Some(self.step(here, component, OFlags::PATH | OFlags::DIRECTORY)?);
            rest = after;
        }
        self.step(above.as_ref().map_or(self.fd(), OwnedFd::as_fd), rest, flags)
    }

    fn step(&self, at: BorrowedFd<'_>, component: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(at, component, flags, Mode::empty()) {
            // A link that is to be opened as a folder is reported as "not a folder".
            Err(Errno::NOTDIR) if is_link(at, component) => return Err(Errno::LOOP),
            result => result?,
        };
        if rustix::fs::fstat(&fd)?.st_dev == self.device { Ok(fd) } else { Err(Errno::XDEV) }
    }

    /// Opens a folder; `None` is the directory itself.
    pub(super) fn folder(&self, path: Option<&str>) -> Result<Folder<'_>, Errno> {
        match path {
            None => Ok(Folder::Root(self.fd())),
            Some(path) => self.open_at(path, FOLDER).map(Folder::Below),
        }
    }

    /// Opens a folder, and makes what of it is missing. With `sync`, new folders are on the disk
    /// when this returns.
    pub(super) fn make_folder(&self, path: Option<&str>, sync: bool) -> Result<Folder<'_>, Errno> {
        match self.folder(path) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        let path = path.unwrap_or_default();
        let mut above = self.folder(None)?;
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        let mut start = 0;
        for end in ends {
            match rustix::fs::mkdirat(&above, &path[start..end], FOLDER_MODE) {
                Ok(()) if sync => rustix::fs::fsync(&above)?,
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            above = self.folder(Some(&path[..end]))?;
            start = end + 1;
        }
        Ok(above)
    }
}

fn is_link(at: BorrowedFd<'_>, component: &str) -> bool {
    type_at(at, component).is_ok_and(|kind| kind == FileType::Symlink)
}

/// The type of an entry of a folder; of a link, not of what it leads to.
pub(super) fn type_at(folder: impl AsFd, leaf: &str) -> Result<FileType, Errno> {
    let stat = rustix::fs::statat(folder, leaf, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}
