//! Long results that are kept until their origins are done with them.
//!
//! An origin that lives and fetches nothing has its results kept for as long as it lives, see
//! `overflow.rs`. So their bytes are counted, for all contexts of a core together, and have a
//! limit. A result that fits into its message is not looked at here.
//!
//! The count goes with the memory: [`Share`] lies in the [`Exposed`], and however that ends, by an
//! acknowledgement, a cancel, the origin's end, a close or an error, the bytes are given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use na::{Addr, MsgBuf};

use super::core::Core;
use super::slots::Exposed;
use super::{HgError, RpcId, spare};

/// Most bytes of results of [`HgOptions::results_apart`](super::HgOptions::results_apart).
const APART_BYTES_MAX: usize = 16 << 20;

/// Bytes of results that are kept; a count, which orders nothing.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept(Arc<AtomicU64>);

/// The bytes of one result, counted until this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    kept: Kept,
    len: u64,
}

impl Kept {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a result of `len` bytes. `None`: with those that are kept they are more than `max`;
    /// but alone they never are.
    fn keep(&self, len: u64, max: u64) -> Option<Share> {
        let with = |bytes: u64| bytes.checked_add(len).filter(|sum| bytes == 0 || *sum <= max);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).ok()?;
        Some(Share { kept: self.clone(), len })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.kept.0.fetch_sub(self.len, Ordering::Relaxed);
    }
}

impl<T> Core<T> {
    /// [`expose_overflow`](Self::expose_overflow) for a result, unless too much is kept. `rpc`: of
    /// which RPC, where that is known.
    ///
    /// # Errors
    ///
    /// Also [`HgError::Unfetched`].
    pub(super) fn expose_result(
        &self,
        origin: &Addr,
        start: usize,
        buf: MsgBuf,
        bytes: Vec<u8>,
        message_max: usize,
        rpc: Option<RpcId>,
    ) -> Result<(MsgBuf, Exposed), HgError> {
        let is_apart = rpc.is_some() && rpc == self.options.results_apart;
        let (kept, max) = match is_apart {
            true => (&self.kept_apart, APART_BYTES_MAX),
            false => (&self.kept, self.options.overflow_held_max),
        };
        let len = bytes.len();
        let Some(share) = kept.keep(len as u64, max as u64) else {
            self.buffers.put(buf);
            spare::give(bytes);
            return Err(HgError::Unfetched { len, max });
        };
        let (buf, exposed) = self.expose_overflow(origin, start, buf, bytes, message_max)?;
        Ok((buf, exposed.counted(share)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_is_never_too_long() {
        let kept = Kept::default();
        let first = kept.keep(11, 10);
        assert!(first.is_some() && kept.keep(1, 10).is_none());
        assert!(kept.keep(u64::MAX, u64::MAX).is_none(), "nor does the sum wrap");
        drop(first);
        assert!(kept.keep(u64::MAX, 10).is_some());
        assert_eq!(kept.bytes(), 0);
    }

    proptest::proptest! {
        /// In any order of begins and ends: what is counted is what is kept, and within the limit
        /// unless it is one alone.
        #[test]
        fn what_is_counted_is_what_is_kept(
            max in 0..100u64,
            steps in proptest::collection::vec((proptest::bool::ANY, 1..60u64), 0..100),
        ) {
            let kept = Kept::default();
            let mut shares = Vec::new();
            for (begins, len) in steps {
                let before = kept.bytes();
                if begins {
                    let share = kept.keep(len, max);
                    assert_eq!(share.is_some(), before == 0 || before + len <= max);
                    shares.extend(share);
                } else if !shares.is_empty() {
                    shares.swap_remove(len as usize % shares.len());
                }
                let sum: u64 = shares.iter().map(|share| share.len).sum();
                assert_eq!(kept.bytes(), sum);
                assert!(sum <= max || shares.len() == 1);
            }
            drop(shares);
            assert_eq!(kept.bytes(), 0);
        }
    }
}
