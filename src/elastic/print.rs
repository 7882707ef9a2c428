//! The configuration in effect, after all changes.

use std::collections::HashMap;

use margo_config::{Affinity, Config, ConfigFlags, Priority, Resolved, ResolvedXstream};

use super::{Elastic, ElasticTable, XstreamEntry};

/// The part of the lists of pools and xstreams that goes into a document.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// Everything: to check the whole, or because the layout is left out afterwards.
    All,
    /// Everything but this xstream, given by its index.
    Without(usize),
    /// Without pools that a document has no words for, or all that the program made itself.
    Printed { hide_external: bool },
}

impl Elastic {
    /// The document in effect. References in it count its own pools, which carry their indices.
    pub(crate) fn document(&self, resolved: &Resolved, flags: ConfigFlags, part: Part) -> Config {
        // As it was at the start.
        if self.process.is_other() {
            return resolved.effective_as(flags);
        }
        // What is not to be shown is marked as external below.
        let flags = ConfigFlags { hide_external: true, ..flags };
        self.table().resolved(resolved, part).effective_as(flags)
    }
}

impl ElasticTable {
    fn resolved(&self, start: &Resolved, part: Part) -> Resolved {
        let places: HashMap<usize, usize> =
            self.pools.keys().enumerate().map(|(place, index)| (*index, place)).collect();
        let by_name: HashMap<&str, usize> = self
            .pools
            .values()
            .enumerate()
            .map(|(place, entry)| (entry.pool.name(), place))
            .collect();
        let place = |index: usize| places.get(&index).copied();
        // Of what had this place at the start.
        let place_now = |before: usize| place(start.pools[before].index);
        // By the pools themselves: a child has no list of the xstreams that came after it.
        let left = match part {
            Part::Without(xstream) => self.xstreams.get(&xstream).map(|left| left.xstream.name()),
            Part::All | Part::Printed { .. } => None,
        };
        let is_run = |place: &usize| {
            let pool = self.pools.values().nth(*place);
            pool.is_some_and(|entry| {
                entry.pool.xstreams().iter().any(|name| Some(name.as_str()) != left)
            })
        };
        let hidden = |external: bool, unspeakable: bool| match part {
            Part::All | Part::Without(_) => false,
            Part::Printed { hide_external } => unspeakable || (external && hide_external),
        };

        let mut now = start.clone();
        now.pools = self
            .pools
            .iter()
            .map(|(index, entry)| {
                let mut about = entry.about.clone();
                about.index = *index;
                let unspeakable = entry.pool.kind() == ult::PoolKind::Custom;
                about.external = hidden(about.external, unspeakable);
                about
            })
            .collect();
        now.xstreams = self
            .xstreams
            .iter()
            .filter(|(index, _)| !matches!(part, Part::Without(left) if left == **index))
            .map(|(index, entry)| {
                let mut about = entry.about_now();
                about.index = *index;
                let pools = entry.xstream.pools();
                about.pools =
                    pools.iter().filter_map(|pool| by_name.get(pool.as_str()).copied()).collect();
                about.external = hidden(about.external, false);
                about
            })
            .collect();
        let rpc_pool = place(self.rpc).unwrap_or_default();
        let mut progress = self.progress.values().filter_map(|pool| place(*pool));
        now.progress_pool = progress.next().unwrap_or(rpc_pool);
        now.more_progress_pools = progress.collect();
        now.rpc_pool = rpc_pool;
        now.copy_pool = self.copies.and_then(place);
        let bounds = std::mem::take(&mut now.admission.pools).into_iter();
        now.admission.pools =
            bounds.filter_map(|(pool, bounds)| Some((place_now(pool)?, bounds))).collect();
        for provider in &mut now.providers {
            // One that was never started, or has ended, keeps neither its pool nor who runs that.
            provider.pool = match place_now(provider.pool).filter(is_run) {
                Some(pool) => pool,
                None => {
                    // Which may be of a kind without priorities.
                    provider.priority = Priority::Normal;
                    rpc_pool
                }
            };
        }
        now
    }
}

impl XstreamEntry {
    /// As in a document, with the processors that it has been bound to since.
    fn about_now(&self) -> ResolvedXstream {
        let mut about = self.about.clone();
        let cpus = self.xstream.cpus();
        if cpus != self.cpus {
            about.cpubind = None;
            about.affinity = Affinity::Cpus(listed(&cpus));
        }
        about
    }
}

/// Processors as the document has them.
pub(crate) fn listed(cpus: &[usize]) -> Vec<u32> {
    cpus.iter().filter_map(|cpu| u32::try_from(*cpu).ok()).collect()
}
