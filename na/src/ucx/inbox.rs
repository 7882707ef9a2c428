//! Where UCX's callbacks leave what has happened.
//!
//! UCX calls back from within calls of the worker, so a callback must not touch what the caller of
//! that call has borrowed. It gets the [`Inbox`] only, whose state nobody borrows across a call of
//! the worker. Messages are matched here; all else becomes an [`Event`], which the driver handles
//! after the call.

use std::cell::{RefCell, RefMut};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;

use ucx_sys::*;

use super::peer::PeerRef;
use super::slots::Pinned;
use super::transfers::CHUNK_BYTES;
use super::wire::CHUNK_HEADER_BYTES;
use crate::cheap::Cheap;
use crate::matching::{Arrived, Kind, Matcher};
use crate::{Addr, Arrival, Completion, Tag};

pub(super) type AmCallback = unsafe extern "C" fn(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t;

/// Bytes of the header of an unexpected message: its tag, 8 bytes, as in Mercury.
const HEADER_BYTES: usize = 8;

/// Longest control message that is taken, bytes: more than a hello ever has.
const CONTROL_BYTES_MAX: usize = 1024;

/// Longest chunk that is taken, bytes.
const DATA_BYTES_MAX: usize = CHUNK_BYTES + CHUNK_HEADER_BYTES;

/// What a callback saw.
pub(super) enum Event {
    /// Somebody asks for a connection.
    Connection(ucp_conn_request_h),
    /// A connection has failed, or was ended by the peer.
    Failed(ucp_ep_h, ucs_status_t),
    /// The peer broke a rule.
    Broke(ucp_ep_h, String),
    /// The peer says something about the two of us.
    Control(ucp_ep_h, Vec<u8>),
    /// A chunk of a transfer.
    Data(ucp_ep_h, Vec<u8>),
    /// A message came before the hello was looked at.
    Message(ucp_ep_h, Tag, Vec<u8>),
    /// The operation in a slot is over; with the length, for a receive.
    Finished { slot: u32, status: ucs_status_t, len: usize },
}

/// A connection, for those who send through it.
#[derive(Default)]
pub(super) struct Link {
    /// Who it is, once greeted: the number in the driver, and as messages name it.
    pub(super) peer: Option<(usize, Addr)>,
    /// Messages that came before.
    early: u32,
}

/// What a peer may send, and has sent, in one session.
#[derive(Default)]
pub(super) struct Window {
    pub(super) session: u64,
    /// Unexpected messages that no receive has taken.
    untaken: u32,
    /// Messages that were taken and not yet reported to the sender, by kind.
    owed: [u32; 2],
    is_due: bool,
}

/// What callbacks write.
pub(super) struct State {
    pub(super) matcher: Matcher,
    pub(super) done: VecDeque<Completion>,
    pub(super) events: VecDeque<Event>,
    pub(super) links: HashMap<usize, Link, Cheap>,
    /// By the number of the peer.
    pub(super) windows: Vec<Window>,
    /// Peers to tell that their messages were taken.
    pub(super) due: Vec<usize>,
}

/// See the module's documentation.
pub(super) struct Inbox {
    ucp: &'static Ucp,
    message_bytes_max: usize,
    /// Messages of a kind that a peer may have on the way or waiting here.
    window: u32,
    state: RefCell<State>,
}

/// The place of `kind` in pairs.
pub(super) fn place(kind: Kind) -> usize {
    usize::from(kind == Kind::Expected)
}

impl State {
    /// A receive has taken a message of `from`.
    pub(super) fn taken(&mut self, kind: Kind, from: &Addr, window: u32) {
        let Some(&PeerRef { index, session, .. }) = from.state::<PeerRef>() else { return };
        let Some(own) = self.windows.get_mut(index).filter(|own| own.session == session) else {
            return;
        };
        if kind == Kind::Unexpected {
            own.untaken = own.untaken.saturating_sub(1);
        }
        own.owed[place(kind)] += 1;
        if own.owed[place(kind)] >= window.div_ceil(2) && !own.is_due {
            own.is_due = true;
            self.due.push(index);
        }
    }

    /// What to report to the peer, by kind.
    pub(super) fn settle(&mut self, peer: usize) -> [u32; 2] {
        let own = &mut self.windows[peer];
        own.is_due = false;
        std::mem::take(&mut own.owed)
    }

    /// A new session with the peer, or its first, with `session` as our number for it.
    pub(super) fn begin(&mut self, peer: usize, session: u64) {
        if self.windows.len() <= peer {
            self.windows.resize_with(peer + 1, Window::default);
        }
        let is_due = self.windows[peer].is_due;
        self.windows[peer] = Window { session, is_due, ..Window::default() };
    }

    /// Whether there is something to do for a poll.
    pub(super) fn is_busy(&self) -> bool {
        !self.done.is_empty() || !self.events.is_empty() || !self.due.is_empty()
    }

    fn message(&mut self, endpoint: ucp_ep_h, tag: Tag, bytes: &[u8], window: u32) {
        let Some(link) = self.links.get_mut(&(endpoint as usize)) else { return };
        let Some((peer, from)) = &link.peer else {
            link.early += 1;
            let event = match link.early > window {
                true => Event::Broke(endpoint, "it sends messages and no hello".into()),
                false => Event::Message(endpoint, tag, bytes.to_vec()),
            };
            self.events.push_back(event);
            return;
        };
        let own = &mut self.windows[*peer];
        if own.untaken >= window {
            let text = format!("it sent more than {window} messages ahead of their receives");
            self.events.push_back(Event::Broke(endpoint, text));
            return;
        }
        own.untaken += 1;
        match self.matcher.arrive(Kind::Unexpected, from, tag, bytes) {
            Arrived::Completed(completion) => {
                let from = from.clone();
                self.done.push_back(completion);
                self.taken(Kind::Unexpected, &from, window);
            }
            Arrived::Held => {}
            // It holds what the window lets in.
            Arrived::Full => debug_assert!(false, "the matcher has no bound of its own"),
        }
    }
}

impl Inbox {
    pub(super) fn new(
        ucp: &'static Ucp,
        message_bytes_max: usize,
        window: u32,
        matcher: Matcher,
    ) -> Self {
        let state = RefCell::new(State {
            matcher,
            done: VecDeque::new(),
            events: VecDeque::new(),
            links: HashMap::default(),
            windows: Vec::new(),
            due: Vec::new(),
        });
        Self { ucp, message_bytes_max, window, state }
    }

    /// The state; not across a call of the worker.
    #[inline]
    pub(super) fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Messages of a kind that a peer may have on the way or waiting here.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// Hands over a message that came before its sender was known.
    pub(super) fn message(&self, endpoint: ucp_ep_h, tag: Tag, bytes: &[u8]) {
        self.state().message(endpoint, tag, bytes, self.window);
    }

    /// Ends a receive of `kind` with what has come.
    pub(super) fn report(&self, kind: Kind, completion: Completion) {
        let mut state = self.state();
        if let Completion::Recv { result: Ok(Arrival { from, .. }), .. } = &completion {
            let from = from.clone();
            state.taken(kind, &from, self.window);
        }
        state.done.push_back(completion);
    }

    fn finished(&self, pinned: &Pinned, request: *mut c_void, status: ucs_status_t, len: usize) {
        pinned.finish();
        self.state().events.push_back(Event::Finished { slot: pinned.slot(), status, len });
        // SAFETY: the request whose callback this is; nobody uses it from now on (`finish`).
        unsafe { self.ucp.ucp_request_free(request) };
    }
}

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
/// Only as a callback of UCX, with an inbox as its argument.
unsafe fn sender(param: *const ucp_am_recv_param_t) -> Option<(ucp_ep_h, u64)> {
    // SAFETY: UCX hands a live description.
    let param = unsafe { &*param };
    let has_sender = param.recv_attr & u64::from(UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    has_sender.then_some((param.reply_ep, param.recv_attr))
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

/// An unexpected message.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(super) unsafe extern "C" fn on_message(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: contract of this function.
    let inbox = unsafe { inbox(arg) };
    // SAFETY: the same.
    let Some((from, flags)) = (unsafe { sender(param) }) else { return UCS_OK };
    // SAFETY: UCX hands so many bytes, which stay until the return.
    let header = unsafe { bytes(header, header_length) };
    let broke = |text: String| inbox.state().events.push_back(Event::Broke(from, text));
    let tag = <[u8; HEADER_BYTES]>::try_from(header).map(u64::from_le_bytes);
    let tag = tag.ok().and_then(|tag| u32::try_from(tag).ok());
    if flags & u64::from(UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 {
        broke("it offers a message by rendezvous".into());
    } else if length > inbox.message_bytes_max {
        broke(format!("a message of {length} bytes, {} allowed", inbox.message_bytes_max));
    } else if let Some(tag) = tag {
        // SAFETY: as for the header: the data came with the message.
        let bytes = unsafe { bytes(data, length) };
        inbox.message(from, Tag(tag), bytes);
    } else {
        broke("a message without a tag of 32 bits".into());
    }
    UCS_OK
}

/// Something about the two endpoints.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(super) unsafe extern "C" fn on_control(
    arg: *mut c_void,
    _header: *const c_void,
    _header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: contract of this function.
    let inbox = unsafe { inbox(arg) };
    // SAFETY: the same.
    let Some((from, flags)) = (unsafe { sender(param) }) else { return UCS_OK };
    let event = match length {
        _ if flags & u64::from(UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 => {
            Event::Broke(from, "it offers a control message by rendezvous".into())
        }
        0..=CONTROL_BYTES_MAX => {
            // SAFETY: UCX hands so many bytes, which stay until the return.
            Event::Control(from, unsafe { bytes(data, length) }.to_vec())
        }
        _ => Event::Broke(from, format!("a control message of {length} bytes")),
    };
    inbox.state().events.push_back(event);
    UCS_OK
}

/// A chunk of a transfer.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(super) unsafe extern "C" fn on_data(
    arg: *mut c_void,
    _header: *const c_void,
    _header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: contract of this function.
    let inbox = unsafe { inbox(arg) };
    // SAFETY: the same.
    let Some((from, flags)) = (unsafe { sender(param) }) else { return UCS_OK };
    let event = match length {
        _ if flags & u64::from(UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 => {
            Event::Broke(from, "it offers a chunk by rendezvous".into())
        }
        0..=DATA_BYTES_MAX => {
            // SAFETY: UCX hands so many bytes, which stay until the return.
            Event::Data(from, unsafe { bytes(data, length) }.to_vec())
        }
        _ => Event::Broke(from, format!("a chunk of {length} bytes")),
    };
    inbox.state().events.push_back(event);
    UCS_OK
}

/// Somebody asks for a connection.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(super) unsafe extern "C" fn on_connection(request: ucp_conn_request_h, arg: *mut c_void) {
    // SAFETY: contract of this function.
    let inbox = unsafe { inbox(arg) };
    inbox.state().events.push_back(Event::Connection(request));
}

/// A connection has ended.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(super) unsafe extern "C" fn on_failure(
    arg: *mut c_void,
    endpoint: ucp_ep_h,
    status: ucs_status_t,
) {
    // SAFETY: contract of this function.
    let inbox = unsafe { inbox(arg) };
    inbox.state().events.push_back(Event::Failed(endpoint, status));
}

/// A send, a flush or a close is over.
///
/// # Safety
///
/// Only as a callback of UCX, with a [`Pinned`] as its argument.
pub(super) unsafe extern "C" fn on_sent(
    request: *mut c_void,
    status: ucs_status_t,
    pinned: *mut c_void,
) {
    // SAFETY: the slot's, which lives until this event is handled; only shared references exist.
    let pinned = unsafe { &*pinned.cast::<Pinned>() };
    // SAFETY: as for `inbox`: a slot is made with the inbox of the worker.
    let inbox = unsafe { inbox(pinned.inbox().cast_mut().cast()) };
    inbox.finished(pinned, request, status, 0);
}

/// A receive is over.
///
/// # Safety
///
/// As for [`on_sent`].
pub(super) unsafe extern "C" fn on_received(
    request: *mut c_void,
    status: ucs_status_t,
    info: *const ucp_tag_recv_info_t,
    pinned: *mut c_void,
) {
    // SAFETY: as in `on_sent`.
    let pinned = unsafe { &*pinned.cast::<Pinned>() };
    // SAFETY: as in `on_sent`.
    let inbox = unsafe { inbox(pinned.inbox().cast_mut().cast()) };
    // SAFETY: null, or valid until the return.
    let len = unsafe { info.as_ref() }.map_or(0, |info| info.length);
    inbox.finished(pinned, request, status, if status == UCS_OK { len } else { 0 });
}
