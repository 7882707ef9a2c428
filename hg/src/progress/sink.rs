//! The layer above, as the core sees it.

use std::sync::Arc;

use na::Addr;

use crate::{CallKey, Core, HgError, RequestHandle, RequestParts, Response};

/// The receiver of events: operations that end, and requests that arrive. It is called by
/// [`Core::poll`] and [`Core::trigger`], and must not call them in turn.
///
/// ```
/// # use hg::*;
/// /// Answers requests with their arguments; remembers the last result.
/// #[derive(Default)]
/// struct Echo(Option<Result<Response, HgError>>);
///
/// impl Sink<u32> for Echo {
///     fn request(&mut self, mut request: RequestHandle<u32>) {
///         let args = request.input(<[u8]>::to_vec);
///         if let Err(refused) = request.respond(|out| out.put(&args), 0) {
///             eprintln!("no answer: {}", refused.0);
///         }
///     }
///     fn response(&mut self, _: u32, result: Result<Response, HgError>) {
///         self.0 = Some(result);
///     }
///     fn responded(&mut self, _: u32, _: Result<(), HgError>) {}
///     fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
/// }
///
/// # let endpoint = na::open("na+sim://doc-sink/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"hello"), 7)
///     .map_err(|refused| refused.0)?;
/// let mut echo = Echo::default();
/// while echo.0.is_none() {
///     core.poll(16, &mut echo)?;
/// }
/// assert!(matches!(echo.0, Some(Ok(response)) if response.payload() == b"hello"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: the callbacks of `HG_Trigger`.
pub trait Sink<T> {
    /// A request arrived, with all of its arguments.
    fn request(&mut self, request: RequestHandle<T>);
    /// A request arrived, for a sink that has counts of the core and of origins' addresses anyhow
    /// and wants no other ones. The sink takes over the duty to answer. Default: passes a handle to
    /// [`request`](Self::request).
    fn request_parts(&mut self, core: &Arc<Core<T>>, parts: RequestParts) {
        self.request(parts.into_handle(core));
    }
    /// A call ended. A one-way call ends with an empty response.
    fn response(&mut self, token: T, result: Result<Response, HgError>);
    /// An answer was sent, and fetched if it had overflowed. If it had, origins of ours tell when
    /// it was not read: [`HgError::GivenUp`], [`HgError::Unread`].
    fn responded(&mut self, token: T, result: Result<(), HgError>);
    /// The origin of a request has given it up: it does not wait for the answer any more. Told also
    /// of requests that were answered meanwhile, or never came. Default: nothing.
    fn canceled(&mut self, origin: &Addr, call: CallKey) {
        let _ = (origin, call);
    }
    /// The origin of a request could not read its answer, which was damaged on the way: its call
    /// has failed. Only our own peers say so, and one that means harm may say it of any call.
    /// Counted ([`Counters::resp_unread`](crate::Counters)). Default: nothing.
    fn answer_unread(&mut self, origin: &Addr, call: CallKey) {
        let _ = (origin, call);
    }
    /// A peer that was [watched](Core::watch_peer) is gone; it is watched no longer. Default:
    /// nothing.
    fn peer_gone(&mut self, peer: &Addr) {
        let _ = peer;
    }
    /// A bulk transfer ended: bytes moved.
    fn bulk(&mut self, token: T, result: Result<u64, HgError>);
}
