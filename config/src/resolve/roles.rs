//! The roles of pools: the primary pool, those of progress and the one of handlers; and the pools
//! and xstreams that are added for them.

use super::declared::Layout;
use super::{Findings, PRIMARY, ResolvedPool, ResolvedXstream};
use crate::document::affinity::Affinity;
use crate::document::config::{Config, PoolAccess, PoolKind, SchedulerKind};
use crate::document::shards::{Shards, ShardsWord};
use crate::report::error::Error;

/// The most xstreams that `rpc_thread_count` may ask for.
pub const XSTREAMS_MAX: usize = 1024;

/// The most shards that there may be: so many are told apart on the wire.
pub const SHARDS_MAX: usize = 128;

/// Indices of pools; `None` where an error has been reported.
#[derive(Debug)]
pub(super) struct Roles {
    /// Progress of shard 0.
    pub(super) progress: Option<usize>,
    /// Progress of shards 1, 2 and so on.
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

/// The number of shards, and the key that says so.
fn shards(config: &Config, found: &mut Findings) -> (usize, &'static str) {
    const KEYS: [&str; 2] = ["margo.shards", "mercury.max_contexts"];
    let contexts = config.mercury.max_contexts as usize;
    let count = match &config.margo.shards {
        None => return (contexts.max(1), KEYS[1]),
        Some(Shards::Count(count)) => *count as usize,
        Some(Shards::Pools(pools)) => pools.len(),
        Some(Shards::Word(ShardsWord::Auto)) => {
            // As many as there are CPUs for it: fewer than allowed, where it has a quota of time.
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            if cpus > SHARDS_MAX {
                let message =
                    format!("{SHARDS_MAX} shards for {cpus} CPUs: there can be no more of them");
                found.warn(KEYS[0], message);
            }
            cpus.min(SHARDS_MAX)
        }
    };
    if contexts != 0 && contexts != count && !found.lacks.layout() {
        let message = format!(
            "{contexts} contexts, but `margo.shards` asks for {count} shards, which are the same; \
             leave one of the two keys out"
        );
        found.error(KEYS[1], message);
    }
    (count, KEYS[0])
}

/// The pools of shards 1, 2 and so on: named, or made.
fn more_progress_pools(
    config: &Config,
    progress: Option<usize>,
    layout: &mut Layout,
    found: &mut Findings,
) -> Vec<usize> {
    let (count, path) = shards(config, found);
    if count > SHARDS_MAX {
        found.error(path, format!("{count} shards are more than the {SHARDS_MAX} allowed"));
        return Vec::new();
    }
    let Some(Shards::Pools(named)) = &config.margo.shards else {
        let are_bound = config.margo.shards == Some(Shards::AUTO);
        if are_bound && let Some(progress) = progress {
            bind(layout, progress, 0);
        }
        let add = |shard| {
            let pool = add_pool(layout, None);
            add_xstream(layout, None, pool);
            if are_bound {
                bind(layout, pool, shard);
            }
            pool
        };
        return (1..count).map(add).collect();
    };
    let mut pools: Vec<usize> = progress.into_iter().collect();
    for (index, reference) in named.iter().enumerate().skip(1) {
        let path = format!("margo.shards[{index}]");
        let Some(pool) = layout.named_pool(&path, reference, found) else { continue };
        if pools.contains(&pool) && !found.lacks.layout() {
            let name = &layout.pools[pool].name;
            let message =
                format!("pool {name:?} has another shard already; each needs a pool of its own");
            found.error(path, message);
        }
        pools.push(pool);
    }
    pools.split_off(usize::from(progress.is_some()))
}

/// Binds the xstream that runs the pool of a shard to the CPU of that number among those that the
/// process may use, unless the document says where it is, or several run that pool.
fn bind(layout: &mut Layout, pool: usize, shard: usize) {
    let mut homes = layout.xstreams.iter_mut().filter(|xstream| xstream.pools.contains(&pool));
    if let (Some(home), None) = (homes.next(), homes.next())
        && home.cpubind.is_none()
        && home.affinity.is_empty()
    {
        home.affinity = Affinity::Place(format!("allowed:{shard}"));
    }
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
    let of_shards = match &config.margo.shards {
        Some(Shards::Pools(pools)) => Some(pools.as_slice()),
        _ => None,
    };
    if of_shards.is_some_and(<[_]>::is_empty) {
        found.error("margo.shards", "no pools: an instance has one shard at least");
    }
    let first = of_shards.and_then(<[_]>::first).map(|first| ("margo.shards[0]", first));
    let given = config.progress_pool.as_ref().map(|given| ("progress_pool", given));
    if let Some((path, reference)) = given.or(first) {
        if config.use_progress_thread {
            let key = if given.is_some() { "progress_pool" } else { "margo.shards" };
            found.warn("use_progress_thread", format!("is ignored because `{key}` is given"));
        }
        let pool = layout.named_pool(path, reference, found);
        let Some((path, first)) = first.filter(|_| given.is_some()) else { return pool };
        let other = layout.named_pool(path, first, found);
        if let (Some(pool), Some(other)) = (pool, other)
            && pool != other
            && !found.lacks.layout()
        {
            let [pool, other] = [pool, other].map(|pool| &layout.pools[pool].name);
            let message = format!(
                "pool {other:?} is that of shard 0, but `progress_pool` is {pool:?}; leave \
                 `progress_pool` out"
            );
            found.error(path, message);
        }
        return pool;
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
        Ok(0) if matches!(config.margo.shards, Some(Shards::Pools(_))) => return progress,
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

/// Checks `margo.share_from`. Warns where it has no effect.
pub(super) fn share_from(
    config: &Config,
    layout: &Layout,
    roles: &Roles,
    found: &mut Findings,
) -> Option<usize> {
    const KEY: &str = "margo.share_from";
    let units = config.margo.share_from?;
    if units == 0 {
        let message = "0 is not allowed: from 1 unit that waits; leave the key out to share none";
        found.error(KEY, message);
    }
    if !layout.complete || found.lacks.layout() {
        return Some(units as usize);
    }
    if roles.more_progress.is_empty() {
        found.warn(KEY, "has no effect while there is one shard; see `margo.shards`");
    } else if roles.rpc != roles.progress {
        let pool = roles.rpc.map_or("", |pool| &layout.pools[pool].name);
        let message = format!("has no effect: handlers of all shards run in pool {pool:?}");
        found.warn(KEY, message);
    } else {
        for ResolvedPool { name, kind, .. } in roles.all_progress().map(|pool| &layout.pools[pool])
        {
            if !matches!(kind, PoolKind::Fifo | PoolKind::FifoWait) {
                let message = format!(
                    "has no effect on the handlers of pool {name:?}: only those of kind fifo or \
                     fifo_wait have such that others may take"
                );
                found.warn(KEY, message);
            }
        }
    }
    Some(units as usize)
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
