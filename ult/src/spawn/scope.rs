//! ULTs that borrow from the stack of their spawner.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use std::ptr::NonNull;
use std::time::Instant;

use crate::base::wait_kind::WaitKind;
use crate::engine::error::{JoinError, SpawnError};
use crate::engine::model::waiter::Waiter;
use crate::engine::pool::handle::PoolRef;
use crate::spawn::join::JoinHandle;
use crate::sync::{Arc, Mutex, lock};

/// Where ULTs that borrow are spawned; see [`scope`].
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let words = ["user-level", "threads"];
/// let letters: usize = ult::scope(|scope| {
///     let counts = words.each_ref().map(|word| scope.spawn(&pool, || word.len()));
///     counts.into_iter().map(|count| count.unwrap().join().unwrap()).sum()
/// });
/// assert_eq!(letters, 17);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Scope<'scope, 'env: 'scope> {
    /// Units of this scope that have not ended.
    open: Arc<OpenCount>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Counts open tickets; one party waits for their end.
#[derive(Default)]
struct OpenCount(Mutex<Open>);

#[derive(Default)]
struct Open {
    tickets: usize,
    waiter: Option<Waiting>,
}

struct Waiting(NonNull<Waiter>);

// SAFETY: the claim to wake a waiter, which may be done from any thread.
unsafe impl Send for Waiting {}

impl OpenCount {
    /// Waits, whatever happens: a cancelled ULT must not unwind what others borrow.
    fn wait(&self) {
        let waiter = Waiter::new(WaitKind::Scope);
        {
            let mut open = lock(&self.0);
            if open.tickets == 0 {
                return;
            }
            open.waiter = Some(Waiting(NonNull::from(&waiter)));
        }
        waiter.block_fully();
    }

    fn close(&self) {
        let waiter = {
            let mut open = lock(&self.0);
            open.tickets -= 1;
            if open.tickets > 0 {
                return;
            }
            open.waiter.take()
        };
        if let Some(Waiting(waiter)) = waiter {
            // SAFETY:
            // - alive, unlinked: it waits until it is woken, and we took it out;
            // - not touched afterwards.
            unsafe { Waiter::wake(waiter) };
        }
    }
}

/// The return value of a unit of a scope. Shared with its handle, so that a value which nobody
/// wants is dropped by the unit, before its ticket is closed.
type Packet<T> = Arc<Mutex<Option<T>>>;

/// Owns the outcome of a unit of a scope.
///
/// ```
/// use ult::{JoinError, ScopedJoinHandle};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let text = String::from("borrowed by the ULT");
/// let len = ult::scope(|scope| -> Result<usize, JoinError> {
///     let handle: ScopedJoinHandle<'_, usize> =
///         scope.spawn(&pool, || text.len()).expect("the runtime runs");
///     handle.join()
/// });
/// assert_eq!(len?, 19);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ScopedJoinHandle<'scope, T> {
    handle: JoinHandle<()>,
    packet: Packet<T>,
    scope: PhantomData<&'scope ()>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the unit to end and returns its value; see [`JoinHandle::join`].
    ///
    /// # Errors
    ///
    /// See [`JoinError`].
    pub fn join(self) -> Result<T, JoinError> {
        self.handle.join()?;
        lock(&self.packet).take().ok_or(JoinError::Lost)
    }

    /// Waits no longer than until `deadline`; see [`JoinHandle::join_deadline`].
    ///
    /// # Errors
    ///
    /// Gives the handle back if the unit has not ended by then.
    pub fn join_deadline(self, deadline: Instant) -> Result<Result<T, JoinError>, Self> {
        let Self { handle, packet, scope } = self;
        match handle.join_deadline(deadline) {
            Ok(Ok(())) => Ok(lock(&packet).take().ok_or(JoinError::Lost)),
            Ok(Err(error)) => Ok(Err(error)),
            Err(handle) => Err(Self { handle, packet, scope }),
        }
    }

    /// Asks the unit to end; see [`JoinHandle::cancel`].
    pub fn cancel(&self) {
        self.handle.cancel();
    }

    /// Returns whether the outcome is there.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }
}

impl<T> fmt::Debug for ScopedJoinHandle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopedJoinHandle").field(&self.handle).finish()
    }
}

/// The right to borrow. Dropped after everything that a unit of the scope borrows.
struct Ticket(Arc<OpenCount>);

impl Ticket {
    fn new(open: &Arc<OpenCount>) -> Self {
        lock(&open.0).tickets += 1;
        Self(open.clone())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Calls `f`, which may spawn units that borrow, and waits until they have all ended.
///
/// ```
/// use ult::{PoolSpec, Runtime, XstreamSpec};
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("main"))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .start()?;
/// let pool = runtime.pool("main").expect("defined above");
/// let mut parts = [1u64, 2, 3];
/// ult::scope(|scope| {
///     for part in &mut parts {
///         scope.spawn(&pool, || *part *= 10).expect("the runtime runs");
///     }
/// });
/// assert_eq!(parts, [10, 20, 30]);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
///
/// With the panic of `f`, after all units have ended. A panic of a unit that nobody joins is
/// logged. A cancel of the calling ULT takes effect after all units have ended.
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let scope = Scope { open: Arc::default(), scope: PhantomData, env: PhantomData };
    // An unwinding ULT cannot suspend, so it must not unwind before the others have ended.
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    scope.open.wait();
    match result {
        Ok(value) => value,
        Err(panic) => resume_unwind(panic),
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Spawns a ULT into `pool` that may borrow what outlives the scope.
    ///
    /// Dropping the handle lets the ULT run on its own, until the end of the scope at the latest.
    ///
    /// # Errors
    ///
    /// See [`SpawnError`]; `f` has then been dropped.
    pub fn spawn<F, T>(
        &'scope self,
        pool: &PoolRef,
        f: F,
    ) -> Result<ScopedJoinHandle<'scope, T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let packet = Packet::default();
        let body = Body { f, packet: packet.clone(), ticket: Ticket::new(&self.open) };
        // SAFETY:
        // - the borrows: `scope` waits until the ticket is gone, which is the last thing that the
        //   unit drops, whether it has run, panicked, or never started. The unit itself returns
        //   nothing, so its outcome borrows nothing.
        let handle = unsafe { pool.ult().spawn_scoped(move || body.run()) }?;
        Ok(ScopedJoinHandle { handle, packet, scope: PhantomData })
    }
}

/// The closure of a unit. Fields are dropped in this order.
struct Body<F, T> {
    f: F,
    packet: Packet<T>,
    ticket: Ticket,
}

impl<F: FnOnce() -> T, T> Body<F, T> {
    fn run(self) {
        // Locals are dropped in the reverse order, also when `f` panics.
        let _ticket = self.ticket;
        let packet = self.packet;
        let value = (self.f)();
        *lock(&packet) = Some(value);
        // If the handle is gone, this drops the value.
        drop(packet);
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}
