//! Runs a measurement as a ULT while the calling OS thread sleeps, and the runtimes for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use ult::{JoinHandle, PoolRef, PoolSpec, Runtime, RuntimeBuilder, XstreamSpec};

use crate::base::{Deadline, Doing, Failure, OrFail, Result};

/// How long a runtime may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A runtime with one xstream for each core, each with a pool of its own: `p0`, `p1` …
pub(crate) struct Streams {
    pub(crate) runtime: Runtime,
    pub(crate) pools: Vec<PoolRef>,
}

impl Streams {
    /// Starts one with default settings.
    pub(crate) fn start(cores: &[usize]) -> Result<Self> {
        Self::start_with(cores, Runtime::builder())
    }

    /// Like `start`, with settings of the runtime that the row needs.
    pub(crate) fn start_with(cores: &[usize], builder: RuntimeBuilder) -> Result<Self> {
        Self::start_as(
            cores,
            builder,
            |place| vec![pool_spec(place)],
            |xstream, place| xstream.pools([pool_name(place)]),
        )
    }

    /// Like `start_with`; `pools` makes the pools of an xstream, of which the first is its own, and
    /// `xstream` gives it those that it serves.
    pub(crate) fn start_as(
        cores: &[usize],
        mut builder: RuntimeBuilder,
        pools: impl Fn(usize) -> Vec<PoolSpec>,
        xstream: impl Fn(XstreamSpec, usize) -> XstreamSpec,
    ) -> Result<Self> {
        for (place, core) in cores.iter().enumerate() {
            builder = pools(place).into_iter().fold(builder, RuntimeBuilder::pool);
            let spec = XstreamSpec::new(format!("x{place}")).cpubind(*core);
            builder = builder.xstream(xstream(spec, place));
        }
        let runtime = builder.start().doing("starting a ULT runtime")?;
        let pools = (0..cores.len()).map(|place| runtime.pool(&pool_name(place)));
        let pools = pools.collect::<Option<_>>().or_fail("a pool is missing")?;
        Ok(Self { runtime, pools })
    }

    /// Stops it.
    pub(crate) fn stop(self) -> Result<()> {
        drop(self.pools);
        self.runtime.shutdown_timeout(STOP_LIMIT).doing("stopping a ULT runtime")
    }
}

/// The name of the pool of an xstream.
pub(crate) fn pool_name(place: usize) -> String {
    format!("p{place}")
}

/// The pool of an xstream, with default settings.
pub(crate) fn pool_spec(place: usize) -> PoolSpec {
    PoolSpec::new(pool_name(place))
}

/// Joins all, the first failure of which is the result.
pub(crate) fn join_each<T>(handles: impl IntoIterator<Item = JoinHandle<Result<T>>>) -> Result<()> {
    handles.into_iter().try_for_each(|handle| handle.join().doing("joining")?.map(drop))
}

fn receive<T>(receiver: &Receiver<T>, deadline: Deadline) -> Result<T> {
    receiver.recv_timeout(deadline.left()).map_err(|error| match error {
        RecvTimeoutError::Timeout => deadline.late("a measuring ULT"),
        RecvTimeoutError::Disconnected => Failure::new("a measuring ULT panicked"),
    })
}

/// Runs `body` as a ULT of `pool` and waits for its result. The calling OS thread sleeps meanwhile,
/// so it does not disturb the core that it shares with the ULT's xstream.
///
/// # Errors
///
/// Those of `body`; and when it does not end in time, or panics. A ULT that is late goes on, so the
/// process has to end.
pub(crate) fn on_ult<T: Send + 'static>(
    pool: &PoolRef,
    deadline: Deadline,
    body: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = channel();
    // Nobody to tell if the receiver has given up: the failure is reported by then.
    let _ult = pool.spawn(move || drop(sender.send(body()))).doing("spawning")?;
    receive(&receiver, deadline)?
}

/// Lets others run until `ready`. On a ULT.
///
/// # Errors
///
/// When the deadline passes first.
pub(crate) fn yield_until(
    what: &str,
    deadline: Deadline,
    mut ready: impl FnMut() -> bool,
) -> Result<()> {
    deadline.spin_until(what, || {
        let ready = ready();
        if !ready {
            ult::yield_now();
        }
        ready
    })
}

/// Runs `body` as one ULT of each of `pools`, all at once, and waits for their results. `body` gets
/// its place and a gate for as many parties as there are pools.
///
/// # Errors
///
/// As [`on_ult`], for the first that fails.
pub(crate) fn on_each<T: Send + 'static>(
    pools: &[PoolRef],
    deadline: Deadline,
    body: impl Fn(usize, &StartLine) -> Result<T> + Send + Sync + 'static,
) -> Result<Vec<T>> {
    let (body, gate) = (Arc::new(body), Arc::new(StartLine::new(pools.len())));
    let (sender, receiver) = channel();
    for (place, pool) in pools.iter().enumerate() {
        let (body, gate, sender) = (body.clone(), gate.clone(), sender.clone());
        // As in `on_ult`.
        let run = move || drop(sender.send(body(place, &gate)));
        pool.ult().spawn_detached(run).doing("spawning a measuring ULT")?;
    }
    drop(sender);
    pools.iter().map(|_| receive(&receiver, deadline)?).collect()
}

/// Where several parties wait for each other, once, without sleeping.
#[derive(Debug)]
pub(crate) struct StartLine {
    parties: usize,
    arrived: AtomicUsize,
}

impl StartLine {
    /// Opens when `parties` have come.
    pub(crate) fn new(parties: usize) -> Self {
        Self { parties, arrived: AtomicUsize::new(0) }
    }

    /// Waits for the others. A ULT lets those of its own xstream run meanwhile; for an OS thread
    /// this is a spin that gives the core away.
    ///
    /// # Errors
    ///
    /// When they do not come in time.
    pub(crate) fn pass(&self, deadline: Deadline) -> Result<()> {
        // pair: GATE
        self.arrived.fetch_add(1, Ordering::AcqRel);
        yield_until("the other parties", deadline, || {
            // pair: GATE
            self.arrived.load(Ordering::Acquire) >= self.parties
        })
    }
}
