//! The bounds of each pool.

use super::Findings;
use super::declared::Layout;
use super::network::limit;
use crate::document::admission::{Admission, AdmissionOptions, ResolvedAdmission};

const PATH: &str = "margo.admission";

/// Checks the bounds and finds the pools that they are for.
pub(super) fn resolve(
    given: &AdmissionOptions,
    layout: &Layout,
    found: &mut Findings,
) -> ResolvedAdmission {
    let AdmissionOptions { handlers_max, peer_handlers_max, host_handlers_max, overload, .. } =
        *given;
    let mut other = Admission::default().overload(overload);
    (other.peer_handlers_max, other.host_handlers_max) = (peer_handlers_max, host_handlers_max);
    other.handlers_max = handlers_max;
    check(PATH, Some(handlers_max), other, found);
    let mut pools: Vec<(usize, Admission)> = Vec::new();
    for (entry, given) in given.pools.iter().enumerate() {
        let path = format!("{PATH}.pools[{entry}]");
        let mut bounds = other;
        bounds.handlers_max = given.handlers_max.unwrap_or(handlers_max);
        bounds.peer_handlers_max = given.peer_handlers_max.or(peer_handlers_max);
        bounds.host_handlers_max = given.host_handlers_max.or(host_handlers_max);
        bounds.overload = given.overload.unwrap_or(overload);
        check(&path, given.handlers_max, bounds, found);
        let Some(reference) = &given.pool else {
            found.error(path, "missing key `pool`: the name or index of a pool");
            continue;
        };
        let path = format!("{path}.pool");
        match layout.named_pool(&path, reference, found) {
            Some(pool) if pools.iter().any(|(listed, _)| *listed == pool) => {
                let name = &layout.pools[pool].name;
                found.error(path, format!("pool {name:?} is listed twice"));
            }
            Some(pool) => pools.push((pool, bounds)),
            None => {}
        }
    }
    ResolvedAdmission { other, pools }
}

fn check(path: &str, given: Option<usize>, bounds: Admission, found: &mut Findings) {
    let all = bounds.handlers_max;
    if let Some(given) = given {
        limit(&format!("{path}.handlers_max"), given as u64, 1, 1 << 30, found);
    }
    let Admission { peer_handlers_max, host_handlers_max, .. } = bounds;
    for (key, part) in
        [("peer_handlers_max", peer_handlers_max), ("host_handlers_max", host_handlers_max)]
    {
        if part.is_some_and(|part| part > all) {
            let path = format!("{path}.{key}");
            found.warn(path, format!("has no effect: `handlers_max`, {all}, is less"));
        }
    }
    let (of_a_peer, of_a_host) = (peer_handlers_max.unwrap_or(0), host_handlers_max.unwrap_or(0));
    if of_a_host > 0 && of_a_peer > of_a_host {
        let path = format!("{path}.peer_handlers_max");
        found.warn(path, format!("has no effect: `host_handlers_max`, {of_a_host}, is less"));
    }
}
