//! `margo trace export`: recorded traces as spans of OpenTelemetry, in OTLP's JSON form, to a
//! collector or into a file.
//!
//! A call is a client span. The request that it sends is a server span below it, from its arrival
//! to the end of its handler, whose calls and transfers are below that. Ids are those of the trace.
//! One request to the collector, or one line of the file, has up to [`BATCH`] spans of one process.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use margo::daemon::Failure;
use serde_json::{Value, json};

use super::join::{open, starts};
use super::out::{Interrupt, Out};
use super::read::{Head, Kind, Slice};
use crate::support::output::{self, printable};
use crate::support::signals::Caught;

/// Most spans in a request; some 300 KiB.
const BATCH: usize = 512;

/// Seconds after which a collector is given up.
const LIMIT_SECONDS: u64 = 30;

/// `margo trace export`.
pub(crate) fn run(to: &str, files: &[PathBuf]) -> Result<(), Failure> {
    let signals = Caught::new()?;
    let parts = open(files)?;
    let starts = starts(parts.iter().map(|(_, _, head)| head));
    let interrupt = Interrupt::catch(&signals);
    let mut sink = Sink::open(to, &interrupt)?;
    for ((path, mut reader, head), start) in parts.into_iter().zip(starts) {
        let resource = resource(path, &head);
        let mut spans = Vec::new();
        let mut queue = None;
        while let Some(event) = reader.next()? {
            interrupt.check()?;
            let Some(slice) = reader.slice(&event)? else { continue };
            spans.extend(span(&mut queue, slice).map(|whole| whole.json(start)));
            if spans.len() >= BATCH {
                sink.send(&resource, std::mem::take(&mut spans))?;
            }
        }
        spans.extend(queue.map(|queue| Whole::Request(queue, None).json(start)));
        sink.send(&resource, spans)?;
    }
    interrupt.check()?;
    sink.end()
}

/// A span, of one slice or two.
enum Whole {
    One(Slice),
    /// A request that waited, and its handler, if it got there.
    Request(Slice, Option<Slice>),
}

/// The spans that are whole when `next` comes. The file has a handler right behind the slice of its
/// request's wait, which `queue` holds meanwhile.
fn span(queue: &mut Option<Slice>, next: Slice) -> impl Iterator<Item = Whole> {
    let waited = queue.take();
    let (first, second) = match (waited, next.kind) {
        (waited, Kind::Queue) => {
            *queue = Some(next);
            (waited.map(|waited| Whole::Request(waited, None)), None)
        }
        (Some(waited), Kind::Handler) if waited.span == next.span => {
            (None, Some(Whole::Request(waited, Some(next))))
        }
        (waited, _) => (waited.map(|waited| Whole::Request(waited, None)), Some(Whole::One(next))),
    };
    first.into_iter().chain(second)
}

impl Whole {
    /// The span of OTLP; `start` is the time of day at which the file begins.
    fn json(&self, start: i128) -> Value {
        let (first, last, handler) = match self {
            Self::One(slice) => (slice, slice, None),
            Self::Request(queue, handler) => {
                (queue, handler.as_ref().unwrap_or(queue), handler.as_ref())
            }
        };
        let at = |since: u64| (start + i128::from(since)).max(0).to_string();
        let event = |name: &str, time: Option<u64>| {
            time.map(|time| json!({ "name": name, "timeUnixNano": at(time) }))
        };
        let events: Vec<Value> = [
            event("sent", first.after("sent_us")),
            event("response arrived", first.after("arrived_us")),
            event("handler begins", handler.map(|handler| handler.begin_ns)),
            event("responded", handler.and_then(|handler| handler.after("responded_us"))),
        ]
        .into_iter()
        .flatten()
        .collect();
        // Numbers of the enumerations `SpanKind` and `StatusCode`.
        let kind = match first.kind {
            Kind::Call => 3,
            Kind::Queue | Kind::Handler => 2,
            Kind::Bulk => 1,
        };
        let status = match last.text("outcome") {
            "ok" => json!({ "code": 1 }),
            outcome => json!({ "code": 2, "message": outcome }),
        };
        json!({
            "traceId": format!("{:032x}", first.trace),
            "spanId": format!("{:016x}", first.span),
            "parentSpanId": first.parent.map_or(String::new(), |id| format!("{id:016x}")),
            "name": first.name,
            "kind": kind,
            "startTimeUnixNano": at(first.begin_ns),
            "endTimeUnixNano": at(last.end_ns.max(first.begin_ns)),
            "attributes": attributes(last),
            "events": events,
            "status": status,
        })
    }
}

/// The arguments of a slice that have no field of their own in a span.
fn attributes(slice: &Slice) -> Vec<Value> {
    let own = ["trace", "span", "parent", "outcome", "sent_us", "arrived_us", "responded_us"];
    let mut all = Vec::new();
    if slice.kind != Kind::Bulk {
        all.push(attribute("rpc.system", "margo".into()));
        all.push(attribute("rpc.method", slice.name.as_str().into()));
    }
    for (key, value) in slice.args.iter().filter(|(key, _)| !own.contains(&key.as_str())) {
        all.push(attribute(&format!("margo.{key}"), value.clone()));
    }
    all
}

/// An attribute. Numbers of 64 bits are text in this form.
fn attribute(key: &str, value: Value) -> Value {
    let value = match value {
        Value::Bool(value) => json!({ "boolValue": value }),
        Value::Number(number) => match number.as_i64() {
            Some(number) => json!({ "intValue": number.to_string() }),
            None => json!({ "doubleValue": number }),
        },
        Value::String(text) => json!({ "stringValue": text }),
        other => json!({ "stringValue": other.to_string() }),
    };
    json!({ "key": key, "value": value })
}

/// The process. Its service is called as the prefix of its file is, `PREFIX.HOST.PID.trace.json`.
fn resource(path: &Path, head: &Head) -> Value {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let behind = format!(".{}.{}.", head.host, head.pid);
    let service = name.split_once(&behind).map_or("margo", |(prefix, _)| prefix);
    json!({ "attributes": [
        attribute("service.name", service.into()),
        attribute("service.instance.id", head.address.as_str().into()),
        attribute("host.name", head.host.as_str().into()),
        attribute("process.pid", head.pid.into()),
    ] })
}

/// Where spans go.
struct Sink {
    to: Destination,
    spans: u64,
}

enum Destination {
    Collector(String),
    File(BufWriter<Out>),
}

impl Sink {
    fn open(to: &str, interrupt: &Interrupt) -> Result<Self, Failure> {
        let to = match to.split_once("://") {
            Some(("http", _)) => Destination::Collector(to.to_owned()),
            Some(_) => {
                let what = format!("{to}: spans go to a file, or by http, such as");
                return Err(Failure::Usage(format!("{what} http://localhost:4318/v1/traces")));
            }
            None => Destination::File(BufWriter::new(Out::open(Path::new(to), interrupt)?)),
        };
        Ok(Self { to, spans: 0 })
    }

    /// Sends spans of one process. None are no request.
    fn send(&mut self, resource: &Value, spans: Vec<Value>) -> Result<(), Failure> {
        if spans.is_empty() {
            return Ok(());
        }
        let count = spans.len() as u64;
        let scope = json!({ "name": "margo", "version": env!("CARGO_PKG_VERSION") });
        let request = json!({ "resourceSpans": [
            { "resource": resource, "scopeSpans": [{ "scope": scope, "spans": spans }] }
        ] });
        match &mut self.to {
            Destination::Collector(url) => {
                post(url, &request).map_err(|why| {
                    let taken = output::count(self.spans, "span");
                    Failure::new(&url, format!("{why} ({taken} taken before)"))
                })?;
            }
            Destination::File(file) => {
                let written = writeln!(file, "{request}");
                written.map_err(|error| file.get_ref().failed(error))?;
            }
        }
        self.spans += count;
        Ok(())
    }

    fn end(self) -> Result<(), Failure> {
        let spans = output::count(self.spans, "span");
        match self.to {
            Destination::Collector(url) => output::line(format_args!("{url}: {spans}")),
            Destination::File(mut file) => {
                file.flush().map_err(|error| file.get_ref().failed(error))?;
                let (out, _) = file.into_parts();
                out.end()?.say(format_args!("{spans}"))
            }
        }
    }
}

/// Hands spans to a collector. The reason why it has not taken all of them.
fn post(url: &str, request: &Value) -> Result<(), String> {
    let response = minreq::post(url)
        .with_header("Content-Type", "application/json")
        .with_body(request.to_string())
        .with_timeout(LIMIT_SECONDS)
        .send()
        .map_err(|error| error.to_string())?;
    let body = String::from_utf8_lossy(response.as_bytes());
    if response.status_code != 200 {
        let why: String = body.lines().next().unwrap_or_default().chars().take(200).collect();
        let status = response.status_code;
        return Err(format!("the collector answers with status {status}: {}", printable(&why)));
    }
    // It may be empty, and says more only where something is wrong.
    let partial = serde_json::from_str::<Value>(&body).unwrap_or_default();
    let partial = &partial["partialSuccess"];
    let rejected = partial["rejectedSpans"].as_str().and_then(|count| count.parse::<u64>().ok());
    let rejected = rejected.or(partial["rejectedSpans"].as_u64()).unwrap_or(0);
    match rejected {
        0 => Ok(()),
        rejected => {
            let why = printable(partial["errorMessage"].as_str().unwrap_or("it does not say why"));
            Err(format!("the collector has rejected {}: {why}", output::count(rejected, "span")))
        }
    }
}
