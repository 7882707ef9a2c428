//! Closing of descriptors that others sent, on a thread of its own.
//!
//! The last `close` of a file may wait for as long as its maker likes: a TCP socket that lingers,
//! a file of a file system that a process serves. A peer passes such a file along with a packet,
//! and the thread that closes it, or a socket in whose queue it still lies, waits. So the poll and
//! the threads that send close only what is known to be harmless (`socket.rs`); the rest is parked
//! here.
//!
//! The thread is started for the first thing that is parked and ends with the last. A user who has
//! parked as much as he may gets no further connection; each connection that he has can park once
//! more. Where the kernel cannot forbid descriptors, a refused connection of any user can park
//! once, too; then nobody is accepted while too much is parked.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use crate::address::own_uid;
use prim::fork::Process;
use prim::signals;
use prim::sync::{Arc, Mutex, lock};

/// Packets and sockets of one user that may wait to be closed while more of him are let in.
const OF_USER_MAX: usize = 8;

/// Packets and sockets of all users together that may wait to be closed while more of other users
/// than our own are let in. From twice as many on, nobody is.
const MAX: usize = 64;

/// Descriptors and sockets that wait to be closed.
#[derive(Debug, Default)]
pub(crate) struct Closer {
    state: Mutex<State>,
    process: Process,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Parked>,
    /// With what is being closed.
    all: usize,
    by_user: HashMap<u32, usize>,
    runs: bool,
}

#[derive(Debug)]
struct Parked {
    uid: u32,
    fds: Vec<OwnedFd>,
}

impl Closer {
    /// Returns whether the caller is in a child process, whose descriptors are only copies.
    pub(crate) fn is_of_parent(&self) -> bool {
        self.process.is_other()
    }

    /// Closes `fds`, which a process of user `uid` sent, some time.
    pub(crate) fn park(self: &Arc<Self>, uid: u32, fds: Vec<OwnedFd>) {
        if fds.is_empty() || self.is_of_parent() {
            return;
        }
        let mut state = lock(&self.state);
        state.waiting.push_back(Parked { uid, fds });
        state.all += 1;
        *state.by_user.entry(uid).or_default() += 1;
        if state.runs {
            return;
        }
        let closer = self.clone();
        let thread = std::thread::Builder::new().name("margo-sm-close".to_owned());
        match thread.spawn(move || closer.run()) {
            Ok(_) => state.runs = true,
            Err(error) => tracing::warn!(
                "cannot start a thread to close what user {uid} sent: {error}; it stays open until \
                 more is to be closed"
            ),
        }
    }

    /// Returns whether no more may come from anybody.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.state).all >= 2 * MAX
    }

    /// Returns why no more may come from user `uid`, if so: a text for that user. Others do not
    /// keep our own user out.
    pub(crate) fn refusal(&self, uid: u32) -> Option<String> {
        let state = lock(&self.state);
        let of_user = state.by_user.get(&uid).copied().unwrap_or(0);
        if of_user < OF_USER_MAX && (state.all < MAX || uid == own_uid()) {
            return None;
        }
        Some(format!(
            "{of_user} things that processes of user {uid} sent, of {} of all users, wait to be \
             closed, and their senders keep that waiting",
            state.all
        ))
    }

    fn run(&self) {
        signals::block_all();
        let mut state = lock(&self.state);
        while let Some(Parked { uid, fds }) = state.waiting.pop_front() {
            drop(state);
            // May take for ever.
            drop(fds);
            state = lock(&self.state);
            state.all -= 1;
            if let Some(count) = state.by_user.get_mut(&uid) {
                *count -= 1;
                if *count == 0 {
                    state.by_user.remove(&uid);
                }
            }
        }
        state.runs = false;
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        // The thread keeps a reference, so there was none to be had. Whoever drops this must not
        // wait either.
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::forget(std::mem::take(&mut state.waiting));
    }
}
