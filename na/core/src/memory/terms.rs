//! The terms on which peers may use memory, beyond its key.

use std::time::Instant;

use crate::{DeniedReason, Principal};

/// The terms on which peers may use registered memory: who, until when, how often. All hold at
/// once; each is looked at by the owner when a transfer begins.
///
/// ```
/// # use na_core::{self as na, Access, DeniedReason, Memory, Principal, RegionTable};
/// use na::Terms;
///
/// let table = RegionTable::new();
/// let memory = table.register(Memory::zeroed(8)?, Access::ReadOnly)?;
/// memory.impose(Terms::new().only_for(Principal::User(7)).uses(1));
/// let lease = |len, who| table.lease_by(memory.key(), 0, len, false, || who).map(drop);
/// assert_eq!(lease(8, Principal::User(8)), Err(DeniedReason::NoSuchKey));
/// assert_eq!(lease(8, Principal::User(7)), Ok(()));
/// assert_eq!(lease(1, Principal::User(7)), Err(DeniedReason::NoSuchKey), "it was used");
/// # Ok::<(), na::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terms {
    only_for: Option<Principal>,
    until: Option<Instant>,
    uses: Option<u64>,
}

impl Terms {
    /// Terms that anybody meets, at any time.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only that user, host or name. Who is not known never is.
    #[must_use]
    pub fn only_for(self, peer: Principal) -> Self {
        Self { only_for: Some(peer), ..self }
    }

    /// Only transfers that begin before that time.
    #[must_use]
    pub fn until(self, time: Instant) -> Self {
        Self { until: Some(time), ..self }
    }

    /// Only so many times as many bytes as there are, in whatever transfers; those that fail count
    /// as well.
    #[must_use]
    pub fn uses(self, count: u64) -> Self {
        Self { uses: Some(count), ..self }
    }

    /// Returns whether the terms name a peer.
    #[must_use]
    pub fn name_a_peer(&self) -> bool {
        self.only_for.is_some()
    }
}

/// The terms of one region, and what is left of them.
#[derive(Debug)]
pub(super) struct RegionTerms {
    terms: Terms,
    bytes_left: u64,
}

impl RegionTerms {
    pub(super) fn new(terms: Terms, len: u64) -> Self {
        let bytes_left = terms.uses.map_or(u64::MAX, |uses| uses.saturating_mul(len));
        Self { terms, bytes_left }
    }

    /// Takes a transfer of so many bytes, if the terms allow it. A peer that does not meet them is
    /// told no more than one with a wrong key.
    pub(super) fn take(
        &mut self,
        len: u64,
        peer: impl FnOnce() -> Principal,
    ) -> Result<(), DeniedReason> {
        let Terms { only_for, until, uses } = self.terms;
        let is_it = |one: Principal| one != Principal::Unknown && one == peer();
        let is_met = until.is_none_or(|until| Instant::now() < until)
            && only_for.is_none_or(is_it)
            && (uses.is_none() || (self.bytes_left > 0 && len <= self.bytes_left));
        if !is_met {
            return Err(DeniedReason::NoSuchKey);
        }
        if uses.is_some() {
            self.bytes_left -= len;
        }
        Ok(())
    }
}
