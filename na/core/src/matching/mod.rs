//! Matching of messages with receives, shared by the transports.
//!
//! - Imports: `base`, `address`, `memory`, `message`, `endpoint`.
//! - Reading order: this file · `lists.rs` · `many.rs` (receives for many messages) ·
//!   `given_up.rs` (canceled receives whose messages may still come).
//!
//! One [`Matcher`] per endpoint, behind that endpoint's lock. It knows four sets:
//!
//! | set | order | leaves when |
//! |---|---|---|
//! | posted unexpected receives | posted first, served first; those for many messages last | a message of any peer arrives, or so many |
//! | early unexpected messages | arrival, over all peers | a receive is posted |
//! | posted expected receives | posted first, per (peer, tag) | that message arrives |
//! | early expected messages | arrival, per (peer, tag) | that receive is posted; its peer ends |
//!
//! Either the receives or the messages of one kind (and, for expected ones, of one key) are empty.
//! A receive for many messages gets a buffer for each when it comes, as long as that is.
//!
//! # Bound
//!
//! An early message is a copy, counted against its peer with `EARLY_OVERHEAD` on top of its
//! length. At the bound [`arrive`](Matcher::arrive) takes nothing and says [`Arrived::Full`]: the
//! transport leaves the message where it is and stops reading that peer. It asks
//! [`has_room`](Matcher::has_room) again when room may have appeared. Room appears only when a
//! posted receive takes an early message, so it always comes with a completion. The receive that a
//! refused message itself waits for may be posted as well, which
//! [`take_refused`](Matcher::take_refused) tells; a transport that leaves some refused messages
//! untried then says so ([`still_refuses`](Matcher::still_refuses)). The messages that a dead peer
//! left in the transport are finite: [`lift_bound`](Matcher::lift_bound) lets them in, so that the
//! death itself need not wait for receives.
//!
//! A crowd of peers may be bounded too: all of them ([`of_all_at_most`](Matcher::of_all_at_most)),
//! and those of each [`Principal`] ([`of_each_at_most`](Matcher::of_each_at_most)), so that one
//! host does not take the room of others. At these bounds peers are held back as at their own.
//! Messages that dead peers left in the transport cannot wait: beyond these bounds and
//! [`left_bytes_max`](crate::OpenOptions::left_bytes_max) together they are thrown away.
//!
//! Messages of dead peers are bounded as well, all of them together: a peer that connects, sends
//! and leaves again and again must not fill the memory of an endpoint that is slow to receive.
//! Beyond [`left_bytes_max`](crate::OpenOptions::left_bytes_max) the peer that left last loses its
//! unexpected messages. A successor under the same address takes over what its predecessor left,
//! once it has brought a message of its own within the bound of one peer.
//!
//! # Canceled expected receives
//!
//! A caller that cancels an expected receive gave up on a message that may still come, and would
//! occupy its peer's bound for ever. So a cancel is remembered: a message of that peer and tag
//! which finds no posted receive is discarded, once per cancel. That memory is bounded too, by runs
//! of tags (see `given_up.rs`): while a peer is stopped a caller may give up on any number of
//! calls.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

use self::given_up::GivenUp;
use self::lists::{Key, Lists};
use self::many::Many;
use self::shares::{ShareKey, Shares};
use crate::base::cheap::IntBuildHasher;
use crate::memory::handles::zeros;
use crate::{Addr, Arrival, Completion, Error, LargeBuffers, MsgBuf, OpId, Principal, Tag};

mod given_up;
mod lists;
mod many;
mod shares;

/// Bytes that an early message costs beside its contents.
const EARLY_OVERHEAD: usize = 64;

/// The two kinds of message.
///
/// ```
/// use na_core::matching::{Arrived, Kind, Matcher};
/// use na_core::{Addr, MsgBuf, OpId, Tag};
///
/// let peer = Addr::new("na+x://peer", Addr::unique_endpoint_id(), 1, ());
/// let mut matcher = Matcher::new(1 << 18, 1 << 24);
/// matcher.post_expected(OpId(1), &peer, Tag(7), MsgBuf::with_capacity(64));
/// // It does not take messages of the other kind.
/// let arrived = matcher.arrive(Kind::Unexpected, &peer, Tag(7), b"request");
/// assert!(matches!(arrived, Arrived::Held));
/// let arrived = matcher.arrive(Kind::Expected, &peer, Tag(7), b"answer");
/// assert!(matches!(arrived, Arrived::Completed(_)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// For the next receive of any source.
    Unexpected,
    /// For the receive that names source and tag.
    Expected,
}

/// The outcome for a message that arrived.
///
/// ```
/// use na_core::matching::{Arrived, Kind, Matcher};
/// use na_core::{Addr, Tag};
///
/// let peer = Addr::new("na+x://peer", Addr::unique_endpoint_id(), 1, ());
/// let mut matcher = Matcher::new(100, 0);
/// let mut arrive = || matcher.arrive(Kind::Unexpected, &peer, Tag(0), &[0; 64]);
/// assert!(matches!(arrive(), Arrived::Held), "one always fits");
/// assert!(matches!(arrive(), Arrived::Full), "no receive, and no room: read no further");
/// ```
#[derive(Debug)]
pub enum Arrived {
    /// A posted receive took it.
    Completed(Completion),
    /// Copied, to wait for its receive.
    Held,
    /// Thrown away, because its receive was canceled.
    Discarded,
    /// Nothing was taken: stop reading this peer until it has room.
    Full,
}

#[derive(Debug)]
struct Posted {
    op: OpId,
    buf: MsgBuf,
    /// Whom it waits for, whose identity it keeps alive; `None` for any source, in a `Claimed`.
    from: Option<Addr>,
}

/// A posted receive that was taken out for a message which is still arriving, or lies in the
/// transport: to fill its buffer takes no lock.
///
/// ```
/// use na_core::matching::{Kind, Matcher};
/// use na_core::{Addr, Completion, MsgBuf, OpId, Tag};
///
/// let peer = Addr::new("na+x://peer", Addr::unique_endpoint_id(), 1, ());
/// let mut matcher = Matcher::new(1 << 18, 1 << 24);
/// matcher.post_expected(OpId(1), &peer, Tag(7), MsgBuf::with_capacity(64));
///
/// // Straight from a socket, without the matcher's lock.
/// let mut claimed = matcher.claim(Kind::Expected, &peer, Tag(7), 6).ok_or("not awaited")?;
/// claimed.room()[..6].copy_from_slice(b"answer");
/// let completion = claimed.received(6, peer, Tag(7));
/// assert!(matches!(completion, Completion::Recv { op: OpId(1), buf, .. } if buf.len() == 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Claimed {
    kind: Kind,
    posted: Posted,
}

impl Claimed {
    /// The receive.
    #[inline]
    pub fn op(&self) -> OpId {
        self.posted.op
    }

    /// The buffer, with room for the message.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        self.posted.buf.spare_mut()
    }

    /// The message, of `len` bytes, is in the buffer.
    #[inline]
    pub fn received(mut self, len: usize, from: Addr, tag: Tag) -> Completion {
        self.posted.buf.set_len(len);
        let Posted { op, buf, .. } = self.posted;
        Completion::Recv { op, buf, result: Ok(Arrival { from, tag }) }
    }

    /// The message, of `len` bytes, still lies in the transport: `fill` copies it to the buffer.
    /// `from` gives its peer's address, which is asked for if the receive does not name it.
    ///
    /// # Panics
    ///
    /// If it is longer than the buffer; transports check lengths against their limit.
    #[inline]
    pub fn fill(
        self,
        from: impl FnOnce() -> Addr,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> (OpId, MsgBuf, Addr) {
        let Posted { op, mut buf, from: named } = self.posted;
        // A receive that names its peer brings the address along.
        let from = named.unwrap_or_else(from);
        fill(&mut buf.spare_mut()[..len]);
        buf.set_len(len);
        (op, buf, from)
    }

    /// The receive ends with `error`.
    pub fn failed(mut self, error: Error) -> Completion {
        self.posted.buf.clear();
        failed(self.posted, error)
    }
}

struct Early {
    from: Addr,
    tag: Tag,
    bytes: Box<[u8]>,
}

#[derive(Default)]
struct EarlyAccount {
    bytes: usize,
    /// The peer is gone and only its last messages are being brought in.
    unbounded: bool,
    /// The peer is gone; its bytes are part of [`Matcher::left_bytes`].
    gone: bool,
    /// The share that its bytes are part of; there since something was held of it first.
    share: Option<ShareKey>,
}

/// Matches messages with receives. See the module's documentation.
///
/// ```
/// use na_core::matching::{Arrived, Kind, Matcher};
/// use na_core::{Addr, Completion, MsgBuf, OpId, Tag};
///
/// let peer = Addr::new("na+x://peer", Addr::unique_endpoint_id(), 1, ());
/// let mut matcher = Matcher::new(1 << 18, 1 << 24);
/// // A message that comes before its receive waits for it.
/// assert!(matches!(matcher.arrive(Kind::Unexpected, &peer, Tag(7), b"early"), Arrived::Held));
/// let completion = matcher.post_unexpected(OpId(1), MsgBuf::with_capacity(64));
/// assert!(matches!(completion, Some(Completion::Recv { buf, .. }) if buf.as_slice() == b"early"));
/// ```
pub struct Matcher {
    early_bytes_max: usize,
    left_bytes_max: usize,
    /// Bytes held of all peers, at most, but for the message that goes beyond.
    all_bytes_max: usize,
    all_bytes: usize,
    shares: Option<Shares>,
    unexpected_posted: VecDeque<(OpId, MsgBuf)>,
    many_posted: Many,
    unexpected_early: VecDeque<Early>,
    expected_posted: Lists<Posted>,
    expected_early: Lists<Early>,
    held: HashMap<u64, EarlyAccount, IntBuildHasher>,
    /// Bytes held of peers that are gone.
    left_bytes: usize,
    given_up: GivenUp,
    /// Messages of peers that are gone that were thrown away.
    dropped: u64,
    /// A message was refused, and no receive has been posted since.
    refused: bool,
    /// Peers whose first expected receive is to be told, and those for which one was posted.
    watched: HashSet<u64, IntBuildHasher>,
    called: Vec<u64>,
    /// Calls of [`awaited`](Self::awaited).
    #[cfg(any(test, feature = "conformance"))]
    pub walks: std::cell::Cell<usize>,
}

impl Matcher {
    /// An empty matcher that holds about `early_bytes_max` bytes of early messages per peer (one
    /// message always fits), and `left_bytes_max` of all peers that are gone.
    pub fn new(early_bytes_max: usize, left_bytes_max: usize) -> Self {
        Self {
            early_bytes_max,
            left_bytes_max,
            all_bytes_max: usize::MAX,
            all_bytes: 0,
            shares: None,
            unexpected_posted: VecDeque::new(),
            many_posted: Many::default(),
            unexpected_early: VecDeque::new(),
            expected_posted: Lists::new(),
            expected_early: Lists::new(),
            held: HashMap::default(),
            left_bytes: 0,
            given_up: GivenUp::default(),
            dropped: 0,
            refused: false,
            watched: HashSet::default(),
            called: Vec::new(),
            #[cfg(any(test, feature = "conformance"))]
            walks: Default::default(),
        }
    }

    /// Holds that much of all peers together: for transports that are not told which peers are
    /// gone, or who they are.
    pub fn of_all_at_most(self, all_bytes_max: usize) -> Self {
        Self { all_bytes_max, ..self }
    }

    /// Holds that much of the peers together that the same principal is behind, as `whose` tells;
    /// it is asked once for each peer of which something is held.
    pub fn of_each_at_most(self, bytes_max: usize, whose: fn(&Addr) -> Principal) -> Self {
        Self { shares: Some(Shares::new(bytes_max, whose)), ..self }
    }

    /// Bytes held of all peers.
    #[cfg(any(test, feature = "conformance"))]
    pub fn early_bytes(&self) -> usize {
        self.all_bytes
    }

    /// Posts a receive for the next unexpected message. `Some`: one had already arrived.
    ///
    /// # Panics
    ///
    /// If that message is longer than the buffer; transports refuse buffers below their limit.
    #[inline]
    pub fn post_unexpected(&mut self, op: OpId, buf: MsgBuf) -> Option<Completion> {
        let Some(early) = self.unexpected_early.pop_front() else {
            self.unexpected_posted.push_back((op, buf));
            return None;
        };
        Some(self.deliver_early(op, buf, early))
    }

    /// Posts a receive for the next `count` unexpected messages, into `buffers`. Returns those of
    /// them that had already arrived.
    pub fn post_many(&mut self, op: OpId, count: usize, buffers: &LargeBuffers) -> Vec<Completion> {
        self.many_posted.post(op, count, buffers);
        let mut ended = Vec::new();
        while let Some(early) = self.unexpected_early.front()
            && let Some((op, buf)) = self.many_posted.take(early.bytes.len())
            && let Some(early) = self.unexpected_early.pop_front()
        {
            ended.push(self.deliver_early(op, buf, early));
        }
        ended
    }

    /// Posts a receive for the next message of `from` with `tag`. `Some`: it had already arrived.
    ///
    /// # Panics
    ///
    /// As [`post_unexpected`](Self::post_unexpected).
    #[inline]
    pub fn post_expected(
        &mut self,
        op: OpId,
        from: &Addr,
        tag: Tag,
        buf: MsgBuf,
    ) -> Option<Completion> {
        let key = Key { peer: from.peer_id(), tag };
        if !self.watched.is_empty() {
            self.tell_of(key.peer);
        }
        let Some(early) = self.expected_early.pop(key) else {
            self.expected_posted.push(key, Posted { op, buf, from: Some(from.clone()) });
            return None;
        };
        Some(self.deliver_early(op, buf, early))
    }

    /// Takes a message of `from`, or refuses it as [`Arrived::Full`].
    ///
    /// # Panics
    ///
    /// If `bytes` is longer than a posted buffer; transports check lengths against their limit.
    #[inline]
    pub fn arrive(&mut self, kind: Kind, from: &Addr, tag: Tag, bytes: &[u8]) -> Arrived {
        let fill = |place: &mut [u8]| place.copy_from_slice(bytes);
        match self.claim(kind, from, tag, bytes.len()) {
            Some(claimed) => {
                let (op, buf, from) = claimed.fill(|| from.clone(), bytes.len(), fill);
                Arrived::Completed(Completion::Recv { op, buf, result: Ok(Arrival { from, tag }) })
            }
            None => self.keep(kind, from, tag, bytes.len(), fill),
        }
    }

    /// Takes a message of `len` bytes that no posted receive waits for: [`claim`](Self::claim),
    /// under the same lock, has found none. `fill` copies it out of the transport.
    #[inline(never)]
    pub fn keep(
        &mut self,
        kind: Kind,
        from: &Addr,
        tag: Tag,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Arrived {
        let key = Key { peer: from.peer_id(), tag };
        if kind == Kind::Expected && self.given_up.take(key) {
            return Arrived::Discarded;
        }
        let (of_peer, unbounded, share) = self
            .held
            .get(&key.peer)
            .map_or((0, false, None), |held| (held.bytes, held.unbounded, held.share));
        // What a dead peer has left cannot wait in the transport.
        let beyond = if unbounded { self.left_bytes_max } else { 0 };
        let of_share = self.shares.as_ref().map_or(0, |shares| shares.bytes(share, from));
        let is_full = (of_peer >= self.early_bytes_max && !unbounded)
            || self.all_bytes >= self.all_bytes_max.saturating_add(beyond)
            || of_share >= self.share_bytes_max().saturating_add(beyond);
        let room = if is_full { None } else { self.room_for(kind, len) };
        let Some(mut bytes) = room else {
            if unbounded {
                self.drop_left(1);
                return Arrived::Discarded;
            }
            self.refused = true;
            return Arrived::Full;
        };
        let cost = len + EARLY_OVERHEAD;
        let held = self.held.entry(key.peer).or_default();
        if std::mem::take(&mut held.gone) {
            // A successor under the same address.
            self.left_bytes -= held.bytes;
        }
        held.bytes += cost;
        self.all_bytes += cost;
        if let Some(shares) = &mut self.shares {
            let share = *held.share.get_or_insert_with(|| shares.join(from));
            shares.charge(share, cost);
        }
        fill(&mut bytes);
        let early = Early { from: from.clone(), tag: key.tag, bytes };
        match kind {
            Kind::Unexpected => self.unexpected_early.push_back(early),
            Kind::Expected => self.expected_early.push(key, early),
        }
        Arrived::Held
    }

    /// Room for an early message of `len` bytes; `None` if there is no such memory.
    fn room_for(&mut self, kind: Kind, len: usize) -> Option<Box<[u8]>> {
        let has_place = match kind {
            Kind::Unexpected => self.unexpected_early.try_reserve(1).is_ok(),
            Kind::Expected => self.expected_early.try_reserve_one(),
        };
        if !has_place || self.held.try_reserve(1).is_err() {
            return None;
        }
        zeros(len).map(Vec::into_boxed_slice)
    }

    fn share_bytes_max(&self) -> usize {
        self.shares.as_ref().map_or(usize::MAX, |shares| shares.bytes_max)
    }

    /// [`claim`](Self::claim) for a message that has only begun. One receive of any source always
    /// stays: a peer that begins a long message and never ends it, on however many connections,
    /// must not keep others from being received. Receives for many messages take none before it is
    /// whole, for the same reason, and so that they end at once when canceled.
    #[inline]
    pub fn claim_ahead(&mut self, kind: Kind, from: &Addr, tag: Tag) -> Option<Claimed> {
        if kind == Kind::Unexpected && self.unexpected_posted.len() < 2 {
            return None;
        }
        // For one message, which has room for any: no length is needed.
        self.claim(kind, from, tag, 0)
    }

    /// Takes out the receive that a message of `len` bytes of `from` is for, if it is posted.
    // Always, so that the parts of what it finds stay in registers.
    #[inline(always)]
    pub fn claim(&mut self, kind: Kind, from: &Addr, tag: Tag, len: usize) -> Option<Claimed> {
        let posted = match kind {
            Kind::Unexpected => {
                let single = self.unexpected_posted.pop_front();
                let (op, buf) = single.or_else(|| self.many_posted.take(len))?;
                Posted { op, buf, from: None }
            }
            Kind::Expected => self.expected_posted.pop(Key { peer: from.peer_id(), tag })?,
        };
        Some(Claimed { kind, posted })
    }

    /// The message of a claimed receive will not come to its end, because of `error`: a receive of
    /// any source takes the next one, the other kind ends. `Some`: it ended, or that one had
    /// already arrived.
    pub fn unclaim(&mut self, mut claimed: Claimed, error: &Error) -> Option<Completion> {
        match claimed.kind {
            Kind::Unexpected => {
                claimed.posted.buf.clear();
                let Posted { op, buf, .. } = claimed.posted;
                if let Some(early) = self.unexpected_early.pop_front() {
                    return Some(self.deliver_early(op, buf, early));
                }
                self.unexpected_posted.push_front((op, buf));
                None
            }
            Kind::Expected => Some(claimed.failed(error.clone())),
        }
    }

    /// Returns whether an expected message of `peer` with `tag` finds its receive, or the cancel of
    /// it.
    #[inline]
    pub fn is_awaited(&self, peer: u64, tag: Tag) -> bool {
        let key = Key { peer, tag };
        self.expected_posted.contains(key) || self.given_up.contains(key)
    }

    /// How many unexpected messages posted receives would take.
    #[inline]
    pub fn receives_of_any(&self) -> usize {
        self.unexpected_posted.len().saturating_add(self.many_posted.left())
    }

    /// Notes that a refused message still waits, so that the next receive has it tried again.
    pub fn still_refuses(&mut self) {
        self.refused = true;
    }

    /// Returns whether messages of `peer` would be taken even if no receive waits for them. At the
    /// bounds of a crowd there must be room for some, or each one that leaves would have all of
    /// them try.
    pub fn has_room(&self, peer: &Addr) -> bool {
        let held = self.held.get(&peer.peer_id());
        match held {
            Some(held) if held.unbounded => return true,
            Some(held) if held.bytes >= self.early_bytes_max => return false,
            _ => {}
        }
        let some = |bytes_max: usize| bytes_max - bytes_max / 8;
        let share = held.and_then(|held| held.share);
        let of_share = self.shares.as_ref().map_or(0, |shares| shares.bytes(share, peer));
        self.all_bytes < some(self.all_bytes_max) && of_share < some(self.share_bytes_max())
    }

    /// Returns whether a refused message may be waiting for the receive that was just posted and
    /// found no early message. Then the thread that reads the transport has to try that message
    /// again, and has to be woken if it sleeps. Called under the lock under which the receive was
    /// posted.
    #[inline]
    pub fn take_refused(&mut self) -> bool {
        std::mem::take(&mut self.refused)
    }

    /// Returns whether an expected receive waits for `peer`. Looks at every list.
    pub fn awaits(&self, peer: u64) -> bool {
        self.awaited().any(|(awaited, _)| awaited == peer)
    }

    /// Has the first expected receive that is posted for `peer` from now on told, as
    /// [`take_refused`](Self::take_refused) tells of refused messages. `false`, and nothing is
    /// told: there is one already.
    pub fn watch(&mut self, peer: u64) -> bool {
        !self.awaits(peer) && self.watched.insert(peer)
    }

    /// Undoes [`watch`](Self::watch).
    pub fn unwatch(&mut self, peer: u64) {
        self.watched.remove(&peer);
    }

    /// Peers that were watched, and for which a receive was posted.
    pub fn take_awaited(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.called)
    }

    #[cold]
    fn tell_of(&mut self, peer: u64) {
        if self.watched.remove(&peer) {
            self.called.push(peer);
            self.refused = true;
        }
    }

    /// Every posted expected receive, with the peer that it is from. Looks at every list.
    pub fn awaited(&self) -> impl Iterator<Item = (u64, OpId)> {
        #[cfg(any(test, feature = "conformance"))]
        self.walks.update(|walks| walks + 1);
        self.expected_posted.iter().map(|(key, posted)| (key.peer, posted.op))
    }

    /// Takes whatever still comes from `peer`, which is known to be gone. Ends with
    /// [`fail_peer`](Self::fail_peer) or [`restore_bound`](Self::restore_bound).
    pub fn lift_bound(&mut self, peer: u64) {
        self.held.entry(peer).or_default().unbounded = true;
    }

    /// Undoes [`lift_bound`](Self::lift_bound) for a peer that is not gone after all.
    pub fn restore_bound(&mut self, peer: u64) {
        if let Some(held) = self.held.get_mut(&peer) {
            held.unbounded = false;
        }
        self.release(peer, 0);
    }

    /// Ends the receive `op`, if it is posted.
    pub fn cancel(&mut self, op: OpId) -> Option<Completion> {
        if let Some(at) = self.unexpected_posted.iter().position(|posted| posted.0 == op) {
            let (op, buf) = self.unexpected_posted.remove(at)?;
            return Some(Completion::Recv { op, buf, result: Err(Error::Canceled) });
        }
        if self.many_posted.cancel(op) {
            return Some(many_ended(op, Error::Canceled));
        }
        let (key, posted) = self.expected_posted.remove_where(|posted| posted.op == op)?;
        self.given_up.add(key);
        Some(failed(posted, Error::Canceled))
    }

    /// Ends the expected receives of `peer`, which is gone, with `error`, and forgets its early
    /// expected messages, so that a successor under the same address starts afresh. Its early
    /// unexpected messages stay: they did arrive.
    pub fn fail_peer(&mut self, peer: u64, error: &Error, out: &mut Vec<Completion>) {
        self.expected_posted.drain_peer(peer, |posted| out.push(failed(posted, error.clone())));
        let mut freed = 0;
        self.expected_early.drain_peer(peer, |early| freed += early.bytes.len() + EARLY_OVERHEAD);
        if let Some(held) = self.held.get_mut(&peer) {
            held.unbounded = false;
        }
        self.release(peer, freed);
        self.given_up.forget_peer(peer);
        self.watched.remove(&peer);
        self.leave(peer);
    }

    /// Counts what `peer`, which is gone, has left, and drops it if that is too much.
    fn leave(&mut self, peer: u64) {
        let Some(held) = self.held.get_mut(&peer) else { return };
        if !std::mem::replace(&mut held.gone, true) {
            self.left_bytes += held.bytes;
        }
        if self.left_bytes > self.left_bytes_max {
            self.left_bytes -= held.bytes;
            let before = self.unexpected_early.len();
            self.all_bytes -= held.bytes;
            self.forget_held(peer);
            self.unexpected_early.retain(|early| early.from.peer_id() != peer);
            self.drop_left(before - self.unexpected_early.len());
        }
    }

    /// Messages of a peer that is gone were thrown away.
    fn drop_left(&mut self, messages: usize) {
        let before = self.dropped;
        self.dropped += messages as u64;
        // A crowd that leaves again and again must not fill the log.
        if before.checked_ilog2() != self.dropped.checked_ilog2() {
            tracing::warn!(
                messages,
                in_all = self.dropped,
                "dropped messages of a peer that is gone: too many of such wait to be received \
                 (left_bytes_max is {})",
                self.left_bytes_max
            );
        }
    }

    /// Ends every receive with `error` and forgets every early message.
    pub fn fail_all(&mut self, error: &Error, out: &mut Vec<Completion>) {
        out.extend(self.unexpected_posted.drain(..).map(|(op, buf)| {
            let result = Err(error.clone());
            Completion::Recv { op, buf, result }
        }));
        out.extend(self.many_posted.end().map(|op| many_ended(op, error.clone())));
        self.expected_posted.drain_all(|posted| out.push(failed(posted, error.clone())));
        self.expected_early.drain_all(drop);
        self.unexpected_early.clear();
        self.held.clear();
        (self.left_bytes, self.all_bytes) = (0, 0);
        if let Some(shares) = &mut self.shares {
            shares.clear();
        }
        self.given_up = GivenUp::default();
    }

    fn deliver_early(&mut self, op: OpId, mut buf: MsgBuf, early: Early) -> Completion {
        self.release(early.from.peer_id(), early.bytes.len() + EARLY_OVERHEAD);
        let Early { from, tag, bytes } = early;
        buf.spare_mut()[..bytes.len()].copy_from_slice(&bytes);
        buf.set_len(bytes.len());
        Completion::Recv { op, buf, result: Ok(Arrival { from, tag }) }
    }

    fn release(&mut self, peer: u64, bytes: usize) {
        if let Some(held) = self.held.get_mut(&peer) {
            held.bytes -= bytes;
            self.all_bytes -= bytes;
            if held.gone {
                self.left_bytes -= bytes;
            }
            if let (Some(shares), Some(share)) = (&mut self.shares, held.share) {
                shares.release(share, bytes);
            }
            if held.bytes == 0 && !held.unbounded {
                self.forget_held(peer);
            }
        }
    }

    /// Forgets how much is held of `peer`, and takes that out of its share.
    fn forget_held(&mut self, peer: u64) {
        if let Some(EarlyAccount { bytes, share: Some(share), .. }) = self.held.remove(&peer)
            && let Some(shares) = &mut self.shares
        {
            shares.leave(share, bytes);
        }
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher")
            .field("unexpected_posted", &self.unexpected_posted.len())
            .field("many_posted", &self.many_posted.left())
            .field("unexpected_early", &self.unexpected_early.len())
            .field("expected_posted", &self.expected_posted.len())
            .field("expected_early", &self.expected_early.len())
            .finish_non_exhaustive()
    }
}

fn failed(posted: Posted, error: Error) -> Completion {
    Completion::Recv { op: posted.op, buf: posted.buf, result: Err(error) }
}

/// The last completion of a receive for many messages that takes no more.
fn many_ended(op: OpId, error: Error) -> Completion {
    Completion::Recv { op, buf: MsgBuf::with_capacity(0), result: Err(error) }
}

#[cfg(test)]
mod tests;
