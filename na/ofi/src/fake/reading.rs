//! Completions, as they are read and waited for.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::ssize_t;
use ofi_sys::{Version, raw};

use super::Call;
use super::objects::{Object, functions};
use super::traffic::Done;

functions! { OF_CQ: fi_ops_cq {
    read: Some(read), readfrom: Some(readfrom), readerr: Some(readerr), sread: None,
    sreadfrom: None, signal: None, strerror: Some(strerror),
} }

type Cq = Object<raw::fid_cq>;

/// The first interface version of which the entry of an error names the sender, behind the rest.
const NAMES_SENDER_SINCE: Version = Version { major: 1, minor: 20 };

unsafe extern "C" fn read(cq: *mut raw::fid_cq, entries: *mut c_void, count: usize) -> ssize_t {
    // SAFETY: the caller's; no sources are asked for.
    unsafe { readfrom(cq, entries, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    cq: *mut raw::fid_cq,
    entries: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> ssize_t {
    // SAFETY: a function of completion queues.
    let this = unsafe { Cq::of(cq) };
    let mut state = this.state();
    let errno = state.refused(Call::CqRead);
    if let Some(errno) = errno {
        return -errno as ssize_t;
    }
    state.mend(this.number);
    let count = if state.holds { count.min(state.lets) } else { count };
    let Some(queue) = state.queues.get_mut(&this.number).filter(|_| count > 0) else {
        return -libc::EAGAIN as ssize_t;
    };
    let good = queue.done.iter().take(count).take_while(|done| done.error.is_none()).count();
    if good == 0 {
        let errno = if queue.done.is_empty() { raw::FI_EAGAIN } else { raw::FI_EAVAIL };
        return -(errno as ssize_t);
    }
    let read: Vec<Done> = queue.done.drain(..good).collect();
    state.lets = state.lets.saturating_sub(good);
    for (at, done) in read.into_iter().enumerate() {
        state.read(&done);
        let entry = raw::fi_cq_tagged_entry {
            op_context: std::ptr::with_exposed_provenance_mut(done.context),
            flags: done.flags,
            len: done.len,
            buf: done.place.0.cast(),
            data: done.data,
            tag: done.tag,
        };
        // SAFETY: the caller's places, as many as it says.
        unsafe {
            entries.cast::<raw::fi_cq_tagged_entry>().add(at).write(entry);
            if !sources.is_null() {
                sources.add(at).write(done.source);
            }
        }
    }
    good as ssize_t
}

unsafe extern "C" fn readerr(
    cq: *mut raw::fid_cq,
    entry: *mut raw::fi_cq_err_entry,
    _flags: u64,
) -> ssize_t {
    // SAFETY: a function of completion queues.
    let this = unsafe { Cq::of(cq) };
    let mut state = this.state();
    let queue = state.queues.get_mut(&this.number);
    let Some(queue) = queue.filter(|queue| queue.done.first().is_some_and(|d| d.error.is_some()))
    else {
        return -libc::EAGAIN as ssize_t;
    };
    let done = queue.done.remove(0);
    state.lets = state.lets.saturating_sub(1);
    state.read(&done);
    let ((errno, prov_errno), data) = done.error.unwrap_or_default();
    // SAFETY: the caller's entry, with as much room for data as it says.
    unsafe {
        let room = (*entry).err_data_size.min(data.len());
        std::ptr::copy_nonoverlapping(data.as_ptr(), (*entry).err_data.cast(), room);
        (*entry).err_data_size = room;
        (*entry).op_context = std::ptr::with_exposed_provenance_mut(done.context);
        (*entry).flags = done.flags;
        (*entry).len = done.len;
        (*entry).buf = done.place.0.cast();
        (*entry).data = done.data;
        (*entry).tag = done.tag;
        (*entry).olen = 0;
        (*entry).err = errno;
        if state.api >= NAMES_SENDER_SINCE.number() {
            entry.add(1).cast::<u64>().write(done.source);
        }
        (*entry).prov_errno = prov_errno;
    }
    1
}

unsafe extern "C" fn strerror(
    _cq: *mut raw::fid_cq,
    prov_errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let words = format!("the device says {prov_errno}\0");
    let fits = CStr::from_bytes_until_nul(words.as_bytes()).is_ok() && words.len() <= len;
    if !fits {
        return std::ptr::null();
    }
    // SAFETY: the caller's buffer, with so much room.
    unsafe { std::ptr::copy_nonoverlapping(words.as_ptr().cast(), buf, words.len()) };
    buf
}

pub(super) unsafe extern "C" fn trywait(
    _fabric: *mut raw::fid_fabric,
    objects: *mut *mut raw::fid,
    _count: c_int,
) -> c_int {
    // SAFETY: the caller's one object, a completion queue.
    let this = unsafe { Cq::of(*objects) };
    let mut state = this.state();
    let holds = state.holds;
    let Some(queue) = state.queues.get_mut(&this.number) else { return -libc::EINVAL };
    if !queue.done.is_empty() && !holds {
        return -libc::EAGAIN;
    }
    match &queue.bell {
        Some(bell) => {
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
            0
        }
        None => -libc::EINVAL,
    }
}
