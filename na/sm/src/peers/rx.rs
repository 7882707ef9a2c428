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

use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::link::group::Admission;
use crate::link::lane::Emptier;
use crate::link::record::{self, PAGE_RECORD, word_at};
use crate::link::socket::{Announcements, Heard};
use crate::link::turns::PAGE_BYTES;
use crate::link::{Conn, Consumer, Control, MappedRing, Record};
use crate::peers::peer::Peer;
use crate::peers::tx::TxLink;
use crate::transfer::block::{Mapped, PeerBlocks};
use crate::transfer::fallback::{Chunk, LaneChunk};
use crate::transfer::offer::{Theirs, read_place};
use crate::transfer::rma::Granted;
use crate::transfer::serve::Services;
use crate::wake::doorbell::ROOM;
use na_core::base::ran::RunClock;
use na_core::loopback::Outcome;
use na_core::matching::Kind;
use na_core::{Addr, Error, RawSegment};
use prim::sync::Arc;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionStage {
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
pub(crate) struct Paged {
    page: usize,
    pub(crate) len: usize,
}

impl Paged {
    #[inline]
    pub(crate) fn read(self, conn: &Conn, place: &mut [u8]) {
        // SAFETY: made by `RxLink::page` where the page was theirs, which only the poll changes,
        // and the poll is the caller.
        unsafe { conn.segment.read_page(self.page, place) };
    }
}

/// Clones of an address that are made at a time. Each message takes one, and whoever has the
/// message drops it, on another core as a rule, which has the line of their count until the next
/// are made.
const SPARES: usize = 16;

/// Clones of an address, to be taken one by one.
#[derive(Debug, Default)]
pub(crate) struct SpareAddrs(Vec<Addr>);

impl SpareAddrs {
    #[inline]
    pub(crate) fn take(&mut self, addr: &Addr) -> Addr {
        self.fill(addr);
        self.0.pop().unwrap_or_else(|| addr.clone())
    }

    /// Makes some if there are none.
    #[inline]
    pub(crate) fn fill(&mut self, addr: &Addr) {
        if self.0.is_empty() {
            self.make(addr);
        }
    }

    #[inline(never)]
    fn make(&mut self, addr: &Addr) {
        self.0.extend((0..SPARES).map(|_| addr.clone()));
    }
}

/// A connection, for the poll alone.
#[derive(Debug)]
pub(crate) struct RxLink {
    pub(crate) conn: Arc<Conn>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) addr: Addr,
    /// Clones of it for the next messages.
    pub(crate) spares: SpareAddrs,
    pub(crate) rx: Consumer<MappedRing>,
    pub(crate) stage: ConnectionStage,
    /// The place that it takes, if it came to us.
    pub(crate) admission: Option<Admission>,
    /// The segment's descriptor, until it is handed over.
    pub(crate) memfd: Option<OwnedFd>,
    /// Largest message in either direction, bytes.
    pub(crate) limit: usize,
    pub(crate) services: Services,
    /// The RPC layer of the peer was taken for C Mercury's when the connection was begun.
    pub(crate) for_mercury: bool,
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
    pub(crate) fn new(
        conn: Arc<Conn>,
        peer: Arc<Peer>,
        addr: Addr,
        stage: ConnectionStage,
    ) -> Self {
        let rx = Consumer::new(conn.segment.ring(false));
        Self {
            conn,
            memfd: None,
            for_mercury: peer.is_for_mercury(),
            peer,
            addr,
            spares: SpareAddrs::default(),
            rx,
            stage,
            admission: None,
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
            ConnectionStage::Up => Error::PeerGone { peer, reason },
            ConnectionStage::Dialing { .. } | ConnectionStage::Greeting { .. } => {
                Error::Unreachable { peer, reason }
            }
        });
    }

    /// Runs `act` with the sending half, if it still exists.
    pub(crate) fn with_link<R>(&self, act: impl FnOnce(&mut TxLink) -> R) -> Option<R> {
        let mut links = self.peer.links.lock();
        links.iter_mut().find(|link| link.conn.token == self.conn.token).map(act)
    }

    /// The page that a record announces, and of what kind the message there is.
    #[inline(never)]
    pub(crate) fn page(&self, record: &Record) -> Result<(Kind, Paged), &'static str> {
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
    pub(crate) fn leave(&mut self, record: Record, page: Option<Paged>) {
        if let Some(Paged { page, .. }) = page {
            self.conn.turns.take(page);
        }
        self.advance(record);
    }

    /// Leaves a record behind.
    #[inline]
    pub(crate) fn advance(&mut self, record: Record) {
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
    pub(crate) fn granted(
        &mut self,
        part: u64,
        block: u64,
        offset: u64,
    ) -> Result<(), &'static str> {
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
    pub(crate) fn shared(&self, part: u64, addr: u64, len: u64) -> Result<(), &'static str> {
        addr.checked_add(len).ok_or("a share of impossible memory")?;
        let memory = self.services.attaches().then_some(Granted::Plain(addr));
        self.with_link(|tx| tx.granted(part, memory, Some(len))).unwrap_or(Ok(()))
    }

    /// The peer lets us copy in a region of its memory without asking.
    pub(crate) fn offered(&mut self, key: u64, block: u64, place: u64) -> Result<(), &'static str> {
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
    pub(crate) fn offered_plain(
        &self,
        key: u64,
        place: u64,
        addr: u64,
        len: u64,
    ) -> Result<(), &'static str> {
        let place = read_place(place).ok_or("an offer that cannot be read")?;
        addr.checked_add(len).ok_or("an offer of impossible memory")?;
        if self.services.attaches() {
            let memory = Theirs::Plain { addr, len };
            self.with_link(|tx| tx.offers.add(key, place, memory));
        }
        Ok(())
    }

    /// Takes bulk data: of the lane, or what is in the record.
    pub(crate) fn take_chunk(
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
    pub(crate) fn empty_slot(
        &mut self,
        record: &Record,
        out: &mut Outcome,
    ) -> Result<(), &'static str> {
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

    pub(crate) fn answer(&self, control: Option<Control>) {
        if let Some(control) = control {
            self.with_link(|link| link.push_control(control));
        }
    }
}
