//! The inline functions of the headers: calls through the tables that each object brings along.
//!
//! They return what C returns: 0 or more, or a negated error number. A table that is too short for
//! a function, or has none, gives [`NO_SYS`].
#![allow(
    clippy::missing_safety_doc,
    clippy::multiple_unsafe_ops_per_block,
    clippy::too_many_arguments,
    reason = "the contract is one for all, below, and each function is one expression"
)]
//!
//! # Safety
//!
//! For all: objects are open, of the type that they are passed as, and used by as many threads at a
//! time as the domain's threading model allows; pointers are valid for what the man page of the
//! function of the same name says, and those of asynchronous operations until its completion (or
//! the end of the endpoint).

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use libc::ssize_t;

use crate::raw::*;

/// The result of a function that the provider does not have: `-FI_ENOSYS`.
pub const NO_SYS: c_int = -libc::ENOSYS;

/// The function of that name in a table of that type, if the table reaches so far and has it.
macro_rules! function {
    ($type:ident, $table:expr, $function:ident) => {{
        // SAFETY: by the contract of this module the object is open, so its table is there until
        // the object is closed. Each begins with its size, and nothing is read beyond that.
        unsafe {
            let table: *const $type = $table;
            let end = offset_of!($type, $function) + size_of::<Option<fn()>>();
            if (*table).size < end { None } else { (&raw const (*table).$function).read() }
        }
    }};
}

/// Calls that function and returns its result; [`NO_SYS`] if there is none.
macro_rules! through {
    ($type:ident, $table:expr, $function:ident($($argument:expr),*)) => {
        match function!($type, $table, $function) {
            // SAFETY: the object's own function, called with what its man page asks for: the
            // contract of this module.
            Some(function) => unsafe { function($($argument),*) },
            None => NO_SYS as _,
        }
    };
}

/// `fi_close`.
pub unsafe fn close(object: *mut fid) -> c_int {
    through!(fi_ops, (*object).ops, close(object))
}

/// `fi_control`.
pub unsafe fn control(object: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    through!(fi_ops, (*object).ops, control(object, command, argument))
}

/// `fi_domain`.
pub unsafe fn domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
) -> c_int {
    through!(fi_ops_fabric, (*fabric).ops, domain(fabric, info, domain, std::ptr::null_mut()))
}

/// `fi_trywait` for one object.
pub unsafe fn trywait(fabric: *mut fid_fabric, object: *mut fid) -> c_int {
    let mut objects = [object];
    through!(fi_ops_fabric, (*fabric).ops, trywait(fabric, objects.as_mut_ptr(), 1))
}

/// `fi_cq_open`.
pub unsafe fn cq_open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
) -> c_int {
    through!(fi_ops_domain, (*domain).ops, cq_open(domain, attr, cq, std::ptr::null_mut()))
}

/// `fi_av_open`.
pub unsafe fn av_open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
) -> c_int {
    through!(fi_ops_domain, (*domain).ops, av_open(domain, attr, av, std::ptr::null_mut()))
}

/// `fi_endpoint`.
pub unsafe fn endpoint(domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep) -> c_int {
    through!(fi_ops_domain, (*domain).ops, endpoint(domain, info, ep, std::ptr::null_mut()))
}

/// `fi_ep_bind`.
pub unsafe fn ep_bind(ep: *mut fid_ep, object: *mut fid, flags: u64) -> c_int {
    through!(fi_ops, (*ep).fid.ops, bind(&raw mut (*ep).fid, object, flags))
}

/// `fi_enable`.
pub unsafe fn enable(ep: *mut fid_ep) -> c_int {
    let command = FI_ENABLE as c_int;
    through!(fi_ops, (*ep).fid.ops, control(&raw mut (*ep).fid, command, std::ptr::null_mut()))
}

/// `fi_setopt` of an endpoint.
pub unsafe fn setopt(ep: *mut fid_ep, name: c_int, value: *const c_void, len: usize) -> c_int {
    through!(
        fi_ops_ep,
        (*ep).ops,
        setopt(&raw mut (*ep).fid, FI_OPT_ENDPOINT as c_int, name, value, len)
    )
}

/// `fi_cancel`.
pub unsafe fn cancel(ep: *mut fid_ep, context: *mut c_void) -> ssize_t {
    through!(fi_ops_ep, (*ep).ops, cancel(&raw mut (*ep).fid, context))
}

/// `fi_getname`.
pub unsafe fn getname(ep: *mut fid_ep, addr: *mut c_void, len: *mut usize) -> c_int {
    through!(fi_ops_cm, (*ep).cm, getname(&raw mut (*ep).fid, addr, len))
}

/// `fi_control` with `FI_GETWAIT` of a completion queue that waits on a descriptor.
pub unsafe fn cq_wait_fd(cq: *mut fid_cq, fd: *mut c_int) -> c_int {
    let command = FI_GETWAIT as c_int;
    through!(fi_ops, (*cq).fid.ops, control(&raw mut (*cq).fid, command, fd.cast()))
}

/// `fi_cq_read`.
pub unsafe fn cq_read(cq: *mut fid_cq, entries: *mut c_void, count: usize) -> ssize_t {
    through!(fi_ops_cq, (*cq).ops, read(cq, entries, count))
}

/// `fi_cq_readfrom`.
pub unsafe fn cq_readfrom(
    cq: *mut fid_cq,
    entries: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> ssize_t {
    through!(fi_ops_cq, (*cq).ops, readfrom(cq, entries, count, sources))
}

/// `fi_cq_readerr`. There must be room for 8 bytes behind the entry, which has the name of a sender
/// more from interface version 1.20 on.
pub unsafe fn cq_readerr(cq: *mut fid_cq, entry: *mut fi_cq_err_entry, flags: u64) -> ssize_t {
    through!(fi_ops_cq, (*cq).ops, readerr(cq, entry, flags))
}

/// `fi_cq_strerror` with a buffer; null if the provider has no words for it.
pub unsafe fn cq_strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    data: *const c_void,
    buf: *mut std::ffi::c_char,
    len: usize,
) -> *const std::ffi::c_char {
    match function!(fi_ops_cq, (*cq).ops, strerror) {
        // SAFETY: as all calls here, by the contract of this module.
        Some(function) => unsafe { function(cq, prov_errno, data, buf, len) },
        None => std::ptr::null(),
    }
}

/// `fi_av_insert` of one address.
pub unsafe fn av_insert(av: *mut fid_av, addr: *const c_void, fi_addr: *mut fi_addr_t) -> c_int {
    through!(fi_ops_av, (*av).ops, insert(av, addr, 1, fi_addr, 0, std::ptr::null_mut()))
}

/// `fi_av_remove` of one address.
pub unsafe fn av_remove(av: *mut fid_av, fi_addr: *mut fi_addr_t) -> c_int {
    through!(fi_ops_av, (*av).ops, remove(av, fi_addr, 1, 0))
}

/// `fi_mr_regattr`.
pub unsafe fn mr_regattr(
    domain: *mut fid_domain,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    through!(fi_ops_mr, (*domain).mr, regattr(&raw mut (*domain).fid, attr, flags, mr))
}

/// `fi_mr_bind`.
pub unsafe fn mr_bind(mr: *mut fid_mr, object: *mut fid, flags: u64) -> c_int {
    through!(fi_ops, (*mr).fid.ops, bind(&raw mut (*mr).fid, object, flags))
}

/// `fi_mr_enable`.
pub unsafe fn mr_enable(mr: *mut fid_mr) -> c_int {
    let command = FI_ENABLE as c_int;
    through!(fi_ops, (*mr).fid.ops, control(&raw mut (*mr).fid, command, std::ptr::null_mut()))
}

/// `fi_recv`.
pub unsafe fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    from: fi_addr_t,
    context: *mut c_void,
) -> ssize_t {
    through!(fi_ops_msg, (*ep).msg, recv(ep, buf, len, desc, from, context))
}

/// `fi_recvmsg`.
pub unsafe fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> ssize_t {
    through!(fi_ops_msg, (*ep).msg, recvmsg(ep, msg, flags))
}

/// `fi_sendmsg`.
pub unsafe fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> ssize_t {
    through!(fi_ops_msg, (*ep).msg, sendmsg(ep, msg, flags))
}

/// `fi_injectdata`.
pub unsafe fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
) -> ssize_t {
    through!(fi_ops_msg, (*ep).msg, injectdata(ep, buf, len, data, to))
}

/// `fi_trecv`.
pub unsafe fn trecv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> ssize_t {
    through!(fi_ops_tagged, (*ep).tagged, recv(ep, buf, len, desc, from, tag, ignore, context))
}

/// `fi_tsend`.
pub unsafe fn tsend(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> ssize_t {
    through!(fi_ops_tagged, (*ep).tagged, send(ep, buf, len, desc, to, tag, context))
}

/// `fi_tsendmsg`.
pub unsafe fn tsendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> ssize_t {
    through!(fi_ops_tagged, (*ep).tagged, sendmsg(ep, msg, flags))
}

/// `fi_tinject`.
pub unsafe fn tinject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    tag: u64,
) -> ssize_t {
    through!(fi_ops_tagged, (*ep).tagged, inject(ep, buf, len, to, tag))
}

/// `fi_readmsg`.
pub unsafe fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> ssize_t {
    through!(fi_ops_rma, (*ep).rma, readmsg(ep, msg, flags))
}

/// `fi_writemsg`.
pub unsafe fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> ssize_t {
    through!(fi_ops_rma, (*ep).rma, writemsg(ep, msg, flags))
}
