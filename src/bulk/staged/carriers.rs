//! Device memory, chunk by chunk through buffers.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | the range that is left | carriers, when they take a chunk | its lock |
//! | the first error | set by the carrier that fails first; taken when all have ended | its lock |
//! | a buffer | the carrier that has it, or its transfer | – |
//!
//! A *carrier* is a ULT with one buffer, which copies and moves a chunk, and then takes the next.
//! The carriers overlap: while one waits for the network, another waits for the device.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use device::{DeviceCopy, DeviceError};
use hg::{Bulk, BulkOp, HgError};
use na::{Access, AllocOptions, LocalMem, Memory, SharedBuffer};
use prim::sync::lock;
use ult::{Eventual, Selectable};

use crate::bulk::staged::late::{CopyEnd, finish};
use crate::bulk::transfer::Plan;
use crate::instance::inner::Inner;
use crate::memory::buffer::BulkBuffer;
use crate::memory::device::{DeviceSegments, Staging};
use crate::operation::cancel::CancelToken;
use crate::operation::deadline::Deadline;
use crate::{Addr, BulkError, BulkPool, BulkPoolError, BulkPoolSpec, Instance, PooledBuffer};

/// Shortest chunk that a transfer is cut into for its carriers.
const CHUNK_MIN: u64 = 256 << 10;

/// A part of device memory that moves between here and a peer's memory.
pub(crate) struct Staged {
    pub(crate) instance: Instance,
    /// As seen from here.
    pub(crate) op: BulkOp,
    pub(crate) peer: Addr,
    pub(crate) remote: Bulk,
    pub(crate) remote_offset: u64,
    /// The registration of the device memory, which stays while it moves.
    pub(crate) lease: LocalMem,
    pub(crate) segments: Arc<DeviceSegments>,
    /// The part of it.
    pub(crate) range: Range<u64>,
    /// For each transfer of a buffer.
    pub(crate) term: Option<Deadline>,
    /// Set: it is to end early.
    pub(crate) early: Arc<Eventual<()>>,
    /// Fires: nobody waits for it any more.
    pub(crate) token: Option<CancelToken>,
}

/// The state that the carriers of a transfer share.
struct Carriers {
    staged: Staged,
    staging: Arc<Staging>,
    chunk: u64,
    left: Mutex<Range<u64>>,
    /// Set with the first error.
    failed: Eventual<()>,
    error: Mutex<Option<BulkError>>,
}

impl Instance {
    /// Returns the staging of that device; made if need be, which takes some milliseconds.
    pub(crate) fn staging(&self, device: &device::Device) -> Result<Arc<Staging>, BulkError> {
        let options = &self.inner().resolved.device;
        // The driver may take its time, above all to pin memory.
        let make = || {
            let copies = ult::blocking({
                let (device, streams) = (device.clone(), options.streams as usize);
                move || device::Copies::new(&device, streams)
            });
            let copies = copies.map_err(|error| BulkError::Alloc(refused(&error)))?;
            let chunk = options.chunk_bytes as usize;
            let served = options.buffers as usize / 2;
            let pool = |buffers| {
                let spec = BulkPoolSpec::new().class(chunk, buffers);
                let pool = BulkPool::new(&spec, |bytes| self.pinned_buffer(device, bytes));
                let pool = pool.map_err(|error| match error {
                    BulkPoolError::Buffer(error) => error,
                    other => BulkError::Alloc(HgError::Bulk(other.to_string())),
                })?;
                self.inner().bulk_pools.add(&pool);
                Ok::<_, BulkError>(pool)
            };
            let own = pool(options.buffers as usize - served)?;
            Ok(Staging { copies, own, served: pool(served)?, chunk })
        };
        self.inner().devices.staging(device, make)
    }

    /// A buffer near the device.
    fn pinned_buffer(
        &self,
        device: &device::Device,
        bytes: usize,
    ) -> Result<BulkBuffer, BulkError> {
        let (own, near) = (device.clone(), device.info().numa_node);
        let made = ult::blocking(move || {
            let alloc = |options: &AllocOptions| SharedBuffer::new(bytes, options);
            let near = near.map(AllocOptions::on_node).and_then(|options| alloc(&options).ok());
            // That node may have no memory for this process.
            let buffer = near.map_or_else(|| alloc(&AllocOptions::default()), Ok);
            let buffer = buffer.map_err(HgError::Na)?;
            let memory = Memory::from_shared(buffer);
            let segment = memory.segments()[0];
            // SAFETY: the memory has its guard until it goes, and stays mapped for longer.
            let pinned = unsafe { device::Pinned::new(&own, segment.ptr, segment.len) };
            Ok(memory.guarded_by(pinned.map_err(|error| refused(&error))?))
        });
        let memory = self.register_memory(made.map_err(BulkError::Alloc)?, Access::ReadWrite)?;
        Ok(BulkBuffer::new(memory, self.inner().core.endpoint()))
    }
}

/// An error of a device, as one of a transfer.
pub(crate) fn refused(error: &DeviceError) -> HgError {
    HgError::Bulk(error.to_string())
}

impl Staged {
    /// Moves it through `carriers_max` buffers of the pool at most, and waits for that. On a ULT.
    pub(crate) fn run(
        self,
        pool: fn(&Staging) -> &BulkPool,
        carriers_max: usize,
    ) -> Result<(), BulkError> {
        let Some(device) = self.segments.device() else { return Ok(()) };
        let staging = self.instance.staging(device)?;
        let len = self.range.end - self.range.start;
        let chunk = (len / (2 * carriers_max as u64)).clamp(CHUNK_MIN, u64::MAX);
        let chunk = chunk.min(staging.chunk as u64);
        if len == 0 {
            return Ok(());
        }
        let wanted = usize::try_from(len.div_ceil(chunk)).unwrap_or(usize::MAX).min(carriers_max);
        // No truncation: no longer than a buffer.
        let mut buffers = vec![self.first_buffer(pool(&staging), chunk as usize)?];
        while buffers.len() < wanted
            && let Ok(Some(more)) = pool(&staging).try_get(chunk as usize)
        {
            buffers.push(more);
        }
        let left = Mutex::new(self.range.clone());
        let (failed, error) = (Eventual::new(), Mutex::default());
        let carriers = Arc::new(Carriers { staged: self, staging, chunk, left, failed, error });
        let own = buffers.pop();
        let inner = carriers.staged.instance.inner().clone();
        let home = inner.pools_for_units([Inner::progress_pool, Inner::rpc_pool]).next();
        let others: Vec<_> = buffers
            .into_iter()
            .filter_map(|buffer| {
                let carriers = carriers.clone();
                // Without it the others take longer.
                home.as_ref()?.spawn(move || carriers.run(buffer)).ok()
            })
            .collect();
        own.into_iter().for_each(|buffer| carriers.run(buffer));
        for other in others {
            if other.join().is_err() {
                carriers.fail(BulkError::Transfer {
                    peer: carriers.staged.peer.to_string(),
                    source: HgError::Bulk("a ULT of the transfer was ended".to_owned()),
                });
            }
        }
        match lock(&carriers.error).take() {
            Some(error) => Err(error),
            None if carriers.staged.is_over_early() => {
                Err(BulkError::Canceled { peer: carriers.staged.peer.to_string() })
            }
            None => Ok(()),
        }
    }

    fn is_over_early(&self) -> bool {
        self.early.is_ready() || self.token.as_ref().is_some_and(CancelToken::is_canceled)
    }

    fn first_buffer(&self, pool: &BulkPool, len: usize) -> Result<PooledBuffer, BulkError> {
        pool.get_unless(len, &self.early, None).map_err(|error| match error {
            BulkPoolError::Canceled => BulkError::Canceled { peer: self.peer.to_string() },
            other => BulkError::Alloc(HgError::Bulk(other.to_string())),
        })
    }
}

impl Carriers {
    fn fail(&self, error: BulkError) {
        lock(&self.error).get_or_insert(error);
        let _ = self.failed.set(());
    }

    /// Takes chunks until none is left.
    fn run(&self, mut buffer: PooledBuffer) {
        while let Some(part) = self.next() {
            match self.move_part(&part, buffer) {
                Ok(back) => {
                    let moved = &self.staged.instance.inner().devices.moved.staged;
                    // Relaxed: a count.
                    moved.fetch_add(part.end - part.start, Ordering::Relaxed);
                    buffer = back;
                }
                Err(error) => return self.fail(error),
            }
        }
    }

    fn next(&self) -> Option<Range<u64>> {
        if self.failed.is_ready() || self.staged.is_over_early() {
            return None;
        }
        let mut left = lock(&self.left);
        let end = left.end.min(left.start + self.chunk);
        let part = std::mem::replace(&mut left.start, end)..end;
        (part.start < part.end).then_some(part)
    }

    fn move_part(
        &self,
        part: &Range<u64>,
        mut buffer: PooledBuffer,
    ) -> Result<PooledBuffer, BulkError> {
        let staged = &self.staged;
        if staged.op == BulkOp::Push {
            buffer = self.copy(part, buffer)?;
        }
        // No truncation: no longer than the buffer.
        let len = (part.end - part.start) as usize;
        let plan = Plan {
            op: staged.op,
            peer: &staged.peer,
            remote: &staged.remote,
            remote_offset: staged.remote_offset + (part.start - staged.range.start),
            local: 0..len,
        };
        let request = staged.instance.start_request_of(plan, buffer, staged.term);
        let mut ends: Vec<&dyn Selectable> = vec![request.ready(), &*staged.early, &self.failed];
        if let Some(token) = &staged.token {
            ends.push(token.event());
        }
        if ult::wait_any(&ends, None) != Some(0) {
            request.cancel();
        }
        let (result, buffer) = request.wait();
        result?;
        if staged.op == BulkOp::Pull { self.copy(part, buffer) } else { Ok(buffer) }
    }

    /// Copies a part of the device memory between there and the buffer.
    fn copy(&self, part: &Range<u64>, mut buffer: PooledBuffer) -> Result<PooledBuffer, BulkError> {
        let staged = &self.staged;
        let mut copies = Vec::new();
        let started = self.start_copies(part, &mut buffer, &mut copies);
        let written = (staged.op == BulkOp::Pull).then_some(&staged.lease);
        // The region stays registered for as long as the device uses its memory.
        let kept = (buffer, staged.lease.clone());
        let is_early = || started.is_err() || self.failed.is_ready() || staged.is_over_early();
        let ended = finish(copies, kept, written, is_early);
        let failed = |error: &DeviceError| {
            let (peer, source) = (staged.peer.to_string(), refused(error));
            BulkError::Transfer { peer, source }
        };
        match (&started, ended) {
            (Err(error), _) => Err(failed(error)),
            (Ok(()), Ok((buffer, _))) => Ok(buffer),
            (Ok(()), Err(CopyEnd::Failed(error))) => Err(failed(&error)),
            (Ok(()), Err(CopyEnd::Left)) => {
                Err(BulkError::Canceled { peer: staged.peer.to_string() })
            }
        }
    }

    /// Starts the copies; what has begun is added to `copies` whatever follows.
    fn start_copies(
        &self,
        part: &Range<u64>,
        buffer: &mut [u8],
        copies: &mut Vec<DeviceCopy>,
    ) -> Result<(), DeviceError> {
        let (staged, streams) = (&self.staged, &self.staging.copies);
        let start = buffer.as_mut_ptr();
        for piece in staged.segments.parts(part.clone()) {
            assert!(piece.at + piece.len <= buffer.len(), "chunks are no longer than buffers");
            let host = start.wrapping_add(piece.at);
            let (memory, offset) = (piece.memory, piece.offset);
            copies.push(match staged.op {
                BulkOp::Push => {
                    // SAFETY: within the buffer, which nobody else uses until all copies are over:
                    // `copy` hands it to `finish` together with them.
                    unsafe { streams.start_to_host(memory, offset, host, piece.len)? }
                }
                BulkOp::Pull => {
                    // SAFETY: as above.
                    unsafe { streams.start_to_device(host, memory, offset, piece.len)? }
                }
            });
        }
        Ok(())
    }
}
