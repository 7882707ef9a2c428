//! Our own memory in libfabric's operations, for providers that want it registered (`FI_MR_LOCAL`),
//! and for providers that would otherwise register it again for each transfer (`efa`, `verbs`;
//! `Provider::local_first`).
//!
//! A provider that takes a message in one piece only (`iov_limit`) gets its requests from such a
//! buffer too, registered or not, with the address before them.
//!
//! A message is copied into a buffer of its slot, or out of it. The buffer is registered once and
//! stays with the slot: registering each message would cost far more than copying 4 KiB. Memory
//! that transfers read and write is registered anyway, and so are the buffers for requests. Each
//! operation then gets the registration's descriptor.
//!
//! Source: `na_ofi_mem_alloc`, `na_ofi_msg_send_expected` in `na_ofi.c`, where messages lie in
//! registered memory from the beginning.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use ofi_sys::raw;

use super::memory::Registry;
use crate::fabrics::fabric::{Domain, Ep, Mr, MrRequest, Place};
use na_core::MsgBuf;
use prim::sync::Arc;

/// The objects that memory is registered with.
type With<'a> = (&'a Registry, &'a Arc<Domain>, &'a Ep);

/// Memory for messages.
pub(crate) struct LocalBuffer {
    memory: NonNull<[u8]>,
    /// `None`: none is wanted, or not yet, or it was [ended](Self::end_registration).
    pub(crate) mr: Option<Mr>,
    /// It did not end: the memory is left to libfabric.
    is_stuck: bool,
}

// SAFETY: it owns its memory, which is not tied to a thread.
unsafe impl Send for LocalBuffer {}

impl LocalBuffer {
    pub(crate) fn unregistered(bytes: usize) -> Self {
        let memory = NonNull::from(Box::leak(vec![0; bytes].into_boxed_slice()));
        Self { memory, mr: None, is_stuck: false }
    }

    fn new(bytes: usize, with: Option<With<'_>>) -> Result<Self, c_int> {
        let mut this = Self::unregistered(bytes);
        if let Some((registry, domain, ep)) = with {
            // SAFETY: the memory lives until `this` is dropped, which ends the registration first,
            // and for good if it does not end.
            this.mr = Some(unsafe { register(registry, domain, ep, this.place(), bytes) }?);
        }
        Ok(this)
    }

    pub(crate) fn end_registration(&mut self) {
        self.is_stuck |= self.mr.take().is_some_and(|mr| !mr.end());
    }

    pub(crate) fn place(&self) -> *mut u8 {
        self.memory.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the descriptor that libfabric wants with an operation on this buffer; null if there
    /// is none.
    pub(crate) fn desc(&self) -> *mut c_void {
        self.mr.as_ref().map_or(std::ptr::null_mut(), Mr::desc)
    }

    /// Writes a message, in two parts, which fit; its length.
    pub(crate) fn put(&mut self, parts: [&[u8]; 2]) -> usize {
        // SAFETY: owned, and libfabric has nothing of it before it is posted.
        let memory = unsafe { self.memory.as_mut() };
        let (first, rest) = memory.split_at_mut(parts[0].len());
        first.copy_from_slice(parts[0]);
        rest[..parts[1].len()].copy_from_slice(parts[1]);
        parts[0].len() + parts[1].len()
    }

    /// Reads a message of `len` bytes that libfabric has put here, as far as `into` has room; how
    /// far that was.
    fn read(&self, into: &mut MsgBuf, len: usize) -> usize {
        let len = len.min(into.capacity()).min(self.memory.len());
        // SAFETY: so many bytes are there, all of which were written once, and libfabric is done
        // with the operation that it had them for.
        let bytes = unsafe { std::slice::from_raw_parts(self.place(), len) };
        into.spare_mut()[..len].copy_from_slice(bytes);
        len
    }
}

impl Drop for LocalBuffer {
    fn drop(&mut self) {
        self.end_registration();
        if self.is_stuck {
            return;
        }
        // SAFETY: leaked by `new`; libfabric has no operation on it any more (the order of the
        // fields in `Core`).
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

/// Registers memory for messages. The number of libfabric's error on failure.
///
/// # Safety
///
/// As for [`Mr::register`].
pub(crate) unsafe fn register(
    registry: &Registry,
    domain: &Arc<Domain>,
    ep: &Ep,
    start: *mut u8,
    len: usize,
) -> Result<Mr, c_int> {
    let access = raw::FI_SEND | raw::FI_RECV;
    let request = MrRequest { ptr: start, len, access, place: Place::Host, key: 0 };
    // SAFETY: the caller's.
    let mr = unsafe { registry.new_mr(domain, request) }?;
    mr.bind_to(ep).map(|()| mr)
}

/// The buffers of an endpoint's slots, made when they are first used.
#[derive(Default)]
pub(crate) struct LocalBuffers {
    by_slot: Vec<Option<LocalBuffer>>,
}

impl LocalBuffers {
    /// The buffer of a slot, which has room for `bytes` and is registered if it shall be `with`
    /// something: the same in each call.
    pub(crate) fn of_slot(
        &mut self,
        slot: u32,
        bytes: usize,
        with: Option<With<'_>>,
    ) -> Result<&mut LocalBuffer, c_int> {
        let at = slot as usize;
        if self.by_slot.len() <= at {
            self.by_slot.resize_with(at + 1, || None);
        }
        match &mut self.by_slot[at] {
            Some(buffer) => Ok(buffer),
            none => Ok(none.insert(LocalBuffer::new(bytes, with)?)),
        }
    }

    /// Reads the message of `len` bytes that libfabric has put into a slot's buffer; how much of it
    /// there was.
    pub(crate) fn read(&self, slot: u32, into: &mut MsgBuf, len: usize) -> usize {
        let buffer = self.by_slot.get(slot as usize).and_then(Option::as_ref);
        buffer.map_or(0, |buffer| buffer.read(into, len))
    }

    /// Ends the registrations, which may be bound to the endpoint, before that is closed. The
    /// memory stays.
    pub(crate) fn end_registrations(&mut self) {
        self.by_slot.iter_mut().flatten().for_each(LocalBuffer::end_registration);
    }
}

/// The conformance suite with everything registered, which no software provider asks for: `tcp`,
/// `tcp;ofi_rxm` and `shm` take `FI_MR_LOCAL` out of what they are offered (`ofi_alter_domain_attr`
/// in `util_attr.c`), and use, or ignore, the descriptors that they get all the same.
#[cfg(test)]
mod tests {
    use crate::Ofi;
    use crate::endpoint::{OfiEndpoint, Setup};
    use crate::fabrics::fabric::library;
    use na_core::conformance::{Opener, Optional};
    use na_core::{Endpoint, OpenOptions, Plugin, Uri};
    use prim::sync::Arc;

    struct Registering(Optional);

    const fn over(uri: &'static str) -> Registering {
        Registering(Optional {
            variable: "MARGO_TEST_OFI",
            uri,
            open: |uri, options| Ofi.open(&Uri::parse(uri)?, options),
        })
    }

    impl Opener<Registering> for Registering {
        const HEEDS_OPTIONS: bool = true;

        fn lacks(&self) -> Option<String> {
            self.0.lacks()
        }

        fn open(&self, options: &OpenOptions) -> Arc<dyn Endpoint> {
            let uri = Uri::parse(self.0.uri).unwrap();
            let setup = Setup { registers_all: true, ..Setup::default() };
            let opened = OfiEndpoint::open_through(&uri, options, setup, library);
            Arc::new(opened.unwrap_or_else(|error| panic!("{}: {error}", self.0.uri)))
        }
    }

    mod tcp {
        use super::*;

        const OPEN: Registering = over("ofi+tcp://127.0.0.1:0");

        na_core::conformance! { OPEN; unconnected }
    }

    mod tcp_rxm {
        use super::*;

        const OPEN: Registering = over("ofi+tcp;ofi_rxm://127.0.0.1:0");

        na_core::conformance! { OPEN; unconnected }
    }

    mod shm {
        use super::*;

        const OPEN: Registering = over("ofi+shm://");

        na_core::conformance! { OPEN; unconnected }
    }
}
