//! Reading a connection, and the effect of each arriving frame.

use crate::peers::{Conn, Peer, PeerState, Stage};
use crate::state::{Core, Poller, flush};
use crate::stream::frame_reader::{Destination, FrameReader, Parsed, ReadPlan};
use crate::stream::outgoing::faults::is_fault;
use crate::wire::frame::{Header, Kind, Request, Status};
use na_core::matching::{self, Arrived};
use na_core::{Addr, Error, Tag};
use prim::sync::Arc;

/// Bytes read from one connection before others get their turn.
const READ_BYTES_MAX: usize = 1 << 20;

/// Why a connection cannot go on.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The other side, or the system, ended it.
    Ended(String),
    /// The other side lets us in no more, and says so.
    Refused(String),
    /// The other side broke this rule of the protocol.
    Broke(String),
    /// Nothing is wrong: it goes on at another endpoint of the group.
    Moves,
}

impl Poller {
    /// Reads and handles frames until there is no more, or it is others' turn (`readable` stays).
    pub(crate) fn read(&mut self, core: &Core, conn: &mut Conn) -> Result<(), Lost> {
        let mut left = READ_BYTES_MAX;
        let mut short_reads = 0;
        let mut may_guess = true;
        loop {
            if self.pauses_unread(core, conn) {
                return Ok(());
            }
            if conn.incoming.has_something() && self.handle(core, conn)? {
                if !conn.hung_up {
                    self.pause(conn);
                    return Ok(());
                }
                // The rest of its stream is finite, and its end must be noticed.
                let id = conn.peer().map(|peer| peer.id);
                id.into_iter().for_each(|id| core.matcher.lock().lift_bound(id));
                continue;
            }
            let is_over = match short_reads {
                0 => false,
                // Of data that has begun more is on its way: not worth another poll. But once only,
                // or a peer that sends byte after byte would keep the others waiting.
                1 => !conn.incoming.is_amid() || !self.batch.is_empty(),
                _ => true,
            };
            if is_over || left == 0 || !conn.readable {
                return Ok(());
            }
            let appetite = match &conn.stage {
                Stage::Up { peer, .. } => {
                    conn.blocked = peer.is_blocked();
                    match may_guess && peer.expects_data() {
                        true => peer.lock().appetite(),
                        false => ReadPlan::Any,
                    }
                }
                _ => ReadPlan::Any,
            };
            match conn.incoming.fill(&conn.socket, &mut self.buffers, appetite) {
                Ok((0, _)) => return Err(Lost::Ended("it closed the connection".into())),
                Ok((bytes, short)) => {
                    conn.is_tried = false;
                    conn.idle_reads = 0;
                    conn.heard = true;
                    if let Some(peer) = conn.up() {
                        peer.count_received(bytes);
                    }
                    left = left.saturating_sub(bytes);
                    // Probably all there is. The next poll makes sure; what came is reported first.
                    short_reads += u32::from(short && !conn.hung_up);
                }
                // What most reads find. To ask for the kind would look it up.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    conn.readable = false;
                    conn.is_tried = false;
                    conn.idle_reads = conn.idle_reads.saturating_add(1);
                    return Ok(());
                }
                // Of the data itself when its header is known, or of what was only expected.
                Err(error) if is_fault(&error) && (may_guess || conn.incoming.is_amid()) => {
                    may_guess = false;
                    if let Some(peer) = conn.up().cloned() {
                        self.cannot_write(core, &mut conn.incoming, &peer);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    return Err(Lost::Broke(format!("TLS: {error}")));
                }
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    return Err(Lost::Refused(format!("TLS: {error}")));
                }
                Err(error) => {
                    return Err(Lost::Ended(format!("receiving from it failed: {error}")));
                }
            }
        }
    }

    /// Memory of ours that data goes to cannot be written: its transfer ends, and nothing else.
    #[cold]
    fn cannot_write(&mut self, core: &Core, incoming: &mut FrameReader, peer: &Arc<Peer>) {
        self.with_peer(peer, |state| {
            give_up_memory(incoming, state);
            flush(core, peer, state);
        });
    }

    /// Handles what is in the buffer. `true`: the matcher has no room for the message in front.
    fn handle(&mut self, core: &Core, conn: &mut Conn) -> Result<bool, Lost> {
        if !matches!(conn.stage, Stage::Up { .. }) && !self.greeted(core, conn)? {
            return Ok(false);
        }
        let Conn { stage, incoming, .. } = conn;
        let Stage::Up { peer, addr } = stage else { return Ok(false) };
        loop {
            match incoming.next().map_err(Lost::Broke)? {
                Parsed::NeedMore => return Ok(false),
                Parsed::Frame(header) => {
                    if !self.frame(core, incoming, peer, addr, header)? {
                        return Ok(true);
                    }
                    incoming.consume(header);
                }
                Parsed::Long(header) => match message_kind(header.kind) {
                    None => self.data(core, incoming, peer, header)?,
                    Some(kind) => {
                        let tag = Tag(header.number as u32);
                        let claimed = core.matcher.lock().claim_ahead(kind, addr, tag);
                        let Some(claimed) = claimed else { return Ok(false) };
                        // No memory that could be gone.
                        let _ = incoming.begin(header, Destination::Receive(claimed, 0));
                    }
                },
                Parsed::Gone => self.cannot_write(core, incoming, peer),
                Parsed::End(header, Destination::Receive(claimed, len)) => {
                    let tag = Tag(header.number as u32);
                    peer.count_message();
                    self.batch.push_back(claimed.received(len, addr.clone(), tag));
                }
                Parsed::End(header, to) => self.end_of_data(core, peer, header, to),
            }
        }
    }

    /// A frame with data begins; often it is there to its end.
    fn data(
        &mut self,
        core: &Core,
        incoming: &mut FrameReader,
        peer: &Arc<Peer>,
        header: Header,
    ) -> Result<(), Lost> {
        self.with_peer(peer, |state| {
            let Header { kind, number, len } = header;
            if let Some(data) = incoming.whole_data(header) {
                if !state.transfers.take_data(kind, number, data)? {
                    cannot_access(header, state);
                }
                incoming.consume(header);
                end_data(core, peer, state, header, Destination::Nowhere);
                return Ok(());
            }
            let to = state.transfers.begin_data(kind, number, len.into())?;
            if !incoming.begin(header, to) {
                give_up_memory(incoming, state);
            }
            let mut next = incoming.next()?;
            if matches!(next, Parsed::Gone) {
                give_up_memory(incoming, state);
                next = incoming.next()?;
            }
            if let Parsed::End(header, to) = next {
                end_data(core, peer, state, header, to);
            }
            Ok(())
        })
        .map_err(Lost::Broke)
    }

    fn end_of_data(&mut self, core: &Core, peer: &Arc<Peer>, header: Header, to: Destination) {
        // Else it is a message whose receive was canceled.
        if message_kind(header.kind).is_none() {
            self.with_peer(peer, |state| end_data(core, peer, state, header, to));
        }
    }

    /// Gives up what was held for a frame whose end will not come.
    pub(crate) fn abandon(&mut self, core: &Core, key: u64, error: &Error) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        match conn.incoming.abandon() {
            Destination::Nowhere => {}
            Destination::Memory(memory, _) => self.memories.push(memory),
            Destination::Receive(claimed, _) => {
                let ended = core.matcher.lock().unclaim(claimed, error);
                self.batch.extend(ended);
            }
        }
    }

    /// Handles the whole frame in front. `false`: there is no room for it yet.
    fn frame(
        &mut self,
        core: &Core,
        incoming: &FrameReader,
        peer: &Arc<Peer>,
        addr: &Addr,
        header: Header,
    ) -> Result<bool, Lost> {
        let payload = incoming.payload(header);
        let number = header.number;
        match header.kind {
            Kind::Unexpected | Kind::Expected => {
                let Some(kind) = message_kind(header.kind) else { return Ok(true) };
                // Decoding checked that the tag has 32 bits.
                match core.matcher.lock().arrive(kind, addr, Tag(number as u32), payload) {
                    Arrived::Completed(completion) => self.batch.push_back(completion),
                    Arrived::Held | Arrived::Discarded => {}
                    Arrived::Full => return Ok(false),
                }
                peer.count_message();
                return Ok(true);
            }
            Kind::Get | Kind::Put | Kind::Done | Kind::Cancel => self.with_peer(peer, |state| {
                let PeerState { phase, transfers, out, broken, harvest, .. } = state;
                match header.kind {
                    Kind::Done => {
                        let status = Status::decode(payload)?;
                        transfers.verdict(number, status, &peer.uri, out, harvest)?;
                    }
                    Kind::Cancel => transfers.canceled_by_peer(number, out, harvest),
                    kind => {
                        let request =
                            Request::decode(payload).ok_or("malformed transfer request")?;
                        let out = (out, phase.door(broken));
                        let whose = || peer.host();
                        let place: (_, &dyn Fn() -> _) = (&core.regions, &whose);
                        transfers.serve(kind, number, request, place, out, harvest)?;
                    }
                }
                flush(core, peer, state);
                Ok(())
            }),
            Kind::Alive => Ok(()),
            Kind::GetData | Kind::PutData => Err("data where a frame was expected".into()),
        }
        .map_err(Lost::Broke)?;
        Ok(true)
    }
}

/// The matcher's word for a message.
fn message_kind(kind: Kind) -> Option<matching::Kind> {
    match kind {
        Kind::Unexpected => Some(matching::Kind::Unexpected),
        Kind::Expected => Some(matching::Kind::Expected),
        _ => None,
    }
}

/// The memory of the data that arrives cannot be written: the rest of it is skipped.
#[cold]
fn give_up_memory(incoming: &mut FrameReader, state: &mut PeerState) {
    if let Some((header, memory)) = incoming.give_up_memory() {
        state.harvest.memories.push(memory);
        cannot_access(header, state);
    }
}

/// The transfer of that data ends.
#[cold]
fn cannot_access(header: Header, state: &mut PeerState) {
    tracing::warn!(
        "memory of this process that a transfer fills cannot be written: pages of a mapped file \
         are gone; the transfer ends"
    );
    let PeerState { transfers, out, harvest, .. } = state;
    transfers.cannot_access(header.kind, header.number, out, harvest);
}

/// Data has come to its end.
fn end_data(core: &Core, peer: &Arc<Peer>, state: &mut PeerState, header: Header, to: Destination) {
    let PeerState { phase, transfers, out, broken, harvest, .. } = state;
    if let Destination::Memory(memory, _) = to {
        harvest.memories.push(memory);
    }
    transfers.end_data(header.kind, header.number, (out, phase.door(broken)), harvest);
    flush(core, peer, state);
}
