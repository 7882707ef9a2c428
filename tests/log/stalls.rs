//! The stall detector: the units that it reports in the log, and those that it does not.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use crate::common::{self, bounded};
use margo::{Instance, ProviderHandle, Rpc, config::Config};
use tracing::field::Field;
use tracing::{Event, Level};

/// Holds its execution stream until the log has so many lines that mention it.
const HOG: Rpc<(String, usize), ()> = Rpc::new("hog");
const QUICK: Rpc<(), ()> = Rpc::new("quick");

/// All warnings of this program.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn said() -> MutexGuard<'static, Vec<String>> {
    SAID.lock().unwrap_or_else(PoisonError::into_inner)
}

fn said_of(xstream: &str) -> Vec<String> {
    let name = format!("`{xstream}`");
    said().iter().filter(|line| line.contains(&name)).cloned().collect()
}

fn keep_log() {
    static ONCE: Once = Once::new();
    let hear = |event: &Event<'_>| {
        event.record(&mut |field: &Field, value: &dyn Debug| {
            if field.name() == "message" {
                said().push(format!("{value:?}"));
            }
        });
    };
    ONCE.call_once(|| common::log::listen(Level::WARN, hear));
}

/// Progress on `net_<name>`, handlers on `<name>`, in a pool `work_<name>`.
fn layout(name: &str, more: &str) -> Instance {
    keep_log();
    let instance = margo::init(&format!(
        r#"{{ "argobots": {{
            "pools": [{{ "name": "__primary__" }}, {{ "name": "work_{name}" }}],
            "xstreams": [
                {{ "name": "__primary__", "scheduler": {{ "pools": ["__primary__"] }} }},
                {{ "name": "{name}", "scheduler": {{ "pools": ["work_{name}"] }} }}] }},
            "rpc_pool": "work_{name}", "margo": {{ {more} }} }}"#
    ));
    let instance = instance.unwrap();
    let hogs = |(xstream, lines): (String, usize)| {
        while said_of(&xstream).len() < lines {
            std::thread::yield_now();
        }
    };
    instance.serve(HOG).function(hogs).unwrap();
    instance.serve(QUICK).function(|()| ()).unwrap();
    instance
}

fn hog(own: &Instance, xstream: &str, lines: usize) {
    let target = ProviderHandle::from(own.self_addr());
    let (own, args) = (own.clone(), (xstream.to_owned(), lines));
    bounded("a line in the log", move || own.forward(HOG, &target, &args).unwrap());
}

/// How long it says that the unit has run.
fn seconds(line: &str) -> f64 {
    let (_, rest) = line.split_once("has run for ").unwrap();
    let (time, rest) = rest.split_once(" without a switch").unwrap();
    // Whoever yields its processor runs, or is about to.
    let advice = "; it should yield, wait with objects of this crate, or run in `ult::blocking`";
    assert!(rest == advice || rest.starts_with("; its thread is blocked"), "{rest}");
    let number = time.trim_end_matches(char::is_alphabetic);
    let unit = match &time[number.len()..] {
        "s" => 1.0,
        "ms" => 1e-3,
        unit => panic!("{unit} in {line}"),
    };
    number.parse::<f64>().unwrap() * unit
}

#[test]
fn who_holds_an_execution_stream_is_named_with_pool_rpc_and_time() {
    // Longer than a thread that has something to do waits for a processor.
    let own = layout("held", r#""stall_limit_msec": 300"#);
    let target = ProviderHandle::from(own.self_addr());
    own.forward(QUICK, &target, &()).unwrap();
    hog(&own, "held", 1);
    // Before the first stall nobody has noted who runs where, but handlers say when they begin.
    let first = said_of("held").remove(0);
    let expected = "xstream `held` is stalled: a unit (perhaps `hog` of pool `work_held`, the last \
                    to begin there) has run for ";
    assert!(first.starts_with(expected), "{first}");
    assert!(seconds(&first) >= 0.3, "{first}");
    // From then on it is known. Its end is told too, before or after this one begins.
    hog(&own, "held", 3);
    let lines = said_of("held");
    let next = lines[1..].iter().find(|line| line.contains("is stalled")).unwrap();
    assert!(next.starts_with("xstream `held` is stalled: ULT "), "{next}");
    assert!(next.contains(" `hog` of pool `work_held` has run for "), "{next}");
    assert!(seconds(next) >= 0.3, "{next}");
    let ends = |line: &&String| line.starts_with("xstream `held` goes on: ");
    assert!(lines.iter().any(|line| ends(&line)), "{lines:?}");
    assert!(own.monitoring().stats().stalls >= 2);
    own.finalize_and_wait().unwrap();
}

#[test]
fn it_looks_unless_told_otherwise() {
    let default = Config::default().resolve(&|_| None).unwrap();
    assert_eq!(default.stall_limit, Some(Duration::from_secs(1)));
    let own = layout("by_default", "");
    hog(&own, "by_default", 1);
    let line = said_of("by_default").remove(0);
    assert!(line.contains("perhaps `hog` of pool `work_by_default`"), "{line}");
    assert!(seconds(&line) >= 1.0, "{line}");
    own.finalize_and_wait().unwrap();
    let off = Config::from_json(r#"{ "margo": { "stall_limit_msec": 0 } }"#).unwrap();
    assert_eq!(off.resolve(&|_| None).unwrap().stall_limit, None);
}

/// As long as others need for several stalls, far above the limit.
#[test]
fn execution_streams_that_sleep_are_no_stall() {
    let limit = r#""stall_limit_msec": 300"#;
    // With nothing at all, with a handler that waits, and with one that sleeps.
    let idle = ["idle_one", "idle_two", "idle_three"].map(|name| layout(name, limit));
    let (go, inside) = (Arc::new(ult::Eventual::<()>::new()), Arc::new(AtomicUsize::new(0)));
    let mut waiting = Vec::new();
    for (place, sleeps) in [(1, false), (2, true)] {
        let (go, inside) = (go.clone(), inside.clone());
        let waits = move || {
            inside.fetch_add(1, Ordering::SeqCst);
            while sleeps && !go.is_ready() {
                ult::sleep(Duration::from_millis(50));
            }
            go.wait();
        };
        waiting.push(idle[place].layout().rpc_pool().spawn(waits).unwrap());
    }
    bounded("they wait", {
        let inside = inside.clone();
        move || {
            while inside.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
        }
    });
    let own = layout("another", limit);
    for lines in [1, 3, 5] {
        hog(&own, "another", lines);
    }
    let of_idle: Vec<_> = ["idle_one", "idle_two", "idle_three"].map(said_of).concat();
    assert_eq!(of_idle, Vec::<String>::new());
    assert!(idle.iter().all(|own| own.monitoring().stats().stalls == 0));
    go.set(()).unwrap();
    waiting.into_iter().for_each(|ult| ult.join().unwrap());
    for own in idle.iter().chain([&own]) {
        own.finalize_and_wait().unwrap();
    }
}
