//! The layer above, as the core sees it.

use std::sync::Arc;

use na::Addr;

use crate::{CallKey, Core, HgError, RequestHandle, RequestParts, Response};

/// The receiver of events: operations that end, and requests that arrive. It is called by
/// [`Core::poll`] and [`Core::trigger`], and must not call them in turn.
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
