//! Loops: a stage, some of whose items go round again: [`Flow::iterate`].
//!
//! The way back has room for any number of items, or a loop could wait for itself. So that the end
//! is found, [`Back`] counts what is going on: bundles on their way back, and replicas that hold
//! what they have not given on yet. When there is none of both, and nothing comes from outside any
//! more, nothing will.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use margo::trace;
use margo::ult::channel::Receiver;
use margo::ult::{self, Selectable};
use prim::lock::Lock;

use super::edge::{Bundle, BundleQueue, Input, Output, Taken};
use super::operator::{Next, Operator};
use super::stop::{Closer, Stop};

/// The way back of a loop.
pub(crate) struct Back<T> {
    queue: BundleQueue<T>,
    /// Bundles on the way back, and reasons for which a replica may still send some.
    live: Lock<usize>,
}

impl<T: Send + 'static> Back<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { queue: BundleQueue::new(true), live: Lock::new(0) })
    }

    pub(crate) fn closer(&self) -> Closer {
        self.queue.closer()
    }

    /// The input of a replica: what comes back, and what comes from outside.
    pub(crate) fn input(self: Arc<Self>, outside: &BundleQueue<T>) -> Box<dyn Input<T>> {
        let (back, outer) = (self.queue.input(), outside.input());
        let [back_ready, outer_ready] = [&self.queue, outside].map(BundleQueue::receiver);
        Box::new(LoopInput { back, outer, back_ready, outer_ready, way: self, held: 0 })
    }
}

struct LoopInput<T: Send + 'static> {
    back: Box<dyn Input<T>>,
    outer: Box<dyn Input<T>>,
    back_ready: Receiver<Bundle<T>>,
    outer_ready: Receiver<Bundle<T>>,
    way: Arc<Back<T>>,
    /// Part of the count that this replica holds.
    held: usize,
}

impl<T: Send + 'static> LoopInput<T> {
    fn is_alone(&self) -> bool {
        self.outer_ready.is_closed() && self.outer_ready.is_empty()
    }

    /// All that was taken has been given on.
    fn release(&mut self) {
        let mut live = self.way.live.lock();
        *live -= std::mem::take(&mut self.held);
        let is_over = *live == 0;
        drop(live);
        // Who takes something counts itself before. So nobody has something, or will.
        if is_over && self.is_alone() {
            self.back_ready.close();
        }
    }
}

impl<T: Send + 'static> Input<T> for LoopInput<T> {
    fn try_take(&mut self) -> Option<Bundle<T>> {
        *self.way.live.lock() += 1;
        self.held += 1;
        // What goes round is finished first, so that the way back stays short.
        if let Some(bundle) = self.back.try_take() {
            // That of the bundle itself.
            self.held += 1;
            return Some(bundle);
        }
        self.outer.try_take()
    }

    fn take(&mut self, until: Option<Instant>) -> Taken<T> {
        loop {
            self.release();
            let objects: [&dyn Selectable; 2] = [&self.back_ready, &self.outer_ready];
            let objects = if self.is_alone() { &objects[..1] } else { &objects };
            let ready = ult::wait_any(objects, until);
            if ready.is_none() {
                return Taken::Late;
            }
            if let Some(bundle) = self.try_take() {
                return Taken::Bundle(bundle);
            }
            if self.back_ready.is_closed() && self.back_ready.is_empty() {
                return Taken::Ended;
            }
        }
    }

    fn give_back(&mut self, items: Vec<T>) {
        self.back.give_back(items);
    }
}

impl<T: Send + 'static> Drop for LoopInput<T> {
    /// A replica that ends early keeps nobody waiting.
    fn drop(&mut self) {
        self.release();
    }
}

/// The end of a loop: items go round again, or on.
pub(crate) struct Again<T> {
    way: Arc<Back<T>>,
    output: Box<dyn Output<T>>,
    open: Vec<T>,
    limit: usize,
}

impl<T: Send + 'static> Again<T> {
    pub(crate) fn new(way: Arc<Back<T>>, limit: usize) -> Self {
        let output = way.queue.output();
        Self { way, output, open: Vec::new(), limit }
    }

    #[cold]
    fn send(&mut self) -> Result<(), Stop> {
        let items = std::mem::replace(&mut self.open, self.output.spare());
        *self.way.live.lock() += 1;
        let (from, watermark, trace) = (usize::MAX, None, trace::current());
        let bundle = Bundle { from, items, watermark, trace };
        self.output.put(bundle).map(drop).map_err(|_| Stop::over())
    }
}

impl<T: Send + 'static> Clone for Again<T> {
    fn clone(&self) -> Self {
        Self::new(self.way.clone(), self.limit)
    }
}

impl<T: Send + 'static, U: Send + 'static> Operator<ControlFlow<U, T>> for Again<T> {
    type Out = U;

    #[inline]
    fn item(&mut self, item: ControlFlow<U, T>, next: &mut impl Next<U>) -> Result<(), Stop> {
        match item {
            ControlFlow::Break(done) => next.item(done),
            ControlFlow::Continue(item) => {
                self.open.push(item);
                if self.open.len() >= self.limit { self.send() } else { Ok(()) }
            }
        }
    }

    fn idle(&mut self, _: &mut impl Next<U>) -> Result<(), Stop> {
        if self.open.is_empty() { Ok(()) } else { self.send() }
    }

    fn end(&mut self, _: &mut impl Next<U>) -> Result<(), Stop> {
        if self.open.is_empty() {
            return Ok(());
        }
        Err(Stop::failed("an operator of a loop has kept items to its end, and sends them round"))
    }
}
