//! Items in the order of their times.

use std::collections::BTreeMap;

use super::builder::Flow;
use super::operator::{Next, Operator};
use super::stop::Stop;

impl<I: Send + 'static, O: Operator<I>> Flow<I, O> {
    /// Puts the items of several replicas into the order of their times, in each replica of this
    /// stage: an item waits until a [watermark](Self::watermarks) has passed its time, or until the
    /// input has ended. The function tells the time, and beside it what orders those of one time;
    /// `()` leaves them as they have come. An item that comes too late goes on with the next
    /// watermark.
    ///
    /// ```
    /// use margo_stream::graph::{Graph, ReplicaAt};
    ///
    /// let graph = Graph::new();
    /// let times = graph
    ///     .sources("events", 2, |at: ReplicaAt| (0..1000u64).skip(at.index).step_by(at.count))
    ///     .watermarks(|time| *time, 0)
    ///     .stage("both")
    ///     .in_order(|time| (*time, ()))
    ///     .collect();
    /// graph.run()?;
    /// assert_eq!(times.take(), (0..1000).collect::<Vec<_>>());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_order<R, F>(self, order: F) -> Flow<I, impl Operator<I, Out = O::Out>>
    where
        R: Ord + Send + 'static,
        F: FnMut(&O::Out) -> (u64, R) + Clone + Send + 'static,
    {
        self.then(InOrder { order, waiting: BTreeMap::new(), count: 0 })
    }
}

/// See [`Flow::in_order`].
struct InOrder<T, R, F> {
    order: F,
    /// Items by time, what orders those of one time, and their number.
    waiting: BTreeMap<(u64, R, u64), T>,
    /// Items that have come.
    count: u64,
}

impl<T, R: Ord, F: Clone> Clone for InOrder<T, R, F> {
    fn clone(&self) -> Self {
        Self { order: self.order.clone(), waiting: BTreeMap::new(), count: 0 }
    }
}

impl<T, R, F> Operator<T> for InOrder<T, R, F>
where
    T: Send + 'static,
    R: Ord + Send + 'static,
    F: FnMut(&T) -> (u64, R) + Clone + Send + 'static,
{
    type Out = T;

    #[inline]
    fn item(&mut self, item: T, _: &mut impl Next<T>) -> Result<(), Stop> {
        let (time, rest) = (self.order)(&item);
        self.count += 1;
        self.waiting.insert((time, rest, self.count), item);
        Ok(())
    }

    fn watermark(&mut self, time: u64, next: &mut impl Next<T>) -> Result<(), Stop> {
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 < time
        {
            next.item(first.remove())?;
        }
        next.watermark(time)
    }

    fn end(&mut self, next: &mut impl Next<T>) -> Result<(), Stop> {
        std::mem::take(&mut self.waiting).into_values().try_for_each(|item| next.item(item))
    }
}
