//! Settings that only the ucx transport has. Here, so that they exist in every build.

use crate::Error;
use crate::options::tcp::{CONNECTIONS_MAX, check_connections};

/// Settings of the ucx transport, as [`OpenOptions::ucx`](crate::OpenOptions::ucx).
///
/// ```
/// # use na_core as na;
/// use na::OpenOptions;
///
/// let mut options = OpenOptions::listening(true);
/// options.ucx.rendezvous_bytes_min = Some(1 << 20);
/// assert_eq!(options.ucx.connections_max, 65_536, "as by default");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UcxOptions {
    /// Shortest memory in one piece, bytes, that is sent by UCX's rendezvous: straight from the
    /// sender's memory to the receiver's where the network can do that, and in pieces of 4 MiB.
    /// Shorter memory is sent in copied chunks. Each side decides for the data that it sends. Never
    /// over shared memory, where UCX cannot be made to let go of memory. Default `None`: 64 KiB to
    /// peers that UCX reaches by InfiniBand or RoCE; never to those that it reaches by TCP alone,
    /// where chunks are faster.
    pub rendezvous_bytes_min: Option<usize>,
    /// Use of UCX's remote memory access for bulk data, with keys that owners give and take back.
    /// Default [`RemoteKeys::Auto`].
    pub remote_keys: RemoteKeys,
    /// Connections that others may have to this endpoint. A peer that asks for a further one is
    /// turned away ([`Error::Unreachable`]). Default 65,536; at least 1. Never more than the
    /// process may have descriptors when the endpoint is opened (the soft `RLIMIT_NOFILE`), less an
    /// eighth of those, but 16 to 256, for everything else; over `ucx+tcp`, where each takes three,
    /// a third of that.
    pub connections_max: usize,
}

impl Default for UcxOptions {
    fn default() -> Self {
        Self {
            rendezvous_bytes_min: None,
            remote_keys: RemoteKeys::default(),
            connections_max: CONNECTIONS_MAX,
        }
    }
}

impl UcxOptions {
    /// Refuses what cannot work.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), Error> {
        check_connections("ucx.connections_max", self.connections_max)
    }
}

/// When bulk data moves by UCX's remote memory access, as [`UcxOptions::remote_keys`]. Both sides
/// must allow it: a side that does not gives no keys, and asks for none.
///
/// ```
/// # use na_core as na;
/// use na::{OpenOptions, RemoteKeys};
///
/// let mut options = OpenOptions::listening(true);
/// assert_eq!(options.ucx.remote_keys, RemoteKeys::Auto);
/// options.ucx.remote_keys = RemoteKeys::Never;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteKeys {
    /// With peers that UCX reaches by connections of InfiniBand or RoCE (`rc`) alone: there the
    /// adapters do it, without the owner's processor. Memory of which a transfer has 64 KiB or more
    /// gets a key at the first one, other memory at the second.
    #[default]
    Auto,
    /// With all peers, for every transfer. Over TCP and shared memory UCX emulates it, with faults
    /// of its own: with the versions known (1.13 to 1.22) the owner's process may be aborted when a
    /// peer dies amid a get. For tests.
    Always,
    /// With none.
    Never,
}
