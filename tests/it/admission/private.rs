//! Private connections (`margo.security.tcp`) below instances: shards, long arguments, bulk data,
//! and the names that rules know.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::admission::support::until;
use crate::common::PATIENCE;
use margo::config::{Config, Shards};
use margo::{Access, Bulk, Handle, Instance, InstanceBuilder, Principal, ProviderHandle, Rpc};

const SUM: Rpc<Bulk, u64> = Rpc::new("sum");
const LEN: Rpc<Vec<u8>, u64> = Rpc::new("len");

fn secret() -> tempfile::NamedTempFile {
    // Its mode is 600.
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"a secret of tests, and long enough").unwrap();
    file
}

fn start(secret: &std::path::Path, listen: bool, shards: u32, more: &str) -> Instance {
    let secret = secret.display();
    let document = format!(
        r#"{{ "margo": {{ "address": "na+tcp://127.0.0.1:0", "listen": {listen}, "security": {{
            "tcp": {{ "mode": "cluster_secret", "secret": "{secret}" }} {more} }} }} }}"#
    );
    let mut config = Config::from_json(&document).unwrap();
    if shards > 1 {
        config.margo.shards = Some(Shards::Count(shards));
    }
    InstanceBuilder::from_config(config).start().unwrap()
}

#[test]
fn shards_carry_long_arguments_and_bulk_data_in_private() {
    let secret = secret();
    let service = start(secret.path(), true, 4, "");
    service
        .register(LEN, |request| {
            assert!(matches!(request.principal(), Principal::Member(_)), "{}", request.principal());
            let len = request.args().len() as u64;
            drop(request.respond(&len));
        })
        .unwrap();
    let sum = |request: Handle<Bulk, u64>| {
        let len = request.args().len() as usize;
        let mut buffer = request.instance().memory().bulk_buffer(len).unwrap();
        request.pull(request.args(), 0, &mut buffer, 0..len).unwrap();
        let sum = buffer.iter().map(|byte| u64::from(*byte)).sum();
        drop(request.respond(&sum));
    };
    service.register(SUM, sum).unwrap();
    let client = start(secret.path(), false, 2, "");
    let to = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    for len in [0, 100, 5_000, 3 << 20] {
        let answer = client.forward_timed(LEN, &to, &vec![1; len], PATIENCE).unwrap();
        assert_eq!(answer, len as u64);
        let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let expected: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
        let exposed = client.expose(data, Access::ReadOnly).unwrap();
        let summed = client.forward_timed(SUM, &to, exposed.bulk(), PATIENCE).unwrap();
        assert_eq!(summed, expected);
    }
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn rules_know_members() {
    let secret = secret();
    for (who, may) in [("member", true), ("host:127.0.0.0/8", true), ("name:*", false)] {
        let more = format!(r#", "allow": [{{ "who": "{who}" }}]"#);
        let service = start(secret.path(), true, 1, &more);
        service.register(LEN, |request| drop(request.respond(&0))).unwrap();
        let client = start(secret.path(), false, 1, "");
        let to = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let called = client.forward_timed(LEN, &to, &vec![], PATIENCE);
        assert_eq!(called.is_ok(), may, "{who}: {called:?}");
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

/// Settings of connections and of a record are no rules about calls.
#[test]
fn documents_without_rules_let_everybody_call_who_is_let_in() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit").display().to_string();
    for security in [
        r#"{ "tcp": { "mode": "none", "beyond_loopback": true } }"#.to_owned(),
        format!(r#"{{ "audit": {{ "file": "{audit}" }} }}"#),
    ] {
        let document = format!(
            r#"{{ "margo": {{ "address": "na+tcp://127.0.0.1:0", "security": {security} }} }}"#
        );
        let service = margo::init(&document).unwrap();
        service.register(LEN, |request| drop(request.respond(&7))).unwrap();
        let client = Instance::builder("na+tcp://").listen(false).start().unwrap();
        let to = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        assert_eq!(client.forward_timed(LEN, &to, &vec![], PATIENCE).unwrap(), 7, "{security}");
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn a_client_is_told_why_it_is_not_let_in() {
    let secret = secret();
    let service = start(secret.path(), true, 1, "");
    let client = Instance::builder("na+tcp://").listen(false).start().unwrap();
    let to = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    let error = client.forward_timed(LEN, &to, &vec![], PATIENCE).unwrap_err();
    assert!(error.to_string().contains("it speaks TLS, and this endpoint does not"), "{error}");
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
    let error = Instance::builder("na+tcp://")
        .cluster_secret("/nowhere/secret")
        .start()
        .unwrap_err()
        .to_string();
    assert!(error.contains("margo.security.tcp: cannot read /nowhere/secret"), "{error}");
}

/// Members that were there before call on, and others come, while all change to another secret.
#[test]
fn a_secret_is_changed_under_load_and_no_call_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) =
        ("an old secret of tests, and long enough", "a new secret of tests, which is as long");
    let change = |place: &str, secrets: &[&str]| {
        let mut file = tempfile::NamedTempFile::new_in(folder.path()).unwrap();
        file.write_all(secrets.join("\n").as_bytes()).unwrap();
        file.persist(folder.path().join(place)).unwrap();
    };
    let places = ["service", "clients"];
    places.iter().for_each(|place| change(place, &[old]));
    let service = start(&folder.path().join("service"), true, 2, "");
    service.register(LEN, |request| drop(request.respond(&(request.args().len() as u64)))).unwrap();
    let address = service.self_addr().uri().to_owned();
    let (is_over, called) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let come = Arc::new(Mutex::new(0));
    let path = folder.path().join("clients");
    let client = move || start(&path, false, 1, "");
    let load = |is_new: bool| {
        let (is_over, called, come) = (is_over.clone(), called.clone(), come.clone());
        let (address, client) = (address.clone(), client.clone());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let client = client();
                let to = ProviderHandle::from(client.lookup(&address).unwrap());
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(client.forward_timed(LEN, &to, &vec![1; 9], PATIENCE).unwrap(), 9);
                    called.fetch_add(1, Ordering::Relaxed);
                    if is_new {
                        *come.lock().unwrap() += 1;
                        break;
                    }
                }
                client.finalize_and_wait().unwrap();
            }
        })
    };
    let threads = [false, false, true].map(load);
    let steps: [&[&str]; 3] = [&[old, new], &[new, old], &[new]];
    for (step, place) in steps.iter().flat_map(|step| places.map(|place| (step, place))) {
        let (calls, clients) = (called.load(Ordering::Relaxed), *come.lock().unwrap());
        until("calls go on", || called.load(Ordering::Relaxed) > calls + 100);
        until("clients come", || *come.lock().unwrap() > clients + 2);
        change(place, step);
    }
    let clients = *come.lock().unwrap();
    until("clients come", || *come.lock().unwrap() > clients + 2);
    is_over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    service.finalize_and_wait().unwrap();
}
