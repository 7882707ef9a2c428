//! Callbacks of the end that hang, or wait for the end themselves: in which order the others run,
//! and what the log says.

use std::fmt::Write;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use crate::common::{self, bounded};
use margo::monitor::{LifeEvent, Monitor};
use margo::{Instance, OneWay, ProviderHandle, Rpc, errors::FinalizeError, errors::StageOver};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};
use ult::Eventual;

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const TELL: OneWay<()> = OneWay::new("tell");

/// Long enough for callbacks that do next to nothing.
const GRACE: Duration = Duration::from_secs(2);

/// Notes of what happened, in order.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn end(instance: &Instance) {
    let own = instance.clone();
    bounded("finalize", move || own.finalize_and_wait().unwrap());
}

/// Logged events: level and text.
static SEEN: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());

#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

fn keep_the_log() {
    static ONCE: Once = Once::new();
    let hear = |event: &Event<'_>| {
        let mut fields = Fields::default();
        event.record(&mut fields);
        SEEN.lock().unwrap().push((*event.metadata().level(), fields.0));
    };
    ONCE.call_once(|| common::log::listen(Level::WARN, hear));
}

/// Returns the events that concern the callback entered on this line of this file.
fn logged_of(line: u32) -> Vec<(Level, String)> {
    let place = format!("{}:{line}:", file!());
    let seen = SEEN.lock().unwrap();
    seen.iter().filter(|(_, text)| text.contains(&place)).cloned().collect()
}

#[test]
fn after_one_that_hangs_the_others_still_come_in_their_stage() {
    keep_the_log();
    let service = Instance::builder("na+sm://").start().unwrap();
    service.serve(SUM).function(|(a, b)| a + b).unwrap();
    let own = Instance::builder("na+sm://").listen(false).grace(GRACE).start().unwrap();
    let target = ProviderHandle::from(own.lookup(service.self_addr().uri()).unwrap());
    let (notes, gate) = (Notes::default(), Arc::new(Eventual::<()>::new()));
    let ended = Arc::new(Eventual::<()>::new());
    for index in 0..2 {
        let (notes, target) = (notes.clone(), target.clone());
        let calls = move |own: &Instance| {
            let sum = own.forward(SUM, &target, &(index, 1)).unwrap();
            notes.add(format!("before {sum}"));
        };
        own.on_prefinalize(calls).unwrap().keep();
    }
    let (note, opens, tells) = (notes.clone(), gate.clone(), ended.clone());
    let hangs = move |_: &Instance| {
        note.add("hangs");
        opens.wait_ready();
        note.add("ended");
        tells.set(()).unwrap();
    };
    let line = line!() + 1;
    own.on_prefinalize(hangs).unwrap().keep();
    for index in 0..2 {
        let note = notes.clone();
        own.on_finalize(move |_| note.add(format!("after {index}"))).unwrap().keep();
    }
    end(&own);
    let expected = ["hangs", "before 2", "before 1", "after 1", "after 0"];
    assert_eq!(notes.all(), expected);
    gate.set(()).unwrap();
    bounded("a callback that hung", move || ended.wait_ready());
    assert_eq!(notes.all()[5..], ["ended"], "nothing runs twice");
    let logged = logged_of(line);
    let [(Level::ERROR, text)] = &*logged else { panic!("{logged:?}") };
    assert!(text.contains("stage=Before left=2 "), "{text}");
    end(&service);
}

#[test]
fn a_callback_that_panics_is_named() {
    keep_the_log();
    let own = Instance::builder("na+sm://").start().unwrap();
    let line = line!() + 1;
    own.on_finalize(|_| panic!("on purpose")).unwrap().keep();
    end(&own);
    let logged = logged_of(line);
    // The panic hook's own words go elsewhere.
    let [(Level::ERROR, text)] = &*logged else { panic!("{logged:?}") };
    assert!(text.contains("on purpose"), "{text}");
}

/// Asks for the end of an instance in each way that waits; what comes of it.
fn wait_for(instance: &Instance) -> String {
    let told = |result: Result<(), FinalizeError>| match result {
        Err(FinalizeError::OwnCallback) => "refused".to_owned(),
        other => format!("{other:?}"),
    };
    format!("{} {}", told(instance.wait_for_finalize()), told(instance.finalize_and_wait()))
}

#[test]
fn a_callback_cannot_wait_for_the_end_that_waits_for_it() {
    // Only a hang takes so long.
    let own = Instance::builder("na+sm://").grace(common::PATIENCE * 2).start().unwrap();
    let notes = Notes::default();
    let note = notes.clone();
    own.on_prefinalize(move |_| note.add("before")).unwrap().keep();
    let note = notes.clone();
    own.on_prefinalize(move |own| note.add(wait_for(own))).unwrap().keep();
    let note = notes.clone();
    own.on_finalize(move |own| note.add(wait_for(own))).unwrap().keep();
    end(&own);
    assert_eq!(notes.all(), ["refused refused", "before", "refused refused"]);
    // The same thread may wait otherwise.
    assert_eq!(wait_for(&own), "Ok(()) Ok(())");
}

#[test]
fn a_callback_of_a_child_cannot_wait_for_the_parent_either() {
    let grace = common::PATIENCE * 2;
    let parent = Instance::builder("na+sm://").grace(grace).start().unwrap();
    let other = Instance::builder("na+sm://").start().unwrap();
    let child = Instance::builder("na+sm://").grace(grace).parent(&parent).start().unwrap();
    let notes = Notes::default();
    let (note, above, stranger) = (notes.clone(), parent.clone(), other.clone());
    child
        .on_prefinalize(move |own| {
            note.add(format!("{}, parent {}", wait_for(own), wait_for(&above)));
            stranger.finalize_and_wait().unwrap();
        })
        .unwrap()
        .keep();
    let (note, below) = (notes.clone(), child.clone());
    parent.on_prefinalize(move |_| note.add(wait_for(&below))).unwrap().keep();
    end(&parent);
    assert_eq!(notes.all(), ["refused refused, parent refused refused", "Ok(()) Ok(())"]);
    assert!(other.is_finalized());
}

/// Notes what comes of waiting for the end, when it is dropped.
struct WaitsInDrop(Instance, Notes);

impl Drop for WaitsInDrop {
    fn drop(&mut self) {
        self.1.add(format!("destructor {}", wait_for(&self.0)));
    }
}

/// Waits for the end when it hears of it.
struct WaitsAtTheEnd(Mutex<Option<Instance>>, Notes);

impl Monitor for WaitsAtTheEnd {
    fn on_event(&self, event: &LifeEvent<'_>) {
        if matches!(event, LifeEvent::Finalizing) {
            let own = self.0.lock().unwrap().take();
            self.1.add(format!("monitor {}", wait_for(&own.unwrap())));
        }
    }
}

#[test]
fn nor_can_other_code_that_the_end_runs() {
    let own = Instance::builder("na+sm://").start().unwrap();
    let notes = Notes::default();
    let monitor = WaitsAtTheEnd(Mutex::new(Some(own.clone())), notes.clone());
    own.monitoring().add_monitor(Arc::new(monitor)).keep();
    let waits = WaitsInDrop(own.clone(), notes.clone());
    let handler = own.serve(TELL).handler(move |_| {
        let _ = &waits;
    });
    handler.unwrap();
    end(&own);
    assert_eq!(notes.all(), ["monitor refused refused", "destructor refused refused"]);
}

#[test]
fn callbacks_that_enter_the_next_one_for_ever_come_to_an_end() {
    fn again(own: &Instance, told: &Arc<Eventual<StageOver>>) {
        let tell = told.clone();
        match own.on_prefinalize(move |own| again(own, &tell)) {
            Ok(entered) => entered.keep(),
            Err(over) => told.set(over).unwrap(),
        }
    }
    let own = Instance::builder("na+sm://").grace(Duration::from_millis(50)).start().unwrap();
    let (told, after) = (Arc::new(Eventual::new()), Notes::default());
    let note = after.clone();
    again(&own, &told);
    own.on_finalize(move |_| note.add("after")).unwrap().keep();
    end(&own);
    let last = told.clone();
    bounded("the last one", move || last.wait_ready());
    assert_eq!(told.try_get(), Some(&StageOver));
    assert_eq!(after.all(), ["after"]);
}

/// Destructors of handlers and monitors take the grace period at most, each, like callbacks.
#[test]
fn destructors_and_monitors_that_hang_do_not_keep_an_instance_from_its_end() {
    /// Hangs in its destructor, and then tells.
    struct Hangs(Arc<Eventual<()>>, Arc<Eventual<()>>);
    impl Drop for Hangs {
        fn drop(&mut self) {
            self.0.wait();
            let _ = self.1.set(());
        }
    }
    struct Slow(Arc<Eventual<()>>);
    impl Monitor for Slow {
        fn on_event(&self, event: &LifeEvent<'_>) {
            if matches!(event, LifeEvent::Finalizing | LifeEvent::Finalized) {
                self.0.wait();
            }
        }
    }
    keep_the_log();
    let (go, over) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
    let grace = Duration::from_millis(50);
    let instance = Instance::builder("na+sm://")
        .grace(grace)
        .monitor(Arc::new(Slow(go.clone())))
        .start()
        .unwrap();
    let owned = Hangs(go.clone(), over.clone());
    let handler = move |request: margo::Handle<(i64, i64), i64>| {
        let _ = &owned;
        drop(request);
    };
    instance.register(SUM, handler).unwrap();
    end(&instance);
    let seen = SEEN.lock().unwrap().clone();
    for what in ["a destructor of a handler does not end", "a monitor does not end"] {
        let told = seen.iter().any(|(level, text)| *level == Level::ERROR && text.contains(what));
        assert!(told, "{what}: {seen:?}");
    }
    assert!(!over.is_ready());
    go.set(()).unwrap();
    over.wait();
}
