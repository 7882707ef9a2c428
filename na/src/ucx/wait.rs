//! What is slept on, by endpoints that somebody may sleep on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::worker::Worker;
use crate::Error;
use crate::sync::Arc;

/// The worker's descriptor, a bell and a timer, in one set.
pub(super) struct Wait {
    set: OwnedFd,
    bell: Arc<OwnedFd>,
    timer: OwnedFd,
}

impl Wait {
    /// For a worker that wakes who sleeps.
    pub(super) fn new(worker: &Worker) -> Result<Self, Error> {
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

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// For others who [ring](Self::ring).
    pub(super) fn bell(&self) -> Arc<OwnedFd> {
        self.bell.clone()
    }

    /// Wakes who sleeps.
    pub(super) fn ring(&self) {
        // It fails only if it was rung 2^64 times.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Nobody sleeps any more.
    pub(super) fn silence(&self) {
        // Nothing is there if nobody rang.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// Wakes who sleeps at `deadline`; `None`: not at any time.
    pub(super) fn set_timer(&self, deadline: Option<Instant>) {
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
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times);
        debug_assert!(set.is_ok(), "a time that is valid");
    }
}
