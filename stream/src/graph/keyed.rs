//! Items with keys: [`KeyedFlow`].

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use margo::hg::proc::{Writer, WriterLimits, Written, to_writer};
use margo::na::MsgBuf;
use serde::Serialize;
use serde::de::DeserializeOwned;
use twox_hash::XxHash64;

use super::builder::Flow;
use super::edge::Spread;
use super::operator::{Map, Next, Operator, Pass};
use super::outlet::Hashed;
use super::remote::Remote;
use super::stop::Stop;
use super::wiring::Inbox;

/// A stage that is being built, whose items are pairs of a key and a value: the next edge brings
/// all items of a key to one replica, in the order in which each producer has made them.
///
/// Every process shares out keys alike: by XXH64 of their encoding ([`margo::hg::proc`]).
///
/// ```
/// use margo_stream::graph::Graph;
///
/// let graph = Graph::new();
/// let words = graph.source("read", ["to", "be", "or", "not", "to", "be"].map(str::to_owned));
/// let counts = words.map(|word| (word, 1)).keyed().farm("count", 2).fold(0, |n, one| *n += one);
/// let counts = counts.collect();
/// graph.run()?;
/// let mut counts = counts.take();
/// counts.sort();
/// assert_eq!(counts[0], ("be".to_owned(), 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a stage whose items go nowhere is an error of the graph"]
pub struct KeyedFlow<I, O>(pub(crate) Flow<I, O>);

impl<I, O, K, V> Flow<I, O>
where
    I: Send + 'static,
    O: Operator<I, Out = (K, V)>,
    K: Send + 'static,
    V: Send + 'static,
{
    /// Takes the first part of each pair for its key.
    pub fn keyed(self) -> KeyedFlow<I, O> {
        KeyedFlow(self)
    }
}

/// The hash by which all processes share out keys.
struct KeyDigest(Option<MsgBuf>);

impl KeyDigest {
    /// Bytes of an encoded key that are hashed without an allocation.
    const ROOM: usize = 256;

    #[inline]
    fn of<K: Serialize>(&mut self, key: &K) -> Result<u64, Stop> {
        let buffer = self.0.take().unwrap_or_else(|| MsgBuf::with_capacity(Self::ROOM));
        let mut writer = Writer::new(buffer, 0, Self::ROOM, WriterLimits::default());
        to_writer(&mut writer, key).map_err(Stop::failed)?;
        let (hash, buffer) = match writer.finish() {
            Written::Fits(buffer) => (XxHash64::oneshot(0, buffer.as_slice()), buffer),
            Written::Overflow(buffer, bytes) => (XxHash64::oneshot(0, &bytes), buffer),
        };
        self.0 = Some(buffer);
        Ok(hash)
    }
}

impl<I, O, K, V> KeyedFlow<I, O>
where
    I: Send + 'static,
    O: Operator<I, Out = (K, V)>,
    K: Send + 'static,
    V: Send + 'static,
{
    /// Returns the pairs as items without keys.
    pub fn pairs(self) -> Flow<I, O> {
        self.0
    }

    /// Sets the number of replicas of this stage; see [`Flow::replicas`].
    pub fn replicas(self, count: usize) -> Self {
        Self(self.0.replicas(count))
    }

    /// Sets how many items of the next edge travel together; see [`Flow::bundle`].
    pub fn bundle(self, items: usize) -> Self {
        Self(self.0.bundle(items))
    }

    /// Makes one value of each; keys stay.
    pub fn map_values<W, F>(self, mut f: F) -> KeyedFlow<I, impl Operator<I, Out = (K, W)>>
    where
        W: Send + 'static,
        F: FnMut(V) -> W + Clone + Send + 'static,
    {
        KeyedFlow(self.0.then(Map(move |(key, value)| (key, f(value)))))
    }

    /// Leaves out pairs of which the function says no.
    pub fn filter<F>(self, f: F) -> KeyedFlow<I, impl Operator<I, Out = (K, V)>>
    where
        F: FnMut(&(K, V)) -> bool + Clone + Send + 'static,
    {
        KeyedFlow(self.0.filter(f))
    }

    /// Applies an operator of the program's own, which makes pairs too.
    ///
    /// ```
    /// use margo_stream::graph::{Graph, Next, Operator, Stop};
    ///
    /// /// Gives each pair on twice.
    /// #[derive(Clone)]
    /// struct Twice;
    ///
    /// type Pair = (char, u32);
    ///
    /// impl Operator<Pair> for Twice {
    ///     type Out = Pair;
    ///
    ///     fn item(&mut self, pair: Pair, to: &mut impl Next<Pair>) -> Result<(), Stop> {
    ///         to.item(pair)?;
    ///         to.item(pair)
    ///     }
    /// }
    ///
    /// let graph = Graph::new();
    /// let pairs = graph.source("pairs", [('a', 1), ('b', 2)]).keyed();
    /// let sums = pairs.filter(|(_, n)| *n > 1).apply(Twice).fold(0, |sum, n| *sum += n).collect();
    /// graph.run()?;
    /// assert_eq!(sums.take(), [('b', 4)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn apply<L, W, P>(self, operator: P) -> KeyedFlow<I, impl Operator<I, Out = (L, W)>>
    where
        L: Send + 'static,
        W: Send + 'static,
        P: Operator<(K, V), Out = (L, W)>,
    {
        KeyedFlow(self.0.apply(operator))
    }

    /// Puts the pairs of several replicas into the order of their times; see [`Flow::in_order`].
    pub fn in_order<R, F>(self, order: F) -> KeyedFlow<I, impl Operator<I, Out = (K, V)>>
    where
        R: Ord + Send + 'static,
        F: FnMut(&(K, V)) -> (u64, R) + Clone + Send + 'static,
    {
        KeyedFlow(self.0.in_order(order))
    }

    /// Ends this stage, and begins the next, with one replica.
    pub fn stage(self, name: &str) -> KeyedFlow<(K, V), Pass>
    where
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        let (graph, is_timed) = (self.0.graph.share(), self.0.is_timed);
        let inbox = Inbox::new(graph.add_stage(name, 1), Spread::ByKey);
        self.connect(&inbox);
        KeyedFlow(Flow::behind(graph, &inbox, is_timed))
    }

    /// Ends this stage, and begins the next: with so many replicas, each of which gets all items of
    /// its keys.
    pub fn farm(self, name: &str, replicas: usize) -> KeyedFlow<(K, V), Pass>
    where
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        self.stage(name).replicas(replicas)
    }

    /// Ends this stage, and begins the next, which is in the same process wherever the graph is
    /// cut: for items that cannot be encoded.
    pub fn local_stage(self, name: &str) -> KeyedFlow<(K, V), Pass>
    where
        K: Hash,
    {
        let (graph, is_timed) = (self.0.graph.share(), self.0.is_timed);
        let inbox = Inbox::new(graph.add_stage(name, 1), Spread::ByKey);
        self.0.connect(&inbox, None, |ports| {
            Hashed::new(ports, |(key, _): &(K, V)| {
                let mut hash = XxHash64::with_seed(0);
                key.hash(&mut hash);
                Ok(hash.finish())
            })
        });
        KeyedFlow(Flow::behind(graph, &inbox, is_timed))
    }

    /// Ends this stage and another one, and begins the next with the items of both.
    pub fn merge<J, P>(self, name: &str, other: KeyedFlow<J, P>) -> KeyedFlow<(K, V), Pass>
    where
        J: Send + 'static,
        P: Operator<J, Out = (K, V)>,
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        let (graph, is_timed) = (self.0.graph.share(), self.0.is_timed || other.0.is_timed);
        let inbox = Inbox::new(graph.add_stage(name, 1), Spread::ByKey);
        self.connect(&inbox);
        other.connect(&inbox);
        KeyedFlow(Flow::behind(graph, &inbox, is_timed))
    }

    fn connect(self, inbox: &Arc<Inbox<(K, V)>>)
    where
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        self.0.connect(inbox, Some(Remote::new()), |ports| {
            let mut digest = KeyDigest(None);
            Hashed::new(ports, move |(key, _): &(K, V)| digest.of(key))
        });
    }

    /// Folds the values of each key into one, which it gives on in the end: within a replica, so
    /// that it aggregates what comes later to the replicas of the next stage if this one is not
    /// keyed itself.
    pub fn fold<A, F>(self, init: A, fold: F) -> KeyedFlow<I, impl Operator<I, Out = (K, A)>>
    where
        K: Hash + Eq + Clone,
        A: Clone + Send + 'static,
        F: FnMut(&mut A, V) + Clone + Send + 'static,
    {
        KeyedFlow(self.0.then(FoldByKey { init, fold, values: HashMap::default() }))
    }

    /// Makes one value of each, with a state of its key, which begins as `init`: what is made of a
    /// value may depend on those before it. The states of all keys are kept to the end.
    ///
    /// ```
    /// use margo_stream::graph::Graph;
    ///
    /// let graph = Graph::new();
    /// let balances = graph
    ///     .source("paid", [("ada", 5), ("bob", 1), ("ada", 7)])
    ///     .keyed()
    ///     .scan(0, |balance, paid| {
    ///         *balance += paid;
    ///         *balance
    ///     })
    ///     .collect();
    /// graph.run()?;
    /// assert_eq!(balances.take(), [("ada", 5), ("bob", 1), ("ada", 12)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan<S, W, F>(self, init: S, f: F) -> KeyedFlow<I, impl Operator<I, Out = (K, W)>>
    where
        K: Hash + Eq + Clone,
        S: Clone + Send + 'static,
        W: Send + 'static,
        F: FnMut(&mut S, V) -> W + Clone + Send + 'static,
    {
        KeyedFlow(self.0.then(ScanByKey { init, scan: f, states: HashMap::default() }))
    }

    /// Ends this stage, and keeps the pairs.
    pub fn collect(self) -> super::builder::Collected<(K, V)> {
        self.0.collect()
    }
}

impl<I, O> fmt::Debug for KeyedFlow<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyedFlow").field(&self.0).finish()
    }
}

/// See [`KeyedFlow::fold`].
#[derive(Clone)]
struct FoldByKey<K, A, F> {
    init: A,
    fold: F,
    values: HashMap<K, A, RandomState>,
}

impl<K, V, A, F> Operator<(K, V)> for FoldByKey<K, A, F>
where
    K: Hash + Eq + Clone + Send + 'static,
    A: Clone + Send + 'static,
    F: FnMut(&mut A, V) + Clone + Send + 'static,
{
    type Out = (K, A);

    #[inline]
    fn item(&mut self, (key, value): (K, V), _: &mut impl Next<(K, A)>) -> Result<(), Stop> {
        if let Some(all) = self.values.get_mut(&key) {
            (self.fold)(all, value);
        } else {
            let mut all = self.init.clone();
            (self.fold)(&mut all, value);
            self.values.insert(key, all);
        }
        Ok(())
    }

    fn end(&mut self, next: &mut impl Next<(K, A)>) -> Result<(), Stop> {
        self.values.drain().try_for_each(|pair| next.item(pair))
    }
}

/// See [`KeyedFlow::scan`].
#[derive(Clone)]
struct ScanByKey<K, S, F> {
    init: S,
    scan: F,
    states: HashMap<K, S, RandomState>,
}

impl<K, V, S, W, F> Operator<(K, V)> for ScanByKey<K, S, F>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: Clone + Send + 'static,
    W: Send + 'static,
    F: FnMut(&mut S, V) -> W + Clone + Send + 'static,
{
    type Out = (K, W);

    #[inline]
    fn item(&mut self, (key, value): (K, V), next: &mut impl Next<(K, W)>) -> Result<(), Stop> {
        let made = match self.states.get_mut(&key) {
            Some(state) => (self.scan)(state, value),
            None => {
                let mut state = self.init.clone();
                let made = (self.scan)(&mut state, value);
                self.states.insert(key.clone(), state);
                made
            }
        };
        next.item((key, made))
    }
}
