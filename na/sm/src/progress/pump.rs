//! The effect of each record that arrives.

use std::collections::VecDeque;
use std::time::Duration;

use crate::link::record::{
    self, CONTROL_WORDS, Piece, REQUEST_BYTES_MAX, Request, Status, word_at,
};
use crate::link::{Control, Record};
use crate::peers::RxLink;
use crate::state::{Sink, SmEndpoint};
use crate::transfer::serve::Place;
use na_core::loopback::Outcome;
use na_core::matching::{Arrived, Kind};
use na_core::{Arrival, Completion, LocalMem, Tag};

/// Records of one connection that are handled before the next one has its turn.
///
/// A turn begins with one record and doubles from turn to turn while there are more: looking for a
/// second record costs a cache miss, for which a lone message must not wait.
const RECORDS_PER_TURN: usize = 64;

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
            let from = || link.spares.take(&link.addr);
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
        let place = Place { regions: &self.regions, blocks, conn, who: peer.principal() };
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
