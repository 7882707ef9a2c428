//! Checks of a peer's memory before it is mapped here, and the reasons why it is not.

use std::os::fd::OwnedFd;

use rustix::fs::SealFlags;

/// Why memory of a peer is not mapped here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unmapped {
    /// The rule that the peer broke.
    Breach(String),
    /// The resource that this process lacks, and what to do about it.
    Lack(String),
}

impl Unmapped {
    /// The kernel could not hand a descriptor over.
    pub(super) fn no_descriptor(what: &str) -> Self {
        Self::Lack(format!(
            "this process has no free descriptor for {what} of the peer (raise `ulimit -n`)"
        ))
    }

    /// The kernel refused the mapping.
    pub(super) fn no_mapping(what: &str, errno: rustix::io::Errno) -> Self {
        Self::Lack(format!(
            "this process cannot map {what} of the peer: {errno} (see `ulimit -v` and \
             vm.max_map_count)"
        ))
    }

    /// Either, to tell the peer.
    pub(super) fn into_reason(self) -> String {
        match self {
            Self::Breach(reason) | Self::Lack(reason) => reason,
        }
    }
}

impl From<&str> for Unmapped {
    fn from(rule: &str) -> Self {
        Self::Breach(rule.into())
    }
}

/// Bytes of a peer's memfd that can be touched wherever they are mapped. Touching a mapping beyond
/// the end of its file would kill this process; so would a page of a pool of huge pages that its
/// owner has given back, and such mappings end only as whole huge pages.
///
/// # Errors
///
/// The reason why they cannot be touched safely.
pub(super) fn sealed_bytes(fd: &OwnedFd) -> Result<u64, &'static str> {
    /// `HUGETLBFS_MAGIC` of the kernel.
    const POOL_OF_HUGE_PAGES: u32 = 0x9584_58f6;
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| "memory that is no memfd")?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err("memory that is not sealed against a change of size");
    }
    let system = rustix::fs::fstatfs(fd).map_err(|_| "memory of an unknown kind")?;
    if system.f_type as u32 == POOL_OF_HUGE_PAGES {
        return Err("memory of a pool of huge pages");
    }
    let size = rustix::fs::fstat(fd).map_err(|_| "memory without a size")?.st_size;
    u64::try_from(size).map_err(|_| "memory of an impossible size")
}
