//! Stacks that are unmapped, as the rest of the process sees them: network libraries, which may
//! have registered a part of them, and the kernel, which allows only so many mappings.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod common;

use std::ffi::{c_int, c_void};
use std::process::Command;
use std::sync::Mutex;

use common::{on, shared, test_path, within};
use ult::{PoolSpec, Runtime, XstreamSpec};

/// The calls that a hook has seen: where memory went away, and how much.
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

/// Returns whether the hook has seen that memory go away, whole.
fn has_seen(address: usize, len: usize) -> bool {
    let seen = SEEN.lock().unwrap();
    seen.iter().any(|(at, size)| *at <= address && address + len <= at + size)
}

/// Set in a process of this program that is the child of a test.
const CHILD: &str = "ULT_UNMAPPED_CHILD";

/// In a process of its own, whose other test is not there: UCX changes the code of functions that
/// other threads may be in.
#[test]
fn the_end_of_a_stack_is_seen_by_who_keeps_registrations() {
    if std::env::var_os(CHILD).is_some() {
        return see_the_end_of_a_stack();
    }
    let test = test_path!("the_end_of_a_stack_is_seen_by_who_keeps_registrations");
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test.as_str(), "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    let skipped = said.lines().filter_map(|line| Some(&line[line.find("SKIPPED: ")?..]));
    skipped.for_each(|line| println!("{line}"));
}

fn see_the_end_of_a_stack() {
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

/// As many mappings as the kernel allows: every other page of an area is protected differently.
struct Crowd {
    start: *mut c_void,
    len: usize,
}

impl Crowd {
    fn new() -> Self {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        let max: usize = text.trim().parse().unwrap();
        let page = rustix::param::page_size();
        let len = (max + 2) * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, 0, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let is_split = |at: usize| {
            let place = start.wrapping_byte_add(at * page);
            // SAFETY: a page of this mapping, which nobody uses.
            unsafe { libc::mprotect(place, page, libc::PROT_READ) == 0 }
        };
        assert!(!(1..=max).step_by(2).all(is_split), "the limit is reached");
        Self { start, len }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // SAFETY: its own mapping, which nobody uses.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// Returns whether the kernel makes guards that do not split a mapping (Linux 6.13).
fn has_guards_within_mappings() -> bool {
    const MADV_GUARD_INSTALL: c_int = 102;
    let page = rustix::param::page_size();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), page, prot, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let crowd = Crowd { start, len: page };
    // SAFETY: a page of its own, which nobody uses.
    unsafe { libc::madvise(crowd.start, page, MADV_GUARD_INSTALL) == 0 }
}

/// Stacks that cannot be unmapped are neither forgotten nor keep their memory.
#[test]
fn a_stack_that_the_kernel_does_not_take_back_is_used_again_and_goes_later() {
    const ULTS: usize = 400;
    if !has_guards_within_mappings() {
        return println!("SKIPPED: each stack is a mapping of its own, and can always be unmapped");
    }
    within(|| {
        let runtime = Runtime::builder()
            .stack_cache_max(0)
            .pool(PoolSpec::new("p"))
            .xstream(XstreamSpec::new("x").pools(["p"]))
            .start()
            .unwrap();
        let pool = runtime.pool("p").unwrap();
        let start = || pool.spawn(ult::park).unwrap();
        let mut units: Vec<_> = (0..ULTS).map(|_| Some(start())).collect();
        on(&pool, || ());
        let crowd = Crowd::new();
        let mut end = |from: usize| {
            for unit in units.iter_mut().skip(from).step_by(2).filter_map(Option::take) {
                unit.cancel();
                assert!(unit.join().is_err());
            }
            on(&pool, || ());
        };
        // Holes: each needs one more mapping than there may be.
        end(0);
        let left = runtime.stacks();
        assert!(left > ULTS * 3 / 4, "the kernel took {} of {ULTS} stacks", ULTS - left);
        // They are used again.
        let mut more: Vec<_> = (0..ULTS / 4).map(|_| Some(start())).collect();
        on(&pool, || ());
        assert!(runtime.stacks() <= left + 1, "{} after {left}", runtime.stacks());
        end(1);
        for unit in more.iter_mut().filter_map(Option::take) {
            unit.cancel();
            assert!(unit.join().is_err());
        }
        drop(crowd);
        common::wait_until("all are unmapped", || runtime.stacks() == 0);
        runtime.shutdown().unwrap();
    });
}
