//! The lives of groups: a group learns that one to which it sends has failed or died also while it
//! has nothing to send.
//!
//! A group that sends has a call at each group to which it does, which is answered when that one
//! has ended: with the reason, if it has failed.

use std::sync::Arc;

use margo::ult::{self, Eventual, Selectable};
use margo::{Instance, Provider, ProviderHandle, ProviderId, RegisterError, Rpc};

use super::error::GraphError;
use super::links::{Links, QueueAt};
use super::state::RunState;
use super::stop::BoxError;
use crate::base::names;

/// The end of this group, which those that send to it wait for. Dropped, it is a proper one.
pub(crate) struct Life {
    end: Arc<Eventual<Result<(), String>>>,
    _providers: Vec<Provider>,
}

impl Life {
    /// Serves the calls of the others.
    pub(crate) fn serve(links: &Links, state: &RunState) -> Result<Self, RegisterError> {
        let end = Arc::new(Eventual::new());
        let mut providers = Vec::new();
        // One for each group that waits, one for each endpoint, and two here.
        let most = links.cut.groups.len() + links.endpoints().len() + 2;
        for instance in links.endpoints() {
            let pool = instance.layout().rpc_pool();
            let provider = instance.provider(ProviderId::DEFAULT, &pool);
            let all = end.clone();
            provider.serve(rpc(links, &links.own)).handler(move |handle| {
                let until = all.clone();
                if Arc::strong_count(&until) > most {
                    // More than there are groups: a stranger, who learns nothing.
                    let _ = handle.respond(&Ok(()));
                    return;
                }
                let token = handle.cancel_token();
                let ends: [&dyn Selectable; 3] = [&*until, handle.closing(), token.event()];
                ult::wait_any(&ends, None);
                // Whoever has canceled it needs no answer.
                let _ = handle.respond(until.try_get().unwrap_or(&Ok(())));
            })?;
            providers.push(provider);
        }
        let (failed, own) = (end.clone(), links.own.clone());
        state.on_over(Box::new(move |why| {
            let _ = failed.set(Err(format!("group `{own}`: {why}")));
        }));
        Ok(Self { end, _providers: providers })
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.end.set(Ok(()));
    }
}

fn rpc(links: &Links, group: &str) -> Rpc<(), Result<(), String>> {
    Rpc::new(names::kept(format!("margo_stream.{}.{group}.life", links.graph())))
}

/// Has the run fail when the group at the end of an edge does.
pub(crate) fn watch(
    links: &Arc<Links>,
    at: &QueueAt,
    (instance, target): (Instance, ProviderHandle),
    state: &Arc<RunState>,
) -> Result<(), BoxError> {
    if !links.watched.lock().insert(at.group.clone()) {
        return Ok(());
    }
    let request = instance.rpc(rpc(links, &at.group), &target, &()).start()?;
    let (links, at, run) = (links.clone(), at.clone(), state.clone());
    let unit = instance.layout().rpc_pool().ult().name("margo_stream.life").spawn(move || {
        let ends: [&dyn Selectable; 2] = [request.ready(), &run.ended];
        if ult::wait_any(&ends, None) != Some(0) {
            return request.cancel();
        }
        let cause: BoxError = match request.wait() {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why.into(),
            Err(error) => error.into(),
        };
        let (stage, edge) = (links.stage(at.from), links.edge(&at));
        run.fail(GraphError::Peer { stage, edge, group: at.group, cause });
    })?;
    state.watches.lock().push(unit);
    Ok(())
}
