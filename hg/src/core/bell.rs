//! The descriptors on which a context sleeps that shares its endpoint.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use prim::lost;
use prim::sleepers::{Sleeper, Sleepers};
use rustix::event::{EventfdFlags, epoll};

use crate::HgError;

/// How a context that shares its endpoint is woken.
#[derive(Debug)]
pub(crate) struct Bell {
    asleep: Sleeper,
    bell: OwnedFd,
    /// Both descriptors, as one.
    both: OwnedFd,
}

/// How the bell is called, should it be lost.
const BELL_NAME: &str = "the eventfd that wakes a context";

impl Bell {
    pub(crate) fn new(endpoint: Option<BorrowedFd<'_>>) -> Result<Self, HgError> {
        let failed = |errno: rustix::io::Errno| {
            HgError::Na(na::Error::io("cannot make the descriptors of a context", errno))
        };
        let bell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(failed)?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        for fd in [Some(bell.as_fd()), endpoint].into_iter().flatten() {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&both, fd, data, epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Self { asleep: Sleeper::default(), bell, both })
    }

    #[inline]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    /// Announces a sleep; follow with a look at the mailbox.
    pub(crate) fn announce(&self, all: &Sleepers) {
        self.asleep.announce(all);
    }

    /// Ends a sleep.
    pub(crate) fn retract(&self, all: &Sleepers) {
        if self.asleep.retract(all) {
            lost::silence(&self.bell, BELL_NAME);
        }
    }

    /// Something was put into the mailbox; whether its context slept.
    pub(crate) fn ring(&self) -> bool {
        let asleep = self.asleep.must_ring();
        if asleep {
            lost::ring(&self.bell, BELL_NAME);
        }
        asleep
    }
}
