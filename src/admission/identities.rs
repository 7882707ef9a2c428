//! The identities of providers; `serving/identity.rs` tells peers of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hg::ProviderId;

/// Those of the providers of this process. An entry counts only while its RPC is registered: that
/// is what goes with a `Provider`.
#[derive(Debug, Default)]
pub(crate) struct Identities(Mutex<BTreeMap<ProviderId, Arc<str>>>);

impl Identities {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<ProviderId, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: ProviderId) -> Option<Arc<str>> {
        self.lock().get(&id).cloned()
    }

    pub(crate) fn set(&self, id: ProviderId, identity: &str) {
        self.lock().insert(id, identity.into());
    }
}
