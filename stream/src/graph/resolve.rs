//! A document beside the graph that it cuts: [`Cut`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use margo::config::{Error, Errors, nearest};
use margo::ult::CpuSet;

use super::document::{ChannelOptions, GraphDocument};
use super::plan::{Plan, PlannedEdge};

/// A graph that is cut into groups. See [`GraphDocument`].
///
/// ```
/// # use margo_stream::graph::{Graph, GraphDocument};
/// # let graph = Graph::new();
/// # graph.source("read", 0..9u32).farm("count", 4).for_each(drop);
/// # let document = GraphDocument::from_json(
/// #     r#"{ "groups": {
/// #         "G1": { "stages": ["read", "count[0..2]"] },
/// #         "G2": { "stages": ["count[2..4]"], "endpoints": [{ "address": "na+sm://" }] }
/// #     }, "channels": { "read->count": { "batch_bytes": 512 } } }"#,
/// # )?;
/// # let plan = graph.plan();
/// let cut = document.resolve(&plan)?;
/// for group in &cut.groups {
///     println!("{} runs {:?}", group.name, group.replicas);
/// }
/// assert_eq!(cut.groups.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cut {
    /// The groups, by name.
    pub groups: Vec<CutGroup>,
}

/// A group, and what goes in and out. See [`GraphDocument`].
///
/// ```
/// # use margo_stream::graph::{Graph, GraphDocument};
/// # let graph = Graph::new();
/// # graph.source("read", 0..9u32).farm("count", 4).for_each(drop);
/// # let document = GraphDocument::from_json(
/// #     r#"{ "groups": {
/// #         "G1": { "stages": ["read", "count[0..2]"] },
/// #         "G2": { "stages": ["count[2..4]"], "endpoints": [{ "address": "na+sm://" }] }
/// #     }, "channels": { "read->count": { "batch_bytes": 512 } } }"#,
/// # )?;
/// # let plan = graph.plan();
/// let cut = document.resolve(&plan)?;
/// let group = cut.group("G2").expect("it is in the document");
/// let count = plan.stages.iter().position(|stage| &*stage.name == "count").expect("a stage");
/// assert!(group.replicas[&count].iter().eq(&[2, 3]));
/// assert_eq!((group.receives.len(), group.sends.len()), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CutGroup {
    /// The name.
    pub name: String,
    /// The replicas that it runs, by the places of their stages in the plan.
    pub replicas: BTreeMap<usize, BTreeSet<usize>>,
    /// Channels from other groups.
    pub receives: Vec<CutChannel>,
    /// Channels to other groups.
    pub sends: Vec<CutChannel>,
}

/// An edge between two groups, as one of them has it.
///
/// ```
/// # use margo_stream::graph::{Graph, GraphDocument};
/// # let graph = Graph::new();
/// # graph.source("read", 0..9u32).farm("count", 4).for_each(drop);
/// # let document = GraphDocument::from_json(
/// #     r#"{ "groups": {
/// #         "G1": { "stages": ["read", "count[0..2]"] },
/// #         "G2": { "stages": ["count[2..4]"], "endpoints": [{ "address": "na+sm://" }] }
/// #     }, "channels": { "read->count": { "batch_bytes": 512 } } }"#,
/// # )?;
/// # let plan = graph.plan();
/// let cut = document.resolve(&plan)?;
/// let channel = &cut.group("G1").expect("it is in the document").sends[0];
/// let edge = &plan.edges[channel.edge];
/// assert_eq!((&*plan.stages[edge.to].name, &*channel.peer), ("count", "G2"));
/// assert_eq!(channel.options.batch_bytes, Some(512), "as the document says");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CutChannel {
    /// The place of the edge in the plan.
    pub edge: usize,
    /// The other group.
    pub peer: String,
    /// The two groups have stages of the same level: a cut across replicas, or through an
    /// all-to-all.
    pub is_internal: bool,
    /// Settings.
    pub options: ChannelOptions,
}

impl Cut {
    /// Finds a group.
    pub fn group(&self, name: &str) -> Option<&CutGroup> {
        self.groups.iter().find(|group| group.name == name)
    }
}

/// Part of a stage, as a document says it: a name, perhaps with replicas in brackets.
fn part(text: &str) -> Option<(&str, Option<Range<usize>>)> {
    let Some((name, rest)) = text.split_once('[') else { return Some((text, None)) };
    let inside = rest.strip_suffix(']')?;
    let range = match inside.split_once("..") {
        Some((from, to)) => from.trim().parse().ok()?..to.trim().parse().ok()?,
        None => {
            let one: usize = inside.trim().parse().ok()?;
            one..one.checked_add(1)?
        }
    };
    Some((name, Some(range)))
}

/// `(allowed: a, b); did you mean "b"?`
fn choices(label: &str, wrong: &str, words: &[&str]) -> String {
    let hint = nearest(wrong, words).map(|word| format!("; did you mean \"{word}\"?"));
    format!(" ({label}: {}){}", words.join(", "), hint.unwrap_or_default())
}

impl GraphDocument {
    /// Finds out who runs what, and what goes from whom to whom.
    ///
    /// # Errors
    ///
    /// All that does not fit: stages that there are not, that are in no group or twice, edges that
    /// are cut though their items cannot be encoded, groups that receive without an endpoint.
    pub fn resolve(&self, plan: &Plan) -> Result<Cut, Errors> {
        let mut found = Vec::new();
        let mut groups = self.owners(plan, &mut found);
        let owned = groups.clone();
        for (number, edge) in plan.edges.iter().enumerate() {
            self.cut_edge(plan, (number, edge), &owned, &mut groups, &mut found);
        }
        for group in &groups {
            let endpoints = &self.groups[&group.name].endpoints;
            let path = format!("groups.{}.endpoints", group.name);
            if endpoints.is_empty() && !group.receives.is_empty() {
                let peers: BTreeSet<_> =
                    group.receives.iter().map(|one| one.peer.as_str()).collect();
                let peers = peers.into_iter().collect::<Vec<_>>().join(", ");
                let what = format!("there is none, and it receives from {peers}");
                found.push(Error::new(path, what));
            } else if let Some(empty) = endpoints.iter().position(|one| one.address.is_empty()) {
                found.push(Error::new(format!("{path}[{empty}].address"), "there is none"));
            }
        }
        self.check_channels(plan, &mut found);
        self.check_groups(&mut found);
        Errors::none_of(found)?;
        Ok(Cut { groups })
    }

    /// The replicas of each group.
    fn owners(&self, plan: &Plan, found: &mut Vec<Error>) -> Vec<CutGroup> {
        let names: Vec<&str> = plan.stages.iter().map(|stage| &*stage.name).collect();
        let mut owner = BTreeMap::new();
        let mut groups = Vec::new();
        for (name, group) in &self.groups {
            let mut replicas = BTreeMap::<_, BTreeSet<_>>::new();
            for (place, text) in group.stages.iter().enumerate() {
                let path = format!("groups.{name}.stages[{place}]");
                let Some((stage, range)) = part(text) else {
                    let help = "a name, `name[0..2]` or `name[3]` is allowed";
                    found.push(Error::new(
                        path,
                        format!("\"{text}\" is no part of a stage: {help}"),
                    ));
                    continue;
                };
                let Some(number) = names.iter().position(|known| *known == stage) else {
                    let what = format!("no stage is called \"{stage}\"");
                    found.push(Error::new(path, what + &choices("stages", stage, &names)));
                    continue;
                };
                let count = plan.stages[number].replicas;
                let range = range.unwrap_or(0..count);
                if range.is_empty() || range.end > count {
                    let what = format!("\"{stage}\" has the replicas 0..{count}, not {range:?}");
                    found.push(Error::new(path, what));
                    continue;
                }
                for replica in range {
                    if let Some(other) = owner.insert((number, replica), name) {
                        let what =
                            format!("replica {replica} of \"{stage}\" is in \"{other}\" already");
                        found.push(Error::new(&path, what));
                    }
                    replicas.entry(number).or_default().insert(replica);
                }
            }
            let (receives, sends) = Default::default();
            groups.push(CutGroup { name: name.clone(), replicas, receives, sends });
        }
        for (number, stage) in plan.stages.iter().enumerate() {
            let is_free = |replica: &usize| !owner.contains_key(&(number, *replica));
            let free: Vec<_> = (0..stage.replicas).filter(is_free).collect();
            if free.len() == stage.replicas {
                found.push(Error::new("groups", format!("stage \"{}\" is in none", stage.name)));
            } else if !free.is_empty() {
                let what = format!("replicas {free:?} of stage \"{}\" are in none", stage.name);
                found.push(Error::new("groups", what));
            }
        }
        groups
    }

    /// The channels that an edge becomes: one from each group that has producers to each other one
    /// that has consumers.
    fn cut_edge(
        &self,
        plan: &Plan,
        (number, edge): (usize, &PlannedEdge),
        owned: &[CutGroup],
        groups: &mut [CutGroup],
        found: &mut Vec<Error>,
    ) {
        let levels_of = |group: &CutGroup| -> BTreeSet<usize> {
            group.replicas.keys().map(|stage| plan.stages[*stage].level).collect()
        };
        let [from, to] = [edge.from, edge.to].map(|stage| plan.stages[stage].name.clone());
        let has = |group: &&CutGroup, stage| group.replicas.contains_key(&stage);
        let mut is_cut = false;
        for (sender, source) in owned.iter().enumerate().filter(|(_, one)| has(one, edge.from)) {
            let receivers = owned.iter().enumerate().filter(|(_, one)| has(one, edge.to));
            for (receiver, sink) in receivers.filter(|(receiver, _)| *receiver != sender) {
                is_cut = true;
                let is_internal = !levels_of(source).is_disjoint(&levels_of(sink));
                let options = self.options(&format!("{from}->{to}"), &sink.name);
                let channel = |peer: &CutGroup| {
                    let peer = peer.name.clone();
                    CutChannel { edge: number, peer, is_internal, options }
                };
                groups[sender].sends.push(channel(sink));
                groups[receiver].receives.push(channel(source));
            }
        }
        if is_cut && edge.schema.is_none() {
            let what = format!("\"{from}\" and \"{to}\" have to be in one group");
            let why = match edge.is_feedback {
                true => "it is a loop".to_owned(),
                false => format!("{} cannot be encoded", edge.item),
            };
            found.push(Error::new("groups", format!("{what}: {why}")));
        }
    }

    fn check_groups(&self, found: &mut Vec<Error>) {
        for (name, group) in &self.groups {
            for (peer, endpoint) in &group.via {
                let path = format!("groups.{name}.via.{peer}");
                let endpoints = self.groups.get(peer).map_or(&[][..], |peer| &peer.endpoints);
                let names: Vec<_> =
                    endpoints.iter().filter_map(|one| one.name.as_deref()).collect();
                if !names.contains(&endpoint.as_str()) {
                    let what = format!("it has no endpoint \"{endpoint}\"");
                    found.push(Error::new(path, what + &choices("endpoints", endpoint, &names)));
                }
            }
            if let Some(Err(error)) = group.cpus.as_deref().map(str::parse::<CpuSet>) {
                found.push(Error::new(format!("groups.{name}.cpus"), error.to_string()));
            }
        }
    }

    fn check_channels(&self, plan: &Plan, found: &mut Vec<Error>) {
        let name = |edge: &PlannedEdge| {
            format!("{}->{}", plan.stages[edge.from].name, plan.stages[edge.to].name)
        };
        let edges: Vec<_> = plan.edges.iter().map(name).collect();
        let edges: Vec<_> = edges.iter().map(String::as_str).collect();
        for channel in self.channels.keys().filter(|name| !edges.contains(&name.as_str())) {
            let what = format!("there is no such edge{}", choices("edges", channel, &edges));
            found.push(Error::new(format!("channels.{channel}"), what));
        }
    }
}
