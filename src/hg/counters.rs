//! What was done so far, counted as Mercury counts it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::HgError;

/// One counter; orders nothing.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// Adds one; returns the new value.
    pub(super) fn bump(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// What a [`Core`](super::Core) has done since it started. A snapshot.
        ///
        /// Counterpart: `HG_Class_get_counters`.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])+ pub $name: u64,)+
        }

        /// The live counters.
        #[derive(Debug, Default)]
        pub(super) struct Counts {
            /// Sends that nobody waits for; gives each a name.
            pub(super) loose: Count,
            $(pub(super) $name: Count,)+
        }

        impl Counts {
            /// A message of a peer could not be read or fetched; returns how many so far.
            pub(super) fn malformed(&self, error: &HgError) -> u64 {
                if matches!(error, HgError::Wire(error) if error.is_checksum()) {
                    self.checksum_errors.bump();
                }
                self.malformed.bump()
            }

            pub(super) fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.0.load(Ordering::Relaxed),)+ }
            }
        }
    };
}

counters! {
    /// Requests sent.
    rpc_req_sent,
    /// Requests received.
    rpc_req_recv,
    /// Responses sent.
    rpc_resp_sent,
    /// Responses received.
    rpc_resp_recv,
    /// Requests, sent or received, that did not fit into a message.
    req_extra,
    /// Responses, sent or received, that did not fit into a message.
    resp_extra,
    /// Bulk transfers asked for here, eager ones included.
    bulk_count,
    /// Messages of peers that could not be read or fetched.
    malformed,
    /// Of these, those whose checksum was wrong.
    checksum_errors,
}
