//! A connection as the poll sees it: what arrives.
//!
//! # States
//!
//! ```text
//! Dialing --connected, hello sent--> Greeting --welcome--> Up --> ended
//!    the listener's queue is full       |                   ^
//!                                       +--> ended          | accepted connections start here
//! ```
//!
//! `end` is set by whatever notices the end (end of file, a breach, a timeout, close); the poll
//! then takes the connection apart at one place, `teardown.rs`.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::core::endpoint::SmEndpoint;
use crate::core::poll::Sink;
use crate::link::accepted::AcceptedPeer;
use crate::link::conn::{Conn, Control};
use crate::link::lane::Emptier;
use crate::link::record;
use crate::link::record::{
    CONTROL_WORDS, PAGE_RECORD, Piece, REQUEST_BYTES_MAX, Request, Status, word_at,
};
use crate::link::ring::{Consumer, Record};
use crate::link::segment::MappedRing;
use crate::link::socket::{Announcements, Heard};
use crate::link::turns::PAGE_BYTES;
use crate::peers::peer::Peer;
use crate::peers::tx::TxLink;
use crate::transfer::block::{Mapped, PeerBlocks};
use crate::transfer::fallback::{Chunk, LaneChunk};
use crate::transfer::offer::{Theirs, read_place};
use crate::transfer::rma::Granted;
use crate::transfer::serve::{Place, Services};
use crate::wake::doorbell::ROOM;
use na_core::base::ran::RunClock;
use na_core::loopback::Outcome;
use na_core::matching::{Arrived, Kind};
use na_core::{Addr, Arrival, Completion, Error, LocalMem, RawSegment, Tag};
use prim::sync::Arc;

/// Records of one connection that are handled before the next one has its turn.
///
/// A turn begins with one record and doubles from turn to turn while there are more: looking for a
/// second record costs a cache miss, for which a lone message must not wait.
const RECORDS_PER_TURN: usize = 64;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not connected, because the listener's queue was full; or the other side is not ready for our
    /// hello.
    Dialing {
        waited: RunClock,
    },
    /// Waits for the peer's welcome.
    Greeting {
        waited: RunClock,
    },
    Up,
}

/// A message in a page that is theirs.
#[derive(Debug, Clone, Copy)]
struct Paged {
    page: usize,
    len: usize,
}

impl Paged {
    fn read(self, conn: &Conn, place: &mut [u8]) {
        // SAFETY: made by `RxLink::page` where the page was theirs, which only the poll changes,
        // and the poll is the caller.
        unsafe { conn.segment.read_page(self.page, place) };
    }
}

/// A connection, for the poll alone.
#[derive(Debug)]
pub(crate) struct RxLink {
    pub(crate) conn: Arc<Conn>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) addr: Addr,
    /// A clone of it for the next message, made while there was nothing else to do.
    pub(crate) spare: Option<Addr>,
    pub(crate) rx: Consumer<MappedRing>,
    pub(crate) stage: Stage,
    /// How it counts in the endpoint's `Crowd`, if it came to us.
    pub(crate) guest: Option<AcceptedPeer>,
    /// The segment's descriptor, until it is handed over.
    pub(crate) memfd: Option<OwnedFd>,
    /// Largest message in either direction, bytes.
    pub(crate) limit: usize,
    pub(crate) services: Services,
    /// How it counts among the peers of the endpoint's bulk path.
    pub(crate) began_attached: bool,
    /// Memory of the peer that is mapped here.
    pub(crate) blocks: PeerBlocks,
    /// Our end of the peer's lane.
    emptier: Emptier,
    /// Rounds in which there was nothing to do.
    pub(crate) quiet_rounds: u32,
    /// Records of the next turn.
    pub(crate) turn: usize,
    /// Why it ends.
    pub(crate) end: Option<Error>,
    /// Something arrived since the last look at the liveness limit.
    pub(crate) heard: bool,
    /// Since something was heard, or since the ping that was sent then.
    pub(crate) silent: RunClock,
    pub(crate) pinged: bool,
}

impl RxLink {
    pub(crate) fn new(conn: Arc<Conn>, peer: Arc<Peer>, addr: Addr, stage: Stage) -> Self {
        let rx = Consumer::new(conn.segment.ring(false));
        Self {
            conn,
            memfd: None,
            peer,
            addr,
            spare: None,
            rx,
            stage,
            guest: None,
            limit: 0,
            services: Services::new(false, None),
            began_attached: false,
            blocks: PeerBlocks::default(),
            emptier: Emptier::default(),
            quiet_rounds: 0,
            turn: 1,
            end: None,
            heard: false,
            silent: RunClock::since(Instant::now()),
            pinged: false,
        }
    }

    #[cold]
    pub(crate) fn breach(&mut self, reason: impl ToString) {
        let (peer, reason) = (self.peer.uri.clone(), reason.to_string());
        self.end.get_or_insert(Error::Protocol { peer, reason });
    }

    pub(crate) fn gone(&mut self, reason: &str) {
        let (peer, reason) = (self.peer.uri.clone(), reason.to_owned());
        self.end.get_or_insert(match self.stage {
            Stage::Up => Error::PeerGone { peer, reason },
            Stage::Dialing { .. } | Stage::Greeting { .. } => Error::Unreachable { peer, reason },
        });
    }

    /// Runs `act` with the sending half, if it still exists.
    pub(crate) fn with_link<R>(&self, act: impl FnOnce(&mut TxLink) -> R) -> Option<R> {
        let mut links = self.peer.links.lock();
        links.iter_mut().find(|link| link.conn.token == self.conn.token).map(act)
    }

    /// The page that a record announces, and of what kind the message there is.
    #[inline(never)]
    fn page(&self, record: &Record) -> Result<(Kind, Paged), &'static str> {
        let mut bytes = [0; PAGE_RECORD];
        if record.len != bytes.len() {
            return Err("a page with a record of another length");
        }
        self.rx.read(record, 0, &mut bytes);
        let word = |index| word_at(&bytes, index).unwrap_or(u64::MAX);
        let page = self.conn.turns.theirs(word(0)).ok_or("a page that it does not have")?;
        let len = usize::try_from(word(1)).unwrap_or(usize::MAX);
        if len > PAGE_BYTES {
            return Err("a message that is longer than its page");
        }
        let unexpected = record.kind == record::UNEXPECTED_PAGE;
        Ok((if unexpected { Kind::Unexpected } else { Kind::Expected }, Paged { page, len }))
    }

    /// Leaves the record of a message behind, and takes its page.
    #[inline]
    fn leave(&mut self, record: Record, page: Option<Paged>) {
        if let Some(Paged { page, .. }) = page {
            self.conn.turns.take(page);
        }
        self.advance(record);
    }

    /// Leaves a record behind.
    #[inline]
    fn advance(&mut self, record: Record) {
        self.heard = true;
        if self.rx.advance(record) {
            self.conn.wake_peer(ROOM);
        }
    }

    /// Gives each transfer that we serve its turn. Returns whether anything moved.
    #[inline(never)]
    pub(crate) fn run_services(&mut self, budget: &mut u64, out: &mut Outcome) -> bool {
        let Self { conn, peer, services, .. } = self;
        services.run(conn, budget, out, |act| {
            let mut links = peer.links.lock();
            links.iter_mut().find(|link| link.conn.token == conn.token).map(act);
        })
    }

    /// Takes what the socket says: bells, blocks, the end.
    pub(crate) fn hear(&mut self) {
        let blocks: Option<&mut dyn Announcements> =
            if self.conn.shares() { Some(&mut self.blocks) } else { None };
        match self.conn.socket.hear(blocks) {
            Ok(Heard::Bells) => {}
            Ok(Heard::Gone) => self.gone("it closed its endpoint or ended"),
            Err(reason) => self.breach(reason),
        }
    }

    /// The peer lets us copy `part` ourselves, at `offset` of a block of its memory.
    fn granted(&mut self, part: u64, block: u64, offset: u64) -> Result<(), &'static str> {
        let asked = self.with_link(|tx| tx.requests.part(part)).flatten();
        let (len, put) = asked.ok_or("a grant for an unknown transfer")?;
        if !self.blocks.knows(block, put) {
            self.hear();
        }
        // What cannot be mapped so goes another way.
        let memory = match self.blocks.get(block).filter(|block| block.allows(put)) {
            None => None,
            Some(block) => {
                let piece = block.at(offset, len, put).ok_or("a grant of other memory")?;
                Some(Granted::Mapped(Mapped::one(block, piece)))
            }
        };
        self.with_link(|tx| tx.granted(part, memory, None)).unwrap_or(Ok(()))
    }

    /// The peer lets us attach to its memory for the first `len` bytes of `part`.
    fn shared(&self, part: u64, addr: u64, len: u64) -> Result<(), &'static str> {
        addr.checked_add(len).ok_or("a share of impossible memory")?;
        let memory = self.services.attaches().then_some(Granted::Plain(addr));
        self.with_link(|tx| tx.granted(part, memory, Some(len))).unwrap_or(Ok(()))
    }

    /// The peer lets us copy in a region of its memory without asking.
    fn offered(&mut self, key: u64, block: u64, place: u64) -> Result<(), &'static str> {
        let place = read_place(place).ok_or("an offer that cannot be read")?;
        if !self.blocks.knows(block, place.1.writable()) {
            self.hear();
        }
        // Where it cannot be mapped, transfers take another path.
        if let Some(block) = self.blocks.get(block).cloned() {
            self.with_link(|tx| tx.offers.add(key, place, Theirs::Block(block)));
        }
        Ok(())
    }

    /// The peer lets us attach to a region of its plain memory without asking.
    fn offered_plain(&self, key: u64, place: u64, addr: u64, len: u64) -> Result<(), &'static str> {
        let place = read_place(place).ok_or("an offer that cannot be read")?;
        addr.checked_add(len).ok_or("an offer of impossible memory")?;
        if self.services.attaches() {
            let memory = Theirs::Plain { addr, len };
            self.with_link(|tx| tx.offers.add(key, place, memory));
        }
        Ok(())
    }

    /// Takes bulk data: of the lane, or what is in the record.
    fn take_chunk(
        &mut self,
        put: bool,
        lane: Option<(LaneChunk, RawSegment)>,
        record: &Record,
        out: &mut Outcome,
    ) -> Result<(), &'static str> {
        let chunk = match lane {
            Some((chunk, piece)) => Chunk::Lane(chunk, piece),
            None => Chunk::Ring(&self.rx, record),
        };
        if !put {
            let taken = self.with_link(|tx| {
                let taken = tx.requests.data(&chunk)?;
                taken.into_iter().for_each(|taken| tx.push_control(taken));
                Ok(())
            });
            return taken.unwrap_or(Ok(()));
        }
        let answer = self.services.supply(&chunk, out)?;
        self.answer(answer);
        Ok(())
    }

    /// Takes the next slots of the peer's lane.
    fn empty_slot(&mut self, record: &Record, out: &mut Outcome) -> Result<(), &'static str> {
        let chunk = LaneChunk::read(&self.rx, record).ok_or("a wrong record of the lane")?;
        if !self.blocks.knows(chunk.block, false) {
            self.hear();
        }
        let Some(block) = self.blocks.get(chunk.block) else {
            if let Some(lack) = self.blocks.lack() {
                tracing::warn!("the connection with {} is closed: {lack}", self.peer.uri);
                // The first end that is set is the one that is told.
                self.gone(&format!("its bulk data cannot be taken: {lack}"));
            }
            return Err("bulk data in memory that is not mapped");
        };
        // It stays mapped meanwhile: only the poll forgets blocks.
        let piece = chunk.place(block, &self.emptier).ok_or("bulk data beyond its lane")?;
        let put = record.kind == record::LANE_SUPPLY;
        self.take_chunk(put, Some((chunk, piece)), record, out)?;
        self.emptier.emptied(chunk.slots(), self.conn.segment.lane_head(false));
        self.conn.wake_peer(ROOM);
        Ok(())
    }

    fn answer(&self, control: Option<Control>) {
        if let Some(control) = control {
            self.with_link(|link| link.push_control(control));
        }
    }
}

impl SmEndpoint {
    /// Handles what has arrived on one connection, a bounded number of records. Returns whether
    /// there was something.
    #[inline]
    pub(crate) fn pump(
        &self,
        link: &mut RxLink,
        sink: &mut Sink<'_>,
        arrived: &mut VecDeque<Completion>,
        out: &mut Outcome,
    ) -> bool {
        let mut progress = false;
        let turn = link.turn;
        link.turn = (2 * turn).min(RECORDS_PER_TURN);
        for _ in 0..turn {
            let record = match link.rx.peek() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    link.turn = 1;
                    break;
                }
                Err(violation) => {
                    link.breach(violation);
                    break;
                }
            };
            let (kind, page) = match record.kind {
                record::UNEXPECTED => (Kind::Unexpected, None),
                record::EXPECTED => (Kind::Expected, None),
                record::UNEXPECTED_PAGE | record::EXPECTED_PAGE => match link.page(&record) {
                    Ok((kind, paged)) => (kind, Some(paged)),
                    Err(reason) => {
                        link.breach(reason);
                        break;
                    }
                },
                _ => {
                    if let Err(reason) = self.handle_control(link, &record, out) {
                        link.breach(reason);
                        break;
                    }
                    link.advance(record);
                    progress = true;
                    continue;
                }
            };
            let (tag, len) = (Tag(record.tag), page.map_or(record.len, |page| page.len));
            if len > link.limit {
                link.breach(format!("a message of {len} bytes"));
                break;
            }
            // The one copy, from the ring or page into the receive's buffer. What is decided here
            // depends on words alone of which there is a copy: the peer could change the rest.
            let fill = |place: &mut [u8]| match page {
                None => link.rx.read(&record, 0, place),
                Some(page) => page.read(&link.conn, place),
            };
            let mut matcher = self.matcher.lock();
            let Some(claimed) = matcher.claim(kind, &link.addr, tag, len) else {
                let kept = matcher.keep(kind, &link.addr, tag, len, fill);
                drop(matcher);
                if let Arrived::Full = kept {
                    break;
                }
                link.peer.count_received();
                link.leave(record, page);
                progress = true;
                continue;
            };
            drop(matcher);
            let from = || link.spare.take().unwrap_or_else(|| link.addr.clone());
            let (op, buf, from) = claimed.fill(from, len, fill);
            link.peer.count_received();
            link.leave(record, page);
            progress = true;
            // The record is done with, should the sink panic. The completion is made where it is
            // handed over: it is larger than what it says.
            let arrival = Arrival { from, tag };
            if sink.takes(arrived) {
                sink.tell(Completion::Recv { op, buf, result: Ok(arrival) });
            } else {
                arrived.push_back(Completion::Recv { op, buf, result: Ok(arrival) });
            }
        }
        progress
    }

    // Apart, so that the path of a message keeps its registers and a small frame.
    #[inline(never)]
    fn handle_control(
        &self,
        link: &mut RxLink,
        record: &Record,
        out: &mut Outcome,
    ) -> Result<(), &'static str> {
        if matches!(record.kind, record::GET | record::PUT) {
            return self.begin_service(link, record, out);
        }
        if matches!(record.kind, record::DATA | record::SUPPLY) {
            return link.take_chunk(record.kind == record::SUPPLY, None, record, out);
        }
        if matches!(record.kind, record::LANE_DATA | record::LANE_SUPPLY) {
            return link.empty_slot(record, out);
        }
        let mut bytes = [0; 8 * CONTROL_WORDS];
        let bytes = bytes.get_mut(..record.len).ok_or("a control record is too long")?;
        link.rx.read(record, 0, bytes);
        // There are so many words where the length says so.
        let word = |index| word_at(bytes, index).unwrap_or(0);
        match (record.kind, record.len) {
            (record::DONE, 16) => {
                let status = Status::from_code(word(1)).ok_or("an unknown status")?;
                let uri = &link.peer.uri;
                link.with_link(|tx| tx.done(word(0), status, uri, out)).unwrap_or(Ok(()))
            }
            (record::GRANT, 24) => link.granted(word(0), word(1), word(2)),
            (record::SHARE, 24) => link.shared(word(0), word(1), word(2)),
            (record::FINISHED, 24) if word(1) <= 1 => {
                let copied = (word(1) == 0).then_some(Duration::from_nanos(word(2)));
                let answer = link.services.finished(word(0), copied, &link.conn, out);
                link.answer(answer);
                Ok(())
            }
            (record::FORGET, 8) => {
                link.blocks.forget(word(0));
                link.with_link(|tx| tx.offers.forget(word(0)));
                Ok(())
            }
            (record::OFFER, 24) => link.offered(word(0), word(1), word(2)),
            (record::OFFER_PLAIN, 32) => link.offered_plain(word(0), word(1), word(2), word(3)),
            (record::TAKEN, 24) => {
                link.services.taken(word(0), word(1), word(2));
                Ok(())
            }
            (record::PULL, 16) if word(1) <= 1 => {
                link.with_link(|tx| tx.pull(word(0), word(1) == 1)).unwrap_or(Ok(()))
            }
            (record::CANCEL, 8) => {
                let answer = link.services.cancel(word(0), out);
                link.answer(answer);
                Ok(())
            }
            (record::PING, 0) => {
                // One answer serves any number of pings.
                link.with_link(|tx| {
                    if !tx.has_queued(Control::Pong) {
                        tx.push_control(Control::Pong);
                    }
                });
                Ok(())
            }
            (record::PONG, 0) => Ok(()),
            _ => Err("a record of unknown kind or wrong length"),
        }
    }

    fn begin_service(
        &self,
        link: &mut RxLink,
        record: &Record,
        out: &mut Outcome,
    ) -> Result<(), &'static str> {
        let mut buffer = [0; REQUEST_BYTES_MAX];
        let bytes = buffer.get_mut(..record.len).ok_or("a request is too long")?;
        link.rx.read(record, 0, bytes);
        let request = Request::decode(bytes).ok_or("a request cannot be read")?;
        let put = record.kind == record::PUT;
        let unknown = |piece: &Piece| piece.block != 0 && !link.blocks.knows(piece.block, !put);
        if request.pieces.iter().any(unknown) {
            link.hear();
        }
        let RxLink { services, blocks, conn, peer, .. } = link;
        let place = Place { regions: &self.regions, blocks, conn };
        let announce = |memory: &LocalMem, write| {
            let mut links = peer.links.lock();
            let tx = links.iter_mut().find(|tx| tx.conn.token == conn.token)?;
            tx.announce(memory, write)
        };
        let answer = services.begin(request, put, &place, announce)?;
        let offer = services.offered.next(&self.itself, conn, announce);
        link.answer(offer);
        link.answer(answer);
        if let Some(Control::Share { .. }) = answer {
            // Before we copy ourselves, or the peer would do so after us.
            link.with_link(|tx| tx.write_waiting(out, &mut 0));
        }
        Ok(())
    }
}
