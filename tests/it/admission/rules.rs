//! Rules of who may call what (`margo.security`): over shared memory by user, over TCP by host, in
//! a simulated network by what the test says.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::common::{PATIENCE, TRANSPORTS, shards};
use margo::config::{Config, Shards};
use margo::errors::{MetricsError, ShutdownRemoteError};
use margo::{ForwardError, Instance, InstanceBuilder, OneWay, Principal, ProviderHandle};
use margo::{ProviderId, Rpc};
use na::PeerName;
use na::sim::{LinkOptions, Network};
use ult::Semaphore;

pub(super) const GET: Rpc<u64, u64> = Rpc::new("get");
pub(super) const PUT: Rpc<u64, u64> = Rpc::new("put");
const WHO: Rpc<u64, u64> = Rpc::new("who");
const TELL: OneWay<()> = OneWay::new("tell");
pub(super) const KV: ProviderId = ProviderId::new(3);

/// A service with rules, with a client in the same process, which is a caller as any other.
pub(super) struct Ruled {
    pub(super) service: Instance,
    pub(super) client: Instance,
    kv: Option<margo::Provider>,
}

impl Ruled {
    pub(super) fn new(transport: &str, security: &str) -> Self {
        let document = format!(
            r#"{{ "margo": {{
                "address": "{transport}", "remote_shutdown": true, "metrics": {{ "remote": true }},
                "security": {security}
            }} }}"#
        );
        let mut config = Config::from_json(&document).unwrap();
        if shards() > 1 {
            config.margo.shards = Some(Shards::Count(shards()));
        }
        let service = InstanceBuilder::from_config(config).start().unwrap();
        let own = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        let mut ruled = Self { service, client, kv: None };
        ruled.serve();
        ruled
    }

    fn serve(&mut self) {
        let kv = self.service.provider(KV, &self.service.layout().rpc_pool());
        for rpc in [GET, PUT] {
            kv.serve(rpc).function(|n| n + 1).unwrap();
        }
        self.kv = Some(kv);
    }

    pub(super) fn target(&self, id: ProviderId) -> ProviderHandle {
        ProviderHandle::new(self.client.lookup(self.service.self_addr().uri()).unwrap(), id)
    }

    pub(super) fn call(&self, rpc: Rpc<u64, u64>) -> Result<u64, ForwardError> {
        self.client.forward_timed(rpc, &self.target(KV), &1, PATIENCE)
    }

    fn may(&self, rpc: Rpc<u64, u64>) -> bool {
        match self.call(rpc) {
            Ok(answer) => {
                assert_eq!(answer, 2);
                true
            }
            Err(error) => {
                let never_ran = error.never_ran();
                assert!(matches!(error, ForwardError::Permission { .. }) && never_ran, "{error}");
                false
            }
        }
    }

    fn refused(&self) -> u64 {
        self.service.monitoring().stats().requests_not_allowed
    }

    pub(super) fn end(self) {
        drop(self.kv);
        self.client.finalize_and_wait().unwrap();
        self.service.finalize_and_wait().unwrap();
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Rules by which this process may call over that transport, and by which it may not.
fn mine_and_others(transport: &str) -> [String; 2] {
    match transport.starts_with("na+sm") {
        true => ["uid:self".to_owned(), format!("uid:{}", own_user() + 1)],
        false => ["host:127.0.0.0/8".to_owned(), "host:10.0.0.0/8".to_owned()],
    }
}

#[test]
fn what_a_rule_allows_is_served_and_nothing_else() {
    for transport in TRANSPORTS {
        let [mine, others] = mine_and_others(transport);
        let ruled = Ruled::new(
            transport,
            &format!(
                r#"{{ "allow": [{{ "who": "{mine}", "provider": "kv:3", "rpc": "get*" }},
                    {{ "who": "{others}" }}] }}"#
            ),
        );
        assert!(ruled.may(GET) && !ruled.may(PUT) && ruled.may(GET), "over {transport}");
        assert_eq!(ruled.refused(), 1);
        let metrics = ruled.service.metrics().prometheus();
        let sample = "margo_requests_refused_total{reason=\"not_allowed\"} 1\n";
        assert!(metrics.contains(sample), "{metrics}");

        // The same RPC without a provider is another one.
        ruled.service.serve(GET).function(|n| n).unwrap();
        let target = ruled.target(ProviderId::DEFAULT);
        let refused = ruled.client.forward_timed(GET, &target, &1, PATIENCE).unwrap_err();
        assert!(matches!(refused, ForwardError::Permission { .. }), "{refused}");
        ruled.end();
    }
}

#[test]
fn denied_is_denied_whoever_allows_it() {
    for transport in TRANSPORTS {
        let [mine, others] = mine_and_others(transport);
        let ruled = Ruled::new(
            transport,
            &format!(
                r#"{{ "roles": {{ "all": ["{mine}", "{others}"] }},
                    "allow": [{{ "who": "anyone" }}],
                    "deny": [{{ "who": "role:all", "rpc": "put" }}, {{ "who": "{others}" }}] }}"#
            ),
        );
        assert!(ruled.may(GET) && !ruled.may(PUT), "over {transport}");
        ruled.end();
    }
}

#[test]
fn without_rules_everybody_may_call() {
    for transport in TRANSPORTS {
        let ruled = Ruled::new(transport, "null");
        assert!(ruled.may(GET) && ruled.may(PUT));
        ruled.client.network().metrics_of(ruled.target(KV).addr()).unwrap();
        ruled.end();
    }
}

#[test]
fn an_instance_may_call_itself() {
    for transport in TRANSPORTS {
        let ruled = Ruled::new(transport, r#"{ "allow": [] }"#);
        assert!(!ruled.may(GET));
        let own = ProviderHandle::new(ruled.service.self_addr(), KV);
        assert_eq!(ruled.service.forward(GET, &own, &1).unwrap(), 2);
        ruled.end();
    }
}

#[test]
fn an_instance_may_call_itself_over_the_network() {
    const LONG: Rpc<Vec<u8>, u64> = Rpc::new("long");
    for transport in TRANSPORTS {
        let document = format!(
            r#"{{ "mercury": {{ "no_loopback": true }},
                "margo": {{ "address": "{transport}", "security": {{ "allow": [] }} }} }}"#
        );
        let mut config = Config::from_json(&document).unwrap();
        if shards() > 1 {
            config.margo.shards = Some(Shards::Count(shards()));
        }
        let service = InstanceBuilder::from_config(config).start().unwrap();
        service.serve(LONG).function(|bytes| bytes.len() as u64).unwrap();
        let own = ProviderHandle::from(service.self_addr());
        for bytes in [1, 1_000_000] {
            let answer = service.forward_timed(LONG, &own, &vec![7; bytes], PATIENCE);
            assert_eq!(answer.unwrap(), bytes as u64, "over {transport}");
        }
        let scheme = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{scheme}://")).listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        let refused = client.forward_timed(LONG, &target, &vec![7], PATIENCE).unwrap_err();
        assert!(matches!(refused, ForwardError::Permission { .. }), "{refused}");
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}

#[test]
fn anyone_may_not_end_an_instance_or_look_at_it_unless_a_rule_says_so() {
    for transport in TRANSPORTS {
        let ruled = Ruled::new(
            transport,
            r#"{ "allow": [{ "who": "anyone" }, { "who": "anyone", "rpc": "__*" },
                { "who": "anyone", "rpc": "__metrics__" }] }"#,
        );
        assert!(ruled.may(GET) && ruled.may(PUT));
        let (network, address) = (ruled.client.network(), ruled.target(KV).addr().clone());
        network.metrics_of(&address).unwrap();
        let refused = network.shutdown_remote(&address).unwrap_err();
        let is_permission =
            matches!(refused, ShutdownRemoteError::Forward(ForwardError::Permission { .. }));
        assert!(is_permission, "{refused}");
        assert!(!ruled.service.is_finalizing());
        ruled.end();

        let [mine, _] = mine_and_others(transport);
        let ruled = Ruled::new(
            transport,
            &format!(
                r#"{{ "allow": [{{ "who": "{mine}" }}],
                    "deny": [{{ "who": "anyone", "rpc": "__metrics__" }}] }}"#
            ),
        );
        let (network, address) = (ruled.client.network(), ruled.target(KV).addr().clone());
        let refused = network.metrics_of(&address).unwrap_err();
        let is_permission =
            matches!(refused, MetricsError::Forward(ForwardError::Permission { .. }));
        assert!(is_permission, "{refused}");
        network.shutdown_remote(&address).unwrap();
        ruled.end();
    }
}

#[test]
fn a_provider_that_comes_back_is_judged_anew() {
    let [mine, _] = mine_and_others(TRANSPORTS[0]);
    let rules =
        format!(r#"{{ "allow": [{{ "who": "{mine}", "provider": "kv:3", "rpc": "get" }}] }}"#);
    let mut ruled = Ruled::new(TRANSPORTS[0], &rules);
    assert!(ruled.may(GET) && !ruled.may(PUT));
    ruled.kv = None;
    assert!(matches!(ruled.call(GET), Err(ForwardError::NotRegistered { .. })));
    // Others have the id, and serve the same RPCs.
    let other = ruled.service.provider(ProviderId::new(4), &ruled.service.layout().rpc_pool());
    other.serve(GET).function(|n| n).unwrap();
    let refused = ruled.client.forward_timed(GET, &ruled.target(other.id()), &1, PATIENCE);
    assert!(matches!(refused, Err(ForwardError::Permission { .. })));
    ruled.serve();
    assert!(ruled.may(GET) && !ruled.may(PUT));
    let kv = ruled.kv.as_ref().unwrap();
    kv.set_pool(&ruled.service.layout().progress_pool()).unwrap();
    assert!(ruled.may(GET) && !ruled.may(PUT), "rules go with it to another pool");
    drop(other);
    ruled.end();
}

#[test]
fn one_way_requests_that_are_not_allowed_are_dropped() {
    let ruled = Ruled::new(TRANSPORTS[0], r#"{ "allow": [{ "who": "uid:self", "rpc": "get" }] }"#);
    let told = std::sync::Arc::new(Semaphore::new(0));
    let tell = told.clone();
    ruled.service.serve(TELL).handler(move |_| tell.release(1)).unwrap();
    ruled.client.send(TELL, &ruled.target(ProviderId::DEFAULT), &()).unwrap();
    // It has arrived before.
    while ruled.refused() == 0 {
        assert!(ruled.may(GET));
    }
    assert!(told.try_acquire(1).is_none());
    ruled.end();
}

#[test]
fn a_handler_knows_who_calls() {
    for transport in TRANSPORTS {
        let ruled = Ruled::new(transport, "null");
        let expected = match transport.starts_with("na+sm") {
            true => Principal::User(own_user()),
            false => Principal::of_host([127, 0, 0, 1].into()),
        };
        let is_known = move |who: Principal| match who {
            who if who == expected => 1,
            Principal::Unknown => 2,
            _ => 3,
        };
        let answer = move |handle: margo::Handle<u64, u64>| {
            let _ = handle.respond(&is_known(handle.principal()));
        };
        ruled.service.register(WHO, answer).unwrap();
        let target = ruled.target(ProviderId::DEFAULT);
        assert_eq!(ruled.client.forward(WHO, &target, &0).unwrap(), 1, "over {transport}");
        let own = ProviderHandle::from(ruled.service.self_addr());
        assert_eq!(ruled.service.forward(WHO, &own, &0).unwrap(), 2, "calls to itself");
        ruled.end();
    }
}

/// A node that a simulated network says to be somebody else asks for what it may not have, as often
/// as it likes and over links that lose and repeat packets: others are served meanwhile, and no
/// handler sees it.
#[test]
fn a_hostile_node_of_a_simulated_network_gets_to_no_handler() {
    for seed in 0..8 {
        let name = format!("hostile-{seed}");
        let network = Network::builder(name.clone()).seed(seed);
        let network = network.link(LinkOptions::unreliable(0.1)).build().unwrap();
        let named = |text| Principal::Name(PeerName::new(text));
        network.set_principal("friend", named("node7.storage.example"));
        network.set_principal("mallory", named("node7.storage.example.evil"));
        let rules = r#"{ "allow": [{ "who": "name:*.storage.example", "rpc": "who" }] }"#;
        let document = format!(
            r#"{{ "margo": {{ "address": "na+sim://{name}/service", "security": {rules} }} }}"#
        );
        let service = margo::init(document.as_str()).unwrap();
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let sees = seen.clone();
        let answer = move |request: margo::Handle<u64, u64>| {
            sees.lock().unwrap().insert(request.principal());
            let _ = request.respond(request.args());
        };
        service.register(WHO, answer).unwrap();
        let node = |node: &str| Instance::builder(format!("na+sim://{name}/{node}")).start();
        // Nothing is known of the third.
        let nodes = ["friend", "mallory", "nobody"].map(|name| node(name).unwrap());
        let calls = (0..20_u64).flat_map(|n| nodes.iter().enumerate().map(move |node| (n, node)));
        let begin = |(n, (at, node)): (u64, (usize, &Instance))| {
            let to = node.lookup(service.self_addr().uri()).unwrap().into();
            (n, at, node.rpc(WHO, &to, &n).start().unwrap())
        };
        for (n, at, call) in calls.map(begin).collect::<Vec<_>>() {
            match call.wait_timeout(PATIENCE).unwrap() {
                Ok(answer) => assert_eq!((answer, at), (n, 0), "seed {seed}"),
                Err(ForwardError::Permission { .. }) => assert_ne!(at, 0, "seed {seed}"),
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        assert_eq!(*seen.lock().unwrap(), [named("node7.storage.example")].into());
        assert_eq!(service.monitoring().stats().requests_not_allowed, 40);
        for instance in nodes.into_iter().chain([service]) {
            instance.finalize_and_wait().unwrap();
        }
    }
}
