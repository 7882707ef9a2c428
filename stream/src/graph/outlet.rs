//! Ends of stages: what the last operator gives its items to.
//!
//! [`Dealt`] and [`Hashed`] collect items in bundles for the replicas of the next stage; [`Sunk`]
//! folds them into a value.

use std::sync::Arc;

use margo::trace::{self, TraceContext};
use prim::lock::Lock;

use super::edge::{Bundle, Lost, Output};
use super::operator::Next;
use super::state::{EdgeCounts, RunState};
use super::stop::{BoxError, Stop};

/// Most bytes of the items of a bundle, without what they point to: of a size that is still in the
/// cache of a core when its consumer looks at them.
const BUNDLE_BYTES: usize = 16 << 10;

/// Items of a bundle, if the program does not say it.
pub(crate) fn bundle_items<T>() -> usize {
    (BUNDLE_BYTES / size_of::<T>().max(1)).clamp(1, 2048)
}

/// The end of a stage.
pub(crate) trait Last<T>: Next<T> + Send {
    /// Reaches the next stage. Comes first.
    fn open(&mut self) -> Result<(), Stop> {
        Ok(())
    }

    /// The items that wait are part of a trace.
    fn mark(&mut self, trace: TraceContext) {
        let _ = trace;
    }

    /// Lets nothing wait: the stage has nothing to do.
    fn flush(&mut self) -> Result<(), Stop>;

    /// Lets go of the last: the stage has come to its end.
    fn finish(&mut self) -> Result<(), Stop>;
}

/// The ways of an edge.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// Watermarks are waited for.
    pub(crate) is_timed: bool,
    /// Bundles go to whoever has nothing to do.
    pub(crate) is_on_demand: bool,
}

/// The outputs of an edge for one producer.
pub(crate) struct Ports<T> {
    /// An output for each replica; `None` for one that has ended.
    outputs: Vec<Option<Box<dyn Output<T>>>>,
    /// Number of this producer at the next stage.
    from: usize,
    /// Items of a bundle.
    pub(crate) limit: usize,
    /// The newest watermark, and those that the outputs have been told.
    watermark: Option<u64>,
    told: Vec<Option<u64>>,
    way: Way,
    counts: Arc<EdgeCounts>,
    state: Arc<RunState>,
}

impl<T> Ports<T> {
    pub(crate) fn new(
        outputs: Vec<Box<dyn Output<T>>>,
        from: usize,
        (limit, way): (usize, Way),
        counts: Arc<EdgeCounts>,
        state: Arc<RunState>,
    ) -> Self {
        let told = vec![None; outputs.len()];
        let outputs = outputs.into_iter().map(Some).collect();
        Self { outputs, from, limit, watermark: None, told, way, counts, state }
    }

    pub(crate) fn len(&self) -> usize {
        self.outputs.len()
    }

    /// Sends the items, and the watermark if it is new. Leaves an empty vector.
    fn send(
        &mut self,
        to: usize,
        items: &mut Vec<T>,
        trace: Option<TraceContext>,
    ) -> Result<(), Stop> {
        let Some(output) = &mut self.outputs[to] else {
            items.clear();
            return Ok(());
        };
        let mut spare = output.spare();
        spare.reserve(if items.len() < self.limit { 0 } else { self.limit });
        let items = std::mem::replace(items, spare);
        let count = items.len();
        let watermark = if self.told[to] == self.watermark { None } else { self.watermark };
        self.told[to] = self.watermark;
        match output.put(Bundle { from: self.from, items, watermark, trace }) {
            Ok(waited) => {
                self.counts.add(count, waited);
                Ok(())
            }
            Err(lost) => self.lost(to, lost),
        }
    }

    /// An output is of no use any more.
    fn lost(&mut self, to: usize, lost: Lost) -> Result<(), Stop> {
        self.outputs[to] = None;
        match lost {
            _ if self.state.is_over() => Err(Stop::over()),
            Lost::Failed(error) => Err(Stop::failed(error)),
            Lost::Gone if self.outputs.iter().any(Option::is_some) => Ok(()),
            Lost::Gone => Err(Stop::unwanted()),
        }
    }

    /// The output whose turn it is, from `turn` on.
    fn choose(&mut self, turn: usize) -> usize {
        let count = self.outputs.len();
        if count == 1 || !self.way.is_on_demand {
            return turn;
        }
        let mut live = None;
        for to in (turn..count).chain(0..turn) {
            let Some(output) = &mut self.outputs[to] else { continue };
            if !output.is_busy() {
                return to;
            }
            live.get_or_insert(to);
        }
        live.unwrap_or(turn)
    }

    fn open(&mut self) -> Result<(), Stop> {
        for to in 0..self.outputs.len() {
            if let Some(Err(lost)) = self.outputs[to].as_mut().map(|output| output.open()) {
                self.lost(to, lost)?;
            }
        }
        Ok(())
    }

    /// The producer ends: no replica is to wait for its watermarks.
    fn end(&mut self) {
        if self.way.is_timed {
            self.watermark = Some(u64::MAX);
        }
    }

    /// All has been sent.
    fn finish(&mut self) -> Result<(), Stop> {
        for output in self.outputs.iter_mut().flatten() {
            match output.finish() {
                Ok(()) | Err(Lost::Gone) => {}
                Err(Lost::Failed(_)) if self.state.is_over() => return Err(Stop::over()),
                Err(Lost::Failed(error)) => return Err(Stop::failed(error)),
            }
        }
        Ok(())
    }

    fn owes(&self, to: usize) -> bool {
        self.told[to] != self.watermark
    }
}

/// The way in which a [`Dealt`] end gives its bundles to the next replicas.
pub(crate) enum Deal<T> {
    /// To one after the other, or to the one queue of all.
    InTurn,
    /// To each of them a copy.
    ToAll(fn(&T) -> T),
}

/// An end that deals out whole bundles.
pub(crate) struct Dealt<T> {
    ports: Ports<T>,
    deal: Deal<T>,
    open: Vec<T>,
    trace: Option<TraceContext>,
    turn: usize,
}

impl<T> Dealt<T> {
    pub(crate) fn new(ports: Ports<T>, deal: Deal<T>) -> Self {
        Self { ports, deal, open: Vec::new(), trace: None, turn: 0 }
    }

    fn pass(&mut self) -> Result<(), Stop> {
        let trace = self.trace.take().or_else(trace::current);
        match self.deal {
            Deal::InTurn => {
                let to = self.ports.choose(self.turn);
                self.turn = (to + 1) % self.ports.len();
                self.ports.send(to, &mut self.open, trace)
            }
            Deal::ToAll(copy) => {
                for to in 1..self.ports.len() {
                    let mut copies = self.open.iter().map(copy).collect();
                    self.ports.send(to, &mut copies, trace)?;
                }
                self.ports.send(0, &mut self.open, trace)
            }
        }
    }
}

impl<T: Send> Next<T> for Dealt<T> {
    #[inline]
    fn item(&mut self, item: T) -> Result<(), Stop> {
        self.open.push(item);
        if self.open.len() >= self.ports.limit { self.pass() } else { Ok(()) }
    }

    fn watermark(&mut self, time: u64) -> Result<(), Stop> {
        self.ports.watermark = Some(time);
        Ok(())
    }
}

impl<T: Send> Last<T> for Dealt<T> {
    fn mark(&mut self, trace: TraceContext) {
        if !self.open.is_empty() {
            self.trace.get_or_insert(trace);
        }
    }

    fn open(&mut self) -> Result<(), Stop> {
        self.ports.open()
    }

    fn flush(&mut self) -> Result<(), Stop> {
        if !self.open.is_empty() {
            self.pass()?;
        }
        for to in 0..self.ports.len() {
            if self.ports.owes(to) {
                self.ports.send(to, &mut Vec::new(), None)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Stop> {
        self.ports.end();
        self.flush()?;
        self.ports.finish()
    }
}

/// An end that sends each item to the replica to which its key belongs.
pub(crate) struct Hashed<T, H> {
    ports: Ports<T>,
    hash: H,
    open: Vec<Vec<T>>,
    traces: Vec<Option<TraceContext>>,
    /// Bundles since the last flush, which tells all replicas the time.
    sent: usize,
}

impl<T, H> Hashed<T, H> {
    pub(crate) fn new(ports: Ports<T>, hash: H) -> Self {
        let open = (0..ports.len()).map(|_| Vec::new()).collect();
        let traces = vec![None; ports.len()];
        Self { ports, hash, open, traces, sent: 0 }
    }

    #[cold]
    fn pass(&mut self, to: usize) -> Result<(), Stop> {
        self.send(to)?;
        self.sent += 1;
        if self.ports.watermark.is_some() && self.sent >= 4 * self.ports.len() {
            self.sent = 0;
            return self.flush_all();
        }
        Ok(())
    }

    fn flush_all(&mut self) -> Result<(), Stop> {
        for to in 0..self.open.len() {
            if !self.open[to].is_empty() || self.ports.owes(to) {
                self.send(to)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, to: usize) -> Result<(), Stop> {
        let trace = self.traces[to].take().or_else(trace::current);
        self.ports.send(to, &mut self.open[to], trace)
    }
}

/// The part of `parts` to which a hash belongs, as `margo::sharded::part_of_key` has it.
#[inline]
fn part_of(hash: u64, parts: usize) -> usize {
    ((u128::from(hash) * parts as u128) >> 64) as usize
}

impl<T: Send, H: FnMut(&T) -> Result<u64, Stop>> Next<T> for Hashed<T, H> {
    #[inline]
    fn item(&mut self, item: T) -> Result<(), Stop> {
        let parts = self.open.len();
        let to = if parts == 1 { 0 } else { part_of((self.hash)(&item)?, parts) };
        let open = &mut self.open[to];
        open.push(item);
        if open.len() >= self.ports.limit { self.pass(to) } else { Ok(()) }
    }

    fn watermark(&mut self, time: u64) -> Result<(), Stop> {
        self.ports.watermark = Some(time);
        Ok(())
    }
}

impl<T: Send, H: FnMut(&T) -> Result<u64, Stop> + Send> Last<T> for Hashed<T, H> {
    fn mark(&mut self, trace: TraceContext) {
        let open = self.open.iter().zip(&mut self.traces).filter(|(open, _)| !open.is_empty());
        open.for_each(|(_, own)| *own = own.or(Some(trace)));
    }

    fn open(&mut self) -> Result<(), Stop> {
        self.ports.open()
    }

    fn flush(&mut self) -> Result<(), Stop> {
        self.sent = 0;
        self.flush_all()
    }

    fn finish(&mut self) -> Result<(), Stop> {
        self.ports.end();
        self.flush_all()?;
        self.ports.finish()
    }
}

/// Values of the replicas of a sink that have ended, with their numbers.
pub(crate) type Parts<A> = Arc<Lock<Vec<(usize, A)>>>;

/// An end that folds the items into a value.
pub(crate) struct Sunk<A, F> {
    pub(crate) replica: usize,
    pub(crate) value: Option<A>,
    pub(crate) fold: F,
    pub(crate) parts: Parts<A>,
}

impl<T, A, F> Next<T> for Sunk<A, F>
where
    F: FnMut(&mut A, T) -> Result<(), BoxError>,
{
    #[inline]
    fn item(&mut self, item: T) -> Result<(), Stop> {
        match &mut self.value {
            Some(value) => (self.fold)(value, item).map_err(Stop::failed),
            None => Ok(()),
        }
    }

    fn watermark(&mut self, _: u64) -> Result<(), Stop> {
        Ok(())
    }
}

impl<T, A: Send, F> Last<T> for Sunk<A, F>
where
    F: FnMut(&mut A, T) -> Result<(), BoxError> + Send,
{
    fn flush(&mut self) -> Result<(), Stop> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Stop> {
        if let Some(value) = self.value.take() {
            self.parts.lock().push((self.replica, value));
        }
        Ok(())
    }
}
