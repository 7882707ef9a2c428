//! The file: JSON in Chrome's trace event format, for `ui.perfetto.dev` and `chrome://tracing`.
//!
//! An array with one event per line, so that the file of a process that was killed can be read up
//! to its last whole line. `docs/tracing.md` has the events; `margo trace` reads them.
//!
//! Times are microseconds since the file was begun. The first event, `margo_trace`, tells how that
//! time relates to clocks of others.

use std::collections::HashSet;
use std::fmt::{Display, Write as _};
use std::io::{self, Write};
use std::sync::Arc;

use serde_json::Value;

use super::call_span::Recorded;
use super::clock::Anchor;
use super::context::SpanId;
use super::lanes::{Group, Lane, TraceLanes};
use super::record::{Record, What};
use crate::Principal;

/// Room that is kept for the last lines.
const END_BYTES: u64 = 4096;

/// Version of the events' meaning.
const VERSION: u32 = 1;

/// The process that writes the file.
#[derive(Debug, Clone)]
pub(super) struct Author {
    pub(super) address: String,
    pub(super) host: String,
    pub(super) pid: u32,
    /// The instance, which has the names of the xstreams.
    pub(super) instance: Arc<dyn Recorded>,
}

/// Writes events. An error of `out` ends the file; see [`Lines::error`].
#[derive(Debug)]
pub(super) struct Lines<W> {
    out: W,
    author: Author,
    anchor: Anchor,
    bytes_max: u64,
    bytes: u64,
    lanes: TraceLanes,
    named: HashSet<u32>,
    /// Records that were lost because too many waited.
    lost: u64,
    /// Records that were left out because the file is full: those that had begun before that was
    /// known.
    left_out: u64,
    error: Option<io::Error>,
    line: String,
}

impl<W: Write> Lines<W> {
    pub(super) fn new(out: W, author: Author, anchor: Anchor, bytes_max: u64) -> Self {
        let mut lines = Self {
            out,
            author,
            anchor,
            bytes_max,
            bytes: 0,
            lanes: TraceLanes::default(),
            named: HashSet::new(),
            lost: 0,
            left_out: 0,
            error: None,
            line: String::new(),
        };
        lines.begin();
        lines
    }

    fn begin(&mut self) {
        let Author { address, host, pid, .. } = self.author.clone();
        let Anchor { host_id, monotonic_ns, realtime_ns, .. } = self.anchor.clone();
        self.put("[\n");
        let args = serde_json::json!({
            "version": VERSION, "address": address, "host": host, "pid": pid, "host_id": host_id,
            "monotonic_ns": monotonic_ns, "realtime_ns": realtime_ns,
        });
        self.meta("margo_trace", 0, &args);
        let name = format!("{address} ({host}, {pid})");
        self.meta("process_name", 0, &serde_json::json!({ "name": name }));
    }

    /// Why nothing more is written.
    pub(super) fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Something did not fit: nothing more is written but the last line.
    pub(super) fn is_full(&self) -> bool {
        self.left_out > 0
    }

    pub(super) fn record(&mut self, record: &Record) {
        if self.error.is_some() || self.bytes + END_BYTES > self.bytes_max {
            self.left_out += 1;
            return;
        }
        match &record.what {
            What::Call { .. } => self.call(record),
            What::Request { started, .. } => self.request(record, *started),
            What::Bulk { .. } => self.bulk(record),
        }
    }

    /// So many records were lost, in all.
    pub(super) fn lost(&mut self, lost: u64, now: u64) {
        if lost <= self.lost || self.bytes + END_BYTES > self.bytes_max {
            self.lost = lost;
            return;
        }
        let more = lost - self.lost;
        self.lost = lost;
        self.lanes.forget_kept();
        let place = self.place(0, now);
        let what = format!(r#""cat":"margo","name":"{more} records lost: margo.trace.queue_max""#);
        self.event(&format_args!(r#"{{"ph":"i","s":"p",{what},{place}}}"#));
    }

    pub(super) fn flush(&mut self) {
        if self.error.is_none()
            && let Err(error) = self.out.flush()
        {
            self.error = Some(error);
        }
    }

    /// The last line. Where all of it has gone.
    pub(super) fn end(mut self) -> io::Result<W> {
        let args = serde_json::json!({ "lost": self.lost, "left_out": self.left_out });
        let pid = self.author.pid;
        self.put(&format!(
            "{{\"ph\":\"M\",\"name\":\"margo_end\",\"pid\":{pid},\"tid\":0,\"args\":{args}}}\n]\n"
        ));
        self.flush();
        self.error.map_or(Ok(self.out), Err)
    }

    fn call(&mut self, record: &Record) {
        let What::Call { one_way, sent, arrived, bytes_out, bytes_in } = &record.what else {
            return;
        };
        let track = self.inner_track(record);
        let mut args = self.args(record);
        let mut add = |key, value: Value| _ = args.insert(String::from(key), value);
        add("bytes_out", (*bytes_out).into());
        bytes_in.iter().for_each(|bytes| add("bytes_in", (*bytes).into()));
        sent.iter().for_each(|at| add("sent_us", micros(at.saturating_sub(record.begin))));
        arrived.iter().for_each(|at| add("arrived_us", micros(at.saturating_sub(record.begin))));
        if *one_way {
            add("one_way", true.into());
        }
        self.slice("call", record.rpc, track, record.begin, record.end, &Value::Object(args));
        // From somewhere inside, so that it is this slice from which it goes.
        let from = sent.unwrap_or(record.begin).clamp(record.begin, record.end);
        self.arrow("s", record.span_id, track, from);
    }

    fn request(&mut self, record: &Record, started: Option<u64>) {
        let What::Request { pool, caller, responded, bytes_in, bytes_out, .. } = &record.what
        else {
            return;
        };
        let queue_end = started.unwrap_or(record.end);
        let group = Group::Pool(pool.clone());
        let lane = self.lanes.place(&group, record.begin, queue_end);
        let queue = self.track(&group, lane);
        let mut args = self.args(record);
        args.insert("pool".into(), pool.as_str().into());
        if *caller != Principal::Unknown {
            args.insert("caller".into(), caller.to_string().into());
        }
        if let What::Request { on_behalf_of: Some(who), .. } = &record.what {
            args.insert("on_behalf_of".into(), who.to_string().into());
        }
        let waited = Value::Object(args.clone());
        self.slice("queue", record.rpc, queue, record.begin, queue_end, &waited);
        let Some(started) = started else {
            // It never got to a handler.
            record.parent.iter().for_each(|call| self.arrow("f", *call, queue, record.begin));
            return;
        };
        record.parent.iter().for_each(|call| self.arrow("t", *call, queue, record.begin));
        let mut add = |key, value: Value| _ = args.insert(String::from(key), value);
        add("bytes_in", (*bytes_in).into());
        bytes_out.iter().for_each(|bytes| add("bytes_out", (*bytes).into()));
        responded.iter().for_each(|at| add("responded_us", micros(at.saturating_sub(started))));
        let group = group_of(record);
        let lane = self.lanes.place_handler(record.span_id, &group, started, record.end);
        let track = self.track(&group, lane);
        self.slice("handler", record.rpc, track, started, record.end, &Value::Object(args));
        record.parent.iter().for_each(|call| self.arrow("f", *call, track, started));
    }

    fn bulk(&mut self, record: &Record) {
        let What::Bulk { direction, bytes } = &record.what else { return };
        let track = self.inner_track(record);
        let mut args = self.args(record);
        args.insert("bytes".into(), (*bytes).into());
        args.insert("direction".into(), (*direction).into());
        let args = Value::Object(args);
        self.slice("bulk", direction, track, record.begin, record.end, &args);
    }

    /// The track of operations that a handler may wait for.
    fn inner_track(&mut self, record: &Record) -> u32 {
        let (group, begin, end) = (group_of(record), record.begin, record.end);
        let lane = match record.within {
            Some(within) => self.lanes.place_inside(within.span_id, &group, within.begin, end),
            None => self.lanes.place(&group, begin, end),
        };
        self.track(&group, lane)
    }

    fn args(&self, record: &Record) -> serde_json::Map<String, Value> {
        let id = |id: Option<SpanId>| id.map_or(Value::Null, |id| id.to_string().into());
        let (trace, span) = (record.trace_id, record.span_id);
        let mut args = serde_json::Map::new();
        args.insert("trace".into(), trace.to_string().into());
        args.insert("span".into(), span.to_string().into());
        args.insert("parent".into(), id(record.parent));
        record.provider.iter().for_each(|id| _ = args.insert("provider".into(), id.get().into()));
        if let Some(peer) = &record.peer {
            args.insert("peer".into(), peer.to_string().into());
        }
        args.insert("outcome".into(), record.outcome.into());
        if let Some(ult) = record.place.ult {
            args.insert("ult".into(), ult.into());
        }
        args
    }

    /// The number of a lane's track, which gets its name at first.
    fn track(&mut self, group: &Group, lane: Lane) -> u32 {
        if lane.is_new && self.named.insert(lane.track) {
            let name = match group {
                Group::Threads => "threads".to_owned(),
                Group::Xstream(index) => {
                    let name = self.author.instance.xstream_name(*index);
                    name.unwrap_or_else(|| format!("xstream {index}"))
                }
                Group::Pool(pool) => format!("waiting in {pool}"),
            };
            let name = match lane.number {
                0 => name,
                number => format!("{name} #{}", number + 1),
            };
            self.meta("thread_name", lane.track, &serde_json::json!({ "name": name }));
            let order = serde_json::json!({ "sort_index": lane.track });
            self.meta("thread_sort_index", lane.track, &order);
        }
        lane.track
    }

    fn slice(&mut self, cat: &str, name: &str, tid: u32, begin: u64, end: u64, args: &Value) {
        let (place, dur) = (self.place(tid, begin), Us(end.saturating_sub(begin)));
        let what = format!(r#""cat":"{cat}","name":{}"#, Value::from(name));
        self.event(&format_args!(r#"{{"ph":"X",{what},{place},"dur":{dur},"args":{args}}}"#));
    }

    /// A part of the arrow that stands for a call: `s` its begin, `t` a stop, `f` its end.
    fn arrow(&mut self, phase: &str, call: SpanId, tid: u32, at: u64) {
        let place = self.place(tid, at);
        let bind = if phase == "f" { r#""bp":"e","# } else { "" };
        let what = format!(r#""cat":"rpc","name":"rpc","id":"0x{call}""#);
        self.event(&format_args!(r#"{{"ph":"{phase}",{bind}{what},{place}}}"#));
    }

    fn place(&self, tid: u32, at: u64) -> String {
        format!(r#""pid":{},"tid":{tid},"ts":{}"#, self.author.pid, Us(self.since(at)))
    }

    fn meta(&mut self, name: &str, tid: u32, args: &Value) {
        let pid = self.author.pid;
        self.event(&format_args!(
            r#"{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"args":{args}}}"#
        ));
    }

    fn event(&mut self, event: &dyn Display) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        // A string takes whatever is written.
        let _ = writeln!(line, "{event},");
        self.put(&line);
        self.line = line;
    }

    fn put(&mut self, text: &str) {
        if self.error.is_some() {
            return;
        }
        self.bytes += text.len() as u64;
        if let Err(error) = self.out.write_all(text.as_bytes()) {
            self.error = Some(error);
        }
    }

    fn since(&self, at: u64) -> u64 {
        at.saturating_sub(self.anchor.monotonic_ns)
    }
}

fn group_of(record: &Record) -> Group {
    record.place.xstream.map_or(Group::Threads, Group::Xstream)
}

/// Nanoseconds as microseconds, to the last digit.
struct Us(u64);

impl Display for Us {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[allow(clippy::cast_precision_loss, reason = "exact up to 104 days")]
fn micros(nanos: u64) -> Value {
    (nanos as f64 / 1000.0).into()
}
