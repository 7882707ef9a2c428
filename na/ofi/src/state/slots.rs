//! Slots, one for each operation that was handed to libfabric or waits to be.
//!
//! libfabric is given the address of a slot as the operation's context, and the addresses of the
//! buffers in it. So a slot does not move, and is free again only when the operation has completed
//! or the endpoint is closed.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::Instant;

use libc::iovec;
use ofi_sys::raw;

use super::lookup::{Lookup, Names};
use super::peers::Peer;
use na_core::matching::Kind;
use na_core::{Addr, MsgBuf, OpId, Tag};

/// The part of a slot that libfabric sees.
#[repr(C)]
pub(crate) struct Pinned {
    /// libfabric's own, while the operation is in flight.
    context: raw::fi_context2,
    index: u32,
    /// The peer's [life](Peer::life) when the operation was handed over.
    life: u32,
    /// The parts of what is sent; some providers look at them after the call.
    pub(crate) iov: [iovec; 2],
    pub(crate) remote: raw::fi_rma_iov,
    pub(crate) desc: [*mut c_void; 2],
}

/// Before an operation is handed over: writes into its context what some providers look for there
/// before they make it theirs, the address of the peer, which is nothing for receives from anybody;
/// and notes which life of the peer it is for.
///
/// # Safety
///
/// It is that of a slot, which libfabric does not have.
pub(crate) unsafe fn tell(pinned: *mut Pinned, peer: Option<&Peer>) {
    let told = peer.and_then(|peer| peer.told.as_deref());
    let told = told.map_or(std::ptr::null(), <[u8]>::as_ptr);
    // SAFETY: the caller's.
    unsafe { (*pinned).context.internal[0] = told.cast_mut().cast() };
    // SAFETY: the caller's.
    unsafe { (*pinned).life = peer.map_or(0, Peer::life) };
}

/// The use of a slot.
pub(crate) enum OpSlot {
    Free,
    /// A message to a peer.
    Send {
        op: OpId,
        kind: Kind,
        to: Addr,
        tag: Tag,
        buf: MsgBuf,
        /// libfabric has it.
        posted: bool,
        /// The end was reported with a copy of the buffer; libfabric still has this one.
        given_up: bool,
        /// Since when it is sent again, because its connection was closed.
        again: Option<Instant>,
    },
    /// A short message that was copied at once, and whose end nobody waits for.
    Injected {
        to: Addr,
        /// The number of the receive that waits for the answer to it, if that was posted with it.
        answer: Option<u64>,
    },
    /// A receive of an expected message.
    Recv {
        op: OpId,
        from: Addr,
        tag: Tag,
        buf: MsgBuf,
        /// Which receive it is, by the order of the calls, in which libfabric gets them.
        number: u64,
        posted: bool,
        /// The end was reported with another buffer; see [`sinks`](super::sinks).
        given_up: bool,
    },
    /// A part of a transfer.
    Part {
        transfer: u64,
    },
    /// A buffer for unexpected messages.
    Unexpected {
        buffer: u32,
    },
}

impl OpSlot {
    /// The keys under which it is found, as long as it is not given up.
    fn names(&self) -> Names {
        match self {
            Self::Send { op, given_up: false, .. } => (Some(*op), None),
            Self::Recv { op, from, tag, given_up: false, .. } => {
                (Some(*op), Some((from.peer_id(), tag.0)))
            }
            _ => (None, None),
        }
    }
}

/// All slots of an endpoint.
#[derive(Default)]
pub(crate) struct Slots {
    pinned: Vec<NonNull<Pinned>>,
    used: Vec<OpSlot>,
    free: Vec<u32>,
    pub(crate) lookup: Lookup,
}

// SAFETY: the pinned parts are owned, and not tied to a thread.
unsafe impl Send for Slots {}

impl Slots {
    /// Takes a slot.
    pub(crate) fn add(&mut self, slot: OpSlot) -> u32 {
        if let Some(index) = self.free.pop() {
            self.lookup.begins(index, || slot.names());
            self.used[index as usize] = slot;
            return index;
        }
        let index = self.used.len() as u32;
        self.lookup.begins(index, || slot.names());
        let nothing = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let pinned = Pinned {
            context: raw::fi_context2 { internal: [std::ptr::null_mut(); 8] },
            index,
            life: 0,
            iov: [nothing; 2],
            remote: raw::fi_rma_iov { addr: 0, len: 0, key: 0 },
            desc: [std::ptr::null_mut(); 2],
        };
        let pinned = NonNull::from(Box::leak(Box::new(pinned)));
        self.pinned.push(pinned);
        self.used.push(slot);
        index
    }

    pub(crate) fn get(&mut self, index: u32) -> &mut OpSlot {
        &mut self.used[index as usize]
    }

    /// Gives a slot back; what it was used for.
    pub(crate) fn take(&mut self, index: u32) -> OpSlot {
        self.free.push(index);
        let slot = std::mem::replace(&mut self.used[index as usize], OpSlot::Free);
        self.lookup.ends(index, || slot.names());
        slot
    }

    /// The end of a message or receive is reported although libfabric goes on having it.
    pub(crate) fn give_up(&mut self, index: u32) {
        let slot = &mut self.used[index as usize];
        self.lookup.ends(index, || slot.names());
        if let OpSlot::Send { given_up, .. } | OpSlot::Recv { given_up, .. } = slot {
            *given_up = true;
        }
    }

    /// The slot of a message or receive that is not given up.
    pub(crate) fn slot_of(&mut self, op: OpId) -> Option<u32> {
        self.lookup.slot_of(op, named(&self.used))
    }

    /// Returns whether there is a receive from that peer for that tag which is not given up.
    pub(crate) fn is_awaited(&mut self, from: &Addr, tag: Tag) -> bool {
        self.lookup.is_awaited((from.peer_id(), tag.0), named(&self.used))
    }

    /// Returns the pointer that libfabric is given as the context.
    pub(crate) fn context(&self, index: u32) -> *mut c_void {
        self.pinned[index as usize].as_ptr().cast()
    }

    /// The part that does not move.
    pub(crate) fn pinned(&self, index: u32) -> *mut Pinned {
        self.pinned[index as usize].as_ptr()
    }

    /// Returns the [life](Peer::life) of its peer that the last operation in that slot was for.
    pub(crate) fn life(&self, index: u32) -> u32 {
        // SAFETY: leaked by `add` and not freed before this object; libfabric writes to the
        // context alone, and no reference is made.
        unsafe { (*self.pinned(index)).life }
    }

    /// The slot of a completion; `None` if its context is none of ours.
    pub(crate) fn index_of(&self, context: *mut c_void) -> Option<u32> {
        if context.is_null() {
            return None;
        }
        // SAFETY: libfabric returns contexts that it was given, which are addresses of slots, and
        // slots live as long as this object; it writes to no more than the `fi_context2`, and
        // no reference is made.
        let index = unsafe { (*context.cast::<Pinned>()).index };
        (self.pinned.get(index as usize).map(|pinned| pinned.as_ptr().cast()) == Some(context))
            .then_some(index)
    }

    /// All slots in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &OpSlot)> {
        self.used.iter().enumerate().map(|(index, slot)| (index as u32, slot))
    }

    /// For an endpoint that is left open: memory that libfabric has addresses of stays valid for
    /// ever, and callers that wait for it get another buffer. Nothing more can be handed over.
    pub(crate) fn abandon(&mut self) {
        self.pinned.clear();
        self.free.clear();
        for slot in &mut self.used {
            let other = match slot {
                OpSlot::Send { posted: true, buf, .. } => copy_of(buf),
                // Whatever is in it is libfabric's.
                OpSlot::Recv { posted: true, buf, .. } => MsgBuf::with_capacity(buf.capacity()),
                _ => continue,
            };
            if let OpSlot::Send { buf, .. } | OpSlot::Recv { buf, .. } = slot {
                std::mem::forget(std::mem::replace(buf, other));
            }
        }
    }

    /// Takes everything out, once libfabric has nothing any more.
    pub(crate) fn drain(&mut self) -> Vec<OpSlot> {
        self.free.clear();
        self.lookup = Lookup::default();
        std::mem::take(&mut self.used)
    }
}

fn named(slots: &[OpSlot]) -> impl Iterator<Item = (u32, Names)> {
    (0..).zip(slots).map(|(index, slot)| (index, slot.names()))
}

/// A copy of a message, with as much room.
pub(crate) fn copy_of(buf: &MsgBuf) -> MsgBuf {
    let mut copy = MsgBuf::with_capacity(buf.capacity());
    let fits = copy.try_extend(buf.as_slice());
    debug_assert!(fits, "a copy of the same size");
    copy
}

impl Drop for Slots {
    fn drop(&mut self) {
        for pinned in &self.pinned {
            // SAFETY: leaked by `add`, once each; the endpoint, which knew the addresses, is closed
            // (the order of the fields in `Core`).
            drop(unsafe { Box::from_raw(pinned.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prim::sync::Arc;

    fn buf(bytes: &[u8]) -> MsgBuf {
        let mut buf = MsgBuf::with_capacity(64);
        assert!(buf.try_extend(bytes));
        buf
    }

    /// Operations left with libfabric keep their memory; the owners get other buffers.
    #[test]
    fn abandoned_slots_keep_what_libfabric_has() {
        let mut slots = Slots::default();
        let peer = Addr::with_state("ofi+tcp://1.2.3.4:5".to_owned(), 1, 2, Arc::new(()));
        let send = |posted| {
            let (op, kind, to, tag) = (OpId(1), Kind::Expected, peer.clone(), Tag(1));
            OpSlot::Send {
                op,
                kind,
                to,
                tag,
                buf: buf(b"sent"),
                posted,
                given_up: false,
                again: None,
            }
        };
        let recv = |posted| {
            let (op, from, tag) = (OpId(2), peer.clone(), Tag(1));
            OpSlot::Recv { op, from, tag, buf: buf(b"x"), number: 1, posted, given_up: false }
        };
        for slot in [send(true), send(false), recv(true), recv(false)] {
            slots.add(slot);
        }
        let place = |slot: &OpSlot| match slot {
            OpSlot::Send { buf, .. } | OpSlot::Recv { buf, .. } => buf.as_slice().as_ptr(),
            _ => std::ptr::null(),
        };
        let before: Vec<_> = slots.iter().map(|(_, slot)| place(slot)).collect();
        let context = slots.context(0);
        slots.abandon();
        assert_eq!(slots.index_of(context), None, "nothing ends any more");
        let after = slots.drain();
        let stayed: Vec<_> =
            after.iter().zip(before).map(|(slot, before)| place(slot) == before).collect();
        assert_eq!(stayed, [false, true, false, true]);
        for slot in after {
            match slot {
                OpSlot::Send { buf, .. } => {
                    assert_eq!((buf.as_slice(), buf.capacity()), (&b"sent"[..], 64))
                }
                OpSlot::Recv { buf, .. } => assert_eq!(buf.capacity(), 64),
                _ => panic!("another slot"),
            }
        }
    }
}
