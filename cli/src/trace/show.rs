//! `margo trace show`: where the time of a trace went, as text.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use serde_json::Value;

use super::read::{Kind, Reader, Slice};
use super::tree::{Span, Tree};
use crate::support::output::{self, printable};
use margo::daemon::Failure;

/// How many traces are listed.
const LISTED_MAX: usize = 20;

/// Deepest nesting that is drawn; what lies deeper is counted.
const DEPTH_MAX: usize = 64;

/// `margo trace show`: the trace whose id begins so; without one a list.
pub(crate) fn run(file: &Path, id: Option<&str>) -> Result<(), Failure> {
    match id {
        Some(id) => show(file, &Wanted::new(id)?),
        None => list(file),
    }
}

/// The beginning of an id.
struct Wanted {
    text: String,
}

impl Wanted {
    fn new(text: &str) -> Result<Self, Failure> {
        let text = text.trim().to_ascii_lowercase();
        let is_id =
            !text.is_empty() && text.len() <= 32 && text.bytes().all(|c| c.is_ascii_hexdigit());
        if is_id {
            return Ok(Self { text });
        }
        let text = printable(&text);
        Err(Failure::Usage(format!("{text:?} is no trace id, nor the beginning of one")))
    }

    fn is(&self, trace: u128) -> bool {
        format!("{trace:032x}").starts_with(&self.text)
    }
}

/// Reads all slices, and the names of the processes.
fn read(file: &Path, mut each: impl FnMut(Slice)) -> Result<HashMap<u64, String>, Failure> {
    let (mut reader, _) = Reader::open(file)?;
    let mut names = HashMap::new();
    while let Some(event) = reader.next()? {
        if event.get("name").is_some_and(|name| name == "process_name") {
            let name = event.get("args").and_then(|args| args.get("name")?.as_str());
            let pid = event.get("pid").and_then(Value::as_u64);
            if let Some((pid, name)) = pid.zip(name) {
                names.insert(pid, printable(name));
            }
        }
        if let Some(slice) = reader.slice(&event)? {
            each(slice);
        }
    }
    Ok(names)
}

/// A trace as the list of traces shows it.
struct Listed {
    root: String,
    begin_ns: u64,
    end_ns: u64,
    calls: u64,
}

fn list(file: &Path) -> Result<(), Failure> {
    let mut traces: BTreeMap<u128, Listed> = BTreeMap::new();
    read(file, |slice| {
        let listed = traces.entry(slice.trace).or_insert_with(|| Listed {
            root: slice.name.clone(),
            begin_ns: slice.begin_ns,
            end_ns: slice.end_ns,
            calls: 0,
        });
        if slice.begin_ns < listed.begin_ns {
            (listed.root, listed.begin_ns) = (slice.name.clone(), slice.begin_ns);
        }
        listed.end_ns = listed.end_ns.max(slice.end_ns);
        listed.calls += u64::from(slice.kind == Kind::Call);
    })?;
    let number = traces.len();
    let mut traces: Vec<_> = traces.into_iter().collect();
    traces.sort_by_key(|(_, listed)| std::cmp::Reverse(listed.end_ns - listed.begin_ns));
    for (id, listed) in traces.into_iter().take(LISTED_MAX) {
        let (time, root) = (micros(listed.end_ns - listed.begin_ns), printable(&listed.root));
        let calls = output::count(listed.calls, "call");
        output::line(format_args!("{id:032x}  {time:>14} us  {calls}  {root}"))?;
    }
    let all = output::count(number as u64, "trace");
    match number > LISTED_MAX {
        true => output::line(format_args!("{all}; these are the longest")),
        false => output::line(all),
    }
}

fn show(file: &Path, wanted: &Wanted) -> Result<(), Failure> {
    let mut slices = Vec::new();
    let mut ids = BTreeSet::new();
    let names = read(file, |slice| {
        if wanted.is(slice.trace) {
            ids.insert(slice.trace);
            slices.push(slice);
        }
    })?;
    let id = match (ids.first(), ids.len()) {
        (Some(id), 1) => *id,
        (None, _) => {
            let why = format!("there is no trace {} in it", wanted.text);
            return Err(Failure::new(file.display(), why));
        }
        (Some(_), several) => {
            let why = format!("{several} traces begin with {}; write more of it", wanted.text);
            return Err(Failure::new(file.display(), why));
        }
    };
    let processes: HashSet<u64> = slices.iter().map(|slice| slice.pid).collect();
    let tree = Tree::new(slices);
    let (begin, end) = tree.times();
    let calls = tree.spans().iter().filter(|span| matches!(span, Span::Call(_))).count();
    let calls = output::count(calls as u64, "call");
    let processes = match processes.len() {
        1 => "1 process".to_owned(),
        number => format!("{number} processes"),
    };
    let total = micros(end - begin);
    output::line(format_args!("trace {id:032x}: {total} us, {calls}, {processes}\n"))?;
    let mut drawing = Drawing { tree: &tree, names, total: end - begin, drawn: HashSet::new() };
    for root in tree.roots() {
        drawing.span(root, &Branch::default())?;
    }
    Ok(())
}

/// The text that stands before a line.
#[derive(Default, Clone)]
struct Branch {
    depth: usize,
    /// Before the line, and before those below it.
    first: String,
    more: String,
}

impl Branch {
    fn child(&self, is_last: bool) -> Self {
        let (first, more) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        Self {
            depth: self.depth + 1,
            first: format!("{}{first}", self.more),
            more: format!("{}{more}", self.more),
        }
    }
}

struct Drawing<'a> {
    tree: &'a Tree,
    names: HashMap<u64, String>,
    total: u64,
    drawn: HashSet<usize>,
}

/// Something below a line.
enum Part<'a> {
    /// A stretch of time without anything below it.
    Time(&'static str, i128),
    Queue(&'a Slice),
    Handler(&'a Slice),
    Span(usize),
}

impl<'a> Drawing<'a> {
    fn span(&mut self, index: usize, branch: &Branch) -> Result<(), Failure> {
        if !self.drawn.insert(index) || branch.depth > DEPTH_MAX {
            return self.line(branch, None, "… (deeper, or in a circle)");
        }
        let tree = self.tree;
        match &tree.spans()[index] {
            Span::Call(call) => {
                let (name, to) = (printable(&call.name), printable(call.text("peer")));
                let text = format!("call {name} → {to}{}", outcome(call));
                self.line(branch, Some(duration(call)), &self.at(&text, branch, call))?;
                let parts = self.parts_of_call(call);
                self.parts(&parts, branch)
            }
            Span::Request { queue, handler } => {
                // Its call is not in this file.
                let (name, from) = (printable(&queue.name), printable(queue.text("peer")));
                let end = handler.as_ref().map_or(queue.end_ns, |handler| handler.end_ns);
                let time = i128::from(end) - i128::from(queue.begin_ns);
                let text = format!("request {name} from {from}{}", outcome(queue));
                self.line(branch, Some(time), &self.at(&text, branch, queue))?;
                let parts = self.parts_of_request(queue, handler.as_ref());
                self.parts(&parts, branch)
            }
            Span::Bulk(bulk) => {
                let bytes = bulk.args.get("bytes").and_then(Value::as_u64).unwrap_or(0);
                let (name, peer) = (printable(&bulk.name), printable(bulk.text("peer")));
                let text = format!("{name} {} {peer}{}", output::bytes(bytes), outcome(bulk));
                self.line(branch, Some(duration(bulk)), &text)
            }
        }
    }

    /// The way there, what happened there, and the way back.
    fn parts_of_call(&mut self, call: &Slice) -> Vec<Part<'a>> {
        let tree = self.tree;
        let mut parts = Vec::new();
        for index in tree.children(call.span) {
            let Span::Request { queue, handler } = &tree.spans()[*index] else {
                parts.push(Part::Span(*index));
                continue;
            };
            if !self.drawn.insert(*index) {
                continue;
            }
            let arrived = i128::from(queue.begin_ns);
            parts.push(Part::Time("on its way there", arrived - i128::from(call.begin_ns)));
            parts.extend(self.parts_of_request(queue, handler.as_ref()));
            let answered = match handler {
                Some(handler) => handler.after("responded_us").unwrap_or(handler.end_ns),
                None => queue.end_ns,
            };
            if call.args.get("one_way").is_none() {
                let back = i128::from(call.end_ns) - i128::from(answered);
                parts.push(Part::Time("on its way back", back));
            }
        }
        if parts.is_empty() {
            let sent = call.after("sent_us").unwrap_or(call.begin_ns);
            let waited = i128::from(call.end_ns) - i128::from(sent);
            parts.push(Part::Time("waiting; the target is not in this file", waited));
        }
        parts
    }

    fn parts_of_request(&self, queue: &'a Slice, handler: Option<&'a Slice>) -> Vec<Part<'a>> {
        let parts = [Part::Queue(queue)].into_iter().chain(handler.map(Part::Handler));
        // The handler has its children below it. If its line was lost, they are here.
        let orphans = match handler {
            Some(_) => &[],
            None => self.tree.children(queue.span),
        };
        parts.chain(orphans.iter().map(|index| Part::Span(*index))).collect()
    }

    fn parts(&mut self, parts: &[Part<'a>], branch: &Branch) -> Result<(), Failure> {
        for (index, part) in parts.iter().enumerate() {
            let below = branch.child(index + 1 == parts.len());
            match part {
                Part::Time(what, time) if *time < 0 => {
                    let text = format!("{what} (the hosts' clocks differ by more than that)");
                    self.line(&below, Some(*time), &text)?;
                }
                Part::Time(what, time) => self.line(&below, Some(*time), what)?,
                Part::Queue(queue) => {
                    let text = format!("waiting in pool {}", printable(queue.text("pool")));
                    self.line(&below, Some(duration(queue)), &self.at(&text, &below, queue))?;
                }
                Part::Handler(handler) => self.handler(handler, &below)?,
                Part::Span(index) => self.span(*index, &below)?,
            }
        }
        Ok(())
    }

    fn handler(&mut self, handler: &Slice, branch: &Branch) -> Result<(), Failure> {
        let mut text = format!("handler{}", outcome(handler));
        let mut end = handler.end_ns;
        if let Some(answered) = handler.after("responded_us").filter(|at| *at <= end) {
            let after = micros(end - answered);
            text += &format!(", and {after} us after it had answered");
            end = answered;
        }
        let time = i128::from(end) - i128::from(handler.begin_ns);
        self.line(branch, Some(time), &text)?;
        let children: Vec<_> =
            self.tree.children(handler.span).iter().map(|index| Part::Span(*index)).collect();
        self.parts(&children, branch)
    }

    /// Adds the process where that is not clear from the lines above.
    fn at(&self, text: &str, branch: &Branch, slice: &Slice) -> String {
        if branch.depth > 0 && slice.kind == Kind::Call {
            return text.to_owned();
        }
        match self.names.get(&slice.pid) {
            Some(name) => format!("{text}, at {name}"),
            None => format!("{text}, at process {}", slice.pid),
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "whole percent are shown")]
    fn line(&self, branch: &Branch, time: Option<i128>, text: &str) -> Result<(), Failure> {
        let first = &branch.first;
        let Some(time) = time else {
            return output::line(format_args!("{:>23}  {first}{text}", ""));
        };
        let share = 100.0 * time as f64 / self.total.max(1) as f64;
        let sign = if time < 0 { "-" } else { "" };
        let time = u64::try_from(time.unsigned_abs()).unwrap_or(u64::MAX);
        let time = format!("{sign}{}", micros(time));
        output::line(format_args!("{time:>14} us {share:>4.0}%  {first}{text}"))
    }
}

fn duration(slice: &Slice) -> i128 {
    i128::from(slice.end_ns) - i128::from(slice.begin_ns)
}

/// Nothing for what went well.
fn outcome(slice: &Slice) -> String {
    match slice.text("outcome") {
        "ok" => String::new(),
        outcome => format!(" ({})", printable(outcome)),
    }
}

/// Microseconds with one decimal, thousands apart.
fn micros(nanos: u64) -> String {
    let tenths = (nanos.saturating_add(50)) / 100;
    format!("{}.{}", output::thousands(tenths / 10), tenths % 10)
}
