//! Memory that UCX offers by its rendezvous, until it is received or refused.

use std::ffi::c_void;
use std::ptr::NonNull;

use ucx_sys::{Ucp, ucp_worker_h};

/// Memory of a peer that UCX offers to move here by its rendezvous; refused when this is dropped.
pub(crate) struct Offer {
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
    pub(crate) unsafe fn new(
        ucp: &'static Ucp,
        worker: ucp_worker_h,
        desc: NonNull<c_void>,
        len: usize,
    ) -> Self {
        Self { ucp, worker, desc, len }
    }

    /// How long it is, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// How UCX knows it; it must then be received.
    pub(crate) fn take(self) -> NonNull<c_void> {
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
