//! Transfers between device memories of this instance: the device copies, also to another device.

use std::sync::Arc;
use std::time::Instant;

use device::DriverKind;
use hg::{BulkOp, HgError, MemoryKind};

use crate::BulkError;
use crate::bulk::staged::mapped::{Direct, OtherPart};
use crate::bulk::staged::start::StagedTransfer;
use crate::memory::device::{DeviceSegments, segments_of};

impl StagedTransfer {
    /// Lets a device copy, if the memory at both ends is this instance's. `false`: it is not, and
    /// nothing was moved.
    pub(super) fn within_instance(
        &self,
        segments: &Arc<DeviceSegments>,
    ) -> Result<bool, BulkError> {
        let inner = self.instance.inner();
        if self.peer != self.instance.self_addr() || !self.may_reach(segments) {
            return Ok(false);
        }
        let Some(key) = self.remote.own_device_key(&**inner.core.endpoint()) else {
            return Ok(false);
        };
        let len = self.local.end - self.local.start;
        let push = self.op == BulkOp::Push;
        // What is refused is asked for once more, as a peer would, who may be named by terms.
        let Ok(lease) = inner.devices.regions.lease(key, self.remote_offset, len, push) else {
            return Ok(false);
        };
        let Some(there) = segments_of(&lease) else { return Ok(false) };
        let parts = there.parts(self.remote_offset..self.remote_offset + len);
        let theirs = parts.map(|part| {
            let (memory, offset, len) = (part.memory.clone(), part.offset, part.len);
            OtherPart { memory, offset, len, _mapping: None }
        });
        let (theirs, early) = (theirs.collect(), self.early.clone());
        let stands = self.stands_for(len).map(|limit| (limit, Instant::now() + limit));
        let stood = move || stands.filter(|(_, until)| *until <= Instant::now());
        let direct = Direct {
            op: self.op,
            written: Some(if push { lease.clone() } else { self.memory.clone() }),
            _leases: vec![self.memory.clone(), lease],
            segments: segments.clone(),
            range: self.local.clone(),
            theirs,
            is_over: Arc::new(move || early.is_ready() || stood().is_some()),
        };
        let peer = || self.peer.to_string();
        let copied = direct.run(&self.instance).map_err(|what| match stood() {
            Some((limit, _)) => BulkError::StoodStill { peer: peer(), limit },
            None => BulkError::Transfer { peer: peer(), source: HgError::Bulk(what) },
        });
        copied.map(|()| true)
    }

    /// Returns whether the device of the local memory copies from and to that of the other, as far
    /// as the handle says.
    fn may_reach(&self, segments: &DeviceSegments) -> bool {
        let Some((own, attr)) = segments.device().zip(self.remote.attr()) else { return false };
        let is_same = own.info().index == u32::from(attr.device());
        match (own.driver().kind(), attr.kind()) {
            (DriverKind::Cuda, MemoryKind::Cuda) => true,
            (DriverKind::Hip, MemoryKind::Rocm) => is_same,
            (DriverKind::LevelZero, MemoryKind::LevelZero) => is_same,
            _ => false,
        }
    }
}
