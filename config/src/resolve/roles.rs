//! The roles of pools: the primary pool, those of progress and the one of handlers; and the pools
//! and xstreams that are added for them.

use super::declared::Layout;
use super::{Findings, PRIMARY, ResolvedPool, ResolvedXstream};
use crate::document::affinity::Affinity;
use crate::document::config::{Config, PoolAccess, PoolKind, SchedulerKind};
use crate::report::error::Error;

/// The most xstreams that `rpc_thread_count` may ask for.
pub const XSTREAMS_MAX: usize = 1024;

/// The most network contexts that there may be: so many are told apart on the wire.
pub const CONTEXTS_MAX: usize = 128;

/// Indices of pools; `None` where an error has been reported.
#[derive(Debug)]
pub(super) struct Roles {
    /// Progress of context 0.
    pub(super) progress: Option<usize>,
    /// Progress of contexts 1, 2 and so on.
    pub(super) more_progress: Vec<usize>,
    pub(super) rpc: Option<usize>,
}

impl Roles {
    /// The pools of all progress ULTs.
    pub(super) fn all_progress(&self) -> impl Iterator<Item = usize> + '_ {
        self.progress.into_iter().chain(self.more_progress.iter().copied())
    }
}

/// Adds what the document leaves to us and decides the roles.
pub(super) fn assign(config: &Config, layout: &mut Layout, found: &mut Findings) -> Roles {
    let primary = if config.argobots.external {
        first_pool(layout, found)
    } else {
        primary_pool(layout, found)
    };
    let progress = progress_pool(config, primary, layout, found);
    let rpc = rpc_pool(config, primary, progress, layout, found);
    let more_progress = more_progress_pools(config, progress, layout, found);
    Roles { progress, more_progress, rpc }
}

/// The pools of contexts 1, 2 and so on: named, or made.
fn more_progress_pools(
    config: &Config,
    progress: Option<usize>,
    layout: &mut Layout,
    found: &mut Findings,
) -> Vec<usize> {
    let (wanted, named) = (config.mercury.max_contexts as usize, &config.margo.more_progress_pools);
    let count = if wanted == 0 { named.len() + 1 } else { wanted };
    if count > CONTEXTS_MAX {
        let path = if wanted == 0 { "margo.more_progress_pools" } else { "mercury.max_contexts" };
        found.error(path, format!("{count} contexts are more than the {CONTEXTS_MAX} allowed"));
        return Vec::new();
    }
    if named.is_empty() {
        let add = |_| {
            let pool = add_pool(layout, None);
            add_xstream(layout, None, pool);
            pool
        };
        return (1..count).map(add).collect();
    }
    if named.len() + 1 != count && !found.lacks.layout() {
        let message = format!(
            "{count} contexts have {} progress ULTs beside that of `progress_pool`, but \
             `margo.more_progress_pools` names {}; leave one of the two keys out",
            count - 1,
            named.len()
        );
        found.error("mercury.max_contexts", message);
    }
    let mut pools = Vec::new();
    for (index, reference) in named.iter().enumerate() {
        let path = format!("margo.more_progress_pools[{index}]");
        let Some(pool) = layout.named_pool(&path, reference, found) else { continue };
        let is_taken = Some(pool) == progress || pools.contains(&pool);
        if is_taken && !found.lacks.layout() {
            let name = &layout.pools[pool].name;
            let message = format!(
                "pool {name:?} has the progress ULT of another context already; each needs a pool \
                 of its own"
            );
            found.error(path, message);
        }
        pools.push(pool);
    }
    pools
}

/// Returns what stands for the primary pool where nothing is added: the first pool of xstream
/// `__primary__`, or of the first one.
fn first_pool(layout: &Layout, found: &mut Findings) -> Option<usize> {
    let named = layout.xstreams.iter().find(|xstream| xstream.name == PRIMARY);
    let Some(xstream) = named.or(layout.xstreams.first()) else {
        found.error("argobots.xstreams", "the runtime has no xstream that runs: add one first");
        return None;
    };
    xstream.pools.first().copied()
}

/// The first pool of xstream `__primary__`, which is made if it is not described. If it is, its
/// first pool has to be called so, too: C Margo does not start otherwise.
fn primary_pool(layout: &mut Layout, found: &mut Findings) -> Option<usize> {
    let named = layout.pools.iter().position(|pool| pool.name == PRIMARY);
    let Some(index) = layout.xstreams.iter().position(|xstream| xstream.name == PRIMARY) else {
        let pool = named.unwrap_or_else(|| add_pool(layout, Some(PRIMARY)));
        add_xstream(layout, Some(PRIMARY), pool);
        return Some(pool);
    };
    let first = layout.xstreams[index].pools.first().copied();
    if layout.complete && first != named {
        let error = Error::new(
            format!("argobots.xstreams[{index}].scheduler.pools"),
            "pool \"__primary__\" must be the first pool of xstream \"__primary__\"",
        );
        found.push(match (named, first.and_then(|first| layout.pools.get(first))) {
            (None, Some(first)) => error.with_help(format!(
                "no pool has that name: call {:?} so in `argobots.pools`, or describe another: \
                 {{\"name\": \"__primary__\"}}, and list it first here",
                first.name
            )),
            _ => error,
        });
    }
    first
}

fn progress_pool(
    config: &Config,
    primary: Option<usize>,
    layout: &mut Layout,
    found: &mut Findings,
) -> Option<usize> {
    if let Some(reference) = &config.progress_pool {
        if config.use_progress_thread {
            found.warn("use_progress_thread", "is ignored because `progress_pool` is given");
        }
        return layout.named_pool("progress_pool", reference, found);
    }
    if !config.use_progress_thread {
        return primary;
    }
    let pool = add_pool(layout, None);
    add_xstream(layout, None, pool);
    Some(pool)
}

fn rpc_pool(
    config: &Config,
    primary: Option<usize>,
    progress: Option<usize>,
    layout: &mut Layout,
    found: &mut Findings,
) -> Option<usize> {
    let wanted = config.rpc_thread_count;
    if let Some(reference) = &config.rpc_pool {
        if wanted != 0 {
            found.warn("rpc_thread_count", "is ignored because `rpc_pool` is given");
        }
        return layout.named_pool("rpc_pool", reference, found);
    }
    let count = match usize::try_from(wanted) {
        Err(_) => return progress,
        Ok(0) => return primary,
        Ok(count) if count > XSTREAMS_MAX => {
            let message = format!("{count} xstreams are more than the {XSTREAMS_MAX} allowed");
            found.error("rpc_thread_count", message);
            return primary;
        }
        Ok(count) => count,
    };
    let pool = add_pool(layout, None);
    for _ in 0..count {
        add_xstream(layout, None, pool);
    }
    Some(pool)
}

fn add_pool(layout: &mut Layout, name: Option<&str>) -> usize {
    let index = layout.pools.len();
    let name = match name {
        Some(name) => name.to_owned(),
        None => layout.pool_names.generate("pool", index),
    };
    layout.pools.push(ResolvedPool {
        name,
        kind: PoolKind::default(),
        access: PoolAccess::default(),
        stack_bytes: None,
        numa_node: None,
        external: false,
        index,
    });
    index
}

fn add_xstream(layout: &mut Layout, name: Option<&str>, pool: usize) {
    let index = layout.xstreams.len();
    let name = match name {
        Some(name) => name.to_owned(),
        None => layout.xstream_names.generate("xstream", index),
    };
    layout.xstreams.push(ResolvedXstream {
        name,
        cpubind: None,
        affinity: Affinity::default(),
        scheduler: SchedulerKind::default(),
        pools: vec![pool],
        external: false,
        index,
    });
}
