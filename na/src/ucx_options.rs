//! Settings that only the ucx transport has. Here, so that they exist in every build.

/// Settings of the ucx transport, as [`OpenOptions::ucx`](crate::OpenOptions::ucx).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UcxOptions {
    /// Memory of at least so many bytes in one piece is sent by UCX's rendezvous, straight from the
    /// sender's memory to the receiver's where the network can do that, and in pieces of 4 MiB;
    /// what is shorter is sent in copied chunks. Each side decides for what it sends. Never over
    /// shared memory, where UCX cannot be made to let go of memory. Default `None`: 64 KiB to peers
    /// that UCX reaches by InfiniBand or RoCE; never to those that it reaches by TCP alone, where
    /// chunks are faster.
    pub rendezvous_bytes_min: Option<usize>,
}
