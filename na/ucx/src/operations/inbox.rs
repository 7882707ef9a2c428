//! The inbox, in which UCX's callbacks leave what has happened.
//!
//! UCX calls back (`callbacks.rs`) from within calls of the worker, so a callback must not touch
//! what the caller of that call has borrowed. It gets the [`Inbox`] only, whose state nobody
//! borrows across a call of the worker. Messages are matched here; all else becomes an [`Event`],
//! which the driver handles after the call.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{HashMap, VecDeque};

use ucx_sys::{Ucp, ucp_conn_request_h, ucp_ep_h, ucp_worker_h, ucs_status_t};

use super::offer::Offer;
use super::peer_ref::PeerRef;
use super::transfer_sinks::{Incomings, Taken, TransferSinks};
use crate::wire::Chunk;
use na_core::base::cheap::IntBuildHasher;
use na_core::matching::{Arrived, Kind, Matcher};
use na_core::{Addr, Arrival, Completion, Tag};

/// A request for a connection, which is to be accepted or turned away.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnRequest {
    pub(crate) handle: ucp_conn_request_h,
    /// The listener of the worker at which it came.
    pub(crate) listener: usize,
}

/// Something that a callback saw.
pub(crate) enum Event {
    /// Somebody asks for a connection.
    Connection(ConnRequest),
    /// An open connection has brought something.
    Conn(ucp_ep_h, ConnEvent),
    /// The operation in a slot is over.
    Finished(u32, ucs_status_t),
}

/// Something that a connection brings.
pub(crate) enum ConnEvent {
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
pub(crate) struct Failing {
    pub(crate) link: ucp_ep_h,
    pub(crate) status: ucs_status_t,
    /// How many polls more its last messages are waited for.
    pub(crate) turns: u32,
}

/// A connection, as the code that sends through it needs it.
#[derive(Default)]
pub(crate) struct Link {
    /// The peer, once greeted: its number in the driver, and its address as messages name it.
    pub(crate) peer: Option<(usize, Addr)>,
    /// True if the other side began it.
    pub(crate) accepted: bool,
    /// Messages that came before, by kind.
    early: [u32; 2],
}

impl Link {
    /// Returns a connection that the other side began.
    pub(crate) fn accepted() -> Self {
        Self { accepted: true, ..Self::default() }
    }
}

/// Messages and transfers from a peer in one session.
#[derive(Default)]
pub(crate) struct Window {
    pub(crate) session: u64,
    /// Messages that no receive has taken, by kind.
    untaken: [u32; 2],
    /// Messages that were taken and not yet reported to the sender, by kind.
    owed: [u32; 2],
    is_due: bool,
    /// Something has come since somebody asked last.
    pub(crate) heard: bool,
    /// The destinations of its transfers.
    pub(crate) incoming: Incomings,
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
pub(crate) struct InboxState {
    pub(crate) matcher: Matcher,
    pub(crate) done: VecDeque<Completion>,
    pub(crate) events: VecDeque<Event>,
    /// The open connections. UCX gives a handle to a later connection once its own is closed, so
    /// nothing here may refer to a closed one: see [`note`](Self::note) and
    /// [`forget`](Self::forget).
    pub(crate) links: HashMap<usize, Link, IntBuildHasher>,
    pub(crate) failing: Vec<Failing>,
    /// The windows, by the number of the peer.
    pub(crate) windows: Vec<Window>,
    /// Peers to tell that their messages were taken.
    pub(crate) due: Vec<usize>,
    /// Bytes of transfers have come since somebody asked last.
    pub(crate) has_written: bool,
}

/// See the module's documentation.
pub(crate) struct Inbox {
    pub(crate) ucp: &'static Ucp,
    pub(crate) message_bytes_max: usize,
    /// Messages of a kind that a peer may have on the way or waiting here.
    pub(crate) window: u32,
    state: RefCell<InboxState>,
    /// May be told to keep offers; null: may not.
    pub(crate) keeper: Cell<ucp_worker_h>,
}

/// The place of `kind` in pairs.
pub(crate) fn place(kind: Kind) -> usize {
    usize::from(kind == Kind::Expected)
}

impl InboxState {
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
    pub(crate) fn note(&mut self, link: ucp_ep_h, news: ConnEvent) {
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
    pub(crate) fn forget(&mut self, link: ucp_ep_h) -> VecDeque<Event> {
        self.links.remove(&(link as usize));
        self.failing.retain(|failing| failing.link != link);
        let is_its = |event: &Event| matches!(event, Event::Conn(of, _) if *of == link);
        let (its, others) = std::mem::take(&mut self.events).into_iter().partition(is_its);
        self.events = others;
        its
    }

    /// Returns whether it is known that a connection has failed.
    pub(crate) fn is_failing(&self, link: ucp_ep_h) -> bool {
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
    pub(crate) fn settle(&mut self, peer: usize) -> [u32; 2] {
        let own = &mut self.windows[peer];
        own.is_due = false;
        std::mem::take(&mut own.owed)
    }

    /// A new session with the peer, or its first, with `session` as our number for it.
    pub(crate) fn begin(&mut self, peer: usize, session: u64) {
        if self.windows.len() <= peer {
            self.windows.resize_with(peer + 1, Window::default);
        }
        let is_due = self.windows[peer].is_due;
        self.windows[peer] = Window { session, is_due, ..Window::default() };
    }

    /// Returns the destination of a transfer that a peer writes.
    pub(crate) fn incoming(
        &mut self,
        peer: usize,
        put: bool,
        id: u64,
    ) -> Option<&mut TransferSinks> {
        self.windows.get_mut(peer)?.incoming.get(put, id)
    }

    /// A peer may write nothing more of a transfer.
    pub(crate) fn end_incoming(&mut self, peer: usize, put: bool, id: u64) {
        if let Some(own) = self.windows.get_mut(peer) {
            own.incoming.end(put, id);
        }
    }

    /// A connection brings a chunk.
    pub(crate) fn chunk(&mut self, link: ucp_ep_h, bytes: &[u8]) {
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
    pub(crate) fn is_busy(&self) -> bool {
        !self.done.is_empty()
            || !self.events.is_empty()
            || !self.failing.is_empty()
            || !self.due.is_empty()
    }

    pub(crate) fn message(
        &mut self,
        link: ucp_ep_h,
        kind: Kind,
        tag: Tag,
        bytes: &[u8],
        window: u32,
    ) {
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
    pub(crate) fn new(
        ucp: &'static Ucp,
        message_bytes_max: usize,
        window: u32,
        matcher: Matcher,
    ) -> Self {
        let (state, keeper) = (RefCell::new(InboxState::new(matcher)), Cell::default());
        Self { ucp, message_bytes_max, window, state, keeper }
    }

    /// The state; not across a call of the worker.
    #[inline]
    pub(crate) fn state(&self) -> RefMut<'_, InboxState> {
        self.state.borrow_mut()
    }

    /// Hands over a message.
    pub(crate) fn message(&self, link: ucp_ep_h, kind: Kind, tag: Tag, bytes: &[u8]) {
        self.state().message(link, kind, tag, bytes, self.window);
    }

    /// A receive of `kind` has taken a message that was there.
    pub(crate) fn report_early(&self, kind: Kind, completion: Completion) {
        let mut state = self.state();
        if let Completion::Recv { result: Ok(Arrival { from, .. }), .. } = &completion {
            state.taken(kind, from, self.window);
        }
        state.done.push_back(completion);
    }
}

#[cfg(test)]
mod tests {
    use ucx_sys::UCS_ERR_CONNECTION_RESET;

    use super::*;
    use crate::state::peer::Peer;
    use na_core::MsgBuf;
    use na_core::OpId;

    const WINDOW: u32 = 4;

    /// A handle that nobody uses.
    fn handle(number: usize) -> ucp_ep_h {
        std::ptr::without_provenance_mut(number)
    }

    /// A peer with number 0, connected by a handle, with its address.
    fn connected(link: ucp_ep_h) -> (InboxState, Addr) {
        let mut state = InboxState::new(Matcher::new(1 << 20, 0));
        let from = Peer::new(1, "ucx+tcp://10.0.0.1:7".into(), None, Vec::new(), 5).addr(9, 0, 5);
        state.begin(0, 5);
        state
            .links
            .insert(link as usize, Link { peer: Some((0, from.clone())), ..Link::default() });
        (state, from)
    }

    fn broke(state: &InboxState) -> bool {
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
