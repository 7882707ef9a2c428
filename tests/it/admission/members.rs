//! Members of a cluster over transports that do not tell who a peer is (`margo.security.fabrics`):
//! in a simulated network, and over the fabrics that are asked for.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{PATIENCE, on_fabrics, once_free};
use margo::config::Config;
use margo::{ForwardError, Instance, Principal, ProviderHandle, Rpc};
use na::sim::{LinkOptions, Network};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

const WHO: Rpc<(), String> = Rpc::new("who");
const LEN: Rpc<Vec<u8>, u64> = Rpc::new("len");
const OPEN: Rpc<(), ()> = Rpc::new("open");
const NUMBER: Rpc<u64, u64> = Rpc::new("number");

fn secret(text: &str) -> NamedTempFile {
    // Its mode is 600.
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "{text}, which is long enough to be one").unwrap();
    file
}

/// Runs `body` in a simulated network, and over fabrics.
fn over_each(body: impl Fn(&str)) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    body(&format!("na+sim://members{}/", NEXT.fetch_add(1, Ordering::Relaxed)));
    on_fabrics(&["ofi+tcp", "ucx+tcp"], body);
}

fn address(network: &str, node: &str) -> String {
    match network.starts_with("na+sim") {
        true => format!("{network}{node}"),
        false => network.to_owned(),
    }
}

fn start(network: &str, node: &str, security: Value) -> Instance {
    let address = address(network, node);
    let margo = json!({ "address": address, "security": security });
    let config = Config::from_json(&json!({ "margo": margo }).to_string()).unwrap();
    let service = Instance::from_config(&config).unwrap();
    service
        .register(WHO, |request| {
            let _ = request.respond(&request.principal().to_string());
        })
        .unwrap();
    service.serve(LEN).function(|bytes| bytes.len() as u64).unwrap();
    service.serve(OPEN).function(|()| ()).unwrap();
    service
}

fn fabrics(secret: &Path) -> Value {
    json!({ "mode": "cluster_secret", "secret": secret })
}

fn strangers(secret: &Path) -> Value {
    json!({ "mode": "cluster_secret", "secret": secret, "strangers": true })
}

fn client(network: &str, node: &str, fabrics: Option<Value>) -> Instance {
    let open = json!({ "allow": [{ "who": "anyone" }] });
    start(network, node, fabrics.map_or(open, |fabrics| json!({ "fabrics": fabrics })))
}

fn target(client: &Instance, service: &Instance) -> ProviderHandle {
    ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap())
}

fn who(client: &Instance, service: &Instance) -> Result<String, ForwardError> {
    client.forward_timed(WHO, &target(client, service), &(), PATIENCE)
}

fn open(client: &Instance, service: &Instance) -> Result<(), ForwardError> {
    client.forward_timed(OPEN, &target(client, service), &(), PATIENCE)
}

/// A member as it is shown over that network.
fn member(network: &str) -> String {
    match network.starts_with("na+sim") {
        true => "member".to_owned(),
        false => "member host 127.0.0.1".to_owned(),
    }
}

fn end(instances: impl IntoIterator<Item = Instance>) {
    instances.into_iter().for_each(|instance| instance.finalize_and_wait().unwrap());
}

fn is_not_believed(result: Result<String, ForwardError>, said: &str) {
    let error = result.unwrap_err();
    assert!(error.never_ran() && error.to_string().contains(said), "{error}");
    assert!(matches!(error, ForwardError::Network { .. }), "{error}");
}

fn is_not_allowed<T: std::fmt::Debug>(result: Result<T, ForwardError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, ForwardError::Permission { .. }) && error.never_ran(), "{error}");
}

#[test]
fn who_knows_the_secret_is_a_member_and_nobody_else_is_served() {
    over_each(|network| {
        let [ours, theirs] = ["a secret of ours", "a secret of others"].map(secret);
        let folder = tempfile::tempdir().unwrap();
        let audit = folder.path().join("audit");
        let security = json!({
            "fabrics": fabrics(ours.path()), "audit": { "file": audit },
            // Of those who have proven something.
            "allow": [{ "who": "anyone" }],
        });
        let service = start(network, "service", security);
        let own = client(network, "own", Some(fabrics(ours.path())));
        for _ in 0..3 {
            assert_eq!(who(&own, &service).unwrap(), member(network));
        }
        // Beyond a message.
        let to = target(&own, &service);
        assert_eq!(own.forward_timed(LEN, &to, &vec![7; 1 << 20], PATIENCE).unwrap(), 1 << 20);
        // As a caller it believes only those who prove something, too: the client is one.
        assert_eq!(who(&service, &own).unwrap(), member(network));

        let other = client(network, "other", Some(fabrics(theirs.path())));
        is_not_believed(who(&other, &service), "does not believe that we know the secret");
        let careless = client(network, "careless", Some(strangers(theirs.path())));
        is_not_believed(who(&careless, &service), "does not believe that we know the secret");
        let stranger = client(network, "stranger", None);
        is_not_allowed(who(&stranger, &service));
        is_not_believed(who(&service, &stranger), "has not proven that it knows the secret");
        let metrics = service.metrics();
        assert_eq!(metrics.network.proofs_refused, 2);
        let peers = metrics.peers.list.iter();
        let proven = peers.filter(|peer| peer.principal.as_deref() == Some(&member(network)));
        let proven: Vec<_> = proven.map(|peer| &*peer.address).collect();
        assert_eq!(proven, [own.self_addr().uri()], "{:?}", metrics.peers.list);
        end([own, other, careless, stranger, service]);

        let text = std::fs::read_to_string(&audit).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
        assert_eq!((of("session_refused"), of("refused")), (2, 1), "{text}");
        let begun = lines.iter().find(|line| line["event"] == "session_begun").unwrap();
        assert_eq!(begun["principal"], member(network));
        let refused = lines.iter().find(|line| line["event"] == "refused").unwrap();
        assert!(refused["why"].as_str().unwrap().contains("\"fabrics\" denies it"), "{refused}");
    });
}

/// A node without the secret, and one with another one, ask as often as they like, over links that
/// lose and repeat packets: members are served meanwhile, and no handler sees anybody else.
#[test]
fn a_hostile_node_of_a_simulated_network_is_no_member() {
    for seed in 0..8 {
        let name = format!("no-members-{seed}");
        let network = Network::builder(name.clone()).seed(seed);
        let _network = network.link(LinkOptions::unreliable(0.1)).build().unwrap();
        let network = format!("na+sim://{name}/");
        let [ours, theirs] = ["a secret of ours", "a secret of others"].map(secret);
        let service = start(&network, "service", json!({ "fabrics": fabrics(ours.path()) }));
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let sees = seen.clone();
        let answer = move |request: margo::Handle<u64, u64>| {
            sees.lock().unwrap().insert(request.principal());
            let _ = request.respond(request.args());
        };
        service.register(NUMBER, answer).unwrap();
        let friend = client(&network, "friend", Some(fabrics(ours.path())));
        let mallory = client(&network, "mallory", Some(strangers(theirs.path())));
        let nobody = client(&network, "nobody", None);
        let nodes = [friend, mallory, nobody];
        let calls = (0..20_u64).flat_map(|n| nodes.iter().enumerate().map(move |node| (n, node)));
        let begin = |(n, (at, node)): (u64, (usize, &Instance))| {
            (n, at, node.rpc(NUMBER, &target(node, &service), &n).start().unwrap())
        };
        for (n, at, call) in calls.map(begin).collect::<Vec<_>>() {
            match (at, call.wait_timeout(PATIENCE).unwrap()) {
                (0, Ok(answer)) => assert_eq!(answer, n, "seed {seed}"),
                (1, Err(ForwardError::Network { .. })) => {}
                (2, Err(ForwardError::Permission { .. })) => {}
                (at, result) => panic!("seed {seed}, node {at}: {result:?}"),
            }
        }
        let member = Principal::member_at([0, 0, 0, 0].into());
        assert_eq!(*seen.lock().unwrap(), [member].into(), "seed {seed}");
        let metrics = service.metrics();
        assert_eq!(metrics.network.proofs_refused, 20, "seed {seed}: one for each introduction");
        let known = |node: &str| {
            let address = address(&network, node);
            let peer = metrics.peers.list.iter().find(|peer| peer.address == address);
            peer.and_then(|peer| peer.principal.clone())
        };
        let of_nodes = ["friend", "mallory", "nobody"].map(known);
        assert_eq!(of_nodes, [Some("member".to_owned()), None, None], "seed {seed}");
        end(nodes.into_iter().chain([service]));
    }
}

#[test]
fn strangers_may_do_what_anyone_may_where_they_are_served() {
    over_each(|network| {
        let ours = secret("a secret of ours");
        let allow = json!([{ "who": "member" }, { "who": "anyone", "rpc": "open" }]);
        let security = json!({ "fabrics": strangers(ours.path()), "allow": allow });
        let service = start(network, "service", security);
        let own = client(network, "own", Some(strangers(ours.path())));
        assert_eq!(who(&own, &service).unwrap(), member(network));
        let stranger = client(network, "stranger", None);
        open(&stranger, &service).unwrap();
        is_not_allowed(who(&stranger, &service));
        // It calls them as well.
        open(&own, &stranger).unwrap();
        assert_ne!(who(&own, &stranger).unwrap(), member(network));
        end([own, stranger, service]);
    });
}

#[test]
fn limits_and_rules_know_members() {
    over_each(|network| {
        let ours = secret("a secret of ours");
        let security = json!({
            "fabrics": fabrics(ours.path()),
            "deny": [{ "who": "member", "rpc": "open" }],
            "limits": [{ "who": "member", "calls_per_sec": 1, "calls_burst": 2 }],
        });
        let service = start(network, "service", security);
        let own = client(network, "own", Some(fabrics(ours.path())));
        is_not_allowed(open(&own, &service));
        let results: Vec<_> = (0..20).map(|_| who(&own, &service)).collect();
        assert!(results[0].is_ok() && results[1].is_ok());
        let is_busy = |result: &Result<_, _>| matches!(result, Err(ForwardError::Busy { .. }));
        assert!(results.iter().any(is_busy), "{results:?}");
        end([own, service]);
    });
}

#[test]
fn a_service_that_starts_again_is_called_again() {
    on_fabrics(&["ofi+tcp", "ucx+tcp"], |network| {
        let ours = secret("a secret of ours");
        let own = client(network, "own", Some(fabrics(ours.path())));
        let first = start(network, "", json!({ "fabrics": fabrics(ours.path()) }));
        let place = first.self_addr().uri().to_owned();
        assert_eq!(who(&own, &first).unwrap(), member(network));
        end([first]);
        let again = once_free(|| {
            Instance::builder(place.clone()).cluster_secret(ours.path().to_str().unwrap()).start()
        });
        let again = again.unwrap();
        again.serve(OPEN).function(|()| ()).unwrap();
        // One call may find out that the other process is gone, and one that the session is.
        let results: Vec<_> = (0..3).map(|_| open(&own, &again)).collect();
        assert!(results[2].is_ok(), "{results:?}");
        let may_be_repeated = |result: &Result<(), ForwardError>| match result {
            Ok(()) => true,
            Err(error) => matches!(error, ForwardError::Network { .. }),
        };
        assert!(results.iter().all(may_be_repeated), "{results:?}");
        end([own, again]);
    });
}

#[test]
fn a_secret_that_cannot_be_used_is_told_before_anything_is_served() {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "short").unwrap();
    let missing = file.path().with_extension("missing");
    for (path, said) in [(file.path(), "a secret has 5 characters"), (&missing, "cannot read")] {
        let security = json!({ "fabrics": fabrics(path) });
        let margo = json!({ "address": "na+sim://members-none/a", "security": security });
        let config = Config::from_json(&json!({ "margo": margo }).to_string()).unwrap();
        let error = Instance::from_config(&config).unwrap_err().to_string();
        assert!(error.contains("margo.security.fabrics: ") && error.contains(said), "{error}");
    }
}

#[test]
fn a_member_is_one_without_a_host_where_none_is_known() {
    let nowhere = Principal::member_at([0, 0, 0, 0].into());
    assert_eq!(nowhere.to_string(), "member");
}
