//! Requests that were left to other ULTs: the handler has ended, and its [`Handle`](crate::Handle)
//! is somewhere else. They stay in hand until they are answered (`respond.rs`); this table finds
//! them when the instance ends.
//!
//! A request that its handler answers never comes here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hg::ReturnCode;
use na::shared::{Shared, WeakShared};

use crate::dispatch::respond::Reply;

/// The answer that the origin of such a request gets. Not `HG_PERMISSION`, which says that the
/// handler has not run.
pub(crate) const CLOSING: (ReturnCode, &str) =
    (ReturnCode::OtherError, "the service shut down before it was answered");

/// Those of an instance.
#[derive(Default)]
pub(crate) struct MovedRequests(Mutex<State>);

#[derive(Default)]
struct State {
    /// By their addresses, which are theirs as long as somebody looks on.
    replies: HashMap<usize, WeakShared<Reply>>,
    is_over: bool,
}

impl MovedRequests {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters one more. `false`: the network is about to close, and the request would not be found.
    pub(crate) fn insert(&self, reply: &Shared<Reply>) -> bool {
        let mut state = self.state();
        if !state.is_over {
            state.replies.insert(address(reply), Shared::downgrade(reply));
        }
        !state.is_over
    }

    /// Answers all that are left, before the network closes.
    pub(crate) fn close(&self) {
        let left = {
            let mut state = self.state();
            state.is_over = true;
            std::mem::take(&mut state.replies)
        };
        let (code, detail) = CLOSING;
        for reply in left.into_values().filter_map(|reply| reply.upgrade()) {
            reply.fail(code, detail);
        }
    }

    /// It is answered.
    pub(crate) fn remove(&self, reply: &Reply) {
        let gone = self.state().replies.remove(&address(reply));
        drop(gone);
    }
}

fn address(reply: &Reply) -> usize {
    std::ptr::from_ref(reply).addr()
}
