//! Names for parts of the machine: `cpu:0-3`, `allowed:0`, `core:2`, `numa:1`, `package:0`, `l3:0`,
//! `all`.

use std::fmt;
use std::str::FromStr;

use super::cpuset::{CpuSet, Fault, parse_list};
use super::{Topology, TopologyError};

/// A part of the machine, by name. [`Topology::cpus_of`] finds its cpus.
///
/// | text | means |
/// |---|---|
/// | `cpu:3`, `cpu:0-3,8` | these cpus, all of them |
/// | `allowed:0`, `allowed:0-3` | the first cpu that the process may use, the first four: on whichever machine and in whichever container |
/// | `core:2`, `core:0-1` | the cpus of a core |
/// | `numa:1`, `node:1` | the cpus of a NUMA node |
/// | `package:0`, `socket:0` | the cpus of a package |
/// | `l3:0` | the cpus that share a third-level cache |
/// | `all` | every cpu that the process may use |
/// | `numa:0 & core:0-3` | the cpus that are in both |
///
/// Every kind takes a list of numbers. Numbers are explained in the [module](super)'s
/// documentation. A place by cpu number asks for exactly these cpus; the others give those of
/// their cpus that the process may use.
///
/// ```
/// use ult::Place;
///
/// let place: Place = "socket:1 & core:8-11".parse()?;
/// assert_eq!(place, Place::package(1).and(Place::cores("8-11".parse()?)));
/// assert_eq!(place.to_string(), "package:1&core:8-11");
/// # Ok::<(), ult::TopologyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// The conditions that each of its cpus meets. An empty list means `all`.
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Part {
    kind: Kind,
    /// Numbers of this kind, not necessarily of cpus.
    ids: CpuSet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Cpu,
    /// By their order among those that the process may use.
    Allowed,
    Core,
    Numa,
    Package,
    L3,
}

/// The words for a kind; the first one of each kind is printed.
const WORDS: [(&str, Kind); 8] = [
    ("cpu", Kind::Cpu),
    ("allowed", Kind::Allowed),
    ("core", Kind::Core),
    ("numa", Kind::Numa),
    ("node", Kind::Numa),
    ("package", Kind::Package),
    ("socket", Kind::Package),
    ("l3", Kind::L3),
];

const FORMS: &str = "`cpu:N`, `allowed:N`, `core:N`, `numa:N` (or `node:N`), `package:N` (or \
                     `socket:N`), `l3:N` or `all`";

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Cpu => "cpu",
            Kind::Allowed => "allowed",
            Kind::Core => "core",
            Kind::Numa => "numa",
            Kind::Package => "package",
            Kind::L3 => "l3",
        }
    }
}

impl Place {
    /// Every cpu that the process may use.
    #[must_use]
    pub fn all() -> Self {
        Self { parts: Vec::new() }
    }

    /// One cpu.
    ///
    /// # Panics
    ///
    /// This and the following: if the number is above [`CpuSet::CPU_MAX`].
    #[must_use]
    pub fn cpu(cpu: usize) -> Self {
        Self::cpus([cpu].into_iter().collect())
    }

    /// These cpus. An empty set is a place that no machine has.
    #[must_use]
    pub fn cpus(cpus: CpuSet) -> Self {
        Self::of(Kind::Cpu, cpus)
    }

    /// The cpu that comes at that place, from 0, among those that the process may use.
    #[must_use]
    pub fn allowed(index: usize) -> Self {
        Self::of(Kind::Allowed, [index].into_iter().collect())
    }

    /// The cpus of a core, by the core's number.
    #[must_use]
    pub fn core(index: usize) -> Self {
        Self::cores([index].into_iter().collect())
    }

    /// The cpus of several cores.
    #[must_use]
    pub fn cores(indexes: CpuSet) -> Self {
        Self::of(Kind::Core, indexes)
    }

    /// The cpus of a NUMA node, by the kernel's number.
    ///
    /// # Panics
    ///
    /// If the number is above [`CpuSet::CPU_MAX`].
    #[must_use]
    pub fn numa(id: u32) -> Self {
        Self::of(Kind::Numa, [id as usize].into_iter().collect())
    }

    /// The cpus of a package (socket).
    #[must_use]
    pub fn package(index: usize) -> Self {
        Self::of(Kind::Package, [index].into_iter().collect())
    }

    /// The cpus that share a third-level cache.
    #[must_use]
    pub fn l3(index: usize) -> Self {
        Self::of(Kind::L3, [index].into_iter().collect())
    }

    /// The cpus that are in this place and in `other`.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// The NUMA node that the place names, if it is nothing but `numa:N`. Such a place can hold
    /// memory even if the node has no cpus.
    #[must_use]
    pub fn as_numa_node(&self) -> Option<u32> {
        match self.parts.as_slice() {
            [Part { kind: Kind::Numa, ids }] if ids.len() == 1 => {
                ids.first().and_then(|id| u32::try_from(id).ok())
            }
            _ => None,
        }
    }

    fn of(kind: Kind, ids: CpuSet) -> Self {
        Self { parts: vec![Part { kind, ids }] }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts.is_empty() {
            return f.write_str("all");
        }
        for (at, Part { kind, ids }) in self.parts.iter().enumerate() {
            let between = if at == 0 { "" } else { "&" };
            write!(f, "{between}{}:{ids}", kind.word())?;
        }
        Ok(())
    }
}

impl FromStr for Place {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|fault| fault.in_text("place", text))
    }
}

fn parse(text: &str) -> Result<Place, Fault> {
    let mut place = Place::all();
    let mut at = 0;
    for part in text.split('&') {
        place.parts.extend(parse_part(part, at)?);
        at += part.len() + 1;
    }
    Ok(place)
}

/// Parses one part, which stands at offset `at`. `all` restricts nothing, so it is no part.
fn parse_part(text: &str, at: usize) -> Result<Option<Part>, Fault> {
    let start = at + (text.len() - text.trim_start().len());
    let Some((word, ids)) = text.split_once(':') else {
        return match text.trim() {
            "all" => Ok(None),
            "" => Err(Fault::new(start, format!("a place is missing: write {FORMS}"))),
            word => Err(Fault::new(start, no_number(word))),
        };
    };
    let name = word.trim();
    let Some((_, kind)) = WORDS.into_iter().find(|(known, _)| *known == name) else {
        return Err(Fault::new(start, unknown_word(name)));
    };
    let ids_at = at + word.len() + 1;
    let ids = parse_list(ids)
        .map_err(|Fault { at, what }| Fault::new(ids_at + at, format!("{what} ({name}:N)")))?;
    Ok(Some(Part { kind, ids }))
}

/// Returns the error text for a part without a colon.
fn no_number(word: &str) -> String {
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        return format!("a number alone does not say of what; did you mean `cpu:{word}`?");
    }
    if WORDS.iter().any(|(known, _)| *known == word) {
        return format!("`{word}` needs a number, for example `{word}:0`");
    }
    let digits = word.find(|c: char| c.is_ascii_digit());
    if let Some((name, ids)) = digits.map(|at| word.split_at(at))
        && WORDS.iter().any(|(known, _)| *known == name)
    {
        return format!("a colon is missing; did you mean `{name}:{ids}`?");
    }
    unknown_word(word)
}

fn unknown_word(word: &str) -> String {
    let known = WORDS.iter().map(|(known, _)| *known).chain(["all"]);
    let near = known.map(|known| (edits(word, known), known)).min();
    let mut text = format!("no kind of place is called `{word}`: write {FORMS}");
    // One edit in three letters is a typo; more is another word.
    if let Some((edits, known)) = near
        && edits <= word.chars().count().div_ceil(3)
        && edits < known.len()
    {
        text.push_str(&format!("; did you mean `{known}`?"));
    }
    text
}

/// Edit distance, upper and lower case being the same. A long word is near nothing.
fn edits(word: &str, known: &str) -> usize {
    const LONG: usize = 16;
    let word: Vec<char> = word.to_lowercase().chars().take(LONG).collect();
    let known: Vec<char> = known.chars().collect();
    let mut row: Vec<usize> = (0..=known.len()).collect();
    for (i, a) in word.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in known.iter().enumerate() {
            let swap_or_keep = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = swap_or_keep.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[known.len()]
}

/// The allowed cpus of `place`; see [`Topology::cpus_of`].
pub(crate) fn resolve(place: &Place, topology: &Topology) -> Result<CpuSet, TopologyError> {
    let name = || place.to_string();
    let mut cpus = topology.online().clone();
    for part in &place.parts {
        let own = part.cpus(topology, &name)?;
        if own.is_empty() {
            let nodes = topology.numa_nodes().iter().filter(|node| !node.cpus.is_empty());
            let have = nodes.map(|node| node.id as usize).collect();
            return Err(TopologyError::NoCpus { place: name(), have });
        }
        cpus = cpus.intersection(&own);
    }
    if cpus.is_empty() {
        return Err(TopologyError::Disjoint { place: name() });
    }
    let usable = cpus.intersection(topology.allowed());
    if usable.is_empty() {
        let allowed = topology.allowed().clone();
        return Err(TopologyError::NotAllowed { place: name(), cpus, allowed });
    }
    Ok(usable)
}

impl Part {
    /// The online cpus.
    fn cpus(
        &self,
        topology: &Topology,
        place: &dyn Fn() -> String,
    ) -> Result<CpuSet, TopologyError> {
        let have = self.kind.known(topology);
        let ids = self.ids.difference(&have);
        if self.ids.is_empty() || !ids.is_empty() {
            let kind = self.kind.word();
            return Err(TopologyError::Unknown { place: place(), kind, ids, have });
        }
        match self.kind {
            Kind::Cpu => return self.exact_cpus(topology, place),
            Kind::Allowed => {
                let allowed = topology.allowed().iter().enumerate();
                return Ok(allowed
                    .filter(|(at, _)| self.ids.contains(*at))
                    .map(|(_, cpu)| cpu)
                    .collect());
            }
            _ => {}
        }
        Ok(self.ids.iter().fold(CpuSet::new(), |cpus, id| {
            self.kind.members(topology, id).map_or_else(CpuSet::new, CpuSet::clone).union(&cpus)
        }))
    }

    /// Returns the cpus that are asked for by number, each of which has to be usable.
    fn exact_cpus(
        &self,
        topology: &Topology,
        place: &dyn Fn() -> String,
    ) -> Result<CpuSet, TopologyError> {
        let off = self.ids.difference(topology.online());
        if !off.is_empty() {
            let online = topology.online().clone();
            return Err(TopologyError::Offline { place: place(), cpus: off, online });
        }
        let denied = self.ids.difference(topology.allowed());
        if !denied.is_empty() {
            let allowed = topology.allowed().clone();
            return Err(TopologyError::NotAllowed { place: place(), cpus: denied, allowed });
        }
        Ok(self.ids.clone())
    }
}

impl Kind {
    /// The numbers of this kind that the machine has.
    fn known(self, topology: &Topology) -> CpuSet {
        match self {
            Kind::Cpu => topology.present().clone(),
            Kind::Allowed => (0..topology.allowed().iter().count()).collect(),
            Kind::Core => (0..topology.cores().len()).collect(),
            Kind::Numa => topology.numa_nodes().iter().map(|node| node.id as usize).collect(),
            Kind::Package => (0..topology.packages().len()).collect(),
            Kind::L3 => (0..topology.l3_groups().len()).collect(),
        }
    }

    /// The online cpus of number `id`, for kinds other than those of single cpus.
    fn members(self, topology: &Topology, id: usize) -> Option<&CpuSet> {
        match self {
            Kind::Cpu | Kind::Allowed => None,
            Kind::Core => topology.cores().get(id).map(|core| &core.cpus),
            Kind::Numa => {
                let id = u32::try_from(id).ok()?;
                topology.numa_node(id).map(|node| &node.cpus)
            }
            Kind::Package => topology.packages().get(id).map(|package| &package.cpus),
            Kind::L3 => topology.l3_groups().get(id).map(|group| &group.cpus),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(text: &str) -> Place {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn refused(text: &str) -> String {
        text.parse::<Place>().unwrap_err().to_string()
    }

    #[test]
    fn every_form_is_parsed() {
        assert_eq!(place("all"), Place::all());
        assert_eq!(place("cpu:3"), Place::cpu(3));
        assert_eq!(place("cpu:0-1,8"), Place::cpus([0, 1, 8].into_iter().collect()));
        assert_eq!(place("allowed:2"), Place::allowed(2));
        assert_eq!(place("core:2"), Place::core(2));
        assert_eq!(place("numa:1"), Place::numa(1));
        assert_eq!(place("node:1"), Place::numa(1));
        assert_eq!(place("package:0"), Place::package(0));
        assert_eq!(place(" socket : 0 "), Place::package(0));
        assert_eq!(place("l3:0"), Place::l3(0));
        assert_eq!(place("numa:0&l3:1"), Place::numa(0).and(Place::l3(1)));
        assert_eq!(place("all & cpu:1"), Place::cpu(1));
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, part) in [
            ("", "place ``, character 1: a place is missing: write `cpu:N`"),
            ("3", "did you mean `cpu:3`?"),
            ("0-3", "did you mean `cpu:0-3`?"),
            ("numa", "`numa` needs a number, for example `numa:0`"),
            ("numa1", "a colon is missing; did you mean `numa:1`?"),
            ("cup:1", "character 1: no kind of place is called `cup`"),
            ("numma:1", "did you mean `numa`?"),
            ("Package:0", "did you mean `package`?"),
            ("alll", "did you mean `all`?"),
            ("cpu:", "character 5: a number is missing (cpu:N)"),
            ("cpu:0,x", "character 7: expected a digit, found `x` (cpu:N)"),
            ("cpu:0 & numa:y", "character 14: expected a digit, found `y`"),
            ("cpu:0&", "character 7: a place is missing"),
            ("cpu:9-1", "write 1-9"),
            ("cpu:1:2", "expected a digit, found `:`"),
        ] {
            let error = refused(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
        assert!(!refused("elephant:1").contains("did you mean"));
    }

    #[test]
    fn only_a_single_node_is_a_place_for_memory() {
        assert_eq!(place("node:3").as_numa_node(), Some(3));
        assert_eq!(place("numa:0-1").as_numa_node(), None);
        assert_eq!(place("numa:0&cpu:1").as_numa_node(), None);
        assert_eq!(Place::all().as_numa_node(), None);
    }

    fn any_place() -> impl Strategy<Value = Place> {
        let kinds = [Kind::Cpu, Kind::Allowed, Kind::Core, Kind::Numa, Kind::Package, Kind::L3];
        let part = (
            proptest::sample::select(kinds.to_vec()),
            proptest::collection::btree_set(0usize..200, 1..5),
        );
        proptest::collection::vec(part, 0..4).prop_map(|parts| Place {
            parts: parts
                .into_iter()
                .map(|(kind, ids)| Part { kind, ids: ids.into_iter().collect() })
                .collect(),
        })
    }

    proptest! {
        #[test]
        fn what_is_printed_is_parsed_back(place in any_place()) {
            prop_assert_eq!(place.to_string().parse::<Place>().unwrap(), place);
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,20}|[a-z0-9:&,\\- ]{0,20}") {
            let _ = text.parse::<Place>();
        }
    }
}
