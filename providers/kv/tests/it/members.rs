//! Servers that join others, leave them and take each other's place.

use std::time::Duration;

use margo::component::RunningProvider;
use margo::config::Config;
use margo::{ForwardError, Instance, ProviderHandle, ProviderId, Rpc};
use margo_provider_kv::{
    ClientError, Condition, KvClient, KvConfig, KvError, KvProvider, MemberChange, Membership,
    MemoryOrder, Selection, StoreConfig, StoreKind,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::common::{ID, PATIENCE, TRANSPORTS, in_memory, pattern, refusal, until};

/// Servers, and a caller.
struct Servers {
    services: Vec<(Instance, Option<KvProvider>)>,
    client: Instance,
}

impl Servers {
    fn new(transport: &str, configs: &[KvConfig]) -> Self {
        let start = |config: &KvConfig| {
            let service = Instance::builder(transport).start().unwrap();
            let provider = service.provider(ID, &service.layout().rpc_pool());
            let provider = KvProvider::start(provider, config).unwrap();
            (service, Some(provider))
        };
        let services = configs.iter().map(start).collect();
        let own = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        Self { services, client }
    }

    fn target(&self, n: usize) -> ProviderHandle {
        let uri = self.services[n].0.self_addr().uri().to_owned();
        ProviderHandle::new(self.client.lookup(&uri).unwrap(), ID)
    }

    fn kv(&self, servers: std::ops::Range<usize>) -> KvClient {
        KvClient::cluster(&self.client, servers.map(|n| self.target(n)), PATIENCE).unwrap()
    }

    /// How many keys a server has.
    fn keys(&self, n: usize) -> u64 {
        let kv = self.kv(n..n + 1);
        let at = kv.members().iter().position(|target| target.addr() == self.target(n).addr());
        at.map_or(0, |at| kv.stat(PATIENCE).unwrap()[at].keys)
    }

    fn end(self) {
        self.client.finalize_and_wait().unwrap();
        for (service, provider) in self.services {
            drop(provider);
            service.finalize_and_wait().unwrap();
        }
    }
}

fn with_shards(shards: u64, order: MemoryOrder) -> KvConfig {
    let mut config = KvConfig::new(StoreConfig::memory(order));
    config.shards = shards;
    config
}

/// Settings of servers of every kind.
fn configs(count: usize) -> Vec<KvConfig> {
    let all = [
        with_shards(1, MemoryOrder::Ordered),
        with_shards(3, MemoryOrder::Hashed),
        with_shards(2, MemoryOrder::Ordered),
        with_shards(1, MemoryOrder::Hashed),
    ];
    all.into_iter().cycle().take(count).collect()
}

fn change(kv: &KvClient, change: MemberChange) -> Membership {
    kv.change_members(change, PATIENCE, |_| {}).unwrap()
}

fn names(kv: &KvClient) -> Vec<Vec<u8>> {
    kv.keys(Selection::default(), PATIENCE).map(|entry| entry.unwrap().key.0).collect()
}

#[test]
fn one_more_server_takes_its_share_and_no_other_key_moves() {
    const KEYS: usize = 1500;
    for transport in TRANSPORTS {
        let servers = Servers::new(transport, &configs(4));
        let kv = servers.kv(0..3);
        let keys: Vec<_> = (0..KEYS).map(|n| format!("key/{n:05}").into_bytes()).collect();
        let batch = keys.iter().fold(kv.batch(), |batch, key| batch.put(key, key));
        assert!(batch.run(PATIENCE).unwrap().iter().all(Result::is_ok));
        let before: Vec<_> =
            keys.iter().map(|key| (kv.owner(key), kv.measure(key, PATIENCE).unwrap())).collect();

        let mut handed_over = 0;
        let add = MemberChange::new().with(servers.target(3));
        let members = kv.change_members(add.clone(), PATIENCE, |progress| {
            handed_over += if progress.is_erasing { 0 } else { progress.keys };
        });
        assert_eq!((members.unwrap().epoch, handed_over), (2, 0), "less than a second each");
        let mut moved = 0;
        for (key, (owner, measured)) in keys.iter().zip(before) {
            let now = kv.owner(key);
            if now.addr() == servers.target(3).addr() {
                moved += 1;
            } else {
                assert_eq!(now, owner);
            }
            assert_eq!(kv.measure(key, PATIENCE).unwrap(), measured);
            let version = kv.put(key, b"new", PATIENCE).unwrap();
            assert!(version > measured.unwrap().version);
        }
        assert!((KEYS / 6..KEYS / 3).contains(&moved), "{moved} of {KEYS}");
        assert_eq!(servers.keys(3), moved as u64);
        let counts: Vec<_> = (0..4).map(|n| servers.keys(n)).collect();
        assert_eq!(counts.iter().sum::<u64>(), KEYS as u64, "no copies: {counts:?}");
        assert_eq!(change(&kv, add).epoch, 2, "it is so");

        // Whoever names one of them finds all.
        let other = servers.kv(1..2);
        assert_eq!(names(&other), keys);
        assert_eq!(other.members().len(), 4);
        servers.end();
    }
}

#[test]
fn clients_follow_keys_in_every_call() {
    for transport in TRANSPORTS {
        let servers = Servers::new(transport, &configs(3));
        let long = pattern(2_000_000, 3);
        let admin = servers.kv(0..1);
        let fill = |kv: &KvClient| {
            kv.put(b"long", &long, PATIENCE).unwrap();
            kv.batch().put(b"a", b"1").put(b"b", b"").put(b"", b"2").run(PATIENCE).unwrap();
            kv.collection("events").append(&[b"x", b"y"], PATIENCE).unwrap();
        };
        fill(&admin);
        // Clients that have not heard of any change, one for each call.
        let stale = || KvClient::new(&servers.client, servers.target(0));
        let steps = [
            MemberChange::new().with(servers.target(1)).without(servers.target(0)),
            MemberChange::new().with(servers.target(2)),
            MemberChange::new().without(servers.target(1)).with(servers.target(0)),
            MemberChange::new().without(servers.target(2)),
        ];
        for (round, step) in steps.into_iter().enumerate() {
            let waiting = stale();
            let key = format!("wait/{round}");
            let waits = std::thread::spawn({
                let key = key.clone();
                move || waiting.wait(key.as_bytes(), 0, PATIENCE).unwrap().value.0
            });
            let stat = || admin.stat(PATIENCE).unwrap().iter().map(|it| it.waiters).sum::<u64>();
            until(|| stat() == 1);
            let erased = admin.put(b"erased", b"", PATIENCE).unwrap();
            assert!(admin.erase(b"erased", PATIENCE).unwrap());
            let members = change(&admin, step);
            assert_eq!(members.epoch, round as u64 + 2);
            until(|| stat() == 1);
            stale().put(key.as_bytes(), b"now", PATIENCE).unwrap();
            assert_eq!(waits.join().unwrap(), b"now");

            call_all(&stale, &long, round as u64, erased);
        }
        let counts: Vec<_> = (0..3).map(|n| servers.keys(n)).collect();
        assert_eq!(counts.iter().sum::<u64>(), 12, "{counts:?}");
        servers.end();
    }
}

/// Makes every call, each by a client of its own.
fn call_all(stale: &dyn Fn() -> KvClient, long: &[u8], round: u64, erased: u64) {
    assert!(stale().put(b"erased", b"", PATIENCE).unwrap() > erased + 1);
    assert!(stale().erase(b"erased", PATIENCE).unwrap());
    assert_eq!(stale().get(b"long", PATIENCE).unwrap().value.0, long);
    let mut into = vec![0; long.len()];
    stale().get_into(b"long", &mut into, PATIENCE).unwrap();
    assert!(into == long);
    let found = stale().get_many(&[b"a", b"", b"c", b"long"], PATIENCE).unwrap();
    let lens: Vec<_> = found.iter().map(|it| it.as_ref().ok().map(|it| it.value.len())).collect();
    assert_eq!(lens, [Some(1), Some(1), None, Some(long.len())]);
    let lens = stale().measure_many(&[b"a", b"c", b"b"], PATIENCE).unwrap();
    assert_eq!(
        lens.iter().map(|it| it.map(|it| it.len)).collect::<Vec<_>>(),
        [Some(1), None, Some(0)]
    );
    let version = stale().put(b"a", b"1", PATIENCE).unwrap();
    let when = Condition::Version(version);
    stale().put_if(b"a", b"2", when, PATIENCE).unwrap();
    let again = stale().put_if(b"a", b"3", when, PATIENCE);
    assert!(matches!(refusal(again), KvError::Conflict { .. }));
    stale().append(b"a", b"!", PATIENCE).unwrap();
    assert_eq!(stale().take(b"a", PATIENCE).unwrap().value.0, b"2!");
    let batch = stale();
    let batch = batch.batch().put(b"a", b"1").put(b"long", long).erase(b"none");
    assert!(batch.run(PATIENCE).unwrap().iter().all(Result::is_ok));
    let whole = stale();
    let whole = whole.batch().atomic().only_if(b"events\0", Condition::Present);
    whole.put(b"events\0\0\0\0\0\0\0\0\x09", b"z").run(PATIENCE).unwrap();
    let documents: Vec<_> =
        stale().collection("events").documents(0, PATIENCE).map(Result::unwrap).collect();
    assert_eq!(documents.len(), 3);
    assert_eq!(stale().collection("events").count(PATIENCE).unwrap(), 3);
    let expected = 9 + round;
    assert_eq!(stale().count(&Selection::default(), PATIENCE).unwrap(), expected);
    assert_eq!(names(&stale()).len() as u64, expected);
    stale().put(b"range/1", b"", PATIENCE).unwrap();
    stale().put(b"range/2", b"", PATIENCE).unwrap();
    assert_eq!(stale().erase_range(&b"range/"[..]..&b"range0"[..], PATIENCE).unwrap(), 2);
    stale().flush(PATIENCE).unwrap();
    // So do calls that are on their way, each of a client that does not know, also for tasks.
    let found = stale().start_get(b"a", 10, PATIENCE).unwrap().wait().unwrap();
    assert_eq!(found.value.0, b"1");
    let found = margo::ult::block_on(stale().start_get(b"a", 10, PATIENCE).unwrap()).unwrap();
    assert_eq!(found.value.0, b"1");
    let keys = ["start/1", "start/2", "start/3", "start/4"].map(str::as_bytes);
    for value in [b"1", b"2"] {
        let kv = stale();
        let puts = keys.map(|key| kv.start_put(key, value, PATIENCE).unwrap());
        for (number, put) in puts.into_iter().enumerate() {
            match number % 2 == 0 {
                true => put.wait().unwrap(),
                false => margo::ult::block_on(put).unwrap(),
            };
        }
        for key in keys {
            assert_eq!(stale().get(key, PATIENCE).unwrap().value.0, value);
        }
    }
    for key in keys {
        assert!(stale().erase(key, PATIENCE).unwrap());
    }
}

#[test]
fn changes_and_lists_go_on_while_keys_change_hands() {
    for transport in TRANSPORTS {
        let servers = Servers::new(transport, &configs(4));
        let kv = servers.kv(0..2);
        let keys: Vec<_> = (0..3000).map(|n| format!("key/{n:05}").into_bytes()).collect();
        let batch = keys.iter().fold(kv.batch(), |batch, key| batch.put(key, b"0"));
        batch.run(PATIENCE).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let (kv, keys, is_over) = (servers.kv(0..2), &keys, &is_over);
                    scope.spawn(move || {
                        let (mut random, mut sums) = (fastrand::Rng::with_seed(writer), 0_u64);
                        while !is_over.load(relaxed) {
                            let key = &keys[random.usize(..keys.len())];
                            kv.append(key, b"+", PATIENCE).unwrap();
                            sums += 1;
                        }
                        sums
                    })
                })
                .collect();
            let lister = scope.spawn(|| {
                let (kv, mut lists) = (servers.kv(0..2), 0);
                while !is_over.load(relaxed) {
                    assert!(names(&kv) == keys);
                    assert_eq!(kv.count(&Selection::default(), PATIENCE).unwrap(), 3000);
                    lists += 1;
                }
                lists
            });
            let target = |n| servers.target(n);
            for step in [
                MemberChange::new().with(target(2)).with(target(3)),
                MemberChange::new().without(target(0)),
                MemberChange::new().without(target(1)).with(target(0)),
            ] {
                change(&kv, step);
            }
            is_over.store(true, relaxed);
            let sums: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
            assert!(lister.join().unwrap() > 0);
            let entries = kv.entries(Selection::default(), PATIENCE);
            let lens = entries.map(|entry| entry.unwrap().value.unwrap().len() as u64 - 1);
            assert_eq!(lens.sum::<u64>(), sums, "every acknowledged change, once");
        });
        servers.end();
    }
}

#[test]
fn what_cannot_be_is_refused_and_taken_back() {
    let mut small = in_memory();
    small.store.max_bytes = Some(10_000);
    let servers = Servers::new("na+sm://", &[in_memory(), in_memory(), small, in_memory()]);
    let kv = servers.kv(0..2);
    let value = vec![7; 1000];
    let keys: Vec<_> = (0..100).map(|n| format!("key/{n}").into_bytes()).collect();
    let batch = keys.iter().fold(kv.batch(), |batch, key| batch.put(key, &value));
    batch.run(PATIENCE).unwrap();
    let refused = |step: MemberChange| kv.change_members(step, PATIENCE, |_| {}).unwrap_err();

    // It is full on the way, and does not stay half a member.
    let error = refused(MemberChange::new().with(servers.target(2)));
    assert!(matches!(&error, ClientError::Kv(KvError::Full(why)) if why.contains("10000")));
    let full = servers.kv(2..3);
    assert_eq!(full.membership(PATIENCE).unwrap(), None);
    assert_eq!(full.count(&Selection::default(), PATIENCE).unwrap(), 0, "it is empty again");
    assert_eq!(kv.membership(PATIENCE).unwrap().unwrap().epoch, 1);

    // It has keys of its own.
    servers.kv(3..4).put(b"own", b"", PATIENCE).unwrap();
    let error = refused(MemberChange::new().with(servers.target(3))).to_string();
    assert!(error.contains("has keys of its own, such as \"own\""), "{error}");
    // It is no key-value store.
    let other = ProviderHandle::new(servers.target(3).addr().clone(), ProviderId::new(9));
    let error = refused(MemberChange::new().with(other));
    assert!(matches!(error, ClientError::Forward(ForwardError::NotRegistered { .. })), "{error}");
    // Nobody would be left.
    let none = MemberChange::new().without(servers.target(0)).without(servers.target(1));
    let error = refused(none).to_string();
    assert!(error.contains("0 members: there are from 1 to 256"), "{error}");
    // Servers that have nothing to do with each other.
    let targets = [servers.target(0), servers.target(3)];
    let error = KvClient::cluster(&servers.client, targets, PATIENCE).unwrap_err();
    assert!(matches!(error, ClientError::NoMember { .. }), "{error}");
    let both = servers.kv(2..4);
    let step = MemberChange::new().with(servers.target(0));
    let error = both.change_members(step, PATIENCE, |_| {}).unwrap_err();
    assert!(matches!(error, ClientError::NoMember { .. }), "{error}");

    let counts: Vec<_> = (0..2).map(|n| servers.keys(n)).collect();
    assert_eq!(counts.iter().sum::<u64>(), 100);
    for key in &keys {
        assert_eq!(kv.get(key, PATIENCE).unwrap().value.0, value);
        kv.put(key, b"", PATIENCE).unwrap();
    }
    // Now there is room.
    change(&kv, MemberChange::new().with(servers.target(2)));
    assert_eq!(names(&full).len(), 100);
    servers.end();
}

#[test]
fn what_a_member_knows_is_on_the_disk_and_in_snapshots() {
    for kind in [StoreKind::Redb, StoreKind::Fjall] {
        let dir = tempfile::tempdir().unwrap();
        let disk = |n: usize, shards| {
            let mut config = KvConfig::new(StoreConfig::new(kind, dir.path().join(n.to_string())));
            config.shards = shards;
            config
        };
        let configs = [disk(0, 2), disk(1, 1), in_memory()];
        let mut servers = Servers::new("na+sm://", &configs);
        let kv = servers.kv(0..1);
        let keys: Vec<_> = (0..200).map(|n| format!("key/{n:03}").into_bytes()).collect();
        keys.iter().for_each(|key| _ = kv.put(key, key, PATIENCE).unwrap());
        let members = change(&kv, MemberChange::new().with(servers.target(1)));
        let snapshot = dir.path().join("snapshot");
        servers.services[1].1.as_ref().unwrap().snapshot(&snapshot).unwrap();
        for ((service, running), config) in servers.services.iter_mut().zip(&configs).take(2) {
            running.take().unwrap().close(PATIENCE).unwrap();
            let provider = service.provider(ID, &service.layout().rpc_pool());
            *running = Some(KvProvider::start(provider, config).unwrap());
        }
        for n in 0..2 {
            let kv = servers.kv(n..n + 1);
            assert_eq!(kv.membership(PATIENCE).unwrap().as_ref(), Some(&members));
            assert_eq!(names(&kv), keys);
            assert_ne!(servers.keys(n), 0);
        }
        // The second server is lost, and comes back from its snapshot at another place.
        drop(servers.services[1].1.take());
        servers.services[2].1.as_ref().unwrap().restore(&snapshot).unwrap();
        let kv = KvClient::cluster(&servers.client, [0, 2].map(|n| servers.target(n)), PATIENCE);
        let members = change(&kv.unwrap(), MemberChange::new());
        assert_eq!(members.epoch, 3, "it has another address");
        assert_eq!(names(&servers.kv(0..1)), keys);
        servers.end();
    }
}

/// The steps of a change, as they travel.
#[derive(Serialize)]
enum Step {
    Begin { from: Membership, to: Membership },
    HandOver { epoch: u64 },
    Finish { epoch: u64 },
    Clean,
    Abort { epoch: u64 },
    Start { epoch: u64, source: u64 },
}

/// The answer to a step.
#[derive(Debug, PartialEq, Deserialize)]
enum Done {
    All,
    More { keys: u64 },
    Started { stream: u64 },
}

const STEP: Rpc<Step, Result<Done, KvError>> = Rpc::new("__admin_kv_members__");

#[test]
fn steps_without_a_change_do_nothing_and_need_a_right_of_their_own() {
    let document = json!({ "margo": { "address": "na+sm://",
        "security": { "allow": [{ "who": "uid:self", "provider": "kv:1" }] },
    } });
    let strict = margo::init(&document.to_string()).unwrap();
    let provider = strict.provider(ID, &strict.layout().rpc_pool());
    let running = KvProvider::start(provider, &in_memory()).unwrap();
    let servers = Servers::new("na+sm://", &[in_memory(), in_memory()]);
    let strict_target = servers.client.lookup(strict.self_addr().uri()).unwrap();
    let strict_target = ProviderHandle::new(strict_target, ID);
    let kv = KvClient::connect(&servers.client, strict_target.clone(), PATIENCE).unwrap();
    kv.put(b"k", b"v", PATIENCE).unwrap();
    let step = MemberChange::new().with(servers.target(0));
    let error = kv.change_members(step.clone(), PATIENCE, |_| {}).unwrap_err();
    assert!(matches!(error, ClientError::Forward(ForwardError::Permission { .. })), "{error}");
    assert_eq!(kv.membership(PATIENCE).unwrap(), None);
    assert_eq!(servers.kv(0..1).membership(PATIENCE).unwrap(), None, "nor the other one");

    // Of servers without rules everybody is the administrator, and yet steps have an order.
    let kv = servers.kv(0..1);
    kv.put(b"k", b"v", PATIENCE).unwrap();
    let ask = |step: &Step| {
        let (client, target) = (&servers.client, servers.target(0));
        client.forward_timed(STEP.sending(), &target, step, PATIENCE).unwrap()
    };
    for step in [
        Step::HandOver { epoch: 2 },
        Step::Finish { epoch: 2 },
        Step::Start { epoch: 2, source: 1 },
    ] {
        assert!(matches!(ask(&step), Err(KvError::Invalid(_))));
    }
    assert_eq!((ask(&Step::Clean), ask(&Step::Abort { epoch: 2 })), (Ok(Done::All), Ok(Done::All)));
    let members = change(&kv, MemberChange::new().with(servers.target(1)));
    let (mut from, mut to) = (members.clone(), members.clone());
    to.epoch += 1;
    from.members.pop();
    let wrong = ask(&Step::Begin { from: from.clone(), to: to.clone() });
    assert!(matches!(wrong, Err(KvError::Invalid(_))), "other members");
    to.members[0].address = "x".repeat(600);
    assert!(matches!(ask(&Step::Begin { from: members, to }), Err(KvError::Invalid(_))));
    assert_eq!(kv.get(b"k", PATIENCE).unwrap().value.0, b"v");
    drop(running);
    servers.end();
    strict.finalize_and_wait().unwrap();
}

#[test]
fn a_rule_that_names_it_lets_servers_and_administrators_change_members() {
    let start = || {
        let document = json!({ "margo": {
            "address": "na+sm://",
            "providers": [
                { "type": "kv", "provider_id": 1, "config": { "store": { "kind": "memory" } } },
            ],
            "security": { "allow": [
                { "who": "anyone", "provider": "kv", "rpc": "*" },
                { "who": "uid:self", "provider": "kv", "rpc": "__admin_kv_members__" },
            ] },
        } });
        let config = Config::from_json(&document.to_string()).unwrap();
        let service = Instance::from_config(&config).unwrap();
        let running = service.start_providers(&[&margo_provider_kv::KvComponent]).unwrap();
        (service, running)
    };
    let services = [start(), start()];
    let client = Instance::builder("na+sm://").listen(false).start().unwrap();
    let target = |n: usize| {
        let uri = services[n].0.self_addr().uri().to_owned();
        ProviderHandle::new(client.lookup(&uri).unwrap(), ID)
    };
    let kv = KvClient::connect(&client, target(0), PATIENCE).unwrap();
    kv.put(b"k", b"v", PATIENCE).unwrap();
    change(&kv, MemberChange::new().with(target(1)).without(target(0)));
    assert_eq!(kv.owner(b"k").addr(), target(1).addr());
    assert_eq!(kv.get(b"k", Duration::from_secs(60)).unwrap().value.0, b"v");
    client.finalize_and_wait().unwrap();
    for (service, running) in services {
        drop(running);
        service.finalize_and_wait().unwrap();
    }
}
