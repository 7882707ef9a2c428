//! The protocol between sender and receiver: the RPCs of a stream and their arguments.
//!
//! | RPC | the sender says | the answer comes |
//! |---|---|---|
//! | `open` | who it is, what its items are, how far it is sure that they were taken | at once: the number of the item that is next, the credit |
//! | `hold` | the number of its connection; it stays open as long as that | when the receiver ends |
//! | `batch` | items, encoded one behind the other | when they have been taken: that gives the credit back |
//! | `pull` | where items are that the receiver fetches, or the data of one item | the same |
//!
//! A *session* is what a receiver knows of a sender: its name, the number of the item that is next,
//! and what has arrived and was not taken. Items of a session are numbered from 0 on. A batch says
//! the number of its first item, so order, gaps and what comes twice are seen whatever the network
//! and the pools do, and whichever way a sender that comes back cuts its items into batches.
//!
//! The answer of a batch is its credit, its acknowledgement, and the only one: a sender has at most
//! as many bytes without an answer as it was granted, and repeats exactly those if a connection
//! breaks. `hold` tells each side of the end of the other, since a call ends when its target does,
//! and its [cancel token](margo::Handle::cancel_token) fires when its origin does. Neither side
//! asks again and again.

use std::fmt;

use margo::encoding::Raw;
use margo::{Bulk, Rpc};
use serde::{Deserialize, Serialize};

use crate::base::names::rpc_name;

/// The version of what is said here. Another one is refused.
pub(crate) const VERSION: u32 = 1;

/// The longest name of a sender, bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// Batches of a session without an answer. A receiver refuses more: also empty ones take memory.
pub(crate) const BATCHES_MAX: usize = 512;

/// Items of a batch that has fewer bytes than items. A receiver refuses more: it would give them
/// out for nothing.
pub(crate) const EMPTY_ITEMS_MAX: u32 = 1 << 16;

/// The RPCs of one stream.
#[derive(Clone, Copy)]
pub(crate) struct StreamRpcs {
    pub(crate) open: Rpc<Open, Result<Opened, Refusal>>,
    pub(crate) hold: Rpc<SessionId, Result<(), Refusal>>,
    pub(crate) batch: Rpc<(Head, Raw), Taken>,
    pub(crate) pull: Rpc<(Head, Pulled), Taken>,
}

/// The answer of a batch: it was taken, and its credit is back.
pub(crate) type Taken = Result<(), Refusal>;

impl StreamRpcs {
    pub(crate) fn of(stream: &str) -> Self {
        Self {
            open: Rpc::new(rpc_name(stream, "open")),
            hold: Rpc::new(rpc_name(stream, "hold")),
            batch: Rpc::new(rpc_name(stream, "batch")),
            pull: Rpc::new(rpc_name(stream, "pull")),
        }
    }
}

/// The number of a connection: random, chosen by the sender, and never used again. Whoever does not
/// know it cannot speak for the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct SessionId(pub(crate) u64);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Open {
    pub(crate) version: u32,
    /// The connection, which the sender holds already, or is about to.
    pub(crate) session: SessionId,
    /// The sender's name among those of the stream.
    pub(crate) sender: String,
    /// A random number that the sender has for its life: whoever has another one and the same name
    /// is another process, which may only come when this one has ended or was lost.
    pub(crate) life: u64,
    /// The shape of the items, 0 if it is not known.
    pub(crate) schema: u64,
    /// True if the sender goes on where the receiver says; false if it begins at 0 whatever was
    /// before, and is refused if something was.
    pub(crate) resumes: bool,
    /// The first item that the sender can still send.
    pub(crate) from: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Opened {
    /// The item that is next.
    pub(crate) next: u64,
    /// Items below are acknowledged.
    pub(crate) acknowledged: u64,
    /// Bytes that may be without an answer.
    pub(crate) credit: u64,
}

/// The first part of a batch.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) session: SessionId,
    /// The number of the first item.
    pub(crate) first: u64,
    /// Items in it.
    pub(crate) count: u32,
    /// True if no item follows these, for ever.
    pub(crate) is_last: bool,
}

/// A batch that the receiver fetches.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pulled {
    /// Bytes to be fetched, from the beginning of `bulk` on.
    pub(crate) len: u64,
    pub(crate) bulk: Bulk,
    /// `None`: the bytes are the items. Else they are the data of one item, which is this.
    pub(crate) item: Option<Raw>,
}

/// The reason why a receiver does not take something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The session is not known (any more): open it again.
    NoSession,
    /// The receiver has ended, without having taken all.
    Closed,
    /// A stage of the receiver's program has failed.
    Failed(String),
    /// The sender has said what it must not.
    Breach(String),
    /// The stream cannot be opened so.
    Open(String),
    /// Another process has the sender's name, and is not known to be gone.
    InUse,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSession => f.write_str("the receiver does not know the session any more"),
            Self::Closed => f.write_str("the receiver has ended without taking all items"),
            Self::Failed(why) => write!(f, "the receiver has failed: {why}"),
            Self::Breach(what) => write!(f, "the receiver has ended the session: {what}"),
            Self::Open(why) => f.write_str(why),
            Self::InUse => f.write_str("a sender of that name is connected"),
        }
    }
}
