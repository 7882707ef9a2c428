//! The providers of `margo.providers`.

use std::collections::HashMap;

use serde_json::Value;

use super::declared::Layout;
use super::dependencies::{self, NamedProvider, default_name};
use super::names::{Names, check_identifier};
use super::{Findings, ResolvedPool, ResolvedProvider};
use crate::document::config::{Config, PoolKind};
use crate::document::margo::{PROVIDER_ID_DEFAULT, PROVIDER_ID_MAX, Priority, Provider};

/// Checks all providers. One with an error has its place, for checks of other kinds.
pub(super) fn resolve(
    config: &Config,
    layout: &Layout,
    rpc_pool: Option<usize>,
    found: &mut Findings,
) -> Vec<ResolvedProvider> {
    let mut names = Names::default();
    let (mut ids, mut first_of) = (HashMap::new(), HashMap::new());
    let providers = &config.margo.providers;
    let mut resolved = Vec::with_capacity(providers.len());
    let mut entries = Vec::with_capacity(providers.len());
    for (index, provider) in providers.iter().enumerate() {
        let path = format!("margo.providers[{index}]");
        let kind = provider_type(&path, provider, found);
        let id = provider_id(&path, provider, found);
        let pool = provider_pool(&path, provider, layout, rpc_pool, found);
        if let Some(name) = &provider.name {
            names.claim(&path, name, found);
        }
        entries.push(NamedProvider::new(provider.name.as_deref(), kind.as_deref(), id));
        if let Some(id) = id {
            warn_of_one_id_for_two(&path, (index, id), providers, &mut first_of, found);
        }
        let (Some(type_name), Some(provider_id)) = (kind, id) else {
            resolved.push(nobody());
            continue;
        };
        if let Some(other) = ids.insert((type_name.clone(), provider_id), path.clone()) {
            let message =
                format!("provider {provider_id} of type {type_name:?} is already `{other}`");
            found.error(format!("{path}.provider_id"), message);
        }
        let Some(pool) = pool else {
            resolved.push(ResolvedProvider {
                type_name,
                config: Value::Object(provider.config.clone()),
                ..nobody()
            });
            continue;
        };
        check_priority(&path, provider.priority, &layout.pools[pool], found);
        resolved.push(ResolvedProvider {
            name: provider.name.clone().unwrap_or_else(|| default_name(&type_name, provider_id)),
            type_name,
            provider_id,
            pool,
            priority: provider.priority,
            dependencies: Vec::new(),
            config: Value::Object(provider.config.clone()),
        });
    }
    check_default_names(config, &mut names, found);
    let dependencies = dependencies::resolve(providers, &entries, found);
    let each = resolved.iter_mut().zip(dependencies);
    each.for_each(|(provider, dependencies)| provider.dependencies = dependencies);
    resolved
}

/// The stand-in for a provider that is no whole one, so that the others have their places. The
/// document is refused.
fn nobody() -> ResolvedProvider {
    ResolvedProvider {
        type_name: String::new(),
        name: String::new(),
        provider_id: 0,
        pool: 0,
        priority: Priority::Normal,
        dependencies: Vec::new(),
        config: Value::Object(serde_json::Map::new()),
    }
}

/// Margo lets providers of different types share an id, and has one identity for it.
fn warn_of_one_id_for_two(
    path: &str,
    (index, id): (usize, u16),
    providers: &[Provider],
    first_of: &mut HashMap<u16, usize>,
    found: &mut Findings,
) {
    let first = *first_of.entry(id).or_insert(index);
    let (own, other) = (&providers[index].type_name, &providers[first].type_name);
    // Two of one type are an error.
    if first != index && own != other {
        let message = format!(
            "provider {id} is `margo.providers[{first}]`, too, of type {other:?}; an id has one \
             identity, so clients that look whether a provider is what they mean take one of the \
             two for wrong: give each its own id"
        );
        found.warn(format!("{path}.provider_id"), message);
    }
}

/// Pools of the other kinds run their units in an order of their own.
fn check_priority(path: &str, priority: Priority, pool: &ResolvedPool, found: &mut Findings) {
    let is_known = !found.lacks.layout() && !found.lacks.has(&format!("{path}.pool"));
    if priority != Priority::Normal && pool.kind != PoolKind::PrioWait && is_known {
        let message = format!(
            "pool {:?} is of a kind that knows no priorities; make it \"prio_wait\", or leave this \
             out",
            pool.name
        );
        found.error(format!("{path}.priority"), message);
    }
}

/// Made-up names come last, so that the complaint is about the entry that lacks one.
fn check_default_names(config: &Config, names: &mut Names, found: &mut Findings) {
    for (index, provider) in config.margo.providers.iter().enumerate() {
        // Two entries of one type and id have been reported as such.
        let (None, Some(id)) = (&provider.name, provider.provider_id) else { continue };
        if let Some(owner) = names.owner(&default_name(&provider.type_name, id)) {
            let message = format!(
                "needs a `name`: the default, \"{}_{id}\", is taken by `{owner}`",
                provider.type_name
            );
            found.error(format!("margo.providers[{index}]"), message);
        }
    }
}

fn provider_type(path: &str, provider: &Provider, found: &mut Findings) -> Option<String> {
    if provider.type_name.is_empty() {
        found.error(path, "missing key `type`, such as \"blob\"");
        return None;
    }
    check_identifier(&format!("{path}.type"), &provider.type_name, found);
    Some(provider.type_name.clone())
}

fn provider_id(path: &str, provider: &Provider, found: &mut Findings) -> Option<u16> {
    match provider.provider_id {
        None => found.error(path, "missing key `provider_id`, the number clients address it by"),
        Some(PROVIDER_ID_DEFAULT) => found.error(
            format!("{path}.provider_id"),
            format!(
                "{PROVIDER_ID_DEFAULT} is reserved for RPCs without a provider; use 0 to \
                 {PROVIDER_ID_MAX}"
            ),
        ),
        Some(id) => return Some(id),
    }
    None
}

fn provider_pool(
    path: &str,
    provider: &Provider,
    layout: &Layout,
    rpc_pool: Option<usize>,
    found: &mut Findings,
) -> Option<usize> {
    let Some(reference) = &provider.pool else { return rpc_pool };
    layout.named_pool(format!("{path}.pool"), reference, found)
}
