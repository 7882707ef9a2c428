//! Descriptions for other processes.
//!
//! The RPC is `__describe__` of the default provider, without arguments; it answers with a JSON
//! array of the descriptions of all providers. An instance serves it from when the first provider
//! is described, where progress runs.

use std::time::Duration;

use hg::{ReturnCode, RpcId};

use crate::admission::gates::Internal;
use crate::service::description::{MethodDescription, ServiceDescription};
use crate::support::own_rpcs;
use crate::{Addr, DescribeError, ForwardError, Handle, Instance, Provider, ProviderHandle};
use crate::{RegisterError, Rpc};

const DESCRIBE: Rpc<(), String> = Rpc::new(own_rpcs::DESCRIBE);

impl<T: Send + Sync + 'static> Provider<T> {
    /// Tells peers of a service of this provider, until all RPCs of the description are taken back;
    /// in place of what was told of a service of that name under this id. Any process that can
    /// reach the address may ask: see [`services_of`].
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub fn describe(&self, mut service: ServiceDescription) -> Result<(), RegisterError> {
        service.provider = self.id().get();
        let id = |method: &MethodDescription| RpcId::margo(&method.rpc, self.id());
        let rpcs = service.methods.iter().map(id).collect();
        let description = serde_json::to_value(&service).unwrap_or_default();
        let instance = self.instance();
        let told = &instance.inner().descriptions;
        told.insert(self.id(), &service.name, rpcs, description);
        let pool = instance.layout().progress_pool();
        match instance.serve(DESCRIBE).pool(&pool).internal(Internal::Describe).handler(answer) {
            Err(RegisterError::Exists { .. }) => Ok(()),
            registered => registered,
        }
    }
}

fn answer(request: Handle<(), String>) {
    let inner = request.instance().inner();
    let served = inner.descriptions.served(|id| inner.core.registered(id).is_some());
    // Who is gone needs no answer.
    let _ = request.respond(&serde_json::Value::from(served).to_string());
}

/// Asks the instance at `peer` for the services of its providers that are
/// [described](Provider::describe), ordered by the ids of the providers. Waits at most `limit`.
///
/// # Errors
///
/// [`DescribeError`].
pub fn services_of(
    instance: &Instance,
    peer: &Addr,
    limit: Duration,
) -> Result<Vec<ServiceDescription>, DescribeError> {
    let target = ProviderHandle::from(peer.clone());
    match instance.forward_timed(DESCRIBE, &target, &(), limit) {
        Ok(json) => serde_json::from_str(&json).map_err(|source| {
            let (peer, reason) = (peer.to_string(), source.to_string());
            DescribeError::Unreadable { peer, reason }
        }),
        Err(
            ForwardError::NotRegistered { .. }
            | ForwardError::Failed { code: ReturnCode::NoEntry, .. },
        ) => Err(DescribeError::Unknown { peer: peer.to_string() }),
        Err(error) => Err(DescribeError::Forward(error)),
    }
}
