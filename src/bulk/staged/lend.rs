//! Our device memory, lent to the owner of other device memory on this host, which then copies
//! between the two by its device.
//!
//! The owner of the remote memory copies, as it does with buffers, so that it looks at key, bounds,
//! access and terms each time, and its memory goes to nobody. What is lent is the local memory of
//! the transfer: its descriptor goes over the transport (`na+sm`), once for each exposed memory and
//! owner, if both sides have set `margo.device.share`. All that is said goes by one RPC, `__lend__`
//! of the default provider:
//!
//! | argument | sent | answered |
//! |---|---|---|
//! | [`Lend::Offer`] | before memory is lent | at once: the number under which the descriptor is expected |
//! | [`Lend::Hold`] | before the descriptor | when the memory is not mapped any more, whatever the reason; its end, by the death of either side too, is the end of the mapping |
//! | [`Lend::Copy`] | for each transfer, or GiB of it | when nothing more is copied |
//! | [`Lend::TakeBack`] | when the memory is revoked, or a copy may go on that nobody waits for | at once |

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hg::{BulkOp, HgError};
use na::{LingeringMemory, Offer as _};
use serde::{Deserialize, Serialize};
use ult::Selectable;

use crate::bulk::staged::late::GRACE;
use crate::bulk::staged::start::StagedTransfer;
use crate::instance::inner::Inner;
use crate::memory::device::DeviceSegments;
use crate::memory::lending::Lent;
use crate::support::own_rpcs;
use crate::{Addr, BulkError, ProviderHandle, Rpc, WeakInstance, cancel};

pub(super) const LEND: Rpc<Lend, Result<Lending, String>> = Rpc::new(own_rpcs::LEND);

/// The time in which the owner agrees, or the memory goes by buffers.
const AGREED_WITHIN: Duration = Duration::from_secs(2);

/// Bytes that are copied for one request.
const PIECE: u64 = 1 << 30;

#[derive(Serialize, Deserialize)]
pub(super) enum Lend {
    /// Memory of so many bytes, to be copied by the device of that number.
    Offer {
        device: u16,
        bytes: u64,
    },
    Hold {
        number: u64,
    },
    TakeBack {
        number: u64,
    },
    /// `len` bytes at `offset` of the memory under `key`, between there and pieces of what is lent.
    Copy {
        key: u64,
        push: bool,
        offset: u64,
        len: u64,
        lent: Vec<LentPart>,
    },
}

/// A part of memory that is lent.
#[derive(Serialize, Deserialize)]
pub(super) struct LentPart {
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Lending {
    Agreed {
        number: u64,
    },
    Over,
    Copied,
    /// Nothing was copied: the memory is not mapped there.
    NotMapped,
}

impl StagedTransfer {
    /// Has the owner of the remote device memory copy by its device. `false`: nothing was moved,
    /// and buffers are the way.
    pub(super) fn by_device(&self, segments: &DeviceSegments) -> Result<bool, BulkError> {
        if !self.instance.inner().resolved.device.share || self.local.is_empty() {
            return Ok(false);
        }
        let device = self.remote.attr().map(|attr| attr.device());
        let (Some(key), Some(device)) = (self.remote.device_key(), device) else {
            return Ok(false);
        };
        if key == 0 {
            return Ok(false);
        }
        let (mut start, end) = (self.local.start, self.local.end);
        while start < end {
            let part = start..end.min(start.saturating_add(PIECE));
            let Some(lent) = self.lent_parts(segments, device, part.clone())? else {
                return Ok(false);
            };
            if !self.copy_there(segments, key, part.clone(), lent)? {
                return Ok(false);
            }
            start = part.end;
        }
        Ok(true)
    }

    /// The parts of a range of the local memory as the owner knows them; `None`: not all are lent.
    fn lent_parts(
        &self,
        segments: &DeviceSegments,
        device: u16,
        range: Range<u64>,
    ) -> Result<Option<Vec<LentPart>>, BulkError> {
        let mut parts = Vec::new();
        for part in segments.parts(range) {
            let at = part.memory.address();
            if !part.memory.is_exportable() {
                return Ok(None);
            }
            let Some((lent, is_new)) = segments.lent.piece(&self.peer, device, at) else {
                return Ok(None);
            };
            if is_new {
                let number = self.lend(&lent, part.memory);
                let _ = lent.agreed.set(number);
            }
            if ult::wait_any(&[&lent.agreed, &*self.early], None) != Some(0) {
                return Err(BulkError::Canceled { peer: self.peer.to_string() });
            }
            let Some(number) = *lent.agreed.wait() else { return Ok(None) };
            parts.push(LentPart { number, offset: part.offset as u64, len: part.len as u64 });
        }
        Ok(Some(parts))
    }

    /// Lends a piece. Returns its number, or `None` if it has to go by buffers.
    fn lend(&self, lent: &Arc<Lent>, memory: &device::DeviceMemory) -> Option<u64> {
        let told = |why: &dyn std::fmt::Display| {
            tracing::debug!("device memory goes to {} by buffers: {why}", self.peer);
        };
        let exported = ult::blocking({
            let memory = memory.clone();
            move || memory.export()
        });
        let descriptor = exported.inspect_err(|error| told(error)).ok()?;
        let to = ProviderHandle::from(self.peer.clone());
        let offer = Lend::Offer { device: lent.device, bytes: memory.len() as u64 };
        let agreed = self.instance.rpc(LEND, &to, &offer).timeout(AGREED_WITHIN).start();
        let agreed = agreed.inspect_err(|error| told(error)).ok()?;
        if ult::wait_any(&[agreed.ready(), &*self.early], None) != Some(0) {
            // The next transfer tries again.
            lent.withdraw();
            return None;
        }
        let number = match agreed.wait() {
            Ok(Ok(Lending::Agreed { number })) => number,
            Ok(Ok(_)) => return None,
            Ok(Err(why)) => {
                told(&why);
                return None;
            }
            Err(error) => {
                told(&error);
                return None;
            }
        };
        // Dropped, it is cancelled, and the owner keeps nothing.
        let hold = self.instance.rpc(LEND, &to, &Lend::Hold { number }).start();
        let hold = hold.inspect_err(|error| told(error)).ok()?;
        let inner = self.instance.inner();
        let (shard, addr) = inner.shards.route_to_peer(&inner.runtime, &self.peer);
        let handed = shard.core.endpoint().hand_over(&addr, number, descriptor);
        handed.inspect_err(|error| told(error)).ok()?;
        let home = inner.pools_for_units([Inner::progress_pool, Inner::rpc_pool]).next()?;
        // It does not keep the instance running, whose end ends the call.
        let held = hold.detach_to_end();
        let ends = LentEnds(lent.clone());
        let until_over = move || {
            held.done().wait_ready();
            drop(ends);
        };
        let (weak, peer) = (self.instance.downgrade(), self.peer.clone());
        let take_back = move || take_back(&weak, &peer, number);
        let _ = lent.take_back.set(Box::new(take_back));
        if home.spawn(until_over).is_err() || !self.memory.region().offer(lent.clone()) {
            // Revoked meanwhile, or on terms; or nobody would hear of the end.
            lent.withdraw();
            return None;
        }
        Some(number)
    }

    /// Has the owner copy a part. `false`: nothing was moved.
    fn copy_there(
        &self,
        segments: &DeviceSegments,
        key: u64,
        part: Range<u64>,
        lent: Vec<LentPart>,
    ) -> Result<bool, BulkError> {
        let len = part.end - part.start;
        let offset = self.remote_offset + (part.start - self.local.start);
        let push = self.op == BulkOp::Push;
        let (to, ask) =
            (ProviderHandle::from(self.peer.clone()), Lend::Copy { key, push, offset, len, lent });
        let call = self.instance.rpc(LEND, &to, &ask);
        let call = match self.stands_for(len) {
            Some(limit) => call.timeout(limit),
            None => call,
        };
        let request = call.start().map_err(|error| self.error_of(error))?;
        let ends: [&dyn Selectable; 2] = [request.ready(), &*self.early];
        let answered = match self.instance.wait_any(&ends, None) {
            Some(0) => request.wait().map_err(|error| self.error_of(error)),
            // It is cancelled with the request.
            _ => Err(BulkError::Canceled { peer: self.peer.to_string() }),
        };
        match answered {
            Ok(Ok(Lending::Copied)) => Ok(true),
            Ok(Ok(_)) => {
                segments.lent.refuse(&self.peer);
                Ok(false)
            }
            Ok(Err(what)) => {
                let peer = self.peer.to_string();
                Err(BulkError::Transfer { peer, source: HgError::Bulk(what) })
            }
            // Nobody has said that the copies are over.
            Err(error) => {
                self.take_all_back(segments);
                Err(error)
            }
        }
    }

    /// Waits a little until the owner copies no more, and marks the memory if it may.
    fn take_all_back(&self, segments: &DeviceSegments) {
        let lent = segments.lent.of_peer(&self.peer);
        lent.iter().for_each(|lent| lent.withdraw());
        let until = Instant::now() + GRACE;
        for lent in lent {
            if !lent.over.wait_ready_deadline(until) && self.op == BulkOp::Pull {
                lent.keep_until_over(LingeringMemory::new(&self.memory));
            }
        }
    }
}

/// Ends what was lent, also if the ULT that waits for that is ended.
struct LentEnds(Arc<Lent>);

impl Drop for LentEnds {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Asks a peer to unmap what was lent to it. On a ULT of its own: who revokes memory holds locks.
fn take_back(instance: &WeakInstance, peer: &Addr, number: u64) {
    let Some(instance) = instance.upgrade() else { return };
    let to = ProviderHandle::from(peer.clone());
    let ask = {
        let instance = instance.clone();
        move || {
            let ask = Lend::TakeBack { number };
            // What fails has ended with the connection.
            let _ = cancel::without_deadline(|| instance.rpc(LEND, &to, &ask).wait());
        }
    };
    let home = instance.inner().pools_for_units([Inner::progress_pool, Inner::rpc_pool]).next();
    drop(home.map(|home| home.spawn(ask)));
}
