//! The place of a shard in its instance and on the machine.

use ult::{CpuSet, PoolRef, Runtime, Topology};

/// The place of a shard, for code that makes something for each of them
/// ([`Instance::sharded_provider`](crate::Instance::sharded_provider)).
///
/// ```
/// let service = margo::init(r#"{ "margo": { "address": "na+sm://", "shards": 2 } }"#)?;
/// let provider = service.sharded_provider(margo::ProviderId::new(1), |place| {
///     println!("shard {} of {} on CPUs {:?}", place.index(), place.count(), place.cpus());
///     place.index()
/// })?;
/// assert_eq!(provider.object().gather(|index| *index)?, [0, 1]);
/// # drop(provider);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlace {
    index: usize,
    count: usize,
    cpus: Option<CpuSet>,
    numa_node: Option<u32>,
}

impl ShardPlace {
    /// The place of shard `index` of `count`, whose handlers run in `pool`.
    pub(crate) fn of(index: usize, count: usize, pool: &PoolRef, runtime: &Runtime) -> Self {
        let homes = pool.xstreams().into_iter();
        let bound = homes.filter_map(|name| runtime.xstream(&name)).flat_map(|home| home.cpus());
        Self::on(Topology::get().ok(), index, count, bound.collect(), runtime.cpus())
    }

    /// `bound` are the CPUs that it stays on, none if it may be on all that are `allowed`.
    fn on(
        machine: Option<&Topology>,
        index: usize,
        count: usize,
        bound: CpuSet,
        allowed: &CpuSet,
    ) -> Self {
        let cpus = Some(bound).filter(|bound| !bound.is_empty());
        let numa_node =
            machine.and_then(|machine| machine.memory_node_of(cpus.as_ref().unwrap_or(allowed)));
        Self { index, count, cpus, numa_node }
    }

    /// The number of the shard, from 0, which is that of its part.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns how many shards there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The CPUs that its execution stream is bound to; `None`: to none, it may run on any.
    pub fn cpus(&self) -> Option<&CpuSet> {
        self.cpus.as_ref()
    }

    /// The NUMA node whose memory is nearest to all CPUs where it may run, by the number that the
    /// operating system gives it; `None`: there is no such node, or it is not known. Memory that is
    /// touched first in code of the shard is there anyway ([`Instance::alloc`] touches all of it).
    ///
    /// [`Instance::alloc`]: crate::Instance::alloc
    pub fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::fake_machine::two_nodes;

    #[test]
    fn the_node_is_that_of_all_cpus_where_the_shard_may_run() {
        let machine = two_nodes("0-3");
        let place = |bound: &str, allowed: &str| {
            let bound = if bound.is_empty() { CpuSet::default() } else { bound.parse().unwrap() };
            let allowed = allowed.parse().unwrap();
            ShardPlace::on(Some(&machine), 1, 2, bound, &allowed)
        };
        for (bound, allowed, node) in [
            ("1", "0-3", Some(0)),
            ("2-3", "0-3", Some(1)),
            ("1-2", "0-3", None),
            ("", "0-3", None),
            // The whole process is on one node.
            ("", "2-3", Some(1)),
        ] {
            let place = place(bound, allowed);
            assert_eq!(place.numa_node(), node, "{bound:?} of {allowed}");
            assert_eq!(place.cpus().map_or(String::new(), CpuSet::to_string), bound);
            assert_eq!((place.index(), place.count()), (1, 2));
        }
        let unknown = ShardPlace::on(None, 0, 1, "1".parse().unwrap(), &"0-3".parse().unwrap());
        assert_eq!(unknown.numa_node(), None);
    }
}
