//! UCX's callbacks, which leave what has happened in the [`Inbox`].
//!
//! UCX calls back from within calls of the worker, so a callback touches nothing but the state of
//! the inbox, which nobody borrows across a call of the worker.

use std::ffi::c_void;
use std::ptr::NonNull;

use ucx_sys::*;

use crate::operations::inbox::{ConnEvent, ConnRequest, Event, Inbox};
use crate::operations::offer::Offer;
use crate::operations::slots::Pinned;
use crate::wire::{
    AM_CONTROL, AM_DATA, AM_PIECE, AM_UNEXPECTED, CHUNK_BYTES, CHUNK_HEADER_BYTES,
    CONTROL_BYTES_MAX, Chunk, HELLO_TAG,
};
use na_core::Tag;
use na_core::matching::Kind;

pub(crate) type AmCallback = unsafe extern "C" fn(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t;

/// Longest chunk that is taken, bytes.
const DATA_BYTES_MAX: usize = CHUNK_BYTES + CHUNK_HEADER_BYTES;

/// The inbox that was given to UCX with a callback.
///
/// # Safety
///
/// `arg` is the inbox that `Worker::open` was given.
unsafe fn inbox<'a>(arg: *mut c_void) -> &'a Inbox {
    // SAFETY: that inbox outlives the worker, whose call has made this callback; only shared
    // references to it exist.
    unsafe { &*arg.cast::<Inbox>() }
}

/// # Safety
///
/// `data` is null, or valid for so many bytes as long as the result is used.
unsafe fn bytes<'a>(data: *const c_void, len: usize) -> &'a [u8] {
    match data.is_null() || len == 0 {
        true => &[],
        // SAFETY: contract of this function.
        false => unsafe { std::slice::from_raw_parts(data.cast(), len) },
    }
}

/// The tag of a message, whose header it is, 8 bytes as in Mercury.
fn tag_of(header: &[u8]) -> Option<Tag> {
    let tag = <[u8; 8]>::try_from(header).ok().map(u64::from_le_bytes)?;
    u32::try_from(tag).ok().map(Tag)
}

/// An active message with the number `ID`.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(crate) unsafe extern "C" fn on_am<const ID: u32>(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: contract of this function.
    let inbox = unsafe { inbox(arg) };
    // SAFETY: UCX hands a live description.
    let param = unsafe { &*param };
    let is = |flag: u32| param.recv_attr & u64::from(flag) != 0;
    if !is(UCP_AM_RECV_ATTR_FIELD_REPLY_EP) {
        return UCS_OK;
    }
    let (from, is_offer) = (param.reply_ep, is(UCP_AM_RECV_ATTR_FLAG_RNDV));
    // SAFETY: UCX hands so many bytes, which stay until the return.
    let header = unsafe { bytes(header, header_length) };
    if ID == AM_PIECE {
        let desc = NonNull::new(data).filter(|_| is_offer);
        // SAFETY: contract of this function, and what UCX handed over.
        return unsafe { piece_came(inbox, from, Chunk::split(header), desc, length) };
    }
    let is_control = ID == AM_CONTROL || (ID == AM_UNEXPECTED && header == HELLO_TAG);
    let (what, max) = match ID {
        _ if is_control => ("control message", CONTROL_BYTES_MAX),
        AM_DATA => ("chunk", DATA_BYTES_MAX),
        _ => ("message", inbox.message_bytes_max),
    };
    let mut state = inbox.state();
    if is_offer {
        state.note(from, ConnEvent::Broke(format!("it offers a {what} by rendezvous")));
        return UCS_OK;
    }
    if length > max {
        let text = format!("a {what} of {length} bytes, {max} allowed");
        state.note(from, ConnEvent::Broke(text));
        return UCS_OK;
    }
    // SAFETY: as for the header.
    let data = unsafe { bytes(data, length) };
    let kind = if ID == AM_UNEXPECTED { Kind::Unexpected } else { Kind::Expected };
    match tag_of(header) {
        _ if is_control => state.note(from, ConnEvent::Control(data.to_vec())),
        _ if ID == AM_DATA => state.chunk(from, data),
        Some(tag) => state.message(from, kind, tag, data, inbox.window),
        None => state.note(from, ConnEvent::Broke("a message without a tag of 32 bits".into())),
    }
    UCS_OK
}

/// A piece of a transfer, offered by rendezvous as `desc`.
///
/// # Safety
///
/// Only within the callback of UCX that offers so many bytes.
unsafe fn piece_came(
    inbox: &Inbox,
    from: ucp_ep_h,
    header: Result<(Chunk, &[u8]), &str>,
    desc: Option<NonNull<c_void>>,
    length: usize,
) -> ucs_status_t {
    let (worker, mut state) = (inbox.keeper.get(), inbox.state());
    let (Some(desc), Ok((piece, []))) = (desc, header) else {
        state.note(from, ConnEvent::Broke("a piece of a transfer that is none".into()));
        return UCS_OK;
    };
    // What is neither received nor kept UCX refuses by itself.
    if worker.is_null() || !state.links.contains_key(&(from as usize)) {
        return UCS_OK;
    }
    // SAFETY: UCX offers so many bytes, and keeps what is answered so. Events are dropped
    // after the call of the worker, by who has the driver; and before it is destroyed, see
    // `end_worker`.
    let offer = unsafe { Offer::new(inbox.ucp, worker, desc, length) };
    state.note(from, ConnEvent::Piece(piece, offer));
    UCS_INPROGRESS
}

/// Somebody asks for a connection, at that listener of the worker.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(crate) unsafe extern "C" fn on_connection<const LISTENER: usize>(
    handle: ucp_conn_request_h,
    arg: *mut c_void,
) {
    // SAFETY: contract of this function.
    let inbox = unsafe { inbox(arg) };
    let request = ConnRequest { handle, listener: LISTENER };
    inbox.state().events.push_back(Event::Connection(request));
}

/// A connection has ended.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(crate) unsafe extern "C" fn on_failure(
    arg: *mut c_void,
    endpoint: ucp_ep_h,
    status: ucs_status_t,
) {
    // SAFETY: contract of this function.
    let inbox = unsafe { inbox(arg) };
    inbox.state().note(endpoint, ConnEvent::Failed(status));
}

/// A send, a flush or a close is over.
///
/// # Safety
///
/// Only as a callback of UCX at the end of a request, with a [`Pinned`] as its argument.
pub(crate) unsafe extern "C" fn on_sent(
    request: *mut c_void,
    status: ucs_status_t,
    pinned: *mut c_void,
) {
    // SAFETY: the slot's, which lives until this event is handled; only shared references exist.
    let pinned = unsafe { &*pinned.cast::<Pinned>() };
    // SAFETY: as for `inbox`: a slot is made with the inbox of the worker.
    let inbox = unsafe { &*pinned.inbox() };
    pinned.finish();
    inbox.state().events.push_back(Event::Finished(pinned.slot(), status));
    // SAFETY: the request whose callback this is; nobody uses it from now on (`finish`).
    unsafe { inbox.ucp.ucp_request_free(request) };
}

/// A piece of a transfer was received, or will not be.
///
/// # Safety
///
/// As for [`on_sent`].
pub(crate) unsafe extern "C" fn on_received(
    request: *mut c_void,
    status: ucs_status_t,
    _length: usize,
    pinned: *mut c_void,
) {
    // SAFETY: contract of this function.
    unsafe { on_sent(request, status, pinned) };
}
