//! Whole instances on the nodes of a simulated network, all on one execution stream, and the
//! outcome of each of their calls.
//!
//! Instances of several shards have a pool for each, all of which that execution stream runs.

pub(crate) mod clock;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use margo::config::{Pool, Scheduler, Shards, Xstream};
use margo::{ForwardError, Instance, OneWay, ProviderHandle, Rpc, config::Config};
use na::sim::{Drive, LinkOptions, Network};
use ult::Eventual;

/// A call: its number, how long the handler waits (us of virtual time), the nodes that it calls
/// itself, and bytes to carry along.
pub(crate) type Work = (usize, u64, Vec<usize>, Vec<u8>);
pub(crate) const WORK: Rpc<Work, (usize, usize)> = Rpc::new("work");
pub(crate) const NEWS: OneWay<usize> = OneWay::new("news");

/// Knuth's generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed);
        random.below(2);
        random
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    pub(crate) fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from + self.below(to - from))
    }
}

/// The outcome of a call.
#[derive(Debug, Default, Clone)]
struct Fate {
    /// How often its handler began.
    runs: u32,
    /// Ends that its caller was told.
    ends: u32,
    answered: bool,
    /// The error said that the handler certainly did not run.
    never_ran: bool,
}

#[derive(Default)]
struct Record {
    fates: Vec<Fate>,
    /// Ends by their kind.
    kinds: BTreeMap<String, u32>,
    /// Observed violations of the promises of the runtime.
    wrong: Vec<String>,
}

/// The nodes, their network, and the record of their calls.
pub(crate) struct Cluster {
    pub(crate) network: Network,
    /// Shows the network's time.
    clock: clock::Stopped,
    /// The instance in whose pools all nodes run.
    parent: Instance,
    /// The pools of that, the least urgent first: shard *n* of a node is in pool *n*.
    pools: Vec<ult::PoolRef>,
    /// `None`: it is dead at the moment.
    running: Mutex<Vec<Option<Instance>>>,
    /// The instances that crashed.
    dead: Mutex<Vec<Instance>>,
    record: Mutex<Record>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A failed assertion elsewhere is what is to be seen then.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) fn name_of(node: usize) -> String {
    format!("n{node}")
}

impl Cluster {
    /// `nodes` of them, which serve [`WORK`] and [`NEWS`], with 1 to `shards` shards.
    pub(crate) fn new(name: &str, seed: u64, nodes: usize, shards: usize) -> Arc<Self> {
        let network = Network::builder(name)
            .seed(seed)
            .link(LinkOptions::unreliable(0.02))
            .peer_limit(Duration::from_millis(300))
            .drive(Drive::Manual)
            .build()
            .unwrap();
        let parent = Instance::from_config(&parent_config(&network, shards)).unwrap();
        let pools =
            pool_names(shards).iter().map(|name| parent.layout().pool(name).unwrap()).collect();
        let cluster = Arc::new(Self {
            network,
            clock: clock::Stopped::now(),
            parent,
            pools,
            running: Mutex::new(vec![None; nodes]),
            dead: Mutex::default(),
            record: Mutex::default(),
        });
        (0..nodes).for_each(|node| cluster.start(node));
        cluster
    }

    /// The pools of the one execution stream, the least urgent first.
    pub(crate) fn pools(&self) -> &[ult::PoolRef] {
        &self.pools
    }

    /// One, for most nodes: those of others take longer, as they step aside at each turn.
    fn shards_of(&self, node: usize) -> usize {
        [1, 3, 1, 2, 1][node % 5].min(self.pools.len())
    }

    pub(crate) fn instance(&self, node: usize) -> Option<Instance> {
        lock(&self.running)[node].clone()
    }

    /// Starts a node that does not run.
    pub(crate) fn start(self: &Arc<Self>, node: usize) {
        if self.instance(node).is_some() {
            return;
        }
        let mut config = config(&self.network, &name_of(node));
        let pools = self.pools.iter().map(|pool| pool.name().into());
        config.margo.shards = Some(Shards::Pools(pools.take(self.shards_of(node)).collect()));
        config.rpc_pool = Some(self.pools[0].name().into());
        let instance =
            margo::InstanceBuilder::from_config(config).parent(&self.parent).start().unwrap();
        let own = Arc::downgrade(self);
        instance.register(WORK, move |handle| work(&own, &handle)).unwrap();
        let own = Arc::downgrade(self);
        let news = move |handle: margo::Handle<usize, _>| {
            if let Some(cluster) = own.upgrade() {
                cluster.ran(*handle.args());
            }
        };
        instance.serve(NEWS).handler(news).unwrap();
        lock(&self.running)[node] = Some(instance);
    }

    /// The process of a node dies, or its machine.
    pub(crate) fn kill(&self, node: usize, machine: bool) {
        let Some(instance) = lock(&self.running)[node].take() else { return };
        match machine {
            true => self.network.power_off(&name_of(node)),
            false => self.network.crash(&name_of(node)),
        }
        lock(&self.dead).push(instance);
    }

    /// The next event of the network, with the clock at its time; `false`: there is none.
    pub(crate) fn step(&self) -> bool {
        let happened = self.network.step();
        self.clock.set(self.network.now());
        happened
    }

    /// Suspends the calling ULT for so much virtual time.
    pub(crate) fn sleep(&self, time: Duration) {
        let over = Arc::new(Eventual::new());
        let end = over.clone();
        self.network.schedule(self.network.now() + time, move |_| {
            // The ULT may have been unwound.
            let _ = end.set(());
        });
        over.wait();
    }

    /// Calls `to` from `own`.
    pub(crate) fn call(&self, own: &Instance, to: usize, work: Work, limit: Duration) {
        let id = self.announce();
        let bytes = work.3.len();
        let work = (id, work.1, work.2, work.3);
        let target = self.target(own, to, id);
        let deadline = self.network.now() + limit;
        // Time goes from event to event, and is to stop there.
        let stop = self.network.schedule(deadline, |_| ());
        let result = own.forward_timed(WORK, &target, &work, limit);
        self.network.unschedule(stop);
        let now = self.network.now();
        self.check(now <= deadline, || format!("call {id} ended {:?} late", now - deadline));
        if let Ok(answer) = &result {
            self.check(*answer == (id, bytes), || format!("call {id} got {answer:?}"));
        }
        self.ended(id, result.as_ref().map(|_| ()));
    }

    /// Sends news from `own`, to which there is no answer.
    pub(crate) fn send(&self, own: &Instance, to: usize) {
        let id = self.announce();
        let result = own.send(NEWS, &self.target(own, to, id), &id);
        let mut record = lock(&self.record);
        // Whether they arrived, nobody knows.
        record.fates[id].ends += 1;
        record.fates[id].never_ran = result.is_err_and(|error| error.never_ran());
        *record.kinds.entry("sent".to_owned()).or_default() += 1;
    }

    /// A node, as `own` sees it for the call of that number; every other call names a shard.
    fn target(&self, own: &Instance, node: usize, id: usize) -> ProviderHandle {
        let uri = format!("na+sim://{}/{}", self.network.name(), name_of(node));
        let target = ProviderHandle::from(own.lookup(&uri).unwrap());
        let shards = self.shards_of(node);
        match (id % 2, shards) {
            (0, _) | (_, 1) => target,
            (_, shards) => target.in_shard((id / 2 % shards) as u8),
        }
    }

    fn announce(&self) -> usize {
        let mut record = lock(&self.record);
        record.fates.push(Fate::default());
        record.fates.len() - 1
    }

    fn ran(&self, id: usize) {
        lock(&self.record).fates[id].runs += 1;
    }

    fn ended(&self, id: usize, result: Result<(), &ForwardError>) {
        let mut record = lock(&self.record);
        let fate = &mut record.fates[id];
        fate.ends += 1;
        fate.answered = result.is_ok();
        fate.never_ran = result.is_err_and(ForwardError::never_ran);
        let kind = match result {
            Ok(()) => "answered".to_owned(),
            Err(error) => {
                let text = format!("{error:?}");
                text.split([' ', '{', '(']).next().unwrap_or_default().to_owned()
            }
        };
        *record.kinds.entry(kind).or_default() += 1;
    }

    pub(crate) fn check(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            lock(&self.record).wrong.push(what());
        }
    }

    /// The calls that have not ended.
    pub(crate) fn hanging(&self) -> Vec<String> {
        let record = lock(&self.record);
        let fates = record.fates.iter().enumerate().filter(|(_, fate)| fate.ends == 0);
        fates.map(|(id, fate)| format!("call {id}: {fate:?}")).collect()
    }

    /// Asserts that every call ended once and ran at most once, and that nothing is left in hand.
    /// Returns how many ended how.
    pub(crate) fn assert_all_is_over(&self) -> BTreeMap<String, u32> {
        {
            let mut record = lock(&self.record);
            let Record { fates, wrong, .. } = &mut *record;
            for (id, fate) in fates.iter().enumerate() {
                let runs = match (fate.answered, fate.never_ran) {
                    (true, _) => 1..=1,
                    (_, true) => 0..=0,
                    _ => 0..=1,
                };
                if fate.ends != 1 || !runs.contains(&fate.runs) {
                    wrong.push(format!("call {id}: {fate:?}"));
                }
            }
            assert!(wrong.is_empty(), "{wrong:#?}");
        }
        for instance in lock(&self.running).iter().flatten() {
            let name = instance.self_addr();
            let state = instance.monitoring().state_dump();
            assert_eq!(state.metrics.handlers_running, 0, "{name}");
            for context in &state.metrics.shards {
                assert_eq!((context.in_flight, context.requests_held), (0, 0), "{name}");
            }
            for load in self.pools.iter().filter_map(|pool| instance.monitoring().load(pool)) {
                assert_eq!((load.in_hand, load.waiting), (0, 0), "{name}");
            }
        }
        std::mem::take(&mut lock(&self.record).kinds)
    }

    /// Ends all instances, the dead ones included. Not from a ULT.
    pub(crate) fn end(&self) {
        for dead in std::mem::take(&mut *lock(&self.dead)) {
            // It noticed by itself.
            dead.wait_for_finalize().unwrap();
        }
        for instance in std::mem::take(&mut *lock(&self.running)).into_iter().flatten() {
            instance.finalize_and_wait().unwrap();
        }
        let names: Vec<_> =
            self.parent.monitoring().state_dump().ults.into_iter().map(|ult| ult.name).collect();
        assert!(names.len() <= 1, "only the parent's progress ULT is left: {names:?}");
        self.parent.finalize_and_wait().unwrap();
    }
}

/// The names of the pools of so many shards: the last one comes first on the execution stream.
fn pool_names(shards: usize) -> Vec<String> {
    let others = (0..shards - 1).map(|shard| format!("shard{shard}"));
    others.chain(["__primary__".to_owned()]).collect()
}

/// With a pool for each shard, all run by one execution stream.
fn parent_config(network: &Network, shards: usize) -> Config {
    let mut config = config(network, "parent");
    let names = pool_names(shards);
    let pools = names.iter().rev().map(|name| name.as_str().into()).collect();
    let named = |name| Pool { name: Some(name), ..Pool::default() };
    config.argobots.pools = names.into_iter().map(named).collect();
    config.argobots.xstreams = vec![Xstream {
        name: Some("__primary__".to_owned()),
        scheduler: Some(Scheduler { pools, ..Scheduler::default() }),
        ..Xstream::default()
    }];
    config
}

fn config(network: &Network, node: &str) -> Config {
    let mut config = Config::default();
    config.margo.address = format!("na+sim://{}/{node}", network.name());
    config.margo.network.connect_timeout_msec = 200;
    // A machine without power tells nobody, and what waits for it would wait for ever.
    config.margo.network.liveness_msec = 400;
    // Sleeping is a matter of the real clock.
    config.mercury.na_no_block = true;
    // So are stalls: after one, ULTs are watched for a while, and do not switch directly.
    config.margo.stall_limit_msec = 0;
    config
}

fn work(cluster: &Weak<Cluster>, handle: &margo::Handle<Work, (usize, usize)>) {
    let Some(cluster) = cluster.upgrade() else { return };
    let (id, wait, route, bytes) = handle.args();
    cluster.ran(*id);
    if *wait > 0 {
        cluster.sleep(Duration::from_micros(*wait));
    }
    if let Some((next, route)) = route.split_first() {
        let work = (0, wait / 2, route.to_vec(), Vec::new());
        // No longer than the request: it would end with it.
        let left = handle.remaining().unwrap_or(Duration::MAX);
        cluster.call(handle.instance(), *next, work, left.min(Duration::from_millis(100)));
    }
    // The origin may be gone, or may have given up.
    let _ = handle.respond(&(*id, bytes.len()));
}
