//! Addresses.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use super::{class, class_here, give, give_bytes, guarded, text, values, with_code};
use crate::c::abi::{NaAddr, NaClass, Return};
use crate::c::status::Status;
use crate::class::address::{self, serialised, to_text, to_uri};

/// The peer of a name.
pub(crate) unsafe extern "C" fn addr_lookup(
    na_class: *mut NaClass,
    name: *const c_char,
    found: *mut *mut NaAddr,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class_here(na_class) }?;
        // SAFETY: Mercury passes a text.
        let name = unsafe { text(name) }?.ok_or(Status::InvalidArg)?;
        let addr = class.endpoint.lookup(&to_uri(name)).map_err(|error| {
            tracing::warn!(%error, "an address cannot be looked up");
            Status::from(&error)
        })?;
        // SAFETY: Mercury passes a variable.
        unsafe { give(found, address::lend(addr)) };
        Ok(())
    })
}

/// Frees an address.
pub(crate) unsafe extern "C" fn addr_free(_: *mut NaClass, addr: *mut NaAddr) {
    guarded((), || {
        // SAFETY: Mercury passes an address of ours, and does not use it any more.
        unsafe { address::free(addr) };
    });
}

/// Nothing is kept for an address that is not used.
pub(crate) unsafe extern "C" fn addr_set_remove(_: *mut NaClass, _: *mut NaAddr) -> Return {
    Status::Success.code()
}

/// The endpoint's own address.
pub(crate) unsafe extern "C" fn addr_self(na_class: *mut NaClass, own: *mut *mut NaAddr) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let addr = unsafe { class(na_class) }.endpoint.self_addr();
        // SAFETY: Mercury passes a variable.
        unsafe { give(own, address::lend(addr)) };
        Ok(())
    })
}

/// Another handle of the same address.
pub(crate) unsafe extern "C" fn addr_dup(
    _: *mut NaClass,
    addr: *mut NaAddr,
    other: *mut *mut NaAddr,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes an address of ours.
        let addr = unsafe { address::lent(addr) };
        // SAFETY: Mercury passes a variable.
        unsafe { give(other, address::lend(addr.clone())) };
        Ok(())
    })
}

/// Returns whether two addresses are those of one peer.
pub(crate) unsafe extern "C" fn addr_cmp(
    _: *mut NaClass,
    one: *mut NaAddr,
    other: *mut NaAddr,
) -> bool {
    guarded(false, || {
        // SAFETY: Mercury passes an address of ours.
        let one = unsafe { address::lent(one) };
        // SAFETY: as above.
        let other = unsafe { address::lent(other) };
        one == other
    })
}

/// Returns whether the address is the endpoint's own.
pub(crate) unsafe extern "C" fn addr_is_self(na_class: *mut NaClass, addr: *mut NaAddr) -> bool {
    guarded(false, || {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class(na_class) };
        // SAFETY: Mercury passes an address of ours.
        let addr = unsafe { address::lent(addr) };
        *addr == class.endpoint.self_addr()
    })
}

/// The text of an address, or how long it is.
pub(crate) unsafe extern "C" fn addr_to_string(
    _: *mut NaClass,
    buf: *mut c_char,
    size: *mut usize,
    addr: *mut NaAddr,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes an address of ours.
        let addr = unsafe { address::lent(addr) };
        let text = to_text(addr.uri());
        let needed = text.len() + 1;
        // SAFETY: Mercury passes a variable.
        let room = unsafe { *size };
        if !buf.is_null() {
            if room < needed {
                return Err(Status::Overflow);
            }
            let text = CString::new(&*text).map_err(|_| Status::InvalidArg)?;
            // SAFETY: so many bytes are there, of the caller alone; the text has its zero byte.
            unsafe { ptr::copy_nonoverlapping(text.as_ptr(), buf, needed) };
        }
        // SAFETY: Mercury passes a variable.
        unsafe { give(size, needed) };
        Ok(())
    })
}

/// Bytes of an address that is to travel; 0 if it cannot.
pub(crate) unsafe extern "C" fn addr_get_serialize_size(
    na_class: *mut NaClass,
    addr: *mut NaAddr,
) -> usize {
    guarded(0, || {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class(na_class) };
        // SAFETY: Mercury passes an address of ours.
        let addr = unsafe { address::lent(addr) };
        class.endpoint.addr_to_bytes(addr).map_or(0, |bytes| bytes.len())
    })
}

/// Writes an address that is to travel.
pub(crate) unsafe extern "C" fn addr_serialize(
    na_class: *mut NaClass,
    buf: *mut c_void,
    size: usize,
    addr: *mut NaAddr,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class(na_class) };
        // SAFETY: Mercury passes an address of ours.
        let addr = unsafe { address::lent(addr) };
        let bytes = class.endpoint.addr_to_bytes(addr).map_err(|error| Status::from(&error))?;
        // SAFETY: so many bytes are there, of the caller alone.
        unsafe { give_bytes(buf, size, &bytes) }
    })
}

/// Reads an address that has travelled, behind which the buffer may go on.
pub(crate) unsafe extern "C" fn addr_deserialize(
    na_class: *mut NaClass,
    found: *mut *mut NaAddr,
    buf: *const c_void,
    size: usize,
    _flags: u64,
) -> Return {
    with_code(|| {
        // SAFETY: Mercury passes a class of ours.
        let class = unsafe { class_here(na_class) }?;
        // SAFETY: so many bytes are there, which nobody changes meanwhile.
        let bytes = unsafe { values(buf.cast::<u8>(), size) };
        let addr = class.endpoint.addr_from_bytes(serialised(bytes)).map_err(|error| {
            tracing::warn!(%error, "an address that a peer has sent cannot be used");
            Status::from(&error)
        })?;
        // SAFETY: Mercury passes a variable.
        unsafe { give(found, address::lend(addr)) };
        Ok(())
    })
}
