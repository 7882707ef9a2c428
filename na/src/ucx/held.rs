//! What UCX keeps for us until the call of the worker that brought it is over: chunks of transfers,
//! where it does, which are then not copied before; and pieces that are offered by rendezvous.

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;

use ucx_sys::{Ucp, ucp_worker_h};

/// The bytes of a chunk, with its header.
pub(super) enum ChunkBytes {
    Copied(Vec<u8>),
    Held(Held),
}

impl Deref for ChunkBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Held(held) => held.bytes(),
        }
    }
}

/// Data of an active message that UCX keeps until this is dropped.
pub(super) struct Held {
    ucp: &'static Ucp,
    worker: ucp_worker_h,
    data: NonNull<c_void>,
    len: usize,
}

impl Held {
    /// Takes the data over from a callback, which must then return `UCS_INPROGRESS`.
    ///
    /// # Safety
    ///
    /// UCX hands over so many bytes there, with `UCP_AM_RECV_ATTR_FLAG_DATA`. The result is dropped
    /// after the callback's return, before the worker is destroyed, and by who may call it.
    pub(super) unsafe fn new(
        ucp: &'static Ucp,
        worker: ucp_worker_h,
        data: NonNull<c_void>,
        len: usize,
    ) -> Self {
        Self { ucp, worker, data, len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: UCX keeps them, and does not change them, until they are released (contract of
        // `new`).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), self.len) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: data that the callback has kept by its result, released once; the worker is
        // there (contract of `new`).
        unsafe { self.ucp.ucp_am_data_release(self.worker, self.data.as_ptr()) };
    }
}

/// Memory of a peer that UCX offers to move here by its rendezvous; refused when this is dropped.
pub(super) struct Offer {
    ucp: &'static Ucp,
    worker: ucp_worker_h,
    desc: NonNull<c_void>,
    len: usize,
}

impl Offer {
    /// Takes an offer over from a callback, which must then return `UCS_INPROGRESS`.
    ///
    /// # Safety
    ///
    /// UCX offers so many bytes by `desc`, with `UCP_AM_RECV_ATTR_FLAG_RNDV`. The result is dropped
    /// or taken after the callback's return, before the worker is destroyed, and by who may call
    /// it.
    pub(super) unsafe fn new(
        ucp: &'static Ucp,
        worker: ucp_worker_h,
        desc: NonNull<c_void>,
        len: usize,
    ) -> Self {
        Self { ucp, worker, desc, len }
    }

    /// How long it is, bytes.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// How UCX knows it; it must then be received.
    pub(super) fn take(self) -> NonNull<c_void> {
        std::mem::ManuallyDrop::new(self).desc
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        // SAFETY: an offer that the callback has kept by its result, neither received nor released
        // yet; the worker is there (contract of `new`).
        unsafe { self.ucp.ucp_am_data_release(self.worker, self.desc.as_ptr()) };
    }
}
