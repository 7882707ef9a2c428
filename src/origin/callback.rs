//! Calls that call back: [`RpcCall::call_back`](crate::RpcCall::call_back). Answers that do are in
//! `irespond.rs`.
//!
//! The progress ULT only spawns the unit that runs the callback: decoding the result and running
//! the user's code would hold up the loop that all callers wait for.

use std::time::Duration;

use hg::ForwardOptions;
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
        Self { on_behalf_of: ult::integration::inherited_word(), context: trace::current() }
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
    pub(super) fn start_with_callback<A, R, F>(
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
        let site = CallInfo { rpc: name, to, term };
        let op = self.start(ForwardOptions::default(), rpc, site, args, token)?;
        Call::set_alarm(&call, self.inner(), op);
        Call::tie(&call, self.inner(), op, to);
        Ok(Call::canceler(&call, self.inner(), op, to))
    }
}
