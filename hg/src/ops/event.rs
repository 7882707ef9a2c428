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
///
/// ```
/// # use hg::*;
/// # #[derive(Default)]
/// # struct Notes { requests: Vec<RequestHandle<u32>>, ended: Vec<Result<Response, HgError>> }
/// # impl Sink<u32> for Notes {
/// #     fn request(&mut self, request: RequestHandle<u32>) { self.requests.push(request); }
/// #     fn response(&mut self, _: u32, end: Result<Response, HgError>) { self.ended.push(end); }
/// #     fn responded(&mut self, _: u32, _: Result<(), HgError>) {}
/// #     fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
/// # }
/// # let mut notes = Notes::default();
/// # let endpoint = na::open("na+sim://doc-call-key/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// for options in [ForwardOptions::default(), ForwardOptions::one_way()] {
///     core.forward(&own, id, options, |_| Ok(()), 7).map_err(|refused| refused.0)?;
/// }
/// core.poll(16, &mut notes)?;
/// let keys: Vec<Option<CallKey>> = notes.requests.iter().map(|one| one.call_key()).collect();
/// assert!(keys[0].is_some() && keys[1].is_none(), "nobody waits for the second");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
