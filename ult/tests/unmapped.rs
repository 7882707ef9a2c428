//! Libraries for networks notice when a stack goes away, of which they may have registered a part.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod common;

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use common::{on, shared};

/// What a hook has seen: where memory went away, and how much.
static SEEN: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// `ucm_event_t` of UCX's ucm.h, as its event of memory that goes away fills it in.
#[repr(C)]
struct Unmapped {
    address: *mut c_void,
    size: usize,
}

type Callback = unsafe extern "C" fn(event: c_int, of: *const Unmapped, arg: *mut c_void);
type SetHandler = unsafe extern "C" fn(
    events: c_int,
    priority: c_int,
    callback: Callback,
    arg: *mut c_void,
) -> i8;

/// # Safety
///
/// Only as a callback of UCX.
unsafe extern "C" fn note(_: c_int, of: *const Unmapped, _: *mut c_void) {
    // SAFETY: UCX hands a live description.
    let of = unsafe { &*of };
    // There is room: who allocates may unmap.
    let mut seen = SEEN.lock().unwrap();
    if seen.len() < seen.capacity() {
        seen.push((of.address.addr(), of.size));
    }
}

/// Watches memory that goes away, as UCX does for its cache of registrations. `false`: there is no
/// UCX.
fn watch() -> bool {
    const UNMAPPED: c_int = 1 << 17;
    SEEN.lock().unwrap().reserve(10_000);
    // It brings libucm, which cannot be opened before it.
    // SAFETY: runs the initialisers of the libraries, which are made for that.
    let library = unsafe { libc::dlopen(c"libucs.so.0".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return false;
    }
    // SAFETY: a library that was opened, and stays.
    let function = unsafe { libc::dlsym(library, c"ucm_set_event_handler".as_ptr()) };
    assert!(!function.is_null());
    // SAFETY: the function of that name, as ucm.h declares it.
    let set_handler = unsafe { std::mem::transmute::<*mut c_void, SetHandler>(function) };
    // SAFETY: the callback needs no argument, and stays.
    let status = unsafe { set_handler(UNMAPPED, 0, note, std::ptr::null_mut()) };
    assert_eq!(status, 0);
    true
}

/// Whether the hook has seen that memory go away, whole.
fn has_seen(address: usize, len: usize) -> bool {
    let seen = SEEN.lock().unwrap();
    seen.iter().any(|(at, size)| *at <= address && address + len <= at + size)
}

#[test]
fn the_end_of_a_stack_is_seen_by_who_keeps_registrations() {
    if !watch() {
        return println!("SKIPPED: there is no libucs.so.0");
    }
    let (runtime, pool) = shared(1);
    let address = on(&pool, || {
        let here = std::hint::black_box([1_u8; 64]);
        here.as_ptr().addr()
    });
    runtime.shutdown().unwrap();
    assert!(has_seen(address, 64));
}
