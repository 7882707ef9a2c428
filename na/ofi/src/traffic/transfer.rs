//! Puts and gets: parts that are contiguous on both sides, some of them in flight at a time.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a structure of libfabric's is filled in, or handed over, as one thing"
)]

use ofi_sys::{call, raw};

use crate::buffers::memory;
use crate::state::core::{Core, Posted, QueuedOp};
use crate::state::peers::Peer;
use crate::state::slots::{self, OpSlot};
use crate::state::transfer_state::Running;
use na_core::{Addr, Completion, DeniedReason, Error, OpId, Transfer};

/// Parts of one transfer in flight.
const PARTS_MAX: u32 = 16;

/// Longest part, bytes: a transfer can be canceled between parts.
const PART_BYTES_MAX: u64 = 4 << 20;

impl Core {
    /// Starts a transfer with a peer that is not ourselves, whose arguments were checked.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the peer's memory is not described for this transport.
    pub(crate) fn start_transfer(
        &mut self,
        op: OpId,
        put: bool,
        with: &Addr,
        transfer: Transfer,
    ) -> Result<(), Error> {
        let virtual_addresses = self.domain.has_mr_mode(raw::FI_MR_VIRT_ADDR);
        let native = transfer.remote.native.as_deref().unwrap_or_default();
        let pieces = memory::pieces(native, virtual_addresses).ok_or_else(|| {
            Error::InvalidArgument(
                "the remote memory is not described for the ofi transport".into(),
            )
        })?;
        let registered = match self.registers_all || transfer.local.elsewhere().is_some() {
            true => Some(self.registry.hold(transfer.local.key()).ok_or_else(|| {
                Error::InvalidArgument(
                    "the local memory is not registered with this endpoint".into(),
                )
            })?),
            false => None,
        };
        let end = pieces.last().map_or(0, |piece| piece.start + piece.len);
        let with = with.clone();
        let running = Running {
            op,
            put,
            transfer,
            registered,
            with: with.clone(),
            pieces,
            started: 0,
            in_flight: 0,
            queued: false,
            error: None,
        };
        let Transfer { remote_offset, len, .. } = running.transfer;
        if remote_offset + len > end {
            let reason = DeniedReason::OutOfRange;
            let result = Err(Error::Denied { peer: with.uri().to_owned(), reason });
            self.report_transfer(running, result);
        } else if len == 0 {
            // Providers differ in what they do with nothing; C does not ask either.
            self.report_transfer(running, Ok(()));
        } else {
            self.next_transfer += 1;
            let number = self.next_transfer;
            self.transfers.insert(number, running);
            self.continue_transfer(number);
        }
        Ok(())
    }

    fn report_transfer(&mut self, mut running: Running, result: Result<(), Error>) {
        running.release(false);
        self.done.push_back(Completion::Transfer { op: running.op, result });
        self.memories.push(running.transfer.local);
    }

    /// Hands over more parts, or ends the transfer if there are none and none is in flight.
    fn continue_transfer(&mut self, number: u64) {
        let Some(running) = self.transfers.get_mut(&number) else { return };
        if running.is_started() {
            if running.in_flight == 0 && !running.queued {
                let Some(running) = self.transfers.remove(&number) else { return };
                let result = running.error.clone().map_or(Ok(()), Err);
                self.report_transfer(running, result);
            }
        } else if !running.queued && running.in_flight < PARTS_MAX {
            running.queued = true;
            let with = running.with.clone();
            self.enqueue(&with, QueuedOp::Transfer(number));
        }
    }

    /// Posts parts until enough are in flight. Called from the queue.
    pub(crate) fn post_parts(&mut self, number: u64) -> Posted {
        let part_max = (self.domain.info.ep_attr().max_msg_size as u64).min(PART_BYTES_MAX);
        let mut any = false;
        loop {
            let Some(running) = self.transfers.get_mut(&number) else { return Posted::Taken };
            if running.is_started() || running.in_flight >= PARTS_MAX {
                running.queued = false;
                return Posted::Taken;
            }
            let Some((ours, addr, key, len)) = running.next(part_max) else {
                return Posted::Failed(libc::EFAULT);
            };
            let put = running.put;
            let desc = running.registered.as_ref().map(|registered| registered.desc(ours));
            let Some(desc) = desc.unwrap_or(Some(std::ptr::null_mut())) else {
                return Posted::Failed(libc::EFAULT);
            };
            let peer = running.with.state::<Peer>();
            let fi_addr = peer.map_or(u64::MAX, |peer| peer.fi_addr);
            let index = self.slots.add(OpSlot::Part { transfer: number });
            let (context, pinned) = (self.slots.context(index), self.slots.pinned(index));
            let Some(ep) = &self.ep else { return Posted::Failed(libc::ESHUTDOWN) };
            // SAFETY: the slot is ours, and libfabric has nothing of it before it is posted.
            let message = unsafe {
                slots::tell(pinned, peer);
                (*pinned).iov[0] = libc::iovec { iov_base: ours.cast(), iov_len: len };
                (*pinned).desc[0] = desc;
                (*pinned).remote = raw::fi_rma_iov { addr, len, key };
                raw::fi_msg_rma {
                    msg_iov: (&raw const (*pinned).iov).cast(),
                    desc: (&raw mut (*pinned).desc).cast(),
                    iov_count: 1,
                    addr: fi_addr,
                    rma_iov: &raw const (*pinned).remote,
                    rma_iov_count: 1,
                    context,
                    data: 0,
                }
            };
            // SAFETY: the endpoint is open, the peer was inserted; the transfer keeps its memory,
            // of which this is a part, until the completion.
            let result = unsafe {
                match put {
                    true => {
                        let flags = raw::FI_COMPLETION | raw::FI_DELIVERY_COMPLETE;
                        call::writemsg(ep.ep, &raw const message, flags)
                    }
                    false => call::readmsg(ep.ep, &raw const message, raw::FI_COMPLETION),
                }
            };
            match Posted::of(result) {
                Posted::Taken => {
                    running.started += len as u64;
                    running.in_flight += 1;
                    any = true;
                }
                other => {
                    self.slots.take(index);
                    return if other == Posted::Again && any { Posted::Partly } else { other };
                }
            }
        }
    }

    /// A part is over.
    pub(crate) fn part_ended(&mut self, number: u64, result: Result<(), Error>) {
        let Some(running) = self.transfers.get_mut(&number) else { return };
        running.in_flight -= 1;
        if let Err(error) = result {
            running.error.get_or_insert(error);
            if running.queued {
                running.queued = false;
                let peer = running.with.peer_id();
                self.take_out(peer, QueuedOp::Transfer(number));
            }
        } else if let Some(peer) = running.with.state::<Peer>() {
            peer.set_reached(true);
        }
        self.continue_transfer(number);
    }

    /// Returns the peer of a transfer.
    pub(crate) fn transfer_with(&self, number: u64) -> Option<Addr> {
        self.transfers.get(&number).map(|running| running.with.clone())
    }

    /// A transfer that is in no queue any more ends when nothing of it is in flight.
    pub(crate) fn fail_transfer(&mut self, number: u64, error: Error) {
        let Some(running) = self.transfers.get_mut(&number) else { return };
        running.queued = false;
        running.error.get_or_insert(error);
        self.continue_transfer(number);
    }

    /// Nothing more is started of the transfer `op`, if there is one.
    pub(crate) fn cancel_transfer(&mut self, op: OpId) {
        let found = self.transfers.iter().find(|(_, running)| running.op == op);
        let Some((number, with)) = found.map(|(n, running)| (*n, running.with.peer_id())) else {
            return;
        };
        self.take_out(with, QueuedOp::Transfer(number));
        self.fail_transfer(number, Error::Canceled);
    }
}
