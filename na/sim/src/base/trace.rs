//! The trace of a run in virtual time, which explains a run that failed.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::options::Nanos;

/// The fate of a packet, or of one copy of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    Sent,
    Retransmitted,
    Duplicated,
    Lost,
    Partitioned,
    Delivered,
    /// The packet arrived again, and was discarded.
    Repeated,
    /// The packet was for a node, or a connection, that is no more.
    Stale,
    /// The machine is off.
    NobodyHome,
}

impl Fate {
    fn text(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Retransmitted => "retransmitted",
            Self::Duplicated => "duplicated",
            Self::Lost => "dropped: lost",
            Self::Partitioned => "dropped: partitioned",
            Self::Delivered => "delivered",
            Self::Repeated => "discarded: a repetition",
            Self::Stale => "discarded: of an ended connection",
            Self::NobodyHome => "dropped: the node is off",
        }
    }
}

/// One line of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum What {
    Packet { to: Arc<str>, summary: Summary, fate: Fate },
    Node(String),
}

/// A packet, as a trace shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Summary {
    pub(crate) name: &'static str,
    /// Position in its connection; `None` for packets outside the sequence.
    pub(crate) seq: Option<u64>,
    /// The tag of a message, the number of a transfer, the position that an acknowledgement has
    /// reached.
    pub(crate) number: Option<u64>,
    pub(crate) bytes: usize,
}

/// A packet's fate or an event at a node, with its time.
///
/// ```
/// use na_core::OpenOptions;
/// use na_sim::{Drive, Network};
///
/// let network = Network::builder("doc-trace-entry").drive(Drive::Manual).build()?;
/// let _a = network.open("a", &OpenOptions::listening(true))?;
/// let trace = network.trace();
/// let first = trace.entries().next().ok_or("nothing has happened")?;
/// assert_eq!(first.node(), "a");
/// println!("{:?} {first}", first.at());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TraceEntry {
    at: Nanos,
    node: Arc<str>,
    what: What,
}

impl TraceEntry {
    /// Returns the virtual time of the entry.
    pub fn at(&self) -> Duration {
        Duration::from_nanos(self.at)
    }

    /// Returns the node where it happened; for a packet its sender.
    pub fn node(&self) -> &str {
        &self.node
    }
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10}.{:03} us  ", self.at / 1000, self.at % 1000)?;
        match &self.what {
            What::Node(text) => write!(f, "{}: {text}", self.node),
            What::Packet { to, summary, fate } => {
                write!(f, "{} -> {to}: {}", self.node, summary.name)?;
                if let Some(seq) = summary.seq {
                    write!(f, " seq {seq}")?;
                }
                if let Some(number) = summary.number {
                    let what = if summary.name.ends_with("expected") { "tag" } else { "no." };
                    write!(f, " {what} {number}")?;
                }
                if summary.bytes > 0 {
                    write!(f, ", {} bytes", summary.bytes)?;
                }
                write!(f, ": {}", fate.text())
            }
        }
    }
}

/// The newest entries of a network's history, and a fingerprint of all of it. Prints as text, one
/// line per entry.
///
/// ```
/// use na_core::OpenOptions;
/// use na_sim::{Drive, Network};
///
/// let run = |name| {
///     let network = Network::builder(name).seed(7).drive(Drive::Manual).build()?;
///     let _a = network.open("a", &OpenOptions::listening(true))?;
///     network.crash("a");
///     Ok::<_, na_core::Error>(network.trace())
/// };
/// let (one, other) = (run("doc-trace-1")?, run("doc-trace-2")?);
/// assert!(one.count() > 0);
/// assert_eq!(one.fingerprint(), other.fingerprint(), "{}\n{}", one.tail(50), other.tail(50));
/// # Ok::<(), na_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    entries: VecDeque<TraceEntry>,
    max: usize,
    count: u64,
    fingerprint: u64,
}

impl Trace {
    pub(crate) fn new(max: usize) -> Self {
        Self { entries: VecDeque::new(), max, count: 0, fingerprint: 0 }
    }

    /// Returns the entries that are kept, oldest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &TraceEntry> {
        self.entries.iter()
    }

    /// Returns how many entries there were, kept or not.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns a number that two runs share only if all their entries, kept or not, were equal (but
    /// for chance, 1 in 2^64).
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns the last `lines` entries as text.
    pub fn tail(&self, lines: usize) -> String {
        let skip = self.entries.len().saturating_sub(lines);
        self.entries.iter().skip(skip).map(|entry| format!("{entry}\n")).collect()
    }

    pub(crate) fn packet(
        &mut self,
        at: Nanos,
        (from, to): (&Arc<str>, &Arc<str>),
        summary: Summary,
        fate: Fate,
    ) {
        let what = What::Packet { to: to.clone(), summary, fate };
        self.push(TraceEntry { at, node: from.clone(), what });
    }

    pub(crate) fn node(&mut self, at: Nanos, node: &Arc<str>, text: impl Into<String>) {
        self.push(TraceEntry { at, node: node.clone(), what: What::Node(text.into()) });
    }

    fn push(&mut self, entry: TraceEntry) {
        let mut hasher = DefaultHasher::new();
        self.fingerprint.hash(&mut hasher);
        entry.hash(&mut hasher);
        self.fingerprint = hasher.finish();
        self.count += 1;
        if self.entries.len() == self.max {
            self.entries.pop_front();
        }
        if self.max > 0 {
            self.entries.push_back(entry);
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left_out = self.count - self.entries.len() as u64;
        if left_out > 0 {
            writeln!(f, "({left_out} older entries left out)")?;
        }
        self.entries.iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_and_remembers_all() {
        let name: Arc<str> = "a".into();
        let fill = |max, first: &str| {
            let mut trace = Trace::new(max);
            for text in [first, "x", "y"] {
                trace.node(1_234, &name, text);
            }
            trace
        };
        let trace = fill(2, "one");
        assert_eq!((trace.count(), trace.entries().len()), (3, 2));
        assert_eq!(trace.tail(1), "         1.234 us  a: y\n");
        assert!(trace.to_string().starts_with("(1 older entries left out)"), "{trace}");
        assert_eq!(trace.fingerprint(), fill(0, "one").fingerprint());
        assert_ne!(trace.fingerprint(), fill(2, "two").fingerprint());
    }
}
