//! Items in the order of their times.
//!
//! Items of one producer are mostly in order already. So the items that wait are in *runs*,
//! each in order, about as many as there are producers: an item is put behind the one that came
//! before it, or at the end of the first run that ends before it. Ends of runs fall from the first
//! run to the last, so that one is found by halving, and there are no more runs than the disorder
//! asks for. A watermark merges them.

use std::collections::VecDeque;

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
        self.then(InOrder { order, waiting: Runs::default() })
    }
}

/// An item that waits: its time, what orders those of one time, its number, and itself.
type Waiting<T, R> = (u64, R, u64, T);

fn key<T, R>((time, rest, number, _): &Waiting<T, R>) -> (u64, &R, u64) {
    (*time, rest, *number)
}

/// Items in runs, each of which has some.
struct Runs<T, R> {
    runs: Vec<VecDeque<Waiting<T, R>>>,
    /// The run that the newest item was put into.
    newest: usize,
    /// Items that have come.
    count: u64,
    /// Memory of a run that has ended.
    spare: VecDeque<Waiting<T, R>>,
}

/// Most items that a run has kept memory for when it has ended.
const SPARE_MAX: usize = 1 << 14;

impl<T, R> Default for Runs<T, R> {
    fn default() -> Self {
        Self { runs: Vec::new(), newest: 0, count: 0, spare: VecDeque::new() }
    }
}

impl<T, R: Ord> Runs<T, R> {
    #[inline]
    fn put(&mut self, time: u64, rest: R, item: T) {
        self.count += 1;
        let waiting = (time, rest, self.count, item);
        let fits = |run: &VecDeque<_>| run.back().is_some_and(|last| key(last) < key(&waiting));
        let is_first = |at: usize| at == 0 || !fits(&self.runs[at - 1]);
        if !(self.runs.get(self.newest).is_some_and(fits) && is_first(self.newest)) {
            self.newest = self.runs.partition_point(|run| !fits(run));
        }
        if self.newest == self.runs.len() {
            self.runs.push(std::mem::take(&mut self.spare));
        }
        self.runs[self.newest].push_back(waiting);
    }

    /// Takes out the items whose time is below the limit, in order.
    fn take(
        &mut self,
        limit: Option<u64>,
        mut to: impl FnMut(T) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        // A heap of the runs, that with the first item on top.
        let mut heap: Vec<usize> = (0..self.runs.len()).collect();
        (0..heap.len() / 2).rev().for_each(|at| self.sift(&mut heap, at));
        while let Some(&top) = heap.first() {
            let run = &mut self.runs[top];
            if run.front().is_none_or(|first| limit.is_some_and(|limit| first.0 >= limit)) {
                break;
            }
            let Some((.., item)) = run.pop_front() else { break };
            if run.is_empty() {
                heap.swap_remove(0);
            }
            self.sift(&mut heap, 0);
            to(item)?;
        }
        let ended = self.runs.extract_if(.., |run| run.is_empty());
        let spare = ended.filter(|run| run.capacity() <= SPARE_MAX).max_by_key(VecDeque::capacity);
        self.spare = spare.unwrap_or_default();
        Ok(())
    }

    /// Lets a run sink to its place in the heap.
    fn sift(&self, heap: &mut [usize], mut at: usize) {
        let first = |heap: &[usize], at: usize| self.runs[heap[at]].front().map(key);
        loop {
            let mut child = 2 * at + 1;
            if child + 1 < heap.len() && first(heap, child + 1) < first(heap, child) {
                child += 1;
            }
            if child >= heap.len() || first(heap, at) <= first(heap, child) {
                return;
            }
            heap.swap(at, child);
            at = child;
        }
    }
}

/// See [`Flow::in_order`].
struct InOrder<T, R, F> {
    order: F,
    waiting: Runs<T, R>,
}

impl<T, R, F: Clone> Clone for InOrder<T, R, F> {
    fn clone(&self) -> Self {
        Self { order: self.order.clone(), waiting: Runs::default() }
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
        self.waiting.put(time, rest, item);
        Ok(())
    }

    fn watermark(&mut self, time: u64, next: &mut impl Next<T>) -> Result<(), Stop> {
        self.waiting.take(Some(time), |item| next.item(item))?;
        next.watermark(time)
    }

    fn end(&mut self, next: &mut impl Next<T>) -> Result<(), Stop> {
        self.waiting.take(None, |item| next.item(item))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(runs: &mut Runs<u64, u8>, limit: Option<u64>) -> Vec<u64> {
        let mut taken = Vec::new();
        runs.take(limit, |number| {
            taken.push(number);
            Ok(())
        })
        .unwrap();
        taken
    }

    proptest! {
        /// Items of any times, and watermarks among them, against a sort of all that wait.
        #[test]
        fn items_leave_in_the_order_of_their_times(
            steps in prop::collection::vec((0u64..40, 0u8..3, prop::bool::weighted(0.1)), 0..400),
        ) {
            let (mut runs, mut all) = (Runs::default(), Vec::<(u64, u8, u64)>::new());
            for (number, (time, rest, is_watermark)) in (0u64..).zip(steps) {
                if is_watermark {
                    all.sort();
                    let end = all.partition_point(|(at, ..)| *at < time);
                    let expected: Vec<u64> = all.drain(..end).map(|(.., number)| number).collect();
                    prop_assert_eq!(taken(&mut runs, Some(time)), expected);
                } else {
                    runs.put(time, rest, number);
                    all.push((time, rest, number));
                }
                let ends: Vec<_> = runs.runs.iter().map(|run| key(run.back().unwrap())).collect();
                prop_assert!(ends.is_sorted_by(|before, after| before > after));
            }
            all.sort();
            let expected: Vec<u64> = all.into_iter().map(|(.., number)| number).collect();
            prop_assert_eq!(taken(&mut runs, None), expected);
        }
    }

    #[test]
    fn each_producer_has_one_run() {
        let mut runs = Runs::default();
        for bundle in 0..100u64 {
            for producer in 0..3u64 {
                (0..50).for_each(|at| runs.put(bundle * 50 + at, 0u8, producer));
            }
            assert!(runs.runs.len() <= 3, "{}", runs.runs.len());
            taken(&mut runs, Some(bundle * 50));
        }
    }
}
