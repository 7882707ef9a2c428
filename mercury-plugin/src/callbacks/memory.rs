//! Memory and transfers.

use std::ffi::{c_uint, c_ulong, c_void};
use std::iter;

use na::{RawSegment, RemoteMem, Transfer};

use super::{class_here, context, give, give_bytes, guarded, values, with_code};
use crate::c::abi::{
    Callback, MEM_TYPE_HOST, NaAddr, NaClass, NaContext, NaMem, NaOp, NaSegment, OpKind, Return,
};
use crate::c::status::Status;
use crate::class::address;
use crate::class::memory::{self, Kind, OwnMem};
use crate::class::op::Begin;

/// Most segments of one handle: any number that a program can count.
pub(crate) unsafe extern "C" fn max_segments(_: *const NaClass) -> usize {
    i32::MAX as usize
}

/// A handle for one piece of memory.
pub(crate) unsafe extern "C" fn mem_handle_create(
    _: *mut NaClass,
    buf: *mut c_void,
    size: usize,
    flags: c_ulong,
    handle: *mut *mut NaMem,
) -> Return {
    with_code(|| {
        let segment = RawSegment { ptr: buf.cast(), len: size };
        let own = OwnMem::new(iter::once(segment), flags)?;
        // SAFETY: Mercury passes a variable.
        unsafe { give(handle, memory::lend(Kind::Own(own))) };
        Ok(())
    })
}

/// A handle for several pieces of memory.
pub(crate) unsafe extern "C" fn mem_handle_create_segments(
    _: *mut NaClass,
    segments: *mut NaSegment,
    count: usize,
    flags: c_ulong,
    handle: *mut *mut NaMem,
) -> Return {
    with_code(|| {
        // SAFETY: so many are there, which nobody changes meanwhile.
        let segments = unsafe { values(segments, count) };
        let segment =
            |segment: &NaSegment| RawSegment { ptr: segment.base.cast(), len: segment.len };
        let own = OwnMem::new(segments.iter().map(segment), flags)?;
        // SAFETY: Mercury passes a variable.
        unsafe { give(handle, memory::lend(Kind::Own(own))) };
        Ok(())
    })
}

/// Frees a handle; the memory is taken back if it was not.
pub(crate) unsafe extern "C" fn mem_handle_free(na_class: *mut NaClass, handle: *mut NaMem) {
    guarded((), || {
        // SAFETY: Mercury passes a handle of ours, and does not use it any more.
        let handle = unsafe { memory::reclaim(handle) };
        if let Kind::Own(own) = &handle.0 {
            // SAFETY: Mercury passes a class of ours.
            let class = unsafe { super::class(na_class) };
            // It has said so in the log.
            let _ = class.take_back(own);
        }
    });
}

/// Lets peers use the memory.
pub(crate) unsafe extern "C" fn mem_register(
    na_class: *mut NaClass,
    handle: *mut NaMem,
    mem_type: c_uint,
    _device: u64,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class_here(na_class) }?;
        // SAFETY: Mercury passes a handle of ours.
        let Kind::Own(own) = &unsafe { memory::lent(handle) }.0 else {
            return Err(Status::InvalidArg);
        };
        if mem_type != MEM_TYPE_HOST {
            tracing::warn!(mem_type, "only memory of the host can be registered");
            return Err(Status::OpNotSupported);
        }
        // SAFETY: the program keeps the memory until it was deregistered.
        unsafe { own.register(&*class.endpoint) }
    })
}

/// Takes memory back: peers do not use it any more when this has returned, and if they may, that is
/// an error.
pub(crate) unsafe extern "C" fn mem_deregister(
    na_class: *mut NaClass,
    handle: *mut NaMem,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { super::class(na_class) };
        // SAFETY: Mercury passes a handle of ours.
        match &unsafe { memory::lent(handle) }.0 {
            Kind::Own(own) => class.take_back(own),
            Kind::Peers(_) => Ok(()),
        }
    })
}

/// Bytes that describe memory to peers; 0 for memory that they cannot use.
pub(crate) unsafe extern "C" fn serialize_size(
    na_class: *mut NaClass,
    handle: *mut NaMem,
) -> usize {
    guarded(0, || {
        // SAFETY: Mercury passes a class and a handle of ours.
        unsafe { described(na_class, handle) }.map_or(0, |bytes| bytes.len())
    })
}

/// # Safety
///
/// Both are those that Mercury has passed.
unsafe fn described(na_class: *mut NaClass, handle: *mut NaMem) -> Result<Vec<u8>, Status> {
    // SAFETY: contract of this function.
    let class = unsafe { class_here(na_class) }?;
    // SAFETY: contract of this function.
    match &unsafe { memory::lent(handle) }.0 {
        Kind::Own(own) => {
            let registered = own.get().ok_or(Status::InvalidArg)?;
            Ok(class.endpoint.mem_to_bytes(&registered))
        }
        Kind::Peers(remote) => Ok(remote.to_bytes().to_vec()),
    }
}

/// Describes memory to peers.
pub(crate) unsafe extern "C" fn mem_handle_serialize(
    na_class: *mut NaClass,
    buf: *mut c_void,
    size: usize,
    handle: *mut NaMem,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class and a handle of ours.
        let bytes = unsafe { described(na_class, handle) }?;
        // SAFETY: so many bytes are there, of the caller alone.
        unsafe { give_bytes(buf, size, &bytes) }
    })
}

/// Reads the description of a peer's memory, behind which the buffer may go on. The owner checks
/// each transfer, so a description that lies harms nobody.
pub(crate) unsafe extern "C" fn mem_handle_deserialize(
    na_class: *mut NaClass,
    handle: *mut *mut NaMem,
    buf: *const c_void,
    size: usize,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class_here(na_class) }?;
        // SAFETY: so many bytes are there, which nobody changes meanwhile.
        let bytes = unsafe { values(buf.cast::<u8>(), size) };
        let bytes = bytes.get(..RemoteMem::BYTES).unwrap_or(bytes);
        let remote = class.endpoint.mem_from_bytes(bytes).map_err(|error| {
            tracing::warn!(%error, "a description of memory that a peer has sent cannot be used");
            Status::from(&error)
        })?;
        // SAFETY: Mercury passes a variable.
        unsafe { give(handle, memory::lend(Kind::Peers(remote))) };
        Ok(())
    })
}

/// A transfer that the program wants.
struct TransferWanted {
    local: (*mut NaMem, u64),
    remote: (*mut NaMem, u64),
    len: usize,
    peer: *mut NaAddr,
}

/// Begins a transfer.
///
/// # Safety
///
/// Pointers are those that Mercury has passed.
unsafe fn transfer(
    na_class: *mut NaClass,
    begin: Begin<'_>,
    wanted: TransferWanted,
) -> Result<(), Status> {
    // SAFETY: contract of this function.
    let class = unsafe { class_here(na_class) }?;
    let TransferWanted { local, remote, len, peer } = wanted;
    let ((local, local_offset), (remote, remote_offset)) = (local, remote);
    // SAFETY: contract of this function.
    let local = unsafe { memory::lent(local) }.local()?;
    // SAFETY: contract of this function.
    let remote = unsafe { memory::lent(remote) }.remote(&*class.endpoint)?;
    // SAFETY: contract of this function.
    let peer = unsafe { address::lent(peer) };
    let is_put = begin.kind == OpKind::Put;
    // SAFETY: contract of this function.
    let started = unsafe { begin.start() }?;
    let transfer = Transfer { local, local_offset, remote, remote_offset, len: len as u64 };
    let number = started.number();
    let begun = match is_put {
        true => class.endpoint.put(number, peer, transfer),
        false => class.endpoint.get(number, peer, transfer),
    };
    match begun {
        Ok(()) => {
            started.taken();
            Ok(())
        }
        Err(error) => Err(started.refused(&error)),
    }
}

macro_rules! transfers {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        pub(crate) unsafe extern "C" fn $name(
            na_class: *mut NaClass,
            na_context: *mut NaContext,
            callback: Callback,
            arg: *mut c_void,
            local: *mut NaMem,
            local_offset: u64,
            remote: *mut NaMem,
            remote_offset: u64,
            len: usize,
            peer: *mut NaAddr,
            _peer_id: u8,
            op: *mut NaOp,
        ) -> Return {
            with_code(|| {
                // SAFETY: Mercury passes a context of ours.
                let home = unsafe { context(na_context) };
                let kind = OpKind::$kind;
                let begin = Begin { op, kind, callback, arg, context: na_context, home };
                let (local, remote) = ((local, local_offset), (remote, remote_offset));
                // SAFETY: Mercury passes a class, handles, an address and an operation of ours.
                unsafe { transfer(na_class, begin, TransferWanted { local, remote, len, peer }) }
            })
        }
    };
}

transfers! {
    /// Writes memory of the program to that of a peer.
    put, Put
}

transfers! {
    /// Reads memory of a peer into that of the program.
    get, Get
}
