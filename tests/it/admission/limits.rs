//! How much a caller may ask for (`margo.security.limits`), with however many connections.

use std::sync::Arc;

use super::rules::{GET, KV, PUT, Ruled};
use crate::common::{PATIENCE, TRANSPORTS};
use margo::{ForwardError, Handle, Instance, ProviderHandle, ProviderId, Rpc};
use ult::Semaphore;

const HOLD: Rpc<u64, u64> = Rpc::new("hold");

fn with_limit(transport: &str, limit: &str) -> Ruled {
    let limits = format!(r#"[{{ "who": "anyone", {limit} }}]"#);
    let security = format!(r#"{{ "allow": [{{ "who": "anyone" }}], "limits": {limits} }}"#);
    Ruled::new(transport, &security)
}

/// Returns what a caller is told that asks for too much.
fn too_much(told: Result<u64, ForwardError>) -> Option<String> {
    match told {
        Ok(_) => None,
        Err(ForwardError::Busy { detail, .. }) => Some(detail),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn who_is_over_its_rate_is_told_so_and_may_come_again() {
    for transport in TRANSPORTS {
        let ruled = with_limit(transport, r#""calls_per_sec": 2, "calls_burst": 3"#);
        let detail = loop {
            if let Some(detail) = too_much(ruled.call(GET)) {
                break detail;
            }
        };
        let begin = "this caller is over its limit of calls in a second; try again in ";
        assert!(detail.starts_with(begin) && detail.ends_with(" ms"), "{detail}");
        let stats = ruled.service.monitoring().stats();
        assert_eq!((stats.requests_over_limit, stats.requests_not_allowed), (1, 0));
        let metrics = ruled.service.metrics().prometheus();
        let sample = "margo_requests_refused_total{reason=\"over_limit\"} 1\n";
        assert!(metrics.contains(sample), "{metrics}");
        // The service itself has no limit.
        let own = ProviderHandle::new(ruled.service.self_addr(), KV);
        (0..20).for_each(|_| assert_eq!(ruled.service.forward(PUT, &own, &1).unwrap(), 2));
        while too_much(ruled.call(GET)).is_some() {
            std::thread::yield_now();
        }
        ruled.end();
    }
}

#[test]
fn bytes_count_whether_they_come_with_the_request_or_are_fetched() {
    const LONG: Rpc<Vec<u8>, u64> = Rpc::new("long");
    for transport in TRANSPORTS {
        let ruled = with_limit(transport, r#""bytes_per_sec": 1, "bytes_burst": 100000"#);
        ruled.service.serve(LONG).function(|bytes| bytes.len() as u64).unwrap();
        let target = ruled.target(ProviderId::DEFAULT);
        let call = |bytes| ruled.client.forward_timed(LONG, &target, &vec![7; bytes], PATIENCE);
        assert_eq!(call(90_000).unwrap(), 90_000);
        let detail = too_much(call(90_000)).expect("these are too many");
        assert!(detail.contains("over its limit of bytes in a second"), "{detail}");
        assert_eq!(call(1_000).unwrap(), 1_000, "there is room for these");
        ruled.end();
    }
}

#[test]
fn connections_of_one_caller_share_its_requests_in_hand() {
    for transport in TRANSPORTS {
        let ruled = with_limit(transport, r#""handlers_max": 1"#);
        let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (here, wait) = (begun.clone(), go.clone());
        // Answers at once if it is asked to, and goes on.
        let hold = move |handle: Handle<u64, u64>| {
            let (answers_first, handle) = handle.take_args();
            here.release(1);
            let answer = |handle: Handle<(), u64>| handle.respond(&1).unwrap();
            let handle = if answers_first == 1 {
                answer(handle);
                None
            } else {
                Some(handle)
            };
            wait.acquire(1).forget();
            handle.into_iter().for_each(answer);
        };
        ruled.service.register(HOLD, hold).unwrap();
        let own = transport.split("://").next().unwrap();
        let other = Instance::builder(format!("{own}://")).listen(false).start().unwrap();
        let kv = other.lookup(ruled.service.self_addr().uri()).unwrap();
        let kv = ProviderHandle::new(kv, KV);
        let at_other = || other.forward_timed(GET, &kv, &1, PATIENCE);

        let target = ruled.target(ProviderId::DEFAULT);
        for answers_first in [0, 1] {
            let held = loop {
                let call = ruled.client.rpc(HOLD, &target, &answers_first).start().unwrap();
                let mut has_begun = false;
                while !has_begun && !call.test() {
                    has_begun = begun.try_acquire(1).map(|begun| begun.forget()).is_some();
                    std::thread::yield_now();
                }
                if has_begun || begun.try_acquire(1).map(|begun| begun.forget()).is_some() {
                    break call;
                }
                // The one before is counted out after its answer.
                assert!(too_much(call.wait()).is_some());
            };
            let detail = too_much(at_other()).expect("the other connection has the place");
            assert!(detail.contains("requests at once; try again when"), "{detail}");
            let service = ProviderHandle::new(ruled.service.self_addr(), KV);
            assert_eq!(ruled.service.forward(GET, &service, &1).unwrap(), 2, "to itself");
            go.release(1);
            assert_eq!(held.wait_timeout(PATIENCE).unwrap().unwrap(), 1);
            while too_much(at_other()).is_some() {
                std::thread::yield_now();
            }
        }
        other.finalize_and_wait().unwrap();
        ruled.end();
    }
}

#[test]
fn an_instance_at_its_limits_can_be_looked_at_and_ended() {
    let limits = r#"{ "allow": [{ "who": "uid:self" }], "limits": [
        { "who": "uid:self", "calls_per_sec": 1, "calls_burst": 1, "handlers_max": 1 }] }"#;
    let ruled = Ruled::new(TRANSPORTS[0], limits);
    while too_much(ruled.call(GET)).is_none() {}
    let (network, address) = (ruled.client.network(), ruled.target(KV).addr().clone());
    (0..20).for_each(|_| _ = network.metrics_of(&address).unwrap());
    network.shutdown_remote(&address).unwrap();
    ruled.end();
}

#[test]
fn refusals_and_the_end_by_a_peer_are_in_the_audit_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    for transport in TRANSPORTS {
        let security = format!(
            r#"{{ "allow": [{{ "who": "anyone" }}, {{ "who": "anyone", "rpc": "__shutdown__" }}],
                "deny": [{{ "name": "no puts", "who": "anyone", "rpc": "put" }}],
                "limits": [{{ "name": "few", "who": "anyone", "calls_per_sec": 1 }}],
                "audit": {{ "file": "{}" }} }}"#,
            path.display()
        );
        let ruled = Ruled::new(transport, &security);
        assert!(matches!(ruled.call(PUT), Err(ForwardError::Permission { .. })));
        while too_much(ruled.call(GET)).is_none() {}
        ruled.client.network().shutdown_remote(ruled.target(KV).addr()).unwrap();
        let address = ruled.service.self_addr().uri().to_owned();
        ruled.end();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines =
            text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let is_of_session =
            |line: &serde_json::Value| line["event"].as_str().unwrap().starts_with("session_");
        let lines: Vec<_> = lines.filter(|line| !is_of_session(line)).collect();
        let event = |at: usize| lines[at]["event"].as_str().unwrap();
        let events: Vec<_> = (0..lines.len()).map(event).collect();
        assert_eq!(events, ["started", "refused", "refused", "shutdown", "ended"], "{text}");
        assert_eq!((&lines[0]["address"], &lines[3]["done"]), (&address.into(), &true.into()));
        let caller = match transport.starts_with("na+sm") {
            true => format!("user {}", rustix::process::geteuid().as_raw()),
            false => "host 127.0.0.1".to_owned(),
        };
        for (line, reason, why, rpc) in [
            (&lines[1], "not_allowed", "the rule \"no puts\" denies it", "put"),
            (&lines[2], "over_limit", "the limit \"few\": this caller is over its limit", "get"),
        ] {
            assert_eq!((&line["reason"], &line["rpc"]), (&reason.into(), &rpc.into()), "{text}");
            assert!(line["why"].as_str().unwrap().starts_with(why), "{text}");
            assert_eq!((&line["caller"], &line["provider"]), (&caller.clone().into(), &3.into()));
        }
    }
}

#[test]
fn an_audit_file_that_cannot_be_opened_keeps_an_instance_from_starting() {
    let document = r#"{ "margo": { "address": "na+sm://", "security": {
        "allow": [{ "who": "anyone" }], "audit": { "file": "/nowhere/audit.jsonl" } } } }"#;
    let error = margo::init(document).unwrap_err();
    assert!(matches!(&error, margo::InitError::Audit { .. }), "{error}");
    assert!(error.to_string().contains("`/nowhere/audit.jsonl`"), "{error}");
}
