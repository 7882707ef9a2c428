//! Servers that are killed while they hand keys over: whoever asks again ends what was begun, and
//! nothing that was acknowledged is lost.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use margo::{Instance, ProviderHandle};
use margo_provider_kv::{
    ClientError, KvClient, KvConfig, KvError, KvProvider, MemberChange, Selection, StoreConfig,
    StoreKind, SyncPolicy,
};

use crate::common::{ID, PATIENCE};

/// Tells the child its address and the place of its database.
const SERVE: &str = "MARGO_TEST_KV_SERVE";

const KEYS: usize = 400;

/// Calls end soon where a server is dead.
const LIMIT: Duration = Duration::from_secs(2);

/// A server of its own process.
struct Server {
    address: String,
    place: std::path::PathBuf,
    child: Child,
}

impl Server {
    fn start(address: String, place: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed_members::serve", "--nocapture", "--test-threads=1"])
            .env(SERVE, format!("{address} {}", place.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let is_ready = |line: std::io::Result<String>| line.unwrap().contains("serving");
        assert!(lines.into_iter().any(is_ready));
        Self { address, place: place.to_owned(), child }
    }

    fn new(place: &Path) -> Self {
        // It keeps its port, wherever that is; so do its clients.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self::start(format!("na+tcp://127.0.0.1:{port}"), place)
    }

    fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        *self = Self::start(self.address.clone(), &self.place);
    }

    fn target(&self, own: &Instance) -> ProviderHandle {
        ProviderHandle::new(own.lookup(&self.address).unwrap(), ID)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the child; a test of its own that does nothing.
#[test]
fn serve() {
    let Ok(given) = std::env::var(SERVE) else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let (address, place) = given.split_once(' ').unwrap();
    let kind = if place.ends_with("fjall") { StoreKind::Fjall } else { StoreKind::Redb };
    let mut config = KvConfig::new(StoreConfig::new(kind, place));
    // What changes hands is on the disk all the same.
    config.store.sync = SyncPolicy::IntervalMsec(1);
    config.shards = 2;
    let service = Instance::builder(address).start().unwrap();
    let provider = service.provider(ID, &service.layout().rpc_pool());
    let _running = KvProvider::start(provider, &config).unwrap();
    println!("\nserving");
    loop {
        std::thread::park();
    }
}

/// Ends the writers, also where a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The numbers of a writer's own keys: the one that a key has, and one that it may have.
type Told = BTreeMap<String, (u64, Option<u64>)>;

fn write(own: &Instance, addresses: &[String], writer: usize, is_over: &AtomicBool) -> Told {
    let targets =
        || addresses.iter().map(|address| ProviderHandle::new(own.lookup(address).unwrap(), ID));
    let kv = KvClient::cluster(own, targets(), PATIENCE).unwrap();
    let kv = kv.with_durability(margo_provider_kv::Durability::Synced);
    let (mut told, mut random) = (Told::new(), fastrand::Rng::with_seed(writer as u64));
    for number in 1.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{writer}/{}", random.usize(..KEYS));
        let (last, open) = told.entry(key.clone()).or_default();
        match kv.put(key.as_bytes(), number.to_string().as_bytes(), LIMIT) {
            Ok(_) => (*last, *open) = (number, None),
            Err(ClientError::Forward(error)) if !error.never_ran() => *open = Some(number),
            Err(ClientError::Forward(_) | ClientError::Kv(KvError::Moved { .. })) => {}
            Err(ClientError::Kv(KvError::Deadline | KvError::Failed(_))) => {}
            Err(error) => panic!("{error}"),
        }
        let found = kv.get(key.as_bytes(), LIMIT);
        let (last, open) = told[&key];
        let is_right = match &found {
            Ok(found) => {
                let number = std::str::from_utf8(&found.value).unwrap().parse().unwrap();
                number == last || Some(number) == open
            }
            Err(ClientError::Kv(KvError::NotFound)) => last == 0,
            Err(_) => true,
        };
        assert!(is_right, "{key}: {last} {open:?}, and {found:?}");
        if let Ok(found) = found {
            let number = std::str::from_utf8(&found.value).unwrap().parse().unwrap();
            // Seen is as good as told, and what was not seen may still come.
            told.insert(key, (number, open.filter(|open| *open != number)));
        }
    }
    told
}

#[test]
fn servers_that_are_killed_while_keys_change_hands_lose_nothing() {
    if std::env::var_os(SERVE).is_some() {
        return;
    }
    let rounds = if std::env::var_os("MARGO_CI_LONG").is_some() { 40 } else { 2 };
    for seed in 0..rounds {
        let dir = tempfile::tempdir().unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let kinds = ["redb", "fjall", "redb"];
        let place = |n: usize| dir.path().join(format!("{n}.{}", kinds[n]));
        let servers: Vec<_> = (0..3).map(|n| Mutex::new(Server::new(&place(n)))).collect();
        let own = Instance::builder("na+tcp://").listen(false).start().unwrap();
        let addresses: Vec<_> =
            servers.iter().map(|server| server.lock().unwrap().address.clone()).collect();
        let target = |n: usize| servers[n].lock().unwrap().target(&own);
        let admin = KvClient::cluster(&own, [target(0)], PATIENCE).unwrap();
        let (is_over, is_calm) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let end = Ends(&is_over);
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let (own, addresses, is_over) = (&own, &addresses[..1], &is_over);
                    scope.spawn(move || write(own, addresses, writer, is_over))
                })
                .collect();
            let administrator = scope.spawn(|| change_often(&admin, &target, &is_calm));
            // This thread, since they end with the one that has started them.
            for _ in 0..6 {
                std::thread::sleep(Duration::from_millis(random.u64(1..400)));
                servers[random.usize(..3)].lock().unwrap().kill_and_start();
            }
            is_calm.store(true, Ordering::Relaxed);
            let errors = administrator.join().unwrap();
            drop(end);
            println!("seed {seed}: {} attempts failed", errors.len());
            let mut told = Told::new();
            writers.into_iter().for_each(|writer| told.append(&mut writer.join().unwrap()));
            let kv = KvClient::cluster(&own, [target(2)], PATIENCE).unwrap();
            for (key, (last, open)) in &told {
                let number = match kv.get(key.as_bytes(), PATIENCE) {
                    Ok(found) => std::str::from_utf8(&found.value).unwrap().parse().unwrap(),
                    Err(ClientError::Kv(KvError::NotFound)) => 0,
                    Err(error) => panic!("{error}"),
                };
                assert!(
                    number == *last || Some(number) == *open,
                    "{key}: {last} {open:?} {number}"
                );
            }
            let listed = kv.keys(Selection::default(), PATIENCE).map(Result::unwrap).count();
            let stat = kv.stat(PATIENCE).unwrap();
            assert_eq!(stat.len(), 3);
            assert_eq!(listed as u64, kv.count(&Selection::default(), PATIENCE).unwrap());
        });
        own.finalize_and_wait().unwrap();
    }
}

/// Changes the members again and again. Returns the errors in between.
fn change_often(
    admin: &KvClient,
    target: &dyn Fn(usize) -> ProviderHandle,
    is_calm: &AtomicBool,
) -> Vec<String> {
    let mut errors = Vec::new();
    let (add, remove) = (MemberChange::new().with(target(2)), MemberChange::new());
    for step in [
        MemberChange::new().with(target(1)),
        add.clone(),
        MemberChange::new().without(target(0)),
        MemberChange::new().with(target(0)).without(target(1)),
        MemberChange::new().with(target(1)),
    ] {
        change(admin, &step, &mut errors);
    }
    // One leaves, and comes back.
    let remove = remove.without(target(2));
    while !is_calm.load(Ordering::Relaxed) {
        change(admin, &remove, &mut errors);
        change(admin, &add, &mut errors);
    }
    errors
}

/// Asks for a change until it is made.
fn change(admin: &KvClient, step: &MemberChange, errors: &mut Vec<String>) {
    let begun = std::time::Instant::now();
    while let Err(error) = admin.change_members(step.clone(), LIMIT, |_| {}) {
        let error = error.to_string();
        assert!(begun.elapsed() < PATIENCE, "{error}, after {errors:#?}");
        if errors.last() != Some(&error) {
            errors.push(error);
        }
        std::thread::yield_now();
    }
}
