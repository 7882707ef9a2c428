//! Pools and xstreams that the document describes.

use std::collections::HashMap;

use super::names::{Names, no_such_pool};
use super::scalars::stack_size;
use super::{Findings, PRIMARY, ResolvedPool, ResolvedXstream};
use crate::document::config::{Argobots, Scheduler, Xstream};
use crate::document::pool_ref::PoolRef;
use crate::report::error::Error;

/// Pools and xstreams so far.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) pools: Vec<ResolvedPool>,
    pub(super) xstreams: Vec<ResolvedXstream>,
    pub(super) pool_names: Names,
    pub(super) xstream_names: Names,
    /// How many pools the document describes; only these have an index in it.
    pub(super) declared: usize,
    /// The names that the document gives to pools; only these can be referred to.
    declared_names: Vec<String>,
    by_name: HashMap<String, usize>,
    /// True if all is there, and every pool of every xstream was found. If not, nothing can be said
    /// about which xstream runs which pool.
    pub(super) complete: bool,
}

/// Reads `argobots.pools` and `argobots.xstreams`.
pub(super) fn layout(argobots: &Argobots, found: &mut Findings) -> Layout {
    let mut layout = Layout {
        pools: Vec::with_capacity(argobots.pools.len() + 3),
        xstreams: Vec::with_capacity(argobots.xstreams.len() + 1),
        pool_names: Names::default(),
        xstream_names: Names::default(),
        declared: argobots.pools.len(),
        declared_names: Vec::new(),
        by_name: HashMap::new(),
        complete: !found.lacks.layout(),
    };
    layout.add_pools(argobots, found);
    layout.add_xstreams(argobots, found);
    layout
}

impl Layout {
    fn add_pools(&mut self, argobots: &Argobots, found: &mut Findings) {
        // Given names first, so that a made-up one never takes a name that comes later.
        for (index, pool) in argobots.pools.iter().enumerate() {
            if let Some(name) = &pool.name {
                self.pool_names.claim(&format!("argobots.pools[{index}]"), name, found);
                if self.by_name.insert(name.clone(), index).is_none() {
                    self.declared_names.push(name.clone());
                }
            }
        }
        for (index, pool) in argobots.pools.iter().enumerate() {
            let path = format!("argobots.pools[{index}].stack_bytes");
            let name = pool.name.clone();
            self.pools.push(ResolvedPool {
                name: name.unwrap_or_else(|| self.pool_names.generate("pool", index)),
                kind: pool.kind,
                access: pool.access,
                stack_bytes: pool.stack_bytes.map(|bytes| stack_size(&path, bytes, found)),
                numa_node: pool.numa_node,
                external: argobots.external,
                index: pool.index.unwrap_or(index),
            });
        }
    }

    fn add_xstreams(&mut self, argobots: &Argobots, found: &mut Findings) {
        for (index, xstream) in argobots.xstreams.iter().enumerate() {
            if let Some(name) = &xstream.name {
                self.xstream_names.claim(&format!("argobots.xstreams[{index}]"), name, found);
            }
        }
        for (index, xstream) in argobots.xstreams.iter().enumerate() {
            let path = format!("argobots.xstreams[{index}]");
            let mut entry = self.xstream(&path, index, xstream, found);
            entry.external = argobots.external;
            self.xstreams.push(entry);
        }
    }

    fn xstream(
        &mut self,
        path: &str,
        index: usize,
        xstream: &Xstream,
        found: &mut Findings,
    ) -> ResolvedXstream {
        if xstream.cpubind < -1 {
            let message = format!("{} is no CPU: count from 0, -1 leaves it free", xstream.cpubind);
            found.error(format!("{path}.cpubind"), message);
        }
        if xstream.cpubind >= 0 && !xstream.affinity.is_empty() {
            found.warn(format!("{path}.affinity"), "is ignored because `cpubind` names one CPU");
        }
        let name = xstream.name.clone();
        let pools = match &xstream.scheduler {
            Some(scheduler) => self.scheduler_pools(path, scheduler, found),
            None => {
                self.complete = false;
                let error = Error::new(path, "missing key `scheduler`");
                let help = r#"say which pools it runs: "scheduler": {"pools": ["<pool>"]}"#;
                found.push(error.with_help(help));
                Vec::new()
            }
        };
        ResolvedXstream {
            name: name.unwrap_or_else(|| self.xstream_names.generate("xstream", index)),
            cpubind: usize::try_from(xstream.cpubind).ok(),
            affinity: xstream.affinity.clone(),
            scheduler: xstream.scheduler.as_ref().map(|one| one.kind).unwrap_or_default(),
            pools,
            external: false,
            index: xstream.index.unwrap_or(index),
        }
    }

    fn scheduler_pools(
        &mut self,
        path: &str,
        scheduler: &Scheduler,
        found: &mut Findings,
    ) -> Vec<usize> {
        let path = format!("{path}.scheduler");
        let mut pools = Vec::with_capacity(scheduler.pools.len());
        if scheduler.pools.is_empty() {
            self.complete = false;
            found.error(format!("{path}.pools"), "an xstream needs at least one pool");
        }
        for (index, reference) in scheduler.pools.iter().enumerate() {
            let path = format!("{path}.pools[{index}]");
            match self.find(reference) {
                Some(pool) if pools.contains(&pool) => {
                    let message = format!("pool {:?} is listed twice", self.pools[pool].name);
                    found.warn(path, message);
                }
                Some(pool) => pools.push(pool),
                None => {
                    self.complete = false;
                    if found.is_full() || found.lacks.layout() {
                        continue;
                    }
                    let mut error = Error::new(path, self.why_none(reference, &self.names()));
                    if *reference == PoolRef::from(PRIMARY) {
                        error = error.with_help(
                            r#"describe it: add {"name": "__primary__"} to `argobots.pools`"#,
                        );
                    }
                    found.push(error);
                }
            }
        }
        pools
    }

    /// Index of a pool that the document describes.
    fn find(&self, reference: &PoolRef) -> Option<usize> {
        match reference {
            PoolRef::Index(index) => (*index < self.declared).then_some(*index),
            PoolRef::Name(name) => self.by_name.get(name).copied(),
        }
    }

    /// Why nothing was found; `names` can be referred to. Costs as much as there are names.
    fn why_none(&self, reference: &PoolRef, names: &[&str]) -> String {
        match (reference, self.declared) {
            (PoolRef::Name(name), _) => no_such_pool(name, names),
            (PoolRef::Index(index), 0) => {
                format!("there is no pool {index}: `argobots.pools` describes none")
            }
            (PoolRef::Index(index), 1) => {
                format!("there is no pool {index}: `argobots.pools` describes only pool 0")
            }
            (PoolRef::Index(index), n) => {
                format!("there is no pool {index}: `argobots.pools` describes pools 0 to {}", n - 1)
            }
        }
    }

    /// The names that can be referred to.
    fn names(&self) -> Vec<&str> {
        self.declared_names.iter().map(String::as_str).collect()
    }

    /// As [`Layout::find`], for the references outside `argobots`: there an added `__primary__`
    /// can be named too.
    pub(super) fn find_for_role(&self, reference: &PoolRef) -> Option<usize> {
        match reference {
            PoolRef::Name(name) if name == PRIMARY && self.has_added_primary() => {
                Some(self.declared)
            }
            _ => self.find(reference),
        }
    }

    /// As [`Layout::find_for_role`], and reports at `path` if there is no such pool.
    pub(super) fn named_pool(
        &self,
        path: impl Into<String>,
        reference: &PoolRef,
        found: &mut Findings,
    ) -> Option<usize> {
        let pool = self.find_for_role(reference);
        if pool.is_none() && !found.is_full() && !found.lacks.layout() {
            let mut names = self.names();
            if self.has_added_primary() {
                names.insert(0, PRIMARY);
            }
            found.error(path, self.why_none(reference, &names));
        }
        pool
    }

    fn has_added_primary(&self) -> bool {
        self.pools.get(self.declared).is_some_and(|pool| pool.name == PRIMARY)
    }
}
