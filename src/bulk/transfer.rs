//! Transfers that their caller waits for, and the start of all transfers.
//!
//! The memory at both ends is described in `memory/buffer.rs`; a transfer in flight is a
//! [`BulkCall`].

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hg::{Bulk, BulkOp, HgError, OpRef};
use na::LocalMem;

use crate::operation::bulk_call::BulkCall;
use crate::operation::deadline::{self, Deadline};
use crate::support::why_over::GaveUp;
use crate::{Addr, BulkError, Handle, Instance, LocalBulk};

/// One transfer, as the public methods describe it.
pub(crate) struct Plan<'a> {
    pub(crate) op: BulkOp,
    pub(crate) peer: &'a Addr,
    pub(crate) remote: &'a Bulk,
    pub(crate) remote_offset: u64,
    pub(crate) local: Range<usize>,
}

impl Plan<'_> {
    /// The part of the local memory that is written.
    pub(crate) fn written(&self) -> Range<usize> {
        match self.op {
            BulkOp::Pull => self.local.clone(),
            BulkOp::Push => 0..0,
        }
    }
}

/// Notes that a transfer without a deadline has begun, and looks after it.
#[inline]
fn begun(instance: &Instance) {
    let by = &**instance.inner();
    by.standing_transfers.begun(by, || {
        let own = instance.downgrade();
        move || own.upgrade().iter().for_each(look)
    });
}

fn look(instance: &Instance) {
    let inner = instance.inner();
    let cores = || inner.shards.iter().map(|shard| &shard.core);
    if !inner.is_forked() && inner.standing_transfers.look(&**inner, cores()) {
        begun(instance);
    }
}

impl Instance {
    /// Copies from the memory behind `remote`, which belongs to `from`, into `into[local]`, and
    /// waits for it. With a limit, in the background, or in chunks: [`bulk`](Self::bulk). The
    /// fastest destination on one host is memory of [`alloc`](Self::alloc) that is exposed.
    ///
    /// Small memory that peers may only read comes as it was when `remote` was sent, which has the
    /// bytes with it.
    ///
    /// On the ULT of a handler it gives up at the deadline of the request, as calls do, unless in
    /// [`without_deadline`](crate::cancel::without_deadline). Without a deadline it gives up when
    /// it stands still for a minute (`margo.bulk.timeout_msec` in the configuration), with
    /// [`BulkError::StoodStill`]: a peer that serves nothing does not hold a handler for good.
    ///
    /// A peer that is stopped in the midst of the copy does not hold up what ends the transfer
    /// early (its limit, a cancel, the end of the instance). It may then write when it goes on. A
    /// buffer takes other memory for that reason, and leaves the old one to the peer. Memory that
    /// is [exposed](crate::Exposed) stays: `into[local]` may change until the peer has gone on or
    /// ended, another pull into it is refused meanwhile, and it is released after that.
    ///
    /// # Errors
    ///
    /// [`BulkError`]; `into[local]` then holds no particular bytes.
    ///
    /// Counterpart: `margo_bulk_transfer` with `HG_BULK_PULL`.
    pub fn pull(
        &self,
        from: &Addr,
        remote: &Bulk,
        remote_offset: u64,
        into: &mut impl LocalBulk,
        local: Range<usize>,
    ) -> Result<(), BulkError> {
        self.bulk(from, remote).pull(remote_offset, into, local)
    }

    /// Copies `from[local]` into the memory behind `remote`, which belongs to `to`. For deadlines
    /// see [`pull`](Self::pull).
    ///
    /// # Errors
    ///
    /// [`BulkError`]; the peer's memory then holds no particular bytes in that range.
    ///
    /// Counterpart: `margo_bulk_transfer` with `HG_BULK_PUSH`.
    pub fn push(
        &self,
        to: &Addr,
        remote: &Bulk,
        remote_offset: u64,
        from: &mut impl LocalBulk,
        local: Range<usize>,
    ) -> Result<(), BulkError> {
        self.bulk(to, remote).push(remote_offset, from, local)
    }

    /// A [`BulkBuffer`](crate::bulk_memory::BulkBuffer) is borrowed mutably by all callers, for
    /// both directions: the transfer has it for itself. Exposed memory is never seen as a slice.
    pub(crate) fn transfer(
        &self,
        plan: Plan<'_>,
        lent: &mut impl LocalBulk,
        limit: Option<Duration>,
    ) -> Result<(), BulkError> {
        if ult::is_tasklet() {
            return Err(BulkError::Tasklet);
        }
        let term = Deadline::of_call(limit, deadline::of_starter());
        let (peer, written) = (plan.peer, plan.written());
        let call = Arc::new(BulkCall::waited_for(term.is_none()));
        let op = self.start_transfer(plan, lent.memory(), &call)?;
        let waited = self.wait_for(op, &call, term.map(|term| term.at));
        lent.set_aside(&written);
        if let Err(unwind) = waited {
            resume_unwind(unwind);
        }
        call.result(peer, term.map(|term| term.limit))
    }

    /// Starts a transfer, which ends through `call`; not if this returns an error.
    ///
    /// From then on until the end only the transfer may use `memory`, unless it is exposed.
    pub(crate) fn start_transfer(
        &self,
        plan: Plan<'_>,
        memory: &LocalMem,
        call: &Arc<BulkCall>,
    ) -> Result<OpRef, BulkError> {
        let Plan { op, peer, remote, remote_offset, ref local } = plan;
        let len = usize::try_from(memory.len()).unwrap_or(usize::MAX);
        if local.start > local.end || local.end > len {
            return Err(BulkError::LocalRange { start: local.start, end: local.end, len });
        }
        let failed = |source| BulkError::Transfer { peer: peer.to_string(), source };
        // Of a handler whose caller has given up.
        if deadline::of_starter().is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(BulkError::TimedOut { peer: peer.to_string(), limit: Duration::ZERO });
        }
        self.inner().may_start().map_err(failed)?;
        let bytes = local.len() as u64;
        self.inner().monitoring.transfer_starts(&call.watch, op, peer, bytes);
        let not_started = |source: HgError| {
            call.watch.over(&self.inner().monitoring, &call.given_up, &Err(source.clone()));
            failed(source)
        };
        if (memory.elsewhere().is_some() || remote.is_of_device()) && self.stages(&plan, memory) {
            let started = self.start_staged(&plan, memory, call);
            call.watch.started();
            return started.map_err(not_started);
        }
        let inner = self.inner();
        let (shard, addr) = inner.shards.route_to_peer(&inner.runtime, peer);
        let started = shard.core.transfer(
            op,
            &*addr,
            remote,
            remote_offset,
            memory,
            local.start as u64,
            bytes,
            call.clone().into(),
        );
        call.watch.started();
        shard.kick();
        inner.operation_started(shard);
        if call.may_stand() && !call.done.is_ready() {
            begun(self);
        }
        started.map_err(|refused| not_started(refused.0))
    }

    /// Waits for the end of a transfer. A ULT that is cancelled cancels its transfer, and unwinds
    /// when that is over, as this returns: the buffer is only lent to it.
    fn wait_for(
        &self,
        op: OpRef,
        call: &BulkCall,
        deadline: Option<Instant>,
    ) -> std::thread::Result<()> {
        // Whoever polls in progress's stead may meet a panic of the program's, of what takes the
        // log say, and the buffer is still lent then.
        let wait = || {
            self.inner().stand_in(&|| call.done.is_ready());
            self.inner().wait_for(&call.done, deadline)
        };
        let waited = catch_unwind(AssertUnwindSafe(wait));
        let why = match waited {
            Ok(true) => return Ok(()),
            Ok(false) => GaveUp::TimedOut,
            Err(_) => GaveUp::Canceled,
        };
        call.give_up(&**self.inner(), op, why);
        if waited.is_ok() && std::thread::panicking() {
            self.inner().bring_on(&|| call.done.is_ready(), None);
        }
        call.done.wait_ready_fully();
        waited.map(drop)
    }
}

impl<A, R> Handle<A, R> {
    /// Copies from the origin's exposed memory into `into[local]`; suspends until it is there.
    ///
    /// # Errors
    ///
    /// As [`Instance::pull`].
    pub fn pull(
        &self,
        remote: &Bulk,
        remote_offset: u64,
        into: &mut impl LocalBulk,
        local: Range<usize>,
    ) -> Result<(), BulkError> {
        self.instance().pull(self.origin(), remote, remote_offset, into, local)
    }

    /// Copies `from[local]` into the origin's exposed memory; suspends until it is there.
    ///
    /// # Errors
    ///
    /// As [`Instance::push`].
    pub fn push(
        &self,
        remote: &Bulk,
        remote_offset: u64,
        from: &mut impl LocalBulk,
        local: Range<usize>,
    ) -> Result<(), BulkError> {
        self.instance().push(self.origin(), remote, remote_offset, from, local)
    }
}
