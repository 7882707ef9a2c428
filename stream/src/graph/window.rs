//! Windows over the values of a key: [`Window`], [`Pane`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use foldhash::fast::RandomState;

use super::builder::Flow;
use super::keyed::KeyedFlow;
use super::operator::{Next, Operator};
use super::stop::Stop;

/// A way to cut the values of a key into windows.
///
/// Times are numbers in a unit of the program's choice, such as milliseconds. A window that a
/// value belongs to is over when a watermark has passed its end, or when the input has ended.
///
/// ```
/// use margo_stream::graph::{Graph, Pane, Window};
///
/// let graph = Graph::new();
/// let sums = graph
///     .source("events", [("a", 1, 10), ("b", 2, 20), ("a", 12, 1), ("a", 3, 5)])
///     .watermarks(|event| event.1, 10) // may come late by 10
///     .map(|(key, time, value)| (key, (time, value)))
///     .keyed()
///     .window(Window::tumbling(10), |value| value.0)
///     .fold(0, |sum, (_, value)| *sum += value)
///     .collect();
/// graph.run()?;
/// let mut sums = sums.take();
/// sums.sort_by_key(|(key, pane)| (*key, pane.from));
/// assert_eq!(sums[0], ("a", Pane { from: 0, to: 10, value: 15 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(WindowShape);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowShape {
    /// Begins at each multiple of `step`, and is `len` long.
    Span { len: u64, step: u64 },
    /// Ends when nothing has come for so long.
    Session { gap: u64 },
}

impl Window {
    /// Windows of one length, one after the other.
    ///
    /// # Panics
    ///
    /// If the length is zero.
    pub fn tumbling(len: u64) -> Self {
        Self::sliding(len, len)
    }

    /// Windows of one length, one of which begins at each multiple of `step`. A value belongs to
    /// all that it falls into, or to none if they are shorter than the step.
    ///
    /// # Panics
    ///
    /// If the length or the step is zero.
    pub fn sliding(len: u64, step: u64) -> Self {
        assert!(len > 0 && step > 0, "a window that is empty, or does not move on");
        Self(WindowShape::Span { len, step })
    }

    /// Windows that end when nothing has come for as long as `gap`; their end is that much behind
    /// their last value.
    ///
    /// # Panics
    ///
    /// If the gap is zero.
    pub fn session(gap: u64) -> Self {
        assert!(gap > 0, "a session that ends at once");
        Self(WindowShape::Session { gap })
    }
}

/// A window that is over, with its values folded into one. See [`Window`].
///
/// ```
/// use margo_stream::graph::Pane;
///
/// let sum = Pane { from: 0, to: 10, value: 150 };
/// assert_eq!(sum.time(), 9);
/// assert_eq!(sum.map(|sum| sum as f64 / 100.0), Pane { from: 0, to: 10, value: 1.5 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pane<A> {
    /// The time at which the window begins; of a window by count, the number of its first value
    /// among those of the key.
    pub from: u64,
    /// The time at which it ends, or the number behind its last value: no part of it.
    pub to: u64,
    /// The values, folded.
    pub value: A,
}

impl<A> Pane<A> {
    /// Returns the last time that belongs to it. It is the time of the pane itself, for windows of
    /// panes: those that end together fall into the same one, and none of them is late.
    pub fn time(&self) -> u64 {
        self.to.saturating_sub(1)
    }

    /// Makes another value of its value.
    pub fn map<B>(self, f: impl FnOnce(A) -> B) -> Pane<B> {
        Pane { from: self.from, to: self.to, value: f(self.value) }
    }
}

/// Windows that wait for what is made of their values. See [`KeyedFlow::window`].
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// let numbers = graph.source("numbers", 1..=5u32).key_by(|_| ());
/// let pairs = numbers.count_window(2, 2); // a `Windowed`
/// let sums = pairs.fold(0, |sum, n| *sum += n).map_values(|pane| pane.value).collect();
/// graph.run()?;
/// assert_eq!(sums.take(), [((), 3), ((), 7), ((), 5)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "windows do nothing until they are folded"]
pub struct Windowed<I, O, T> {
    flow: Flow<I, O>,
    cutter: T,
}

impl<I, O, T> fmt::Debug for Windowed<I, O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Windowed").field("flow", &self.flow).finish_non_exhaustive()
    }
}

/// Cuts by the time of a value.
#[derive(Clone)]
pub struct ByTime<F>(Window, F);

impl<F> fmt::Debug for ByTime<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ByTime").field(&self.0).finish_non_exhaustive()
    }
}

/// Cuts by the time at which a value arrives.
#[derive(Clone, Debug)]
pub struct ByArrival(Window);

/// Cuts by the number of values.
#[derive(Clone, Debug)]
pub struct ByCount(u64, u64);

impl<I: Send + 'static, O: Operator<I>> Flow<I, O> {
    /// Makes watermarks of the times of the items, which may come late: by `lateness` at most, or
    /// windows may have ended without them. Begin with this, before items of several replicas mix.
    ///
    /// Where watermarks go with the items, edges without keys deal in turn.
    pub fn watermarks<F>(
        mut self,
        time: F,
        lateness: u64,
    ) -> Flow<I, impl Operator<I, Out = O::Out>>
    where
        F: FnMut(&O::Out) -> u64 + Clone + Send + 'static,
    {
        self.is_timed = true;
        self.then(Watermarks { time, lateness, newest: 0 })
    }
}

#[derive(Clone)]
struct Watermarks<F> {
    time: F,
    lateness: u64,
    newest: u64,
}

impl<T, F> Operator<T> for Watermarks<F>
where
    T: Send + 'static,
    F: FnMut(&T) -> u64 + Clone + Send + 'static,
{
    type Out = T;

    #[inline]
    fn item(&mut self, item: T, next: &mut impl Next<T>) -> Result<(), Stop> {
        let time = (self.time)(&item);
        next.item(item)?;
        if time <= self.newest {
            return Ok(());
        }
        self.newest = time;
        match time.checked_sub(self.lateness) {
            Some(mark) if mark > 0 => next.watermark(mark),
            _ => Ok(()),
        }
    }
}

impl<I, O, K, V> KeyedFlow<I, O>
where
    I: Send + 'static,
    O: Operator<I, Out = (K, V)>,
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
{
    /// Cuts the values of each key into windows by their times, which a function tells.
    /// [`Flow::watermarks`] says when they are over. A value that comes when all of its windows are
    /// over is left out.
    pub fn window<F>(self, window: Window, time: F) -> Windowed<I, O, ByTime<F>>
    where
        F: FnMut(&V) -> u64 + Clone + Send + 'static,
    {
        Windowed { flow: self.0, cutter: ByTime(window, time) }
    }

    /// Cuts the values of each key into windows by the times at which they arrive, in milliseconds
    /// since the year 1970.
    pub fn arrival_window(self, window: Window) -> Windowed<I, O, ByArrival> {
        Windowed { flow: self.0, cutter: ByArrival(window) }
    }

    /// Cuts the values of each key into windows of `count` values, one of which begins with each
    /// `step`-th. In the end there are windows that are not full.
    ///
    /// # Panics
    ///
    /// If either is zero.
    pub fn count_window(self, count: u64, step: u64) -> Windowed<I, O, ByCount> {
        assert!(count > 0 && step > 0, "a window that is empty, or does not move on");
        Windowed { flow: self.0, cutter: ByCount(count, step) }
    }
}

impl<I, O, K, V, F> Windowed<I, O, ByTime<F>>
where
    I: Send + 'static,
    O: Operator<I, Out = (K, V)>,
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    F: FnMut(&V) -> u64 + Clone + Send + 'static,
{
    /// Folds the values of a window, in the order in which they come; those of a session in the
    /// order of their times.
    pub fn fold<A, G>(self, init: A, fold: G) -> KeyedFlow<I, impl Operator<I, Out = (K, Pane<A>)>>
    where
        A: Clone + Send + 'static,
        G: FnMut(&mut A, V) + Clone + Send + 'static,
    {
        let Self { flow, cutter: ByTime(window, time) } = self;
        KeyedFlow(flow.then(TimeWindows { panes: Panes::new(window, init, fold), time }))
    }
}

impl<I, O, K, V> Windowed<I, O, ByArrival>
where
    I: Send + 'static,
    O: Operator<I, Out = (K, V)>,
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
{
    /// Folds the values of a window, in the order in which they come.
    pub fn fold<A, G>(self, init: A, fold: G) -> KeyedFlow<I, impl Operator<I, Out = (K, Pane<A>)>>
    where
        A: Clone + Send + 'static,
        G: FnMut(&mut A, V) + Clone + Send + 'static,
    {
        let Self { flow, cutter: ByArrival(window) } = self;
        KeyedFlow(flow.then(ArrivalWindows { panes: Panes::new(window, init, fold) }))
    }
}

impl<I, O, K, V> Windowed<I, O, ByCount>
where
    I: Send + 'static,
    O: Operator<I, Out = (K, V)>,
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
{
    /// Folds the values of a window, in the order in which they come.
    pub fn fold<A, G>(self, init: A, fold: G) -> KeyedFlow<I, impl Operator<I, Out = (K, Pane<A>)>>
    where
        A: Clone + Send + 'static,
        G: FnMut(&mut A, V) + Clone + Send + 'static,
    {
        let Self { flow, cutter: ByCount(count, step) } = self;
        let keys = HashMap::default();
        KeyedFlow(flow.then(CountWindows { count, step, init, fold, keys }))
    }
}

/// The windows by time that are open.
#[derive(Clone)]
struct Panes<K, V, A, F> {
    shape: WindowShape,
    init: A,
    fold: F,
    /// Windows with a length, by end and beginning.
    spans: BTreeMap<(u64, u64), HashMap<K, A, RandomState>>,
    sessions: Sessions<K, V>,
    /// All that ends here or before is over.
    passed: u64,
}

/// Sessions that are open. They keep their values: one that comes late may join two of them.
#[derive(Clone)]
struct Sessions<K, V> {
    keys: HashMap<K, Vec<SessionPane<V>>, RandomState>,
    /// No session ends before.
    earliest: u64,
}

#[derive(Clone)]
struct SessionPane<V> {
    from: u64,
    last: u64,
    values: Vec<(u64, V)>,
}

impl<K, V, A, F> Panes<K, V, A, F>
where
    K: Hash + Eq + Clone,
    A: Clone,
    V: Clone,
    F: FnMut(&mut A, V),
{
    fn new(window: Window, init: A, fold: F) -> Self {
        let sessions = Sessions { keys: HashMap::default(), earliest: u64::MAX };
        Self { shape: window.0, init, fold, spans: BTreeMap::new(), sessions, passed: 0 }
    }

    fn add(&mut self, key: K, value: V, time: u64) {
        let (len, step) = match self.shape {
            WindowShape::Session { gap } => {
                let end = time.saturating_add(gap);
                if end > self.passed {
                    self.sessions.add(key, value, time, gap);
                }
                return;
            }
            WindowShape::Span { len, step } => (len, step),
        };
        let newest = time - time % step;
        if len <= step {
            if time - newest < len {
                self.add_to(newest, len, key, value);
            }
            return;
        }
        // A window began `len` before, or later.
        let mut from = newest;
        loop {
            if time - from >= len {
                return;
            }
            self.add_to(from, len, key.clone(), value.clone());
            match from.checked_sub(step) {
                Some(before) => from = before,
                None => return,
            }
        }
    }

    fn add_to(&mut self, from: u64, len: u64, key: K, value: V) {
        let to = from.saturating_add(len);
        if to <= self.passed {
            return;
        }
        let keys = self.spans.entry((to, from)).or_default();
        match keys.get_mut(&key) {
            Some(all) => (self.fold)(all, value),
            None => {
                let mut all = self.init.clone();
                (self.fold)(&mut all, value);
                keys.insert(key, all);
            }
        }
    }

    /// Gives on what has ended by then.
    #[inline]
    fn pass(&mut self, time: u64, next: &mut impl Next<(K, Pane<A>)>) -> Result<(), Stop> {
        self.passed = self.passed.max(time);
        while let Some(first) = self.spans.first_entry()
            && first.key().0 <= time
        {
            let ((to, from), keys) = first.remove_entry();
            for (key, value) in keys {
                next.item((key, Pane { from, to, value }))?;
            }
        }
        if self.sessions.earliest <= time { self.pass_sessions(time, next) } else { Ok(()) }
    }

    #[cold]
    fn pass_sessions(&mut self, time: u64, next: &mut impl Next<(K, Pane<A>)>) -> Result<(), Stop> {
        let WindowShape::Session { gap } = self.shape else { return Ok(()) };
        for (key, session) in self.sessions.take_ended(time, gap) {
            let SessionPane { from, last, mut values } = session;
            values.sort_by_key(|(time, _)| *time);
            let mut value = self.init.clone();
            values.into_iter().for_each(|(_, one)| (self.fold)(&mut value, one));
            next.item((key, Pane { from, to: last.saturating_add(gap), value }))?;
        }
        Ok(())
    }
}

impl<K: Hash + Eq + Clone, V> Sessions<K, V> {
    fn add(&mut self, key: K, value: V, time: u64, gap: u64) {
        self.earliest = self.earliest.min(time.saturating_add(gap));
        let open = self.keys.entry(key).or_default();
        let mut one = SessionPane { from: time, last: time, values: vec![(time, value)] };
        // Those that it touches become one with it.
        let is_near = |session: &SessionPane<V>| {
            session.from < time.saturating_add(gap) && time < session.last.saturating_add(gap)
        };
        while let Some(at) = open.iter().position(is_near) {
            let mut other = open.swap_remove(at);
            if other.values.len() > one.values.len() {
                std::mem::swap(&mut other, &mut one);
            }
            (one.from, one.last) = (one.from.min(other.from), one.last.max(other.last));
            one.values.append(&mut other.values);
        }
        open.push(one);
    }

    fn take_ended(&mut self, time: u64, gap: u64) -> Vec<(K, SessionPane<V>)> {
        let mut ended = Vec::new();
        self.earliest = u64::MAX;
        self.keys.retain(|key, open| {
            let is_over = |session: &mut SessionPane<V>| session.last.saturating_add(gap) <= time;
            ended.extend(open.extract_if(.., is_over).map(|session| (key.clone(), session)));
            let ends = open.iter().map(|session| session.last.saturating_add(gap));
            self.earliest = ends.min().map_or(self.earliest, |end| end.min(self.earliest));
            !open.is_empty()
        });
        ended
    }
}

#[derive(Clone)]
struct TimeWindows<K, V, A, F, T> {
    panes: Panes<K, V, A, F>,
    time: T,
}

impl<K, V, A, F, T> Operator<(K, V)> for TimeWindows<K, V, A, F, T>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    A: Clone + Send + 'static,
    F: FnMut(&mut A, V) + Clone + Send + 'static,
    T: FnMut(&V) -> u64 + Clone + Send + 'static,
{
    type Out = (K, Pane<A>);

    #[inline]
    fn item(&mut self, (key, value): (K, V), _: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        let time = (self.time)(&value);
        self.panes.add(key, value, time);
        Ok(())
    }

    fn watermark(&mut self, time: u64, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        self.panes.pass(time, next)?;
        next.watermark(time)
    }

    fn end(&mut self, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        self.panes.pass(u64::MAX, next)
    }
}

#[derive(Clone)]
struct ArrivalWindows<K, V, A, F> {
    panes: Panes<K, V, A, F>,
}

/// Milliseconds since the year 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl<K, V, A, F> Operator<(K, V)> for ArrivalWindows<K, V, A, F>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    A: Clone + Send + 'static,
    F: FnMut(&mut A, V) + Clone + Send + 'static,
{
    type Out = (K, Pane<A>);

    fn item(&mut self, (key, value): (K, V), _: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        // The clock of the system may be set back.
        let now = now_ms().max(self.panes.passed);
        self.panes.add(key, value, now);
        Ok(())
    }

    fn end(&mut self, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        self.panes.pass(u64::MAX, next)
    }

    fn due(&self) -> Option<Instant> {
        let first = self.panes.spans.first_key_value().map(|((to, _), _)| *to);
        let session = Some(self.panes.sessions.earliest).filter(|end| *end < u64::MAX);
        let end = first.into_iter().chain(session).min()?;
        Instant::now().checked_add(Duration::from_millis(end.saturating_sub(now_ms())))
    }

    fn tick(&mut self, _: Instant, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        self.panes.pass(now_ms(), next)
    }
}

/// The number of values of a key that have come, and its open windows, the oldest first.
type Counted<A> = (u64, Vec<(u64, A)>);

#[derive(Clone)]
struct CountWindows<K, A, F> {
    count: u64,
    step: u64,
    init: A,
    fold: F,
    keys: HashMap<K, Counted<A>, RandomState>,
}

impl<K, V, A, F> Operator<(K, V)> for CountWindows<K, A, F>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    A: Clone + Send + 'static,
    F: FnMut(&mut A, V) + Clone + Send + 'static,
{
    type Out = (K, Pane<A>);

    fn item(&mut self, (key, value): (K, V), next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        let (seen, open) = self.keys.entry(key.clone()).or_default();
        if seen.is_multiple_of(self.step) {
            open.push((*seen, self.init.clone()));
        }
        *seen += 1;
        if let Some(((_, last), others)) = open.split_last_mut() {
            others.iter_mut().for_each(|(_, all)| (self.fold)(all, value.clone()));
            (self.fold)(last, value);
        }
        // At most the oldest is full.
        match open.first() {
            Some((from, _)) if *from + self.count == *seen => {
                let (from, value) = open.remove(0);
                next.item((key, Pane { from, to: *seen, value }))
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        for (key, (to, open)) in self.keys.drain() {
            for (from, value) in open {
                next.item((key.clone(), Pane { from, to, value }))?;
            }
        }
        Ok(())
    }
}
