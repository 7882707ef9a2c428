//! `margo trace join`: one file of several processes.
//!
//! Files are read line by line. Memory holds only the ids of the traces, and halves of calls until
//! their other half comes. Processes of one host have the same monotonic clock, which gives their
//! times; hosts are put together by their time of day.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::out::{Ended, Interrupt, Out};
use super::read::{Event, Head, Kind, Reader, Slice, VERSION, nanos};
use crate::support::output::{self, printable};
use crate::support::signals::Caught;
use margo::daemon::Failure;

/// How many kinds of calls without another half are named.
const NAMED_MAX: usize = 10;

/// `margo trace join`.
pub(crate) fn run(out: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let signals = Caught::new()?;
    let parts = open(files)?;
    let shifts = shifts(parts.iter().map(|(_, _, head)| head));
    let interrupt = Interrupt::catch(&signals);
    let mut joined = Joined::new(BufWriter::new(Out::open(out, &interrupt)?));
    joined.write(&meta("margo_joined", 0, &json!({ "version": VERSION })))?;
    for ((path, mut reader, head), shift) in parts.into_iter().zip(shifts) {
        let pid = joined.pid(head.pid);
        while let Some(event) = reader.next()? {
            interrupt.check()?;
            let moved = joined.take(&reader, event, pid, shift)?;
            moved.iter().try_for_each(|event| joined.write(event))?;
        }
        joined.tally.processes += 1;
        if !reader.is_whole {
            let why =
                "it ends early: its process was killed, or still runs; what is there is taken";
            output::note(format_args!("{}: warning: {why}", path.display()));
        }
    }
    interrupt.check()?;
    joined.end()
}

/// Opens files that processes have recorded.
pub(super) fn open(files: &[PathBuf]) -> Result<Vec<(&Path, Reader, Head)>, Failure> {
    let mut parts = Vec::new();
    for path in files {
        let (reader, head) = Reader::open(path)?;
        if head.is_joined {
            let why = "it was joined already; name the files that it was made of";
            return Err(Failure::new(path.display(), why));
        }
        parts.push((path.as_path(), reader, head));
    }
    Ok(parts)
}

/// Returns the time of day at which each file begins, in nanoseconds. Files of one host are apart
/// by what its monotonic clock says.
pub(super) fn starts<'a>(heads: impl Iterator<Item = &'a Head>) -> Vec<i128> {
    // Of the host's first file: what its time of day is ahead of its monotonic clock.
    let mut ahead: HashMap<&str, i128> = HashMap::new();
    heads
        .map(|head| {
            let (monotonic, day) = (i128::from(head.monotonic_ns), i128::from(head.realtime_ns));
            match head.host_id.as_str() {
                "" => day,
                host => monotonic + *ahead.entry(host).or_insert(day - monotonic),
            }
        })
        .collect()
}

/// Returns how many nanoseconds the times of each file are later than those of the earliest one.
fn shifts<'a>(heads: impl Iterator<Item = &'a Head>) -> Vec<u64> {
    let starts = starts(heads);
    let first = starts.iter().copied().min().unwrap_or(0);
    starts.into_iter().map(|start| u64::try_from(start - first).unwrap_or(u64::MAX)).collect()
}

/// A call whose other half is looked for.
struct Half {
    rpc: String,
    peer: String,
}

/// The file that has been put together so far.
struct Joined<W: Write> {
    out: W,
    pids: HashSet<u64>,
    tally: Tally,
}

/// Counts of what the joined file has, and the halves of calls that miss the other half.
#[derive(Default)]
struct Tally {
    processes: u64,
    calls: u64,
    /// Calls whose request has not come, by span.
    no_target: HashMap<u64, Half>,
    /// Requests whose call has not come, by the span of the call.
    no_origin: HashMap<u64, Half>,
    traces: HashSet<u128>,
    lost: u64,
    left_out: u64,
}

impl<W: Write> Joined<W> {
    fn new(mut out: W) -> Self {
        // What cannot be written is told at the next event.
        let _ = out.write_all(b"[\n");
        Self { out, pids: HashSet::new(), tally: Tally::default() }
    }

    /// A number for a process that no other one has: those of several hosts may be alike.
    fn pid(&mut self, wanted: u64) -> u64 {
        let free = |pid: &u64| !self.pids.contains(pid);
        let pid = [wanted].into_iter().chain(1..).find(free).unwrap_or(wanted);
        self.pids.insert(pid);
        pid
    }

    fn put(&mut self, event: &Event) -> std::io::Result<()> {
        serde_json::to_writer(&mut self.out, event)?;
        self.out.write_all(b",\n")
    }

    /// Moves an event of a file to where it belongs; `None`: it is not for the joined file.
    fn take(
        &mut self,
        reader: &Reader,
        mut event: Event,
        pid: u64,
        shift: u64,
    ) -> Result<Option<Event>, Failure> {
        if event.get("name").is_some_and(|name| name == "margo_end") {
            let count = |key: &str| event.get("args")?.get(key)?.as_u64();
            let tally = &mut self.tally;
            tally.lost = tally.lost.saturating_add(count("lost").unwrap_or(0));
            tally.left_out = tally.left_out.saturating_add(count("left_out").unwrap_or(0));
            return Ok(None);
        }
        if let Some(slice) = reader.slice(&event)? {
            self.tally.count(&slice);
        }
        event.insert("pid".into(), pid.into());
        if let Some(time) = event.get("ts") {
            let since = nanos(time).ok_or_else(|| reader.wrong("the event has no time"))?;
            event.insert("ts".into(), micros(since.saturating_add(shift)));
        }
        Ok(Some(event))
    }
}

impl Joined<BufWriter<Out>> {
    fn write(&mut self, event: &Event) -> Result<(), Failure> {
        self.put(event).map_err(|error| self.out.get_ref().failed(error))
    }

    fn end(mut self) -> Result<(), Failure> {
        let counts = json!({ "lost": self.tally.lost, "left_out": self.tally.left_out });
        let last = Value::Object(meta("margo_end", 0, &counts));
        let written = write!(self.out, "{last}\n]\n").and_then(|()| self.out.flush());
        written.map_err(|error| self.out.get_ref().failed(error))?;
        let (out, _) = self.out.into_parts();
        // The file is there, whoever reads this.
        self.tally.report(&out.end()?)
    }
}

impl Tally {
    fn count(&mut self, slice: &Slice) {
        self.traces.insert(slice.trace);
        let half = || Half { rpc: slice.name.clone(), peer: slice.text("peer").to_owned() };
        match (slice.kind, slice.parent) {
            (Kind::Call, _) => {
                self.calls += 1;
                if self.no_origin.remove(&slice.span).is_none() {
                    self.no_target.insert(slice.span, half());
                }
            }
            // Each request has one of these.
            (Kind::Queue, Some(call)) if self.no_target.remove(&call).is_none() => {
                self.no_origin.insert(call, half());
            }
            _ => {}
        }
    }

    /// Says what is in the file, and what is missing.
    fn report(&self, out: &Ended) -> Result<(), Failure> {
        if self.lost > 0 {
            let lost = output::count(self.lost, "call");
            output::note(format_args!("warning: {lost} lost: raise margo.trace.queue_max"));
        }
        if self.left_out > 0 {
            let left_out = output::count(self.left_out, "call");
            let why = "the files were full: raise margo.trace.file_bytes_max";
            output::note(format_args!("warning: {left_out}, and all later ones, left out: {why}"));
        }
        let (no_target, no_origin) = (self.no_target.values(), self.no_origin.values());
        missing(no_target, "call", "to", "whose target is in none of these files");
        missing(no_origin, "request", "from", "whose origin is in none of these files");
        let (traces, calls, processes) = (
            output::count(self.traces.len() as u64, "trace"),
            output::count(self.calls, "call"),
            match self.processes {
                1 => "1 process".to_owned(),
                number => format!("{} processes", output::thousands(number)),
            },
        );
        out.say(format_args!("{traces}, {calls}, {processes}"))
    }
}

/// Names those whose other half is missing, the most frequent first.
fn missing<'a>(halves: impl Iterator<Item = &'a Half>, what: &str, way: &str, why: &str) {
    let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for half in halves {
        *kinds.entry((&half.rpc, &half.peer)).or_default() += 1;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rest: u64 = kinds.iter().skip(NAMED_MAX).map(|(_, count)| *count).sum();
    for ((rpc, peer), count) in kinds.into_iter().take(NAMED_MAX) {
        let (rpc, peer) = (printable(rpc), printable(peer));
        let count = output::count(count, what);
        output::note(format_args!("warning: {count} of {rpc} {way} {peer} {why}"));
    }
    if rest > 0 {
        output::note(format_args!("warning: {} more {why}", output::count(rest, what)));
    }
}

fn meta(name: &str, pid: u64, args: &Value) -> Event {
    let event = json!({ "ph": "M", "name": name, "pid": pid, "tid": 0, "args": args });
    match event {
        Value::Object(event) => event,
        _ => Event::new(),
    }
}

#[allow(clippy::cast_precision_loss, reason = "exact up to 104 days")]
fn micros(nanos: u64) -> Value {
    (nanos as f64 / 1000.0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(host_id: &str, monotonic_ns: u64, realtime_ns: u64) -> Head {
        Head { host_id: host_id.into(), pid: 1, monotonic_ns, realtime_ns, ..Head::default() }
    }

    #[test]
    fn one_host_is_aligned_by_its_monotonic_clock_and_others_by_the_time_of_day() {
        let heads = [
            head("a", 1_000, 500_000),
            // Its time of day was set back meanwhile.
            head("a", 3_000, 400_000),
            head("b", 77, 500_500),
            head("", 0, 502_000),
        ];
        assert_eq!(shifts(heads.iter()), [0, 2_000, 500, 2_000]);
        assert!(shifts(std::iter::empty()).is_empty());
        let far = [head("a", 0, 0), head("b", 0, u64::MAX)];
        assert_eq!(shifts(far.iter()), [0, u64::MAX]);
    }

    #[test]
    fn halves_are_kept_until_the_other_one_comes() {
        let slice = |kind, span, parent| {
            let (name, args) = ("x".to_owned(), Event::new());
            Slice { kind, name, pid: 1, begin_ns: 0, end_ns: 0, trace: 7, span, parent, args }
        };
        let mut tally = Tally::default();
        for call in 0..100 {
            let mut halves =
                [slice(Kind::Call, call, None), slice(Kind::Queue, 1000 + call, Some(call))];
            // Whichever file comes first.
            halves.rotate_left(call as usize % 2);
            halves.iter().for_each(|half| tally.count(half));
        }
        tally.count(&slice(Kind::Call, 500, None));
        tally.count(&slice(Kind::Queue, 501, Some(502)));
        assert_eq!((tally.calls, tally.traces.len()), (101, 1));
        assert_eq!(tally.no_target.into_keys().collect::<Vec<_>>(), [500]);
        assert_eq!(tally.no_origin.into_keys().collect::<Vec<_>>(), [502]);
    }

    #[test]
    fn processes_get_numbers_of_their_own() {
        let mut joined = Joined::new(Vec::new());
        assert_eq!([7, 7, 8, 7, u64::MAX].map(|pid| joined.pid(pid)), [7, 1, 8, 2, u64::MAX]);
    }
}
