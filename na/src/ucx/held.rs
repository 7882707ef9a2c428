//! Chunks of transfers, which are looked at after the call of the worker that brought them: where
//! UCX keeps them that long they are not copied before.

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
