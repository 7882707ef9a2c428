//! The dependencies of the providers: the providers that they mean, and the order in which all
//! start.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::names::check_identifier;
use super::{DependencyTarget, Findings, ResolvedDependency};
use crate::document::margo::{PROVIDER_ID_DEFAULT, Provider};
use crate::report::suggest::choices;

/// The names by which others may refer to a provider of the document, as far as they are known.
/// Errors of the entry itself have been reported, and are not reported again for its dependents.
pub(super) struct NamedProvider {
    type_name: Option<String>,
    provider_id: Option<u16>,
    /// As given, or made up.
    name: Option<String>,
}

impl NamedProvider {
    pub(super) fn new(name: Option<&str>, type_name: Option<&str>, id: Option<u16>) -> Self {
        let made_up = || Some(default_name(type_name?, id?));
        Self {
            name: name.map(str::to_owned).or_else(made_up),
            type_name: type_name.map(str::to_owned),
            provider_id: id,
        }
    }

    fn is_complete(&self) -> bool {
        self.type_name.is_some() && self.provider_id.is_some()
    }

    /// Returns true if a text that means nobody may mean this one, when what it lacks is there.
    fn may_be(&self, text: &str) -> bool {
        let by_id = text.rsplit_once(':');
        // The name would be made up.
        let by_name = || text.rsplit_once('_').filter(|_| self.name.is_none());
        let Some((type_name, id)) = by_id.or_else(by_name) else { return false };
        !text.contains('@')
            && self.type_name.as_ref().is_none_or(|own| own == type_name)
            && id.parse().is_ok_and(|id: u16| self.provider_id.is_none_or(|own| own == id))
    }
}

/// The name of a provider that is not given one.
pub(super) fn default_name(type_name: &str, id: u16) -> String {
    format!("{type_name}_{id}")
}

/// Looks the dependencies up: those of each provider of the document. All of these are in
/// `entries`, in its order.
pub(super) fn resolve(
    providers: &[Provider],
    entries: &[NamedProvider],
    found: &mut Findings,
) -> Vec<Vec<ResolvedDependency>> {
    let known = Known::of(entries);
    // Each has been reported, so no more of them count than errors are kept.
    let incomplete: Vec<_> = entries.iter().filter(|one| !one.is_complete()).collect();
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
                    None if found.lacks.providers() && !text.contains('@') => {}
                    None if incomplete.iter().any(|one| one.may_be(text)) => {}
                    None => found.error(&path, why_none(text, entries)),
                }
            }
            all.push(ResolvedDependency { key: key.clone(), given: dependency.clone(), targets });
        }
        dependencies.push(all);
    }
    let needs: Vec<_> = dependencies.iter().map(|all| locals(all)).collect();
    if let Some(circle) = circle(&needs) {
        // Who is in it was found by some name.
        let names: Vec<_> = circle.iter().filter_map(|at| entries[*at].name.as_deref()).collect();
        let message = format!(
            "providers that depend on each other in a circle cannot start: {} needs {}",
            names.join(" needs "),
            names.first().unwrap_or(&"")
        );
        found.error(format!("margo.providers[{}].dependencies", circle[0]), message);
    }
    dependencies
}

/// Places of the providers of the document that are needed.
pub(super) fn locals(dependencies: &[ResolvedDependency]) -> Vec<usize> {
    let targets = dependencies.iter().flat_map(|dependency| &dependency.targets);
    let local = targets.filter_map(|target| match target {
        DependencyTarget::Local(place) => Some(*place),
        DependencyTarget::Remote { .. } => None,
    });
    local.collect()
}

/// Places of the providers, by what they may be called. A document may have thousands.
struct Known<'a> {
    names: HashMap<&'a str, usize>,
    ids: HashMap<(&'a str, u16), usize>,
}

impl<'a> Known<'a> {
    fn of(entries: &'a [NamedProvider]) -> Self {
        let each = || entries.iter().enumerate();
        let names = each().filter_map(|(place, one)| Some((one.name.as_deref()?, place)));
        let ids = each().filter_map(|(place, one)| {
            Some(((one.type_name.as_deref()?, one.provider_id?), place))
        });
        Self { names: names.collect(), ids: ids.collect() }
    }

    fn target(&self, text: &str) -> Option<DependencyTarget> {
        let Some((who, address)) = text.split_once('@') else {
            let place = self.names.get(text).or_else(|| self.ids.get(&typed(text)?));
            return place.copied().map(DependencyTarget::Local);
        };
        let (type_name, provider_id) = typed(who).filter(|_| address.contains("://"))?;
        let (type_name, address) = (type_name.to_owned(), address.to_owned());
        Some(DependencyTarget::Remote { type_name, provider_id, address })
    }
}

fn why_none(text: &str, entries: &[NamedProvider]) -> String {
    if text.contains('@') {
        return format!(
            "{text:?} is no provider elsewhere: write \"type:id@address\", as \
             \"blob:1@na+tcp://host:7000\""
        );
    }
    let names: Vec<_> = entries.iter().filter_map(|one| one.name.as_deref()).collect();
    let have = choices("have", text, &names);
    format!("no provider {text:?} in this document{have}; one elsewhere is \"type:id@address\"")
}

/// Type and id in `type:id`.
pub(super) fn typed(text: &str) -> Option<(&str, u16)> {
    let (type_name, id) = text.split_once(':')?;
    let digits = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    let id = id.parse().ok().filter(|id| digits && *id != PROVIDER_ID_DEFAULT)?;
    Some((type_name, id))
}

/// Places of providers, of which each needs the next one, and the last one the first.
fn circle(needs: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut starts = vec![false; needs.len()];
    order(needs).into_iter().for_each(|place| starts[place] = true);
    // Whoever does not start needs somebody who does not, and so on, until somebody is met again.
    let mut place = starts.iter().position(|starts| !starts)?;
    let mut met = Vec::new();
    let mut at = vec![None; needs.len()];
    while at[place].is_none() {
        at[place] = Some(met.len());
        met.push(place);
        place = *needs[place].iter().find(|needed| !starts[**needed])?;
    }
    at[place].map(|from| met.split_off(from))
}

/// Places of the providers in the order in which they start: the next one is always the first in
/// the document of those that have all that they need. A provider that is in a circle, or needs one
/// that is, is left out. `needs`: for each provider, the places of those that it needs.
pub(super) fn order(needs: &[Vec<usize>]) -> Vec<usize> {
    let mut missing: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut needed_by = vec![Vec::new(); needs.len()];
    for (place, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|needed| needed_by[*needed].push(place));
    }
    let ready = missing.iter().enumerate().filter(|(_, missing)| **missing == 0);
    let mut ready: BinaryHeap<_> = ready.map(|(place, _)| Reverse(place)).collect();
    let mut order = Vec::with_capacity(needs.len());
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
