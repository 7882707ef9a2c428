//! The inbox, in which UCX's callbacks leave what has happened.
//!
//! UCX calls back from within calls of the worker, so a callback must not touch what the caller of
//! that call has borrowed. It gets the [`Inbox`] only, whose state nobody borrows across a call of
//! the worker. Messages are matched here; all else becomes an [`Event`], which the driver handles
//! after the call.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::ptr::NonNull;

use ucx_sys::*;

use super::offer::Offer;
use super::peer::PeerRef;
use super::slots::Pinned;
use super::transfer_sinks::{Incomings, Taken, TransferSinks};
use super::transfers::CHUNK_BYTES;
use super::wire::{CHUNK_HEADER_BYTES, Chunk};
use super::worker::HELLO_TAG;
use crate::base::cheap::IntBuildHasher;
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

/// Bytes of the header of a message: its tag, 8 bytes, as in Mercury.
const HEADER_BYTES: usize = 8;

/// Longest control message that is taken, bytes: more than a hello ever has.
pub(super) const CONTROL_BYTES_MAX: usize = 1024;

/// Longest chunk that is taken, bytes.
const DATA_BYTES_MAX: usize = CHUNK_BYTES + CHUNK_HEADER_BYTES;

/// Something that a callback saw.
pub(super) enum Event {
    /// Somebody asks for a connection.
    Connection(ucp_conn_request_h),
    /// An open connection has brought something.
    Conn(ucp_ep_h, ConnEvent),
    /// The operation in a slot is over.
    Finished(u32, ucs_status_t),
}

/// Something that a connection brings.
pub(super) enum ConnEvent {
    /// It has failed, or was ended by the peer.
    Failed(ucs_status_t),
    /// The peer broke a rule.
    Broke(String),
    /// The peer says something about the two of us.
    Control(Vec<u8>),
    /// All of a transfer is there: its last chunk.
    Whole(Chunk),
    /// A chunk of a transfer that is not under way.
    Stray(Chunk),
    /// A piece of a transfer, to be received: where it belongs, and what is offered.
    Piece(Chunk, Offer),
    /// A message that came before the hello was looked at.
    Message(Kind, Tag, Vec<u8>),
}

/// A connection that has failed.
pub(super) struct Failing {
    pub(super) link: ucp_ep_h,
    pub(super) status: ucs_status_t,
    /// How many polls more its last messages are waited for.
    pub(super) turns: u32,
}

/// A connection, as the code that sends through it needs it.
#[derive(Default)]
pub(super) struct Link {
    /// The peer, once greeted: its number in the driver, and its address as messages name it.
    pub(super) peer: Option<(usize, Addr)>,
    /// True if the other side began it.
    pub(super) accepted: bool,
    /// Messages that came before, by kind.
    early: [u32; 2],
}

impl Link {
    /// Returns a connection that the other side began.
    pub(super) fn accepted() -> Self {
        Self { accepted: true, ..Self::default() }
    }
}

/// Messages and transfers from a peer in one session.
#[derive(Default)]
pub(super) struct Window {
    pub(super) session: u64,
    /// Messages that no receive has taken, by kind.
    untaken: [u32; 2],
    /// Messages that were taken and not yet reported to the sender, by kind.
    owed: [u32; 2],
    is_due: bool,
    /// Something has come since somebody asked last.
    pub(super) heard: bool,
    /// The destinations of its transfers.
    pub(super) incoming: Incomings,
}

impl Window {
    /// A receive has taken a message of the kind at `at`, or it was thrown away; whether the peer
    /// is to be told of those, from now on.
    fn taken(&mut self, at: usize, window: u32) -> bool {
        self.untaken[at] = self.untaken[at].saturating_sub(1);
        self.owed[at] += 1;
        let is_due = self.owed[at] >= window.div_ceil(2) && !self.is_due;
        self.is_due |= is_due;
        is_due
    }
}

/// The state that callbacks write.
pub(super) struct State {
    pub(super) matcher: Matcher,
    pub(super) done: VecDeque<Completion>,
    pub(super) events: VecDeque<Event>,
    /// The open connections. UCX gives a handle to a later connection once its own is closed, so
    /// nothing here may refer to a closed one: see [`note`](Self::note) and
    /// [`forget`](Self::forget).
    pub(super) links: HashMap<usize, Link, IntBuildHasher>,
    pub(super) failing: Vec<Failing>,
    /// The windows, by the number of the peer.
    pub(super) windows: Vec<Window>,
    /// Peers to tell that their messages were taken.
    pub(super) due: Vec<usize>,
    /// Bytes of transfers have come since somebody asked last.
    pub(super) has_written: bool,
}

/// See the module's documentation.
pub(super) struct Inbox {
    ucp: &'static Ucp,
    message_bytes_max: usize,
    /// Messages of a kind that a peer may have on the way or waiting here.
    window: u32,
    state: RefCell<State>,
    /// May be told to keep offers; null: may not.
    keeper: Cell<ucp_worker_h>,
}

/// The place of `kind` in pairs.
pub(super) fn place(kind: Kind) -> usize {
    usize::from(kind == Kind::Expected)
}

impl State {
    fn new(matcher: Matcher) -> Self {
        Self {
            matcher,
            done: VecDeque::new(),
            events: VecDeque::new(),
            links: HashMap::default(),
            failing: Vec::new(),
            windows: Vec::new(),
            due: Vec::new(),
            has_written: false,
        }
    }

    /// Notes what a connection has brought, if it is open.
    fn note(&mut self, link: ucp_ep_h, news: ConnEvent) {
        let Some(known) = self.links.get(&(link as usize)) else { return };
        if let Some((peer, _)) = &known.peer
            && matches!(news, ConnEvent::Control(_) | ConnEvent::Piece(..))
        {
            self.windows[*peer].heard = true;
        }
        self.events.push_back(Event::Conn(link, news));
    }

    /// A connection is closed, with all that it has brought and nobody has looked at; to be dropped
    /// when the state is not borrowed: UCX may call back.
    #[must_use]
    pub(super) fn forget(&mut self, link: ucp_ep_h) -> VecDeque<Event> {
        self.links.remove(&(link as usize));
        self.failing.retain(|failing| failing.link != link);
        let is_its = |event: &Event| matches!(event, Event::Conn(of, _) if *of == link);
        let (its, others) = std::mem::take(&mut self.events).into_iter().partition(is_its);
        self.events = others;
        its
    }

    /// Returns whether it is known that a connection has failed.
    pub(super) fn is_failing(&self, link: ucp_ep_h) -> bool {
        let is_its_end = |event: &Event| match event {
            Event::Conn(of, ConnEvent::Failed(_)) => *of == link,
            _ => false,
        };
        self.failing.iter().any(|failing| failing.link == link)
            || self.events.iter().any(is_its_end)
    }

    /// A receive has taken a message of `from` that was there.
    fn taken(&mut self, kind: Kind, from: &Addr, window: u32) {
        let Some(&PeerRef { index, .. }) = from.state::<PeerRef>() else { return };
        let own = self.windows.get_mut(index);
        if let Some(own) = own.filter(|own| !from.is_of_another_session(own.session))
            && own.taken(place(kind), window)
        {
            self.due.push(index);
        }
    }

    /// Takes the numbers of messages to report to the peer as taken, by kind.
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

    /// Returns the destination of a transfer that a peer writes.
    pub(super) fn incoming(
        &mut self,
        peer: usize,
        put: bool,
        id: u64,
    ) -> Option<&mut TransferSinks> {
        self.windows.get_mut(peer)?.incoming.get(put, id)
    }

    /// A peer may write nothing more of a transfer.
    pub(super) fn end_incoming(&mut self, peer: usize, put: bool, id: u64) {
        if let Some(own) = self.windows.get_mut(peer) {
            own.incoming.end(put, id);
        }
    }

    /// A connection brings a chunk.
    fn chunk(&mut self, link: ucp_ep_h, bytes: &[u8]) {
        let Some(known) = self.links.get(&(link as usize)) else { return };
        let taken = match &known.peer {
            None => Err("it sends data before it says hello"),
            Some((peer, _)) => {
                let own = &mut self.windows[*peer];
                (own.heard, self.has_written) = (true, true);
                own.incoming.take(bytes)
            }
        };
        let news = match taken {
            Ok(Taken::Part) => return,
            Ok(Taken::Whole(chunk)) => ConnEvent::Whole(chunk),
            Ok(Taken::Stray(chunk)) => ConnEvent::Stray(chunk),
            Err(rule) => ConnEvent::Broke(rule.into()),
        };
        self.note(link, news);
    }

    /// Returns whether there is something to do for a poll.
    pub(super) fn is_busy(&self) -> bool {
        !self.done.is_empty()
            || !self.events.is_empty()
            || !self.failing.is_empty()
            || !self.due.is_empty()
    }

    fn message(&mut self, link: ucp_ep_h, kind: Kind, tag: Tag, bytes: &[u8], window: u32) {
        let Some(known) = self.links.get_mut(&(link as usize)) else { return };
        let at = place(kind);
        let Some((peer, from)) = &known.peer else {
            known.early[at] += 1;
            let news = match known.early[at] > window {
                true => ConnEvent::Broke("it sends messages and no hello".into()),
                false => ConnEvent::Message(kind, tag, bytes.to_vec()),
            };
            return self.note(link, news);
        };
        let own = &mut self.windows[*peer];
        own.heard = true;
        if own.untaken[at] >= window {
            let text = format!("it sent more than {window} messages ahead of their receives");
            return self.note(link, ConnEvent::Broke(text));
        }
        own.untaken[at] += 1;
        let taken = match self.matcher.arrive(kind, from, tag, bytes) {
            Arrived::Completed(completion) => {
                self.done.push_back(completion);
                true
            }
            Arrived::Held => false,
            Arrived::Discarded => true,
            // It holds what the window lets in.
            Arrived::Full => {
                debug_assert!(false, "the matcher has no bound of its own");
                false
            }
        };
        if taken && own.taken(at, window) {
            self.due.push(*peer);
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
        let (state, keeper) = (RefCell::new(State::new(matcher)), Cell::default());
        Self { ucp, message_bytes_max, window, state, keeper }
    }

    /// Offers may stay with this worker until they were looked at; null: with none any more.
    pub(super) fn keep_at(&self, worker: ucp_worker_h) {
        self.keeper.set(worker);
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

    /// Hands over a message.
    pub(super) fn message(&self, link: ucp_ep_h, kind: Kind, tag: Tag, bytes: &[u8]) {
        self.state().message(link, kind, tag, bytes, self.window);
    }

    /// A receive of `kind` has taken a message that was there.
    pub(super) fn report_early(&self, kind: Kind, completion: Completion) {
        let mut state = self.state();
        if let Completion::Recv { result: Ok(Arrival { from, .. }), .. } = &completion {
            state.taken(kind, from, self.window);
        }
        state.done.push_back(completion);
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

/// An active message as UCX hands it over.
struct Came {
    header: (*const c_void, usize),
    data: (*const c_void, usize),
    param: *const ucp_am_recv_param_t,
}

/// An unexpected message, or a hello.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(super) unsafe extern "C" fn on_unexpected(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: UCX hands so many bytes, which stay until the return.
    if unsafe { bytes(header, header_length) } == HELLO_TAG {
        // SAFETY: contract of this function.
        return unsafe { on_control(arg, header, header_length, data, length, param) };
    }
    let came = Came { header: (header, header_length), data: (data, length), param };
    // SAFETY: contract of this function.
    unsafe { message_came(arg, Kind::Unexpected, came) }
}

/// An expected message.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(super) unsafe extern "C" fn on_expected(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    let came = Came { header: (header, header_length), data: (data, length), param };
    // SAFETY: contract of this function.
    unsafe { message_came(arg, Kind::Expected, came) }
}

/// # Safety
///
/// Only within a callback of UCX, with an inbox as its argument, and what UCX handed over.
#[inline]
unsafe fn message_came(arg: *mut c_void, kind: Kind, came: Came) -> ucs_status_t {
    // SAFETY: contract of this function.
    let inbox = unsafe { inbox(arg) };
    // SAFETY: the same.
    let Some((from, flags)) = (unsafe { sender(came.param) }) else { return UCS_OK };
    // SAFETY: UCX hands so many bytes, which stay until the return.
    let header = unsafe { bytes(came.header.0, came.header.1) };
    let length = came.data.1;
    let broke = |text: String| inbox.state().note(from, ConnEvent::Broke(text));
    let tag = <[u8; HEADER_BYTES]>::try_from(header).map(u64::from_le_bytes);
    let tag = tag.ok().and_then(|tag| u32::try_from(tag).ok());
    if flags & u64::from(UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 {
        broke("it offers a message by rendezvous".into());
    } else if length > inbox.message_bytes_max {
        broke(format!("a message of {length} bytes, {} allowed", inbox.message_bytes_max));
    } else if let Some(tag) = tag {
        // SAFETY: as for the header: the data came with the message.
        let bytes = unsafe { bytes(came.data.0, length) };
        inbox.message(from, kind, Tag(tag), bytes);
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
    let came = Came { header: (std::ptr::null(), 0), data: (data, length), param };
    let keep = |state: &mut State, from, bytes: &[u8]| {
        state.note(from, ConnEvent::Control(bytes.to_vec()));
    };
    // SAFETY: contract of this function.
    unsafe { bytes_came(arg, came, ("control message", CONTROL_BYTES_MAX), keep) }
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
    let came = Came { header: (std::ptr::null(), 0), data: (data, length), param };
    let write = |state: &mut State, from, bytes: &[u8]| state.chunk(from, bytes);
    // SAFETY: contract of this function.
    unsafe { bytes_came(arg, came, ("chunk", DATA_BYTES_MAX), write) }
}

/// A piece of a transfer, offered by rendezvous.
///
/// # Safety
///
/// Only as a callback of UCX, with an inbox as its argument.
pub(super) unsafe extern "C" fn on_piece(
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
    let (worker, mut state) = (inbox.keeper.get(), inbox.state());
    let offered = flags & u64::from(UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    let desc = NonNull::new(data).filter(|_| offered);
    let (Some(desc), Ok((piece, []))) = (desc, Chunk::split(header)) else {
        state.note(from, ConnEvent::Broke("a piece of a transfer that is none".into()));
        return UCS_OK;
    };
    // What is neither received nor kept UCX refuses by itself.
    if worker.is_null() || !state.links.contains_key(&(from as usize)) {
        return UCS_OK;
    }
    // SAFETY: UCX offers so many bytes, and keeps the offer for who says so. Events are dropped
    // after the call of the worker, by who has the driver; and before it is destroyed, see
    // `end_worker`.
    let offer = unsafe { Offer::new(inbox.ucp, worker, desc, length) };
    state.note(from, ConnEvent::Piece(piece, offer));
    UCS_INPROGRESS
}

/// `max` bytes at most, for `take`.
///
/// # Safety
///
/// Only within a callback of UCX, with an inbox as its argument, and what UCX handed over.
unsafe fn bytes_came(
    arg: *mut c_void,
    came: Came,
    (what, max): (&str, usize),
    take: impl FnOnce(&mut State, ucp_ep_h, &[u8]),
) -> ucs_status_t {
    // SAFETY: contract of this function.
    let inbox = unsafe { inbox(arg) };
    // SAFETY: the same.
    let Some((from, flags)) = (unsafe { sender(came.param) }) else { return UCS_OK };
    let (data, length) = came.data;
    let mut state = inbox.state();
    if flags & u64::from(UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 {
        state.note(from, ConnEvent::Broke(format!("it offers a {what} by rendezvous")));
    } else if length > max {
        state.note(from, ConnEvent::Broke(format!("a {what} of {length} bytes")));
    } else {
        // SAFETY: UCX hands so many bytes, which stay until the return.
        take(&mut state, from, unsafe { bytes(data, length) });
    }
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
    inbox.state().note(endpoint, ConnEvent::Failed(status));
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
    // SAFETY: contract of this function.
    unsafe { ended(request, status, pinned) };
}

/// A piece of a transfer was received, or will not be.
///
/// # Safety
///
/// Only as a callback of UCX, with a [`Pinned`] as its argument.
pub(super) unsafe extern "C" fn on_received(
    request: *mut c_void,
    status: ucs_status_t,
    _length: usize,
    pinned: *mut c_void,
) {
    // SAFETY: contract of this function.
    unsafe { ended(request, status, pinned) };
}

/// # Safety
///
/// Only within a callback of UCX at the end of a request, with a [`Pinned`] as its argument.
unsafe fn ended(request: *mut c_void, status: ucs_status_t, pinned: *mut c_void) {
    // SAFETY: the slot's, which lives until this event is handled; only shared references exist.
    let pinned = unsafe { &*pinned.cast::<Pinned>() };
    // SAFETY: as for `inbox`: a slot is made with the inbox of the worker.
    let inbox = unsafe { inbox(pinned.inbox().cast_mut().cast()) };
    pinned.finish();
    inbox.state().events.push_back(Event::Finished(pinned.slot(), status));
    // SAFETY: the request whose callback this is; nobody uses it from now on (`finish`).
    unsafe { inbox.ucp.ucp_request_free(request) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MsgBuf;
    use crate::OpId;
    use crate::ucx::peer::Peer;

    const WINDOW: u32 = 4;

    /// A handle that nobody uses.
    fn handle(number: usize) -> ucp_ep_h {
        std::ptr::without_provenance_mut(number)
    }

    /// A peer with number 0, connected by a handle, with its address.
    fn connected(link: ucp_ep_h) -> (State, Addr) {
        let mut state = State::new(Matcher::new(1 << 20, 0));
        let from = Peer::new(1, "ucx+tcp://10.0.0.1:7".into(), None, Vec::new(), 5).addr(9, 0, 5);
        state.begin(0, 5);
        state
            .links
            .insert(link as usize, Link { peer: Some((0, from.clone())), ..Link::default() });
        (state, from)
    }

    fn broke(state: &State) -> bool {
        state.events.iter().any(|event| matches!(event, Event::Conn(_, ConnEvent::Broke(_))))
    }

    #[test]
    fn a_closed_connection_leaves_nothing_to_the_next_of_its_handle() {
        let (closed, open) = (handle(16), handle(32));
        let (mut state, _) = connected(open);
        state.links.insert(closed as usize, Link::default());
        for link in [closed, open, handle(48)] {
            state.note(link, ConnEvent::Failed(UCS_ERR_CONNECTION_RESET));
            state.note(link, ConnEvent::Control(vec![6]));
            state.failing.push(Failing { link, status: UCS_ERR_CONNECTION_RESET, turns: 1 });
        }
        assert_eq!(state.events.len(), 4, "nothing of who is not connected");
        drop(state.forget(closed));
        // The next connection has the same handle.
        state.links.insert(closed as usize, Link::default());
        assert!(state.failing.iter().all(|failing| failing.link != closed));
        assert_eq!(state.failing.len(), 2);
        let of_open = |event: &Event| matches!(event, Event::Conn(link, _) if *link == open);
        assert_eq!(state.events.len(), 2);
        assert!(state.events.iter().all(of_open));
    }

    #[test]
    fn a_peer_that_sends_beyond_its_window_breaks_a_rule() {
        for kind in [Kind::Unexpected, Kind::Expected] {
            let link = handle(16);
            let (mut state, _) = connected(link);
            for _ in 0..WINDOW {
                state.message(link, kind, Tag(1), b"one", WINDOW);
            }
            assert!(!broke(&state), "{kind:?}");
            state.message(link, kind, Tag(1), b"one", WINDOW);
            assert!(broke(&state), "{kind:?}");
        }
    }

    #[test]
    fn messages_that_were_canceled_are_reported_as_taken() {
        let link = handle(16);
        let (mut state, from) = connected(link);
        for number in 0..100 {
            let op = OpId(number.into());
            assert!(
                state
                    .matcher
                    .post_expected(op, &from, Tag(number), MsgBuf::with_capacity(8))
                    .is_none()
            );
            assert!(state.matcher.cancel(op).is_some());
            state.message(link, Kind::Expected, Tag(number), b"late", WINDOW);
            if let Some(peer) = state.due.pop() {
                assert_eq!(state.settle(peer), [0, WINDOW / 2]);
            }
        }
        assert!(!broke(&state));
        assert_eq!(state.windows[0].untaken, [0; 2]);
    }

    #[test]
    fn a_receive_that_names_an_older_address_gives_the_credit_back() {
        let link = handle(16);
        let (mut state, _) = connected(link);
        let looked_up =
            Peer::new(1, "ucx+tcp://10.0.0.1:7".into(), None, Vec::new(), 5).addr(9, 0, 0);
        let buf = MsgBuf::with_capacity(8);
        assert!(state.matcher.post_expected(OpId(1), &looked_up, Tag(1), buf).is_none());
        state.message(link, Kind::Expected, Tag(1), b"one", WINDOW);
        assert_eq!(state.done.len(), 1);
        assert_eq!(state.windows[0].owed, [0, 1]);
    }
}
