//! Settings that only the sm transport has. Here, so that they exist in every build.

use crate::Error;

/// Most connections to one endpoint, unless said otherwise: each takes up to four mappings (its
/// segment, the peer's board, a lane in each direction), and the kernel gives a process 65,530.
/// That leaves half of them to the rest of the process.
const CONNECTIONS_MAX: usize = 8192;

/// Most of them from processes of one user, unless said otherwise: several per hardware thread of a
/// large node, and still no user can take the room of the others.
const CONNECTIONS_PER_USER_MAX: usize = CONNECTIONS_MAX / 2;

/// Most bytes of a peer's memory that are mapped, unless said otherwise. A process has 128 TiB of
/// addresses on the usual processors.
const MAPPED_BYTES_PER_PEER_MAX: u64 = 1 << 40;

/// Settings of the sm transport, as [`OpenOptions::sm`](crate::OpenOptions::sm).
///
/// ```
/// # use na_core as na;
/// use na::OpenOptions;
///
/// let mut options = OpenOptions::listening(true);
/// options.sm.connections_max = 256;
/// options.sm.cross_memory_attach = false;
/// assert_eq!(options.sm.connections_per_user_max, 4096, "as by default");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SmOptions {
    /// Connections that others may have to this endpoint, or to all endpoints of its group.
    /// Further ones are refused, and their dialer is told so ([`Error::Unreachable`]); those that
    /// exist go on. Each costs two descriptors (mind `ulimit -n`, often 1,024), up to four mappings
    /// and, with the default message size, about 148 KiB of shared memory; and one more and 2 MiB
    /// for good once we have sent it bulk data of more than 4 KiB through a ring. Default 8,192,
    /// which is half of the mappings that the kernel gives a process; at least 1.
    pub connections_max: usize,
    /// Connections of these that processes of each user, our own included, may have. Further ones
    /// are refused in the same way. Default 4,096; at least 1.
    pub connections_per_user_max: usize,
    /// Bytes of one peer's [`SharedBuffer`](crate::SharedBuffer)s that are mapped here at once,
    /// those of up to 2 MiB not counted. This is address space, which unused memory takes as well.
    /// Data of buffers beyond takes the other ways, as that of plain memory. Default 1 TiB.
    pub mapped_bytes_per_peer_max: u64,
    /// Move bulk data with cross-memory attach where it is permitted and faster, with processes of
    /// the same user. The system then reads the other's pages in the poll of the process that
    /// copies: memory that is mapped from a slow file system holds it up. Off: never, as if it were
    /// forbidden. Default on.
    pub cross_memory_attach: bool,
}

impl Default for SmOptions {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            connections_per_user_max: CONNECTIONS_PER_USER_MAX,
            mapped_bytes_per_peer_max: MAPPED_BYTES_PER_PEER_MAX,
            cross_memory_attach: true,
        }
    }
}

impl SmOptions {
    /// Refuses what cannot work.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), Error> {
        for (option, limit) in [
            ("sm.connections_max", self.connections_max),
            ("sm.connections_per_user_max", self.connections_per_user_max),
        ] {
            if limit == 0 {
                let reason = "it is 0; at least 1 is needed (or do not listen)".to_owned();
                return Err(Error::BadOption { option, reason });
            }
        }
        Ok(())
    }
}
