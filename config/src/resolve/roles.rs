//! Which pool is the primary one, which runs progress, which runs handlers; and the pools and
//! xstreams added for that.

use super::declared::Layout;
use super::{Findings, PRIMARY, ResolvedPool, ResolvedXstream};
use crate::affinity::Affinity;
use crate::config::{Config, PoolAccess, PoolKind, SchedulerKind};
use crate::pool_ref::PoolRef;

/// The most xstreams that `rpc_thread_count` may ask for.
pub const XSTREAMS_MAX: usize = 1024;

/// Indices of pools; `None` where an error has been reported.
#[derive(Debug)]
pub(super) struct Roles {
    pub(super) progress: Option<usize>,
    pub(super) rpc: Option<usize>,
}

/// Adds what the document leaves to us and decides the roles.
pub(super) fn assign(config: &Config, layout: &mut Layout, found: &mut Findings) -> Roles {
    let primary = primary_pool(layout, found);
    let progress = progress_pool(config, primary, layout, found);
    let rpc = rpc_pool(config, primary, progress, layout, found);
    Roles { progress, rpc }
}

/// The first pool of xstream `__primary__`, which is made if it is not described.
fn primary_pool(layout: &mut Layout, found: &mut Findings) -> Option<usize> {
    let named = layout.pools.iter().position(|pool| pool.name == PRIMARY);
    let Some(index) = layout.xstreams.iter().position(|xstream| xstream.name == PRIMARY) else {
        let pool = named.unwrap_or_else(|| add_pool(layout, Some(PRIMARY)));
        add_xstream(layout, Some(PRIMARY), pool);
        return Some(pool);
    };
    let first = layout.xstreams[index].pools.first().copied();
    if let (Some(pool), true) = (named, layout.complete)
        && first != Some(pool)
    {
        found.error(
            format!("argobots.xstreams[{index}].scheduler.pools"),
            "pool \"__primary__\" must be the first pool of xstream \"__primary__\"",
        );
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
        return named_pool("progress_pool", reference, layout, found);
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
        return named_pool("rpc_pool", reference, layout, found);
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

fn named_pool(
    path: &str,
    reference: &PoolRef,
    layout: &Layout,
    found: &mut Findings,
) -> Option<usize> {
    let result = layout.find_for_role(reference);
    result.map_err(|message| found.error(path, message)).ok()
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
    });
    index
}

fn add_xstream(layout: &mut Layout, name: Option<&str>, pool: usize) {
    let name = match name {
        Some(name) => name.to_owned(),
        None => layout.xstream_names.generate("xstream", layout.xstreams.len()),
    };
    layout.xstreams.push(ResolvedXstream {
        name,
        cpubind: None,
        affinity: Affinity::default(),
        scheduler: SchedulerKind::default(),
        pools: vec![pool],
    });
}
