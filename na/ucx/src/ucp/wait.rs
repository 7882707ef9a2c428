//! The descriptors that a sleeper waits on, for endpoints that somebody may sleep on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::worker::Worker;
use crate::operations::keys::BELL_NAME;
use na_core::Error;
use prim::lost;
use prim::sync::Arc;

/// The worker's descriptor, a bell and a timer, in one set.
pub(crate) struct Wait {
    set: OwnedFd,
    bell: Arc<OwnedFd>,
    timer: OwnedFd,
}

impl Wait {
    /// Makes the set for a worker that wakes a sleeper.
    pub(crate) fn new(worker: &Worker) -> Result<Self, Error> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::io("cannot create an epoll set", errno))?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::io("cannot create an eventfd", errno))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| Error::io("cannot create a timer", errno))?;
        // SAFETY: UCX's descriptor, which is open as long as the worker is; the borrow ends here.
        let work = unsafe { BorrowedFd::borrow_raw(worker.fd()?) };
        for fd in [work, bell.as_fd(), timer.as_fd()] {
            epoll::add(&set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(|errno| Error::io("cannot watch a descriptor", errno))?;
        }
        Ok(Self { set, bell: Arc::new(bell), timer })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Returns the bell, for others that [ring](Self::ring).
    pub(crate) fn bell(&self) -> Arc<OwnedFd> {
        self.bell.clone()
    }

    /// Wakes the sleeper.
    pub(crate) fn ring(&self) {
        lost::ring(&self.bell, BELL_NAME);
    }

    /// Nobody sleeps any more.
    pub(crate) fn silence(&self) {
        lost::silence(&self.bell, BELL_NAME);
    }

    /// Wakes the sleeper at `deadline`; `None`: not at any time.
    pub(crate) fn set_timer(&self, deadline: Option<Instant>) {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let it_value = match left {
            // All zero would be never.
            Some(left) => Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()).max(1),
            },
            None => Timespec { tv_sec: 0, tv_nsec: 0 },
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let times = Itimerspec { it_interval, it_value };
        if let Err(errno) = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times) {
            lost::check(errno, "the timer of a ucx endpoint");
        }
    }
}
