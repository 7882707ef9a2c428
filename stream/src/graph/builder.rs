//! The builder of graphs: [`Graph`] and [`Flow`].

use std::any::type_name;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use prim::lock::Lock;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::blob::Blob;
use super::edge::Spread;
use super::error::GraphError;
use super::feedback::{Again, Back};
use super::head::{Chain, Emit, Head, Intake, Replica, StageIo};
use super::keyed::KeyedFlow;
use super::operator::{Expand, Filter, FlatMap, Fold, Map, Operator, Pass, Then, TryMap};
use super::outlet::{Deal, Dealt, Last, Parts, Ports, Sunk, Way, bundle_items};
use super::plan::{Plan, PlannedEdge, PlannedStage};
use super::remote::Remote;
use super::stop::{BoxError, Stop};
use super::wiring::{Draft, EdgeDraft, Inbox, Made, Make, StageDraft, Wiring};

/// A graph of stages. See the [module](super) for how to build one.
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// let squares = graph.source("numbers", 1..=3u64).stage("square").map(|n| n * n).collect();
/// graph.run()?;
/// assert_eq!(squares.take(), [1, 4, 9]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Graph {
    pub(crate) draft: Arc<Lock<Draft>>,
}

/// A replica of a stage, as a source is told.
///
/// ```
/// use margo_stream::graph::{Graph, ReplicaAt};
///
/// let graph = Graph::new();
/// let all = graph
///     .sources("parts", 4, |at: ReplicaAt| (0..100u32).skip(at.index).step_by(at.count))
///     .collect();
/// graph.run()?;
/// assert_eq!(all.take().len(), 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaAt {
    /// Number of this replica.
    pub index: usize,
    /// Replicas of the stage, in all groups.
    pub count: usize,
}

/// The values of a sink, one of each replica, once the graph has run.
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// let sums = graph.source("numbers", 1..=100u64).sink(0, |sum, n| *sum += n);
/// graph.run()?;
/// assert_eq!(sums.take(), [5050]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the values come out of it"]
pub struct Outcome<A>(Parts<A>);

impl<A> Outcome<A> {
    /// Takes the values of the replicas that have ended, in their order. Empty in a group that does
    /// not run the sink.
    pub fn take(&self) -> Vec<A> {
        let mut parts = std::mem::take(&mut *self.0.lock());
        parts.sort_by_key(|(replica, _)| *replica);
        parts.into_iter().map(|(_, value)| value).collect()
    }
}

/// The items that have reached a sink, once the graph has run: those of the first replica first.
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// let even = graph.source("numbers", 1..=6u64).filter(|n| n % 2 == 0).collect();
/// graph.run()?;
/// assert_eq!(even.take(), [2, 4, 6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the items come out of it"]
pub struct Collected<T>(Outcome<Vec<T>>);

impl<T> Collected<T> {
    /// Takes the items.
    pub fn take(&self) -> Vec<T> {
        self.0.take().into_iter().flatten().collect()
    }
}

impl Graph {
    /// A graph without stages.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn share(&self) -> Self {
        Self { draft: self.draft.clone() }
    }

    pub(crate) fn add_stage(&self, name: &str, replicas: usize) -> usize {
        let mut draft = self.draft.lock();
        draft.stages.push(StageDraft { name: name.into(), replicas, make: None });
        draft.stages.len() - 1
    }

    fn begin<T>(&self, stage: usize, heads: Heads<T>) -> Flow<T, Pass> {
        Flow::new(self.share(), stage, heads, Pass)
    }

    /// Begins with the items of an iterator, in a stage of one replica.
    pub fn source<I>(&self, name: &str, items: I) -> Flow<I::Item, Pass>
    where
        I: IntoIterator<Item: Send + 'static> + Send + 'static,
    {
        let mut items = Some(items);
        self.generate_once(name, move |emit| {
            items.take().into_iter().flatten().try_for_each(|item| emit.emit(item))?;
            Ok(())
        })
    }

    /// Begins with the items of several iterators, in a stage with as many replicas.
    pub fn sources<I, F>(&self, name: &str, replicas: usize, items: F) -> Flow<I::Item, Pass>
    where
        I: IntoIterator<Item: Send + 'static>,
        F: FnOnce(ReplicaAt) -> I + Clone + Send + 'static,
    {
        self.generate_each(name, replicas, |at, emit| {
            Ok(items(at).into_iter().try_for_each(|item| emit.emit(item))?)
        })
    }

    /// Begins with what a function emits, in a stage of one replica. It runs as a ULT, and may wait
    /// for whatever ULTs can wait for.
    pub fn generate<T, F>(&self, name: &str, code: F) -> Flow<T, Pass>
    where
        T: Send + 'static,
        F: FnOnce(&mut Emit<'_, T>) -> Result<(), BoxError> + Send + 'static,
    {
        let mut code = Some(code);
        self.generate_once(name, move |emit| code.take().map_or(Ok(()), |code| code(emit)))
    }

    /// Begins with what a function emits, as [`generate`](Self::generate) does, in a stage of
    /// several replicas, each of which calls it.
    ///
    /// ```
    /// use margo_stream::graph::Graph;
    ///
    /// let graph = Graph::new();
    /// let texts = ["1 2", "3 x"];
    /// graph
    ///     .generate_each("read", texts.len(), move |at, emit| {
    ///         for word in texts[at.index].split(' ') {
    ///             emit.emit(word.parse::<u32>()?)?;
    ///         }
    ///         Ok(())
    ///     })
    ///     .for_each(drop);
    /// let error = graph.run().unwrap_err().to_string();
    /// assert_eq!(error, "stage `read`, replica 1: invalid digit found in string");
    /// ```
    pub fn generate_each<T, F>(&self, name: &str, replicas: usize, code: F) -> Flow<T, Pass>
    where
        T: Send + 'static,
        F: FnOnce(ReplicaAt, &mut Emit<'_, T>) -> Result<(), BoxError> + Clone + Send + 'static,
    {
        let stage = self.add_stage(name, replicas);
        let heads: Heads<T> = Box::new(move |index, wiring| {
            let at = ReplicaAt { index, count: wiring.stages[stage].0 };
            let mut code = Some(code.clone());
            Box::new(move |feed| {
                let mut emit = Emit::new(feed);
                if let Some(code) = code.take() {
                    code(at, &mut emit).map_err(Stop::failed)?;
                }
                emit.flush()
            })
        });
        self.begin(stage, heads)
    }

    fn generate_once<T, F>(&self, name: &str, code: F) -> Flow<T, Pass>
    where
        T: Send + 'static,
        F: FnMut(&mut Emit<'_, T>) -> Result<(), BoxError> + Send + 'static,
    {
        let stage = self.add_stage(name, 1);
        let mut code = Some(code);
        let heads: Heads<T> = Box::new(move |_, _| {
            let mut code = code.take();
            Box::new(move |feed| {
                let mut emit = Emit::new(feed);
                if let Some(code) = &mut code {
                    code(&mut emit).map_err(Stop::failed)?;
                }
                emit.flush()
            })
        });
        self.begin(stage, heads)
    }
}

impl Graph {
    /// Describes the graph as it is now.
    pub fn plan(&self) -> Plan {
        let draft = self.draft.lock();
        let stages = draft.stages.iter().map(|stage| PlannedStage {
            name: stage.name.clone(),
            replicas: stage.replicas,
            level: 0,
            is_complete: stage.make.is_some(),
        });
        let edges = draft.edges.iter().map(|edge| PlannedEdge {
            from: edge.from,
            to: edge.to,
            spread: edge.spread,
            item: edge.item,
            schema: edge.schema.map(|schema| schema()),
            is_feedback: edge.is_feedback,
        });
        let complaints = draft.complaints.clone();
        let mut plan = Plan { stages: stages.collect(), edges: edges.collect(), complaints };
        // Edges lead to stages that were described later.
        for to in 0..plan.stages.len() {
            let before = draft.edges.iter().filter(|edge| edge.to == to && !edge.is_feedback);
            let level = |edge: &EdgeDraft| {
                plan.stages[edge.from].level + usize::from(!edge.is_within_all_to_all)
            };
            plan.stages[to].level = before.map(level).max().unwrap_or(0);
        }
        plan
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let draft = self.draft.lock();
        let names = draft.stages.iter().map(|stage| &stage.name);
        f.debug_list().entries(names).finish()
    }
}

/// Makes the heads of the replicas of a stage.
pub(crate) type Heads<I> = Box<dyn FnMut(usize, &Wiring) -> Head<I> + Send>;

/// Makes the outputs of a replica to an edge.
type PortsFn<T> = Box<dyn FnMut(usize, &Wiring) -> Ports<T> + Send>;

/// Makes what receives the items of an edge from other groups.
type PumpsFn = Box<dyn FnOnce(&Wiring) -> Result<Vec<Made>, GraphError> + Send>;

/// A stage that is being built: where its items come from, and the operators they go through.
///
/// Each operator has a clone of its closure for each replica of the stage. What is to be shared
/// among them is in an `Arc`.
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// let lines = graph.source("read", ["a b", "c"]); // a `Flow` of the stage "read"
/// let words = lines.flat_map(|line: &str| line.split(' ')); // in the same stage
/// let upper = words.map(str::to_owned).stage("upper").map(|word| word.to_uppercase());
/// let words = upper.collect();
/// graph.run()?;
/// assert_eq!(words.take(), ["A", "B", "C"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a stage whose items go nowhere is an error of the graph"]
pub struct Flow<I, O> {
    pub(crate) graph: Graph,
    pub(crate) stage: usize,
    pub(crate) heads: Heads<I>,
    pub(crate) operator: O,
    /// The way in which the next edge spreads items, if the program has said it.
    pub(crate) spread: Option<Spread>,
    /// Items of a bundle of the next edge, if the program has said it.
    pub(crate) bundle: Option<usize>,
    /// Watermarks go with the items.
    pub(crate) is_timed: bool,
}

impl<I, O> Flow<I, O> {
    pub(crate) fn new(graph: Graph, stage: usize, heads: Heads<I>, operator: O) -> Self {
        Self { graph, stage, heads, operator, spread: None, bundle: None, is_timed: false }
    }

    /// Sets the number of replicas of this stage. Default: one; that of
    /// [`sources`](Graph::sources) is given there.
    pub fn replicas(self, count: usize) -> Self {
        self.graph.draft.lock().stages[self.stage].replicas = count;
        self
    }

    /// Has the next edge give its bundles to the replicas in turn, instead of to those that have
    /// nothing to do.
    pub fn round_robin(mut self) -> Self {
        self.spread = Some(Spread::RoundRobin);
        self
    }

    /// Sets how many items of the next edge travel together. Default: as many as fit into 16 KiB.
    /// Fewer go at once when the stage has nothing else to do.
    pub fn bundle(mut self, items: usize) -> Self {
        self.bundle = Some(items.max(1));
        self
    }
}

impl<I: Send + 'static, O: Operator<I>> Flow<I, O> {
    /// Applies an operator of the program's own.
    pub fn apply<P: Operator<O::Out>>(
        self,
        operator: P,
    ) -> Flow<I, impl Operator<I, Out = P::Out>> {
        self.then(operator)
    }

    pub(crate) fn then<P>(self, operator: P) -> Flow<I, Then<O, P>> {
        let Self { graph, stage, heads, operator: first, spread, bundle, is_timed } = self;
        let operator = Then(first, operator);
        Flow { graph, stage, heads, operator, spread, bundle, is_timed }
    }

    /// Makes one item of each.
    pub fn map<U, F>(self, f: F) -> Flow<I, impl Operator<I, Out = U>>
    where
        U: Send + 'static,
        F: FnMut(O::Out) -> U + Clone + Send + 'static,
    {
        self.then(Map(f))
    }

    /// Makes one item of each, or fails, which ends the graph.
    pub fn try_map<U, E, F>(self, f: F) -> Flow<I, impl Operator<I, Out = U>>
    where
        U: Send + 'static,
        E: Into<BoxError> + 'static,
        F: FnMut(O::Out) -> Result<U, E> + Clone + Send + 'static,
    {
        self.then(TryMap(f))
    }

    /// Makes any number of items of each.
    pub fn flat_map<U, F>(self, f: F) -> Flow<I, impl Operator<I, Out = U::Item>>
    where
        U: IntoIterator<Item: Send + 'static> + 'static,
        F: FnMut(O::Out) -> U + Clone + Send + 'static,
    {
        self.then(FlatMap(f))
    }

    /// Makes any number of items of each, as [`flat_map`](Self::flat_map), for what borrows from
    /// the item: the function puts them into a vector, which is used again.
    ///
    /// ```
    /// use margo_stream::graph::Graph;
    ///
    /// let graph = Graph::new();
    /// let lengths = graph
    ///     .source("read", ["to be".to_owned(), "or not".to_owned()])
    ///     .expand(|line, lengths| lengths.extend(line.split(' ').map(str::len)))
    ///     .collect();
    /// graph.run()?;
    /// assert_eq!(lengths.take(), [2, 2, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expand<U, F>(self, f: F) -> Flow<I, impl Operator<I, Out = U>>
    where
        U: Send + 'static,
        F: FnMut(O::Out, &mut Vec<U>) + Clone + Send + 'static,
    {
        self.then(Expand { expand: f, made: Vec::new() })
    }

    /// Leaves out items of which the function says no.
    pub fn filter<F>(self, f: F) -> Flow<I, impl Operator<I, Out = O::Out>>
    where
        F: FnMut(&O::Out) -> bool + Clone + Send + 'static,
    {
        self.then(Filter(f))
    }

    /// Folds all items of a replica into a value, which it gives on in the end.
    pub fn fold<A, F>(self, init: A, f: F) -> Flow<I, impl Operator<I, Out = A>>
    where
        A: Clone + Send + 'static,
        F: FnMut(&mut A, O::Out) + Clone + Send + 'static,
    {
        self.then(Fold { value: Some(init), fold: f })
    }

    /// Puts a key before each item, by which the next stages share them out.
    pub fn key_by<K, F>(self, mut f: F) -> KeyedFlow<I, impl Operator<I, Out = (K, O::Out)>>
    where
        K: Send + 'static,
        F: FnMut(&O::Out) -> K + Clone + Send + 'static,
    {
        KeyedFlow(self.then(Map(move |item| (f(&item), item))))
    }

    /// Ends this stage, and begins the next, with one replica.
    pub fn stage(self, name: &str) -> Flow<O::Out, Pass>
    where
        O::Out: Serialize + DeserializeOwned,
    {
        self.cut(name, Some(Remote::new()))
    }

    /// Ends this stage, and begins the next: with so many replicas, among which its items are
    /// shared out.
    pub fn farm(self, name: &str, replicas: usize) -> Flow<O::Out, Pass>
    where
        O::Out: Serialize + DeserializeOwned,
    {
        self.stage(name).replicas(replicas)
    }

    /// Ends this stage, and begins the next, which is in the same process wherever the graph is
    /// cut: for items that cannot be encoded.
    pub fn local_stage(self, name: &str) -> Flow<O::Out, Pass> {
        self.cut(name, None)
    }

    /// Ends this stage, and begins the next, for items with large bytes beside them; see [`Blob`].
    /// Each travels alone if [`bundle`](Self::bundle) does not say otherwise.
    pub fn blob_stage<T>(mut self, name: &str) -> Flow<(T, Blob), Pass>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        O: Operator<I, Out = (T, Blob)>,
    {
        self.bundle.get_or_insert(1);
        self.cut(name, Some(Remote::with_blobs()))
    }

    /// Ends this stage, and begins the next, each replica of which gets all items.
    pub fn broadcast(self, name: &str, replicas: usize) -> Flow<O::Out, Pass>
    where
        O::Out: Serialize + DeserializeOwned + Clone,
    {
        let (graph, is_timed) = (self.graph.share(), self.is_timed);
        let inbox = Inbox::new(graph.add_stage(name, replicas), Spread::Broadcast);
        self.connect(&inbox, Some(Remote::new()), |ports| {
            Dealt::new(ports, Deal::ToAll(O::Out::clone))
        });
        Flow::behind(graph, &inbox, is_timed)
    }

    /// How an edge without keys spreads the items.
    pub(crate) fn deal(&self) -> Spread {
        // Each replica has to be told the time.
        let other = if self.is_timed { Spread::RoundRobin } else { Spread::OnDemand };
        self.spread.unwrap_or(other)
    }

    fn cut(self, name: &str, remote: Option<Remote<O::Out>>) -> Flow<O::Out, Pass> {
        let (graph, inbox, is_timed) = self.cut_before(name, remote);
        Flow::behind(graph, &inbox, is_timed)
    }

    fn cut_before(
        self,
        name: &str,
        remote: Option<Remote<O::Out>>,
    ) -> (Graph, Arc<Inbox<O::Out>>, bool) {
        let (graph, is_timed) = (self.graph.share(), self.is_timed);
        let inbox = Inbox::new(graph.add_stage(name, 1), self.deal());
        self.connect(&inbox, remote, |ports| Dealt::new(ports, Deal::InTurn));
        (graph, inbox, is_timed)
    }

    /// Ends this stage and another one, and begins the next with the items of both.
    ///
    /// ```
    /// use margo_stream::graph::Graph;
    ///
    /// let graph = Graph::new();
    /// let (low, high) = (graph.source("low", 0..3u32), graph.source("high", 10..13u32));
    /// let sum = low.merge("both", high).sink(0, |sum, n| *sum += n);
    /// graph.run()?;
    /// assert_eq!(sum.take(), [36]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn merge<J, P>(self, name: &str, other: Flow<J, P>) -> Flow<O::Out, Pass>
    where
        J: Send + 'static,
        P: Operator<J, Out = O::Out>,
        O::Out: Serialize + DeserializeOwned,
    {
        let (graph, is_timed) = (self.graph.share(), self.is_timed || other.is_timed);
        let spread = if is_timed { Spread::RoundRobin } else { self.deal() };
        let inbox = Inbox::new(graph.add_stage(name, 1), spread);
        let remote = Some(Remote::new());
        self.connect(&inbox, remote, |ports| Dealt::new(ports, Deal::InTurn));
        other.connect(&inbox, remote, |ports| Dealt::new(ports, Deal::InTurn));
        Flow::behind(graph, &inbox, is_timed)
    }

    /// Ends this stage, and begins one that is a function of the program's own: each replica is a
    /// ULT that receives and emits as it likes. If it returns early, the rest of its input is
    /// dropped; if nobody else takes it, its producers end.
    pub fn own<U, F>(self, name: &str, code: F) -> Flow<U, Pass>
    where
        U: Send + 'static,
        O::Out: Serialize + DeserializeOwned,
        F: FnMut(&mut StageIo<'_, O::Out, U>) -> Result<(), BoxError> + Clone + Send + 'static,
    {
        let (graph, inbox, is_timed) = self.cut_before(name, Some(Remote::new()));
        let stage = inbox.stage;
        let heads: Heads<U> = Box::new(move |replica, wiring| {
            let (mut intake, mut code) = (Intake::of(&inbox, replica, wiring), code.clone());
            Box::new(move |feed| StageIo::run(&mut intake, feed, &mut code))
        });
        Flow { is_timed, ..Flow::new(graph, stage, heads, Pass) }
    }

    /// Builds an all-to-all: a stage of left workers, whose keyed items each go to one of the right
    /// workers.
    ///
    /// ```
    /// use margo_stream::graph::Graph;
    ///
    /// let graph = Graph::new();
    /// let mut sums = graph
    ///     .source("numbers", 0..100u64)
    ///     .all_to_all(("left", 2), |left| left.key_by(|n| n % 10), ("right", 3))
    ///     .fold(0, |sum, n| *sum += n)
    ///     .collect();
    /// graph.run()?;
    /// let mut sums = sums.take();
    /// sums.sort();
    /// assert_eq!((sums.len(), sums[9]), (10, (9, 540)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_to_all<K, V, P>(
        self,
        (left, lefts): (&str, usize),
        work: impl FnOnce(Flow<O::Out, Pass>) -> KeyedFlow<O::Out, P>,
        (right, rights): (&str, usize),
    ) -> KeyedFlow<(K, V), Pass>
    where
        O::Out: Serialize + DeserializeOwned,
        P: Operator<O::Out, Out = (K, V)>,
        K: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    {
        let right = work(self.farm(left, lefts)).farm(right, rights);
        let mut draft = right.0.graph.draft.lock();
        let edges = draft.edges.iter_mut().filter(|edge| edge.to == right.0.stage);
        edges.for_each(|edge| edge.is_within_all_to_all = true);
        drop(draft);
        right
    }

    /// Ends this stage, and begins one whose items may go round again: of what the body makes,
    /// `Continue(item)` goes back to its beginning, and `Break(result)` goes on. The way back has
    /// room for any number of items. The body is operators, without further stages, and none of
    /// them may keep items to its end.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use margo_stream::graph::Graph;
    ///
    /// let graph = Graph::new();
    /// let steps = graph
    ///     .source("numbers", 1..=6u64)
    ///     .map(|n| (n, 0))
    ///     .iterate("collatz", |numbers| {
    ///         numbers.map(|(n, steps)| match n {
    ///             1 => ControlFlow::Break(steps),
    ///             n if n % 2 == 0 => ControlFlow::Continue((n / 2, steps + 1)),
    ///             n => ControlFlow::Continue((3 * n + 1, steps + 1)),
    ///         })
    ///     })
    ///     .replicas(2)
    ///     .sink(0, |longest, steps| *longest = steps.max(*longest));
    /// graph.run()?;
    /// assert_eq!(steps.take().into_iter().max(), Some(8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iterate<U, P>(
        self,
        name: &str,
        body: impl FnOnce(Flow<O::Out, Pass>) -> Flow<O::Out, P>,
    ) -> Flow<O::Out, impl Operator<O::Out, Out = U>>
    where
        O::Out: Serialize + DeserializeOwned,
        U: Send + 'static,
        P: Operator<O::Out, Out = ControlFlow<U, O::Out>>,
    {
        let (graph, back) = (self.graph.share(), Back::new());
        let stage = graph.add_stage(name, 1);
        let inbox = Inbox::of_loop(stage, back.clone());
        let limit = self.bundle.unwrap_or(bundle_items::<O::Out>());
        self.connect(&inbox, Some(Remote::new()), |ports| Dealt::new(ports, Deal::InTurn));
        let flow = body(Flow::behind(graph, &inbox, false));
        let mut draft = flow.graph.draft.lock();
        if flow.stage != stage {
            draft.complaints.push(format!("the loop `{name}` has stages within it"));
        }
        draft.edges.push(EdgeDraft {
            from: stage,
            to: stage,
            spread: Spread::OnDemand,
            item: type_name::<O::Out>(),
            schema: None,
            is_within_all_to_all: false,
            is_feedback: true,
        });
        drop(draft);
        flow.then(Again::new(back, limit))
    }

    /// Ends this stage with a function that takes each item.
    pub fn for_each(self, mut f: impl FnMut(O::Out) + Clone + Send + 'static) {
        let _ = self.sink((), move |(), item| f(item));
    }

    /// Ends this stage with a function that takes each item and may fail, which ends the graph.
    pub fn try_for_each<E: Into<BoxError>>(
        self,
        mut f: impl FnMut(O::Out) -> Result<(), E> + Clone + Send + 'static,
    ) {
        let _ = self.sunk((), move |(), item| f(item).map_err(Into::into));
    }

    /// Ends this stage: each replica folds its items into a value.
    pub fn sink<A, F>(self, init: A, mut f: F) -> Outcome<A>
    where
        A: Clone + Send + 'static,
        F: FnMut(&mut A, O::Out) + Clone + Send + 'static,
    {
        self.sunk(init, move |value, item| {
            f(value, item);
            Ok(())
        })
    }

    /// Ends this stage, and keeps the items.
    pub fn collect(self) -> Collected<O::Out> {
        Collected(self.sink_made(Vec::new, |items, item| {
            items.push(item);
            Ok(())
        }))
    }

    fn sunk<A, F>(self, init: A, fold: F) -> Outcome<A>
    where
        A: Clone + Send + 'static,
        F: FnMut(&mut A, O::Out) -> Result<(), BoxError> + Clone + Send + 'static,
    {
        self.sink_made(move || init.clone(), fold)
    }

    fn sink_made<A, F>(self, mut init: impl FnMut() -> A + Send + 'static, fold: F) -> Outcome<A>
    where
        A: Send + 'static,
        F: FnMut(&mut A, O::Out) -> Result<(), BoxError> + Clone + Send + 'static,
    {
        let parts = Parts::default();
        let ends = parts.clone();
        let sunk = move |replica, _: &Wiring| Sunk {
            replica,
            value: Some(init()),
            fold: fold.clone(),
            parts: ends.clone(),
        };
        self.close(sunk, |_| Ok(Vec::new()));
        Outcome(parts)
    }

    /// Gives the items to the stage of an inbox.
    pub(crate) fn connect<L: Last<O::Out> + 'static>(
        self,
        inbox: &Arc<Inbox<O::Out>>,
        remote: Option<Remote<O::Out>>,
        mut last: impl FnMut(Ports<O::Out>) -> L + Send + 'static,
    ) {
        let (mut ports, pumps) = self.edge(inbox, remote);
        self.close(move |replica, wiring| last(ports(replica, wiring)), pumps);
    }

    /// Adds an edge to the stage of an inbox. Returns what makes the outputs of a replica, and what
    /// makes the pumps.
    pub(crate) fn edge<T: Send + 'static>(
        &self,
        inbox: &Arc<Inbox<T>>,
        remote: Option<Remote<T>>,
    ) -> (PortsFn<T>, PumpsFn) {
        let (from, to, spread) = (self.stage, inbox.stage, inbox.spread);
        let (item, is_timed) = (type_name::<T>(), self.is_timed);
        let (is_within_all_to_all, is_feedback) = (false, false);
        let schema = remote.map(|remote| remote.schema);
        let edge = EdgeDraft { from, to, spread, item, schema, is_within_all_to_all, is_feedback };
        self.graph.draft.lock().edges.push(edge);
        let way = Way { is_timed, is_on_demand: spread == Spread::OnDemand };
        let limit = (self.bundle.unwrap_or(bundle_items::<T>()), way);
        let (inbox, outer) = (inbox.clone(), inbox.clone());
        let ports = move |replica, wiring: &_| inbox.ports((from, replica), limit, remote, wiring);
        let pumps = move |wiring: &_| match remote {
            Some(remote) => outer.pumps(from, (remote, is_timed), wiring),
            None => Ok(Vec::new()),
        };
        (Box::new(ports), Box::new(pumps))
    }

    pub(crate) fn close<L: Last<O::Out> + 'static>(
        self,
        mut last: impl FnMut(usize, &Wiring) -> L + Send + 'static,
        pumps: impl FnOnce(&Wiring) -> Result<Vec<Made>, GraphError> + Send + 'static,
    ) {
        let Self { graph, stage, mut heads, operator, .. } = self;
        let make: Make = Box::new(move |wiring| {
            let mut replica = |index| {
                let chain = Chain {
                    operator: operator.clone(),
                    last: last(index, wiring),
                    state: wiring.state.clone(),
                    counts: wiring.counts(stage),
                };
                let body = Box::new(Replica { head: heads(index, wiring), chain });
                Made { stage, replica: index, body }
            };
            let mut made: Vec<_> = wiring.replicas(stage).into_iter().map(&mut replica).collect();
            made.extend(pumps(wiring)?);
            Ok(made)
        });
        graph.draft.lock().stages[stage].make = Some(make);
    }
}

impl<T: Send + 'static> Flow<T, Pass> {
    /// The stage of an inbox.
    pub(crate) fn behind(graph: Graph, inbox: &Arc<Inbox<T>>, is_timed: bool) -> Self {
        let (stage, inbox) = (inbox.stage, inbox.clone());
        let heads: Heads<T> = Box::new(move |replica, wiring| {
            let mut intake = Intake::of(&inbox, replica, wiring);
            Box::new(move |feed| intake.run(feed))
        });
        Self { is_timed, ..Self::new(graph, stage, heads, Pass) }
    }
}

impl<I, O> fmt::Debug for Flow<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl<A> fmt::Debug for Outcome<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").field("parts", &self.0.lock().len()).finish()
    }
}

impl<T> fmt::Debug for Collected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Collected").field(&self.0).finish()
    }
}
