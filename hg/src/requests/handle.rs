//! Requests at the target, their answers, and responses at the origin.
//!
//! A request is answered once: by [`RequestHandle::respond`], by [`RequestHandle::reject`], or,
//! when it is dropped without either, by an error in its stead, so that no origin waits for ever.

use std::borrow::{Borrow, BorrowMut};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use na::Addr;

use crate::{Core, HgError, OpRef, ProcError, RawRequest, Registration, ReturnCode, Writer};

/// A request that arrived, with all of its arguments. Its contents are read through [`RawRequest`].
///
/// It owns a count of its core and of its origin's address. A caller that has both anyhow may keep
/// the [`RawRequest`] instead, and lend them and it for the answer.
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
/// # let endpoint = na::open("na+sim://doc-request-handle/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// assert_eq!((request.id(), request.origin()), (id, &own));
/// assert_eq!(request.payload(), b"1 2");
/// request.reject(ReturnCode::Permission);
/// while notes.ended.is_empty() {
///     core.poll(16, &mut notes)?;
/// }
/// assert!(matches!(notes.ended[0], Err(HgError::Remote(ReturnCode::Permission))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: `hg_handle_t` at the target.
pub struct RequestHandle<T, C = Arc<Core<T>>, O = Addr, R = RawRequest>
where
    C: Deref<Target = Core<T>>,
    O: Borrow<Addr>,
    R: BorrowMut<RawRequest>,
{
    core: C,
    origin: O,
    raw: R,
    registration: Option<Arc<Registration>>,
}

/// A [`RequestHandle`] for a caller that has all of its parts and keeps them.
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
/// # let endpoint = na::open("na+sim://doc-lent-request/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// let (core, mut parts) = request.into_parts();
/// let lent = LentRequest::of(&core, &parts.origin, &mut parts.request);
/// let sent = lent.respond(|out| out.put(b"3"), 8).map_err(|refused| refused.0)?;
/// assert!(matches!(sent, Sent::Done(8)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type LentRequest<'a, T> = RequestHandle<T, &'a Core<T>, &'a Addr, &'a mut RawRequest>;

/// A [`RequestHandle`] in its parts.
///
/// Dropping them answers nothing, and the origin waits.
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
/// # let endpoint = na::open("na+sim://doc-request-parts/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// let (core, parts) = request.into_parts();
/// assert_eq!(parts.request.payload(), b"1 2");
/// parts.into_handle(&core).reject(ReturnCode::Busy); // or another answer
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the origin waits for an answer"]
pub struct RequestParts {
    /// The peer that sent the request. Bulk handles among the arguments belong to this peer.
    pub origin: Addr,
    /// The request itself, and the duty to answer it.
    pub request: RawRequest,
    /// The registration of the RPC, if it has data.
    pub registration: Option<Arc<Registration>>,
}

impl RequestParts {
    /// Puts them together. `core` is the one that the request came by.
    pub fn into_handle<T>(self, core: &Arc<Core<T>>) -> RequestHandle<T> {
        let Self { origin, request, registration } = self;
        RequestHandle { core: core.clone(), origin, raw: request, registration }
    }
}

impl<T> RequestHandle<T> {
    /// The core that it came by, and the rest.
    pub fn into_parts(mut self) -> (Arc<Core<T>>, RequestParts) {
        let (origin, request) = (self.origin.clone(), self.raw.take());
        let registration = self.registration.take();
        (self.core.clone(), RequestParts { origin, request, registration })
    }
}

impl<T, C: Deref<Target = Core<T>>, O: Borrow<Addr>, R: BorrowMut<RawRequest>>
    RequestHandle<T, C, O, R>
{
    /// Makes a handle of parts, which may be lent to it for the answer.
    #[inline]
    pub fn of(core: C, origin: O, request: R) -> Self {
        Self { core, origin, raw: request, registration: None }
    }

    /// Returns the peer that sent the request. Bulk handles among the arguments belong to this
    /// peer.
    pub fn origin(&self) -> &Addr {
        self.origin.borrow()
    }

    /// The number of the shard by which it came. Counterpart: `HG_Get_info`.
    pub fn shard(&self) -> u8 {
        self.core.id
    }

    /// Returns the data that the RPC was registered with when the request was handed up, if it is
    /// of type `D`. It is also there when the RPC was replaced or deregistered since.
    ///
    /// Counterpart: `HG_Registered_data`.
    pub fn data<D: std::any::Any>(&self) -> Option<&D> {
        self.registration.as_ref()?.data_as()
    }

    /// Returns the registration of the RPC, with its data, name and number, if it was registered
    /// with data.
    pub fn registration(&self) -> Option<&Arc<Registration>> {
        self.registration.as_ref()
    }

    /// Reads the arguments. With [`HgOptions::release_input_early`](crate::HgOptions) this can be
    /// done once: the payload is released afterwards.
    ///
    /// Counterpart: `HG_Get_input`.
    pub fn input<V>(&mut self, read: impl FnOnce(&[u8]) -> V) -> V {
        let result = read(self.raw.borrow().payload());
        if self.core.options.release_input_early {
            self.release_payload();
        }
        result
    }

    /// See [`RawRequest::payload_was_read`].
    pub fn payload_was_read(&mut self) {
        self.raw.borrow_mut().payload_was_read(&self.core);
    }

    /// Gives the receive buffer back before the request is answered, so that a long-running handler
    /// does not hold one.
    ///
    /// Counterpart: `HG_Release_input_buf`.
    pub fn release_payload(&mut self) {
        self.raw.borrow_mut().release_payload(&self.core);
    }

    /// Answers: what `encode` writes follows Mercury's headers. If the answer is not over at once,
    /// `token` comes back through [`Sink::responded`](crate::Sink::responded); see [`Sent`].
    ///
    /// # Errors
    ///
    /// [`HgError::NoResponse`] if the origin wants no response. With [`HgError::Proc`] and
    /// [`HgError::Unfetched`] the request comes back, still unanswered; with others it is gone, and
    /// the origin is told if it can be. `token` is dropped, and does not come back.
    ///
    /// Counterpart: `HG_Respond`.
    pub fn respond(
        mut self,
        encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
        token: T,
    ) -> Result<Sent<T>, Box<(HgError, Option<Self>)>> {
        let raw = self.raw.borrow_mut();
        match raw.respond(&self.core, self.origin.borrow(), encode, token) {
            Ok(sent) => Ok(sent),
            Err(error @ (HgError::Proc(_) | HgError::Unfetched { .. })) => {
                Err(Box::new((error, Some(self))))
            }
            // If the origin can be told at all, it is told when this is dropped.
            Err(error) => Err(Box::new((error, None))),
        }
    }

    /// Answers in Mercury's header alone that the request was not taken: the origin gets
    /// [`HgError::Remote`]. Nothing is sent to an origin that wants no response.
    pub fn reject(mut self, code: ReturnCode) {
        self.raw.borrow_mut().answer_with_code(&self.core, self.origin.borrow(), code);
    }
}

impl<T, C: Deref<Target = Core<T>>, O: Borrow<Addr>, R: BorrowMut<RawRequest>> Deref
    for RequestHandle<T, C, O, R>
{
    type Target = RawRequest;

    fn deref(&self) -> &RawRequest {
        self.raw.borrow()
    }
}

impl<T, C: Deref<Target = Core<T>>, O: Borrow<Addr>, R: BorrowMut<RawRequest>> Drop
    for RequestHandle<T, C, O, R>
{
    #[inline]
    fn drop(&mut self) {
        self.raw.borrow_mut().end(&self.core, self.origin.borrow());
    }
}

impl<T, C: Deref<Target = Core<T>>, O: Borrow<Addr>, R: BorrowMut<RawRequest>> fmt::Debug
    for RequestHandle<T, C, O, R>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestHandle({} from {})", self.id(), self.origin())
    }
}

/// The state of an answer that was given.
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
/// # let endpoint = na::open("na+sim://doc-sent/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// match request.respond(|out| out.put(b"3"), 8).map_err(|refused| refused.0)? {
///     Sent::Done(token) => assert_eq!(token, 8),
///     Sent::InFlight(answer) => core.cancel(answer), // if it takes too long
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an answer that is over gives its token back here, and not through the sink"]
pub enum Sent<T> {
    /// It was sent, or handed over to ourselves. The sink is not told.
    Done(T),
    /// The end is told to the sink; until then it can be canceled.
    InFlight(OpRef),
}
