//! The ends of operations, and what they leave behind.

use na::{Addr, Tag};

use crate::memory::ExposedPayload;
use crate::ops::{IncomingRequest, ResponsePath, Role};
use crate::{HgError, OpRef, Response};

/// An event that is to be told to the sink.
#[derive(Debug)]
pub(crate) enum Event<T> {
    Request(IncomingRequest),
    Response { token: T, result: Result<Response, HgError> },
    Responded { token: T, result: Result<(), HgError> },
    Bulk { token: T, result: Result<u64, HgError> },
    Canceled { origin: Addr, call: CallKey },
    Unread { origin: Addr, call: CallKey },
    PeerGone(Addr),
}

pub(crate) fn has_token<T>(event: &Event<T>) -> bool {
    !matches!(
        event,
        Event::Request(_) | Event::Canceled { .. } | Event::Unread { .. } | Event::PeerGone(_)
    )
}

/// Names a call among those of its origin that are in flight. A later call may have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallKey(u64);

impl CallKey {
    #[inline]
    pub(crate) fn of(path: ResponsePath) -> Option<Self> {
        match path {
            ResponsePath::Network(tag) => Some(Self::network(tag)),
            ResponsePath::Local(op) => Some(Self::local(op)),
            ResponsePath::None => None,
        }
    }

    /// The key of a call that came over the network with this tag.
    #[inline]
    pub fn network(tag: Tag) -> Self {
        Self(tag.0.into())
    }

    pub(crate) fn local(op: OpRef) -> Self {
        Self(1 << 63 | op.number())
    }

    /// The key of the call after this one; for tests.
    #[doc(hidden)]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// One of 64, the same for the same key; calls that follow each other have different ones.
    #[inline]
    pub fn lane(self) -> usize {
        (self.0 % 64) as usize
    }
}

/// The remains of an operation that is given up.
pub(crate) struct Ended {
    /// The parts, to be canceled.
    pub(crate) parts: Vec<Role>,
    /// Memory that its peer may not fetch any more, to be dropped outside of the lock.
    pub(crate) revoked: Option<Box<ExposedPayload>>,
}

impl Ended {
    /// Collects those of `parts` that are under way (`true`).
    pub(crate) fn of<const N: usize>(
        parts: [(bool, Role); N],
        revoked: Option<Box<ExposedPayload>>,
    ) -> Self {
        let flying = |(flying, role): (bool, Role)| flying.then_some(role);
        Self { parts: parts.into_iter().filter_map(flying).collect(), revoked }
    }
}
