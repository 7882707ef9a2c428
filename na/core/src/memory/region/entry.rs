//! A region in the table.

use std::sync::Weak;

use prim::sync::Arc;

use super::Region;
use crate::memory::terms::RegionTerms;
use crate::{Access, DeniedReason, Principal, Terms};

/// A region under its key. The access that peers have stands beside it. So a thread that denies a
/// transfer holds no region, which it might otherwise have to drop, under whatever locks, if the
/// owner let go meanwhile.
#[derive(Debug)]
pub(super) struct RegionEntry {
    pub(super) region: Weak<Region>,
    access: Access,
    len: u64,
    terms: Option<Box<RegionTerms>>,
}

impl RegionEntry {
    pub(super) fn of(region: &Arc<Region>) -> Self {
        let (access, len) = (region.access, region.len());
        Self { region: Arc::downgrade(region), access, len, terms: None }
    }

    pub(super) fn impose(&mut self, terms: Terms) {
        self.terms = Some(Box::new(RegionTerms::new(terms, self.len)));
    }

    /// Returns the region for a transfer of a peer, if it is allowed.
    #[inline]
    pub(super) fn lease(
        &mut self,
        offset: u64,
        len: u64,
        write: bool,
        peer: impl FnOnce() -> Principal,
    ) -> Result<Arc<Region>, DeniedReason> {
        let mut denied = self.denies(offset, len, write);
        if let (None, Some(terms)) = (denied, &mut self.terms) {
            denied = terms.take(len, peer).err();
        }
        match denied {
            Some(reason) if self.region.strong_count() > 0 => Err(reason),
            Some(_) => Err(DeniedReason::NoSuchKey),
            None => self.region.upgrade().ok_or(DeniedReason::NoSuchKey),
        }
    }

    /// Returns the region if peers may copy there without asking each time.
    pub(super) fn lend(&self) -> Option<Arc<Region>> {
        self.region.upgrade().filter(|_| self.terms.is_none())
    }

    /// Why a peer must not, if so; whether the region still exists is not asked.
    fn denies(&self, offset: u64, len: u64, write: bool) -> Option<DeniedReason> {
        let allowed = if write { self.access.writable() } else { self.access.readable() };
        let within = offset.checked_add(len).is_some_and(|end| end <= self.len);
        match (allowed, within) {
            (false, _) => Some(DeniedReason::Access),
            (true, false) => Some(DeniedReason::OutOfRange),
            (true, true) => None,
        }
    }
}
