//! Bulk transfers: one call of ours, several puts or gets of the network.
//!
//! A transfer is cut where the peer's memory handles end and after
//! [`HgOptions::bulk_chunk_bytes`](crate::HgOptions). At most
//! [`HgOptions::bulk_window`](crate::HgOptions) pieces are in flight; each that ends makes room for
//! the next. The first error cancels the others, and the transfer ends once, when none is in flight
//! any more: then no piece touches the local memory.
//!
//! Data that came inside the peer's descriptor is copied from there, without the network.
//!
//! The number of segments at the two sides does not matter: a piece takes any number of them at
//! both sides (`na` cuts them as its transport needs). Only a peer that describes each of its
//! segments by a memory handle of its own, as C does on some networks, makes one piece for each.
//!
//! # Who copies, and on how many execution streams
//!
//! This layer copies nothing: a piece is an operation of the transport, which works in its `poll`.
//! Several pieces in flight therefore overlap with each other on the network, not on processors.
//! Where the time goes into a copy within one host, the transport splits it among execution streams
//! ([`na::OpenOptions::copy_helper`], which `copy_pool.rs` of margo sets); more chunks would only
//! add round trips.

use na::{Addr, LocalMem};

use crate::core::state::Op;
use crate::ops::{BulkTransfer, Event, Role, WINDOW_MAX};
use crate::{Bulk, BulkOp, Core, HgError, MemoryAttr, OpRef};

impl<T> Core<T> {
    /// Looks at all transfers that `find` knows by their token, and returns those of which no piece
    /// has landed since as many looks as `looks` says for the bytes under way; and whether there
    /// are others.
    pub fn standing_transfers<R>(
        &self,
        looks: impl Fn(u64) -> u32,
        find: impl Fn(&T) -> Option<R>,
    ) -> (bool, Vec<(OpRef, R)>) {
        let (mut others, mut standing) = (false, Vec::new());
        for (op, is) in self.state().ops.iter_mut() {
            let Op::Transfer(transfer) = is else { continue };
            let Some(found) = transfer.token.as_ref().and_then(&find) else { continue };
            let flying = transfer.flying.iter().flatten().sum();
            transfer.stood = transfer.stood.saturating_add(1);
            if transfer.error.is_none() && transfer.stood > looks(flying) {
                standing.push((op, found));
            } else {
                others = true;
            }
        }
        (others, standing)
    }

    /// Moves `len` bytes between `local` and the memory behind `remote`, which belongs to `peer`;
    /// without a peer, to the owner that a bound handle names ([`bulk_bind`](Self::bulk_bind)),
    /// whichever peer sent the handle here. The transfer ends through
    /// [`Sink::bulk`](crate::Sink::bulk), once, with `token`. On an error the destination's bytes
    /// are not to be relied on.
    ///
    /// # Errors
    ///
    /// When nothing was started: a range or an access that the handles do not have, a foreign
    /// address, no peer with a handle that is not bound. `token` comes back here and not through
    /// the sink.
    ///
    /// Counterpart: `HG_Bulk_transfer`, `HG_Bulk_bind_transfer`.
    #[allow(clippy::too_many_arguments, reason = "two sides of three facts each")]
    pub fn transfer<'a>(
        &self,
        op: BulkOp,
        peer: impl Into<Option<&'a Addr>>,
        remote: &Bulk,
        remote_offset: u64,
        local: &LocalMem,
        local_offset: u64,
        len: u64,
        token: T,
    ) -> Result<OpRef, Box<(HgError, T)>> {
        let found = match peer.into() {
            Some(peer) => Ok(peer.clone()),
            None => self.owner_told_by(remote),
        };
        let started = found.and_then(|peer| {
            check(op, remote, remote_offset, local, local_offset, len)?;
            // Where owners are not asked, the fabric moves what its handles name.
            if self.endpoint.asks_owners() || remote.device_key().is_some() {
                remote.attr().map_or(Ok(()), MemoryAttr::check)?;
            }
            let parts = match (op, remote.eager_data()) {
                (BulkOp::Pull, Some(data)) => {
                    copy_eager(data, remote_offset, local, local_offset, len)?;
                    Vec::new()
                }
                _ => remote.remote_parts(&*self.endpoint)?,
            };
            Ok((peer, parts))
        });
        let (peer, parts) = match started {
            Ok(started) => started,
            Err(error) => return Err(Box::new((error, token))),
        };
        if parts.is_empty() {
            return self.transfer_done(len, token);
        }
        let window = self.options.bulk_window.clamp(1, WINDOW_MAX) as usize;
        let transfer = BulkTransfer {
            token: Some(token),
            op,
            peer,
            parts,
            remote_offset,
            local: local.clone(),
            local_offset,
            len,
            started: 0,
            moved: 0,
            flying: vec![None; window],
            any_started: false,
            stood: 0,
            error: None,
        };
        let admitted = {
            let mut state = self.state();
            let admitted = state.admit(Op::Transfer(transfer));
            if admitted.is_ok() {
                state.tokens += 1;
            }
            admitted
        };
        match admitted {
            Ok(op) => {
                self.counts.bulk_count.bump();
                match self.start_pieces(op) {
                    Some(refused) => Err(Box::new(refused)),
                    None => Ok(op),
                }
            }
            Err(refused) => match *refused {
                (error, Op::Transfer(BulkTransfer { token: Some(token), .. })) => {
                    Err(Box::new((error, token)))
                }
                _ => Ok(OpRef::NONE),
            },
        }
    }

    /// The owner that the handle tells.
    fn owner_told_by(&self, remote: &Bulk) -> Result<Addr, HgError> {
        self.bulk_owner(remote)?.ok_or_else(|| {
            HgError::Bulk("the handle does not tell its owner; the owner has to bind it".into())
        })
    }

    /// A transfer that needed no network.
    fn transfer_done(&self, len: u64, token: T) -> Result<OpRef, Box<(HgError, T)>> {
        let mut state = self.state();
        if state.closed {
            return Err(Box::new((HgError::Closed, token)));
        }
        self.counts.bulk_count.bump();
        state.hot.bulk_bytes += len;
        state.tokens += 1;
        self.queue(&mut state, Event::Bulk { token, result: Ok(len) });
        Ok(OpRef::NONE)
    }

    /// Starts as many pieces as may fly. `Some`: one was refused when none flew, which ends the
    /// transfer; its token no longer counts.
    fn start_pieces(&self, op: OpRef) -> Option<(HgError, T)> {
        let mut last = None;
        loop {
            let mut state = self.state();
            let Some(Op::Transfer(transfer)) = state.ops.get_mut(op) else { return None };
            if transfer.error.is_some() {
                // Who ended it may have canceled the last piece before the network knew it.
                let flying = last.filter(|number| transfer.is_flying_as(*number));
                drop(state);
                if let Some(number) = flying {
                    self.endpoint.cancel(op.part(Role::Piece(number)));
                }
                return None;
            }
            let (number, piece) = transfer.next(self.options.bulk_chunk_bytes.max(1))?;
            let (direction, peer) = (transfer.op, transfer.peer.clone());
            drop(state);
            let part = op.part(Role::Piece(number));
            let started = match direction {
                BulkOp::Pull => self.endpoint.get(part, &peer, piece),
                BulkOp::Push => self.endpoint.put(part, &peer, piece),
            };
            if let Err(error) = started {
                return self.piece_refused(op, number, error.into());
            }
            last = Some(number);
        }
    }

    fn piece_refused(&self, op: OpRef, number: u8, error: HgError) -> Option<(HgError, T)> {
        let mut state = self.state();
        let Some(Op::Transfer(transfer)) = state.ops.get_mut(op) else { return None };
        transfer.landed(number, Err(error));
        let others = transfer.flying_roles();
        let (event, gone) = state.settle(op);
        if event.is_some() {
            state.tokens -= 1;
        }
        drop(state);
        drop(gone);
        for role in others {
            self.endpoint.cancel(op.part(role));
        }
        match event {
            Some(Event::Bulk { token, result: Err(error) }) => Some((error, token)),
            _ => None,
        }
    }

    /// A put or get ended.
    pub(crate) fn on_piece(
        &self,
        op: OpRef,
        number: u8,
        result: Result<(), na::Error>,
    ) -> Option<Event<T>> {
        let mut state = self.state();
        let Some(Op::Transfer(transfer)) = state.ops.get_mut(op) else { return None };
        let failed = result.is_err();
        let before = transfer.moved;
        transfer.landed(number, result.map_err(HgError::from));
        let moved = transfer.moved - before;
        let in_vain = if failed { transfer.flying_roles() } else { Vec::new() };
        state.hot.bulk_bytes += moved;
        if let Some(event) = self.settle(state, op) {
            return Some(event);
        }
        for role in in_vain {
            self.endpoint.cancel(op.part(role));
        }
        self.start_pieces(op).map(|(error, token)| Event::Bulk { token, result: Err(error) })
    }
}

/// Refuses early what the owner would refuse, and what would not fit here.
fn check(
    op: BulkOp,
    remote: &Bulk,
    remote_offset: u64,
    local: &LocalMem,
    local_offset: u64,
    len: u64,
) -> Result<(), HgError> {
    for (side, offset, size) in
        [("remote", remote_offset, remote.len()), ("local", local_offset, local.len())]
    {
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(HgError::Bulk(format!(
                "{len} bytes at offset {offset} leave the {side} memory of {size} bytes"
            )));
        }
    }
    let Some(access) = remote.access() else { return Ok(()) };
    match op {
        BulkOp::Pull if !access.readable() => {
            Err(HgError::Bulk("its owner does not allow reading the remote memory".into()))
        }
        BulkOp::Push if !access.writable() => {
            Err(HgError::Bulk("its owner does not allow writing the remote memory".into()))
        }
        _ => Ok(()),
    }
}

/// A pull from data that came inside the descriptor. The ranges have been checked against what the
/// descriptor says; its data is as long as that.
fn copy_eager(
    data: &[u8],
    offset: u64,
    local: &LocalMem,
    local_offset: u64,
    len: u64,
) -> Result<(), HgError> {
    let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
    let part = range.and_then(|(offset, len)| data.get(offset..offset.checked_add(len)?));
    match part {
        Some(part) if local.write_at(local_offset, part) => Ok(()),
        _ => Err(HgError::Bulk("the embedded data could not be copied".into())),
    }
}
