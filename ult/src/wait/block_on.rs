//! Async code inside of ULTs: a future is polled by the ULT itself, which suspends in between.
//!
//! The waker of a ULT is a pointer to its descriptor with a count, so it needs no memory. It sets
//! `woken` in the descriptor and resumes the ULT; `woken` stays until the next poll, so a wake-up
//! is not lost however early it comes, and whatever else the ULT waits for in between. All
//! `block_on`s of a ULT share that flag, also nested ones: one that ends leaves it set, so that the
//! outer one looks at its future once more.
//!
//! | caller | while the future is pending |
//! |---|---|
//! | a ULT | is suspended |
//! | an OS thread | sleeps |
//! | a tasklet, or a destructor during unwinding | the whole xstream sleeps |

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::pin::{Pin, pin};
use std::ptr::NonNull;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::time::{Duration, Instant};

use crate::base::park_word::ThreadParker;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::unit::{Ult, UltPtr, UltRef};
use crate::engine::waiting::waiter::{after, thread_parker};
use crate::engine::xstream::current;
use crate::engine::xstream::push::resume;
use crate::engine::xstream::switch;
use crate::stack::context::Command;
use crate::sync::Arc;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Release};

/// Runs a future to its end and returns its output. A ULT suspends while it is pending, an OS
/// thread blocks, a tasklet blocks its xstream.
///
/// The future may be woken from any thread. It stays on this xstream and so needs not be `Send`.
/// What it does between two waits holds up the other units of the xstream; one that wakes itself
/// before it returns lets them run.
///
/// # Futures that need an executor
///
/// Timers and sockets of `tokio` work on its runtime only. Let the runtime have them as a task, and
/// wait for that here:
///
/// ```
/// # use std::time::Duration;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
/// # let handle = runtime.handle().clone();
/// # let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// # let driver = std::thread::spawn(move || runtime.block_on(stopped));
/// let slept = ult::block_on(handle.spawn(async {
///     tokio::time::sleep(Duration::from_millis(1)).await;
///     "slept"
/// }))?;
/// assert_eq!(slept, "slept");
/// # drop(stop);
/// # let _ = driver.join();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `handle` is the `tokio::runtime::Handle` of a runtime with threads of its own (or of one that
/// some thread drives); it can be kept in a static. The result is an error if the task panicked. A
/// ULT that is cancelled does not end the task: `abort` of its `JoinHandle`, or of an
/// `AbortHandle`, does.
///
/// Do not enter the runtime (`handle.enter()`), nor call `handle.block_on`, in a ULT: what is
/// entered belongs to the OS thread, so a second ULT that does the same while the first one is
/// suspended panics or finds the wrong runtime, and guards are dropped out of order.
///
/// # Cancellation
///
/// A cancellation point if the future is pending: it is then dropped while the ULT unwinds.
///
/// ```
/// let answer = ult::Eventual::new();
/// answer.set(42).unwrap();
/// assert_eq!(ult::block_on(async { *answer.wait_async().await }), 42);
/// ```
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    loop {
        if let Some(output) = run(future.as_mut(), None) {
            return output;
        }
    }
}

/// Like [`block_on`], but no longer than until `deadline`. `None`: the future was pending then, and
/// has been dropped. It is polled at least once.
///
/// To go on with the future later, pass a pinned reference: `future.as_mut()`.
pub fn block_on_deadline<F: IntoFuture>(future: F, deadline: Instant) -> Option<F::Output> {
    run(pin!(future.into_future()), Some(deadline))
}

/// Like [`block_on_deadline`], counted from now.
pub fn block_on_timeout<F: IntoFuture>(future: F, timeout: Duration) -> Option<F::Output> {
    run(pin!(future.into_future()), after(timeout))
}

fn run<F: Future>(future: Pin<&mut F>, deadline: Option<Instant>) -> Option<F::Output> {
    match current::suspendable() {
        Some(ult) => run_in_ult(ult, future, deadline),
        None => run_on_thread(future, deadline),
    }
}

fn run_in_ult<F: Future>(
    ult: UltPtr,
    mut future: Pin<&mut F>,
    deadline: Option<Instant>,
) -> Option<F::Output> {
    // Without a count of its own, which is why it is not dropped: the ULT is the caller.
    //
    // SAFETY:
    // - the contract of `VTABLE`: the pointer is a live descriptor.
    let waker = ManuallyDrop::new(unsafe { Waker::from_raw(raw_waker(ult)) });
    let mut cx = Context::from_waker(&waker);
    let _outer = LookAgain(ult);
    loop {
        ult.woken.swap(false, Acquire); // pair: ULT-WOKEN
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        let is_woken = || ult.woken.load(Acquire); // pair: ULT-WOKEN
        if is_woken() {
            // A future that wakes itself lets others run, and may do so for ever.
            if is_over(deadline) {
                return None;
            }
            switch::suspend(ult, Command::Yield);
        } else {
            ult.state.waits.set(WaitKind::Future);
            switch::suspend_until(ult, deadline, || {
                is_woken() || crate::engine::xstream::cancel::is_pending(ult)
            });
        }
        switch::check(ult);
        if !is_woken() {
            return None;
        }
    }
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// Sets `woken` again at the end of a `block_on`: another one of the same ULT may be around this
/// one, and its wake-up may have been taken.
struct LookAgain(UltPtr);

impl Drop for LookAgain {
    fn drop(&mut self) {
        self.0.woken.store(true, Release); // pair: ULT-WOKEN
    }
}

/// The functions of a waker that is a pointer to a descriptor and owns a count on it.
static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

fn raw_waker(ult: UltPtr) -> RawWaker {
    RawWaker::new(ult.as_non_null().as_ptr().cast_const().cast(), &VTABLE)
}

/// # Safety
///
/// `data` comes from [`raw_waker`], and the descriptor is alive.
unsafe fn ult_of(data: *const ()) -> UltPtr {
    // SAFETY: not null: `raw_waker`.
    let ult = unsafe { NonNull::new_unchecked(data.cast_mut().cast::<Ult>()) };
    // SAFETY: duty of the caller.
    unsafe { UltPtr::new(ult) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: `data` is that of a waker, which keeps the descriptor alive.
    let count = ManuallyDrop::new(UltRef::share(unsafe { ult_of(data) }));
    raw_waker(count.ptr())
}

unsafe fn wake(data: *const ()) {
    // SAFETY: as in `clone`; the waker gives its count away.
    let count = UltRef::adopt(unsafe { ult_of(data) });
    wake_ult(count.ptr());
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: as in `clone`.
    wake_ult(unsafe { ult_of(data) });
}

unsafe fn drop_waker(data: *const ()) {
    // SAFETY: as in `clone`; the waker gives its count away.
    drop(UltRef::adopt(unsafe { ult_of(data) }));
}

fn wake_ult(ult: UltPtr) {
    ult.woken.store(true, Release); // pair: ULT-WOKEN
    resume(ult);
}

/// The waker of an OS thread.
struct Signal {
    parker: Arc<ThreadParker>,
    woken: AtomicBool,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Release); // pair: SIGNAL-WOKEN
        self.parker.unpark();
    }
}

thread_local! {
    /// Empty while it is in use, so that a nested `block_on` makes its own.
    static SIGNAL: Cell<Option<Arc<Signal>>> = const { Cell::new(None) };
}

fn run_on_thread<F: Future>(
    mut future: Pin<&mut F>,
    deadline: Option<Instant>,
) -> Option<F::Output> {
    let cached = SIGNAL.try_with(Cell::take).ok().flatten();
    let signal = cached.unwrap_or_else(|| {
        Arc::new(Signal { parker: thread_parker(), woken: AtomicBool::new(false) })
    });
    let output = poll_on_thread(&signal, future.as_mut(), deadline);
    // While the thread ends there is no cache.
    let _ = SIGNAL.try_with(|cell| cell.set(Some(signal)));
    output
}

fn poll_on_thread<F: Future>(
    signal: &Arc<Signal>,
    mut future: Pin<&mut F>,
    deadline: Option<Instant>,
) -> Option<F::Output> {
    let waker = Waker::from(signal.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        signal.woken.swap(false, Acquire); // pair: SIGNAL-WOKEN
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            // pair: SIGNAL-WOKEN
            if signal.woken.load(Acquire) {
                break;
            }
            signal.parker.park(left);
        }
    }
}
