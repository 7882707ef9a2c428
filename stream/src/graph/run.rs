//! Runs of a graph: start, wait, cancel, figures.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::Instance;
use margo::metrics::PublishedTable;
use margo::ult::channel::{self, RecvTimeoutError};
use margo::ult::{self, JoinHandle, PoolRef, PoolSpec, Runtime, XstreamSpec};
use prim::sync::atomic::Ordering::Relaxed;

use super::body::Body;
use super::builder::Graph;
use super::error::{GraphError, PeerError};
use super::life::Life;
use super::links::Links;
use super::state::{EdgeCounts, EdgeLoad, News, RunState, StageCounts};
use super::stop::Stop;
use super::wiring::{Made, Wiring};
use crate::base::figures::{FlowFigures, publish_edges};

/// Figures of a run that has come to its end.
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// graph.source("numbers", 0..1000u32).stage("drop").for_each(drop);
/// let report = graph.run()?;
/// assert_eq!(report.edges[0].items, 1000);
/// println!("{report}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Time from the start to the end.
    pub elapsed: Duration,
    /// The stages, in the order in which they were described.
    pub stages: Vec<StageFigures>,
    /// The edges, likewise.
    pub edges: Vec<EdgeFigures>,
}

/// Figures of a stage, all replicas together. See [`Report`].
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// graph.source("numbers", 0..1000u32).filter(|n| n % 2 == 0).farm("drop", 2).for_each(drop);
/// let report = graph.run()?;
/// let drops = report.stages.iter().find(|stage| &*stage.name == "drop").expect("it has run");
/// assert_eq!((drops.replicas, drops.items), (2, 500));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StageFigures {
    /// The name.
    pub name: Arc<str>,
    /// Replicas that have run here.
    pub replicas: usize,
    /// Items that its first operator has taken; of a source, that it has made.
    pub items: u64,
    /// Time in which replicas have waited for items.
    pub waited: Duration,
}

/// Figures of an edge. See [`Report`].
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// graph.source("numbers", 0..1000u32).bundle(100).stage("drop").for_each(drop);
/// let report = graph.run()?;
/// let edge = &report.edges[0];
/// assert_eq!((&*edge.from, &*edge.to, edge.items), ("numbers", "drop", 1000));
/// assert!(edge.bundles >= 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EdgeFigures {
    /// The stage that it comes from.
    pub from: Arc<str>,
    /// The stage that it goes to.
    pub to: Arc<str>,
    /// Items that were sent.
    pub items: u64,
    /// Bundles in which they travelled.
    pub bundles: u64,
    /// Time in which replicas have waited for room.
    pub waited: Duration,
    /// Bundles that wait at the stage that it goes to, as far as that runs here.
    pub queued: usize,
    /// Bytes that have come from other groups.
    pub bytes: u64,
    /// Bytes from other groups that are not acknowledged: the credit in use.
    pub held: u64,
    /// Bytes that they may have so, all together.
    pub credit: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for StageFigures { name, replicas, items, waited } in &self.stages {
            writeln!(f, "{name} x {replicas}: {items} items, waited {waited:.1?} for items")?;
        }
        for EdgeFigures { from, to, items, bundles, waited, .. } in &self.edges {
            write!(f, "{from} -> {to}: {items} items in {bundles} bundles, ")?;
            writeln!(f, "waited {waited:.1?} for room")?;
        }
        write!(f, "{:.1?} in all", self.elapsed)
    }
}

/// A graph that runs. Dropped, it is cancelled.
///
/// ```
/// use margo::ult::{PoolSpec, Runtime, XstreamSpec};
/// use margo_stream::graph::{Graph, GraphError};
///
/// let runtime = Runtime::builder()
///     .pool(PoolSpec::new("main"))
///     .xstream(XstreamSpec::new("x0").pools(["main"]))
///     .start()?;
/// let graph = Graph::new();
/// graph.source("numbers", 0u64..).stage("drop").for_each(drop);
/// let run = graph.start(&runtime.pools())?;
/// run.canceler().cancel();
/// assert!(matches!(run.join(), Err(GraphError::Cancelled)));
/// runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a run that is dropped is cancelled"]
pub struct Run {
    figures: Arc<Figures>,
    news: channel::Receiver<News>,
    units: Vec<JoinHandle<()>>,
    /// Replicas whose end is to be told yet.
    left: usize,
    deadline: Option<Instant>,
    _life: Option<Life>,
    published: Vec<PublishedTable>,
}

/// The state and the counts of a run, as whoever reports of it has them.
pub(crate) struct Figures {
    state: Arc<RunState>,
    since: Instant,
    stages: Vec<(Arc<str>, usize, Arc<StageCounts>)>,
    edges: Vec<(usize, usize, Arc<EdgeCounts>)>,
}

/// Ends a [`Run`] from elsewhere. See there.
///
/// ```
/// # use margo::ult::{PoolSpec, Runtime, XstreamSpec};
/// use margo_stream::graph::{Graph, GraphError};
///
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// let graph = Graph::new();
/// graph.source("numbers", 0u64..).stage("drop").for_each(drop);
/// let run = graph.start(&runtime.pools())?;
/// let canceler = run.canceler();
/// let stopping = std::thread::spawn(move || canceler.cancel());
/// assert!(matches!(run.join(), Err(GraphError::Cancelled)));
/// # stopping.join().expect("it has ended");
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RunCanceler(Arc<RunState>);

impl RunCanceler {
    /// Has the run end with [`GraphError::Cancelled`], unless it is over already. Stages that wait
    /// are woken; nothing is taken from code that computes until it emits, receives or waits.
    pub fn cancel(&self) {
        self.0.fail(GraphError::Cancelled);
    }
}

/// Tells that a replica has ended, whatever became of its ULT.
struct Departure {
    state: Arc<RunState>,
    stage: Arc<str>,
    replica: usize,
    is_done: bool,
}

impl Drop for Departure {
    fn drop(&mut self) {
        if !self.is_done {
            let (stage, replica) = (self.stage.clone(), self.replica);
            self.state.fail(GraphError::Lost { stage, replica });
        }
        // Nobody waits for a run that has been let go.
        let _ = self.state.news.send(News::Ended);
    }
}

impl Graph {
    /// Runs the graph to its end, on execution streams of its own: one for each processor.
    ///
    /// # Errors
    ///
    /// [`GraphError`]: what is wrong with the graph, or the first failure. Everything has ended
    /// then.
    pub fn run(self) -> Result<Report, GraphError> {
        self.run_to_end(runtime_on(Vec::new())?)
    }

    /// Runs the graph to its end, on so many execution streams of its own.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_on(self, xstreams: usize) -> Result<Report, GraphError> {
        let runtime = runtime_on(vec![None; xstreams.max(1)])?;
        self.run_to_end(runtime)
    }

    fn run_to_end(self, runtime: Runtime) -> Result<Report, GraphError> {
        let outcome = self.start(&runtime.pools()).and_then(Run::join);
        runtime.shutdown().map_err(|error| GraphError::Runtime(error.into()))?;
        outcome
    }

    /// Starts the graph in pools of a runtime or an instance: each replica is a ULT, and the
    /// replicas are shared out among the pools in turn.
    ///
    /// # Errors
    ///
    /// [`GraphError`]: what is wrong with the graph, or why it does not start.
    pub fn start(self, pools: &[PoolRef]) -> Result<Run, GraphError> {
        self.plan().check().map_err(GraphError::Plan)?;
        self.launch(pools, None)
    }

    /// Starts what runs here of a graph that is known to be right.
    pub(crate) fn launch(
        self,
        pools: &[PoolRef],
        links: Option<Arc<Links>>,
    ) -> Result<Run, GraphError> {
        let mut draft = std::mem::take(&mut *self.draft.lock());
        let (sender, news) = channel::unbounded();
        let state = RunState::new(sender);
        let life = links.as_ref().map(|links| Life::serve(links, &state)).transpose();
        let _life = life.map_err(|error| GraphError::Runtime(error.into()))?;
        let wiring = Wiring::new(&draft, state.clone(), links.clone());
        let (mut all, mut stages, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        for (number, stage) in draft.stages.iter_mut().enumerate() {
            let made = stage.make.take().map_or(Ok(Vec::new()), |make| make(&wiring))?;
            let replicas = wiring.replicas(number).len();
            stages.push((stage.name.clone(), replicas, wiring.counts(number)));
            all.extend(made);
        }
        for Made { stage, replica, body } in all {
            let (state, stage) = (state.clone(), stages[stage].0.clone());
            bodies.push((Departure { state, stage, replica, is_done: false }, body));
        }
        let edges = wiring.edges.iter();
        let edges = edges.map(|(edge, counts)| (edge.from, edge.to, counts.clone())).collect();
        let (left, units) = (bodies.len(), Vec::new());
        let figures = Arc::new(Figures { state, since: Instant::now(), stages, edges });
        let (deadline, published) = (None, Vec::new());
        let mut run = Run { figures, news, units, left, deadline, _life, published };
        for instance in links.iter().flat_map(|links| &links.instances) {
            run.publish(links.as_ref().map_or("", |links| links.graph()), instance);
        }
        for (number, (departure, body)) in bodies.into_iter().enumerate() {
            let stage = departure.stage.clone();
            let ult = pools[number % pools.len()].ult().name(stage.clone());
            match ult.spawn(move || run_replica(departure, body)) {
                Ok(unit) => run.units.push(unit),
                // Its departure has been told.
                Err(error) => {
                    run.figures.state.fail(GraphError::Start { stage, cause: error.into() });
                }
            }
        }
        Ok(run)
    }
}

/// Starts a runtime with so many execution streams, each with a pool, bound to CPUs or not. None:
/// one for each CPU that the process has.
pub(crate) fn runtime_on(mut cpus: Vec<Option<usize>>) -> Result<Runtime, GraphError> {
    if cpus.is_empty() {
        cpus = vec![None; std::thread::available_parallelism().map_or(1, usize::from)];
    }
    let mut builder = Runtime::builder();
    for (number, cpu) in cpus.into_iter().enumerate() {
        let name = format!("stream-{number}");
        builder = builder.pool(PoolSpec::new(&name));
        let xstream = XstreamSpec::new(&name).pools([name]).affinity(cpu.into_iter().collect());
        builder = builder.xstream(xstream);
    }
    builder.start().map_err(|error| GraphError::Runtime(error.into()))
}

/// The ULT of a replica. What fails is known before the ends of its edges are dropped, so that
/// nobody takes them for a proper end.
fn run_replica(mut departure: Departure, mut body: Box<dyn Body>) {
    let ran = catch_unwind(AssertUnwindSafe(|| body.run()));
    let is_exit = ran.as_ref().is_err_and(|panic| ult::is_exit(&**panic));
    // A cancel is told to those that were over already.
    departure.is_done = !is_exit;
    let (stage, replica) = (departure.stage.clone(), departure.replica);
    match ran {
        Ok(ended) => {
            if let Some(cause) = ended.err().and_then(Stop::into_failure) {
                departure.state.fail(match cause.downcast::<PeerError>() {
                    Ok(peer) => {
                        let PeerError { edge, group, cause } = *peer;
                        GraphError::Peer { stage, edge, group, cause }
                    }
                    Err(cause) => GraphError::Stage { stage, replica, cause },
                });
            }
        }
        Err(panic) if !is_exit => {
            let message = message_of(&*panic);
            departure.state.fail(GraphError::Panicked { stage, replica, message });
            ult::integration::discard_panic(panic);
        }
        Err(_) => departure.state.fail(GraphError::Lost { stage, replica }),
    }
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(body)))
        && !ult::is_exit(&*panic)
    {
        let message = message_of(&*panic);
        let stage = departure.stage.clone();
        departure.state.fail(GraphError::Panicked { stage, replica, message });
        ult::integration::discard_panic(panic);
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a value that is no text").to_owned()
}

impl Run {
    /// Has the run end with [`GraphError::Late`] if it takes longer, counted from now.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.deadline = Instant::now().checked_add(limit);
        self
    }

    /// Publishes the figures of the edges with the metrics of an instance, until the end: items,
    /// what waits, credit. Those of a [group](Graph::start_group) are at its instances already.
    ///
    /// ```
    /// use margo::Instance;
    /// use margo_stream::graph::Graph;
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// let graph = Graph::new();
    /// graph.source("numbers", 0..1000u32).stage("drop").for_each(drop);
    /// let mut run = graph.start(&[instance.layout().rpc_pool()])?;
    /// run.publish("numbers", &instance);
    /// let table = &instance.metrics().tables[0];
    /// assert_eq!((&*table.name, &*table.rows[0].labels[1]), ("stream_edge", "numbers->drop"));
    /// run.join()?;
    /// assert!(instance.metrics().tables.is_empty());
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish(&mut self, graph: &str, instance: &Instance) {
        let figures = self.figures.clone();
        let look = move || {
            let edge = |edge: EdgeFigures| {
                let EdgeFigures { items, bytes, queued: waiting, held, credit, .. } = edge;
                let name = format!("{}->{}", edge.from, edge.to);
                (name, FlowFigures { items, bytes, waiting, held, credit })
            };
            figures.report().edges.into_iter().map(edge).collect()
        };
        self.published.extend(publish_edges(instance, graph.to_owned(), look));
    }

    /// Returns what ends the run from elsewhere.
    pub fn canceler(&self) -> RunCanceler {
        RunCanceler(self.figures.state.clone())
    }

    /// Waits for the end of all stages.
    ///
    /// # Errors
    ///
    /// The first failure. Everything has ended then.
    pub fn join(mut self) -> Result<Report, GraphError> {
        while self.left > 0 {
            let news = match self.deadline {
                Some(deadline) => self.news.recv_deadline(deadline),
                None => self.news.recv().map_err(|_| RecvTimeoutError::Closed),
            };
            match news {
                Ok(News::Ended) => self.left -= 1,
                // Those that wait for something that is no edge.
                Ok(News::Over) => self.units.iter().for_each(JoinHandle::cancel),
                Err(RecvTimeoutError::TimedOut) => {
                    self.deadline = None;
                    self.figures.state.fail(GraphError::Late);
                }
                Err(RecvTimeoutError::Closed) => break,
            }
        }
        // What a unit that was cancelled has to say is known already.
        ult::join_all(self.units.drain(..));
        let (state, report) = (&self.figures.state, self.report());
        state.retire();
        state.take_failure().map_or(Ok(report), Err)
    }

    /// Returns the figures up to now.
    pub fn report(&self) -> Report {
        self.figures.report()
    }

    /// The figures, also for after the end.
    pub(crate) fn figures(&self) -> Arc<Figures> {
        self.figures.clone()
    }
}

impl Figures {
    pub(crate) fn report(&self) -> Report {
        let stages = self.stages.iter().map(|(name, replicas, counts)| StageFigures {
            name: name.clone(),
            replicas: *replicas,
            items: counts.items.load(Relaxed),
            waited: Duration::from_nanos(counts.waited_ns.load(Relaxed)),
        });
        let name = |stage: usize| self.stages[stage].0.clone();
        let edges = self.edges.iter().map(|(from, to, counts)| {
            let EdgeLoad { queued, bytes, held, credit } = self.state.load(*from, *to);
            EdgeFigures {
                from: name(*from),
                to: name(*to),
                items: counts.items.load(Relaxed),
                bundles: counts.bundles.load(Relaxed),
                waited: Duration::from_nanos(counts.waited_ns.load(Relaxed)),
                queued,
                bytes,
                held,
                credit,
            }
        });
        let (stages, edges) = (stages.collect(), edges.collect());
        Report { elapsed: self.since.elapsed(), stages, edges }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.left > 0 {
            self.figures.state.fail(GraphError::Cancelled);
            self.units.iter().for_each(JoinHandle::cancel);
        }
        let _ = self.figures.state.ended.set(());
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("left", &self.left).finish_non_exhaustive()
    }
}

impl fmt::Debug for RunCanceler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCanceler").finish_non_exhaustive()
    }
}
