//! Two stages behind one.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::builder::Flow;
use super::join::Side;
use super::operator::{Next, Operator, Pass};
use super::outlet::{Deal, Dealt, Last, Ports};
use super::remote::Remote;
use super::stop::Stop;
use super::wiring::Inbox;

/// Items after which both sides are told the time, though one of them may have got none.
const TOLD_AFTER: usize = 4096;

impl<I: Send + 'static, O: Operator<I>> Flow<I, O> {
    /// Ends this stage, and begins two, with one replica each: the left sides go to the first, the
    /// right ones to the second. When one of the two has ended early, its items are dropped.
    ///
    /// ```
    /// use margo_stream::graph::{Graph, Side};
    ///
    /// let graph = Graph::new();
    /// let (small, large) = graph
    ///     .source("numbers", 0..100u32)
    ///     .map(|n| if n < 10 { Side::Left(n) } else { Side::Right(u64::from(n)) })
    ///     .split("small", "large");
    /// let (small, large) = (small.collect(), large.replicas(2).sink(0, |sum, n| *sum += n));
    /// graph.run()?;
    /// assert_eq!(small.take(), (0..10).collect::<Vec<_>>());
    /// assert_eq!(large.take().into_iter().sum::<u64>(), 4905);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split<A, B>(self, left: &str, right: &str) -> (Flow<A, Pass>, Flow<B, Pass>)
    where
        O: Operator<I, Out = Side<A, B>>,
        A: Serialize + DeserializeOwned + Send + 'static,
        B: Serialize + DeserializeOwned + Send + 'static,
    {
        let (graph, spread, is_timed) = (self.graph.share(), self.deal(), self.is_timed);
        let left = Inbox::new(graph.add_stage(left, 1), spread);
        let right = Inbox::new(graph.add_stage(right, 1), spread);
        let (mut lefts, left_pumps) = self.edge(&left, Some(Remote::new()));
        let (mut rights, right_pumps) = self.edge(&right, Some(Remote::new()));
        self.close(
            move |replica, wiring| {
                let (left, right) = (lefts(replica, wiring), rights(replica, wiring));
                Split { left: Branch::new(left), right: Branch::new(right), count: 0, is_timed }
            },
            |wiring| {
                let mut pumps = left_pumps(wiring)?;
                pumps.extend(right_pumps(wiring)?);
                Ok(pumps)
            },
        );
        let left = Flow::behind(graph.share(), &left, is_timed);
        (left, Flow::behind(graph, &right, is_timed))
    }
}

/// An end that has two edges.
struct Split<A, B> {
    left: Branch<A>,
    right: Branch<B>,
    /// Items since both were told the time.
    count: usize,
    is_timed: bool,
}

/// One of the two. `None`: nobody takes its items any more.
struct Branch<T>(Option<Dealt<T>>);

impl<T> Branch<T> {
    fn new(ports: Ports<T>) -> Self {
        Self(Some(Dealt::new(ports, Deal::InTurn)))
    }

    #[inline]
    fn with(&mut self, f: impl FnOnce(&mut Dealt<T>) -> Result<(), Stop>) -> Result<(), Stop> {
        match self.0.as_mut().map(f) {
            Some(Err(stop)) if stop.is_unwanted() => {
                self.0 = None;
                Ok(())
            }
            done => done.unwrap_or(Ok(())),
        }
    }
}

impl<A: Send, B: Send> Split<A, B> {
    fn check(&self) -> Result<(), Stop> {
        let is_wanted = self.left.0.is_some() || self.right.0.is_some();
        if is_wanted { Ok(()) } else { Err(Stop::unwanted()) }
    }
}

impl<A: Send, B: Send> Next<Side<A, B>> for Split<A, B> {
    #[inline]
    fn item(&mut self, side: Side<A, B>) -> Result<(), Stop> {
        match side {
            Side::Left(item) => self.left.with(|end| end.item(item))?,
            Side::Right(item) => self.right.with(|end| end.item(item))?,
        }
        self.count += 1;
        if self.is_timed && self.count >= TOLD_AFTER { self.flush() } else { self.check() }
    }

    fn watermark(&mut self, time: u64) -> Result<(), Stop> {
        self.left.with(|end| end.watermark(time))?;
        self.right.with(|end| end.watermark(time))
    }
}

impl<A: Send, B: Send> Last<Side<A, B>> for Split<A, B> {
    fn open(&mut self) -> Result<(), Stop> {
        self.left.with(Dealt::open)?;
        self.right.with(Dealt::open)?;
        self.check()
    }

    fn flush(&mut self) -> Result<(), Stop> {
        self.count = 0;
        self.left.with(Dealt::flush)?;
        self.right.with(Dealt::flush)?;
        self.check()
    }

    fn finish(&mut self) -> Result<(), Stop> {
        self.left.with(Dealt::finish)?;
        self.right.with(Dealt::finish)?;
        self.check()
    }
}
