//! Memory of a device whose owner is asked to move it.
//!
//! The RPC is `__staged__` of the default provider. Its arguments name the memory by its key, and
//! describe memory of the origin that the owner is to read or write for it; when it answers, all
//! has been moved, or nothing more will be. An instance serves it from when it exposes device
//! memory, where progress runs. The owner looks at key, bounds, access and terms, as a transport
//! does for other memory.
//!
//! The origin's memory is registered under a key of its own for that long. When the owner has
//! answered, the key is taken back; a peer that goes on all the same is dealt with as one that is
//! stopped in the midst of a copy: the memory is left to it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hg::{Bulk, BulkOp, HgError};
use margo_config::{Admission, Overload};
use na::{Access, DeniedReason, LingeringMemory, LocalMem};
use prim::sync::lock;
use serde::{Deserialize, Serialize};
use ult::Eventual;

use crate::admission::gates::Internal;
use crate::bulk::staged::carriers::Staged;
use crate::bulk::staged::late::GRACE;
use crate::bulk::staged::mapped;
use crate::bulk::staged::start::StagedTransfer;
use crate::memory::device::DeviceSegments;
use crate::support::own_rpcs;
use crate::{BulkError, ForwardError, ForwardRequest, Handle, Instance, ProviderHandle};
use crate::{RegisterError, Rpc};

const STAGED: Rpc<Ask, Result<(), String>> = Rpc::new(own_rpcs::STAGED);

/// Bytes that are asked for at once.
const PIECE: u64 = 64 << 20;

/// Pieces that are asked for at a time.
const WINDOW: usize = 2;

/// Buffers that one request has.
const CARRIERS: usize = 2;

/// A piece may take a second more for each of these bytes before it counts as standing still.
const BYTES_PER_SEC: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Ask {
    key: u64,
    /// Into the device memory.
    push: bool,
    offset: u64,
    len: u64,
    /// Memory of the origin, and where in it.
    window: Bulk,
    window_offset: u64,
}

/// Serves the RPC, if it is not served yet.
pub(crate) fn serve(instance: &Instance) -> Result<(), RegisterError> {
    let buffers = instance.inner().resolved.device.buffers as usize / 2;
    // Each has `CARRIERS` buffers at most: all together all of them, and one host or user half.
    let share = (buffers / CARRIERS / 2).max(1);
    let bounds = Admission::new((buffers / CARRIERS).max(1)).per_peer(share).per_host(share);
    let bounds = bounds.overload(Overload::Wait);
    let pool = instance.layout().progress_pool();
    let serve = instance.serve(STAGED).pool(&pool).internal(Internal::Staged).admission(bounds);
    let served = serve.handler(|request| {
        let moved = answer(&request);
        // Who is gone needs no answer.
        let _ = request.respond(&moved);
    });
    match served {
        Err(RegisterError::Exists { .. }) => Ok(()),
        Ok(()) if instance.inner().resolved.device.share => mapped::serve(instance),
        other => other,
    }
}

/// The memory under `key`, if whoever asks may have that range moved.
pub(super) fn leased<A, R>(
    request: &Handle<A, R>,
    key: u64,
    push: bool,
    range: Range<u64>,
) -> Result<(LocalMem, Arc<DeviceSegments>), String> {
    let regions = &request.instance().inner().devices.regions;
    let len = range.end - range.start;
    let lease = regions.lease_by(key, range.start, len, push, || request.principal());
    let memory = lease.map_err(|reason| match reason {
        DeniedReason::NoSuchKey => "the owner has no device memory under that key".to_owned(),
        other => format!("the owner refuses it: {other}"),
    })?;
    let place = memory.elsewhere().cloned();
    let segments = place.and_then(|place| place.downcast::<DeviceSegments>().ok());
    let segments = segments.ok_or_else(|| "that is no device memory".to_owned())?;
    Ok((memory, segments))
}

fn answer(request: &Handle<Ask, Result<(), String>>) -> Result<(), String> {
    let Ask { key, push, offset, len, window, window_offset } = request.args();
    let instance = request.instance();
    let range = *offset..offset.saturating_add(*len);
    let (lease, segments) = leased(request, *key, *push, range.clone())?;
    if window.is_of_device() {
        return Err("the memory of the origin must be that of its host".to_owned());
    }
    let staged = Staged {
        instance: instance.clone(),
        op: if *push { BulkOp::Pull } else { BulkOp::Push },
        peer: request.origin().clone(),
        remote: window.clone(),
        remote_offset: *window_offset,
        lease,
        segments,
        range,
        // The token fires at the deadline, which the origin chooses: what stands still ends before.
        term: None,
        early: Arc::new(Eventual::new()),
        token: Some(request.cancel_token()),
    };
    staged.run(|staging| &staging.served, CARRIERS).map_err(|error| error.to_string())
}

type Asked = ForwardRequest<Result<(), String>>;

impl StagedTransfer {
    /// Lets the owner move it, piece by piece.
    pub(super) fn ask_owner(self) -> Result<(), BulkError> {
        let failed = |what: &str| BulkError::Transfer {
            peer: self.peer.to_string(),
            source: HgError::Bulk(what.to_owned()),
        };
        // What another owner's transport moves does not get here, but for a handle that lies.
        let key = match self.remote.own_device_key(&**self.instance.inner().core.endpoint()) {
            Some(0) => {
                return Err(failed(
                    "the owner of the device memory does not listen, so that nobody can ask it to \
                     move the bytes: let it listen, or let it push them",
                ));
            }
            Some(key) => key,
            None => return Err(failed("the handle names no device memory of its owner")),
        };
        if self.local.is_empty() {
            return Ok(());
        }
        let access = match self.op {
            BulkOp::Pull => Access::WriteOnly,
            BulkOp::Push => Access::ReadOnly,
        };
        let part = self.memory.alias(self.local.clone());
        let part = part.ok_or_else(|| failed("the local memory is gone"))?;
        let lent = self.instance.register_memory(part, access)?;
        let window = self.instance.inner().core.bulk_handle(&lent);
        let moved = self.ask_for_pieces(key, &window);
        match (take_back(lent, &self.memory), moved) {
            (_, Err(error)) => Err(error),
            (true, Ok(())) => Ok(()),
            // What comes now is left to it.
            (false, Ok(())) => Err(failed(
                "the owner has said that it is done, and goes on using the local memory",
            )),
        }
    }

    fn ask_for_pieces(&self, key: u64, window: &Bulk) -> Result<(), BulkError> {
        let to = ProviderHandle::from(self.peer.clone());
        let len = self.local.end - self.local.start;
        let mut starts = (0..len).step_by(PIECE as usize).peekable();
        let mut asked: VecDeque<Asked> = VecDeque::new();
        // Those that are dropped are cancelled.
        while starts.peek().is_some() || !asked.is_empty() {
            if let Some(at) = starts.next_if(|_| asked.len() < WINDOW) {
                let ask = Ask {
                    key,
                    push: self.op == BulkOp::Push,
                    offset: self.remote_offset + at,
                    len: PIECE.min(len - at),
                    window: window.clone(),
                    window_offset: at,
                };
                let call = self.instance.rpc(STAGED, &to, &ask);
                let call = match self.stands_for(ask.len) {
                    Some(limit) => call.timeout(limit),
                    None => call,
                };
                asked.push_back(call.start().map_err(|error| self.error_of(error))?);
                continue;
            }
            let Some(first) = asked.pop_front() else { break };
            if ult::wait_any(&[first.ready(), &*self.early], None) != Some(0) {
                return Err(BulkError::Canceled { peer: self.peer.to_string() });
            }
            let moved = first.wait().map_err(|error| self.error_of(error))?;
            moved.map_err(|what| BulkError::Transfer {
                peer: self.peer.to_string(),
                source: HgError::Bulk(what),
            })?;
        }
        Ok(())
    }

    /// How long a piece may take; `None`: as long as the whole.
    pub(super) fn stands_for(&self, bytes: u64) -> Option<Duration> {
        let limit = self.instance.inner().resolved.bulk.timeout_msec;
        (self.may_stand && limit > 0).then(|| {
            let more = Duration::from_secs(bytes / BYTES_PER_SEC);
            Duration::from_millis(limit.into()) + more
        })
    }

    pub(super) fn error_of(&self, error: ForwardError) -> BulkError {
        let peer = self.peer.to_string();
        let what = match error {
            ForwardError::TimedOut { limit, .. } => {
                return BulkError::StoodStill { peer, limit };
            }
            ForwardError::Canceled { .. } => return BulkError::Canceled { peer },
            ForwardError::NotRegistered { .. } => {
                "the owner of the device memory does not move it: it has exposed none".to_owned()
            }
            ForwardError::Network { source, .. } => {
                return BulkError::Transfer { peer, source };
            }
            other => format!("the owner of the device memory could not be asked: {other}"),
        };
        BulkError::Transfer { peer, source: HgError::Bulk(what) }
    }
}

/// Memory that was lent, on its way back.
#[derive(Default)]
struct Return {
    state: Mutex<ReturnState>,
    back: Eventual<()>,
}

#[derive(Default)]
enum ReturnState {
    #[default]
    Lent,
    /// The caller has gone on: the memory that it is a part of is marked for as long.
    Late(LingeringMemory),
    Back,
    /// It never comes back.
    Lost,
}

/// Tells that it is back, or, dropped without, that it is lost.
struct Tell(Arc<Return>);

impl Tell {
    fn back(self) {
        *lock(&self.0.state) = ReturnState::Back;
        let _ = self.0.back.set(());
    }
}

impl Drop for Tell {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        match std::mem::replace(&mut *state, ReturnState::Lost) {
            ReturnState::Back => *state = ReturnState::Back,
            ReturnState::Late(mark) => mark.keep_for_good(),
            ReturnState::Lent | ReturnState::Lost => {}
        }
    }
}

/// Takes the key of `lent` back, which is a part of `memory`. `false`: a peer goes on using it, and
/// `memory` is marked for that.
fn take_back(lent: LocalMem, memory: &LocalMem) -> bool {
    let own = Arc::new(Return::default());
    let tell = Tell(own.clone());
    lent.revoke(move |part| {
        drop(part);
        tell.back();
    });
    if !own.back.is_ready() {
        own.back.wait_deadline(Instant::now() + GRACE);
    }
    let mut state = lock(&own.state);
    match *state {
        ReturnState::Back => return true,
        ReturnState::Lost => LingeringMemory::new(memory).keep_for_good(),
        _ => *state = ReturnState::Late(LingeringMemory::new(memory)),
    }
    false
}
