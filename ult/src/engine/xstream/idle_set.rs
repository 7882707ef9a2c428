//! The idle waiters of an xstream; see [`idle_wait`](crate::engine::run::idle_wait).

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use crate::base::contain::Panic;
use crate::engine::model::unit::UltPtr;

/// The number of other units that run at most before an idle waiter polls again.
pub(crate) const OTHERS_MAX: u64 = 32;

const NEVER: u64 = u64::MAX;

/// The reason why [`idle`](crate::integration::idle()) returned.
///
/// ```
/// use std::io::{Read, Write};
/// use std::os::fd::AsFd;
/// use std::os::unix::net::UnixStream;
/// use ult::integration::{IdleEnd, idle};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let (mut near, mut far) = UnixStream::pair()?;
/// let reader = pool.spawn(move || {
///     let mut byte = [0];
///     loop {
///         match idle(near.as_fd(), None, || true) {
///             IdleEnd::Ready => return near.read_exact(&mut byte).map(|()| byte),
///             // A network would be polled here.
///             other => println!("{other:?}"),
///         }
///     }
/// })?;
/// far.write_all(b"x")?;
/// assert_eq!(reader.join()??, *b"x");
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

pub(crate) type Arm<'a> = dyn FnMut() -> bool + 'a;

/// One idle waiter.
pub(crate) struct IdleWaiter {
    pub(crate) ult: UltPtr,
    pub(crate) fd: RawFd,
    /// Calls the user's `arm` and answers `true` after that.
    pub(crate) arm: Cell<NonNull<Arm<'static>>>,
    /// The xstream's count of units at registration.
    pub(crate) since: u64,
    pub(crate) end: Cell<Option<IdleEnd>>,
    pub(crate) panic: Cell<Option<Panic>>,
}

/// The idle waiters of one xstream, longest waiting first: so who must poll again is found at the
/// front, and who is to arm behind all who have.
#[derive(Default)]
pub(crate) struct IdleSet {
    entries: RefCell<Vec<NonNull<IdleWaiter>>>,
    /// The number of entries, from the front, whose `arm` was called.
    armed: Cell<usize>,
    /// Count of units at which the first of them must poll again.
    overdue_at: Cell<u64>,
    /// Memory for the arguments of `poll`.
    poll_fds: RefCell<Vec<libc::pollfd>>,
    /// ULTs whose end `mark_polled` has set.
    pub(crate) polled: RefCell<Vec<UltPtr>>,
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
        match self.first_waiting().filter(|(_, since)| units_run - since >= others) {
            Some((ult, _)) => Some(self.end(ult, IdleEnd::Ran)),
            None => {
                self.update_overdue();
                None
            }
        }
    }

    /// The first ULT whose wait has not ended, and its `since`, the least of all.
    fn first_waiting(&self) -> Option<(UltPtr, u64)> {
        let entries = self.entries.borrow();
        let first = entries.iter().map(deref).find(|entry| entry.end.get().is_none());
        first.map(|entry| (entry.ult, entry.since))
    }

    pub(crate) fn end(&self, ult: UltPtr, end: IdleEnd) -> UltPtr {
        let entries = self.entries.borrow();
        if let Some(entry) = entries.iter().map(deref).find(|entry| entry.ult == ult) {
            entry.end.set(Some(end));
        }
        drop(entries);
        self.update_overdue();
        ult
    }

    fn update_overdue(&self) {
        self.overdue_at.set(self.first_waiting().map_or(NEVER, |(_, since)| since + OTHERS_MAX));
    }

    pub(crate) fn add(&self, entry: &IdleWaiter) {
        self.entries.borrow_mut().push(NonNull::from(entry));
        self.update_overdue();
    }

    pub(crate) fn remove(&self, entry: &IdleWaiter) {
        let mut entries = self.entries.borrow_mut();
        if let Some(at) = entries.iter().position(|other| *other == NonNull::from(entry)) {
            entries.remove(at);
            self.armed.set(self.armed.get() - usize::from(at < self.armed.get()));
        }
        drop(entries);
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

    /// The next ULT whose `arm` is to be called, and is taken for called from now on.
    pub(crate) fn next_to_arm(&self) -> Option<(UltPtr, NonNull<Arm<'static>>)> {
        let entries = self.entries.borrow();
        loop {
            let entry = deref(entries.get(self.armed.get())?);
            self.armed.set(self.armed.get() + 1);
            // One whose wait has ended has not run yet, and arms no more.
            if entry.end.get().is_none() {
                return Some((entry.ult, entry.arm.get()));
            }
        }
    }

    pub(crate) fn set_panic(&self, ult: UltPtr, panic: Option<Panic>) {
        let entries = self.entries.borrow();
        if let Some(entry) = entries.iter().map(deref).find(|entry| entry.ult == ult) {
            entry.panic.set(panic);
        }
    }
}

fn deref(entry: &NonNull<IdleWaiter>) -> &IdleWaiter {
    // SAFETY:
    // - valid: `idle` removes its entry before its frame ends;
    // - shared access only, on the xstream's thread.
    unsafe { entry.as_ref() }
}
