//! The builder of a registration: everything that can be said of how an RPC is served, in one
//! place.

use std::fmt;
use std::sync::Arc;

use hg::ProviderId;
use margo_config::Admission;
use na::shared::Shared;
use serde::de::DeserializeOwned;
use ult::{PoolRef, Priority};

use crate::admission::gates::Internal;
use crate::dispatch::in_place::DecodeInPlace;
use crate::dispatch::registered_rpc::Run;
use crate::dispatch::run_handler::{decoding, decoding_in_place};
use crate::instance::reply::Reply;
use crate::serving::provider_rpcs::ProviderRpcs;
use crate::serving::register::Options;
use crate::serving::respondable::Respondable;
use crate::{Handle, Instance, NoResponse, RegisterError, Rpc};

/// Collects how an RPC is to be served; one of the methods that take the handler registers it.
///
/// | handler | gets | answers |
/// |---|---|---|
/// | [`handler`](Self::handler) | the [`Handle`] | when and where it wants, early and from other ULTs too |
/// | [`returning`](Self::returning) | a borrowed `Handle`, for bulk transfers and nested calls | with what it returns |
/// | [`function`](Self::function) | the arguments | with what it returns |
/// | [`in_place`](Self::in_place) | the provider's object, the arguments where they have arrived, and the `Handle` | as the first |
/// | [`method`](Self::method), [`returning_method`](Self::returning_method) | the provider's object besides | as the first two |
///
/// ```
/// use margo::config::Admission;
/// use margo::{Instance, Rpc};
///
/// const DIVIDE: Rpc<(i64, i64), Result<i64, String>> = Rpc::new("divide");
///
/// let service = Instance::builder("na+sm://").start()?;
/// service
///     .serve(DIVIDE)
///     .admission(Admission::new(64)) // at most 64 at once; further callers are told "busy"
///     .function(|(a, b)| a.checked_div(b).ok_or_else(|| "division by zero".to_owned()))?;
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: the arguments of `MARGO_REGISTER_PROVIDER`; Thallium's `define`.
#[must_use = "nothing is served until a handler is given"]
pub struct Serve<'a, A, R, T = ()> {
    instance: &'a Instance,
    rpc: Rpc<A, R>,
    options: Options,
    object: Arc<T>,
    /// Where a provider keeps what it has registered, with the pool of that.
    rpcs: Option<&'a ProviderRpcs>,
}

impl Instance {
    /// Begins to describe how `rpc` is served: under the default provider id, in the default pool,
    /// by ULTs, unless said otherwise.
    pub fn serve<A, R>(&self, rpc: Rpc<A, R>) -> Serve<'_, A, R> {
        let options = Options {
            provider: ProviderId::DEFAULT,
            pool: None,
            admission: None,
            tasklet: false,
            one_way: false,
            priority: Priority::Normal,
            internal: None,
        };
        Serve { instance: self, rpc, options, object: Arc::new(()), rpcs: None }
    }
}

impl<'a, A, R, T> Serve<'a, A, R, T> {
    /// Under that provider id.
    pub(crate) fn of_provider_id(mut self, provider: ProviderId) -> Self {
        self.options.provider = provider;
        self
    }

    /// For the runtime itself: the bounds of the pool are not for it.
    pub(crate) fn internal(mut self, rpc: Internal) -> Self {
        self.options.internal = Some(rpc);
        self
    }

    /// For a provider, whose object handlers get.
    pub(crate) fn of_provider<O>(
        self,
        provider: ProviderId,
        object: Arc<O>,
        rpcs: &'a ProviderRpcs,
    ) -> Serve<'a, A, R, O> {
        let Self { instance, rpc, options, .. } = self.at(provider);
        Serve { instance, rpc, options, object, rpcs: Some(rpcs) }
    }

    /// Under that provider id.
    pub(crate) fn at(mut self, provider: ProviderId) -> Self {
        self.options.provider = provider;
        self
    }

    /// Runs the handlers in this pool. Default: that of the provider, or
    /// [`InstanceLayout::rpc_pool`](crate::groups::InstanceLayout::rpc_pool).
    pub fn pool(mut self, pool: &PoolRef) -> Self {
        self.options.pool = Some(pool.clone());
        self
    }

    /// Runs the handlers in the instance's pool of that name.
    ///
    /// # Errors
    ///
    /// [`RegisterError::NoPool`], with the pools that there are.
    #[doc(hidden)]
    pub fn pool_named(self, name: &str) -> Result<Self, RegisterError> {
        if let Some(pool) = self.instance.layout().pool(name) {
            return Ok(self.pool(&pool));
        }
        let own: Vec<_> =
            self.instance.layout().pools().iter().map(|own| format!("`{}`", own.name())).collect();
        let (rpc, pool) = (self.rpc.name(), name.to_owned());
        Err(RegisterError::NoPool { rpc, pool, own: own.join(", ") })
    }

    /// At most so many requests of this RPC in hand at once, in addition to the bounds of its pool.
    /// A request that [waits](margo_config::Overload::Wait) for its turn here takes no place in the
    /// pool. When it has its turn it waits for a place there next, or is told that the pool is
    /// busy, if that is what the pool does and another request has taken the place. Default: the
    /// bounds of the pool alone (`margo.admission` of the configuration).
    pub fn admission(mut self, bounds: Admission) -> Self {
        self.options.admission = Some(bounds);
        self
    }

    /// Which requests go first among those that wait for an xstream, where handlers take longer to
    /// run than to arrive. Only in a pool of the kind `prio_wait`, or in one of the user's own.
    /// Default: that of the provider, or [`Priority::Normal`].
    ///
    /// A handler that has begun is not interrupted, and goes before those that have not. However
    /// many of higher priority wait, every 8th handler that begins is one of normal priority and
    /// every 64th one of low priority, if there is one. Requests that wait because a bound is
    /// reached ([`admission`](Self::admission)) are let in without regard to priorities.
    ///
    /// Counterpart: none; the closest is a pool of its own that the scheduler `prio` names first.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.options.priority = priority;
        self
    }

    /// Runs the handlers as tasklets: without a stack of their own, on that of the xstream. That
    /// saves a stack and two switches for each request. Only for handlers that never wait: a call
    /// or bulk transfer in one fails with an error at once ([`ForwardError::Tasklet`],
    /// [`BulkError::Tasklet`]), and so does to wait for one that was started; a wait for anything
    /// of [`ult`] blocks the whole xstream. Default: ULTs.
    ///
    /// [`ForwardError::Tasklet`]: crate::ForwardError::Tasklet
    /// [`BulkError::Tasklet`]: crate::BulkError::Tasklet
    ///
    /// Counterpart: none; the closest is `ABT_task`.
    pub fn tasklet(mut self) -> Self {
        self.options.tasklet = true;
        self
    }
}

impl<A, R, T> Serve<'_, A, R, T>
where
    A: DeserializeOwned + 'static,
    R: 'static,
    T: Send + Sync + 'static,
{
    /// Serves with `handler`, which answers by [`Handle::respond`]. If it drops the handle without
    /// an answer, or panics, the origin gets an error.
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    pub fn handler<F>(self, handler: F) -> Result<(), RegisterError>
    where
        F: Fn(Handle<A, R>) + Send + Sync + 'static,
    {
        self.run(move |reply, args| handler(Handle::new(args, Shared::clone_sole(reply))))
    }

    /// Serves with a method of the provider's object, which answers by [`Handle::respond`]. The
    /// object lives at least as long as any handler of it.
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    pub fn method<F>(self, handler: F) -> Result<(), RegisterError>
    where
        F: Fn(&T, Handle<A, R>) + Send + Sync + 'static,
    {
        let object = self.object.clone();
        self.run(move |reply, args| handler(&object, Handle::new(args, Shared::clone_sole(reply))))
    }

    /// Serves with a handler that looks at the arguments where they have arrived, and gets no copy:
    /// for keys that are looked up and values that go to a file, where a copy costs as much as the
    /// work. It also gets the provider's object (`()` without a provider) and the duty to
    /// answer. [`DecodeInPlace`] says what it gets in place of `A`.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use std::sync::{Arc, Mutex};
    ///
    /// use margo::encoding::Bytes;
    /// use margo::{Instance, ProviderHandle, Rpc};
    ///
    /// const GET: Rpc<(Bytes, u64), Option<Bytes>> = Rpc::new("get");
    ///
    /// let service = Instance::builder("na+sm://").start()?;
    /// let blobs = HashMap::from([(b"key".to_vec(), b"value".to_vec())]);
    /// service.serve(GET).in_place(move |_, (key, from), handle| {
    ///     let key: Bytes<&[u8]> = key; // in the receive buffer
    ///     let found = blobs.get(&*key).and_then(|value| value.get(from as usize..));
    ///     let _ = handle.respond_as(&found.map(Bytes)); // encoded from the map's own memory
    /// })?;
    /// let target = ProviderHandle::from(service.self_addr());
    /// let end = service.forward(GET, &target, &(Bytes(b"key".to_vec()), 2))?;
    /// assert_eq!(end, Some(Bytes(b"lue".to_vec())));
    /// # service.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The receive buffer is kept until the handler returns, so what the arguments borrow cannot
    /// go along when the [`Handle`] is moved to another ULT.
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    ///
    /// Counterpart: `margo_get_input` without copies in the proc function, and `margo_free_input`
    /// at the end.
    pub fn in_place<F>(self, handler: F) -> Result<(), RegisterError>
    where
        A: DecodeInPlace,
        F: for<'a> Fn(&T, A::InPlace<'a>, Handle<(), R>) + Send + Sync + 'static,
    {
        let object = self.object.clone();
        let run = decoding_in_place::<A>(move |reply, args| {
            handler(&object, args, Handle::new((), Shared::clone_sole(reply)));
        });
        self.run_as(run)
    }

    pub(crate) fn object(&self) -> &Arc<T> {
        &self.object
    }

    pub(crate) fn run<F>(self, run: F) -> Result<(), RegisterError>
    where
        F: Fn(&mut Shared<Reply>, A) + Send + Sync + 'static,
    {
        self.run_as(decoding(run))
    }

    fn run_as(self, run: Arc<Run>) -> Result<(), RegisterError> {
        let Self { instance, rpc, options, rpcs, .. } = self;
        let id = rpc.id(options.provider);
        let options = Options { one_way: rpc.is_one_way(), ..options };
        instance.register_entry(rpc.name(), id, options, run, rpcs)
    }
}

impl<A, R, T> Serve<'_, A, R, T>
where
    A: DeserializeOwned + 'static,
    R: 'static,
    T: Send + Sync + 'static,
{
    /// Serves with `handler`, whose return value is the answer. It may answer earlier by
    /// [`Handle::respond`] and go on; what it returns is then dropped.
    ///
    /// With a result type `Result<V, E>` it can use `?` for errors of the application, which the
    /// origin gets as such: see [`RpcCall::call`](crate::RpcCall::call).
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    ///
    /// Counterpart: Thallium's handlers that return a value.
    ///
    /// An RPC without a response has none to return:
    ///
    /// ```compile_fail,E0277
    /// # let service = margo::Instance::builder("na+sm://").start().unwrap();
    /// const LOG: margo::OneWay<String> = margo::OneWay::new("log");
    ///
    /// service.serve(LOG).returning(|line| println!("{}", line.args()));
    /// ```
    pub fn returning<F>(self, handler: F) -> Result<(), RegisterError>
    where
        R: Respondable,
        F: Fn(&Handle<A, R>) -> R + Send + Sync + 'static,
    {
        self.run(move |reply, args| {
            let handle = Handle::new(args, Shared::clone_sole(reply));
            let result = handler(&handle);
            reply.returned(&result);
        })
    }

    /// As [`returning`](Self::returning), with a method of the provider's object.
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    pub fn returning_method<F>(self, handler: F) -> Result<(), RegisterError>
    where
        R: Respondable,
        F: Fn(&T, &Handle<A, R>) -> R + Send + Sync + 'static,
    {
        let object = self.object.clone();
        self.run(move |reply, args| {
            let handle = Handle::new(args, Shared::clone_sole(reply));
            let result = handler(&object, &handle);
            reply.returned(&result);
        })
    }

    /// Serves with a function from the arguments to the result.
    ///
    /// # Errors
    ///
    /// [`RegisterError`].
    pub fn function<F>(self, function: F) -> Result<(), RegisterError>
    where
        R: Respondable,
        F: Fn(A) -> R + Send + Sync + 'static,
    {
        self.run(move |reply, args| reply.returned(&function(args)))
    }

    /// As [`function`](Self::function), with a method of the provider's object: for what
    /// [`service`](macro@crate::service) writes.
    #[doc(hidden)]
    pub fn dispatch<F>(self, method: F) -> Result<(), RegisterError>
    where
        R: Respondable,
        F: Fn(&T, A) -> R + Send + Sync + 'static,
    {
        let object = self.object.clone();
        self.run(move |reply, args| reply.returned(&method(&object, args)))
    }

    /// As [`dispatch`](Self::dispatch), for methods that borrow arguments: `P` is what they see.
    #[doc(hidden)]
    pub fn dispatch_in_place<P, F>(self, method: F) -> Result<(), RegisterError>
    where
        P: DecodeInPlace,
        R: Respondable,
        F: for<'a> Fn(&T, P::InPlace<'a>, &Handle<(), NoResponse>) -> R + Send + Sync + 'static,
    {
        let object = self.object.clone();
        let run = decoding_in_place::<P>(move |reply, args| {
            let handle = Handle::new((), Shared::clone_sole(reply));
            let result = method(&object, args, &handle);
            reply.returned(&result);
        });
        self.run_as(run)
    }

    /// As [`dispatch`](Self::dispatch), for methods that look at the request.
    #[doc(hidden)]
    pub fn dispatch_with_context<F>(self, method: F) -> Result<(), RegisterError>
    where
        R: Respondable,
        F: Fn(&T, A, &Handle<(), NoResponse>) -> R + Send + Sync + 'static,
    {
        let object = self.object.clone();
        self.run(move |reply, args| {
            let handle = Handle::new((), Shared::clone_sole(reply));
            let result = method(&object, args, &handle);
            reply.returned(&result);
        })
    }
}

impl<A, R, T> fmt::Debug for Serve<'_, A, R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serve({} of provider {})", self.rpc.name(), self.options.provider)
    }
}
