//! A request as it came in: what it says of itself. `request.rs` has what is done with it.

use std::any::Any;
use std::time::Instant;

use na::{Addr, Endpoint, Principal};

use crate::memory::Payload;
use crate::ops::{RequestExtension, ResponsePath, target_of};
use crate::wire::header::RequestHeader;
use crate::{CallKey, OnBehalfOf, RpcId, TraceParent};

/// A request without where it came from, and where it is handled.
///
/// It is to be dropped as part of a [`RequestHandle`](crate::RequestHandle), which answers it and
/// gives its buffer back; builds with debug assertions panic otherwise.
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
/// # let endpoint = na::open("na+sim://doc-raw-request/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// let raw: &RawRequest = &request;
/// assert_eq!((raw.id(), raw.payload_bytes()), (id, 3));
/// assert!(!raw.is_one_way() && raw.deadline().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the origin waits for an answer"]
pub struct RawRequest {
    pub(crate) header: RequestHeader,
    pub(crate) path: ResponsePath,
    pub(crate) payload: Payload,
    pub(crate) payload_bytes: usize,
    pub(crate) held: bool,
    /// There were plenty of other receives when it came.
    pub(crate) may_keep: bool,
    /// Many others were held when it came.
    pub(crate) is_crowded: bool,
    pub(crate) answered: bool,
    pub(crate) beside: Option<Box<RequestExtension>>,
}

impl Drop for RawRequest {
    fn drop(&mut self) {
        let is_over = self.answered && !self.held && matches!(self.payload, Payload::None);
        debug_assert!(is_over || std::thread::panicking(), "dropped in hand: {self:?}");
    }
}

impl RawRequest {
    /// Returns the id of the RPC that is called.
    #[inline]
    pub fn id(&self) -> RpcId {
        self.header.id
    }

    /// Returns whether the origin wants no response.
    #[inline]
    pub fn is_one_way(&self) -> bool {
        self.header.no_response
    }

    /// The time at which the origin gives up, by this host's clock, if it has named one. It is
    /// later than the origin's by the least time that its requests take, or by the time that this
    /// one took if it is the first with a deadline. It is earlier only after the origin's clock
    /// stood still, as in a suspend of its host. For a request that has expired on its way it is
    /// the time of arrival.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.beside.as_ref()?.deadline
    }

    /// Returns the trace that this request is part of, across processes, if the origin has named
    /// one.
    #[inline]
    pub fn trace(&self) -> Option<TraceParent> {
        self.beside.as_ref()?.trace
    }

    /// Names this call for [`Sink::canceled`](crate::Sink::canceled), together with its origin.
    /// `None`: its origin does not wait for its end, so it will not give it up.
    #[inline]
    pub fn call_key(&self) -> Option<CallKey> {
        if self.header.no_response { None } else { CallKey::of(self.path) }
    }

    /// Returns whether this core, or another one of its group, called itself, which no peer can
    /// pretend. Where such calls take the network ([`HgOptions::loopback`]) a secret tells, but not
    /// over a transport that [carries no extensions](na::Endpoint::carries_extensions): there this
    /// is `false`.
    ///
    /// [`HgOptions::loopback`]: crate::HgOptions::loopback
    #[inline]
    pub fn is_from_ourselves(&self) -> bool {
        !matches!(self.path, ResponsePath::Network(_))
            || self.beside.as_ref().is_some_and(|beside| beside.is_own)
    }

    /// Returns who is behind `origin`, which has sent it: as this request has proven, if it proves
    /// anything ([`HgOptions::membership`](crate::HgOptions::membership)), else as the endpoint by
    /// which it came tells.
    #[inline]
    pub fn principal(&self, endpoint: &dyn Endpoint, origin: &Addr) -> Principal {
        self.proven().unwrap_or_else(|| endpoint.principal(origin))
    }

    /// Returns on whose behalf the call is made, as its origin says.
    #[inline]
    pub fn on_behalf_of(&self) -> Option<&OnBehalfOf> {
        self.beside.as_ref()?.on_behalf_of.as_deref()
    }

    /// Takes what [`on_behalf_of`](Self::on_behalf_of) says.
    #[inline]
    pub fn take_on_behalf_of(&mut self) -> Option<Box<OnBehalfOf>> {
        self.beside.as_mut()?.on_behalf_of.take()
    }

    /// Returns who has proven by this request to be behind it.
    #[inline]
    pub fn proven(&self) -> Option<Principal> {
        self.beside.as_ref()?.proven
    }

    /// Returns whether so many requests were held when it came, of those that may be
    /// ([`HgOptions::requests_max`](crate::HgOptions::requests_max)), that whose they are is to be
    /// looked at.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Keeps something until the request is held no longer, and then drops it.
    pub fn set_place(&mut self, place: Box<dyn Any + Send + Sync>) {
        let new = || RequestExtension::new(None, None);
        self.beside.get_or_insert_with(new).place = Some(place);
    }

    /// Keeps something until the request is answered or [taken](Self::take_charge), and then drops
    /// it.
    pub fn set_charge(&mut self, charge: Box<dyn Any + Send + Sync>) {
        let new = || RequestExtension::new(None, None);
        self.beside.get_or_insert_with(new).charge = Some(charge);
    }

    /// Takes what [`set_charge`](Self::set_charge) keeps.
    #[inline]
    pub fn take_charge(&mut self) -> Option<Box<dyn Any + Send + Sync>> {
        self.beside.as_mut()?.charge.take()
    }

    /// Returns whether its arguments did not fit into its message.
    #[inline]
    pub fn was_fetched(&self) -> bool {
        matches!(self.payload, Payload::Overflow(_))
    }

    /// The number of the shard that the origin wants to handle it, if it wants a certain one. The
    /// origin may name one that is not there.
    #[inline]
    pub fn target(&self) -> Option<u8> {
        match self.path {
            ResponsePath::Network(tag) => target_of(tag),
            ResponsePath::Local(_) | ResponsePath::None => None,
        }
    }

    /// The number of the shard, or C's context, that the origin called from.
    #[inline]
    pub fn cookie(&self) -> u8 {
        self.header.cookie
    }

    /// The bytes behind Mercury's headers; empty after
    /// [`release_payload`](crate::RequestHandle::release_payload).
    ///
    /// Counterpart: `HG_Get_input_buf`, `HG_Get_input_extra_buf`.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.payload.as_slice()
    }

    /// How many bytes of payload came, overflowed ones included; also after
    /// [`release_payload`](crate::RequestHandle::release_payload).
    ///
    /// Counterpart: `HG_Get_input_payload_size`.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// In a child process that was forked off: answers nothing, and leaves what it holds where it
    /// is. All of that is the parent's.
    pub fn leave_to_parent(&mut self) {
        std::mem::forget(self.take());
    }

    /// Takes everything out: what stays needs nothing any more.
    pub(crate) fn take(&mut self) -> Self {
        let Self { header, path, payload_bytes, may_keep, is_crowded, .. } = *self;
        Self {
            header,
            path,
            payload: std::mem::replace(&mut self.payload, Payload::None),
            payload_bytes,
            held: std::mem::take(&mut self.held),
            may_keep,
            is_crowded,
            answered: std::mem::replace(&mut self.answered, true),
            beside: self.beside.take(),
        }
    }
}
