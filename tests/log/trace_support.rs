//! Reads the files that instances write with `margo.trace`.

use std::path::{Path, PathBuf};

use margo::{Instance, config::Config};
use serde_json::{Value, json};

/// The difference that two clocks, read one after the other, may have, in nanoseconds.
pub(crate) const SLACK_NS: u64 = 20_000;

/// An instance that records, with more keys of `margo.trace`.
pub(crate) fn traced(address: &str, dir: &Path, name: &str, more: Value) -> Instance {
    let mut trace = json!({ "enable": true, "filename_prefix": dir.join(name) });
    trace.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let document = json!({ "margo": { "address": address, "trace": trace } });
    Instance::from_config(&Config::from_json(&document.to_string()).unwrap()).unwrap()
}

/// A slice of a file.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    pub(crate) cat: String,
    pub(crate) name: String,
    pub(crate) tid: u64,
    /// By the host's monotonic clock.
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) trace: String,
    pub(crate) span: String,
    pub(crate) parent: Option<String>,
    pub(crate) args: Value,
}

/// A file, complete.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) path: PathBuf,
    pub(crate) end: Value,
    pub(crate) slices: Vec<Slice>,
    /// Phase, id and track of arrows.
    pub(crate) arrows: Vec<(String, String, u64)>,
    pub(crate) tracks: Vec<(u64, String)>,
}

fn nanos(micros: &Value) -> u64 {
    (micros.as_f64().unwrap() * 1000.0).round() as u64
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
}

/// Ends the instance and reads its file.
pub(crate) fn finish(instance: Instance) -> Traced {
    let path = instance.monitoring().trace_file().unwrap();
    instance.finalize_and_wait().unwrap();
    read(&path)
}

pub(crate) fn read(path: &Path) -> Traced {
    let content = std::fs::read_to_string(path).unwrap();
    let events: Vec<Value> =
        serde_json::from_str(&content).unwrap_or_else(|e| panic!("{e}: {content}"));
    let head = &events[0];
    assert_eq!(head["name"], "margo_trace");
    let start = head["args"]["monotonic_ns"].as_u64().unwrap();
    let end = events.last().unwrap().clone();
    assert_eq!(end["name"], "margo_end");
    let (mut slices, mut arrows, mut tracks) = (Vec::new(), Vec::new(), Vec::new());
    for event in &events {
        let args = &event["args"];
        match event["ph"].as_str().unwrap() {
            "X" => slices.push(Slice {
                cat: text(&event["cat"]),
                name: text(&event["name"]),
                tid: event["tid"].as_u64().unwrap(),
                begin_ns: start + nanos(&event["ts"]),
                end_ns: start + nanos(&event["ts"]) + nanos(&event["dur"]),
                trace: text(&args["trace"]),
                span: text(&args["span"]),
                parent: args["parent"].as_str().map(str::to_owned),
                args: args.clone(),
            }),
            "M" if event["name"] == "thread_name" => {
                tracks.push((event["tid"].as_u64().unwrap(), text(&args["name"])));
            }
            "M" | "i" => {}
            phase => {
                let id = text(&event["id"]);
                arrows.push((phase.to_owned(), id, event["tid"].as_u64().unwrap()));
            }
        }
    }
    let traced = Traced { path: path.to_owned(), end, slices, arrows, tracks };
    traced.check();
    traced
}

impl Traced {
    pub(crate) fn of(&self, cat: &str) -> Vec<&Slice> {
        self.slices.iter().filter(|slice| slice.cat == cat).collect()
    }

    /// The only one.
    pub(crate) fn one(&self, cat: &str, name: &str) -> &Slice {
        let found: Vec<_> =
            self.slices.iter().filter(|slice| slice.cat == cat && slice.name == name).collect();
        assert_eq!(found.len(), 1, "{cat} {name}: {:#?}", self.slices);
        found[0]
    }

    pub(crate) fn has_arrow(&self, phase: &str, call: &Slice, tid: u64) -> bool {
        let id = format!("0x{}", call.span);
        self.arrows.iter().any(|arrow| *arrow == (phase.to_owned(), id.clone(), tid))
    }

    /// Checks the demands of viewers: slices of a track lie side by side or inside each other, and
    /// tracks have names.
    fn check(&self) {
        for a in &self.slices {
            assert!(self.tracks.iter().any(|(tid, _)| *tid == a.tid), "no name: {a:?}");
            for b in self.slices.iter().filter(|b| b.tid == a.tid && b.begin_ns > a.begin_ns) {
                let apart = b.begin_ns >= a.end_ns;
                assert!(apart || b.end_ns <= a.end_ns, "they cross: {a:?} {b:?}");
            }
        }
    }
}

/// Returns whether `inner`, of a handler until it has answered, lies within `outer`, as far as
/// clocks can tell.
pub(crate) fn lies_within(inner: &Slice, outer: &Slice) -> bool {
    let answered = inner.args.get("responded_us").map(|after| inner.begin_ns + nanos(after));
    let end_ns = answered.unwrap_or(inner.end_ns);
    inner.begin_ns + SLACK_NS >= outer.begin_ns && end_ns <= outer.end_ns + SLACK_NS
}
