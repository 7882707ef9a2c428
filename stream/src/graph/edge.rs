//! Edges: how items get from the replicas of a stage to those of the next, in bundles.
//!
//! The two ends are a pair of traits, [`Output`] and [`Input`], so that an edge may be a channel in
//! this process, as here, or a stream to another one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::trace::{self, TraceContext};
use margo::ult::channel::{self, RecvTimeoutError, TrySendError};
use prim::lock::Lock;

use super::stop::{BoxError, Closer};

/// Bundles that a channel has room for.
const ROOM: usize = 8;

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

/// Items that travel together, in the order in which a producer has made them.
pub(crate) struct Bundle<T> {
    /// The producer, among those of the stage that it goes to.
    pub(crate) from: usize,
    pub(crate) items: Vec<T>,
    /// No later item of this producer is of an earlier time.
    pub(crate) watermark: Option<u64>,
    /// The trace that its items are part of.
    pub(crate) trace: Option<TraceContext>,
}

/// Runs code as a part of a trace, if there is one.
#[inline]
pub(crate) fn within<R>(trace: Option<TraceContext>, work: impl FnOnce() -> R) -> R {
    if trace.is_none() { work() } else { trace::within(trace, work) }
}

/// The reason why a bundle cannot be given on.
pub(crate) enum Lost {
    /// All replicas that might take it have ended.
    Gone,
    /// The way to them is broken.
    Failed(BoxError),
}

/// The end of an edge where bundles go in. Dropped, it says that the producer has ended.
pub(crate) trait Output<T>: Send {
    /// Reaches those who take the bundles. Comes first.
    fn open(&mut self) -> Result<(), Lost> {
        Ok(())
    }

    /// Returns whether those who take the bundles have enough to do.
    fn is_busy(&mut self) -> bool;

    /// Gives a bundle on, and waits for room. Returns for how long it has waited.
    fn put(&mut self, bundle: Bundle<T>) -> Result<Duration, Lost>;

    /// A vector for the items of the next bundle, empty.
    fn spare(&mut self) -> Vec<T>;

    /// Says that no bundle follows.
    fn finish(&mut self) -> Result<(), Lost> {
        Ok(())
    }
}

/// The outcome of waiting for a bundle.
pub(crate) enum Taken<T> {
    Bundle(Bundle<T>),
    /// None has come in time.
    Late,
    /// All producers have ended.
    Ended,
}

/// The end of an edge where bundles come out. Dropped, it says that this replica takes no more.
pub(crate) trait Input<T>: Send {
    /// Takes a bundle if there is one.
    fn try_take(&mut self) -> Option<Bundle<T>>;

    /// Waits for a bundle.
    fn take(&mut self, until: Option<Instant>) -> Taken<T>;

    /// Takes back the vector of a bundle that has been used up.
    fn give_back(&mut self, items: Vec<T>);
}

/// Vectors that are used again.
struct Spares<T>(Lock<Vec<Vec<T>>>);

impl<T> Spares<T> {
    fn take(&self) -> Vec<T> {
        self.0.lock().pop().unwrap_or_default()
    }

    fn give_back(&self, mut items: Vec<T>) {
        // Items of a replica that stopped in their midst; not dropped under the lock.
        items.clear();
        let mut spares = self.0.lock();
        if spares.len() <= ROOM {
            spares.push(items);
        }
    }
}

/// Closes a channel when its last producer has ended. Not left to the channel, which counts those
/// too that are kept to close it early.
struct LastOne<T>(channel::Sender<Bundle<T>>);

impl<T> Drop for LastOne<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A channel of bundles, before its ends are given away.
pub(crate) struct BundleQueue<T> {
    last: Arc<LastOne<T>>,
    receiver: channel::Receiver<Bundle<T>>,
    spares: Arc<Spares<T>>,
}

impl<T: Send + 'static> BundleQueue<T> {
    /// A channel; with room for any number of bundles if `is_unbounded`.
    pub(crate) fn new(is_unbounded: bool) -> Self {
        let (sender, receiver) =
            if is_unbounded { channel::unbounded() } else { channel::bounded(ROOM) };
        let spares = Arc::new(Spares(Lock::new(Vec::new())));
        Self { last: Arc::new(LastOne(sender)), receiver, spares }
    }

    pub(crate) fn output(&self) -> Box<dyn Output<T>> {
        Box::new(ChannelOutput { last: self.last.clone(), spares: self.spares.clone() })
    }

    pub(crate) fn input(&self) -> Box<dyn Input<T>> {
        Box::new(ChannelInput { receiver: self.receiver.clone(), spares: self.spares.clone() })
    }

    pub(crate) fn receiver(&self) -> channel::Receiver<Bundle<T>> {
        self.receiver.clone()
    }

    /// A function that counts the bundles that wait.
    pub(crate) fn counter(&self) -> impl Fn() -> usize + Send + Sync + use<T> {
        let sender = self.last.0.clone();
        move || sender.len()
    }

    /// A function that ends the channel, whoever still uses it.
    pub(crate) fn closer(&self) -> Closer {
        let sender = self.last.0.clone();
        Box::new(move |_| sender.close())
    }
}

struct ChannelOutput<T> {
    last: Arc<LastOne<T>>,
    spares: Arc<Spares<T>>,
}

impl<T: Send> Output<T> for ChannelOutput<T> {
    fn is_busy(&mut self) -> bool {
        self.last.0.len() >= ROOM
    }

    fn put(&mut self, bundle: Bundle<T>) -> Result<Duration, Lost> {
        match self.last.0.try_send(bundle) {
            Ok(()) => Ok(Duration::ZERO),
            Err(TrySendError::Closed(_)) => Err(Lost::Gone),
            Err(TrySendError::Full(bundle)) => {
                let since = Instant::now();
                self.last.0.send(bundle).map_err(|_| Lost::Gone)?;
                Ok(since.elapsed())
            }
        }
    }

    fn spare(&mut self) -> Vec<T> {
        self.spares.take()
    }
}

struct ChannelInput<T> {
    receiver: channel::Receiver<Bundle<T>>,
    spares: Arc<Spares<T>>,
}

impl<T: Send> Input<T> for ChannelInput<T> {
    fn try_take(&mut self) -> Option<Bundle<T>> {
        self.receiver.try_recv().ok()
    }

    fn take(&mut self, until: Option<Instant>) -> Taken<T> {
        let taken = match until {
            Some(until) => self.receiver.recv_deadline(until),
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Closed),
        };
        match taken {
            Ok(bundle) => Taken::Bundle(bundle),
            Err(RecvTimeoutError::TimedOut) => Taken::Late,
            Err(RecvTimeoutError::Closed) => Taken::Ended,
        }
    }

    fn give_back(&mut self, items: Vec<T>) {
        self.spares.give_back(items);
    }
}
