//! Calls that go on while their caller does.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use margo::encoding::Bytes;
use margo::ult::{JoinFuture, PoolRef, Selectable};
use margo::{ForwardError, ForwardRequest};
use serde::de::DeserializeOwned;

use super::KvClient;
use super::member::Clock;
use crate::model::Condition;
use crate::rpc::{Found, GET, GetArgs, PUT};
use crate::{ClientError, KvError};

/// A call of a [`KvClient`] in flight, made by [`start_get`](KvClient::start_get) or
/// [`start_put`](KvClient::start_put): to wait for, to await, to cancel.
///
/// Where the key has moved meanwhile, who waits makes the call again at its new owner, within its
/// limit. Dropping the request cancels the call.
///
/// ```
/// # use margo::{Instance, ProviderHandle, ProviderId};
/// # use margo_provider_kv::*;
/// # let limit = std::time::Duration::from_secs(10);
/// # let service = Instance::builder("na+sm://").start()?;
/// # let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// # let config = KvConfig::new(StoreConfig::memory(MemoryOrder::Ordered));
/// # let running = KvProvider::start(provider, &config)?;
/// # let target = ProviderHandle::new(service.self_addr(), ProviderId::new(1));
/// # let kv = KvClient::new(&service, target);
/// use margo_provider_kv::KvRequest;
///
/// // All are on their way before the first one is waited for.
/// let puts: Vec<KvRequest<u64>> = (0..100u8)
///     .map(|number| kv.start_put(&[number], b"value", limit))
///     .collect::<Result<_, _>>()?;
/// for put in puts {
///     put.wait()?;
/// }
/// // In async code, on any executor.
/// let found = margo::ult::block_on(kv.start_get(&[7], 100, limit)?)?;
/// assert_eq!(found.value.0, b"value");
/// # drop(running);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a request cancels the call; use `wait`"]
pub struct KvRequest<R> {
    state: State<R>,
    /// Where a ULT follows the key for a task, which must not wait.
    pool: PoolRef,
}

/// Makes a call again that was told that its key has moved.
type Again<R> = Box<dyn FnOnce(KvError) -> Result<R, ClientError> + Send>;

enum State<R> {
    /// The answer of the owner that was known, and what is to be done if that is one no more.
    First(ForwardRequest<Result<R, KvError>>, Again<R>),
    /// A ULT makes the call again.
    Followed(JoinFuture<Result<R, ClientError>>),
    /// The result was given to a task.
    Over,
}

impl<R: DeserializeOwned + Send + 'static> KvRequest<R> {
    /// Waits for the result. A ULT suspends, an OS thread parks.
    ///
    /// # Errors
    ///
    /// As of the method whose name the call has behind `start_`.
    ///
    /// # Panics
    ///
    /// If the result was awaited before.
    pub fn wait(self) -> Result<R, ClientError> {
        match self.state {
            State::First(request, again) => match request.wait()? {
                Err(moved @ KvError::Moved { .. }) => again(moved),
                answered => Ok(answered?),
            },
            State::Followed(followed) => match followed.into_handle() {
                Some(handle) => ended(handle.join()),
                None => unreachable!("a future that is polled to its end is dropped"),
            },
            State::Over => panic!("the result was awaited before"),
        }
    }

    /// Returns whether there is an answer, so that [`wait`](Self::wait) would not wait, unless it
    /// says that the key has moved. Never waits.
    #[must_use]
    pub fn test(&self) -> bool {
        match &self.state {
            State::First(request, _) => request.test(),
            State::Followed(_) => false,
            State::Over => true,
        }
    }

    /// Ends the call early: see [`ForwardRequest::cancel`]. Never waits. A change may have been
    /// made all the same.
    pub fn cancel(&self) {
        match &self.state {
            State::First(request, _) => request.cancel(),
            State::Followed(followed) => followed.cancel(),
            State::Over => {}
        }
    }

    /// Returns the object to pass to [`margo::ult::wait_any`]: it is ready when there is an answer.
    /// `None`: the request was awaited before.
    pub fn ready(&self) -> Option<&dyn Selectable> {
        match &self.state {
            State::First(request, _) => Some(request.ready()),
            State::Followed(_) | State::Over => None,
        }
    }
}

/// The result of a ULT that has made the call.
fn ended<R>(
    joined: Result<Result<R, ClientError>, margo::ult::JoinError>,
) -> Result<R, ClientError> {
    joined.unwrap_or_else(|error| Err(KvError::Failed(error.to_string()).into()))
}

/// The result of the call. May be polled on any executor. Dropped before its end, it cancels the
/// call, but for one that follows its key already, which ends by its limit.
impl<R: DeserializeOwned + Send + 'static> Future for KvRequest<R> {
    type Output = Result<R, ClientError>;

    /// # Panics
    ///
    /// If it has returned a result before.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let State::First(request, _) = &mut this.state {
            let answered = ready!(Pin::new(request).poll(cx));
            let State::First(_, again) = std::mem::replace(&mut this.state, State::Over) else {
                unreachable!("it is no other one meanwhile");
            };
            match answered? {
                Err(moved @ KvError::Moved { .. }) => {
                    let told = moved.clone();
                    match this.pool.spawn(move || again(told)) {
                        Ok(handle) => this.state = State::Followed(handle.into_future()),
                        // There is nobody to follow it.
                        Err(_) => return Poll::Ready(Err(moved.into())),
                    }
                }
                answered => return Poll::Ready(Ok(answered?)),
            }
        }
        let State::Followed(followed) = &mut this.state else {
            panic!("`KvRequest` was polled after its end");
        };
        let joined = ready!(Pin::new(followed).poll(cx));
        this.state = State::Over;
        Poll::Ready(ended(joined))
    }
}

impl<R> fmt::Debug for KvRequest<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state: &dyn fmt::Debug = match &self.state {
            State::First(request, _) => request,
            State::Followed(followed) => followed,
            State::Over => &"over",
        };
        f.debug_tuple("KvRequest").field(state).finish()
    }
}

impl KvClient {
    /// As [`get`](Self::get), and returns when the call is on its way, so that several are at a
    /// time. A value of more than `most` bytes is [`TooSmall`](KvError::TooSmall); one that is
    /// longer than the eager size of the transport takes a further round trip.
    ///
    /// # Errors
    ///
    /// As [`RpcCall::start`](margo::RpcCall::start).
    pub fn start_get(
        &self,
        key: &[u8],
        most: u64,
        limit: Duration,
    ) -> Result<KvRequest<Found>, ForwardError> {
        let args = GetArgs { key: Bytes(key), most };
        let request = self.known.cluster().member(key).start(GET.sending(), &args, limit)?;
        let (own, key) = (self.clone(), key.to_vec());
        Ok(self.request(request, limit, move |left| {
            let args = GetArgs { key: Bytes(&*key), most };
            own.known
                .follow(&key, left, |_, member, left, _| member.call(GET.sending(), &args, left))
        }))
    }

    /// As [`put`](Self::put), and returns when the call is on its way, as
    /// [`start_get`](Self::start_get) does. The value travels with it, and is kept until the answer
    /// is there, so it is not for long ones.
    ///
    /// # Errors
    ///
    /// As [`RpcCall::start`](margo::RpcCall::start).
    pub fn start_put(
        &self,
        key: &[u8],
        value: &[u8],
        limit: Duration,
    ) -> Result<KvRequest<u64>, ForwardError> {
        let args = self.put_args(key, value, Condition::Always);
        let request = self.known.cluster().member(key).start(PUT.sending(), &args, limit)?;
        let (own, key, value) = (self.clone(), key.to_vec(), value.to_vec());
        Ok(self.request(request, limit, move |left| own.put(&key, &value, left)))
    }

    fn request<R>(
        &self,
        first: ForwardRequest<Result<R, KvError>>,
        limit: Duration,
        again: impl FnOnce(Duration) -> Result<R, ClientError> + Send + 'static,
    ) -> KvRequest<R> {
        let clock = Clock::of(limit);
        let again = Box::new(move |moved: KvError| match clock.left() {
            Duration::ZERO => Err(moved.into()),
            left => again(left),
        });
        let pool = self.known.instance.layout().rpc_pool();
        KvRequest { state: State::First(first, again), pool }
    }
}
