//! Sessions in the audit file (`margo.security.audit`): who has come, gone, and was not let in.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, TRANSPORTS};
use margo::config::Config;
use margo::{Instance, ProviderHandle, Rpc};
use serde_json::{Value, json};

const PING: Rpc<(), ()> = Rpc::new("ping");

fn start(address: &str, more: Value, audit: Option<&Path>, tcp: Option<&Path>) -> Instance {
    let mut security = json!({ "allow": [{ "who": "anyone" }] });
    if let Some(path) = audit {
        security["audit"] = json!({ "file": path });
    }
    if let Some(secret) = tcp {
        security["tcp"] = json!({ "mode": "cluster_secret", "secret": secret });
    }
    let mut margo = json!({ "address": address, "security": security });
    margo.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let config = Config::from_json(&json!({ "margo": margo }).to_string()).unwrap();
    Instance::from_config(&config).unwrap()
}

fn serving(address: &str, more: Value, audit: &Path, tcp: Option<&Path>) -> Instance {
    let service = start(address, more, Some(audit), tcp);
    service.serve(PING).function(|()| ()).unwrap();
    service
}

fn ping(client: &Instance, service: &Instance) -> Result<(), margo::ForwardError> {
    let to = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    client.forward_timed(PING, &to, &(), PATIENCE)
}

/// The records of sessions, with this event.
fn records(path: &Path, event: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let all = whole.map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|line| line["event"] == event).collect()
}

/// The first of them, which is on its way.
fn record(path: &Path, event: &str) -> Value {
    let started = Instant::now();
    loop {
        if let Some(first) = records(path, event).into_iter().next() {
            return first;
        }
        assert!(started.elapsed() < PATIENCE, "no {event}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn principal(address: &str) -> String {
    match address.starts_with("na+sm") {
        true => format!("user {}", rustix::process::geteuid().as_raw()),
        false => "host 127.0.0.1".to_owned(),
    }
}

fn secret(text: &str) -> tempfile::NamedTempFile {
    // Its mode is 600.
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "{text}, which is long enough to be one").unwrap();
    file
}

#[test]
fn sessions_begin_and_end_in_the_audit_file_of_both_sides() {
    for address in TRANSPORTS {
        let folder = tempfile::tempdir().unwrap();
        let [there, here] = ["there", "here"].map(|name| folder.path().join(name));
        let service = serving(address, json!({}), &there, None);
        let client = start(address, json!({ "listen": false }), Some(&here), None);
        ping(&client, &service).unwrap();
        let known_as = service.self_addr().uri().to_owned();
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
        for (path, dialed) in [(&there, false), (&here, true)] {
            let (begun, ended) = (records(path, "session_begun"), records(path, "session_ended"));
            let of = |records: &[Value]| {
                let mut of: Vec<_> = records.iter().map(|one| one["address"].to_string()).collect();
                of.sort();
                of
            };
            assert_eq!(of(&begun), of(&ended), "each that begins ends");
            for one in &begun {
                assert_eq!(one["principal"], principal(address), "{one}");
                assert_eq!((&one["dialed"], one["address"] == known_as), (&dialed.into(), dialed));
            }
            assert!(!begun.is_empty() && !ended[0]["why"].as_str().unwrap().is_empty());
            assert!(records(path, "session_refused").is_empty());
        }
    }
}

#[test]
fn a_connection_that_is_one_too_many_is_in_the_audit_file() {
    for address in TRANSPORTS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let most = json!({ "network": { "connections_max": 1 } });
        let service = serving(address, most, &path, None);
        let client = || start(address, json!({ "listen": false }), None, None);
        let (first, second) = (client(), client());
        ping(&first, &service).unwrap();
        assert!(ping(&second, &service).is_err());
        let refused = record(&path, "session_refused");
        assert_eq!(refused["principal"], principal(address), "{refused}");
        assert!(refused["why"].as_str().unwrap().contains("too many connections"), "{refused}");
        for instance in [first, second, service] {
            instance.finalize_and_wait().unwrap();
        }
        assert_eq!(records(&path, "session_begun").len(), 1);
    }
}

#[test]
fn who_does_not_know_the_secret_is_in_the_audit_file() {
    let folder = tempfile::tempdir().unwrap();
    let [there, here] = ["there", "here"].map(|name| folder.path().join(name));
    let [ours, theirs] = ["a secret of ours", "a secret of others"].map(secret);
    let address = "na+tcp://127.0.0.1:0";
    let service = serving(address, json!({}), &there, Some(ours.path()));
    let quiet = json!({ "listen": false });
    let stranger = start(address, quiet.clone(), Some(&here), Some(theirs.path()));
    assert!(ping(&stranger, &service).is_err());
    let refused = record(&there, "session_refused");
    assert_eq!(
        (&refused["transport"], &refused["principal"]),
        (&json!("tcp"), &json!("host 127.0.0.1"))
    );
    // It does not believe the service, either.
    assert_eq!(record(&here, "session_refused")["address"], service.self_addr().uri());
    let member = start(address, quiet, None, Some(ours.path()));
    ping(&member, &service).unwrap();
    for instance in [stranger, member, service] {
        instance.finalize_and_wait().unwrap();
    }
    let begun = records(&there, "session_begun");
    let who: Vec<_> = begun.iter().map(|one| one["principal"].as_str().unwrap()).collect();
    assert_eq!(who, ["member host 127.0.0.1"], "of the stranger there is none");
    assert!(records(&here, "session_begun").is_empty());
}
