//! From a description of a graph to the replicas that run: [`Draft`], [`Wiring`], [`Inbox`].

use std::sync::Arc;

use prim::lock::Lock;

use super::body::Body;
use super::edge::{BundleQueue, Input, Spread};
use super::error::GraphError;
use super::feedback::Back;
use super::links::{Links, QueueAt};
use super::outlet::{Ports, Way};
use super::remote::{Place, Remote};
use super::state::{EdgeCounts, EdgeLoad, Gauge, RunState, StageCounts};

/// Makes the replicas of a stage that run here, and what receives items of its others.
pub(crate) type Make = Box<dyn FnOnce(&Wiring) -> Result<Vec<Made>, GraphError> + Send>;

/// A replica of a stage, or what receives for it.
pub(crate) struct Made {
    pub(crate) stage: usize,
    pub(crate) replica: usize,
    pub(crate) body: Box<dyn Body>,
}

/// A stage, as the builder has described it.
pub(crate) struct StageDraft {
    pub(crate) name: Arc<str>,
    pub(crate) replicas: usize,
    /// `None` until it is known where its items go.
    pub(crate) make: Option<Make>,
}

/// An edge. A stage has one that leads away from it, or two.
#[derive(Clone)]
pub(crate) struct EdgeDraft {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) spread: Spread,
    pub(crate) item: &'static str,
    /// The shape of the items, if they can go to another process.
    pub(crate) schema: Option<fn() -> u64>,
    pub(crate) is_within_all_to_all: bool,
    /// It leads back to the stage that it comes from.
    pub(crate) is_feedback: bool,
}

/// All of a graph.
#[derive(Default)]
pub(crate) struct Draft {
    pub(crate) stages: Vec<StageDraft>,
    pub(crate) edges: Vec<EdgeDraft>,
    /// Errors that the builder has found.
    pub(crate) complaints: Vec<String>,
}

/// All that replicas are made with, for one run.
pub(crate) struct Wiring {
    pub(crate) state: Arc<RunState>,
    /// For each stage: replicas in all groups, and figures.
    pub(crate) stages: Vec<(usize, Arc<StageCounts>)>,
    pub(crate) edges: Vec<(EdgeDraft, Arc<EdgeCounts>)>,
    /// `None`: the whole graph runs here.
    links: Option<Arc<Links>>,
}

impl Wiring {
    pub(crate) fn new(draft: &Draft, state: Arc<RunState>, links: Option<Arc<Links>>) -> Self {
        let stages = draft.stages.iter().map(|stage| (stage.replicas, Arc::default())).collect();
        let edges = draft.edges.iter().filter(|edge| !edge.is_feedback);
        let edges = edges.map(|edge| (edge.clone(), Arc::default())).collect();
        Self { state, stages, edges, links }
    }

    /// Replicas of a stage that run here.
    pub(crate) fn replicas(&self, stage: usize) -> Vec<usize> {
        match &self.links {
            None => (0..self.stages[stage].0).collect(),
            Some(links) => links.own_replicas(stage),
        }
    }

    pub(crate) fn counts(&self, stage: usize) -> Arc<StageCounts> {
        self.stages[stage].1.clone()
    }

    /// Replicas that give items to a stage.
    fn producers(&self, stage: usize) -> usize {
        let edges = self.edges.iter().filter(|(edge, _)| edge.to == stage);
        edges.map(|(edge, _)| self.stages[edge.from].0).sum()
    }

    /// The number of a replica among all that give items to a stage, and the figures of its edge.
    fn producer(&self, (from, replica): (usize, usize), to: usize) -> (usize, Arc<EdgeCounts>) {
        let mut number = replica;
        for (edge, counts) in self.edges.iter().filter(|(edge, _)| edge.to == to) {
            if edge.from == from {
                return (number, counts.clone());
            }
            number += self.stages[edge.from].0;
        }
        unreachable!("an inbox is fed by edges of the draft only");
    }
}

/// The items that are on their way to a stage.
pub(crate) struct Inbox<T> {
    pub(crate) stage: usize,
    pub(crate) spread: Spread,
    /// The way back, if the stage is a loop.
    back: Option<Arc<Back<T>>>,
    /// Made by the first who looks for them.
    queues: Lock<Vec<BundleQueue<T>>>,
}

impl<T: Send + 'static> Inbox<T> {
    pub(crate) fn new(stage: usize, spread: Spread) -> Arc<Self> {
        Arc::new(Self { stage, spread, back: None, queues: Lock::default() })
    }

    /// The inbox of a loop.
    pub(crate) fn of_loop(stage: usize, back: Arc<Back<T>>) -> Arc<Self> {
        let spread = Spread::OnDemand;
        Arc::new(Self { stage, spread, back: Some(back), queues: Lock::default() })
    }

    /// All replicas take from one queue.
    fn is_shared(&self) -> bool {
        self.spread == Spread::OnDemand
    }

    fn with_queues<R>(&self, wiring: &Wiring, f: impl FnOnce(&[BundleQueue<T>]) -> R) -> R {
        let mut queues = self.queues.lock();
        if queues.is_empty() {
            let count = if self.is_shared() { 1 } else { wiring.stages[self.stage].0 };
            queues.extend((0..count).map(|_| BundleQueue::new(false)));
            let closers = queues.iter().map(BundleQueue::closer);
            let closers = closers.chain(self.back.iter().map(|back| back.closer()));
            closers.for_each(|close| wiring.state.on_over(close));
            for count in queues.iter().map(BundleQueue::counter) {
                let look = Box::new(move || EdgeLoad { queued: count(), ..EdgeLoad::default() });
                wiring.state.on_look(Gauge { from: None, to: self.stage, look });
            }
        }
        f(&queues)
    }

    /// The input of a replica, and how many producers it has.
    pub(crate) fn input(&self, replica: usize, wiring: &Wiring) -> (Box<dyn Input<T>>, usize) {
        let queue = if self.is_shared() { 0 } else { replica };
        let input = self.with_queues(wiring, |queues| match &self.back {
            Some(back) => back.clone().input(&queues[queue]),
            None => queues[queue].input(),
        });
        (input, wiring.producers(self.stage))
    }

    /// The outputs of a replica of another stage.
    pub(crate) fn ports(
        &self,
        (from, replica): (usize, usize),
        limit: (usize, Way),
        remote: Option<Remote<T>>,
        wiring: &Wiring,
    ) -> Ports<T> {
        let outputs = self.with_queues(wiring, |queues| {
            let Some(links) = &wiring.links else {
                return queues.iter().map(BundleQueue::output).collect();
            };
            let output = |at: QueueAt| match remote {
                Some(remote) if at.group != links.own => {
                    let place = Place { links, at, state: &wiring.state };
                    remote.output(place, (replica, limit.1.is_timed))
                }
                // Documents that have it go elsewhere are refused.
                _ => queues[at.replica.unwrap_or(0)].output(),
            };
            self.everywhere(from, links).map(output).collect()
        });
        let (number, counts) = wiring.producer((from, replica), self.stage);
        Ports::new(outputs, number, limit, counts, wiring.state.clone())
    }

    /// The queues of the stage in all groups.
    fn everywhere(&self, from: usize, links: &Links) -> impl Iterator<Item = QueueAt> {
        let to = self.stage;
        let queues: Vec<(&str, Option<usize>)> = match self.is_shared() {
            true => links.groups_of(to).into_iter().map(|group| (group, None)).collect(),
            false => links.replicas(to).map(|(replica, group)| (group, Some(replica))).collect(),
        };
        let at =
            |(group, replica): (&str, _)| QueueAt { from, to, group: group.to_owned(), replica };
        queues.into_iter().map(at).collect::<Vec<_>>().into_iter()
    }

    /// The pumps of an edge: they bring the items of its replicas in other groups to the queues
    /// that are here.
    pub(crate) fn pumps(
        &self,
        from: usize,
        (remote, is_timed): (Remote<T>, bool),
        wiring: &Wiring,
    ) -> Result<Vec<Made>, GraphError> {
        let Some(links) = wiring.links.as_ref().filter(|links| links.is_cut(from)) else {
            return Ok(Vec::new());
        };
        let first = wiring.producer((from, 0), self.stage).0;
        let here = self.everywhere(from, links).filter(|at| at.group == links.own);
        let pump = |at: QueueAt| {
            let replica = at.replica.unwrap_or(0);
            let queue = self.with_queues(wiring, |queues| queues[replica].output());
            let place = Place { links, at, state: &wiring.state };
            let body = remote.pump(place, (first, is_timed), queue).map_err(|error| {
                let stage = links.stage(self.stage);
                GraphError::Start { stage, cause: error.into() }
            })?;
            Ok(Made { stage: self.stage, replica, body })
        };
        here.map(pump).collect()
    }
}
