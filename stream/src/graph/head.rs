//! Beginnings of stages: what gives items to the first operator of a replica.
//!
//! [`Feed`] is the chain of operators as a head sees it: one call for each bundle of items.

use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::trace::{self, TraceContext};
use margo::ult;
use prim::sync::atomic::Ordering::Relaxed;

use super::body::Body;
use super::edge::{Bundle, Input, Taken, within};
use super::operator::Operator;
use super::outlet::Last;
use super::state::{RunState, StageCounts, add_time};
use super::stop::{BoxError, Stop};
use super::wiring::{Inbox, Wiring};

/// The operators of a replica with the end behind them.
pub(crate) trait Feed<T> {
    /// Takes all items out of the vector, one after the other.
    fn items(&mut self, items: &mut Vec<T>) -> Result<(), Stop>;
    fn watermark(&mut self, time: u64) -> Result<(), Stop>;
    /// Lets nothing wait at the end: the head has nothing to give.
    fn flush(&mut self) -> Result<(), Stop>;
    fn due(&self) -> Option<Instant>;
    fn tick(&mut self, now: Instant) -> Result<(), Stop>;
}

/// The head of a replica: runs until its input ends. What it has borrowed of the graph, such as its
/// end of an edge, lives as long as the replica, so that nobody takes a failure for an end.
pub(crate) type Head<T> = Box<dyn FnMut(&mut dyn Feed<T>) -> Result<(), Stop> + Send>;

/// A replica of a stage, from its head to its end.
pub(crate) struct Replica<T, O, L> {
    pub(crate) head: Head<T>,
    pub(crate) chain: Chain<O, L>,
}

impl<T, O: Operator<T>, L: Last<O::Out>> Body for Replica<T, O, L> {
    fn run(&mut self) -> Result<(), Stop> {
        let Self { head, chain } = self;
        chain.last.open()?;
        head(chain)?;
        if chain.state.is_over() {
            return Err(Stop::over());
        }
        chain.operator.end(&mut chain.last)?;
        chain.last.finish()
    }
}

/// See [`Feed`].
pub(crate) struct Chain<O, L> {
    pub(crate) operator: O,
    pub(crate) last: L,
    pub(crate) state: Arc<RunState>,
    pub(crate) counts: Arc<StageCounts>,
}

impl<T, O: Operator<T>, L: Last<O::Out>> Feed<T> for Chain<O, L> {
    fn items(&mut self, items: &mut Vec<T>) -> Result<(), Stop> {
        if self.state.is_over() {
            return Err(Stop::over());
        }
        self.counts.items.fetch_add(items.len() as u64, Relaxed);
        let Self { operator, last, .. } = self;
        items.drain(..).try_for_each(|item| operator.item(item, last))?;
        if let Some(trace) = trace::current() {
            last.mark(trace);
        }
        Ok(())
    }

    fn watermark(&mut self, time: u64) -> Result<(), Stop> {
        self.operator.watermark(time, &mut self.last)
    }

    fn flush(&mut self) -> Result<(), Stop> {
        self.operator.idle(&mut self.last)?;
        self.last.flush()
    }

    fn due(&self) -> Option<Instant> {
        Operator::<T>::due(&self.operator)
    }

    fn tick(&mut self, now: Instant) -> Result<(), Stop> {
        self.operator.tick(now, &mut self.last)
    }
}

/// The input of a replica, with what it knows of its producers.
pub(crate) struct Intake<T> {
    input: Box<dyn Input<T>>,
    /// The newest watermark of each producer, and that of all together.
    marks: Vec<u64>,
    time: u64,
    counts: Arc<StageCounts>,
    state: Arc<RunState>,
}

impl<T: Send + 'static> Intake<T> {
    /// The intake of a replica.
    pub(crate) fn of(inbox: &Inbox<T>, replica: usize, wiring: &Wiring) -> Self {
        let (input, producers) = inbox.input(replica, wiring);
        let (counts, state) = (wiring.counts(inbox.stage), wiring.state.clone());
        Self { input, marks: vec![0; producers], time: 0, counts, state }
    }

    /// Takes the next bundle. When there is none, flushes and waits. `None`: all have ended.
    fn take<U>(&mut self, feed: &mut (impl Feed<U> + ?Sized)) -> Result<Option<Bundle<T>>, Stop> {
        if let Some(bundle) = self.input.try_take() {
            return Ok(Some(bundle));
        }
        // Producers of the same xstream have their turn, before half a bundle goes on its way.
        ult::yield_now();
        if let Some(bundle) = self.input.try_take() {
            return Ok(Some(bundle));
        }
        feed.flush()?;
        let since = Instant::now();
        let taken = loop {
            match self.input.take(feed.due()) {
                Taken::Bundle(bundle) => break Some(bundle),
                // Channels are closed too when the run is over.
                Taken::Ended if self.state.is_over() => return Err(Stop::over()),
                Taken::Ended => break None,
                Taken::Late => {
                    feed.tick(Instant::now())?;
                    feed.flush()?;
                }
            }
        };
        add_time(&self.counts.waited_ns, since.elapsed());
        Ok(taken)
    }

    /// Takes note of a producer's watermark. Returns that of all together, if it is new.
    fn note(&mut self, from: usize, watermark: Option<u64>) -> Option<u64> {
        let mark = self.marks.get_mut(from)?;
        *mark = watermark?.max(*mark);
        let all = self.marks.iter().min().copied().unwrap_or(0);
        (std::mem::replace(&mut self.time, all) < all).then_some(all)
    }

    /// Gives all to the operators.
    pub(crate) fn run(&mut self, feed: &mut dyn Feed<T>) -> Result<(), Stop> {
        while let Some(Bundle { from, mut items, watermark, trace }) = self.take(feed)? {
            within(trace, || {
                feed.items(&mut items)?;
                self.input.give_back(items);
                self.note(from, watermark).map_or(Ok(()), |time| feed.watermark(time))
            })?;
            if let Some(due) = feed.due() {
                let now = Instant::now();
                if due <= now {
                    feed.tick(now)?;
                }
            }
        }
        Ok(())
    }
}

/// Most items that a source hands on at once.
const CHUNK_MAX: usize = 256;

/// A source that takes longer to make what it hands on at once makes less of it, and lets none of
/// it wait.
const CHUNK_TIME: Duration = Duration::from_millis(1);

/// The place where a source puts its items. See [`Graph::generate`](super::Graph::generate).
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// let powers = graph
///     .generate("powers", |emit| {
///         let mut power = 1u32;
///         while let Some(next) = power.checked_mul(1000) {
///             emit.emit(power)?;
///             power = next;
///         }
///         Ok(())
///     })
///     .collect();
/// graph.run()?;
/// assert_eq!(powers.take(), [1, 1000, 1_000_000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Emit<'a, T> {
    feed: &'a mut dyn Feed<T>,
    made: Vec<T>,
    chunk: usize,
    since: Instant,
}

impl<'a, T> Emit<'a, T> {
    pub(crate) fn new(feed: &'a mut dyn Feed<T>) -> Self {
        Self { feed, made: Vec::new(), chunk: 1, since: Instant::now() }
    }

    /// Gives an item on. A few may be kept until there are more, but not for longer than about a
    /// millisecond while the source goes on; a source that is going to wait calls
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// [`Stop`], which is to be returned: nobody wants more, or the run is over.
    #[inline]
    pub fn emit(&mut self, item: T) -> Result<(), Stop> {
        self.made.push(item);
        if self.made.len() >= self.chunk { self.pass() } else { Ok(()) }
    }

    #[cold]
    fn pass(&mut self) -> Result<(), Stop> {
        let is_slow = self.since.elapsed() >= CHUNK_TIME;
        self.feed.items(&mut self.made)?;
        if is_slow {
            self.feed.flush()?;
            self.chunk = (self.chunk / 4).max(1);
        } else {
            self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        }
        // Others of the xstream, which may be those who take the items.
        ult::yield_now();
        self.since = Instant::now();
        Ok(())
    }

    /// Gives on everything that has been kept.
    ///
    /// # Errors
    ///
    /// As [`emit`](Self::emit).
    pub fn flush(&mut self) -> Result<(), Stop> {
        self.feed.items(&mut self.made)?;
        self.feed.flush()
    }

    /// Says that no item that follows is of an earlier time, for windows of event time.
    ///
    /// # Errors
    ///
    /// As [`emit`](Self::emit).
    pub fn watermark(&mut self, time: u64) -> Result<(), Stop> {
        self.feed.items(&mut self.made)?;
        self.feed.watermark(time)
    }
}

impl<T> std::fmt::Debug for Emit<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Emit").field("kept", &self.made.len()).finish_non_exhaustive()
    }
}

/// The two sides of a stage of the program's own: what it receives, and where it puts what it
/// makes. See [`Flow::own`](super::Flow::own).
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// let sums = graph
///     .source("numbers", 1..=5u64)
///     .own("pairs", |io| {
///         while let Some(one) = io.recv()? {
///             let other = io.recv()?.unwrap_or(0);
///             io.emit(one + other)?;
///         }
///         Ok(())
///     })
///     .collect();
/// graph.run()?;
/// assert_eq!(sums.take(), [3, 7, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StageIo<'a, T, U> {
    intake: &'a mut Intake<T>,
    /// The rest of the newest bundle, the next item last.
    received: Vec<T>,
    /// The producer of that bundle, and the watermark behind it.
    behind: (usize, Option<u64>),
    trace: Option<TraceContext>,
    emit: Emit<'a, U>,
}

impl<'a, T: Send + 'static, U> StageIo<'a, T, U> {
    /// Runs the code of a stage.
    pub(crate) fn run(
        intake: &'a mut Intake<T>,
        feed: &'a mut dyn Feed<U>,
        code: &mut impl FnMut(&mut StageIo<'_, T, U>) -> Result<(), BoxError>,
    ) -> Result<(), Stop> {
        let (received, behind, trace, emit) = (Vec::new(), (0, None), None, Emit::new(feed));
        let mut io = StageIo { intake, received, behind, trace, emit };
        code(&mut io).map_err(Stop::failed)?;
        io.emit.flush()
    }

    /// Receives the next item, and waits for it. `None`: there will be no more.
    ///
    /// # Errors
    ///
    /// [`Stop`], which is to be returned.
    pub fn recv(&mut self) -> Result<Option<T>, Stop> {
        loop {
            if let Some(item) = self.received.pop() {
                return Ok(Some(item));
            }
            self.intake.input.give_back(std::mem::take(&mut self.received));
            let Emit { feed, made, .. } = &mut self.emit;
            let (from, watermark) = std::mem::take(&mut self.behind);
            within(self.trace.take(), || {
                if !made.is_empty() {
                    feed.items(made)?;
                }
                self.intake.note(from, watermark).map_or(Ok(()), |time| feed.watermark(time))
            })?;
            let Some(bundle) = self.intake.take(&mut **feed)? else {
                return Ok(None);
            };
            let Bundle { from, mut items, watermark, trace } = bundle;
            (self.behind, self.trace) = ((from, watermark), trace);
            items.reverse();
            self.received = items;
        }
    }

    /// Gives an item on; see [`Emit::emit`]. Nothing that it has been given waits while the stage
    /// waits in [`recv`](Self::recv).
    ///
    /// # Errors
    ///
    /// [`Stop`], which is to be returned.
    #[inline]
    pub fn emit(&mut self, item: U) -> Result<(), Stop> {
        within(self.trace, || self.emit.emit(item))
    }

    /// The trace that the newest item is part of, for [`margo::trace::within`]: calls that the code
    /// makes belong to it then, as what it emits does.
    pub fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// Gives on everything that has been kept.
    ///
    /// # Errors
    ///
    /// [`Stop`], which is to be returned.
    pub fn flush(&mut self) -> Result<(), Stop> {
        within(self.trace, || self.emit.flush())
    }
}

impl<T, U> std::fmt::Debug for StageIo<'_, T, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StageIo").field("emit", &self.emit).finish_non_exhaustive()
    }
}
