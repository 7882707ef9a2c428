//! How a ULT that polls something outside, such as a network, sleeps with its xstream.
//!
//! Such a ULT polls, and when it has found nothing for a while it calls [`idle`]. It is then an
//! idle waiter of its xstream: parked, but run again directly, past its pool, as soon as one of the
//! reasons in [`IdleEnd`] holds. Runs for such a reason do not count as "other units", so that two
//! idle waiters cannot keep each other awake.
//!
//! # Who may touch what
//!
//! The entry of a waiter stands on its ULT's stack from the call of `idle` to its return; only the
//! xstream's own thread touches it. The ULT itself enters and removes it. The xstream sets `end`
//! and then runs the ULT; an unpark or a timer resumes it in the ordinary way and leaves `end`
//! unset.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::time::Instant;

use crate::base::contain::discard_panic;
use crate::base::unwind::unwind;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::unit::UltPtr;
use crate::engine::xstream::cancel;
use crate::engine::xstream::current;
use crate::engine::xstream::idle_set::{Arm, IdleEnd, IdleWaiter};
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::switch::suspend_until;
use crate::trace::event::EventKind;

impl Xstream {
    /// Runs each idle waiter past which at least `others` units have run, directly and not through
    /// its pool. Returns whether there was one.
    pub(crate) fn resume_idle(&self, others: u64) -> bool {
        let mut any = false;
        while let Some(ult) = self.idle.take_passed(self.units_run.get(), others) {
            any = true;
            self.run_idle(ult);
        }
        any
    }

    /// Runs an idle waiter whose end has been set, unless it has been queued already.
    pub(crate) fn run_idle(&self, ult: UltPtr) {
        if ult.state.cell.resume() {
            self.on_event(ult, EventKind::Resume);
            self.count_run_at_once(ult);
            self.run(ult);
        }
    }

    /// Asks the waiters that have not been asked to arm their source of events. Runs those whose
    /// answer is that work is there, and returns whether there was one.
    pub(crate) fn arm_idle(&self) -> bool {
        let mut any = false;
        while let Some((ult, mut arm)) = self.idle.next_to_arm() {
            // No entry is borrowed here: `arm` is the user's and may spawn, unpark and so on.
            //
            // SAFETY:
            // - valid, no alias: the closure stands in the frame of the parked `idle`, and is
            //   called only here.
            let answer = catch_unwind(AssertUnwindSafe(|| unsafe { arm.as_mut() }()));
            if !matches!(answer, Ok(true)) {
                self.idle.set_panic(ult, answer.err());
                self.idle.end(ult, IdleEnd::Work);
                any = true;
                self.run_idle(ult);
            }
        }
        any
    }

    /// Runs the waiters whose descriptor was reported by the last sleep.
    pub(crate) fn run_polled(&self) {
        loop {
            let Some(ult) = self.idle.polled.borrow_mut().pop() else { return };
            self.run_idle(ult);
        }
    }
}

/// Suspends the calling ULT until it should poll again what `fd` belongs to.
///
/// Other units of the xstream run meanwhile. Once nothing is runnable, the xstream calls `arm`, at
/// most once, and sleeps until `fd` is readable or something becomes runnable. `arm` makes sure
/// that `fd` will become readable for everything that happens from then on, and returns `false` if
/// something has happened already. It runs on the xstream's own stack: it must not wait for
/// anything. If it panics, the panic goes on in the caller.
///
/// The xstream does not spin before it sleeps if there are idle waiters. So a caller that expects
/// events soon should poll for a while, as long as
/// [`has_runnable`](crate::integration::has_runnable) says no, before it calls this.
///
/// `deadline` bounds the wait; `None`: no bound. A cancellation point. Costs no system call unless
/// the xstream really sleeps.
///
/// On an OS thread, and in a destructor during unwinding, it blocks the thread until `fd` is
/// readable or the deadline has passed.
pub fn idle(fd: BorrowedFd<'_>, deadline: Option<Instant>, arm: impl FnOnce() -> bool) -> IdleEnd {
    let Some((xstream, ult)) = current::xstream().zip(current::suspendable()) else {
        return idle_thread(fd, deadline, arm);
    };
    let mut arm = Some(arm);
    let mut call_arm = || arm.take().is_none_or(|arm| arm());
    let call_arm: NonNull<Arm<'_>> = NonNull::from(&mut call_arm);
    // SAFETY:
    // - only the lifetime changes: the entry, and with it the pointer, is gone before the closure.
    let call_arm =
        unsafe { std::mem::transmute::<NonNull<Arm<'_>>, NonNull<Arm<'static>>>(call_arm) };
    let entry = IdleWaiter {
        ult,
        fd: fd.as_raw_fd(),
        arm: Cell::new(call_arm),
        since: xstream.units_run.get(),
        end: Cell::new(None),
        panic: Cell::new(None),
    };
    // The entry stands in this xstream's set, so the ULT stays.
    ult.pins.set(ult.pins.get() + 1);
    ult.state.waits.set(WaitKind::Idle);
    xstream.idle.add(&entry);
    xstream.has_chores.set(true);
    let is_unparked = Cell::new(false);
    suspend_until(ult, deadline, || {
        is_unparked.set(is_unparked.get() || ult.take_token());
        is_unparked.get() || entry.end.get().is_some() || cancel::is_pending(ult)
    });
    xstream.idle.remove(&entry);
    ult.pins.set(ult.pins.get() - 1);
    let panic = entry.panic.take();
    if !is_unparked.get() && cancel::is_pending(ult) {
        // Not while this unwinds: it may have a destructor that panics.
        if let Some(panic) = panic {
            discard_panic(panic);
        }
        unwind();
    }
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
    match entry.end.get() {
        _ if is_unparked.get() => IdleEnd::Unparked,
        Some(end) => end,
        None => IdleEnd::Deadline,
    }
}

fn idle_thread(
    fd: BorrowedFd<'_>,
    deadline: Option<Instant>,
    arm: impl FnOnce() -> bool,
) -> IdleEnd {
    use rustix::event::{PollFd, PollFlags, poll};
    if !arm() {
        return IdleEnd::Work;
    }
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        match poll(&mut fds, left.map(crate::base::timespec::timespec).as_ref()) {
            Ok(0) => return IdleEnd::Deadline,
            Ok(_) if fds[0].revents().contains(PollFlags::NVAL) => return IdleEnd::Refused,
            Ok(_) => return IdleEnd::Ready,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return IdleEnd::Refused,
        }
    }
}
