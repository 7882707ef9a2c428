//! Watching a peer: learning that it is gone, while no answer of it is awaited.
//!
//! The transport reports the end of a peer by ending the operations that wait for it. So a watch is
//! a receive from that peer under a tag that nothing uses: see [`WATCH`]. It costs a message
//! buffer, and the peer nothing.

use na::{Addr, OpId, Tag};

use crate::ops::{Event, Role};
use crate::{Core, HgError, OpRef};

/// The tag of watches. Our own calls never have it ([`Space::tag`](crate::ops::Space::tag)); a
/// response of a C peer under it would have to be to a call of ours.
pub(crate) const WATCH: Tag = Tag(u32::MAX);

/// A watch of a peer.
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
/// # let endpoint = na::open("na+sim://doc-watch/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let other = na::open("na+sim://doc-watch/b", &na::OpenOptions::listening(true))?;
/// let peer = core.lookup(other.self_addr().uri())?;
/// let watch: Watch = core.watch_peer(&peer)?;
/// assert_eq!(core.endpoint().stats().peers[0].awaited.len(), 1, "a receive");
/// core.unwatch_peer(watch);
/// core.poll(16, &mut notes)?;
/// assert!(core.endpoint().stats().peers.iter().all(|peer| peer.awaited.is_empty()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch(OpId);

impl Watch {
    /// A watch with this number; for tests.
    #[doc(hidden)]
    pub fn numbered(number: u64) -> Self {
        Self(OpId(number))
    }
}

impl<T> Core<T> {
    /// Tells [`Sink::peer_gone`](crate::Sink::peer_gone), once, when `peer` is gone: its process
    /// has ended, or its connection. If the peer is gone already, and has an address under which it
    /// may come back, that is not told before it has come and gone again. Returns the name of the
    /// watch.
    ///
    /// # Errors
    ///
    /// [`HgError`] when the network refuses.
    pub fn watch_peer(&self, peer: &Addr) -> Result<Watch, HgError> {
        let name = OpRef::single(Role::Watch, self.id, self.counts.loose.bump());
        self.post_watch(name, peer).map(|()| Watch(name))
    }

    fn post_watch(&self, name: OpId, peer: &Addr) -> Result<(), HgError> {
        let (op, _) = OpRef::parse(name);
        self.state().watched.insert(op, peer.clone());
        let buf = self.buffers.take();
        self.endpoint.recv_expected(name, peer, WATCH, buf).map_err(|refused| {
            self.buffers.put(refused.buf);
            self.state().watched.remove(&op);
            refused.error.into()
        })
    }

    /// Ends a watch of [`watch_peer`](Self::watch_peer), and frees what it holds. Nothing, if it
    /// has ended. Any shard may be asked, whichever watches.
    pub fn unwatch_peer(&self, watch: Watch) {
        match OpRef::parse(watch.0).0.shard() {
            own if own == self.id => self.endpoint.cancel(watch.0),
            other => {
                if let Some(other) = self.class.get(other) {
                    other.endpoint.cancel(watch.0);
                }
            }
        }
    }

    /// The receive of a watch ended.
    pub(crate) fn on_watch(&self, op: OpRef, result: Result<(), na::Error>) -> Option<Event<T>> {
        let peer = self.state().watched.remove(&op)?;
        match result {
            Err(na::Error::Closed | na::Error::Canceled) => None,
            Err(_) => Some(Event::PeerGone(peer)),
            Ok(()) => {
                // A peer that breaks the rules; watch on, if that can be.
                match self.post_watch(op.part(Role::Watch), &peer) {
                    Ok(()) | Err(HgError::Closed | HgError::Na(na::Error::Closed)) => None,
                    Err(_) => Some(Event::PeerGone(peer)),
                }
            }
        }
    }
}
