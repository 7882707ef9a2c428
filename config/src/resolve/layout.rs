//! Checks of which xstreams run which pools: layouts in which an RPC could wait for long, or for
//! ever.
//!
//! An xstream looks at its pools in their order. So a pool runs only where an xstream lists it,
//! and one that stands behind a busy pool waits. The worst cases are errors: a pool that something
//! needs and no xstream runs, and an access mode that the layout breaks. The rest are warnings.

use super::declared::Layout;
use super::roles::Roles;
use super::{Findings, ResolvedPool, ResolvedXstream};
use crate::document::config::{Config, PoolAccess};
use crate::document::margo::Provider;
use crate::document::shards::Shards;

/// Checks the finished layout. Silent when a reference in it is broken.
pub(super) fn check(config: &Config, layout: &Layout, roles: &Roles, found: &mut Findings) {
    if !layout.complete {
        return;
    }
    let needed = needed_pools(config, layout, roles);
    let serving = Serving::new(config, layout, roles);
    for pool in 0..layout.pools.len() {
        let homes: Vec<_> =
            layout.xstreams.iter().filter(|xstream| xstream.pools.contains(&pool)).collect();
        if homes.is_empty() {
            unattached(pool, layout, &needed, found);
            continue;
        }
        let copies = needed
            .iter()
            .any(|(needed, path, _)| *needed == pool && path == "margo.bulk.copy_pool");
        if copies {
            helpers(pool, &homes, roles, layout, found);
        }
        order(pool, &homes, layout, roles, found);
        access(pool, &homes, layout, &serving, found);
    }
}

/// The threads that push handlers, and the pools that they push to.
struct Serving<'l> {
    /// Xstreams on which a progress ULT may run.
    progress: Vec<&'l ResolvedXstream>,
    /// Pools in which handlers run.
    handlers: Vec<usize>,
}

impl<'l> Serving<'l> {
    fn new(config: &Config, layout: &'l Layout, roles: &Roles) -> Self {
        let runs = |xstream: &&ResolvedXstream| {
            roles.all_progress().any(|progress| xstream.pools.contains(&progress))
        };
        let of_provider = |provider: &Provider| match &provider.pool {
            Some(pool) => layout.find_for_role(pool),
            None => roles.rpc,
        };
        let providers = config.margo.providers.iter().filter_map(of_provider);
        Self {
            progress: layout.xstreams.iter().filter(runs).collect(),
            handlers: roles.rpc.into_iter().chain(providers).collect(),
        }
    }
}

/// Pools that must run: index, path of the key that says so, and what would not run.
fn needed_pools(
    config: &Config,
    layout: &Layout,
    roles: &Roles,
) -> Vec<(usize, String, &'static str)> {
    let mut needed = Vec::new();
    if let (Some(pool), Some(_)) = (roles.progress, &config.progress_pool) {
        needed.push((pool, "progress_pool".to_owned(), "there would be no network progress"));
    }
    if matches!(config.margo.shards, Some(Shards::Pools(_))) {
        for (index, pool) in roles.all_progress().enumerate() {
            let path = format!("margo.shards[{index}]");
            needed.push((pool, path, "its shard would make no progress"));
        }
    }
    if let (Some(pool), Some(_)) = (roles.rpc, &config.rpc_pool) {
        needed.push((pool, "rpc_pool".to_owned(), "no handler would ever run"));
    }
    let copy_pool = config.margo.bulk.copy_pool.as_ref();
    if let Some(pool) = copy_pool.and_then(|pool| layout.find_for_role(pool)) {
        needed.push((pool, "margo.bulk.copy_pool".to_owned(), "nobody would take part in copies"));
    }
    for (index, provider) in config.margo.providers.iter().enumerate() {
        let pool = provider.pool.as_ref().and_then(|pool| layout.find_for_role(pool));
        if let Some(pool) = pool {
            let path = format!("margo.providers[{index}].pool");
            needed.push((pool, path, "its handlers would never run"));
        }
    }
    needed
}

fn unattached(
    pool: usize,
    layout: &Layout,
    needed: &[(usize, String, &'static str)],
    found: &mut Findings,
) {
    let name = &layout.pools[pool].name;
    let mut users = needed.iter().filter(|(needed, ..)| *needed == pool).peekable();
    if users.peek().is_none() {
        let message = format!("pool {name:?} is attached to no xstream: what it holds never runs");
        found.warn(format!("argobots.pools[{pool}]"), message);
    }
    for (_, path, consequence) in users {
        let message = format!("pool {name:?} is attached to no xstream: {consequence}");
        found.error(path, message);
    }
}

/// Checks that somebody helps progress to copy.
fn helpers(
    pool: usize,
    homes: &[&ResolvedXstream],
    roles: &Roles,
    layout: &Layout,
    found: &mut Findings,
) {
    let [home] = homes else { return };
    if roles.all_progress().all(|progress| home.pools.contains(&progress)) {
        let message = format!(
            "pool {:?} is run by xstream {:?} alone, which runs progress too: nobody takes part in \
             copies",
            layout.pools[pool].name, home.name
        );
        found.warn("margo.bulk.copy_pool", message);
    }
}

/// Where the pool stands among the others, the progress pool above all.
fn order(
    pool: usize,
    homes: &[&ResolvedXstream],
    layout: &Layout,
    roles: &Roles,
    found: &mut Findings,
) {
    let name = &layout.pools[pool].name;
    let path = format!("argobots.pools[{pool}]");
    if homes.iter().all(|xstream| xstream.pools.first() != Some(&pool)) {
        let message = format!(
            "pool {name:?} is first in no xstream: it has few turns while the pools before it are \
             busy"
        );
        found.warn(&path, message);
    }
    for progress in roles.all_progress().filter(|progress| *progress != pool) {
        beside_progress(pool, homes, layout, progress, found);
    }
}

/// Where the pool stands to a pool with a progress ULT.
fn beside_progress(
    pool: usize,
    homes: &[&ResolvedXstream],
    layout: &Layout,
    progress: usize,
    found: &mut Findings,
) {
    let name = &layout.pools[pool].name;
    let path = format!("argobots.pools[{pool}]");
    let rank = |xstream: &ResolvedXstream, pool| xstream.pools.iter().position(|&p| p == pool);
    let behind = |xstream: &ResolvedXstream| rank(xstream, progress) < rank(xstream, pool);
    let shared = |xstream: &&&ResolvedXstream| xstream.pools.contains(&progress);
    let after: Vec<_> = homes.iter().filter(shared).filter(|xstream| behind(xstream)).collect();
    let progress_name = &layout.pools[progress].name;
    if after.len() == homes.len() {
        let message = format!(
            "pool {name:?} comes after the progress pool {progress_name:?} in every xstream that \
             has it: it waits while messages come in"
        );
        found.warn(&path, message);
    } else if let Some(xstream) = after.first() {
        let message = format!(
            "pool {name:?} comes after the progress pool {progress_name:?} in xstream {:?}",
            xstream.name
        );
        found.warn(&path, message);
    } else if let Some(xstream) = homes.iter().find(shared) {
        let message = format!(
            "pool {name:?} shares xstream {:?} with the progress pool {progress_name:?}: a handler \
             that does not yield delays all network traffic",
            xstream.name
        );
        found.warn(&path, message);
    }
}

/// The runtime refuses a second consumer of a pool that promises one. A private pool has one
/// producer as well, and progress is a producer of every pool in which handlers run.
fn access(
    pool: usize,
    homes: &[&ResolvedXstream],
    layout: &Layout,
    serving: &Serving<'_>,
    found: &mut Findings,
) {
    let ResolvedPool { name, access, .. } = &layout.pools[pool];
    let path = format!("argobots.pools[{pool}].access");
    let single = matches!(access, PoolAccess::Private | PoolAccess::Spsc | PoolAccess::Mpsc);
    if single && homes.len() > 1 {
        let takers: Vec<_> = homes.iter().map(|xstream| xstream.name.as_str()).collect();
        let message = format!(
            "pool {name:?} promises a single consumer but {} xstreams take from it ({}); use mpmc",
            homes.len(),
            takers.join(", ")
        );
        found.error(path, message);
        return;
    }
    if *access != PoolAccess::Private || !serving.handlers.contains(&pool) {
        return;
    }
    let other = serving.progress.iter().find(|xstream| xstream.name != homes[0].name);
    if let Some(other) = other {
        let message = format!(
            "pool {name:?} is private to xstream {:?}, but the progress ULT pushes handlers into \
             it from xstream {:?}; use mpsc or mpmc",
            homes[0].name, other.name
        );
        found.error(path, message);
    }
}
