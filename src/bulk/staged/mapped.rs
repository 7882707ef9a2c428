//! Device memory of peers of this host that is mapped here, for as long as they hold it, and copies
//! between it and device memory of ours. See `lend.rs`, which has the other side. The copies are
//! those within an instance, too (`within.rs`).
//!
//! A mapping ends when its owner takes it back, revokes the memory, gives up or dies, or when this
//! instance ends; copies that are under way are waited for first.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use device::{DeviceCopy, DeviceError, DeviceMemory};
use hg::BulkOp;
use margo_config::{Admission, Overload};
use na::LocalMem;
use prim::sync::lock;
use ult::{Eventual, Selectable};

use crate::admission::gates::Internal;
use crate::bulk::staged::late::{CopyEnd, GRACE, finish};
use crate::bulk::staged::lend::{LEND, Lend, Lending, LentPart};
use crate::bulk::staged::owner::leased;
use crate::memory::device::{DeviceSegments, Staging};
use crate::memory::lending::{HELD_WITHIN, MAPPINGS_MAX, MappedMemory, PeerMapping};
use crate::{Handle, Instance, RegisterError};

/// How long a descriptor may take that a peer has sent before it holds the memory.
const COMES_WITHIN: Duration = Duration::from_secs(1);

/// Bytes that are copied between two looks at whether anybody waits for them.
const BATCH_BYTES: usize = 256 << 20;

/// Copies that are started at a time.
const BATCH_COPIES: usize = 64;

type Request = Handle<Lend, Result<Lending, String>>;

/// Serves the RPC.
pub(super) fn serve(instance: &Instance) -> Result<(), RegisterError> {
    // Those that hold memory stay; so there is room for as many others.
    let bounds = Admission::new(4 * MAPPINGS_MAX).per_peer(MAPPINGS_MAX).overload(Overload::Wait);
    let pool = instance.layout().progress_pool();
    let serve = instance.serve(LEND).pool(&pool).internal(Internal::Lend).admission(bounds);
    serve.handler(|request| {
        let answer = match request.args() {
            Lend::Offer { device, bytes } => expect(&request, *device, *bytes),
            Lend::Hold { number } => hold(&request, *number),
            Lend::TakeBack { number } => {
                let mappings = &request.instance().inner().devices.mappings;
                if let Some(mapping) = mappings.find(*number) {
                    let _ = mapping.ended.set(());
                }
                Ok(Lending::Over)
            }
            Lend::Copy { key, push, offset, len, lent } => {
                copy(&request, (*key, *push), (*offset, *len), lent)
            }
        };
        // Who is gone needs no answer.
        let _ = request.respond(&answer);
    })
}

fn expect(request: &Request, device: u16, bytes: u64) -> Result<Lending, String> {
    let inner = request.instance().inner();
    let staging = inner.devices.staging_of(device.into());
    let staging = staging.ok_or_else(|| format!("no memory of device {device} is exposed"))?;
    let (device, bytes_max) = (staging.copies.device(), inner.resolved.device.mapped_bytes_max);
    let mapping = inner.devices.mappings.expect(request.origin(), bytes, device, bytes_max)?;
    Ok(Lending::Agreed { number: mapping.number() })
}

/// Maps the memory, and keeps it mapped until the request ends.
fn hold(request: &Request, number: u64) -> Result<Lending, String> {
    let mappings = &request.instance().inner().devices.mappings;
    let mapping = mappings.find(number).filter(|mapping| mapping.held.set(()).is_ok());
    let mapping = mapping.ok_or_else(|| "nothing is expected under that number".to_owned())?;
    let gone = Arc::new(Eventual::new());
    let mapped = map(request, &mapping, &gone);
    let _ = mapping.ready.set(());
    if mapped.is_ok() {
        let token = request.cancel_token();
        let ends: [&dyn Selectable; 3] = [&mapping.ended, token.event(), request.closing()];
        ult::wait_any(&ends, None);
    }
    mappings.forget(number);
    let memory = lock(&mapping.memory).take();
    drop(memory);
    mapped?;
    // A copy that a device does not end holds up nobody's end.
    if ult::wait_any(&[&*gone, request.closing()], None) != Some(0) {
        gone.wait_ready_timeout(2 * GRACE);
    }
    match gone.is_ready() {
        true => Ok(Lending::Over),
        false => Err("a device goes on using the memory".to_owned()),
    }
}

fn map(request: &Request, mapping: &PeerMapping, gone: &Arc<Eventual<()>>) -> Result<(), String> {
    let token = request.cancel_token();
    let ends: [&dyn Selectable; 4] =
        [mapping.has_come(), &mapping.ended, token.event(), request.closing()];
    ult::wait_any(&ends, Some(Instant::now() + COMES_WITHIN));
    let descriptor = mapping.take_descriptor();
    let descriptor = descriptor.ok_or_else(|| "no descriptor has come".to_owned())?;
    let (device, bytes) = (mapping.device.clone(), mapping.bytes);
    // The driver may take its time.
    let imported = ult::blocking(move || {
        device.import(&descriptor, usize::try_from(bytes).unwrap_or(usize::MAX))
    });
    let memory = imported.map_err(|error| error.to_string())?;
    *lock(&mapping.memory) = Some(Arc::new(MappedMemory::new(memory, gone.clone())));
    Ok(())
}

/// A copy between device memory of ours and other device memory: what is mapped, or our own.
pub(super) struct Direct {
    /// As seen from the memory that has the segments.
    pub(super) op: BulkOp,
    /// The registrations of what is ours, which stay as long.
    pub(super) _leases: Vec<LocalMem>,
    pub(super) segments: Arc<DeviceSegments>,
    /// The part of it.
    pub(super) range: Range<u64>,
    pub(super) theirs: Vec<OtherPart>,
    /// The registered memory that is written, if it is ours.
    pub(super) written: Option<LocalMem>,
    /// Returns whether nobody waits for it any more.
    pub(super) is_over: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// A part of the other memory.
pub(super) struct OtherPart {
    pub(super) memory: DeviceMemory,
    pub(super) offset: usize,
    pub(super) len: usize,
    /// The mapping, which stays as long.
    pub(super) _mapping: Option<Arc<MappedMemory>>,
}

fn copy(
    request: &Request,
    (key, push): (u64, bool),
    (offset, len): (u64, u64),
    lent: &[LentPart],
) -> Result<Lending, String> {
    let instance = request.instance();
    let token = request.cancel_token();
    let mut theirs = Vec::new();
    for LentPart { number, offset, len } in lent {
        let Some(mapping) = instance.inner().devices.mappings.find(*number) else {
            return Ok(Lending::NotMapped);
        };
        ult::wait_any(&[&mapping.ready, token.event()], Some(Instant::now() + HELD_WITHIN));
        let Some(memory) = mapping.mapped() else { return Ok(Lending::NotMapped) };
        let end = offset.checked_add(*len).filter(|end| *end <= mapping.bytes);
        end.ok_or("the parts leave the memory that is lent")?;
        // No truncation: within memory that is mapped.
        let (offset, len) = (*offset as usize, *len as usize);
        let (memory, mapping) = (memory.memory().clone(), Some(memory));
        theirs.push(OtherPart { memory, offset, len, _mapping: mapping });
    }
    // Last, as it counts against the terms of the memory.
    let range = offset..offset.saturating_add(len);
    let (lease, segments) = leased(request, key, push, range.clone())?;
    let is_of = |part: &OtherPart| segments.device() == Some(part.memory.device());
    if !theirs.iter().all(is_of) {
        return Err("memory is lent to another device than that of the owner's memory".to_owned());
    }
    let op = if push { BulkOp::Pull } else { BulkOp::Push };
    let written = push.then(|| lease.clone());
    let (is_over, leases) = (Arc::new(move || token.is_canceled()), vec![lease]);
    Direct { op, _leases: leases, segments, range, theirs, written, is_over }.run(instance)?;
    Ok(Lending::Copied)
}

impl Direct {
    pub(super) fn run(self, instance: &Instance) -> Result<(), String> {
        let Some(device) = self.segments.device() else { return Ok(()) };
        let staging = instance.staging(device).map_err(|error| error.to_string())?;
        let len = self.range.end - self.range.start;
        let lens = self.theirs.iter().map(|part| part.len as u64);
        if lens.fold(0, u64::saturating_add) != len {
            return Err("the parts that are lent are not as long as the range".to_owned());
        }
        let (written, is_over) = (self.written.clone(), self.is_over.clone());
        let (mut at, mut done) = (self.range.start, 0);
        // Until the copies are over, whatever becomes of the request.
        let mut kept = Some(self);
        while let Some(own) = kept.take_if(|own| at < own.range.end) {
            let mut copies = Vec::new();
            let started = own.start_batch(&staging, (&mut at, &mut done), &mut copies);
            let is_early = || started.is_err() || is_over();
            let ended = finish(copies, own, written.as_ref(), is_early);
            started.map_err(|error| error.to_string())?;
            match ended {
                Ok(own) if !is_over() => kept = Some(own),
                Ok(_) | Err(CopyEnd::Left) => return Err("it was given up".to_owned()),
                Err(CopyEnd::Failed(error)) => return Err(error.to_string()),
            }
        }
        // Relaxed: a count.
        instance.inner().devices.moved.within.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }

    /// Starts copies from `at` on, which is `done` bytes into what is lent.
    fn start_batch(
        &self,
        staging: &Staging,
        (at, done): (&mut u64, &mut usize),
        copies: &mut Vec<DeviceCopy>,
    ) -> Result<(), DeviceError> {
        let end = self.range.end.min(at.saturating_add(BATCH_BYTES as u64));
        let mut theirs = self.theirs.iter();
        let (mut skip, mut part) = (*done, theirs.next());
        for ours in self.segments.parts(*at..end) {
            let mut from = 0;
            while from < ours.len && copies.len() < BATCH_COPIES {
                let Some(mapped) = part else { break };
                if skip >= mapped.len {
                    skip -= mapped.len;
                    part = theirs.next();
                    continue;
                }
                let len = (ours.len - from).min(mapped.len - skip);
                let there = (&mapped.memory, mapped.offset + skip);
                let here = (ours.memory, ours.offset + from);
                copies.push(match self.op {
                    BulkOp::Pull => staging.copies.start_within(there, here, len)?,
                    BulkOp::Push => staging.copies.start_within(here, there, len)?,
                });
                (skip, from) = (skip + len, from + len);
                (*at, *done) = (*at + len as u64, *done + len);
            }
            if copies.len() >= BATCH_COPIES {
                break;
            }
        }
        Ok(())
    }
}
