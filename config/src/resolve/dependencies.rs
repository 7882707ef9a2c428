//! The dependencies of the providers: who is meant, and in which order they start.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::names::check_identifier;
use super::{DependencyTarget, Findings, ResolvedDependency, ResolvedProvider};
use crate::margo::{PROVIDER_ID_DEFAULT, Provider};
use crate::suggest::choices;

/// Looks the dependencies up. All providers of the document are in `resolved`, in its order.
pub(super) fn resolve(
    providers: &[Provider],
    resolved: &mut [ResolvedProvider],
    found: &mut Findings,
) {
    let known = Known::of(resolved);
    let mut dependencies = Vec::with_capacity(providers.len());
    for (index, provider) in providers.iter().enumerate() {
        let mut all = Vec::with_capacity(provider.dependencies.len());
        for (key, dependency) in &provider.dependencies {
            let path = format!("margo.providers[{index}].dependencies.{key}");
            check_identifier(&path, key, found);
            let mut targets = Vec::new();
            for text in dependency.texts() {
                match known.target(text) {
                    Some(target) => targets.push(target),
                    None if found.is_full() => {}
                    None => found.error(&path, why_none(text, resolved)),
                }
            }
            all.push(ResolvedDependency { key: key.clone(), given: dependency.clone(), targets });
        }
        dependencies.push(all);
    }
    for (provider, dependencies) in resolved.iter_mut().zip(dependencies) {
        provider.dependencies = dependencies;
    }
    if let Some(circle) = circle(resolved) {
        let names: Vec<_> = circle.iter().map(|place| &*resolved[*place].name).collect();
        let message = format!(
            "providers that depend on each other in a circle cannot start: {} needs {}",
            names.join(" needs "),
            names[0]
        );
        found.error(format!("margo.providers[{}].dependencies", circle[0]), message);
    }
}

/// Places of the providers, by what they may be called. A document may have thousands.
struct Known {
    names: HashMap<String, usize>,
    ids: HashMap<(String, u16), usize>,
}

impl Known {
    fn of(providers: &[ResolvedProvider]) -> Self {
        let each = || providers.iter().enumerate();
        Self {
            names: each().map(|(place, one)| (one.name.clone(), place)).collect(),
            ids: each()
                .map(|(place, one)| ((one.type_name.clone(), one.provider_id), place))
                .collect(),
        }
    }

    fn target(&self, text: &str) -> Option<DependencyTarget> {
        let Some((who, address)) = text.split_once('@') else {
            let place = self.names.get(text).or_else(|| {
                let (type_name, id) = typed(text)?;
                self.ids.get(&(type_name.to_owned(), id))
            });
            return place.copied().map(DependencyTarget::Local);
        };
        let (type_name, provider_id) = typed(who).filter(|_| address.contains("://"))?;
        let (type_name, address) = (type_name.to_owned(), address.to_owned());
        Some(DependencyTarget::Remote { type_name, provider_id, address })
    }
}

fn why_none(text: &str, providers: &[ResolvedProvider]) -> String {
    if text.contains('@') {
        return format!(
            "{text:?} is no provider elsewhere: write \"type:id@address\", as \
             \"blob:1@na+tcp://host:7000\""
        );
    }
    let names: Vec<_> = providers.iter().map(|one| &*one.name).collect();
    let have = choices("have", text, &names);
    format!("no provider {text:?} in this document{have}; one elsewhere is \"type:id@address\"")
}

/// Type and id in `type:id`.
fn typed(text: &str) -> Option<(&str, u16)> {
    let (type_name, id) = text.split_once(':')?;
    let digits = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    let id = id.parse().ok().filter(|id| digits && *id != PROVIDER_ID_DEFAULT)?;
    Some((type_name, id))
}

/// Places of providers, of which each needs the next one, and the last one the first.
fn circle(providers: &[ResolvedProvider]) -> Option<Vec<usize>> {
    let order = order(providers);
    let mut starts = vec![false; providers.len()];
    order.iter().for_each(|place| starts[*place] = true);
    // Whoever does not start needs somebody who does not, and so on, until somebody is met again.
    let mut place = starts.iter().position(|starts| !starts)?;
    let mut met = Vec::new();
    let mut at = vec![None; providers.len()];
    while at[place].is_none() {
        at[place] = Some(met.len());
        met.push(place);
        place = providers[place].locals().find(|needed| !starts[*needed])?;
    }
    at[place].map(|from| met.split_off(from))
}

/// Places of the providers in the order in which they start: the next one is always the first in
/// the document of those that have all that they need. Who is in a circle, or needs somebody there,
/// is left out.
pub(super) fn order(providers: &[ResolvedProvider]) -> Vec<usize> {
    let mut missing: Vec<usize> = providers.iter().map(|one| one.locals().count()).collect();
    let mut needed_by = vec![Vec::new(); providers.len()];
    for (place, provider) in providers.iter().enumerate() {
        provider.locals().for_each(|needed| needed_by[needed].push(place));
    }
    let ready = missing.iter().enumerate().filter(|(_, missing)| **missing == 0);
    let mut ready: BinaryHeap<_> = ready.map(|(place, _)| Reverse(place)).collect();
    let mut order = Vec::with_capacity(providers.len());
    while let Some(Reverse(place)) = ready.pop() {
        order.push(place);
        for dependent in &needed_by[place] {
            missing[*dependent] -= 1;
            if missing[*dependent] == 0 {
                ready.push(Reverse(*dependent));
            }
        }
    }
    order
}
