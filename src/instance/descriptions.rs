//! The descriptions of services that providers have here, as peers are told of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use hg::{ProviderId, RpcId};
use serde_json::Value;

/// Descriptions by provider and name of the service, each with the RPCs that it goes with.
#[derive(Debug, Default)]
pub(crate) struct Descriptions(Mutex<ByProvider>);

type ByProvider = BTreeMap<(ProviderId, String), (Vec<RpcId>, Value)>;

impl Descriptions {
    /// In place of the one of that name there.
    pub(crate) fn insert(
        &self,
        provider: ProviderId,
        service: &str,
        rpcs: Vec<RpcId>,
        description: Value,
    ) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert((provider, service.to_owned()), (rpcs, description));
    }

    /// The descriptions of which an RPC is still served; the others are forgotten.
    pub(crate) fn served(&self, is_served: impl Fn(RpcId) -> bool) -> Vec<Value> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (rpcs, _)| rpcs.iter().any(|id| is_served(*id)));
        all.values().map(|(_, description)| description.clone()).collect()
    }
}
