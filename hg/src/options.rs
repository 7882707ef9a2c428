//! Options: how a core behaves.

use na::LargeBuffers;

use crate::HgError;
use crate::RpcId;
use crate::base::log::Log;
use crate::base::membership::Membership;
use crate::proc::ProcLimits;
use crate::wire::checksum::ChecksumLevel;
use crate::wire::format::{Accept, Build, Format};

/// The options of a [`Core`](crate::Core).
///
/// Two options of `HG_Init_opt2` are not here because they would change nothing: the thread mode
/// (everything that starts, answers or cancels may be called from any thread, for one atomic
/// instruction), and the progress mode (the code that drives a core decides whether to poll or to
/// sleep).
///
/// ```
/// # use hg::*;
/// let mut options = HgOptions::default();
/// options.listen = false;
/// options.overflow_bytes_max = 1 << 20;
/// let endpoint = na::open("na+sim://doc-hg-options/a", &na::OpenOptions::listening(false))?;
/// let core = Core::<u32>::new(endpoint, options)?;
/// assert_eq!(core.in_hand().receives_posted, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HgOptions {
    /// The build of Mercury to speak like. Default: without checksum support.
    pub build: Build,
    /// Take requests of the other build as well, if they say so: builds with checksum support of
    /// Mercury 2.4.1 and later do, and our own. They are answered in kind. Default: yes.
    pub detect_build: bool,
    /// Ask each peer that may be a C program ([`na::Endpoint::carries_extensions`]) which build it
    /// is, before the first call to it, with a request that both builds answer. Costs a round trip
    /// per peer. Only with [`Build::Plain`]. Default: no, every peer is called as `build` says.
    pub ask_build: bool,
    /// The secret of our cluster, which is proven to each peer, and has to be proven by it, where
    /// the [transport](na::Endpoint::knows_principals) does not tell who it is. Costs a round trip
    /// before the first call to a peer, and with each request a code at both ends. Default: none.
    pub membership: Option<Membership>,
    /// The parts of a message that checksums protect; levels other than `None` take
    /// [`Build::Checksum`]. Both ends must be set alike. Default: none.
    pub checksum_level: ChecksumLevel,
    /// Receive requests. Default: yes. The endpoint must have been opened to listen as well.
    pub listen: bool,
    /// Receives for requests posted at first, and restored as requests are done with. Default 256,
    /// as in Margo.
    pub request_post_init: usize,
    /// Receives added when all are taken by requests that are held. Zero: never; the transport then
    /// holds senders back (C: -1). Default 256.
    pub request_post_incr: usize,
    /// Most requests held whose arguments have not been read, posted receives included. Beyond it
    /// the transport holds senders back. Default 16384.
    pub requests_max: usize,
    /// Put requests into large buffers that many share, so that each takes the memory that it is
    /// long, where the transport can ([`na::Endpoint::has_multi_recv`]; all of ours). Otherwise
    /// each receive has a message buffer of its own (4 KiB by default). Default: yes (C:
    /// `no_multi_recv`).
    pub multi_recv: bool,
    /// Large buffers, each as long as `request_post_init` of the longest requests. They take
    /// memory as it is needed. Default 4, as in Mercury.
    pub multi_recv_op_max: usize,
    /// So many of the large buffers are not for requests that are held: once these have taken the
    /// others, each further one gets memory of its own, until some are done with. C copies requests
    /// then, and has nothing to receive into when none is left; here receiving goes on, also with
    /// 0. At most `multi_recv_op_max`: then each request has memory of its own. Default 0, as in
    /// Mercury.
    pub multi_recv_copy_threshold: usize,
    /// Longest payload that may overflow a message, bytes, in both directions. Default 256 MiB.
    pub overflow_bytes_max: usize,
    /// Bytes of overflowed arguments that requests hold together, those being fetched included. A
    /// request beyond it is refused with [`ReturnCode::Again`](crate::ReturnCode::Again), unless
    /// none is held; then fetches whose requests' deadlines have passed are given up, and one of
    /// another origin that is being fetched more than half of it. As many bytes, counted apart, of
    /// overflowed results are kept until their origins have fetched them or are gone. For one
    /// beyond it, those that have waited for 60 s are given up, oldest first
    /// ([`HgError::GaveWay`]); if there are none, it is not sent, unless none is kept:
    /// [`HgError::Unfetched`]. As many, counted apart, of the arguments of canceled calls stay
    /// exposed where [no owner is asked](na::Endpoint::asks_owners) before they are fetched; beyond
    /// it the oldest of the same shard are taken back. Default 1 GiB.
    pub overflow_held_max: usize,
    /// Overflowed results of this RPC are counted apart, and may be 16 MiB together: so that it is
    /// answered while `overflow_held_max` is reached. For what tells people why. Default: none.
    pub results_apart: Option<RpcId>,
    /// Bounds of encoded values. Default: see there.
    pub proc: ProcLimits,
    /// Let payloads that do not fit into a message overflow. Default: yes. Without, such a payload
    /// cannot be encoded: [`ProcError::TooLong`](crate::ProcError::TooLong) (C: `no_overflow`,
    /// `HG_OVERFLOW`). Messages of peers may overflow all the same.
    pub overflow: bool,
    /// Let small bulk data travel inside its descriptor. Default: yes (C: `no_bulk_eager`).
    pub bulk_eager: bool,
    /// Longest single put or get, bytes; longer transfers take several. Default 64 MiB.
    pub bulk_chunk_bytes: u64,
    /// Puts or gets of one transfer in flight at a time, at most 32. Default 8.
    pub bulk_window: u32,
    /// Hand calls to ourselves over without the network. Default: yes (C: `no_loopback`).
    pub loopback: bool,
    /// Give a request's buffer back, and no longer count it as held, as soon as
    /// [`RequestHandle::input`](crate::RequestHandle::input) or
    /// [`payload_was_read`](crate::RawRequest::payload_was_read) says that it was read, rather than
    /// with the answer. For handlers that run long. Default: no.
    pub release_input_early: bool,
    /// Log the counters when the core is dropped. Default: no.
    pub stats: bool,
    /// The filter of log messages. Default: all of them pass.
    pub log: Log,
}

impl Default for HgOptions {
    fn default() -> Self {
        Self {
            build: Build::Plain,
            detect_build: true,
            ask_build: false,
            membership: None,
            checksum_level: ChecksumLevel::None,
            listen: true,
            request_post_init: 256,
            request_post_incr: 256,
            requests_max: 16 << 10,
            multi_recv: true,
            multi_recv_op_max: 4,
            multi_recv_copy_threshold: 0,
            overflow_bytes_max: 256 << 20,
            overflow_held_max: 1 << 30,
            results_apart: None,
            proc: ProcLimits::default(),
            overflow: true,
            bulk_eager: true,
            bulk_chunk_bytes: 64 << 20,
            bulk_window: 8,
            loopback: true,
            release_input_early: false,
            stats: false,
            log: Log::default(),
        }
    }
}

impl HgOptions {
    /// Where requests are received, each of at most `bytes_max` bytes.
    ///
    /// # Errors
    ///
    /// [`HgError::Na`] when more buffers are to be spared than there are.
    pub(crate) fn large_buffers(&self, bytes_max: usize) -> Result<LargeBuffers, HgError> {
        let (all, spared) = (self.multi_recv_op_max, self.multi_recv_copy_threshold);
        let Some(count) = all.checked_sub(spared) else {
            return Err(HgError::Na(na::Error::InvalidArgument(format!(
                "multi_recv_copy_threshold is {spared}: at most multi_recv_op_max, which is {all}"
            ))));
        };
        let bytes = self.request_post_init.saturating_mul(bytes_max);
        Ok(LargeBuffers::new(count, bytes, bytes_max))
    }

    /// The part of one of so many shards.
    pub(crate) fn of_one_shard(self, shards: usize) -> Self {
        Self {
            request_post_init: self.request_post_init.div_ceil(shards),
            request_post_incr: self.request_post_incr.div_ceil(shards),
            requests_max: self.requests_max.div_ceil(shards),
            ..self
        }
    }

    /// How requests are written.
    pub(crate) fn format(&self) -> Format {
        Format::new(self.build, self.checksum_level)
    }

    /// How requests are read.
    pub(crate) fn accept(&self) -> Accept {
        Accept { format: self.format(), detect: self.detect_build }
    }
}
