//! The builder of a call: everything that can be said of how an RPC is called, in one place.

use std::fmt;
use std::time::Duration;

use hg::ForwardOptions;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::operation::deadline::CallLimits;
use crate::origin::forward_request::read;
use crate::{
    CallError, Canceler, ForwardError, ForwardRequest, Instance, NoResponse, ProviderHandle, Rpc,
};

/// A call that is about to be made, see [`Instance::rpc`]: how long it may take, and one of the
/// ways to make it.
///
/// | method | the caller | gets |
/// |---|---|---|
/// | [`wait`](Self::wait) | waits | the result |
/// | [`call`](Self::call) | waits | the value of a result that is a `Result` of the service |
/// | [`start`](Self::start) | goes on | a [`ForwardRequest`]: to wait for, to look at, to `.await` |
/// | [`call_back`](Self::call_back) | goes on | a [`Canceler`]; the callback gets the result |
/// | [`send`](Self::send) | waits until it is sent | nothing: the RPC has no response |
/// | [`start_send`](Self::start_send) | goes on | a [`ForwardRequest`] for the end of sending |
///
/// Nothing is sent before one of these.
///
/// ```
/// use std::time::Duration;
///
/// use margo::{Instance, ProviderHandle, Rpc};
///
/// const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
///
/// let service = Instance::builder("na+sm://").start()?;
/// service.serve(SUM).function(|(a, b)| a + b)?;
/// let target = ProviderHandle::from(service.self_addr());
/// let call = service.rpc(SUM, &target, &(40, 2)).timeout(Duration::from_secs(5));
/// assert_eq!(call.wait()?, 42);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is sent until one of its last methods is called"]
pub struct RpcCall<'a, A, R> {
    instance: &'a Instance,
    rpc: Rpc<A, R>,
    to: &'a ProviderHandle,
    args: &'a A,
    limit: Option<Duration>,
}

impl Instance {
    /// Begins to describe a call of `rpc` at `to` with `args`. [`forward`](Self::forward),
    /// [`forward_timed`](Self::forward_timed) and [`send`](Self::send) are short forms of it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use margo::{Instance, ProviderHandle, Rpc};
    ///
    /// const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = Instance::builder("na+sm://").start()?;
    /// service.serve(SUM).function(|(a, b)| a + b)?;
    /// let client = Instance::builder("na+sm://").listen(false).start()?;
    /// let to = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
    ///
    /// let first = client.rpc(SUM, &to, &(1, 2)).timeout(Duration::from_secs(5)).start()?;
    /// let second = client.rpc(SUM, &to, &(3, 4)).start()?;
    /// assert_eq!((first.wait()?, second.wait()?), (3, 7));
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn rpc<'a, A, R>(
        &'a self,
        rpc: Rpc<A, R>,
        to: &'a ProviderHandle,
        args: &'a A,
    ) -> RpcCall<'a, A, R> {
        RpcCall { instance: self, rpc, to, args, limit: None }
    }
}

impl<A, R> RpcCall<'_, A, R> {
    /// Lets the call end with [`ForwardError::TimedOut`] so long after it has been started,
    /// encoding the arguments included. Zero is no time at all. Default: no limit but that of the
    /// request on whose behalf the caller runs
    /// ([`without_deadline`](crate::cancel::without_deadline)).
    #[inline]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }
}

impl<A: Serialize, R: DeserializeOwned> RpcCall<'_, A, R> {
    /// Makes the call and waits for the result: [`Instance::forward`], or
    /// [`Instance::forward_timed`].
    ///
    /// # Errors
    ///
    /// [`ForwardError`]; its [`never_ran`](ForwardError::never_ran) tells when a retry is harmless.
    ///
    /// Counterpart: `margo_provider_forward`, `margo_provider_forward_timed`.
    #[inline]
    pub fn wait(self) -> Result<R, ForwardError> {
        match self.limit {
            None => self.instance.forward(self.rpc, self.to, self.args),
            Some(limit) => self.instance.forward_timed(self.rpc, self.to, self.args, limit),
        }
    }

    /// Starts the call, and returns when the arguments have been encoded: they are not needed any
    /// more. The answer is that of the [`ForwardRequest`], which is a `Future` too. With a
    /// [`timeout`](Self::timeout), the call ends then, whether or not a caller waits for it.
    ///
    /// There is no order among calls in flight, of their handlers or of their answers.
    ///
    /// # Errors
    ///
    /// When nothing was sent: [`ForwardError::Encode`], [`ForwardError::Closing`],
    /// [`ForwardError::Network`].
    ///
    /// Counterpart: `margo_provider_iforward`, `margo_provider_iforward_timed`.
    pub fn start(self) -> Result<ForwardRequest<R>, ForwardError> {
        let limits = CallLimits::of_starter(self.limit);
        let options = ForwardOptions::default();
        self.instance.start_request(options, self.rpc, self.to, self.args, limits, read)
    }

    /// Starts the call, and returns when the arguments have been encoded. When the call is over,
    /// `callback` is called once with its result.
    ///
    /// It runs as a ULT of its own in the default handler pool, so it may wait, make further calls,
    /// and take its time. Only if there is no memory for its stack it is a tasklet, in which
    /// operations that would wait for the network are errors. If it panics, that is logged and
    /// affects nothing else. It is called on errors and cancels too, and when the instance shuts
    /// down. A call with a callback keeps its instance running until it is over.
    ///
    /// The value that is returned can cancel the call; dropping it does nothing.
    ///
    /// ```
    /// # use margo::{Instance, ProviderHandle, Rpc};
    /// # const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # service.serve(SUM).function(|(a, b)| a + b)?;
    /// # let client = Instance::builder("na+sm://").listen(false).start()?;
    /// # let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
    /// let (sender, receiver) = ult::channel::unbounded();
    /// client.rpc(SUM, &target, &(40, 2)).call_back(move |result| {
    ///     let _ = sender.send(result);
    /// })?;
    /// assert_eq!(receiver.recv()??, 42);
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start); `callback` is then dropped and not called.
    ///
    /// Counterpart: `margo_provider_cforward`, which runs the callback in the progress loop, and
    /// `margo_provider_cforward_timed`.
    pub fn call_back<F>(self, callback: F) -> Result<Canceler, ForwardError>
    where
        R: 'static,
        F: FnOnce(Result<R, ForwardError>) + Send + 'static,
    {
        self.instance.start_with_callback(self.rpc, self.to, self.args, self.limit, callback)
    }
}

impl<A, V, E> RpcCall<'_, A, Result<V, E>>
where
    A: Serialize,
    V: DeserializeOwned,
    E: DeserializeOwned,
{
    /// As [`wait`](Self::wait), for RPCs whose result is a `Result`: errors of the application and
    /// of the runtime come as one, told apart by [`CallError`].
    ///
    /// ```
    /// use margo::{CallError, Instance, ProviderHandle, Rpc};
    ///
    /// const PARSE: Rpc<String, Result<i64, String>> = Rpc::new("parse");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// service
    ///     .serve(PARSE)
    ///     .returning(|call| call.args().parse::<i64>().map_err(|error| error.to_string()))?;
    ///
    /// let target = ProviderHandle::from(service.self_addr());
    /// assert!(matches!(service.rpc(PARSE, &target, &"42".to_owned()).call(), Ok(42)));
    /// let error = service.rpc(PARSE, &target, &"x".to_owned()).call().unwrap_err();
    /// assert!(matches!(error, CallError::Service(text) if text.contains("invalid digit")));
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`].
    #[inline]
    pub fn call(self) -> Result<V, CallError<E>> {
        CallError::flatten(self.wait())
    }
}

impl<A: Serialize> RpcCall<'_, A, NoResponse> {
    /// Sends the request, and returns when the transport has taken it, or, for long arguments, when
    /// the target has fetched them: [`Instance::send`]. A request that is late is not sent if that
    /// can be helped, and long arguments are not fetched any more.
    ///
    /// # Errors
    ///
    /// As [`Instance::send`], and [`ForwardError::TimedOut`].
    ///
    /// Counterpart: `margo_forward_timed` of such an RPC, for which zero is no limit.
    pub fn send(self) -> Result<(), ForwardError> {
        let limits = CallLimits::of_caller(self.rpc.name(), self.limit)?;
        self.instance.send_within(self.rpc, self.to, self.args, limits)
    }

    /// As [`send`](Self::send), and returns when the arguments have been encoded: they are not
    /// needed any more. Also for tasklets, which cannot wait. The [`ForwardRequest`] is over when
    /// `send` would return. Dropping it cancels what is not sent yet; to send and forget,
    /// [`detach`](ForwardRequest::detach) it.
    ///
    /// ```
    /// use margo::{Instance, OneWay, ProviderHandle};
    ///
    /// const LOG: OneWay<String> = OneWay::new("log");
    ///
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # let log = ProviderHandle::from(service.self_addr());
    /// let mut lines = Vec::new();
    /// for line in ["one", "two"] {
    ///     lines.push(service.rpc(LOG, &log, &line.to_owned()).start_send()?);
    /// }
    /// service.rpc(LOG, &log, &"three".to_owned()).start_send()?.detach();
    /// for sent in margo::wait_all(lines) {
    ///     sent?;
    /// }
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start); [`ForwardError::TimedOut`] at once for a limit of zero, or if the
    /// deadline of the request on whose behalf the caller runs has passed.
    ///
    /// Counterpart: `margo_iforward` of an RPC with `margo_registered_disable_response`.
    pub fn start_send(self) -> Result<ForwardRequest<()>, ForwardError> {
        let limits = CallLimits::of_starter(self.limit);
        self.instance.start_sending(self.rpc, self.to, self.args, limits)
    }
}

impl<A, R> fmt::Debug for RpcCall<'_, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcCall")
            .field("rpc", &self.rpc.name())
            .field("to", self.to)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
