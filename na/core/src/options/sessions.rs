//! The observer of sessions: told who has connected, who was not let in, and who has gone.

use std::fmt;
use std::sync::Arc;

use crate::Principal;

type Tell = dyn Fn(&SessionNews<'_>) + Send + Sync;

/// An observer of sessions with peers, for [`OpenOptions::sessions`](crate::OpenOptions).
///
/// ```
/// # use na_core as na;
/// use na::{OpenOptions, SessionChange, SessionObserver};
///
/// let mut options = OpenOptions::listening(true);
/// options.sessions = Some(SessionObserver::new(|news| {
///     if let SessionChange::Refused { reason } = news.change {
///         eprintln!("{} ({}) was not let in: {reason}", news.address, news.principal);
///     }
/// }));
/// ```
#[derive(Clone)]
pub struct SessionObserver(Arc<Tell>);

/// A change in the session with a peer.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SessionNews<'a> {
    /// The transport of the session.
    pub transport: &'static str,
    /// The address of the peer: that by which it was looked up, or else the one that it announces,
    /// or where it comes from.
    pub address: &'a str,
    /// The user, host or name behind it, as far as it is proven.
    pub principal: Principal,
    /// The change.
    pub change: SessionChange<'a>,
}

/// The kind of a [`SessionNews`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionChange<'a> {
    /// Messages can be exchanged: all that is to be proven is.
    Begun {
        /// The connection was made by this side.
        dialed: bool,
    },
    /// A session that had begun is over.
    Ended {
        /// A text for people.
        reason: &'a str,
    },
    /// A connection has come to nothing: its other end was not let in, or not believed, or has left
    /// before it was known.
    Refused {
        /// A text for people.
        reason: &'a str,
    },
}

impl SessionObserver {
    /// `tell` is called by `poll`, so it must neither wait nor call the endpoint.
    pub fn new(tell: impl Fn(&SessionNews<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Tells of a change.
    #[doc(hidden)]
    pub fn tell(
        &self,
        transport: &'static str,
        address: &str,
        principal: Principal,
        change: SessionChange<'_>,
    ) {
        (self.0)(&SessionNews { transport, address, principal, change });
    }
}

impl fmt::Debug for SessionObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionObserver")
    }
}

impl PartialEq for SessionObserver {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
