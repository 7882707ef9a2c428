//! Waiting for the first of several objects.
//!
//! The caller links one waiter into each object and waits until one of them is woken; then it takes
//! all of them out again. A waiter of a select only *watches*: it never takes a permit, an item or
//! the only wake-up that an object has to give. A party that changes an object first serves those
//! that wait for it alone, and wakes the watchers only if something is left. So when two objects
//! fire at once, one is reported, and what the other one has to give is still there, for anybody.
//!
//! Being woken is a hint: another party may have taken what was there. The caller then
//! links itself again, and so returns only for an object that it has seen ready.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::base::unwind::unwind;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::waiter::Waiter;
use crate::engine::waiting::waiter::{Wake, after};
use crate::engine::waiting::watch::Watch;
use crate::wait::eventual::Eventual;

/// Something that [`wait_any`] can wait for: [`Eventual`], [`CountDown`](crate::CountDown),
/// the ends of a [`channel`](crate::wait::channel), and
/// [`Semaphore::ready`](crate::Semaphore::ready).
///
/// Only types of this crate implement it.
///
/// ```
/// use ult::{CountDown, Eventual, Selectable, wait_any};
///
/// let (stop, done) = (Eventual::<()>::new(), CountDown::new(1));
/// done.arrive()?;
/// let objects: [&dyn Selectable; 2] = [&stop, &done];
/// assert_eq!(wait_any(&objects, None), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[allow(private_bounds, reason = "sealed: how an object is watched is no business of users")]
pub trait Selectable: Watch {}

/// Up to this many objects are waited for without an allocation.
const INLINE_MAX: usize = 8;

/// Waits for the first of `objects` that is ready, and returns its index; the lowest if there are
/// several. `None`: `deadline` passed first. `deadline: None` has no limit.
///
/// Ready means: an eventual has been set, a countdown is complete, a receiver has an item or is
/// closed, a sender has room or is closed, a semaphore has the permits. Nothing is taken. Another
/// party may be faster, so use the `try_` form of the operation, and call again if it fails.
///
/// A ULT suspends, an OS thread blocks. If an object is ready already, it does neither. Without
/// objects it waits for the deadline, and returns at once if there is none.
///
/// ```
/// use ult::{Eventual, channel, wait_any};
///
/// let (sender, receiver) = channel::unbounded();
/// let stop = Eventual::<()>::new();
/// sender.send(7).unwrap();
/// assert_eq!(wait_any(&[&stop, &receiver], None), Some(1));
/// assert_eq!(receiver.try_recv(), Ok(7));
/// ```
pub fn wait_any(objects: &[&dyn Selectable], deadline: Option<Instant>) -> Option<usize> {
    if let Some(index) = first_ready(objects) {
        return Some(index);
    }
    if objects.is_empty() && deadline.is_none() {
        return None;
    }
    // One party for all waiters.
    let party = Waiter::new(WaitKind::Select);
    loop {
        let wake = if objects.len() <= INLINE_MAX {
            let waiters: [Option<Waiter>; INLINE_MAX] =
                std::array::from_fn(|index| (index < objects.len()).then(|| party.beside()));
            wait_once(objects, &party, &waiters, deadline)
        } else {
            let waiters: Vec<_> = objects.iter().map(|_| Some(party.beside())).collect();
            wait_once(objects, &party, &waiters, deadline)
        };
        if wake == Wake::Cancelled {
            unwind();
        }
        let index = first_ready(objects);
        if index.is_some() || wake == Wake::TimedOut {
            return index;
        }
    }
}

/// Like [`wait_any`], but no longer than `timeout` from now.
pub fn wait_any_timeout(objects: &[&dyn Selectable], timeout: Duration) -> Option<usize> {
    wait_any(objects, after(timeout))
}

/// Returns the index of the first object that is ready, as [`wait_any`] does, without waiting.
pub fn first_ready(objects: &[&dyn Selectable]) -> Option<usize> {
    objects.iter().position(|object| object.is_ready())
}

/// Links a waiter into each object and waits until one is woken. None is linked afterwards.
fn wait_once(
    objects: &[&dyn Selectable],
    party: &Waiter,
    waiters: &[Option<Waiter>],
    deadline: Option<Instant>,
) -> Wake {
    let mut links = LinkedWaiters { objects, waiters, count: 0 };
    for (object, waiter) in objects.iter().zip(waiters.iter().flatten()) {
        // SAFETY:
        // - in no list: fresh; the waiters stay where they are until `links` is dropped, which
        //   takes them out.
        if !unsafe { object.register(NonNull::from(waiter)) } {
            return Wake::Woken;
        }
        links.count += 1;
    }
    party.block_any(waiters, deadline)
}

/// The waiters that are linked, the first `count`.
struct LinkedWaiters<'a> {
    objects: &'a [&'a dyn Selectable],
    waiters: &'a [Option<Waiter>],
    count: usize,
}

impl Drop for LinkedWaiters<'_> {
    fn drop(&mut self) {
        let linked = self.objects.iter().zip(self.waiters.iter().flatten()).take(self.count);
        for (object, waiter) in linked {
            if !object.unregister(NonNull::from(waiter)) {
                // A waker has it and touches it once more.
                waiter.block_fully();
            }
        }
    }
}

impl<T> Selectable for Eventual<T> {}

impl<T> Watch for Eventual<T> {
    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    unsafe fn register(&self, node: NonNull<Waiter>) -> bool {
        // SAFETY: the duties of the caller are the same.
        unsafe { self.link(node) }
    }

    fn unregister(&self, node: NonNull<Waiter>) -> bool {
        self.unlink(node)
    }
}
