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
///
/// ```
/// # use na_core as na;
/// use na::{SessionChange, SessionNews, SessionObserver};
///
/// /// A line of a log.
/// fn line(news: &SessionNews<'_>) -> String {
///     let what = match news.change {
///         SessionChange::Begun { .. } => "has come".to_owned(),
///         SessionChange::Ended { reason } => format!("has gone: {reason}"),
///         SessionChange::Refused { reason } => format!("was not let in: {reason}"),
///     };
///     format!("{} ({}) {what}", news.address, news.principal)
/// }
///
/// let observer = SessionObserver::new(|news| println!("{}", line(news)));
/// # const LINE: &str = "b (user 7) has gone: closed";
/// # let observer = SessionObserver::new(|news| assert_eq!(line(news), LINE));
/// # let change = SessionChange::Ended { reason: "closed" };
/// # observer.tell("tcp", "b", na::Principal::User(7), change);
/// ```
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
///
/// ```
/// # use na_core as na;
/// use std::sync::mpsc;
///
/// use na::{SessionChange, SessionObserver};
///
/// let (tell, told) = mpsc::channel();
/// let observer = SessionObserver::new(move |news| {
///     let more = match news.change {
///         SessionChange::Begun { .. } => 1,
///         SessionChange::Ended { .. } => -1,
///         SessionChange::Refused { .. } => 0,
///     };
///     let _ = tell.send(more);
/// });
/// # let begun = SessionChange::Begun { dialed: false };
/// # observer.tell("tcp", "b", na::Principal::Unknown, begun);
/// assert_eq!(told.try_iter().sum::<i32>(), 1, "after the first peer has come");
/// ```
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
