//! RPCs that are served, told to monitors in the order in which they change.
//!
//! One thread may take back a change that another one is about to tell of, and monitors are code of
//! users, which runs under no lock. So a thread that changes what is served notes the news under a
//! lock. One thread at a time tells the news, also the news that others have noted meanwhile.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hg::{ProviderId, RpcId};
use ult::PoolRef;

use super::user::LifeEvent;

/// A change that monitors are to be told of.
pub(crate) enum Served {
    Registered { rpc: &'static str, rpc_id: RpcId, provider: ProviderId, pool: PoolRef },
    Deregistered { rpc_id: RpcId },
}

impl Served {
    pub(super) fn event(&self) -> LifeEvent<'_> {
        match self {
            Self::Registered { rpc, rpc_id, provider, pool } => {
                LifeEvent::Registered { rpc, rpc_id: *rpc_id, provider: *provider, pool }
            }
            Self::Deregistered { rpc_id } => LifeEvent::Deregistered { rpc_id: *rpc_id },
        }
    }
}

#[derive(Default)]
pub(super) struct ToTell(Mutex<ServedState>);

#[derive(Default)]
pub(super) struct ServedState {
    pub(super) due: VecDeque<Served>,
    /// A thread takes from it until it is empty.
    pub(super) is_being_told: bool,
}

impl ToTell {
    pub(super) fn state(&self) -> MutexGuard<'_, ServedState> {
        // No code of users runs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
