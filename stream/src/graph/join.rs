//! Joins of keyed items.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::keyed::KeyedFlow;
use super::operator::{Next, Operator};
use super::stop::Stop;
use super::window::{Pane, Window};

/// A value of one of the two sides of a join, on its way there.
///
/// ```
/// use margo_stream::graph::Side;
///
/// let sides = [Side::Left(1), Side::Right("one")];
/// assert_eq!(sides.iter().filter(|side| matches!(side, Side::Left(_))).count(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side<A, B> {
    /// A value of the flow on which the method is called.
    Left(A),
    /// A value of the other flow.
    Right(B),
}

/// The operators behind a join.
type Joined<K, A, B, O> = KeyedFlow<(K, Side<A, B>), O>;

impl<I, O, K, A> KeyedFlow<I, O>
where
    I: Send + 'static,
    O: Operator<I, Out = (K, A)>,
    K: Hash + Eq + Clone + Serialize + DeserializeOwned + Send + 'static,
    A: Clone + Serialize + DeserializeOwned + Send + 'static,
{
    /// Ends this stage and another one, and begins one of each pair of their values with the same
    /// key. It keeps all values to its end; [`join_windows`](Self::join_windows) does not.
    ///
    /// ```
    /// use margo_stream::graph::Graph;
    ///
    /// let graph = Graph::new();
    /// let names = graph.source("names", [(1, "ada"), (2, "bob")].map(owned)).keyed();
    /// let calls = graph.source("calls", [(2, 10), (1, 20), (2, 30)]).keyed();
    /// let joined = calls.join("join", names).replicas(2).collect();
    /// graph.run()?;
    /// let mut joined = joined.take();
    /// joined.sort();
    /// assert_eq!(joined[2], (2, (30, "bob".to_owned())));
    ///
    /// fn owned((id, name): (u32, &str)) -> (u32, String) {
    ///     (id, name.to_owned())
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::type_complexity, reason = "operators have no shorter names")]
    pub fn join<J, P, B>(
        self,
        name: &str,
        other: KeyedFlow<J, P>,
    ) -> Joined<K, A, B, impl Operator<(K, Side<A, B>), Out = (K, (A, B))>>
    where
        J: Send + 'static,
        P: Operator<J, Out = (K, B)>,
        B: Clone + Serialize + DeserializeOwned + Send + 'static,
    {
        self.sides(name, other).join_sides()
    }

    /// Ends this stage and another one, and begins one of each pair of their values with the same
    /// key that fall into the same window, by times that two functions tell. Each window comes when
    /// it is over; see [`KeyedFlow::window`].
    #[allow(clippy::type_complexity, reason = "operators have no shorter names")]
    pub fn join_windows<J, P, B>(
        self,
        name: &str,
        other: KeyedFlow<J, P>,
        window: Window,
        time: impl FnMut(&A) -> u64 + Clone + Send + 'static,
        other_time: impl FnMut(&B) -> u64 + Clone + Send + 'static,
    ) -> Joined<K, A, B, impl Operator<(K, Side<A, B>), Out = (K, Pane<(A, B)>)>>
    where
        J: Send + 'static,
        P: Operator<J, Out = (K, B)>,
        B: Clone + Serialize + DeserializeOwned + Send + 'static,
    {
        self.sides(name, other).join_side_windows(window, time, other_time)
    }

    fn sides<J, P, B>(
        self,
        name: &str,
        other: KeyedFlow<J, P>,
    ) -> Joined<K, A, B, super::operator::Pass>
    where
        J: Send + 'static,
        P: Operator<J, Out = (K, B)>,
        B: Serialize + DeserializeOwned + Send + 'static,
    {
        self.map_values(Side::Left).merge(name, other.map_values(Side::Right))
    }
}

impl<I, O, K, A, B> KeyedFlow<I, O>
where
    I: Send + 'static,
    O: Operator<I, Out = (K, Side<A, B>)>,
    K: Hash + Eq + Clone + Send + 'static,
    A: Clone + Send + 'static,
    B: Clone + Send + 'static,
{
    /// Makes each pair of a left and a right value with the same key, as [`join`](Self::join) does,
    /// of two sides that come from one stage.
    ///
    /// ```
    /// use margo_stream::graph::{Graph, Side};
    ///
    /// let graph = Graph::new();
    /// let joined = graph
    ///     .source("read", ["name 1 ada", "call 1 10", "call 1 20"].map(str::to_owned))
    ///     .flat_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
    ///         ["name", id, name] => Some((id.to_owned(), Side::Left(name.to_owned()))),
    ///         ["call", id, seconds] => Some((id.to_owned(), Side::Right(seconds.to_owned()))),
    ///         _ => None,
    ///     })
    ///     .keyed()
    ///     .farm("join", 2)
    ///     .join_sides()
    ///     .collect();
    /// graph.run()?;
    /// let ada = |seconds: &str| ("1".to_owned(), ("ada".to_owned(), seconds.to_owned()));
    /// assert_eq!(joined.take(), [ada("10"), ada("20")]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::type_complexity, reason = "operators have no shorter names")]
    pub fn join_sides(self) -> KeyedFlow<I, impl Operator<I, Out = (K, (A, B))>> {
        KeyedFlow(self.0.then(Join { seen: HashMap::default() }))
    }

    /// Makes each pair of a left and a right value with the same key in the same window, as
    /// [`join_windows`](Self::join_windows) does, of two sides that come from one stage.
    #[allow(clippy::type_complexity, reason = "operators have no shorter names")]
    pub fn join_side_windows(
        self,
        window: Window,
        mut left_time: impl FnMut(&A) -> u64 + Clone + Send + 'static,
        mut right_time: impl FnMut(&B) -> u64 + Clone + Send + 'static,
    ) -> KeyedFlow<I, impl Operator<I, Out = (K, Pane<(A, B)>)>> {
        let time = move |side: &Side<A, B>| match side {
            Side::Left(left) => left_time(left),
            Side::Right(right) => right_time(right),
        };
        let panes =
            self.window(window, time).fold((Vec::new(), Vec::new()), |sides, side| match side {
                Side::Left(left) => sides.0.push(left),
                Side::Right(right) => sides.1.push(right),
            });
        let pairs = panes.pairs().flat_map(|(key, Pane { from, to, value: (lefts, rights) })| {
            let mut pairs = Vec::with_capacity(lefts.len() * rights.len());
            for left in lefts {
                pairs.extend(rights.iter().map(|right| {
                    let value = (left.clone(), right.clone());
                    (key.clone(), Pane { from, to, value })
                }));
            }
            pairs
        });
        pairs.keyed()
    }
}

/// See [`KeyedFlow::join`].
#[derive(Clone)]
struct Join<K, A, B> {
    seen: HashMap<K, (Vec<A>, Vec<B>), RandomState>,
}

impl<K, A, B> Operator<(K, Side<A, B>)> for Join<K, A, B>
where
    K: Hash + Eq + Clone + Send + 'static,
    A: Clone + Send + 'static,
    B: Clone + Send + 'static,
{
    type Out = (K, (A, B));

    fn item(
        &mut self,
        (key, side): (K, Side<A, B>),
        next: &mut impl Next<Self::Out>,
    ) -> Result<(), Stop> {
        let (lefts, rights) = self.seen.entry(key.clone()).or_default();
        match side {
            Side::Left(left) => {
                for right in rights.iter() {
                    next.item((key.clone(), (left.clone(), right.clone())))?;
                }
                lefts.push(left);
            }
            Side::Right(right) => {
                for left in lefts.iter() {
                    next.item((key.clone(), (left.clone(), right.clone())))?;
                }
                rights.push(right);
            }
        }
        Ok(())
    }
}
