//! Requests that were left to other ULTs: the handler has ended, and its [`Handle`](crate::Handle)
//! is somewhere else. They stay in hand until they are answered (`error_response.rs`); this
//! table finds them when the instance ends.
//!
//! A request that its handler answers never comes here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hg::ReturnCode;
use na::shared::{Shared, WeakShared};

/// The answer that the origin of such a request gets. Not `HG_PERMISSION`, which says that the
/// handler has not run.
pub(crate) const CLOSING: (ReturnCode, &str) =
    (ReturnCode::OtherError, "the service shut down before it was answered");

/// Those of an instance.
pub(crate) struct MovedRequests<R>(Mutex<MovedState<R>>);

struct MovedState<R> {
    /// By their addresses, which are theirs as long as somebody looks on.
    replies: HashMap<usize, WeakShared<R>>,
    is_over: bool,
}

impl<R> Default for MovedRequests<R> {
    fn default() -> Self {
        Self(Mutex::new(MovedState { replies: HashMap::new(), is_over: false }))
    }
}

impl<R> MovedRequests<R> {
    fn state(&self) -> MutexGuard<'_, MovedState<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters one more. `false`: the network is about to close, and the request would not be found.
    pub(crate) fn insert(&self, reply: &Shared<R>) -> bool {
        let mut state = self.state();
        if !state.is_over {
            state.replies.insert(address::<R>(reply), Shared::downgrade(reply));
        }
        !state.is_over
    }

    /// The requests that are left, for the caller to answer before the network closes.
    pub(crate) fn close(&self) -> Vec<Shared<R>> {
        let left = {
            let mut state = self.state();
            state.is_over = true;
            std::mem::take(&mut state.replies)
        };
        left.into_values().filter_map(|reply| reply.upgrade()).collect()
    }

    /// It is answered.
    pub(crate) fn remove(&self, reply: &R) {
        let gone = self.state().replies.remove(&address::<R>(reply));
        drop(gone);
    }
}

fn address<R>(reply: &R) -> usize {
    std::ptr::from_ref(reply).addr()
}
