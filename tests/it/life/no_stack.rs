//! Systems without memory for a stack, or to receive into. Each case runs in a process of its own,
//! whose address space is limited.

use std::time::Duration;

use crate::common::log::listen;
use crate::common::process::{Service, asked};
use crate::common::{PATIENCE, bounded, builder};
use margo::{
    HgError, InitError, Instance, ProviderHandle, Rpc, elasticity::ElasticityError,
    timers::TimerSpec,
};

const CASE: &str = "MARGO_TEST_NO_STACK";
const ECHO: Rpc<u32, u32> = Rpc::new("echo");
/// More than the address space that is left.
const HUGE: usize = 16 << 30;

/// The process in which a case runs.
#[test]
fn service_process() {
    let Some(case) = asked(CASE) else { return };
    match case.as_str() {
        "init" => init_says_so(),
        "child" => a_child_says_so(),
        "move" => progress_stays_where_it_is(),
        "timers" => timers_go_on(),
        "callbacks" => callbacks_are_called(),
        "receives" => init_names_the_receive_buffers(),
        other => unreachable!("no case {other}"),
    }
}

/// Runs a case to its end.
fn run(case: &str) {
    assert!(
        Service::spawn(module_path!(), CASE, case).wait(),
        "the case failed: its output says how"
    );
}

/// Room for everything but the stacks that are asked for.
fn limit() {
    set_limit(Some(8 << 30));
}

fn set_limit(current: Option<u64>) {
    let limit = rustix::process::Rlimit { current, maximum: None };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
}

fn end(instance: &Instance) {
    let own = instance.clone();
    bounded("finalize", move || own.finalize_and_wait().unwrap());
}

fn init_says_so() {
    limit();
    let document = format!(r#"{{ "argobots": {{ "abt_thread_stacksize": {HUGE} }} }}"#);
    let error = bounded("init", move || margo::init(&document).unwrap_err());
    assert!(matches!(error, InitError::NoStack { bytes: HUGE, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("pool `__primary__`"), "{text}");
    // Nothing of it is left that would be in the way.
    end(&bounded("the next one", || margo::init("{}").unwrap()));
}

#[test]
fn an_instance_whose_progress_gets_no_stack_does_not_start() {
    run("init");
}

fn init_names_the_receive_buffers() {
    limit();
    fn document(first: u32) -> String {
        format!(
            r#"{{ "mercury": {{ "no_multi_recv": true, "request_post_init": {first} }},
                 "margo": {{ "address": "na+sm://", "eager_size": 65536 }} }}"#
        )
    }
    let error = bounded("init", move || margo::init(&document(1 << 18)).unwrap_err());
    let InitError::Rpc { source: HgError::Receives { count, bytes }, .. } = &error else {
        panic!("{error}");
    };
    assert!(*count == 1 << 18 && *bytes >= 65536, "{error}");
    assert!(error.to_string().contains("request_post_init"), "{error}");
    end(&bounded("the next one", move || margo::init(&document(16)).unwrap()));
}

#[test]
fn an_instance_without_memory_for_its_receive_buffers_does_not_start() {
    run("receives");
}

fn a_child_says_so() {
    limit();
    let parent = margo::init("{}").unwrap();
    parent
        .layout()
        .add_pool_from_json(&format!(r#"{{ "name": "p", "stack_bytes": {HUGE} }}"#))
        .unwrap();
    parent.layout().add_xstream_from_json(r#"{ "scheduler": { "pools": ["p"] } }"#).unwrap();
    let own = parent.clone();
    let error = bounded("init_child", move || {
        own.init_child(r#"{ "progress_pool": "p", "margo": { "address": "na+sm://" } }"#)
            .unwrap_err()
    });
    assert!(matches!(error, InitError::NoStack { bytes: HUGE, .. }), "{error}");
    end(&parent);
}

#[test]
fn a_child_whose_progress_gets_no_stack_does_not_start() {
    run("child");
}

fn progress_stays_where_it_is() {
    limit();
    let service = margo::init("{}").unwrap();
    service.register(ECHO, |handle| _ = handle.respond(handle.args())).unwrap();
    let client = builder("na+sm://").listen(false).start().unwrap();
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    for (name, bytes) in [("huge", HUGE), ("usual", 1 << 20)] {
        let pool = format!(r#"{{ "name": "{name}", "stack_bytes": {bytes} }}"#);
        service.layout().add_pool_from_json(&pool).unwrap();
        let xstream = format!(r#"{{ "scheduler": {{ "pools": ["{name}"] }} }}"#);
        service.layout().add_xstream_from_json(&xstream).unwrap();
    }
    let before = service.layout().progress_pool();
    for _ in 0..2 {
        let own = service.clone();
        let error = bounded("the move", move || own.layout().migrate_progress("huge").unwrap_err());
        assert!(matches!(&error, ElasticityError::NoStack { bytes: HUGE, .. }), "{error}");
        assert_eq!(service.layout().progress_pool(), before);
        let (own, to) = (client.clone(), target.clone());
        bounded("a call", move || assert_eq!(own.forward(ECHO, &to, &7).unwrap(), 7));
    }
    // Other changes are not held up, and there is a move that works.
    let own = service.clone();
    bounded("the other move", move || own.layout().migrate_progress("usual").unwrap());
    assert_eq!(service.layout().progress_pool().name(), "usual");
    assert_eq!(client.forward(ECHO, &target, &8).unwrap(), 8);
    end(&client);
    end(&service);
}

#[test]
fn progress_that_would_get_no_stack_elsewhere_stays_where_it_is() {
    run("move");
}

fn timers_go_on() {
    let (sender, lost) = std::sync::mpsc::channel();
    listen(tracing::Level::ERROR, move |event| {
        let is_timers = event.fields().any(|field| field.name() == "timer");
        // The first few are enough.
        let _ = is_timers && sender.send(()).is_err();
    });
    let margo = margo::init("{}").unwrap();
    let pool = format!(r#"{{ "name": "huge", "stack_bytes": {HUGE} }}"#);
    let pool = margo.layout().add_pool_from_json(&pool).unwrap().pool;
    margo.layout().add_xstream_from_json(r#"{ "scheduler": { "pools": ["huge"] } }"#).unwrap();
    limit();
    let timer = |name: &str| {
        let (sender, ticks) = std::sync::mpsc::channel();
        let spec = TimerSpec::new().pool(&pool).name(name);
        let timer = margo.timer_with(spec, move |tick| _ = sender.send(tick.missed()));
        (timer, ticks)
    };
    let heard = |lost: &std::sync::mpsc::Receiver<()>| lost.recv_timeout(PATIENCE).unwrap();
    let (once, ran_once) = timer("once");
    once.start(Duration::ZERO).unwrap();
    heard(&lost);
    // It is told after the state was looked at, under the same lock.
    assert!(!once.is_armed());
    once.start(Duration::from_secs(3600)).unwrap();
    once.restart(Duration::ZERO).unwrap();
    heard(&lost);
    let (beats, ticks) = timer("beats");
    beats.start_every(Duration::from_millis(1)).unwrap();
    (0..3).for_each(|_| heard(&lost));
    assert!(beats.is_armed());
    set_limit(None);
    assert!(ticks.recv_timeout(PATIENCE).unwrap() >= 3, "those without a stack were missed");
    ticks.recv_timeout(PATIENCE).unwrap();
    assert!(ran_once.try_recv().is_err());
    once.start(Duration::ZERO).unwrap();
    assert_eq!(ran_once.recv_timeout(PATIENCE).unwrap(), 0);
    drop((once, beats));
    end(&margo);
}

#[test]
fn a_timer_whose_callback_gets_no_stack_goes_on() {
    run("timers");
}

fn callbacks_are_called() {
    let service = margo::init("{}").unwrap();
    service.serve(ECHO).function(|n| n).unwrap();
    let document = format!(
        r#"{{ "argobots": {{ "pools": [{{ "name": "huge", "stack_bytes": {HUGE} }}],
                 "xstreams": [{{ "name": "x", "scheduler": {{ "pools": ["huge"] }} }}] }},
             "rpc_pool": "huge", "margo": {{ "address": "na+sm://" }} }}"#
    );
    let client = margo::init(&document).unwrap();
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    limit();
    let (sender, results) = std::sync::mpsc::channel();
    for n in 0..3 {
        let sender = sender.clone();
        let tell = move |result| sender.send((result, margo::ult::is_tasklet())).unwrap();
        client.rpc(ECHO, &target, &n).call_back(tell).unwrap();
    }
    let mut got: Vec<_> = (0..3)
        .map(|_| {
            let (result, is_tasklet) = results.recv_timeout(PATIENCE).unwrap();
            assert!(is_tasklet, "there was no stack for it");
            result.unwrap()
        })
        .collect();
    got.sort_unstable();
    assert_eq!(got, [0, 1, 2]);
    end(&client);
    end(&service);
}

#[test]
fn a_callback_that_gets_no_stack_is_called_all_the_same() {
    run("callbacks");
}
