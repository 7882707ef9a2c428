//! Descriptions of graphs, and what is wrong with them: [`Plan`].

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::edge::Spread;
use super::error::PlanErrors;
use super::resolve::Cut;

/// A description of a graph: its stages and edges. Prints as text.
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// graph.source("read", ["a b"]).map(str::len).farm("drop", 2).for_each(drop);
/// let plan = graph.plan();
/// plan.check()?;
/// assert_eq!(plan.to_string(), "read\n  -> drop: usize, on demand\ndrop x 2\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The stages, in the order in which they were described.
    pub stages: Vec<PlannedStage>,
    /// The edges, likewise.
    pub edges: Vec<PlannedEdge>,
    pub(crate) complaints: Vec<String>,
}

/// A stage of a [`Plan`].
///
/// ```
/// use margo_stream::graph::{Graph, PlannedStage};
///
/// let graph = Graph::new();
/// graph.source("read", ["a b"]).map(str::len).farm("drop", 2).for_each(drop);
/// let plan = graph.plan();
/// let PlannedStage { name, replicas, level, .. } = &plan.stages[1];
/// assert_eq!((&**name, *replicas, *level), ("drop", 2, 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedStage {
    /// The name.
    pub name: Arc<str>,
    /// Replicas, in all groups.
    pub replicas: usize,
    /// Stages on the longest way from a source to here. The two of an all-to-all are on one level.
    pub level: usize,
    /// True if its items go somewhere.
    pub is_complete: bool,
}

/// An edge of a [`Plan`].
///
/// ```
/// use margo_stream::graph::{Graph, Spread};
///
/// let graph = Graph::new();
/// graph.source("read", ["a b"]).map(str::len).farm("drop", 2).for_each(drop);
/// let plan = graph.plan();
/// let edge = &plan.edges[0];
/// assert_eq!((&*plan.stages[edge.to].name, edge.spread), ("drop", Spread::OnDemand));
/// assert!(edge.schema.is_some(), "numbers can go to another process");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedEdge {
    /// The stage that it comes from: its place among the stages.
    pub from: usize,
    /// The stage that it goes to, likewise.
    pub to: usize,
    /// The way in which it spreads the items over the replicas.
    pub spread: Spread,
    /// The type of the items, as the compiler names it.
    pub item: &'static str,
    /// A hash of the shape of the items; zero if it is not known. `None` if the items cannot go to
    /// another process.
    pub schema: Option<u64>,
    /// It leads back to the stage that it comes from, with room for any number of items.
    pub is_feedback: bool,
}

impl Plan {
    /// Looks for everything that keeps the graph from running.
    ///
    /// # Errors
    ///
    /// A list, with the names of stages.
    pub fn check(&self) -> Result<(), PlanErrors> {
        let mut errors = self.complaints.clone();
        let mut names = BTreeSet::new();
        if self.stages.is_empty() {
            errors.push("it has no stages".to_owned());
        }
        for PlannedStage { name, replicas, is_complete, .. } in &self.stages {
            if !names.insert(name) {
                errors.push(format!("two stages are called `{name}`"));
            }
            if *replicas == 0 {
                errors.push(format!("stage `{name}` has no replicas"));
            }
            if !is_complete {
                let help = "end it with a sink, or give them to another stage";
                errors.push(format!("the items of stage `{name}` go nowhere: {help}"));
            }
            if name.is_empty() || name.contains(['[', ']', '"']) || name.contains(char::is_control)
            {
                errors
                    .push(format!("a stage cannot be called {name:?}: documents could not say it"));
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(PlanErrors(errors)) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnDemand => "on demand",
            Self::RoundRobin => "in turn",
            Self::ByKey => "by key",
            Self::Broadcast => "to all",
        })
    }
}

impl Plan {
    /// Describes the graph as text: its stages, with the groups that run them if it is cut, and the
    /// edges that lead away from each.
    ///
    /// ```
    /// use margo_stream::graph::{Graph, GraphDocument};
    ///
    /// let graph = Graph::new();
    /// graph.source("read", [1u8]).farm("drop", 2).for_each(drop);
    /// let document = GraphDocument::from_json(
    ///     r#"{ "groups": { "G1": { "stages": ["read", "drop[0]"] },
    ///         "G2": { "stages": ["drop[1]"], "endpoints": [{ "address": "na+sm://" }] } } }"#,
    /// )?;
    /// let plan = graph.plan();
    /// let text = plan.text(Some(&document.resolve(&plan)?));
    /// let edge = "  -> drop: u8, on demand, from G1 to G2";
    /// assert_eq!(text, format!("read, in G1\n{edge}\ndrop x 2, in G1 [0], G2 [1]\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn text(&self, cut: Option<&Cut>) -> String {
        let mut text = String::new();
        // A `String` has room for everything.
        let _ = self.write(&mut text, cut);
        text
    }

    fn write(&self, f: &mut dyn fmt::Write, cut: Option<&Cut>) -> fmt::Result {
        for (number, stage) in self.stages.iter().enumerate() {
            f.write_str(&stage.name)?;
            if stage.replicas != 1 {
                write!(f, " x {}", stage.replicas)?;
            }
            if let Some(cut) = cut {
                let groups = cut.groups.iter().filter_map(|group| {
                    let replicas = group.replicas.get(&number)?;
                    let is_all = replicas.len() == stage.replicas;
                    let list = format!("{replicas:?}").replace('{', " [").replace('}', "]");
                    Some(group.name.clone() + if is_all { "" } else { &list })
                });
                write!(f, ", in {}", groups.collect::<Vec<_>>().join(", "))?;
            }
            writeln!(f)?;
            for (place, edge) in self.edges.iter().enumerate() {
                if edge.from != number {
                    continue;
                }
                let PlannedEdge { to, spread, item, schema, .. } = edge;
                let local = match schema {
                    _ if edge.is_feedback => ", again",
                    Some(_) => "",
                    None => ", in one process",
                };
                write!(f, "  -> {}: {item}, {spread}{local}", self.stages[*to].name)?;
                for group in cut.iter().flat_map(|cut| &cut.groups) {
                    let here = group.sends.iter().filter(|channel| channel.edge == place);
                    let peers: Vec<_> = here.map(|channel| channel.peer.as_str()).collect();
                    if !peers.is_empty() {
                        write!(f, ", from {} to {}", group.name, peers.join(" and "))?;
                    }
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, None)
    }
}
