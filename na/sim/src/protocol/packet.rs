//! Packets that travel between hosts, and the frames that a connection sends in them.

use std::sync::Arc;

use crate::base::{options::Nanos, trace::Summary};
use na_core::matching::Kind;
use na_core::{DeniedReason, Tag};

/// A machine, which may run one node after the other.
pub(crate) type HostId = usize;
/// A node: one endpoint from its open to its end.
pub(crate) type NodeId = u64;
/// One side of one connection. A number is never used twice, and is larger than those before.
pub(crate) type Epoch = u64;

/// Bytes that a packet has beside its contents; also what a frame costs of the window beside its
/// contents.
pub(crate) const OVERHEAD: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct Packet {
    pub(crate) src: HostId,
    pub(crate) dst: HostId,
    /// The sender's side of the connection.
    pub(crate) from: Epoch,
    /// The receiver's side; 0 while unknown.
    pub(crate) to: Epoch,
    pub(crate) body: Body,
}

/// The node that greets, and what the other side needs to know of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Greeting {
    pub(crate) node: NodeId,
    /// It can be called by the name of its host; those of a group are not, one by one.
    pub(crate) listening: bool,
    pub(crate) message_bytes_max: usize,
    /// The number of the group, for nodes of several under one name.
    pub(crate) family: Option<u64>,
    /// The node of the group that is to have the connection, if there is such a one.
    pub(crate) wanted: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    Hello(Greeting),
    Welcome(Greeting),
    /// There is no such connection here, or no node that would make one.
    Reset(&'static str),
    /// All frames before `next` have arrived, and those in `have`. Answers the packet that was sent
    /// at `stamp`.
    Ack {
        next: u64,
        have: u64,
        stamp: Nanos,
    },
    /// Asks for a sign of life, which is an acknowledgement.
    Probe {
        stamp: Nanos,
    },
    Frame {
        seq: u64,
        stamp: Nanos,
        frame: Frame,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Frame {
    Message {
        kind: Kind,
        tag: Tag,
        bytes: Arc<Vec<u8>>,
    },
    Request(Request),
    Data {
        put: bool,
        id: u64,
        bytes: Arc<Vec<u8>>,
    },
    Done {
        id: u64,
        status: Result<(), DeniedReason>,
    },
    Cancel {
        put: bool,
        id: u64,
    },
    /// The receiver has taken so many bytes of the window.
    Credit(u64),
    /// The first frame of the side that was called: once it is acknowledged, both sides know that
    /// the connection stands. Otherwise a caller that died meanwhile would never be missed.
    Ready,
    /// Nothing follows: the endpoint was closed.
    Bye,
}

/// Asks the owner of memory for a transfer. `id` is unique in the requester's connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) put: bool,
    pub(crate) id: u64,
    pub(crate) key: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Frame {
    /// Bytes of the receiver's window that the frame takes. Frames without contents take none, and
    /// pass regardless of the window.
    pub(crate) fn charge(&self) -> u64 {
        match self {
            Self::Message { bytes, .. } | Self::Data { bytes, .. } => {
                (bytes.len() + OVERHEAD) as u64
            }
            _ => 0,
        }
    }

    fn summary(&self) -> (&'static str, Option<u64>, usize) {
        match self {
            Self::Message { kind: Kind::Unexpected, tag, bytes } => {
                ("unexpected", Some(tag.0.into()), bytes.len())
            }
            Self::Message { kind: Kind::Expected, tag, bytes } => {
                ("expected", Some(tag.0.into()), bytes.len())
            }
            Self::Request(request) => {
                (if request.put { "put" } else { "get" }, Some(request.id), 0)
            }
            Self::Data { put: true, id, bytes } => ("data of put", Some(*id), bytes.len()),
            Self::Data { put: false, id, bytes } => ("data of get", Some(*id), bytes.len()),
            Self::Done { id, .. } => ("done", Some(*id), 0),
            Self::Cancel { id, .. } => ("cancel", Some(*id), 0),
            Self::Credit(_) => ("credit", None, 0),
            Self::Ready => ("ready", None, 0),
            Self::Bye => ("bye", None, 0),
        }
    }
}

impl Packet {
    /// Bytes on the wire.
    pub(crate) fn size(&self) -> u64 {
        (OVERHEAD + self.summary().bytes) as u64
    }

    pub(crate) fn summary(&self) -> Summary {
        let outside = |name| Summary { name, seq: None, number: None, bytes: 0 };
        match &self.body {
            Body::Hello(_) => outside("hello"),
            Body::Welcome(_) => outside("welcome"),
            Body::Reset(_) => outside("reset"),
            Body::Probe { .. } => outside("probe"),
            Body::Ack { next, .. } => Summary { number: Some(*next), ..outside("ack") },
            Body::Frame { seq, frame, .. } => {
                let (name, number, bytes) = frame.summary();
                Summary { name, seq: Some(*seq), number, bytes }
            }
        }
    }
}
