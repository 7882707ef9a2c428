//! The state of a run that all its parts share: whether it is over, and why; figures.

use std::sync::Arc;
use std::time::Duration;

use margo::ult::channel;
use margo::ult::{self, Eventual, JoinHandle};
use prim::lock::Lock;
use prim::sync::atomic::Ordering::Relaxed;
use prim::sync::atomic::{AtomicBool, AtomicU64};

use super::error::GraphError;
use super::stop::Closer;

/// Something that whoever waits for the run has to know.
pub(crate) enum News {
    /// A replica has ended.
    Ended,
    /// The run is over before its end.
    Over,
}

/// The load of an edge at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EdgeLoad {
    /// Bundles that wait.
    pub(crate) queued: usize,
    /// Bytes that have come from other groups.
    pub(crate) bytes: u64,
    /// Bytes of credit that are in use, and all that were granted.
    pub(crate) held: u64,
    pub(crate) credit: u64,
}

/// A part of the edges to a stage, or of one edge to it, whose load can be looked at.
pub(crate) struct Gauge {
    pub(crate) from: Option<usize>,
    pub(crate) to: usize,
    pub(crate) look: Box<dyn Fn() -> EdgeLoad + Send + Sync>,
}

/// The state of a run. Its parts look at [`is_over`](Self::is_over) when a channel is closed:
/// that may be the end of a stream, or that of the run.
pub(crate) struct RunState {
    /// Written before the channels are closed, under whose locks a reader finds that.
    is_over: AtomicBool,
    why: Lock<Option<GraphError>>,
    closers: Lock<Vec<Closer>>,
    gauges: Lock<Vec<Gauge>>,
    pub(crate) news: channel::Sender<News>,
    /// Set when all that runs here has ended.
    pub(crate) ended: Eventual<()>,
    /// ULTs that wait for that, or for the end of another group.
    pub(crate) watches: Lock<Vec<JoinHandle<()>>>,
}

impl RunState {
    pub(crate) fn new(news: channel::Sender<News>) -> Arc<Self> {
        let (is_over, ended) = (AtomicBool::new(false), Eventual::new());
        let (why, closers, gauges, watches) = Default::default();
        Arc::new(Self { is_over, why, closers, gauges, news, ended, watches })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Has this called when the run is over before its end; while nothing runs yet.
    pub(crate) fn on_over(&self, close: Closer) {
        self.closers.lock().push(close);
    }

    /// Has this looked at by [`load`](Self::load), until the run is over.
    pub(crate) fn on_look(&self, gauge: Gauge) {
        self.gauges.lock().push(gauge);
    }

    /// The load of an edge here.
    pub(crate) fn load(&self, from: usize, to: usize) -> EdgeLoad {
        let gauges = self.gauges.lock();
        let own =
            gauges.iter().filter(|gauge| gauge.to == to && gauge.from.is_none_or(|of| of == from));
        own.map(|gauge| (gauge.look)()).fold(EdgeLoad::default(), |sum, one| EdgeLoad {
            queued: sum.queued + one.queued,
            bytes: sum.bytes + one.bytes,
            held: sum.held + one.held,
            credit: sum.credit + one.credit,
        })
    }

    /// Ends the run. The first reason is the one that counts.
    pub(crate) fn fail(&self, error: GraphError) {
        let mut why = self.why.lock();
        if why.is_some() {
            return;
        }
        let text = error.to_string();
        *why = Some(error);
        drop(why);
        self.is_over.store(true, Relaxed);
        let closers = std::mem::take(&mut *self.closers.lock());
        closers.iter().for_each(|close| close(&text));
        let gauges = std::mem::take(&mut *self.gauges.lock());
        drop(gauges);
        // Nobody waits for a run that has been let go.
        let _ = self.news.send(News::Over);
    }

    /// Lets go of what would be ended: all has come to its end.
    pub(crate) fn retire(&self) {
        let _ = self.ended.set(());
        let watches = std::mem::take(&mut *self.watches.lock());
        ult::join_all(watches);
        let closers = std::mem::take(&mut *self.closers.lock());
        let gauges = std::mem::take(&mut *self.gauges.lock());
        drop((closers, gauges));
    }

    pub(crate) fn take_failure(&self) -> Option<GraphError> {
        self.why.lock().take()
    }
}

/// Counts of an edge, to which its producers add with each bundle.
#[derive(Default)]
pub(crate) struct EdgeCounts {
    pub(crate) items: AtomicU64,
    pub(crate) bundles: AtomicU64,
    pub(crate) waited_ns: AtomicU64,
}

impl EdgeCounts {
    pub(crate) fn add(&self, items: usize, waited: Duration) {
        self.items.fetch_add(items as u64, Relaxed);
        self.bundles.fetch_add(1, Relaxed);
        add_time(&self.waited_ns, waited);
    }
}

/// Counts of a stage.
#[derive(Default)]
pub(crate) struct StageCounts {
    pub(crate) items: AtomicU64,
    pub(crate) waited_ns: AtomicU64,
}

/// Adds a time to a count of nanoseconds.
pub(crate) fn add_time(count: &AtomicU64, time: Duration) {
    if !time.is_zero() {
        count.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }
}
