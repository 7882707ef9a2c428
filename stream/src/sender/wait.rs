//! Waiting for a receiver: for its answers, or for a new connection when it is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::ForwardRequest;
use ult::{Eventual, Selectable};

use crate::error::{ConnectError, SendError};
use crate::sender::state::Shared;
use crate::spec::Delivery;
use crate::wire::Taken;

/// The pause behind a new connection: not in a circle without one if it breaks at once, again and
/// again.
const PAUSE: Duration = Duration::from_millis(5);

impl Shared {
    /// Waits until something may have changed for a link: for the answer of its oldest batch, for
    /// the end of its receiver, or, if the link is broken, for a new connection, by which what has
    /// no answer is repeated.
    ///
    /// # Errors
    ///
    /// The link has failed.
    pub(super) fn wait_for_answer(&self, at: usize) -> Result<(), SendError> {
        let mut state = self.state.lock();
        let link = &mut state.links[at];
        link.reap();
        if let Some(error) = &link.failed {
            return Err(error.clone());
        }
        if let Some(other) = link.lifted.clone() {
            // Somebody else waits for the same, and looks then.
            drop(state);
            other.wait_ready();
            return Ok(());
        }
        if link.connection.is_some() && link.window.is_empty() {
            return Ok(());
        }
        let event = Arc::new(Eventual::new());
        link.lifted = Some(event.clone());
        let instance = link.connection.as_ref().map(|connection| connection.instance.clone());
        let lifted = Lifted {
            request: link.window.front_mut().and_then(|front| front.request.take()),
            hold: link.connection.as_mut().and_then(|connection| connection.hold.take()),
            shared: self,
            event,
            at,
        };
        drop(state);
        let Some(instance) = instance else {
            drop(lifted.reconnect());
            let link = &self.state.lock().links[at];
            return link.failed.clone().map_or(Ok(()), Err);
        };
        let ready: [Option<&dyn Selectable>; 2] = [
            lifted.request.as_ref().map(ForwardRequest::ready),
            lifted.hold.as_ref().map(ForwardRequest::ready),
        ];
        let ready: Vec<_> = ready.into_iter().flatten().collect();
        instance.wait_any(&ready, None);
        Ok(())
    }
}

/// The oldest call of a link, and the one that holds its session, which are waited for without the
/// lock. They are put back, also if the ULT that waits is cancelled.
struct Lifted<'a> {
    request: Option<ForwardRequest<Taken>>,
    hold: Option<ForwardRequest<Taken>>,
    shared: &'a Shared,
    event: Arc<Eventual<()>>,
    at: usize,
}

impl Lifted<'_> {
    /// Connects a broken link again.
    fn reconnect(self) -> Self {
        let Delivery::Replay { patience } = self.shared.spec.delivery else { return self };
        let (peer, from) = {
            let mut state = self.shared.state.lock();
            let link = &mut state.links[self.at];
            (link.peer.clone(), link.from())
        };
        let until = Instant::now().checked_add(patience);
        let connected = peer.connect(from, patience);
        let (stream, address) = (peer.stream, peer.address.clone());
        let failed = match connected {
            Ok((connection, opened)) => {
                let mut state = self.shared.state.lock();
                state.links[self.at].reconnected(connection, &opened);
                drop(state);
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                ult::sleep(left.unwrap_or(PAUSE).min(PAUSE));
                return self;
            }
            Err(ConnectError::Refused { why, .. }) => SendError::Refused { stream, address, why },
            Err(ConnectError::Unreachable { source, .. }) => {
                SendError::Lost { stream, address, source: Arc::new(*source) }
            }
            Err(error) => SendError::Refused { stream, address, why: error.to_string() },
        };
        self.shared.state.lock().links[self.at].failed = Some(failed);
        self
    }
}

impl Drop for Lifted<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let link = &mut state.links[self.at];
        link.lifted = None;
        if let Some(request) = self.request.take()
            && let Some(front) = link.window.front_mut()
        {
            front.request = Some(request);
        }
        if let Some(hold) = self.hold.take()
            && let Some(connection) = &mut link.connection
        {
            connection.hold = Some(hold);
        }
        // What is answered, or cannot be answered any more, gives back what was lent with it.
        link.reap();
        drop(state);
        let _ = self.event.set(());
    }
}
