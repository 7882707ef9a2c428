//! Counters of what was done so far, counted as Mercury counts it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::HgError;

/// One counter; orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds one; returns the new value.
    #[inline]
    pub(crate) fn bump(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The counters that every RPC changes, under the lock that every RPC takes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct HotCounts {
    pub(crate) rpc_req_sent: u64,
    pub(crate) rpc_req_recv: u64,
    pub(crate) rpc_resp_sent: u64,
    pub(crate) rpc_resp_recv: u64,
    pub(crate) bulk_bytes: u64,
}

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// The work that a [`Core`](crate::Core) has done since it started, over all of its
        /// shards. A snapshot.
        ///
        /// ```
        /// # use hg::*;
        /// # let options = na::OpenOptions::listening(true);
        /// # let endpoint = na::open("na+sim://doc-counters/a", &options)?;
        /// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
        /// # let own = core.self_addr();
        /// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
        /// core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
        ///     .map_err(|refused| refused.0)?;
        /// let counters = core.counters();
        /// assert_eq!((counters.rpc_req_sent, counters.rpc_resp_recv), (1, 0));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// Counterpart: `HG_Class_get_counters`.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            /// Requests sent.
            pub rpc_req_sent: u64,
            /// Requests received.
            pub rpc_req_recv: u64,
            /// Responses sent.
            pub rpc_resp_sent: u64,
            /// Responses received.
            pub rpc_resp_recv: u64,
            /// Bytes that the bulk transfers asked for here have moved.
            pub bulk_bytes: u64,
            /// Requests that got memory of their own because too many held the large buffers.
            pub multi_recv_copy: u64,
            $($(#[$doc])+ pub $name: u64,)+
        }

        /// The live counters of rare events.
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            /// Sends whose end is not waited for; gives each a name.
            pub(crate) loose: Count,
            $(pub(crate) $name: Count,)+
        }

        impl Counts {
            /// A message of a peer could not be read or fetched; returns how many so far.
            pub(crate) fn malformed(&self, error: &HgError) -> u64 {
                if matches!(error, HgError::Wire(error) if error.is_checksum()) {
                    self.checksum_errors.bump();
                }
                self.malformed.bump()
            }

            /// Adds those of one context to `sum`.
            #[inline]
            pub(crate) fn add_to(&self, hot: HotCounts, sum: &mut Counters) {
                sum.rpc_req_sent += hot.rpc_req_sent;
                sum.rpc_req_recv += hot.rpc_req_recv;
                sum.rpc_resp_sent += hot.rpc_resp_sent;
                sum.rpc_resp_recv += hot.rpc_resp_recv;
                sum.bulk_bytes += hot.bulk_bytes;
                $(sum.$name += self.$name.0.load(Ordering::Relaxed);)+
            }
        }
    };
}

counters! {
    /// Requests, sent or received, that did not fit into a message.
    req_extra,
    /// Responses, sent or received, that did not fit into a message.
    resp_extra,
    /// Bulk transfers asked for here, eager ones included.
    bulk_count,
    /// Messages of peers that could not be read or fetched.
    malformed,
    /// Malformed messages whose checksum was wrong.
    checksum_errors,
    /// Responses of ours that were damaged when they arrived, as their origins said.
    resp_unread,
    /// Introductions and requests whose proof of membership was not right.
    not_proven,
    /// Requests refused because their RPC is not registered, or not served, here.
    not_registered,
    /// Calls and answers given up.
    canceled,
}

/// The operations and memory that a [`Core`](crate::Core) has in hand now, over all of its
/// shards. All but `receives_posted` and `large_buffer_bytes` are zero when nothing goes on.
///
/// ```
/// # use hg::*;
/// # let endpoint = na::open("na+sim://doc-in-hand/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// assert_eq!(core.in_hand().tokens, 0);
/// core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
///     .map_err(|refused| refused.0)?;
/// assert_eq!(core.in_hand().tokens, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `req_recv_active` among Mercury's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InHand {
    /// Calls, answers, fetches and transfers that have parts in flight.
    pub operations: usize,
    /// Tokens that have not gone back.
    pub tokens: usize,
    /// Requests that hold the place of a receive.
    pub requests_held: usize,
    /// Receives for requests in the network.
    pub receives_posted: usize,
    /// Memory taken so far for the large buffers that requests share, bytes. Requests that
    /// [`Counters::multi_recv_copy`] counts have other memory.
    pub large_buffer_bytes: usize,
    /// Bytes of results that did not fit into a message, and that their origins have not fetched
    /// yet; see [`HgOptions::overflow_held_max`](crate::HgOptions::overflow_held_max).
    pub result_bytes_kept: usize,
}
