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

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::time::Instant;

use crate::base::contain::Panic;
use crate::base::contain::discard_panic;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::unit::UltPtr;
use crate::engine::waiting::cancel;
use crate::engine::xstream::current;
use crate::engine::xstream::owner::Xstream;
use crate::engine::xstream::switch::suspend_until;

/// The number of other units that run at most before an idle waiter polls again.
pub(crate) const OTHERS_MAX: u64 = 32;
const NEVER: u64 = u64::MAX;

/// The reason why [`idle`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdleEnd {
    /// Other units have run: 32 of them without a break, or fewer and now there are no more. They
    /// may have given the caller something to do; poll again.
    Ran,
    /// The caller's `arm` said that work is there already.
    Work,
    /// The descriptor is readable, or in an error state.
    Ready,
    /// The deadline has passed.
    Deadline,
    /// The ULT was unparked; the token has been taken.
    Unparked,
    /// The system cannot wait for this descriptor. The caller must poll by itself.
    Refused,
}

type Arm<'a> = dyn FnMut() -> bool + 'a;

/// One idle waiter.
struct IdleWaiter {
    ult: UltPtr,
    fd: RawFd,
    /// Calls the user's `arm` and answers `true` after that.
    arm: Cell<NonNull<Arm<'static>>>,
    is_armed: Cell<bool>,
    /// The xstream's count of units at registration.
    since: Cell<u64>,
    end: Cell<Option<IdleEnd>>,
    panic: Cell<Option<Panic>>,
}

/// The idle waiters of one xstream, longest waiting first.
#[derive(Default)]
pub(crate) struct IdleSet {
    entries: RefCell<Vec<NonNull<IdleWaiter>>>,
    /// Count of units at which the first of them must poll again.
    overdue_at: Cell<u64>,
    /// Memory for the arguments of `poll`.
    poll_fds: RefCell<Vec<libc::pollfd>>,
    /// ULTs whose end `mark_polled` has set.
    polled: RefCell<Vec<UltPtr>>,
}

impl IdleSet {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.borrow().is_empty()
    }

    /// Returns whether a waiter has let `OTHERS_MAX` units pass.
    #[inline]
    pub(crate) fn is_overdue(&self, units_run: u64) -> bool {
        // Zero: nobody has ever waited here.
        let at = self.overdue_at.get();
        at != 0 && units_run >= at
    }

    /// Ends the wait of one entry past which at least `others` units have run.
    pub(crate) fn take_passed(&self, units_run: u64, others: u64) -> Option<UltPtr> {
        let found = self.find(|entry| units_run - entry.since.get() >= others);
        match found {
            Some(ult) => Some(self.end(ult, IdleEnd::Ran)),
            None => {
                self.update_overdue();
                None
            }
        }
    }

    /// The ULT of the first entry that has not ended and for which `test` holds.
    fn find(&self, test: impl Fn(&IdleWaiter) -> bool) -> Option<UltPtr> {
        let entries = self.entries.borrow();
        let found = entries.iter().map(deref).find(|entry| {
            let is_waiting = entry.end.get().is_none();
            is_waiting && test(entry)
        });
        found.map(|entry| entry.ult)
    }

    fn end(&self, ult: UltPtr, end: IdleEnd) -> UltPtr {
        let entries = self.entries.borrow();
        if let Some(entry) = entries.iter().map(deref).find(|entry| entry.ult == ult) {
            entry.end.set(Some(end));
        }
        drop(entries);
        self.update_overdue();
        ult
    }

    fn update_overdue(&self) {
        let entries = self.entries.borrow();
        let waiting = entries.iter().map(deref).filter(|entry| entry.end.get().is_none());
        let first = waiting.map(|entry| entry.since.get()).min();
        self.overdue_at.set(first.map_or(NEVER, |since| since + OTHERS_MAX));
    }

    fn add(&self, entry: &IdleWaiter) {
        self.entries.borrow_mut().push(NonNull::from(entry));
        self.update_overdue();
    }

    fn remove(&self, entry: &IdleWaiter) {
        self.entries.borrow_mut().retain(|other| *other != NonNull::from(entry));
        // Of two that were ready, the first to run may have let the other run already.
        self.polled.borrow_mut().retain(|ult| *ult != entry.ult);
        self.update_overdue();
    }

    /// The arguments for `poll`: the eventfd first, then one per entry in their order.
    pub(crate) fn take_poll_fds(&self, eventfd: &OwnedFd) -> Vec<libc::pollfd> {
        let poll_in = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = std::mem::take(&mut *self.poll_fds.borrow_mut());
        fds.clear();
        fds.push(poll_in(eventfd.as_raw_fd()));
        fds.extend(self.entries.borrow().iter().map(|entry| poll_in(deref(entry).fd)));
        fds
    }

    /// Keeps the memory for the next time.
    pub(crate) fn put_poll_fds(&self, fds: Vec<libc::pollfd>) {
        *self.poll_fds.borrow_mut() = fds;
    }

    /// Ends the wait of the entries whose descriptor `poll` has reported.
    pub(crate) fn mark_polled(&self, fds: &[libc::pollfd]) {
        let entries = self.entries.borrow();
        for (entry, fd) in entries.iter().map(deref).zip(&fds[1..]) {
            if fd.revents != 0 && entry.end.get().is_none() {
                let is_bad = fd.revents & libc::POLLNVAL != 0;
                entry.end.set(Some(if is_bad { IdleEnd::Refused } else { IdleEnd::Ready }));
                self.polled.borrow_mut().push(entry.ult);
            }
        }
    }
}

fn deref(entry: &NonNull<IdleWaiter>) -> &IdleWaiter {
    // SAFETY:
    // - valid: `idle` removes its entry before its frame ends;
    // - shared access only, on the xstream's thread.
    unsafe { entry.as_ref() }
}

impl Xstream {
    /// Asks the waiters that have not been asked to arm their source of events. Runs those whose
    /// answer is that work is there, and returns whether there was one.
    pub(crate) fn arm_idle(&self) -> bool {
        let mut any = false;
        while let Some(ult) = self.idle.find(|entry| !entry.is_armed.get()) {
            let Some(mut arm) = self.idle.arming(ult) else { break };
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

impl IdleSet {
    fn arming(&self, ult: UltPtr) -> Option<NonNull<Arm<'static>>> {
        let entries = self.entries.borrow();
        let entry = entries.iter().map(deref).find(|entry| entry.ult == ult)?;
        entry.is_armed.set(true);
        Some(entry.arm.get())
    }

    fn set_panic(&self, ult: UltPtr, panic: Option<Panic>) {
        let entries = self.entries.borrow();
        if let Some(entry) = entries.iter().map(deref).find(|entry| entry.ult == ult) {
            entry.panic.set(panic);
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
/// events soon should poll for a while, as long as [`has_runnable`](crate::has_runnable) says no,
/// before it calls this.
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
        is_armed: Cell::new(false),
        since: Cell::new(xstream.units_run.get()),
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
        cancel::unwind();
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
