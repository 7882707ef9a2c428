//! Monitors of users: the trait, and the events that they are told of.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hg::{ProviderId, RpcId};

use crate::observe::span::{BulkSpan, OriginSpan, TargetSpan};
use crate::support::contain::contain;
use crate::support::log::Log;
use crate::{Pool, Xstream};

/// An observer of an instance, which is told of calls, requests and transfers when they are over,
/// and of changes of the instance. All methods do nothing unless they are overridden.
///
/// They run wherever the call, request or transfer ends: on the progress ULT, in a handler, on the
/// thread of a caller. So they must be short, and must not wait, call or transfer; to do more, pass
/// the span on, over a channel say. They may run at the same time on several threads. A panic in
/// one is caught and logged, and affects nothing else.
///
/// While at least one monitor is attached, each call, request and transfer has a span, which costs
/// some hundred nanoseconds. ([Statistics](crate::groups::InstanceMonitoring::statistics) alone
/// look at some calls only.)
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use std::sync::Arc;
///
/// use margo::monitor::{CallOutcome, Monitor, OriginSpan};
/// use margo::{Instance, ProviderHandle, Rpc};
///
/// const NO: Rpc<(), ()> = Rpc::new("no");
///
/// #[derive(Default)]
/// struct Failures(AtomicU64);
///
/// impl Monitor for Failures {
///     fn on_origin_call(&self, span: &OriginSpan) {
///         if span.outcome != CallOutcome::Ok {
///             self.0.fetch_add(1, Relaxed);
///         }
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let instance = Instance::builder("na+sm://").start()?;
/// let failures = Arc::new(Failures::default());
/// instance.monitoring().add_monitor(failures.clone()).keep();
/// let target = ProviderHandle::from(instance.self_addr());
/// assert!(instance.forward(NO, &target, &()).is_err(), "nobody serves it");
/// instance.finalize_and_wait()?;
/// assert_eq!(failures.0.load(Relaxed), 1);
/// # Ok(())
/// # }
/// ```
///
/// Counterpart: `struct margo_monitor`, of which there is one per instance (`margo_init_info`).
pub trait Monitor: Send + Sync {
    /// A call of this instance is over, its result was looked at or dropped.
    fn on_origin_call(&self, span: &OriginSpan) {
        let _ = span;
    }

    /// A request is over at this instance: answered or refused, and its handler has ended.
    fn on_target_call(&self, span: &TargetSpan) {
        let _ = span;
    }

    /// A bulk transfer that this instance asked for is over.
    fn on_bulk(&self, span: &BulkSpan) {
        let _ = span;
    }

    /// A change of the instance. Registrations and deregistrations are told in the order in which
    /// they happen, one after the other. So where two threads do that at a time, or a monitor
    /// itself, one of them may go on before its change is told, by the other one.
    fn on_event(&self, event: &LifeEvent<'_>) {
        let _ = event;
    }
}

/// Something that becomes of an instance; see [`Monitor::on_event`].
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use margo::monitor::{LifeEvent, Monitor};
/// use margo::{Instance, Rpc};
///
/// const PING: Rpc<(), ()> = Rpc::new("ping");
///
/// #[derive(Default)]
/// struct Names(Mutex<Vec<String>>);
///
/// impl Monitor for Names {
///     fn on_event(&self, event: &LifeEvent<'_>) {
///         if let LifeEvent::Registered { rpc, .. } = event {
///             self.0.lock().unwrap().push((*rpc).to_owned());
///         }
///     }
/// }
///
/// let names = Arc::new(Names::default());
/// let service = Instance::builder("na+sm://").monitor(names.clone()).start()?;
/// service.serve(PING).function(|()| ())?;
/// assert_eq!(names.0.lock().unwrap().last().unwrap(), "ping");
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LifeEvent<'a> {
    /// An RPC is served from now on.
    Registered {
        /// The name.
        rpc: &'a str,
        /// The number, provider included.
        rpc_id: RpcId,
        /// By this provider.
        provider: ProviderId,
        /// In this pool.
        pool: &'a Pool,
    },
    /// An RPC is served no more.
    Deregistered {
        /// The number, provider included.
        rpc_id: RpcId,
    },
    /// A pool was added.
    PoolAdded(&'a Pool),
    /// A pool was removed.
    PoolRemoved(&'a Pool),
    /// An xstream was added.
    XstreamAdded(&'a Xstream),
    /// An xstream was removed; it may still work on what it has begun.
    XstreamRemoved(&'a Xstream),
    /// [`Instance::finalize`](crate::Instance::finalize) has begun. Calls still work.
    Finalizing,
    /// The network is closed and all callbacks have run. Nothing follows.
    Finalized,
}

/// The attached monitors, in the order in which they came.
#[derive(Default)]
pub(super) struct Monitors {
    log: Log,
    /// There are some. A hint for [`each`](Self::each), changed under the lock: spans are handed
    /// out on all execution streams, also where only statistics or traces want them.
    any: AtomicBool,
    /// The number of the last one that came, and those who are there.
    list: Mutex<(u64, List)>,
}

type List = Arc<[(u64, Arc<dyn Monitor>)]>;

impl Monitors {
    pub(super) fn new(log: Log) -> Self {
        Self { log, ..Self::default() }
    }

    fn list(&self) -> MutexGuard<'_, (u64, List)> {
        // No code of users runs under this lock.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a monitor and returns its number. `then` is called before another one can come or go.
    pub(super) fn add(&self, monitor: Arc<dyn Monitor>, then: impl FnOnce()) -> u64 {
        let mut list = self.list();
        let number = list.0 + 1;
        list.0 = number;
        list.1 = list.1.iter().cloned().chain([(number, monitor)]).collect();
        self.any.store(true, Ordering::Relaxed);
        then();
        number
    }

    /// Takes one out; `if_last` is called if none is left, before another one can come.
    pub(super) fn remove(&self, number: u64, if_last: impl FnOnce()) {
        let mut list = self.list();
        let left: List = list.1.iter().filter(|one| one.0 != number).cloned().collect();
        let before = std::mem::replace(&mut list.1, left);
        if list.1.is_empty() {
            self.any.store(false, Ordering::Relaxed);
            if_last();
        }
        drop(list);
        // May run the destructor of a monitor.
        contain(&self.log, "a destructor of a monitor", || drop(before));
    }

    pub(super) fn each(&self, tell: impl Fn(&dyn Monitor)) {
        // Whatever begins once a monitor has come sees that it is there, as it sees everything that
        // was done before; what it is, is read under the lock.
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let list = self.list().1.clone();
        for (_, monitor) in list.iter() {
            contain(&self.log, "a monitor", || tell(&**monitor));
        }
        // Whoever was detached meanwhile ends here.
        contain(&self.log, "a destructor of a monitor", || drop(list));
    }
}

/// The monitors that are attached from the start.
#[derive(Clone, Default)]
pub(crate) struct InitialMonitors(pub(crate) Vec<Arc<dyn Monitor>>);

impl fmt::Debug for InitialMonitors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} monitors", self.0.len())
    }
}

/// A monitor that is attached to an instance. Dropping this detaches it;
/// [`keep`](Self::keep) leaves it attached for as long as the instance lives.
///
/// ```
/// use std::sync::Arc;
///
/// use margo::monitor::Monitor;
///
/// struct Silent;
///
/// impl Monitor for Silent {}
///
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let silent = Arc::new(Silent);
/// let attached = instance.monitoring().add_monitor(silent.clone());
/// // … calls, of which it is told …
/// drop(attached);
/// assert_eq!(Arc::strong_count(&silent), 1);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping this detaches the monitor; `keep` leaves it attached"]
pub struct AttachedMonitor {
    /// `None`: it stays.
    pub(crate) detach: Option<Box<dyn Fn(u64) + Send + Sync>>,
    pub(crate) number: u64,
}

impl AttachedMonitor {
    /// Leaves it attached.
    pub fn keep(mut self) {
        self.detach = None;
    }
}

impl Drop for AttachedMonitor {
    fn drop(&mut self) {
        if let Some(detach) = &self.detach {
            detach(self.number);
        }
    }
}

impl fmt::Debug for AttachedMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedMonitor").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Deaf;

    impl Monitor for Deaf {}

    struct Loud;

    impl Monitor for Loud {}

    impl Drop for Loud {
        fn drop(&mut self) {
            panic!("in the destructor of a monitor");
        }
    }

    #[test]
    fn where_nobody_is_attached_nobody_waits_for_the_list() {
        let monitors = Monitors::default();
        let nobody = |_: &dyn Monitor| panic!("told to nobody");
        let held = monitors.list();
        monitors.each(nobody);
        drop(held);
        let told = std::cell::Cell::new(0);
        let numbers = [(); 2].map(|()| monitors.add(Arc::new(Deaf), || ()));
        monitors.each(|_| told.set(told.get() + 1));
        monitors.remove(numbers[0], || ());
        monitors.each(|_| told.set(told.get() + 1));
        assert_eq!(told.get(), 3);
        monitors.remove(numbers[1], || ());
        let _held = monitors.list();
        monitors.each(nobody);
    }

    #[test]
    fn a_destructor_may_panic_also_where_something_is_told() {
        let monitors = Monitors::default();
        let number = monitors.add(Arc::new(Loud), || ());
        // Who tells is the last one to hold it.
        monitors.each(|_| monitors.remove(number, || ()));
        assert!(monitors.list().1.is_empty());
        let number = monitors.add(Arc::new(Loud), || ());
        monitors.remove(number, || ());
    }
}
