//! Calls on behalf of the caller of a handler (`margo::delegation`): from a client over a front to
//! a store, which is told of both.

use std::path::Path;

use crate::common::{PATIENCE, TRANSPORTS, on_fabrics};
use margo::config::Config;
use margo::delegation::{OnBehalfOf, on_behalf_of};
use margo::{ForwardError, Handle, Instance, OneWay, Principal, ProviderHandle, Rpc};
use serde_json::{Value, json};

const READ: Rpc<String, String> = Rpc::new("read");
const WRITE: Rpc<String, String> = Rpc::new("write");
const TELL: OneWay<String> = OneWay::new("tell");
const SHOW: Rpc<String, Result<String, String>> = Rpc::new("show");

fn start(address: &str, security: Value) -> Instance {
    let margo = json!({ "address": address, "security": security });
    let config = Config::from_json(&json!({ "margo": margo }).to_string()).unwrap();
    Instance::from_config(&config).unwrap()
}

/// A store, which says what it is told.
fn store(address: &str, security: Value) -> Instance {
    let store = start(address, security);
    for rpc in [READ, WRITE] {
        let told = |call: &Handle<String, String>| {
            let who = call.on_behalf_of().map_or("nobody".to_owned(), ToString::to_string);
            format!("{} by {} for {who}", call.args(), call.principal())
        };
        store.serve(rpc).returning(told).unwrap();
    }
    store
}

/// A front, which asks the store on behalf of its caller.
fn front(address: &str, security: Value, store: &Instance) -> Instance {
    let front = start(address, security);
    let to = ProviderHandle::from(front.lookup(store.self_addr().uri()).unwrap());
    let show = move |call: &Handle<String, Result<String, String>>| {
        let read = || call.instance().forward_timed(READ, &to, call.args(), PATIENCE);
        on_behalf_of(call.principal(), read).map_err(|error| error.to_string())
    };
    front.serve(SHOW).returning(show).unwrap();
    front
}

fn ask<A: serde::Serialize, R: serde::de::DeserializeOwned>(
    from: &Instance,
    to: &Instance,
    rpc: Rpc<A, R>,
    args: &A,
) -> Result<R, ForwardError> {
    let to = ProviderHandle::from(from.lookup(to.self_addr().uri()).unwrap());
    from.forward_timed(rpc, &to, args, PATIENCE)
}

fn end<const N: usize>(instances: [Instance; N]) {
    instances.into_iter().for_each(|instance| instance.finalize_and_wait().unwrap());
}

fn open() -> Value {
    json!({ "allow": [{ "who": "anyone" }] })
}

fn own(address: &str) -> String {
    match address.starts_with("na+sm") {
        true => format!("user {}", rustix::process::geteuid().as_raw()),
        false => "host 127.0.0.1".to_owned(),
    }
}

#[test]
fn the_caller_of_a_caller_is_told_where_that_is_wanted_and_nowhere_else() {
    for address in TRANSPORTS {
        let store = store(address, open());
        let front = front(address, open(), &store);
        let client = start(address, open());
        let said = ask(&client, &front, SHOW, &"page".to_owned()).unwrap().unwrap();
        let own = own(address);
        assert_eq!(said, format!("page by {own} for {own}"));
        let said = ask(&front, &store, READ, &"own".to_owned()).unwrap();
        assert_eq!(said, format!("own by {own} for nobody"));
        // Of all kinds, the innermost counts, and it ends with its scope.
        let to = ProviderHandle::from(front.lookup(store.self_addr().uri()).unwrap());
        let args = "x".to_owned();
        let alice = OnBehalfOf::Name("alice".into());
        on_behalf_of(Principal::User(7), || {
            let call = || front.rpc(READ, &to, &args);
            assert!(call().wait().unwrap().ends_with("for user 7"));
            assert!(call().start().unwrap().wait().unwrap().ends_with("for user 7"));
            let (sender, receiver) = std::sync::mpsc::channel();
            call().call_back(move |result| drop(sender.send(result))).unwrap();
            assert!(receiver.recv().unwrap().unwrap().ends_with("for user 7"));
            let inner = on_behalf_of(&alice, || call().wait().unwrap());
            assert!(inner.ends_with("for name alice"));
            assert!(call().wait().unwrap().ends_with("for user 7"));
        });
        assert!(front.rpc(READ, &to, &args).wait().unwrap().ends_with("for nobody"));
        // Also without an answer, beyond a message, and to itself.
        let (sender, receiver) = std::sync::mpsc::channel();
        let told = move |call: Handle<String, margo::NoResponse>| {
            let who = call.on_behalf_of().cloned();
            sender.send((call.args().len(), who)).unwrap();
        };
        store.serve(TELL).handler(told.clone()).unwrap();
        front.serve(TELL).handler(told).unwrap();
        for to in [to, ProviderHandle::from(front.self_addr())] {
            for len in [1, 1 << 20] {
                on_behalf_of(&alice, || front.send(TELL, &to, &"y".repeat(len))).unwrap();
                assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), (len, Some(alice.clone())));
            }
        }
        end([client, front, store]);
    }
}

fn refusals(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["event"] == "refused").collect()
}

#[test]
fn rules_say_who_may_speak_for_whom() {
    for address in TRANSPORTS {
        let folder = tempfile::tempdir().unwrap();
        let audit = folder.path().join("audit");
        let me = if address.starts_with("na+sm") { "uid:self" } else { "host:127.0.0.1" };
        let security = json!({
            "audit": { "file": audit },
            "roles": { "people": ["name:*.people", "uid:7"] },
            "allow": [
                { "who": me, "rpc": "read", "on_behalf_of": "role:people" },
                { "who": me, "rpc": "write", "on_behalf_of": "anyone" },
            ],
            "deny": [{ "name": "mallory", "who": "anyone", "on_behalf_of": "name:mallory*" }],
        });
        let store = store(address, security);
        let front = start(address, open());
        let may = |rpc, who: Option<OnBehalfOf>| {
            let call = || ask(&front, &store, rpc, &"x".to_owned());
            match who.map_or_else(call, |who| on_behalf_of(who, call)) {
                Ok(_) => true,
                Err(ForwardError::Permission { .. }) => false,
                Err(error) => panic!("{error}"),
            }
        };
        let name = |name: &str| Some(OnBehalfOf::Name(name.into()));
        assert!(may(READ, name("a.people")) && may(READ, Some(OnBehalfOf::User(7))));
        assert!(!may(READ, name("mallory.people")), "denied");
        assert!(!may(READ, name("a.others")) && !may(READ, Some(OnBehalfOf::User(8))));
        assert!(!may(READ, Some(OnBehalfOf::Unknown)));
        assert!(may(WRITE, Some(OnBehalfOf::Unknown)) && may(WRITE, name("a.others")));
        assert!(!may(WRITE, name("mallory")));
        assert!(!may(READ, None) && !may(WRITE, None), "not for itself");
        end([front, store]);
        let refusals = refusals(&audit);
        let of = |index: usize| (&refusals[index]["on_behalf_of"], refusals[index]["why"].as_str());
        assert_eq!(of(0).0, "name mallory.people");
        assert!(of(0).1.unwrap().contains("\"mallory\" denies it"), "{refusals:?}");
        assert_eq!(of(6), (&Value::Null, Some("no rule allows it")), "{refusals:?}");
    }
}

/// A target that may be a C program would take such a call for one of our own.
#[test]
fn where_it_cannot_be_told_nothing_is_called() {
    on_fabrics(&["ofi+tcp"], |address| {
        let store = store(address, open());
        let front = start(address, open());
        let call = || ask(&front, &store, READ, &"x".to_owned());
        let error = on_behalf_of(Principal::User(7), call).unwrap_err();
        assert!(error.never_ran() && error.to_string().contains("on whose behalf"), "{error}");
        assert!(call().unwrap().ends_with("for nobody"));
        end([front, store]);

        let mut secret = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut secret, &[b's'; 40]).unwrap();
        let fabrics = json!({ "mode": "cluster_secret", "secret": secret.path() });
        let security = json!({ "fabrics": fabrics });
        let store = self::store(address, security.clone());
        let front = start(address, security);
        for _ in 0..2 {
            let call = || ask(&front, &store, READ, &"x".to_owned());
            let said = on_behalf_of(Principal::User(7), call).unwrap();
            assert_eq!(said, "x by member host 127.0.0.1 for user 7");
        }
        end([front, store]);
    });
}
