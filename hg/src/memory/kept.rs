//! The bytes of long payloads that are exposed until their peers are done with them, which have a
//! limit.
//!
//! The count goes with the memory: [`Share`] lies in the
//! [`ExposedPayload`](super::slots::ExposedPayload), and however that ends, by an acknowledgement,
//! a cancel, the peer's end, a close or an error, the bytes are given back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
#[cfg(test)]
use std::time::Duration;
use std::time::Instant;

/// Results, or arguments, that are kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept(pub(crate) Arc<Sum>);

#[derive(Debug, Default)]
pub(crate) struct Sum {
    bytes: HeldBytes,
    /// Until then nothing has waited for `PATIENCE`: a result that finds no room causes no look.
    pub(crate) all_wait_until: Mutex<Option<Instant>>,
    /// Milliseconds that time is ahead of the clock.
    #[cfg(test)]
    ahead: AtomicU64,
    /// How often all operations were looked through.
    #[cfg(test)]
    pub(crate) looks: AtomicU64,
}

/// Bytes that are held, a count with a limit. It orders nothing.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(AtomicU64);

impl HeldBytes {
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `len` bytes. `false`: with those that are held they are more than `max`; but alone
    /// they never are.
    #[inline]
    pub(crate) fn hold(&self, len: u64, max: u64) -> bool {
        let with = |bytes: u64| bytes.checked_add(len).filter(|sum| bytes == 0 || *sum <= max);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).is_ok()
    }

    #[inline]
    pub(crate) fn release(&self, len: u64) {
        self.0.fetch_sub(len, Ordering::Relaxed);
    }
}

/// The bytes of one result, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    kept: Kept,
    pub(crate) len: u64,
    pub(crate) since: Instant,
}

impl Share {
    pub(crate) fn is_of(&self, kept: &Kept) -> bool {
        Arc::ptr_eq(&self.kept.0, &kept.0)
    }
}

impl Kept {
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.bytes()
    }

    pub(crate) fn now(&self) -> Instant {
        let now = Instant::now();
        #[cfg(test)]
        let now = now + Duration::from_millis(self.0.ahead.load(Ordering::Relaxed));
        now
    }

    /// So much time passes.
    #[cfg(test)]
    pub(crate) fn pass(&self, time: Duration) {
        self.0.ahead.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn looks(&self) -> u64 {
        self.0.looks.load(Ordering::Relaxed)
    }

    /// Counts a result of `len` bytes. `None`: with those that are kept they are more than `max`;
    /// but alone they never are.
    #[inline]
    pub(crate) fn keep(&self, len: u64, max: u64) -> Option<Share> {
        let fits = self.0.bytes.hold(len, max);
        fits.then(|| Share { kept: self.clone(), len, since: self.now() })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.kept.0.bytes.release(self.len);
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
