//! Two halves of a computation, of which the second runs elsewhere if somebody has time for it.
//!
//! The life of the second half is in [`jobs`](crate::engine::run::jobs). This file has the
//! frame that it lives in, and sees to it that the frame outlives it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;

use crate::base::contain::{Panic, discard_panic};
use crate::base::job_queues::JobPtr;
use crate::base::unwind::is_exit;
use crate::base::values::Values;
use crate::engine::model::unit::{UltPtr, UnitKind};
use crate::engine::model::waiter::JoinWord;
use crate::engine::run::jobs::Job;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::sync::UnsafeCell;
use crate::sync::atomic::AtomicBool;

type Caught<T> = Result<T, Panic>;

/// A job with its closure, in the frame of the ULT that forks. `B` is told whether another party
/// than its owner runs it.
#[repr(C)]
struct Fork<B, T> {
    /// First, so that a pointer to it is one to the whole.
    job: Job,
    body: UnsafeCell<Option<B>>,
    /// Left by the body, if another party ran it.
    outcome: UnsafeCell<Option<Caught<T>>>,
}

impl<B: FnOnce(bool) -> T, T> Fork<B, T> {
    fn new(owner: UltPtr, body: B) -> Self {
        let values = if owner.has_extra() {
            owner.with_extra(|extra| extra.inherited.clone())
        } else {
            Values::default()
        };
        let job = Job {
            run: Self::run,
            owner,
            word: JoinWord::new(),
            is_taken: AtomicBool::new(false),
            inherited: owner.inherited.get(),
            values,
        };
        Self { job, body: UnsafeCell::new(Some(body)), outcome: UnsafeCell::new(None) }
    }

    fn ptr(&self) -> JobPtr {
        JobPtr(NonNull::from(self).cast())
    }

    /// Runs the body for a party that has taken the job.
    ///
    /// # Safety
    ///
    /// `job` is the pointer of a fork of these types, and the caller has taken it out of its queue.
    unsafe fn run(job: JobPtr) {
        // SAFETY:
        // - type: duty of the caller; valid: the owner waits until the word says that it is over.
        let fork = unsafe { job.0.cast::<Self>().as_ref() };
        // SAFETY:
        // - exclusive: duty of the caller, and the owner waits.
        let body = fork.body.with_mut(|body| unsafe { &mut *body }.take());
        let outcome = body.map(|body| catch_unwind(AssertUnwindSafe(|| body(true))));
        // SAFETY: as above.
        fork.outcome.with_mut(|place| unsafe { *place = outcome });
    }
}

/// Calls `a`, and meanwhile has `b` run by another xstream that has nothing else to do. Returns
/// both values when both are there.
///
/// If nobody has time for `b`, the caller calls it itself, after `a`. That costs a few nanoseconds
/// more than two calls: no unit is made. So a computation that can be cut into pieces forks as
/// often as it can, down to pieces of about a microsecond, and need not know how many xstreams
/// there are. For loops see [`par`](crate::par).
///
/// ```
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// fn sum(numbers: &[u64]) -> u64 {
///     if numbers.len() <= 1000 {
///         return numbers.iter().sum();
///     }
///     let (left, right) = numbers.split_at(numbers.len() / 2);
///     let (left, right) = ult::join(|| sum(left), || sum(right));
///     left + right
/// }
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("main"))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .xstream(XstreamSpec::new("x1").pools(["main"]))
///     .start()?;
/// let pool = runtime.pool("main").expect("defined above");
/// let numbers: Vec<u64> = (0..100_000).collect();
/// let total = pool.spawn(move || sum(&numbers))?.join()?;
/// assert_eq!(total, 4_999_950_000);
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Where `b` runs
///
/// - On the caller, after `a`, unless one of the following comes first.
/// - On another xstream that serves the caller's pool, when its own pools are empty: as a ULT of
///   that pool, which counts in its statistics, with a stack of the size of the caller's. If no
///   other xstream serves the pool, the two run one after the other.
/// - On the caller's own xstream, likewise as a ULT, when `a` waits and nothing else is runnable
///   there; or when `a` waits and another ULT takes back a job that lies below. So `a` may wait for
///   something that `b` does.
///
/// Both halves may wait for anything. While the caller waits for the end of `b`, its xstream runs
/// other units. A `b` that runs as a ULT of its own has neither the [`UltLocal`](crate::UltLocal)s
/// nor the name of the caller; it inherits ([`Inherited`](crate::integration::Inherited)) what the
/// caller had when it called this.
///
/// On an OS thread, in a tasklet, and in a destructor during unwinding, the caller calls both, one
/// after the other. So an OS thread that wants more spawns a ULT and joins it.
///
/// # Panics
///
/// With the panic of `a`, else that of `b`, when both have ended: a panic of one does not keep the
/// other from running. What the other has returned is dropped.
///
/// # Cancellation
///
/// No cancellation point by itself. If `a` ends because the caller has been
/// [cancelled](crate::JoinHandle::cancel), or by [`exit`](crate::exit), a `b` that nobody has taken
/// is dropped; one that runs elsewhere runs to its end before the caller goes on to unwind. A
/// cancel of the caller does not reach it. An [`exit`](crate::exit) in `b` ends the caller,
/// wherever `b` runs.
///
/// Counterpart: none; Argobots makes a unit for each fork.
#[inline]
pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    fork(a, |_| b())
}

/// [`join`], where `b` is told whether it has been taken by another party than the caller.
#[inline(always)]
pub(crate) fn fork<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce(bool) -> RB + Send,
    RB: Send,
{
    match current::xstream_and_ult() {
        Some((xstream, me)) => fork_on(xstream, me, a, b),
        None => match catch_unwind(AssertUnwindSafe(a)) {
            Ok(left) => (left, b(false)),
            Err(panic) => unwind_after(panic, Some(b), None),
        },
    }
}

#[inline(always)]
fn fork_on<A, B, RA, RB>(xstream: &Xstream, me: UltPtr, a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce(bool) -> RB + Send,
    RB: Send,
{
    let fork = Fork::new(me, b);
    let job = fork.ptr();
    // The queue is this xstream's, so the ULT stays.
    let is_migratable = me.kind() == UnitKind::Migratable;
    if is_migratable {
        me.pins.set(me.pins.get() + 1);
    }
    // SAFETY:
    // - `job`: it stays until the end of this function, and nothing between here and the wait below
    //   returns or unwinds;
    // - at home: it runs here.
    let queue = unsafe { xstream.leave_job(xstream.home_slot(me), job) };
    let left = catch_unwind(AssertUnwindSafe(a));
    if !xstream.take_back(queue, job) {
        fork.job.word.wait_fully();
    }
    if is_migratable {
        me.pins.set(me.pins.get() - 1);
    }
    // The job is this function's again.
    let body = fork.body.into_inner();
    let outcome = fork.outcome.into_inner();
    match (left, outcome, body) {
        (Ok(left), None, Some(body)) => (left, body(false)),
        (Ok(left), Some(Ok(right)), _) => (left, right),
        (Ok(_left), Some(Err(panic)), _) => resume_unwind(panic),
        (Err(panic), outcome, body) => unwind_after(panic, body, outcome),
        (Ok(_), None, None) => unreachable!("a job without a body has an outcome"),
    }
}

/// The first half has ended by `panic`, which goes on when nothing is left of the second one.
#[cold]
fn unwind_after<B, T>(panic: Panic, body: Option<B>, outcome: Option<Caught<T>>) -> !
where
    B: FnOnce(bool) -> T,
{
    let is_over = is_exit(&*panic);
    let rest = catch_unwind(AssertUnwindSafe(|| match body {
        Some(body) if !is_over => drop(body(false)),
        body => drop((
            body,
            outcome.transpose().unwrap_or_else(|other| {
                discard_panic(other);
                None
            }),
        )),
    }));
    if let Err(other) = rest {
        discard_panic(other);
    }
    resume_unwind(panic)
}
