//! A context: how its thread sleeps, and how it is woken.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `sleeps` | its thread, before it sleeps and when it looks | whoever ends an operation elsewhere |
//! | `told` | whoever ends an operation elsewhere | its thread, before it sleeps |
//! | `rung` | whoever wakes it | its thread, which then empties `bell` |
//!
//! Operations mostly end in a look of the context's own thread. Some end elsewhere: a send that was
//! done at once ends in the call that began it, and a look of another context's thread finds what
//! belongs here. Mercury puts both into the context's queue, and whoever sleeps on the context's
//! descriptor must be woken then. Both sides write first and read then (`PLUGIN-SLEEP`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use na::Error;
use prim::sync::atomic::{AtomicBool, Ordering, fence};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;

/// A context of Mercury's.
#[derive(Debug)]
pub(crate) struct Context {
    /// `None`: nobody sleeps in it.
    sleep: Option<Sleep>,
    sleeps: AtomicBool,
    told: AtomicBool,
    rung: AtomicBool,
    /// It was destroyed, so that its queue is gone.
    retired: AtomicBool,
}

#[derive(Debug)]
struct Sleep {
    /// Readable when the endpoint's descriptor or `bell` is.
    all: OwnedFd,
    bell: OwnedFd,
}

impl Context {
    pub(crate) fn new(endpoint: Option<BorrowedFd<'_>>) -> Result<Self, Error> {
        let sleep = endpoint.map(Sleep::new).transpose().map_err(|errno| {
            Error::io("descriptors to sleep on, of which a context needs two", errno)
        })?;
        Ok(Self {
            sleep,
            sleeps: AtomicBool::new(false),
            told: AtomicBool::new(false),
            rung: AtomicBool::new(false),
            retired: AtomicBool::new(false),
        })
    }

    /// The descriptor to sleep on.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.sleep.as_ref().map(|sleep| sleep.all.as_raw_fd())
    }

    /// Announces that its thread is about to sleep. `false`: something has ended since its last
    /// look.
    pub(crate) fn prepare_sleep(&self) -> bool {
        if self.sleep.is_none() {
            return false;
        }
        self.sleeps.store(true, Ordering::Relaxed);
        // pair: PLUGIN-SLEEP
        fence(Ordering::SeqCst);
        if self.told.load(Ordering::Relaxed) {
            self.wakes();
            return false;
        }
        true
    }

    /// Ends the announcement: its thread does not sleep.
    pub(crate) fn wakes(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// Notes that its thread looks at the network and then at its queue.
    #[inline]
    pub(crate) fn looks(&self) {
        if self.sleeps.load(Ordering::Relaxed) {
            self.wakes();
        }
        if self.told.load(Ordering::Relaxed) {
            // pair: PLUGIN-TOLD (what was put into the queue before is seen there)
            self.told.swap(false, Ordering::Acquire);
        }
        if self.rung.load(Ordering::Relaxed) {
            self.silence();
        }
    }

    #[cold]
    fn silence(&self) {
        self.rung.store(false, Ordering::Relaxed);
        if let Some(sleep) = &self.sleep {
            // Empty if another one was faster.
            let _ = rustix::io::read(&sleep.bell, &mut [0; 8]);
        }
    }

    /// Returns whether something was put into its queue since its last look.
    pub(crate) fn was_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// Something was put into its queue by another thread than its own.
    #[inline]
    pub(crate) fn tell(&self) {
        if self.sleep.is_none() {
            return;
        }
        // pair: PLUGIN-TOLD
        self.told.store(true, Ordering::Release);
        // pair: PLUGIN-SLEEP
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) {
            self.ring();
        }
    }

    /// Returns whether its thread has announced sleep.
    pub(crate) fn sleeps(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Wakes its thread.
    #[cold]
    pub(crate) fn ring(&self) {
        if let Some(sleep) = &self.sleep {
            self.rung.store(true, Ordering::Relaxed);
            // It is full only if it was rung already.
            let _ = rustix::io::write(&sleep.bell, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Sleeps until the descriptor is readable, or for so many milliseconds.
    pub(crate) fn sleep(&self, left: std::time::Duration) {
        let Some(sleep) = &self.sleep else { return };
        let mut fds = [PollFd::new(&sleep.all, PollFlags::IN)];
        let timeout = Timespec::try_from(left).ok();
        // A signal ends it early: the caller looks at the clock.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    }
}

impl Sleep {
    fn new(endpoint: BorrowedFd<'_>) -> Result<Self, Errno> {
        let all = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = EventData::new_u64(0);
        epoll::add(&all, endpoint, data, EventFlags::IN)?;
        epoll::add(&all, bell.as_fd(), data, EventFlags::IN)?;
        Ok(Self { all, bell })
    }
}
