//! A request on its way from the message to the sink.

use std::any::Any;
use std::time::Instant;

use na::{Addr, LocalMem, MsgBuf, Principal, Tag};

use crate::memory::Payload;
use crate::wire::header::RequestHeader;
use crate::{OnBehalfOf, OpRef, TraceParent};

/// How an answer goes back.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ResponsePath {
    /// As an expected message with this tag.
    Network(Tag),
    /// To a call to ourselves.
    Local(OpRef),
    /// To nobody: a call to ourselves without an answer.
    None,
}

/// A request that arrived.
#[derive(Debug)]
pub(crate) struct IncomingRequest {
    pub(crate) header: RequestHeader,
    pub(crate) origin: Addr,
    pub(crate) path: ResponsePath,
    pub(crate) payload: Payload,
    /// It counts against the requests that may be held.
    pub(crate) held: bool,
    /// It has only just come, and was not counted yet.
    pub(crate) uncounted: bool,
    pub(crate) beside: Option<Box<RequestExtension>>,
}

/// The fields that the origin has sent beside the header, if any.
#[derive(Debug)]
pub(crate) struct RequestExtension {
    /// When the origin gives up.
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: Option<TraceParent>,
    /// It took the network, and has the secret that only we have.
    pub(crate) is_own: bool,
    /// The caller on whose behalf it is made, as the origin says.
    pub(crate) on_behalf_of: Option<Box<OnBehalfOf>>,
    /// The principal that has proven, by this request, to be behind it.
    pub(crate) proven: Option<Principal>,
    /// See [`RawRequest::set_place`](crate::RawRequest::set_place).
    pub(crate) place: Option<Box<dyn Any + Send + Sync>>,
    /// See [`RawRequest::set_charge`](crate::RawRequest::set_charge).
    pub(crate) charge: Option<Box<dyn Any + Send + Sync>>,
}

impl RequestExtension {
    /// One with what the origin has said.
    pub(crate) fn new(deadline: Option<Instant>, trace: Option<TraceParent>) -> Box<Self> {
        let (is_own, on_behalf_of, proven, place, charge) = Default::default();
        Box::new(Self { deadline, trace, is_own, on_behalf_of, proven, place, charge })
    }
}

impl IncomingRequest {
    /// One whose arguments are in the message.
    #[inline(always)]
    pub(crate) fn here(header: RequestHeader, (origin, tag): (Addr, Tag), buf: MsgBuf) -> Self {
        let payload = Payload::Message(buf, header.payload_at());
        let path = ResponsePath::Network(tag);
        let beside = None;
        Self { header, origin, path, payload, held: true, uncounted: true, beside }
    }
}

/// A request whose arguments are being fetched.
#[derive(Debug)]
pub(crate) struct ArgumentsFetch {
    /// The request without them.
    pub(crate) request: IncomingRequest,
    pub(crate) tag: Tag,
    pub(crate) memory: LocalMem,
    /// How many had begun before.
    pub(crate) number: u64,
    /// Room for others is to be made with it, as soon as the network has let go of it.
    pub(crate) gives_way: bool,
}
