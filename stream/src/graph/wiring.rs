//! From a description of a graph to the replicas that run: [`Draft`], [`Wiring`], [`Inbox`].

use std::sync::Arc;

use prim::lock::Lock;

use super::body::Body;
use super::edge::{BundleQueue, Input, Output};
use super::feedback::Back;
use super::outlet::Ports;
use super::state::{EdgeCounts, RunState, StageCounts};

/// The way in which an edge spreads its items over the replicas of the next stage.
///
/// ```
/// use margo_stream::graph::{Graph, Spread};
///
/// let graph = Graph::new();
/// graph.source("numbers", 0..9u32).farm("square", 3).map(|n| n * n).for_each(drop);
/// assert_eq!(graph.plan().edges[0].spread, Spread::OnDemand);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// A replica that has nothing to do takes the next bundle.
    OnDemand,
    /// Replicas get bundles in turn.
    RoundRobin,
    /// All items of a key go to one replica.
    ByKey,
    /// Each replica gets every item.
    Broadcast,
}

/// Makes the replicas of a stage, with their numbers.
pub(crate) type Make = Box<dyn FnOnce(&Wiring) -> Vec<(usize, Box<dyn Body>)> + Send>;

/// A stage, as the builder has described it.
pub(crate) struct StageDraft {
    pub(crate) name: Arc<str>,
    pub(crate) replicas: usize,
    /// `None` until it is known where its items go.
    pub(crate) make: Option<Make>,
}

/// An edge. A stage has at most one that leads away from it.
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
}

impl Wiring {
    pub(crate) fn new(draft: &Draft, state: Arc<RunState>) -> Self {
        let stages = draft.stages.iter().map(|stage| (stage.replicas, Arc::default())).collect();
        let edges = draft.edges.iter().filter(|edge| !edge.is_feedback);
        let edges = edges.map(|edge| (edge.clone(), Arc::default())).collect();
        Self { state, stages, edges }
    }

    /// Replicas of a stage that run here.
    pub(crate) fn replicas(&self, stage: usize) -> std::ops::Range<usize> {
        0..self.stages[stage].0
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
        from: (usize, usize),
        limit: (usize, bool),
        wiring: &Wiring,
    ) -> Ports<T> {
        let output = |queue: &BundleQueue<T>| -> Box<dyn Output<T>> { queue.output() };
        let outputs = self.with_queues(wiring, |queues| queues.iter().map(output).collect());
        let (number, counts) = wiring.producer(from, self.stage);
        Ports::new(outputs, number, limit, counts, wiring.state.clone())
    }
}
