//! The other groups, as the process that runs one of them knows them: [`Links`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use margo::Instance;
use prim::lock::Lock;

use super::document::{ChannelOptions, GraphDocument, Group, GroupEndpoint};
use super::error::PeerError;
use super::plan::Plan;
use super::resolve::{Cut, CutGroup};
use super::stop::BoxError;
use crate::base::names;

/// A queue of a stage in one of the groups, at the end of an edge.
#[derive(Clone)]
pub(crate) struct QueueAt {
    /// The stage from which the edge comes, which has no other one.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) group: String,
    /// `None`: the queue is that of all replicas there.
    pub(crate) replica: Option<usize>,
}

/// The group that runs here, and its ways to the others.
pub(crate) struct Links {
    pub(crate) own: String,
    pub(crate) plan: Plan,
    pub(crate) cut: Cut,
    pub(crate) document: GraphDocument,
    /// The endpoints, in the order of the document, then those that only call.
    pub(crate) instances: Vec<Instance>,
    /// The groups whose lives are watched.
    pub(crate) watched: Lock<BTreeSet<String>>,
}

impl Links {
    fn group(&self, name: &str) -> &Group {
        &self.document.groups[name]
    }

    /// The instances at which this group receives.
    pub(crate) fn endpoints(&self) -> Vec<&Instance> {
        self.instances.iter().take(self.group(&self.own).endpoints.len()).collect()
    }

    /// The address of another group, as it is called from here.
    pub(crate) fn address(&self, group: &str) -> String {
        let place = self.document.endpoint_for(&self.own, group);
        self.group(group).endpoints[place].address_to_call()
    }

    fn replicas_of(group: &CutGroup, stage: usize) -> impl Iterator<Item = usize> {
        group.replicas.get(&stage).into_iter().flatten().copied()
    }

    /// The replicas of a stage that run here.
    pub(crate) fn own_replicas(&self, stage: usize) -> Vec<usize> {
        self.cut
            .group(&self.own)
            .map_or_else(Vec::new, |own| Self::replicas_of(own, stage).collect())
    }

    /// The groups that run replicas of a stage.
    pub(crate) fn groups_of(&self, stage: usize) -> BTreeSet<&str> {
        let groups = self.cut.groups.iter().filter(|group| group.replicas.contains_key(&stage));
        groups.map(|group| group.name.as_str()).collect()
    }

    /// The group that runs a replica of a stage.
    pub(crate) fn group_of(&self, stage: usize, replica: usize) -> Option<&str> {
        let has = |group: &&CutGroup| {
            group.replicas.get(&stage).is_some_and(|replicas| replicas.contains(&replica))
        };
        self.cut.groups.iter().find(has).map(|group| group.name.as_str())
    }

    /// The replicas of a stage, and the groups that run them.
    pub(crate) fn replicas(&self, stage: usize) -> impl Iterator<Item = (usize, &str)> {
        let count = self.plan.stages[stage].replicas;
        (0..count).filter_map(move |replica| Some((replica, self.group_of(stage, replica)?)))
    }

    /// Returns whether other groups run replicas of a stage.
    pub(crate) fn is_cut(&self, stage: usize) -> bool {
        self.groups_of(stage).into_iter().any(|group| group != self.own)
    }

    pub(crate) fn stage(&self, stage: usize) -> Arc<str> {
        self.plan.stages[stage].name.clone()
    }

    /// The endpoints of other groups that are called from here.
    pub(crate) fn called(&self) -> impl Iterator<Item = &GroupEndpoint> {
        let sends = self.cut.group(&self.own).into_iter().flat_map(|own| &own.sends);
        sends.map(|channel| {
            let place = self.document.endpoint_for(&self.own, &channel.peer);
            &self.group(&channel.peer).endpoints[place]
        })
    }

    /// The senders of an edge to here: how many there are at each endpoint.
    pub(crate) fn senders(&self, stage: usize) -> Vec<usize> {
        let mut senders = vec![0; self.group(&self.own).endpoints.len()];
        for group in self.cut.groups.iter().filter(|group| group.name != self.own) {
            let count = Self::replicas_of(group, stage).count();
            if count > 0 {
                senders[self.document.endpoint_for(&group.name, &self.own)] += count;
            }
        }
        senders
    }

    /// An error of an edge, with the other group.
    pub(crate) fn peer_error(
        &self,
        at: &QueueAt,
        group: &str,
        cause: impl Into<BoxError>,
    ) -> PeerError {
        PeerError { edge: self.edge(at), group: group.to_owned(), cause: cause.into() }
    }

    /// An edge as documents name it.
    pub(crate) fn edge(&self, at: &QueueAt) -> String {
        let [from, to] = [at.from, at.to].map(|stage| &self.plan.stages[stage].name);
        format!("{from}->{to}")
    }

    /// The name of the graph.
    pub(crate) fn graph(&self) -> &str {
        self.document.name.as_deref().unwrap_or("graph")
    }

    /// The name of the stream to a queue.
    pub(crate) fn stream(&self, at: &QueueAt) -> &'static str {
        let replica = at.replica.map_or_else(String::new, |replica| format!("/{replica}"));
        names::kept(format!("{}/{}{replica}", self.graph(), self.edge(at)))
    }

    /// Settings of the edge to a queue.
    pub(crate) fn options(&self, at: &QueueAt) -> ChannelOptions {
        self.document.options(&self.edge(at), &at.group)
    }

    /// Time that other groups have to start.
    pub(crate) fn start_within(&self) -> Duration {
        self.document.start_within_msec.map_or(Duration::from_secs(60), Duration::from_millis)
    }
}
