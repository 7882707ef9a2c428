//! Users of a pool or of an execution stream, beside those that `elastic` has in its list.

use hg::Registration;
use ult::{PoolRef, XstreamRef};

use crate::dispatch::admit;
use crate::dispatch::registered_rpc::RegisteredRpc;
use crate::instance::inner::Inner;
use crate::support::own_rpcs;

impl Inner {
    /// The users of a pool that are not in the list, in words.
    pub(crate) fn users_of_pool(&self, pool: &PoolRef) -> Vec<String> {
        let mut users = self.rpcs_in(pool);
        // Of an RPC that has another pool now.
        let waiting = self.gates.find(pool).map_or(0, |gate| gate.load().waiting);
        if waiting > 0 {
            users.push(format!("{waiting} requests that wait for a place (`margo.admission`)"));
        }
        users.extend(self.timers.armed_in(pool));
        // Children hold the pools that they know, but may use others too.
        for child in self.tree.living() {
            let of = of_child(&child);
            users.extend(child.users_of_pool(pool).into_iter().map(|user| user + &of));
        }
        users
    }

    /// The progress ULTs on an xstream, those of children included.
    pub(crate) fn progress_on(&self, xstream: &XstreamRef) -> Vec<String> {
        let mut there = Vec::new();
        let of_shards = self.shards.iter().map(|shard| shard.progress.get());
        for (shard, progress) in of_shards.enumerate() {
            if progress.is_some_and(|progress| progress.xstream() == xstream.index()) {
                there.push(format!("the progress ULT of shard {shard}"));
            }
        }
        for child in self.tree.living() {
            let of = of_child(&child);
            there.extend(child.progress_on(xstream).into_iter().map(|what| what + &of));
        }
        there
    }

    /// The RPCs whose handlers run in a pool.
    fn rpcs_in(&self, pool: &PoolRef) -> Vec<String> {
        let name = |registration: &Registration| {
            // Those follow progress.
            let follows = |entry: &RegisteredRpc| {
                own_rpcs::all().any(|own| own == (entry.rpc, entry.provider))
            };
            let is_here = |entry: &&RegisteredRpc| entry.pool == *pool && !follows(entry);
            let entry = registration.all_data::<RegisteredRpc>().find(is_here)?;
            Some(format!("RPC `{}` of provider {}", entry.rpc, entry.provider))
        };
        let mut found = Vec::new();
        for registration in self.core.registrations() {
            found.extend(name(&registration));
            admit::let_go(self, registration);
        }
        found.sort();
        found
    }
}

fn of_child(child: &Inner) -> String {
    format!(" of child instance {}", child.core.self_addr().uri())
}
