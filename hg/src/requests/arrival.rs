//! The arrival of a request: from a message to what the sink gets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use na::{Addr, Arrival, MsgBuf, Tag};

use crate::base::clock;
use crate::core::builds::QUESTION;
use crate::memory::Payload;
use crate::ops::{Ack, Event, IncomingRequest, RequestExtension, ResponsePath};
use crate::wire::Body;
use crate::wire::header::RequestHeader;
use crate::{Core, Extension, RawRequest, RequestHandle, RequestParts, ReturnCode, wire};

impl<T> Core<T> {
    /// Hands a request up, if its RPC is served here.
    // Inlined where requests arrive, so that the parts of most are never put together before.
    #[inline(always)]
    pub(crate) fn hand_up(
        self: &Arc<Self>,
        incoming: IncomingRequest,
        up: impl FnOnce(RequestParts),
    ) {
        let IncomingRequest { header, origin, path, payload, held, uncounted, beside } = incoming;
        let mut state = self.state();
        let (registration, refusal) = match state.seen.get(&self.class.registry, header.id) {
            None => (None, Some(ReturnCode::NoEntry)),
            Some(there) if !there.serves() => (None, Some(ReturnCode::InvalidArg)),
            Some(there) if there.is_no_response() && !header.no_response => {
                (None, Some(ReturnCode::OpNotSupported))
            }
            Some(there) if there.has_data() => (state.seen.take_last(), None),
            Some(_) => (None, None),
        };
        let mut may_keep = false;
        let is_crowded;
        if uncounted {
            state.hot.rpc_req_recv += 1;
            let more = self.arrived(&mut state.receives);
            may_keep = state.receives.has_plenty();
            is_crowded = state.receives.is_crowded();
            drop(state);
            self.post_more(more);
        } else {
            is_crowded = held && state.receives.is_crowded();
            drop(state);
        }
        let payload_bytes = payload.len();
        let answered = header.no_response;
        let request = RawRequest {
            header,
            path,
            payload,
            payload_bytes,
            held,
            may_keep,
            is_crowded,
            answered,
            beside,
        };
        match refusal {
            None => up(RequestParts { origin, request, registration }),
            Some(code) => self.refuse(&origin, request, code),
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, origin: &Addr, mut request: RawRequest, code: ReturnCode) {
        if request.id() == QUESTION {
            self.state().hot.rpc_req_recv -= 1;
        } else {
            self.counts.not_registered.bump();
        }
        RequestHandle::of(self, origin, &mut request).reject(code);
    }

    /// A request arrived. It goes up at once, unless its arguments have to be fetched.
    #[inline]
    pub(crate) fn on_request(
        self: &Arc<Self>,
        buf: MsgBuf,
        arrival: Arrival,
        up: impl FnOnce(RequestParts),
    ) -> Option<Event<T>> {
        let Arrival { from, tag } = arrival;
        let accept = self.accept;
        match RequestHeader::read_plain(accept, buf.as_slice()) {
            Some(header) => {
                self.hand_up(IncomingRequest::here(header, (from, tag), buf), up);
                None
            }
            None => self.on_other_request((from, tag), buf),
        }
    }

    /// Returns what `origin` has said beside the header of a message that has just come.
    fn beside(&self, origin: &Addr, extension: &Extension) -> Option<Box<RequestExtension>> {
        let Extension { remaining, sent, trace, .. } = *extension;
        let deadline = remaining.and_then(|left| {
            let now = Instant::now();
            let waited = sent.map_or(Duration::ZERO, |sent| {
                let now = self.class.clock.nanos(now);
                self.state().origins.waited(clock::name_of(origin), sent, now)
            });
            // A time beyond what the clock can count is none.
            now.checked_add(left.saturating_sub(waited))
        });
        let says_any = deadline.is_some() || trace.is_some();
        says_any.then(|| Box::new(RequestExtension { deadline, trace, place: None }))
    }

    /// As [`on_request`](Self::on_request), whatever the request is.
    #[inline(never)]
    fn on_other_request(&self, (from, tag): (Addr, Tag), buf: MsgBuf) -> Option<Event<T>> {
        let accept = self.accept;
        let read = wire::decode_request(accept, buf.as_slice())
            .and_then(|(header, body)| Ok((header, header.read_extension(buf.as_slice())?, body)));
        match read {
            Ok((_, extension, _)) if extension.cancel || extension.unread => {
                self.count_arrival();
                self.buffers.put(buf);
                Some(self.on_notice(from, tag, &extension))
            }
            Ok((header, extension, Body::Inline(_))) => {
                let beside = self.beside(&from, &extension);
                let incoming = IncomingRequest::here(header, (from, tag), buf);
                let incoming = IncomingRequest { beside, ..incoming };
                Some(Event::Request(incoming))
            }
            Ok((header, extension, Body::Overflow(desc))) => {
                self.count_arrival();
                self.state().hot.rpc_req_recv += 1;
                self.counts.req_extra.bump();
                let beside = self.beside(&from, &extension);
                let request = IncomingRequest {
                    header,
                    origin: from,
                    path: ResponsePath::Network(tag),
                    payload: Payload::None,
                    held: true,
                    uncounted: false,
                    beside,
                };
                let event = self.fetch_request(request, tag, &desc);
                self.buffers.put(buf);
                event
            }
            Err(error) => {
                self.count_arrival();
                let header = RequestHeader::to_answer(accept, buf.as_slice(), &error);
                self.buffers.put(buf);
                if header.is_some_and(|header| header.no_response && header.more_data) {
                    // Its origin keeps the arguments until it is told.
                    self.send_ack(&from, tag, Ack::Done);
                }
                self.reject(header, &from, tag, ReturnCode::from(&error), &error.into());
                None
            }
        }
    }
}
