//! A trace as a file in Chrome's trace event format, for `ui.perfetto.dev` and `chrome://tracing`.
//!
//! | event | in the file |
//! |---|---|
//! | run to yield, block, finish, cancel | a slice on the xstream's track, named after the ULT |
//! | sleep to wake | a slice `(asleep)` |
//! | resume to the next run | a flow arrow |
//! | create, cancel, migrate | an instant |
//! | create, yield, resume, run | a counter of runnable units per pool |
//!
//! The oldest events may have been overwritten. A run whose begin is missing is left out, one whose
//! end is missing lasts until the end of the trace, and a counter starts at the lowest value that
//! does not become negative.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::io::{self, Write};

use crate::observe::record::{Stored, Trace};
use crate::trace::event::EventKind;

/// The counter of a pool is written at most once in so many nanoseconds.
const COUNTER_STEP_NS: u64 = 10_000;

impl Trace {
    /// Writes the trace as JSON that `ui.perfetto.dev` and `chrome://tracing` open: one track per
    /// xstream, and one for all other threads. Wrap a file into a
    /// [`BufWriter`](std::io::BufWriter).
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_chrome(&self, out: impl Write) -> io::Result<()> {
        let mut writer = Writer {
            out,
            trace: self,
            is_first: true,
            runs: vec![None; self.xstreams.len() + 1],
            sleeps: vec![None; self.xstreams.len() + 1],
            arrows: HashMap::new(),
            next_arrow: 1,
            counters: self.first_counters(),
        };
        writer.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        writer.tracks()?;
        for event in &self.events {
            writer.event(event)?;
        }
        writer.end()?;
        writer.out.write_all(b"\n]}\n")?;
        writer.out.flush()
    }

    /// Counters that never become negative.
    fn first_counters(&self) -> Vec<Counter> {
        let mut now = vec![0i64; self.pools.len()];
        let mut least = now.clone();
        for event in &self.events {
            let pool = usize::from(event.pool);
            if let (Some(step), Some(now)) = (step_of(event.kind), now.get_mut(pool)) {
                *now += step;
                least[pool] = least[pool].min(*now);
            }
        }
        least.into_iter().map(|least| Counter { units: -least, ..Counter::default() }).collect()
    }
}

/// How an event changes the number of runnable units of its pool.
fn step_of(kind: EventKind) -> Option<i64> {
    match kind {
        EventKind::Create | EventKind::Yield | EventKind::Resume => Some(1),
        EventKind::Run | EventKind::TaskletRun => Some(-1),
        _ => None,
    }
}

#[derive(Default)]
struct Counter {
    units: i64,
    /// The time and the value that the file shows last.
    written: Option<(u64, i64)>,
}

struct Writer<'a, W> {
    out: W,
    trace: &'a Trace,
    is_first: bool,
    /// Per track: the run in progress.
    runs: Vec<Option<Stored>>,
    /// Per track: since when the xstream sleeps.
    sleeps: Vec<Option<u64>>,
    /// Per ULT: the arrow that leads to its next run.
    arrows: HashMap<u64, u64>,
    next_arrow: u64,
    counters: Vec<Counter>,
}

impl<W: Write> Writer<'_, W> {
    fn tracks(&mut self) -> io::Result<()> {
        self.put(&format_args!(
            r#"{{"ph":"M","name":"process_name","pid":1,"args":{{"name":"ult runtime"}}}}"#
        ))?;
        let trace = self.trace;
        let names = trace.xstreams.iter().map(String::as_str).chain(["(other threads)"]);
        for (track, name) in names.enumerate() {
            let (tid, name) = (track + 1, Quoted(name));
            let whose = format!(r#""pid":1,"tid":{tid}"#);
            self.put(&format_args!(
                r#"{{"ph":"M","name":"thread_name",{whose},"args":{{"name":{name}}}}}"#
            ))?;
            self.put(&format_args!(
                r#"{{"ph":"M","name":"thread_sort_index",{whose},"args":{{"sort_index":{tid}}}}}"#
            ))?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Stored) -> io::Result<()> {
        self.count(event)?;
        match event.kind {
            EventKind::Run | EventKind::TaskletRun => self.run(event),
            EventKind::Yield => self.run_end(event, "yield", None),
            EventKind::Block(kind) => self.run_end(event, "block", Some(&kind)),
            EventKind::Finish | EventKind::TaskletFinish => self.run_end(event, "finish", None),
            EventKind::Resume => self.resume(event),
            EventKind::Cancel if self.is_running(event) => self.run_end(event, "cancel", None),
            EventKind::Create | EventKind::Cancel | EventKind::Migrate => self.instant(event),
            EventKind::Sleep => {
                self.sleeps[event.track] = Some(event.at_ns);
                Ok(())
            }
            EventKind::Wake => match self.sleeps[event.track].take() {
                Some(since) => self.asleep(event.track, since, event.at_ns),
                None => Ok(()),
            },
        }
    }

    fn run(&mut self, event: &Stored) -> io::Result<()> {
        self.runs[event.track] = Some(*event);
        let Some(arrow) = self.arrows.remove(&event.ult) else { return Ok(()) };
        let place = TrackPlace(event.track, event.at_ns);
        self.put(&format_args!(
            r#"{{"ph":"f","bp":"e","name":"resume","cat":"resume","id":{arrow},{place}}}"#
        ))
    }

    fn is_running(&self, event: &Stored) -> bool {
        self.runs[event.track].is_some_and(|run| run.ult == event.ult)
    }

    fn run_end(
        &mut self,
        event: &Stored,
        ended: &str,
        waits_for: Option<&dyn Display>,
    ) -> io::Result<()> {
        match self.runs[event.track].take() {
            Some(run) if run.ult == event.ult => self.slice(&run, event.at_ns, ended, waits_for),
            _ => Ok(()),
        }
    }

    fn slice(
        &mut self,
        run: &Stored,
        end_ns: u64,
        ended: &str,
        waits_for: Option<&dyn Display>,
    ) -> io::Result<()> {
        let (place, dur) = (TrackPlace(run.track, run.at_ns), Us(end_ns.saturating_sub(run.at_ns)));
        let (name, id, pool) = (self.label(run), run.ult, self.pool(run));
        let name = Quoted(&name);
        let wait = waits_for.map(|kind| format!(r#","waits_for":"{kind}""#)).unwrap_or_default();
        let args = format!(r#"{{"id":{id},"pool":{pool},"ended":"{ended}"{wait}}}"#);
        self.put(&format_args!(
            r#"{{"ph":"X","name":{name},"cat":"ult",{place},"dur":{dur},"args":{args}}}"#
        ))
    }

    fn asleep(&mut self, track: usize, since_ns: u64, end_ns: u64) -> io::Result<()> {
        let (place, dur) = (TrackPlace(track, since_ns), Us(end_ns.saturating_sub(since_ns)));
        self.put(&format_args!(
            r#"{{"ph":"X","name":"(asleep)","cat":"sleep",{place},"dur":{dur}}}"#
        ))
    }

    /// The start of an arrow. It needs a slice to start from, so if nothing runs there is a short
    /// one.
    fn resume(&mut self, event: &Stored) -> io::Result<()> {
        let (place, arrow) = (TrackPlace(event.track, event.at_ns), self.next_arrow);
        if self.runs[event.track].is_none() {
            let (id, name) = (event.ult, self.label(event));
            let name = Quoted(&name);
            let args = format!(r#"{{"id":{id},"ult":{name}}}"#);
            self.put(&format_args!(
                r#"{{"ph":"X","name":"resume","cat":"resume",{place},"dur":0.001,"args":{args}}}"#
            ))?;
        }
        self.next_arrow += 1;
        self.arrows.insert(event.ult, arrow);
        self.put(&format_args!(
            r#"{{"ph":"s","name":"resume","cat":"resume","id":{arrow},{place}}}"#
        ))
    }

    fn instant(&mut self, event: &Stored) -> io::Result<()> {
        let (place, kind) = (TrackPlace(event.track, event.at_ns), event.kind);
        let (name, id, pool) =
            (format!("{kind} {}", self.label(event)), event.ult, self.pool(event));
        let name = Quoted(&name);
        let args = format!(r#"{{"id":{id},"pool":{pool}}}"#);
        self.put(&format_args!(
            r#"{{"ph":"i","s":"t","name":{name},"cat":"{kind}",{place},"args":{args}}}"#
        ))
    }

    fn count(&mut self, event: &Stored) -> io::Result<()> {
        let pool = usize::from(event.pool);
        let Some((step, counter)) = step_of(event.kind).zip(self.counters.get_mut(pool)) else {
            return Ok(());
        };
        counter.units += step;
        let is_due =
            counter.written.is_none_or(|(since, _)| event.at_ns - since >= COUNTER_STEP_NS);
        if is_due { self.counter(pool, event.at_ns) } else { Ok(()) }
    }

    fn counter(&mut self, pool: usize, at_ns: u64) -> io::Result<()> {
        let units = self.counters[pool].units;
        if self.counters[pool].written.is_some_and(|(_, written)| written == units) {
            return Ok(());
        }
        self.counters[pool].written = Some((at_ns, units));
        let (name, ts) = (format!("runnable in {}", self.trace.pools[pool]), Us(at_ns));
        let name = Quoted(&name);
        self.put(&format_args!(
            r#"{{"ph":"C","name":{name},"pid":1,"ts":{ts},"args":{{"units":{units}}}}}"#
        ))
    }

    /// Closes the slices that are in progress at the end of the trace.
    fn end(&mut self) -> io::Result<()> {
        let end_ns = u64::try_from(self.trace.duration().as_nanos()).unwrap_or(u64::MAX);
        for track in 0..self.runs.len() {
            if let Some(run) = self.runs[track].take() {
                self.slice(&run, end_ns, "running", None)?;
            }
            if let Some(since) = self.sleeps[track].take() {
                self.asleep(track, since, end_ns)?;
            }
        }
        for pool in 0..self.counters.len() {
            self.counter(pool, end_ns)?;
        }
        Ok(())
    }

    fn label(&self, event: &Stored) -> String {
        match self.trace.name_of(event) {
            Some(name) => name.to_owned(),
            None => format!("ULT {}", event.ult),
        }
    }

    fn pool(&self, event: &Stored) -> String {
        let pool = self.trace.pools.get(usize::from(event.pool));
        pool.map_or_else(|| "null".to_owned(), |name| Quoted(name).to_string())
    }

    fn put(&mut self, object: &dyn Display) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.is_first) { "" } else { "," };
        write!(self.out, "{comma}\n{object}")
    }
}

/// Track and time, as members of an object.
#[derive(Clone, Copy)]
struct TrackPlace(usize, u64);

impl Display for TrackPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, r#""pid":1,"tid":{},"ts":{}"#, self.0 + 1, Us(self.1))
    }
}

/// Nanoseconds, printed as microseconds.
#[derive(Clone, Copy)]
struct Us(u64);

impl Display for Us {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// A JSON string.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                c if u32::from(c) < 0x20 => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_json_wants_it() {
        for text in ["", "plain", "a\"b\\c", "\0\n\t\x1f\u{7f}", "äöü \u{1f980}", "</script>"] {
            let quoted = Quoted(text).to_string();
            assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
        }
    }

    #[test]
    fn microseconds_keep_their_nanoseconds() {
        assert_eq!(Us(0).to_string(), "0.000");
        assert_eq!(Us(1_002_003).to_string(), "1002.003");
    }
}
