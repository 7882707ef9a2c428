//! Reads a file line by line, so that its size does not matter, and what is left of the file of a
//! process that was killed can be read.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use margo::daemon::Failure;

/// Longest line, bytes; ours are far shorter.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Version of the events that is understood.
pub(super) const VERSION: u64 = 1;

/// An event of the file.
pub(super) type Event = Map<String, Value>;

/// The process that has written a file.
#[derive(Debug, Clone, Default)]
pub(super) struct Head {
    /// Several files have been put together.
    pub(super) is_joined: bool,
    /// The host: processes of one id have the same monotonic clock.
    pub(super) host_id: String,
    #[cfg(feature = "otlp")]
    pub(super) host: String,
    #[cfg(feature = "otlp")]
    pub(super) address: String,
    pub(super) pid: u64,
    pub(super) monotonic_ns: u64,
    pub(super) realtime_ns: u64,
}

/// A file that is being read.
#[derive(Debug)]
pub(super) struct Reader {
    lines: BufReader<File>,
    path: PathBuf,
    number: u64,
    line: Vec<u8>,
    /// It was written to its end.
    pub(super) is_whole: bool,
}

impl Reader {
    /// Opens a file and reads which process has written it.
    pub(super) fn open(path: &Path) -> Result<(Self, Head), Failure> {
        match Self::begin(path)? {
            (reader, Some((version, head))) if version == VERSION => Ok((reader, head)),
            (reader, Some((version, _))) => {
                let text = format!("version {version} of traces; this command reads {VERSION}");
                Err(reader.wrong(&text))
            }
            (reader, None) => Err(reader.wrong("this is no trace that margo has written")),
        }
    }

    /// Returns true if a process has recorded the file, of whatever version.
    pub(super) fn is_recorded(path: &Path) -> bool {
        Self::begin(path).is_ok_and(|(_, head)| head.is_some_and(|(_, head)| !head.is_joined))
    }

    /// Opens a file. Returns its version and its writer if it is a trace.
    fn begin(path: &Path) -> Result<(Self, Option<(u64, Head)>), Failure> {
        let file = File::open(path).map_err(|error| Failure::new(path.display(), error))?;
        let lines = BufReader::with_capacity(1 << 16, file);
        let (line, path) = (Vec::new(), path.to_owned());
        let mut reader = Self { lines, path, number: 0, line, is_whole: false };
        reader.read_line()?;
        if reader.line.is_empty() {
            return Err(reader.wrong("the file is empty"));
        }
        let is_array = reader.line.trim_ascii() == b"[";
        let head = if is_array { reader.next()? } else { None };
        let head = head.as_ref().and_then(Reader::head);
        Ok((reader, head))
    }

    fn head(event: &Event) -> Option<(u64, Head)> {
        let args = event.get("args")?.as_object()?;
        let number = |key: &str| args.get(key)?.as_u64();
        let text = |key: &str| Some(args.get(key)?.as_str()?.to_owned());
        let version = number("version")?;
        match event.get("name")?.as_str()? {
            "margo_joined" => Some((version, Head { is_joined: true, ..Head::default() })),
            "margo_trace" => {
                let head = Head {
                    is_joined: false,
                    host_id: text("host_id")?,
                    #[cfg(feature = "otlp")]
                    host: text("host").unwrap_or_default(),
                    #[cfg(feature = "otlp")]
                    address: text("address").unwrap_or_default(),
                    pid: number("pid")?,
                    monotonic_ns: number("monotonic_ns")?,
                    realtime_ns: number("realtime_ns")?,
                };
                Some((version, head))
            }
            _ => None,
        }
    }

    /// The next event. `None`: there is none any more; if the file is not whole, a last line that
    /// was cut off is not an error.
    pub(super) fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            self.read_line()?;
            let has_end = self.line.ends_with(b"\n");
            let text = self.line.trim_ascii();
            if self.line.is_empty() {
                return Ok(None);
            }
            if text == b"]" {
                return self.at_end();
            }
            if text.is_empty() {
                continue;
            }
            let text = text.strip_suffix(b",").unwrap_or(text);
            return match serde_json::from_slice(text) {
                Ok(Value::Object(event)) => {
                    self.is_whole |= event.get("name").is_some_and(|name| name == "margo_end");
                    Ok(Some(event))
                }
                _ if !has_end => Ok(None),
                Ok(_) => Err(self.wrong("this is no event")),
                Err(error) => Err(self.wrong(&format!("the event is damaged: {error}"))),
            };
        }
    }

    fn at_end(&mut self) -> Result<Option<Event>, Failure> {
        self.read_line()?;
        if self.line.is_empty() {
            return Ok(None);
        }
        Err(self.wrong("there is something behind the end"))
    }

    fn read_line(&mut self) -> Result<(), Failure> {
        self.line.clear();
        self.number += 1;
        let mut limited = (&mut self.lines).take(LINE_BYTES_MAX);
        let read = limited.read_until(b'\n', &mut self.line);
        read.map_err(|error| Failure::new(self.path.display(), error))?;
        if self.line.len() as u64 == LINE_BYTES_MAX {
            return Err(self.wrong("this is no trace that margo has written: a line is too long"));
        }
        Ok(())
    }

    /// An error at the line that was read last.
    pub(super) fn wrong(&self, why: &str) -> Failure {
        Failure::Failed(format!("{}, line {}: {why}", self.path.display(), self.number))
    }
}

/// A slice: a call, a request that waits, a handler, or a transfer.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) pid: u64,
    /// Since the beginning of the file.
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    pub(super) trace: u128,
    pub(super) span: u64,
    pub(super) parent: Option<u64>,
    pub(super) args: Event,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Call,
    Queue,
    Handler,
    Bulk,
}

impl Reader {
    /// The slice that this event is, if it is one.
    pub(super) fn slice(&self, event: &Event) -> Result<Option<Slice>, Failure> {
        if event.get("ph").is_none_or(|phase| phase != "X") {
            return Ok(None);
        }
        slice_of(event).map(Some).ok_or_else(|| self.wrong("the slice lacks something"))
    }
}

fn slice_of(event: &Event) -> Option<Slice> {
    let args = event.get("args")?.as_object()?;
    let hex = |key: &str| u128::from_str_radix(args.get(key)?.as_str()?, 16).ok();
    let id = |key: &str| hex(key).and_then(|id| u64::try_from(id).ok());
    let kind = match event.get("cat")?.as_str()? {
        "call" => Kind::Call,
        "queue" => Kind::Queue,
        "handler" => Kind::Handler,
        "bulk" => Kind::Bulk,
        _ => return None,
    };
    let begin_ns = nanos(event.get("ts")?)?;
    Some(Slice {
        kind,
        name: event.get("name")?.as_str()?.to_owned(),
        pid: event.get("pid")?.as_u64()?,
        begin_ns,
        end_ns: begin_ns.saturating_add(nanos(event.get("dur")?)?),
        trace: hex("trace")?,
        span: id("span")?,
        parent: match args.get("parent")? {
            Value::Null => None,
            _ => Some(id("parent")?),
        },
        args: args.clone(),
    })
}

impl Slice {
    /// A time of the arguments, from the begin of the slice on.
    pub(super) fn after(&self, key: &str) -> Option<u64> {
        Some(self.begin_ns.saturating_add(nanos(self.args.get(key)?)?))
    }

    pub(super) fn text(&self, key: &str) -> &str {
        self.args.get(key).and_then(Value::as_str).unwrap_or("?")
    }
}

/// Converts microseconds. `None`: not a number from 0 on that fits.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked before")]
pub(super) fn nanos(micros: &Value) -> Option<u64> {
    let nanos = (micros.as_f64()? * 1000.0).round();
    (0.0..=9e18).contains(&nanos).then_some(nanos as u64)
}
