//! The socket that listens. It may pass from one endpoint of a group to another, with what waits
//! in its queue; it ends with the last one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::closer::Closer;
use super::socket::{self, Socket};
use crate::address::Name;
use na_core::Error;
use na_core::limits::descriptors::Reserve;
use prim::sync::Arc;

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    reserve: Option<Reserve>,
    closer: Arc<Closer>,
}

impl Listener {
    /// Listens as `name`.
    pub(crate) fn open(name: &Name, closer: &Arc<Closer>) -> Result<Self, Error> {
        let fd = socket::listen(name)?;
        Ok(Self { fd, reserve: Some(Reserve::open()), closer: closer.clone() })
    }

    /// Accepts a connection, if one waits.
    pub(crate) fn accept(&self) -> Result<Socket, Errno> {
        socket::accept(self.fd.as_fd(), &self.closer)
    }

    /// Accepts a connection in place of the descriptor that is kept for this, only to `tell` it
    /// why it cannot be.
    pub(crate) fn accept_to_refuse(&mut self, tell: impl FnOnce(&Socket)) -> Result<(), Errno> {
        let Self { fd, reserve: Some(reserve), closer } = self else { return Err(Errno::MFILE) };
        reserve.lend(|| socket::accept(fd.as_fd(), closer).map(|socket| tell(&socket)))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.closer.is_of_parent() {
            return;
        }
        // A child that was forked off may keep the file: nobody shall wait there, in vain.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
        // Each by itself, because something may lie in its queue that the last close of the
        // listener would wait for (`socket.rs`).
        self.reserve = None;
        while matches!(self.accept(), Ok(_) | Err(Errno::INTR)) {}
    }
}
