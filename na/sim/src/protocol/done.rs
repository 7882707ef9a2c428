//! Completions that wait for a node's next poll, and the bell that wakes a caller who sleeps.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use na_core::Completion;

/// Completions that wait for a poll, and the bell that tells of them.
pub(crate) struct Done {
    pub(crate) queue: VecDeque<Completion>,
    /// `None` once nobody polls any more.
    bell: Option<Arc<OwnedFd>>,
    pub(crate) sleeping: bool,
    rung: bool,
}

impl Done {
    pub(crate) fn new(bell: Arc<OwnedFd>) -> Self {
        Self { queue: VecDeque::new(), bell: Some(bell), sleeping: false, rung: false }
    }

    pub(crate) fn push(&mut self, completion: Completion) {
        self.queue.push_back(completion);
        if self.sleeping {
            self.ring();
        }
    }

    pub(crate) fn ring(&mut self) {
        if let Some(bell) = &self.bell
            && !std::mem::replace(&mut self.rung, true)
        {
            // Only a full counter could fail, and it holds one at most.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Ends the announcement of a sleep.
    pub(crate) fn wake(&mut self) {
        self.sleeping = false;
        if std::mem::take(&mut self.rung)
            && let Some(bell) = &self.bell
        {
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
        }
    }

    /// Nobody will poll: gives up buffers and bell, though the node may have a farewell to see
    /// through.
    pub(crate) fn abandon(&mut self) {
        self.queue.clear();
        self.bell = None;
    }
}
