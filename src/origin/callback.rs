//! Calls that call back: [`Instance::cforward`]. Answers that do are in `irespond.rs`.
//!
//! The progress ULT only spawns the unit that runs the callback: decoding the result and running
//! the user's code would hold up the loop that all callers wait for.

use std::time::Duration;

use na::shared::{Shared, UninitShared};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ult::PoolRef;

use crate::instance::inner::Inner;
use crate::observe::trace::{self, TraceContext};
use crate::operation::call::{Call, CallInfo, Callback};
use crate::operation::deadline::CallLimits;
use crate::support::log::log;
use crate::{Canceler, ForwardError, Instance, ProviderHandle, Rpc};

/// The context of a caller that is to be called back. Its callback goes on with it, whichever unit
/// spawns that.
pub(crate) struct Caller {
    on_behalf_of: u64,
    context: Option<TraceContext>,
}

impl Caller {
    pub(crate) fn here() -> Self {
        Self { on_behalf_of: ult::inherited_word(), context: trace::current() }
    }

    /// Has `callback` called once, on a ULT of its own in the default handler pool; if there is no
    /// memory for its stack, as a tasklet.
    pub(crate) fn call_back(
        self,
        instance: &Instance,
        rpc: &'static str,
        callback: impl FnOnce() + Send + 'static,
    ) {
        let Some(pool) = pool_for_callbacks(instance) else { return };
        let Self { on_behalf_of, context } = self;
        let run = move || {
            trace::begin_unit(on_behalf_of, context);
            callback();
        };
        let called = Called(Some((rpc, instance.clone(), run)));
        // One that is refused is dropped.
        let _ = pool.ult().name(rpc).spawn_detached(move || called.run());
    }
}

fn pool_for_callbacks(instance: &Instance) -> Option<PoolRef> {
    instance.inner().pools_for_units([Inner::rpc_pool, Inner::progress_pool]).next()
}

/// A callback that is called once, also if there is no memory for the stack of its ULT: then it is
/// a tasklet.
struct Called<F: FnOnce() + Send + 'static>(Option<(&'static str, Instance, F)>);

impl<F: FnOnce() + Send + 'static> Called<F> {
    fn run(mut self) {
        if let Some((_, instance, run)) = self.0.take() {
            // It has its own, which it drops when it needs it no longer.
            drop(instance);
            run();
        }
    }
}

impl<F: FnOnce() + Send + 'static> Drop for Called<F> {
    fn drop(&mut self) {
        let Some((name, instance, run)) = self.0.take() else { return };
        let log = instance.inner().log.clone();
        let Some(pool) = pool_for_callbacks(&instance) else { return };
        drop(instance);
        if let Err(error) = pool.tasklet().name(name).spawn_detached(run) {
            log!(log, ERROR, rpc = name, %error, "no unit for a callback");
        }
    }
}

impl Instance {
    /// Starts a call of `rpc` at `to` with `args`, and returns when the arguments have been
    /// encoded. When the call is over, `callback` is called once with its result.
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
    /// # service.register(SUM, |handle| {
    /// #     let (a, b) = *handle.args();
    /// #     let _ = handle.respond(&(a + b));
    /// # })?;
    /// # let client = Instance::builder("na+sm://").listen(false).start()?;
    /// # let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
    /// let (sender, receiver) = ult::channel::unbounded();
    /// client.cforward(SUM, &target, &(40, 2), move |result| {
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
    /// As [`iforward`](Self::iforward); `callback` is then dropped and not called.
    ///
    /// Counterpart: `margo_provider_cforward`, which runs the callback in the progress loop.
    pub fn cforward<A, R, F>(
        &self,
        rpc: Rpc<A, R>,
        to: &ProviderHandle,
        args: &A,
        callback: F,
    ) -> Result<Canceler, ForwardError>
    where
        A: Serialize,
        R: DeserializeOwned + 'static,
        F: FnOnce(Result<R, ForwardError>) + Send + 'static,
    {
        self.start_with_callback(rpc, to, args, None, callback)
    }

    /// As [`cforward`](Self::cforward), with a deadline `limit` from now, encoding included. Then
    /// `callback` gets [`ForwardError::TimedOut`].
    ///
    /// # Errors
    ///
    /// As `cforward`.
    ///
    /// Counterpart: `margo_provider_cforward_timed`.
    pub fn cforward_timed<A, R, F>(
        &self,
        rpc: Rpc<A, R>,
        to: &ProviderHandle,
        args: &A,
        limit: Duration,
        callback: F,
    ) -> Result<Canceler, ForwardError>
    where
        A: Serialize,
        R: DeserializeOwned + 'static,
        F: FnOnce(Result<R, ForwardError>) + Send + 'static,
    {
        self.start_with_callback(rpc, to, args, Some(limit), callback)
    }

    fn start_with_callback<A, R, F>(
        &self,
        rpc: Rpc<A, R>,
        to: &ProviderHandle,
        args: &A,
        limit: Option<Duration>,
        callback: F,
    ) -> Result<Canceler, ForwardError>
    where
        A: Serialize,
        R: DeserializeOwned + 'static,
        F: FnOnce(Result<R, ForwardError>) + Send + 'static,
    {
        let bounds = CallLimits::of_starter(limit);
        let term = bounds.term;
        let (instance, target, name) = (self.clone(), to.clone(), rpc.name());
        let caller = Caller::here();
        let at_end: Callback = Box::new(move |call: Shared<Call>| {
            caller.call_back(&instance.clone(), name, move || {
                let site = CallInfo { rpc: name, to: &target, term };
                let result = call.read(instance.reading(), site);
                // Neither the answer's buffer nor the instance is needed any more.
                drop((call, instance));
                callback(result);
            });
        });
        let (call, token) = UninitShared::new().fill_pair(Call::with_extra(bounds, Some(at_end)));
        let op = self.start(rpc, CallInfo { rpc: name, to, term }, args, token)?;
        Call::set_alarm(&call, self.inner(), op);
        Call::tie(&call, self.inner(), op, to);
        Ok(Call::canceler(&call, self.inner(), op, to))
    }
}
