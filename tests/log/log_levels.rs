//! Log levels of two instances in one process.

use crate::common;
use std::fmt::Write;
use std::sync::{Arc, Mutex, Once};

use margo::monitor::Monitor;
use margo::{
    Instance, InstanceBuilder, ProviderHandle, Rpc, config::Config, config::LogLevel,
    errors::ShutdownRemoteError,
};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};
use ult::{PoolSpec, Runtime, XstreamSpec};

const PANICS: Rpc<(), ()> = Rpc::new("panics");

/// A monitor that looks at nothing.
struct Idle;

impl Monitor for Idle {}

/// Logged events: level, instance and text.
static SEEN: Mutex<Vec<(Level, String, String)>> = Mutex::new(Vec::new());

#[derive(Default)]
struct Fields {
    instance: Option<String>,
    text: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "instance" => self.instance = Some(value.to_owned()),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.text, "{}={value:?} ", field.name());
    }
}

/// Keeps the events that say whose they are.
fn keep() {
    static ONCE: Once = Once::new();
    let hear = |event: &Event<'_>| {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Some(instance) = fields.instance {
            SEEN.lock().unwrap().push((*event.metadata().level(), instance, fields.text));
        }
    };
    ONCE.call_once(|| common::log::listen(Level::TRACE, hear));
}

fn seen(instance: &Instance) -> Vec<(Level, String)> {
    let name = instance.self_addr().uri().to_owned();
    let seen = SEEN.lock().unwrap();
    let own = seen.iter().filter(|(_, instance, _)| *instance == name);
    own.map(|(level, _, text)| (*level, text.clone())).collect()
}

#[test]
fn each_instance_has_a_level_of_its_own() {
    keep();
    let loud = Instance::builder("na+sm://").start().unwrap();
    let quiet = Instance::builder("na+sm://").log_level(LogLevel::Off).start().unwrap();
    let errors = margo::init(r#"{ "margo": { "log_level": "error" } }"#).unwrap();
    let levels = [&loud, &quiet, &errors].map(|instance| instance.monitoring().log_level());
    assert_eq!(levels, [LogLevel::Trace, LogLevel::Off, LogLevel::Error]);
    let make_noise = |own: &Instance| {
        let target = ProviderHandle::from(own.self_addr());
        // An error.
        own.forward(PANICS, &target, &()).unwrap_err();
        // A warning.
        let refused = own.network().shutdown_remote(&own.self_addr()).unwrap_err();
        assert!(matches!(refused, ShutdownRemoteError::NotEnabled { .. }));
    };
    for own in [&loud, &quiet, &errors] {
        own.register(PANICS, |_| panic!("on purpose")).unwrap();
        make_noise(own);
    }
    let has = |own: &Instance, level, text: &str| {
        seen(own).iter().any(|(seen, said)| *seen == level && said.contains(text))
    };
    assert!(has(&loud, Level::ERROR, "handler panicked"), "{:?}", seen(&loud));
    assert!(has(&loud, Level::WARN, "may not shut this instance down"));
    assert!(has(&errors, Level::ERROR, "handler panicked"));
    assert!(!has(&errors, Level::WARN, ""), "{:?}", seen(&errors));
    assert_eq!(seen(&quiet), []);

    // It can be changed while it runs, for one of them.
    quiet.monitoring().set_log_level(LogLevel::Warning);
    loud.monitoring().set_log_level(LogLevel::Off);
    let before = seen(&loud).len();
    make_noise(&quiet);
    make_noise(&loud);
    assert!(has(&quiet, Level::WARN, "may not shut this instance down"));
    assert_eq!(seen(&loud).len(), before);
    for own in [loud, quiet, errors] {
        own.finalize_and_wait().unwrap();
    }
}

#[test]
fn a_peer_does_not_fill_the_log() {
    keep();
    const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
    const WRONG: Rpc<u8, i64> = Rpc::new("sum");
    const TIMES: u64 = 100;
    let own = Instance::builder("na+sm://").start().unwrap();
    own.register(SUM, |request| _ = request.respond(&1)).unwrap();
    own.register(PANICS, |_| panic!("on purpose")).unwrap();
    let target = ProviderHandle::from(own.self_addr());
    for _ in 0..TIMES {
        own.forward(WRONG, &target, &1).unwrap_err();
        own.forward(PANICS, &target, &()).unwrap_err();
        own.network().shutdown_remote(&own.self_addr()).unwrap_err();
    }
    let stats = own.monitoring().stats();
    assert_eq!((stats.arguments_undecodable, stats.handlers_panicked), (TIMES, TIMES));
    for text in ["bad arguments", "handler panicked", "may not shut this instance down"] {
        let said: Vec<_> = seen(&own).into_iter().filter(|(_, said)| said.contains(text)).collect();
        // The first one, and whenever there are twice as many.
        assert_eq!(said.len(), 7, "{said:?}");
        assert!(said[6].1.contains("count=64"), "{said:?}");
    }
    own.finalize_and_wait().unwrap();
}

/// Returns whether such a warning was logged before the instance had an address.
fn warned(text: &str) -> bool {
    let seen = SEEN.lock().unwrap();
    seen.iter().any(|(level, instance, said)| {
        *level == Level::WARN && instance == "starting" && said.contains(text)
    })
}

#[test]
fn settings_that_do_nothing_are_told_at_the_start() {
    keep();
    let document = |name: &str| {
        format!(r#"{{ "handle_cache_size": 1, "monitoring": {{ "name": "{name}" }} }}"#)
    };
    let watched = Config::from_json(&document("attached")).unwrap();
    for own in [
        margo::init(&document("elsewhere")).unwrap(),
        InstanceBuilder::from_config(watched).monitor(Arc::new(Idle)).start().unwrap(),
    ] {
        own.finalize_and_wait().unwrap();
    }
    assert!(warned("handle_cache_size: has no effect"));
    assert!(warned("monitoring.name: \"elsewhere\" is not here"));
    assert!(!warned("\"attached\""));
}

#[test]
fn handlers_with_small_stacks_in_the_programs_pools_are_told_of() {
    keep();
    let runtime = Runtime::builder()
        .pool(PoolSpec::new("large"))
        .pool(PoolSpec::new("small").stack_bytes(1 << 16))
        .xstream(XstreamSpec::new("x").pools(["large", "small"]))
        .start()
        .unwrap();
    for pool in ["large", "small"] {
        let own = Instance::builder("na+sm://").runtime(&runtime).progress_pool("large");
        own.rpc_pool(pool).start().unwrap().finalize_and_wait().unwrap();
        assert_eq!(warned("pool `small`: handlers have stacks of 65536 bytes"), pool == "small");
    }
    assert!(!warned("pool `large`"));
    runtime.shutdown().unwrap();
}

#[test]
fn a_level_of_the_configuration_is_printed_back() {
    keep();
    let own = Instance::builder("na+sm://").log_level(LogLevel::Info).start().unwrap();
    assert_eq!(own.config().margo.log_level, Some(LogLevel::Info));
    assert_eq!(own.monitoring().log_level(), LogLevel::Info);
    own.finalize_and_wait().unwrap();
}

#[test]
fn the_log_says_which_rule_refuses_a_call_and_the_caller_is_not_told() {
    keep();
    const GET: Rpc<(), ()> = Rpc::new("get");
    let rules = r#"{ "margo": { "security": { "allow": [{ "who": "uid:self", "rpc": "other" }],
        "deny": [{ "name": "no getting", "who": "uid:self", "rpc": "get" }] } } }"#;
    let none = r#"{ "margo": { "security": { "allow": [] } } }"#;
    for (rules, why) in
        [(rules, "the rule \\\"no getting\\\" denies it"), (none, "no rule allows it")]
    {
        let service = margo::init(rules).unwrap();
        service.register(GET, |request| _ = request.respond(&())).unwrap();
        let client = Instance::builder("na+sm://").listen(false).start().unwrap();
        let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
        for _ in 0..5 {
            let told = client.forward(GET, &target, &()).unwrap_err();
            assert!(matches!(told, margo::ForwardError::Permission { .. }), "{told}");
            assert!(!told.to_string().contains("rule"), "{told}");
        }
        let is_about = |text: &&String| text.contains("a call was refused");
        let seen = seen(&service);
        let said: Vec<_> = seen.iter().map(|(_, text)| text).filter(is_about).collect();
        assert_eq!(said.len(), 3, "the first, the second, the fourth: {said:?}");
        let uid = format!("caller=user {}", rustix::process::geteuid().as_raw());
        for part in [why, "rpc=\"get\"", &uid] {
            assert!(said[0].contains(part), "{part}: {said:?}");
        }
        client.finalize_and_wait().unwrap();
        service.finalize_and_wait().unwrap();
    }
}
