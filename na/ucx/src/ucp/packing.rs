//! Chunks that UCX fetches out of memory by itself when it has room for them, over shared memory.
//!
//! Over shared memory UCX copies every message into a buffer of the receiver. So a chunk that we
//! copied for it before would be copied twice on this side. A chunk that is longer than such a
//! buffer would be put together by UCX on the other side, in memory that it allocates: one more
//! copy. Together that took as long again as the two copies that are needed.
//!
//! So the buffers are as long as chunks there, and UCX gets the address of a slot, not of the
//! memory, with a datatype of ours: it asks for the bytes ([`pack`]) when it has a buffer. That is
//! before the call returns, as long as the receiver keeps up. A chunk that waits in UCX keeps the
//! memory meanwhile. When its transfer is given up, or the peer is gone, the slot lets go of the
//! memory at once; the chunk that UCX sends in its place names no transfer, so it is skipped.

use std::ffi::c_void;

use ucx_sys::ucp_generic_dt_ops_t;

use crate::operations::slots::Pinned;

/// Bytes of data in a chunk, at most.
pub(crate) const PACKED_BYTES: usize = 32 << 10;

/// Bytes of the buffers that UCX has for shared memory: a chunk with our header and UCX's fits.
///
/// UCX's own value is 8256. Of what a chunk costs beside the copies, much is waiting for lines that
/// the other core has just written, once for each chunk. It cannot be more than 65535: that is how
/// UCX counts.
const BUFFER_BYTES: usize = PACKED_BYTES + 64;

/// Places in the queue of an endpoint, each of which has a buffer: together as much memory as with
/// UCX's own value, 64. More of it costs page faults of each peer, within its writes; and one that
/// is killed there leaves a place behind that is never filled, which blocks the queue.
const PLACES: usize = 16;

/// Buffers that UCX makes at a time. It needs one more than there are places; its own value, 512,
/// is memory that is never used.
const BUFFERS: usize = 24;

/// Settings of UCX, unless the environment has others. Both sides need the same two first ones: UCX
/// does not check that.
pub(crate) fn settings() -> [(&'static str, String); 3] {
    [
        ("MM_FIFO_SIZE", PLACES.to_string()),
        ("MM_SEG_SIZE", BUFFER_BYTES.to_string()),
        ("MM_RX_BUFS_GROW", BUFFERS.to_string()),
    ]
}

/// Returns a fingerprint of the settings that have to be the same on both sides. A side with other
/// settings would write beyond the other side's buffers, or wait for a place of the queue that the
/// other side does not use.
pub(crate) fn queues() -> u16 {
    let [places, buffer_bytes, _] = settings().map(|(name, value)| {
        let set = std::env::var_os(format!("UCX_{name}"));
        set.map_or(value, |set| set.to_string_lossy().into_owned())
    });
    fingerprint(&format!("{places},{buffer_bytes}"))
}

/// The FNV-1a hash, folded.
fn fingerprint(text: &str) -> u16 {
    let hash = text
        .bytes()
        .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash >> 16) as u16 ^ hash as u16
}

/// The functions by which UCX gets at a chunk; the state of each chunk is the slot's [`Pinned`].
pub(crate) const OPERATIONS: ucp_generic_dt_ops_t = ucp_generic_dt_ops_t {
    start_pack: Some(start_pack),
    start_unpack: None,
    packed_size: Some(packed_size),
    pack: Some(pack),
    unpack: None,
    finish: Some(finish),
};

/// # Safety
///
/// Only as a callback of UCX, with what was given to it as buffer.
unsafe extern "C" fn start_pack(
    _context: *mut c_void,
    buffer: *const c_void,
    _count: usize,
) -> *mut c_void {
    buffer.cast_mut()
}

/// # Safety
///
/// Only as a callback of UCX, with a [`Pinned`] as its state.
unsafe extern "C" fn packed_size(state: *mut c_void) -> usize {
    // SAFETY: the slot's, which lives until the end of the request; only shared references exist.
    unsafe { &*state.cast::<Pinned>() }.packed_bytes()
}

/// # Safety
///
/// Only as a callback of UCX, with a [`Pinned`] as its state, and a destination of so many bytes.
unsafe extern "C" fn pack(
    state: *mut c_void,
    offset: usize,
    destination: *mut c_void,
    max: usize,
) -> usize {
    // SAFETY: the slot's, which lives until the end of the request; only shared references exist.
    let pinned = unsafe { &*state.cast::<Pinned>() };
    // SAFETY: a buffer that UCX has claimed for this message, mapped and so initialised; nobody
    // else of this process uses it before the return.
    let out = unsafe { std::slice::from_raw_parts_mut(destination.cast::<u8>(), max) };
    pinned.pack(offset, out);
    max
}

/// # Safety
///
/// Only as a callback of UCX.
unsafe extern "C" fn finish(_state: *mut c_void) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_for_the_queues_is_that_of_the_page() {
        // docs/wire-ucx.md, 1.
        assert_eq!(fingerprint("16,32832"), 64479);
        assert_ne!(fingerprint("64,32832"), 64479);
        assert_ne!(fingerprint("16,8256"), 64479);
    }
}
