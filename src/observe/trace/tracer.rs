//! The tracer of an instance that records: which calls are sampled, and the way to its file.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use margo_config::TraceOptions;
use ult::Eventual;

use super::call_span::{Recorded, SpanOfTrace};
use super::clock::{Anchor, Mapping};
use super::context::{Rate, TraceContext};
use super::file::{Author, Lines};
use super::record::{Record, What};
use crate::observe::clock::Moment;
use crate::observe::queue::{Sender, Writer};
use crate::observe::span::{BulkDirection, BulkSpan, OriginSpan, TargetSpan};
use crate::support::files;
use crate::support::log::{Log, log};

/// Files of earlier runs, of the same name, that an instance passes by.
const NUMBERS_TRIED: u32 = 10_000;

/// The tracer of an instance that records.
pub(crate) struct Tracer {
    calls: Rate,
    requests: Rate,
    sender: Sender<Record>,
    path: PathBuf,
}

impl Tracer {
    /// Begins the file of an instance. `address`: its own.
    pub(crate) fn start(
        options: &TraceOptions,
        address: String,
        instance: Arc<dyn Recorded>,
        log: Log,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let pid = std::process::id();
        let (path, file) = create(&options.filename_prefix, &host, pid);
        let started = file.and_then(|file| {
            let author = Author { address, host, pid, instance: instance.clone() };
            let (out, anchor) = (files::Growing::buffered(file), Anchor::now());
            let lines = Lines::new(out, author, anchor, options.file_bytes_max);
            let (mapping, path) = (Mapping::new(), path.clone());
            let writer = FileWriter { lines, mapping, path, instance, log };
            Sender::start("margo-trace", options.queue_max, writer)
        });
        let sender = match started {
            Ok(sender) => sender,
            Err(error) => return Err((path, error)),
        };
        let requests = options.request_sample_rate.unwrap_or(options.sample_rate);
        let (calls, requests) = (Rate::new(options.sample_rate), Rate::new(requests));
        Ok(Self { calls, requests, sender, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// For a call outside of any handler.
    pub(crate) fn sample_call(&self) -> Option<TraceContext> {
        self.calls.takes().then(TraceContext::begin)
    }

    /// For a request that says nothing.
    pub(crate) fn sample_request(&self) -> Option<TraceContext> {
        self.requests.takes().then(TraceContext::begin)
    }

    /// A call is over. `trace`: that of the span.
    pub(crate) fn call(&self, span: &OriginSpan, trace: &SpanOfTrace) {
        let ends = [span.decoded, span.resumed, span.arrived, span.sent, span.encode_end];
        let what = What::Call {
            one_way: span.one_way,
            sent: span.sent.map(Moment::ticks),
            arrived: span.arrived.map(Moment::ticks),
            bytes_out: span.bytes_out,
            bytes_in: span.bytes_in,
        };
        self.sender.send(Record {
            rpc: span.rpc,
            provider: Some(span.provider),
            peer: Some(span.peer.clone()),
            begin: span.created.ticks(),
            end: last(span.created, ends),
            outcome: span.outcome.name(),
            ..Record::of(trace, what)
        });
    }

    /// A request is over.
    pub(crate) fn request(&self, span: &TargetSpan, trace: &SpanOfTrace) {
        let ends = [span.ended, span.sent, span.respond_end, span.respond_start, span.started];
        let what = What::Request {
            pool: span.pool.name().to_owned(),
            caller: span.caller,
            on_behalf_of: span.on_behalf_of.clone(),
            started: span.started.map(Moment::ticks),
            responded: span.respond_start.map(Moment::ticks),
            bytes_in: span.bytes_in,
            bytes_out: span.bytes_out,
        };
        // The slice is that of the handler: what is sent later is not.
        let end = span.ended.map_or_else(|| last(span.arrived, ends), Moment::ticks);
        self.sender.send(Record {
            rpc: span.rpc,
            provider: Some(span.provider),
            peer: Some(span.peer.clone()),
            begin: span.arrived.ticks(),
            end,
            outcome: span.outcome.name(),
            ..Record::of(trace, what)
        });
    }

    /// A bulk transfer is over.
    pub(crate) fn bulk(&self, span: &BulkSpan, trace: &SpanOfTrace) {
        let direction = match span.direction {
            BulkDirection::Pull => "pull",
            BulkDirection::Push => "push",
        };
        let what = What::Bulk { direction, bytes: span.bytes };
        self.sender.send(Record {
            rpc: direction,
            provider: None,
            peer: Some(span.peer.clone()),
            begin: span.created.ticks(),
            end: last(span.created, [span.resumed, span.ended, span.started, None, None]),
            outcome: span.outcome.name(),
            ..Record::of(trace, what)
        });
    }

    /// Has what there is written, and the file ended; what tells that it is.
    pub(crate) fn close(&self) -> &Eventual<()> {
        self.sender.close()
    }
}

/// The first that was reached, from the last one on.
fn last(begin: Moment, ends: [Option<Moment>; 5]) -> u64 {
    ends.into_iter().flatten().next().unwrap_or(begin).ticks()
}

/// A file that was not there: in a container that is started again host and process have the same
/// names, and the file of the run before may be the one of a crash. The first instance of a process
/// has no number if that is free.
fn create(prefix: &str, host: &str, pid: u32) -> (PathBuf, io::Result<File>) {
    static NUMBERS: AtomicU32 = AtomicU32::new(1);
    for _ in 0..NUMBERS_TRIED {
        let path: PathBuf = match NUMBERS.fetch_add(1, Ordering::Relaxed) {
            1 => format!("{prefix}.{host}.{pid}.trace.json").into(),
            number => format!("{prefix}.{host}.{pid}.{number}.trace.json").into(),
        };
        match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return (path, created),
        }
    }
    let path = format!("{prefix}.{host}.{pid}.*.trace.json").into();
    let why = format!("{NUMBERS_TRIED} files of that name are there: remove some");
    (path, Err(io::Error::new(io::ErrorKind::AlreadyExists, why)))
}

struct FileWriter {
    lines: Lines<files::Out>,
    mapping: Mapping,
    path: PathBuf,
    instance: Arc<dyn Recorded>,
    log: Log,
}

impl Writer for FileWriter {
    type Record = Record;

    fn begin(&mut self) {
        self.mapping.renew();
    }

    fn record(&mut self, mut record: Record) {
        // It may have come since both clocks were read.
        record.map_times(|ticks| self.mapping.nanos(ticks));
        self.tell(|lines| lines.record(&record));
    }

    fn lost(&mut self, lost: u64) {
        let now = self.mapping.nanos(Moment::now().ticks());
        self.tell(|lines| lines.lost(lost, now));
    }

    fn flush(&mut self) {
        self.tell(Lines::flush);
    }

    fn end(self) {
        let had_failed = self.lines.error().is_some();
        if let Err(error) = self.lines.end().and_then(files::close)
            && !had_failed
        {
            let path = self.path.display();
            log!(self.log, ERROR, %path, %error, "the trace cannot be written");
        }
    }
}

impl FileWriter {
    /// The first error is told, and that the file is full. Nothing is written afterwards, so calls
    /// do not pay for it any more.
    fn tell(&mut self, change: impl FnOnce(&mut Lines<files::Out>)) {
        let (had_failed, was_full) = (self.lines.error().is_some(), self.lines.is_full());
        change(&mut self.lines);
        let path = self.path.display();
        if let Some(error) = self.lines.error().filter(|_| !had_failed) {
            log!(self.log, ERROR, %path, %error, "the trace cannot be written; no more is");
        } else if self.lines.is_full() && !was_full && !had_failed {
            let why = "the trace file is full (`margo.trace.file_bytes_max`)";
            log!(self.log, WARN, %path, "{why}; nothing more is recorded");
        } else {
            return;
        }
        self.instance.stop_recording();
    }
}
