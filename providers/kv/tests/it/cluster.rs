//! Several servers with one key space.

use std::ops::Bound::Unbounded;
use std::time::Duration;

use margo::component::RunningProvider;
use margo::{ForwardError, Instance, ProviderHandle};
use margo_provider_kv::{
    Changed, ClientError, Condition, Entry, KeyRange, KvClient, KvConfig, KvError, KvProvider,
    MemoryOrder, Selection, StoreConfig, StoreKind,
};

use serde_json::json;

use crate::common::{ID, PATIENCE, Pair, TRANSPORTS, in_memory, pattern, refusal};

const SERVERS: usize = 3;

/// A client of several servers.
struct Servers {
    services: Vec<(Instance, KvProvider)>,
    client: Instance,
    kv: KvClient,
}

impl Servers {
    fn new(transport: &str, config: impl Fn(usize) -> KvConfig) -> Self {
        let start = |n| {
            // Shards of the instance are for speed: the keys are right without them.
            let shards = if n == 0 { 1 } else { config(n).shards };
            let document = json!({ "margo": { "address": transport, "shards": shards } });
            let service = margo::init(&document.to_string()).unwrap();
            let provider = service.provider(ID, &service.layout().rpc_pool());
            let provider = KvProvider::start(provider, &config(n)).unwrap();
            (service, provider)
        };
        let services: Vec<_> = (0..SERVERS).map(start).collect();
        let own = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        let kv = KvClient::cluster(&client, targets(&services, &client), PATIENCE).unwrap();
        Self { services, client, kv }
    }

    /// A client of one of them, the first one in the order of the client.
    fn alone(&self, member: usize) -> KvClient {
        KvClient::new(&self.client, self.kv.members().swap_remove(member))
    }

    fn end(self) {
        self.client.finalize_and_wait().unwrap();
        for (service, provider) in self.services {
            drop(provider);
            service.finalize_and_wait().unwrap();
        }
    }
}

fn targets(services: &[(Instance, KvProvider)], client: &Instance) -> Vec<ProviderHandle> {
    let target = |(service, _): &(Instance, KvProvider)| {
        ProviderHandle::new(client.lookup(service.self_addr().uri()).unwrap(), ID)
    };
    services.iter().map(target).collect()
}

/// Runs `body` for each transport, with servers of one and of several shards.
fn on_each(body: impl Fn(&Servers)) {
    for transport in TRANSPORTS {
        for shards in [1, 3] {
            let config = |_| {
                let mut config = in_memory();
                config.shards = shards;
                config
            };
            let servers = Servers::new(transport, config);
            body(&servers);
            servers.end();
        }
    }
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("key/{n:04}")).collect()
}

fn names(kv: &KvClient, selection: Selection) -> Vec<String> {
    let name = |entry: Result<Entry, _>| String::from_utf8(entry.unwrap().key.0).unwrap();
    kv.keys(selection, PATIENCE).map(name).collect()
}

#[test]
fn each_key_is_at_its_owner_in_whichever_order_servers_are_named() {
    on_each(|servers| {
        let kv = &servers.kv;
        let mut targets = targets(&servers.services, &servers.client);
        targets.reverse();
        let again = KvClient::cluster(&servers.client, targets, PATIENCE).unwrap();
        for key in keys(60) {
            let key = key.as_bytes();
            let version = kv.put(key, key, PATIENCE).unwrap();
            assert_eq!(again.owner(key), kv.owner(key));
            let owner = KvClient::new(&servers.client, kv.owner(key));
            let found = owner.get(key, PATIENCE).unwrap();
            assert_eq!((found.version, &*found.value.0), (version, key));
            assert_eq!(again.get(key, PATIENCE).unwrap(), found);
        }
        let counts: Vec<_> = kv.stat(PATIENCE).unwrap().iter().map(|stat| stat.keys).collect();
        assert_eq!(counts.iter().sum::<u64>(), 60);
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        let key = b"key/0007";
        kv.append(key, b"!", PATIENCE).unwrap();
        assert_eq!(kv.wait(key, 0, PATIENCE).unwrap().value.0, b"key/0007!");
        assert_eq!(kv.get_into(key, &mut [0; 9], PATIENCE).unwrap().len, 9);
        let absent = kv.put_if(key, b"", Condition::Absent, PATIENCE);
        assert_eq!(refusal(absent), KvError::Exists);
        assert_eq!(kv.take(key, PATIENCE).unwrap().value.0, b"key/0007!");
        assert!(!kv.exists(key, PATIENCE).unwrap());
        assert!(kv.erase(b"key/0008", PATIENCE).unwrap());
        kv.flush(PATIENCE).unwrap();
    });
}

#[test]
fn calls_for_several_keys_are_split_and_keep_their_order() {
    on_each(|servers| {
        let kv = &servers.kv;
        let keys = keys(40);
        // Long ones lie behind each other in the memory that all servers pull from.
        let values: Vec<_> = (0..40).map(|n| pattern([3, 300_000][n % 2], n as u64)).collect();
        let batch = keys.iter().zip(&values);
        let batch = batch.fold(kv.batch(), |batch, (key, value)| batch.put(key.as_bytes(), value));
        let outcomes = batch.put_if(b"key/0000", b"", Condition::Absent).run(PATIENCE).unwrap();
        assert_eq!(outcomes.len(), 41);
        assert!(outcomes[..40].iter().all(Result::is_ok));
        assert_eq!(outcomes[40], Err(KvError::Exists));

        let mut asked: Vec<_> = keys.iter().map(String::as_bytes).collect();
        asked.insert(20, b"missing");
        let mut found = kv.get_many(&asked, PATIENCE).unwrap();
        assert_eq!(found.remove(20), Err(KvError::NotFound));
        for (found, value) in found.into_iter().zip(&values) {
            assert!(found.unwrap().value.0 == *value);
        }
        let lengths = kv.measure_many(&asked, PATIENCE).unwrap();
        assert_eq!(lengths[20], None);
        assert_eq!((lengths[0].unwrap().len, lengths[1].unwrap().len), (3, 300_000));
        assert_eq!(kv.get_many(&[], PATIENCE).unwrap(), []);

        // Ranges are erased everywhere, in their place among the changes.
        let range = KeyRange::of("key/0010".as_bytes().."key/0020".as_bytes());
        let range = KeyRange {
            from: range.from.as_ref().map(|key| &key[..]),
            to: range.to.as_ref().map(|key| &key[..]),
        };
        let batch = kv.batch().put(b"key/0015x", b"1").erase_range(range).put(b"key/0016", b"2");
        let outcomes = batch.run(PATIENCE).unwrap();
        assert_eq!(outcomes[1], Ok(Changed::Erased { count: 11 }));
        assert_eq!(names(kv, Selection::prefix("key/001")), ["key/0016"]);
        assert_eq!(kv.erase_range(&b"key/002"[..]..&b"key/003"[..], PATIENCE).unwrap(), 10);
        assert_eq!(kv.count(&Selection::prefix("key/"), PATIENCE).unwrap(), 21);
    });
}

#[test]
fn batches_that_are_made_as_a_whole_are_for_one_server() {
    on_each(|servers| {
        let kv = &servers.kv;
        // Of a collection and its documents, which have one owner.
        let (first, near) = (&b"events\0"[..], &b"events\0\0\0\0\0\0\0\0\x01"[..]);
        let keys = keys(40);
        let far = keys.iter().find(|key| kv.owner(key.as_bytes()) != kv.owner(first));
        let far = far.unwrap().as_bytes();
        let is_refused = |batch: margo_provider_kv::KvBatch<'_>| {
            let error = batch.run(PATIENCE).unwrap_err();
            assert!(matches!(error, ClientError::SeveralOwners), "{error}");
        };
        is_refused(kv.batch().atomic().put(first, b"").put(far, b""));
        is_refused(kv.batch().only_if(far, Condition::Absent).put(first, b""));
        let all = KeyRange { from: Unbounded, to: Unbounded };
        is_refused(kv.batch().atomic().put(first, b"").erase_range(all));
        assert_eq!(kv.count(&Selection::default(), PATIENCE).unwrap(), 0, "nothing was sent");

        let batch = kv.batch().atomic().only_if(near, Condition::Absent);
        batch.put(first, b"1").put(near, b"2").run(PATIENCE).unwrap();
        let again = kv.batch().only_if(near, Condition::Absent).put(first, b"3").run(PATIENCE);
        assert_eq!(refusal(again), KvError::Exists);
        assert_eq!(kv.get(first, PATIENCE).unwrap().value.0, b"1");
    });
}

#[test]
fn lists_are_merged_page_by_page_both_ways() {
    for transport in TRANSPORTS {
        let servers = Servers::new(transport, |n| {
            let order = [MemoryOrder::Hashed, MemoryOrder::Ordered][n % 2];
            let mut config = KvConfig::new(StoreConfig::memory(order));
            config.page_bytes = 4096;
            config.shards = 1 + n as u64;
            config
        });
        let (kv, all) = (&servers.kv, keys(900));
        let batch = all.iter().fold(kv.batch(), |batch, key| batch.put(key.as_bytes(), b"value"));
        batch.run(PATIENCE).unwrap();
        assert_eq!(names(kv, Selection::default()), all);
        let mut backwards = names(kv, Selection::default().backwards());
        backwards.reverse();
        assert_eq!(backwards, all);
        assert_eq!(names(kv, Selection::range("key/0100".."key/0103")), all[100..103]);
        let entries = kv.entries(Selection::default(), PATIENCE);
        assert!(entries.map(Result::unwrap).all(|entry| entry.value.unwrap().0 == b"value"));
        let views = kv.stat(PATIENCE).unwrap().iter().map(|stat| stat.views).sum::<u64>();
        assert_eq!(views, 0, "read to the end");
        servers.end();
    }
}

#[test]
fn a_collection_is_at_the_owner_of_its_name() {
    on_each(|servers| {
        let kv = &servers.kv;
        for name in ["a", "events", "results", "logs"] {
            let there = kv.collection(name);
            assert_eq!(there.append(&[b"1", b"2"], PATIENCE).unwrap(), 0..2);
            let owner = KvClient::new(&servers.client, kv.owner(name.as_bytes()));
            assert_eq!(owner.collection(name).count(PATIENCE).unwrap(), 2);
            // A dump that is loaded has them where they belong.
            for key in names(kv, Selection::prefix(format!("{name}\0"))) {
                assert_eq!(kv.owner(key.as_bytes()), kv.owner(name.as_bytes()));
            }
            let documents: Result<Vec<_>, _> = there.documents(0, PATIENCE).collect();
            assert_eq!(documents.unwrap(), [(0, b"1".to_vec()), (1, b"2".to_vec())]);
        }
    });
}

#[test]
fn of_a_server_that_is_gone_only_its_keys_fail() {
    on_each(|servers| {
        let kv = &servers.kv;
        let keys = keys(60);
        let keys: Vec<_> = keys.iter().map(String::as_bytes).collect();
        let batch = keys.iter().fold(kv.batch(), |batch, key| batch.put(key, b"value"));
        batch.run(PATIENCE).unwrap();
        let shards = u64::from(kv.stat(PATIENCE).unwrap()[0].shards);
        let gone = &servers.services[0].0;
        let address = gone.self_addr().uri().to_owned();
        let is_gone = |key: &[u8]| kv.owner(key).addr().uri() == address;
        gone.finalize_and_wait().unwrap();
        let limit = Duration::from_secs(5);
        for key in &keys {
            match kv.get(key, limit) {
                Ok(_) => assert!(!is_gone(key)),
                Err(ClientError::Forward(error)) => {
                    assert!(is_gone(key) && error.to_string().contains(&address), "{error}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        let is_told = |error: &KvError, key: &[u8]| match error {
            KvError::Unanswered(why) => is_gone(key) && why.contains(&address),
            _ => false,
        };
        let found = kv.get_many(&keys, limit).unwrap();
        let batch = keys.iter().fold(kv.batch(), |batch, key| batch.put(key, b"new"));
        let outcomes = batch.run(limit).unwrap();
        for ((found, outcome), key) in found.into_iter().zip(outcomes).zip(&keys) {
            assert_eq!(found.is_ok(), !is_gone(key));
            assert!(found.err().is_none_or(|error| is_told(&error, key)));
            assert_eq!(outcome.is_ok(), !is_gone(key));
            assert!(outcome.err().is_none_or(|error| is_told(&error, key)));
        }
        // The rest of the list follows the error.
        let (entries, errors): (Vec<_>, Vec<_>) =
            kv.keys(Selection::default(), limit).partition(Result::is_ok);
        assert_eq!(entries.len(), keys.iter().filter(|key| !is_gone(key)).count());
        assert_eq!(errors.len() as u64, shards, "of each list");
        assert!(kv.count(&Selection::default(), limit).is_err());
        let targets = targets(&servers.services, &servers.client);
        let error = KvClient::cluster(&servers.client, targets, limit).unwrap_err();
        assert!(matches!(error, ClientError::Forward(ForwardError::Network { .. })), "{error:?}");
    });
}

#[test]
fn a_database_keeps_its_id_and_is_a_member_once() {
    let dir = tempfile::tempdir().unwrap();
    let disk = |n: usize| {
        let kind = [StoreKind::Redb, StoreKind::Fjall][n % 2];
        KvConfig::new(StoreConfig::new(kind, dir.path().join(n.to_string())))
    };
    let (transport, mut ids) = (TRANSPORTS[0], Vec::new());
    for _ in 0..2 {
        let servers = Servers::new(transport, disk);
        let stat = servers.kv.stat(PATIENCE).unwrap();
        ids.push(stat.iter().map(|stat| stat.id).collect::<Vec<_>>());
        let version = servers.alone(0).put(b"", b"", PATIENCE).unwrap();
        assert_eq!(version, ids.len() as u64, "of one database");
        servers.end();
    }
    assert_eq!(ids[0], ids[1]);
    assert!(ids[0].is_sorted_by(|a, b| a < b), "{ids:?}");

    let servers = Servers::new(transport, |_| in_memory());
    let mut targets = targets(&servers.services, &servers.client);
    targets[2] = targets[0].clone();
    let error = KvClient::cluster(&servers.client, targets, PATIENCE).unwrap_err();
    assert!(matches!(error, ClientError::SameDatabase { .. }), "{error}");
    servers.end();
    // In memory the settings may say which one it is.
    let fixed = |n| {
        let mut config = in_memory();
        config.store.id = Some(10 + n as u64);
        config
    };
    let servers = Servers::new(transport, fixed);
    let stat = servers.kv.stat(PATIENCE).unwrap();
    assert_eq!(stat.iter().map(|stat| stat.id).collect::<Vec<_>>(), [10, 11, 12]);
    servers.end();
}

#[test]
fn shards_on_the_disk_stay_as_many_and_are_restored_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let keys = keys(50);
    let of = |shards: u64, kind| {
        let mut config = KvConfig::new(StoreConfig::new(kind, &path));
        config.shards = shards;
        config
    };
    let snapshot = dir.path().join("snapshot");
    for round in 0..2 {
        let pair = Pair::new(TRANSPORTS[0], &of(3, StoreKind::Redb));
        if round == 0 {
            let batch = keys
                .iter()
                .fold(pair.kv.batch(), |batch, key| batch.put(key.as_bytes(), key.as_bytes()));
            assert!(batch.run(PATIENCE).unwrap().iter().all(Result::is_ok));
            pair.provider.snapshot(&snapshot).unwrap();
        }
        assert_eq!(names(&pair.kv, Selection::default()), keys);
        assert_eq!(pair.kv.stat(PATIENCE).unwrap()[0].shards, 3);
        pair.end();
    }
    assert!((0..3).all(|shard| dir.path().join(format!("db.{shard}")).exists()));
    let service = Instance::builder(TRANSPORTS[0]).start().unwrap();
    let start = |config: &KvConfig| {
        let provider = service.provider(ID, &service.layout().rpc_pool());
        KvProvider::start(provider, config)
    };
    for shards in [1, 2, 4] {
        let error = start(&of(shards, StoreKind::Redb)).unwrap_err().to_string();
        assert!(error.contains("made with another number of `shards`"), "{error}");
    }
    service.finalize_and_wait().unwrap();

    let mut config = in_memory();
    config.shards = 2;
    let pair = Pair::new(TRANSPORTS[0], &config);
    let error = pair.provider.restore(&snapshot).unwrap_err().to_string();
    assert_eq!(error, "the snapshot is of 3 shards, the provider has 2");
    pair.end();
    config.shards = 3;
    let pair = Pair::new(TRANSPORTS[0], &config);
    pair.provider.restore(&snapshot).unwrap();
    assert_eq!(names(&pair.kv, Selection::default()), keys);
    pair.end();
}

#[test]
fn callers_that_know_nothing_of_shards_get_the_keys_or_a_refusal() {
    let mut config = in_memory();
    config.shards = 3;
    let pair = Pair::new(TRANSPORTS[0], &config);
    let plain = KvClient::new(&pair.client, pair.kv.members().swap_remove(0));
    let keys = keys(40);
    let batch = keys.iter().fold(plain.batch(), |batch, key| batch.put(key.as_bytes(), b"value"));
    let batch = batch.erase_range(KeyRange { from: Unbounded, to: Unbounded });
    let batch = keys.iter().fold(batch, |batch, key| batch.put(key.as_bytes(), b"again"));
    let outcomes = batch.run(PATIENCE).unwrap();
    assert_eq!(outcomes[40], Ok(Changed::Erased { count: 40 }));
    let asked: Vec<_> = keys.iter().map(String::as_bytes).collect();
    for kv in [&plain, &pair.kv] {
        let found = kv.get_many(&asked, PATIENCE).unwrap();
        assert!(found.into_iter().all(|found| found.unwrap().value.0 == b"again"));
        assert!(asked.iter().all(|key| kv.exists(key, PATIENCE).unwrap()));
        assert_eq!(kv.count(&Selection::default(), PATIENCE).unwrap(), 40);
    }
    assert_eq!(names(&pair.kv, Selection::default()), keys);
    let list = plain.keys(Selection::default(), PATIENCE).next().unwrap();
    assert!(matches!(refusal(list), KvError::Invalid(_)));
    let whole = keys.iter().fold(plain.batch(), |batch, key| batch.erase(key.as_bytes()));
    assert!(matches!(refusal(whole.atomic().run(PATIENCE)), KvError::Invalid(_)));
    pair.end();
}
