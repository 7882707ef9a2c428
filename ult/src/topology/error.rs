//! Errors of reading a topology, or of finding a place in it.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use super::cpuset::{CpuSet, Fault, parse_list};

/// An error of the topology, a [`Place`](super::Place) or an
/// [`AffinityPattern`](super::AffinityPattern).
///
/// ```
/// use ult::{Place, Topology, TopologyError};
///
/// let error = "gpu:0".parse::<Place>().unwrap_err();
/// assert!(matches!(error, TopologyError::Syntax { kind: "place", position: 1, .. }), "{error}");
///
/// match Topology::get()?.cpus_of(&Place::package(9999)) {
///     Err(TopologyError::Unknown { kind, have, .. }) => println!("{kind}s here: {have}"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file of sysfs is there but cannot be read.
    #[error("cannot read the topology: {}", .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A file of sysfs says something that makes no sense.
    #[error("cannot read the topology: {} holds `{text}`: {what}", .path.display())]
    Garbled {
        /// The file.
        path: PathBuf,
        /// The content, shortened.
        text: String,
        /// The reason why the content makes no sense.
        what: String,
    },
    /// The kernel does not say which cpus this process may use.
    #[error("cannot ask which cpus this process may use")]
    Allowed {
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The hwloc library could not read the topology.
    #[error("hwloc cannot read the topology: {what}")]
    Hwloc {
        /// The message of hwloc.
        what: String,
    },
    /// A text that is no place, cpu list or affinity pattern.
    #[error("{kind} `{text}`, character {position}: {what}")]
    Syntax {
        /// The kind of text that was expected: "place", "cpu list" or "affinity pattern".
        kind: &'static str,
        /// The text.
        text: String,
        /// Where it is wrong: the first character has number 1.
        position: usize,
        /// The error, and the words that may stand there.
        what: String,
    },
    /// The machine has no such thing.
    #[error("place `{place}`: this machine has no {kind} {ids} (have: {kind} {have})")]
    Unknown {
        /// The place.
        place: String,
        /// The kind of thing: "cpu", "core", "numa", "package" or "l3".
        kind: &'static str,
        /// The numbers that do not exist.
        ids: CpuSet,
        /// The numbers that do.
        have: CpuSet,
    },
    /// The cpus exist but are switched off.
    #[error(
        "place `{place}`: cpu {cpus} is offline: switch it on, or use another (online: {online})"
    )]
    Offline {
        /// The place.
        place: String,
        /// The cpus that are off.
        cpus: CpuSet,
        /// The cpus that are on.
        online: CpuSet,
    },
    /// The cpus exist, but this process may not run on them.
    #[error(
        "place `{place}`: cpu {cpus} exists, but this process may not run there: its affinity \
         mask or cgroup allows cpu {allowed}"
    )]
    NotAllowed {
        /// The place.
        place: String,
        /// The cpus that are not allowed.
        cpus: CpuSet,
        /// The cpus that are.
        allowed: CpuSet,
    },
    /// A NUMA node that has memory and no cpu that is switched on.
    #[error("place `{place}`: no cpu belongs to it (NUMA nodes with cpus: {have})")]
    NoCpus {
        /// The place.
        place: String,
        /// The nodes that have cpus.
        have: CpuSet,
    },
    /// The parts of a place have no cpu in common.
    #[error("place `{place}`: its parts have no cpu in common")]
    Disjoint {
        /// The place.
        place: String,
    },
}

impl FromStr for CpuSet {
    type Err = TopologyError;

    /// Parses numbers and ranges with commas between them, for example `0-3,8`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_list(text).map_err(|fault| fault.in_text("cpu list", text))
    }
}

impl Fault {
    pub(crate) fn in_text(self, kind: &'static str, text: &str) -> TopologyError {
        let position = text.get(..self.at).map_or(0, |before| before.chars().count()) + 1;
        TopologyError::Syntax { kind, text: text.to_owned(), position, what: self.what }
    }
}
