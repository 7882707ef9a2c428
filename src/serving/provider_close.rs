//! The end of a provider, for callers that have to know when its last handler has ended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hg::ProviderId;

use crate::Provider;

impl<T> Provider<T> {
    /// Deregisters its RPCs, as dropping it does, and waits until the handlers whose requests had
    /// arrived have ended and these are answered: for at most `limit`, which counts from now. Then
    /// nothing of this provider runs any more, values that its handlers own have been dropped, and
    /// so its own resources (files, locks) are free. A ULT suspends meanwhile, an OS thread parks.
    /// For a caller that must not wait the limit is zero: in a tasklet, and in a destructor while
    /// its ULT unwinds, since that one's xstream would stand still.
    ///
    /// Returns the object; [`Arc::into_inner`] of it is the value, unless others have it, too.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// use margo::{Instance, ProviderId, Rpc};
    ///
    /// const GET: Rpc<(), String> = Rpc::new("get");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// let text = "what it serves".to_owned();
    /// let provider = service.provider_of(ProviderId::new(1), &service.layout().rpc_pool(), text);
    /// provider.serve(GET).returning_method(|text: &String, _| text.clone())?;
    ///
    /// let object = provider.close(Duration::from_secs(10))?;
    /// assert_eq!(Arc::into_inner(object).as_deref(), Some("what it serves"));
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CloseError`], with the provider, to wait again: some are still in hand. So it always is in
    /// a handler of its own, which waits for itself, and in a child process that was forked off,
    /// where nothing is deregistered: the provider is the parent's.
    ///
    /// Counterpart: none; there a provider counts its handlers itself.
    pub fn close(self, limit: Duration) -> Result<Arc<T>, CloseError<T>> {
        match self.drain(limit) {
            Ok(()) => Ok(self.object().clone()),
            Err(Undrained { reason, .. }) => Err(CloseError { provider: Box::new(self), reason }),
        }
    }

    /// As [`close`](Self::close), of a provider that stays.
    pub(crate) fn drain(&self, limit: Duration) -> Result<(), Undrained> {
        let id = self.id();
        if self.instance().inner().is_forked() {
            return Err(Undrained { id, reason: Reason::Forked });
        }
        self.deregister_all();
        // Another unit of its xstream may be what it waits for.
        let must_not_wait = ult::is_tasklet() || ult::is_ult() && std::thread::panicking();
        let limit = if must_not_wait { Duration::ZERO } else { limit };
        let in_hand = |requests| Undrained { id, reason: Reason::InHand { requests, limit } };
        self.rpcs().wait(limit).map_err(in_hand)
    }
}

/// Why a provider was not drained.
#[derive(Debug)]
pub(crate) struct Undrained {
    id: ProviderId,
    reason: Reason,
}

impl fmt::Display for Undrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.tell(self.id, f)
    }
}

impl std::error::Error for Undrained {}

/// Why [`Provider::close`] gave up. The RPCs of the provider are deregistered all the same.
///
/// ```
/// use std::{sync::mpsc, time::Duration};
///
/// use margo::{Instance, ProviderHandle, ProviderId, Rpc};
///
/// const GET: Rpc<(), u32> = Rpc::new("get");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// let (sender, kept) = mpsc::channel();
/// provider.register(GET, move |request| {
///     let _ = sender.send(request);
/// })?;
/// let target = ProviderHandle::new(service.self_addr(), provider.id());
/// let call = service.rpc(GET, &target, &()).start()?;
/// let request = kept.recv()?;
///
/// let error = provider.close(Duration::ZERO).unwrap_err();
/// assert_eq!(error.requests(), 1);
/// request.respond(&42)?;
/// drop(request);
/// error.into_provider().close(Duration::from_secs(10))?;
/// # assert_eq!(call.wait()?, 42);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CloseError<T> {
    provider: Box<Provider<T>>,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    InHand { requests: usize, limit: Duration },
    Forked,
}

impl Reason {
    fn tell(&self, id: ProviderId, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InHand { requests, limit } => write!(
                f,
                "{requests} requests of provider {id} are still in hand after {limit:?}; close it \
                 again to wait longer, the instance's `monitoring().state_dump()` tells what its \
                 handlers wait for"
            ),
            Self::Forked => write!(
                f,
                "this process was forked off: provider {id} belongs to its parent process"
            ),
        }
    }
}

impl<T> CloseError<T> {
    /// How many of its requests were in hand when the time was over: their handlers run, wait for
    /// an xstream or for a place (`margo.admission`), or have left them unanswered to others.
    pub fn requests(&self) -> usize {
        match self.reason {
            Reason::InHand { requests, .. } => requests,
            Reason::Forked => 0,
        }
    }

    /// The provider, without RPCs: to [close](Provider::close) it again, or to register others.
    pub fn into_provider(self) -> Provider<T> {
        *self.provider
    }
}

impl<T> fmt::Display for CloseError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.tell(self.provider.id(), f)
    }
}

impl<T> fmt::Debug for CloseError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CloseError({self})")
    }
}

impl<T> std::error::Error for CloseError<T> {}
