//! A transfer in which device memory takes part: its start and its end.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hg::{Bulk, BulkOp, HgError, OpRef};
use na::LocalMem;
use ult::Eventual;

use crate::bulk::staged::carriers::Staged;
use crate::bulk::transfer::Plan;
use crate::instance::inner::Inner;
use crate::memory::device::{DeviceSegments, segments_of};
use crate::operation::bulk_call::BulkCall;
use crate::operation::deadline::Deadline;
use crate::support::why_over::GaveUp;
use crate::{Addr, BulkError, Instance};

/// Buffers that one transfer of the program uses at a time.
const CARRIERS_MAX: usize = 4;

/// For transfers whose end others see to.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A transfer of a program, on the ULT that makes it.
pub(super) struct StagedTransfer {
    pub(super) instance: Instance,
    pub(super) op: BulkOp,
    pub(super) peer: Addr,
    pub(super) remote: Bulk,
    pub(super) remote_offset: u64,
    pub(super) memory: LocalMem,
    /// The part of the local memory.
    pub(super) local: Range<u64>,
    pub(super) early: Arc<Eventual<()>>,
    /// It has no deadline.
    pub(super) may_stand: bool,
}

/// Ends the call whatever becomes of the ULT.
struct CallEnds(Instance, Arc<BulkCall>);

impl Drop for CallEnds {
    fn drop(&mut self) {
        if !self.1.done.is_ready() {
            let ended = HgError::Bulk("the ULT of the transfer was ended".to_owned());
            self.1.complete(&self.0.inner().monitoring, Err(ended));
        }
    }
}

impl Instance {
    /// Returns whether a transfer in which device memory takes part goes through buffers. The
    /// others are the transport's, as those of memory of the host.
    pub(crate) fn stages(&self, plan: &Plan<'_>, memory: &LocalMem) -> bool {
        let is_moved = match memory.elsewhere() {
            // What came with the handle is in memory of the host, and copied there.
            Some(_) if plan.remote.eager_data().is_some() => false,
            Some(_) => segments_of(memory).is_some_and(DeviceSegments::is_by_transport),
            None => true,
        };
        // A transport copies for its own address by the processor.
        !is_moved || plan.remote.device_key().is_some() || *plan.peer == self.self_addr()
    }

    /// Starts a transfer as [`start_transfer`](Self::start_transfer) does, in which device memory
    /// takes part.
    pub(crate) fn start_staged(
        &self,
        plan: &Plan<'_>,
        memory: &LocalMem,
        call: &Arc<BulkCall>,
    ) -> Result<OpRef, HgError> {
        check(plan, memory).map_err(HgError::Bulk)?;
        let early = Arc::new(Eventual::new());
        call.ends_by(early.clone());
        let job = StagedTransfer {
            instance: self.clone(),
            op: plan.op,
            peer: plan.peer.clone(),
            remote: plan.remote.clone(),
            remote_offset: plan.remote_offset,
            memory: memory.clone(),
            local: plan.local.start as u64..plan.local.end as u64,
            early,
            may_stand: call.may_stand(),
        };
        let inner = self.inner();
        let home = inner.pools_for_units([Inner::progress_pool, Inner::rpc_pool]).next();
        let ends = CallEnds(self.clone(), call.clone());
        let run = move || {
            let result = job.run(&ends.1);
            ends.1.complete(&ends.0.inner().monitoring, result);
        };
        // What is refused ends the call as well.
        drop(home.map(|home| home.spawn(run)));
        Ok(OpRef::NONE)
    }
}

/// Refuses early what the owner would refuse.
fn check(plan: &Plan<'_>, memory: &LocalMem) -> Result<(), String> {
    let (len, size) = (plan.local.len() as u64, plan.remote.len());
    let offset = plan.remote_offset;
    if offset.checked_add(len).is_none_or(|end| end > size) {
        return Err(format!(
            "{len} bytes at offset {offset} leave the remote memory of {size} bytes"
        ));
    }
    if plan.op == BulkOp::Pull && memory.may_be_written() {
        return Err("an earlier pull into the memory has ended although it may still be written: \
                    wait for that by releasing it, or use other memory"
            .to_owned());
    }
    match (plan.op, plan.remote.access()) {
        (BulkOp::Pull, Some(access)) if !access.readable() => {
            Err("its owner does not allow reading the remote memory".to_owned())
        }
        (BulkOp::Push, Some(access)) if !access.writable() => {
            Err("its owner does not allow writing the remote memory".to_owned())
        }
        _ => Ok(()),
    }
}

impl StagedTransfer {
    /// Returns how many bytes have moved, as the network does.
    fn run(self, call: &BulkCall) -> Result<u64, HgError> {
        let len = self.local.end - self.local.start;
        let early = self.early.clone();
        let moved = match self.memory.elsewhere().cloned() {
            Some(place) => self.of_device(place.downcast::<DeviceSegments>().ok()),
            None => self.ask_owner(),
        };
        match moved {
            Ok(()) => Ok(len),
            Err(_) if early.is_ready() => Err(HgError::Canceled),
            Err(BulkError::StoodStill { limit, .. }) => {
                call.stands_still(limit);
                call.given_up.is_first(GaveUp::TimedOut);
                Err(HgError::Canceled)
            }
            Err(
                BulkError::Transfer { source, .. }
                | BulkError::Alloc(source)
                | BulkError::Register(source),
            ) => Err(source),
            Err(other) => Err(HgError::Bulk(other.to_string())),
        }
    }

    /// Moves local device memory: by the device of the owner if that can be, else by buffers.
    fn of_device(self, segments: Option<Arc<DeviceSegments>>) -> Result<(), BulkError> {
        let Some(segments) = segments else {
            return Err(BulkError::OfDevice);
        };
        if self.within_instance(&segments)? || self.by_device(&segments)? {
            return Ok(());
        }
        let term = self.term();
        let staged = Staged {
            instance: self.instance,
            op: self.op,
            peer: self.peer,
            remote: self.remote,
            remote_offset: self.remote_offset,
            lease: self.memory,
            segments,
            range: self.local,
            term,
            early: self.early,
            token: None,
        };
        staged.run(|staging| &staging.own, CARRIERS_MAX)
    }

    /// The deadline of each part. Whoever has one ends the whole by it.
    fn term(&self) -> Option<Deadline> {
        if self.may_stand { None } else { Deadline::of_call(Some(FOR_EVER), None) }
    }
}
