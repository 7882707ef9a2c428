//! What an instance does at the moment, for people who wonder why it does not do something else.
//!
//! Everything here is read from counters and lists that are kept anyway, so a dump costs nothing
//! before it is taken. Its parts are not of one moment: the instance goes on meanwhile.

use std::fmt;
use std::time::Instant;

use margo_config::Config;
use serde::Serialize;
use ult::{Dump, DumpOptions, PoolRef, StackDump, UltState, XstreamRef, XstreamState};

use crate::{Instance, Stats};

/// The state of an instance at about one moment; see [`Instance::state_dump`].
///
/// `Display` prints it as indented JSON, whose keys are the fields here.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct StateDump {
    /// Version of margo.
    pub version: &'static str,
    /// Process id.
    pub process: i32,
    /// Address of the instance.
    pub address: String,
    /// Where it is in its life.
    pub phase: Phase,
    /// Handlers that have begun and not ended.
    pub handlers_running: usize,
    /// What it has done.
    pub stats: Stats,
    /// One for each network context.
    pub contexts: Vec<ContextState>,
    /// In the order of the configuration, then those added since.
    pub pools: Vec<PoolState>,
    /// In the order of the configuration, then those added since.
    pub xstreams: Vec<XstreamDump>,
    /// Timers that there are.
    pub timers: Vec<TimerState>,
    /// ULTs that have begun, not ended, and do not run now.
    pub ults: Vec<UltLine>,
    /// The effective configuration.
    pub config: Config,
}

/// Where an instance is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Phase {
    /// It takes requests, if it listens.
    Running,
    /// [`Instance::finalize`] has begun.
    Finalizing,
    /// It has come to its end.
    Finalized,
}

/// One network context.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ContextState {
    /// Pool of its progress ULT.
    pub progress_pool: String,
    /// Operations that callers wait for, and answers on their way.
    pub in_flight: usize,
    /// Requests that hold the place of a receive: arrived and not decoded.
    pub requests_held: usize,
    /// Receives that wait for requests.
    pub receives_posted: usize,
}

/// One pool.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PoolState {
    /// Its name.
    pub name: String,
    /// Runnable units that wait for their turn.
    pub waiting: usize,
    /// Units that have not ended: waiting, running or suspended.
    pub alive: u64,
    /// Units that ran to their end.
    pub finished: u64,
    /// Times that a unit was switched to.
    pub executed: u64,
    /// Who serves it.
    pub xstreams: Vec<String>,
}

/// One execution stream.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct XstreamDump {
    /// Its name.
    pub name: String,
    /// `running`, `idle`, `joining`, `terminated`, `removed`.
    pub state: &'static str,
    /// CPUs that it stays on; empty: any.
    pub cpus: Vec<usize>,
    /// Pools that it serves.
    pub pools: Vec<String>,
    /// ULTs at home here.
    pub ults: usize,
    /// Times that a unit was switched to.
    pub executed: u64,
    /// Times that it slept.
    pub sleeps: u64,
    /// It did not answer: a unit on it neither yields nor waits.
    pub is_busy: bool,
}

/// One timer.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct TimerState {
    /// Its name.
    pub name: String,
    /// Milliseconds until its next run, 0 if that is due; `None`: not armed.
    pub due_in_msec: Option<u64>,
    /// Its callback runs.
    pub is_running: bool,
}

/// One ULT.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct UltLine {
    /// Number, unique in the process's runtime.
    pub id: u64,
    /// Of a handler: the name of its RPC.
    pub name: Option<String>,
    /// Its pool.
    pub pool: String,
    /// Its execution stream.
    pub xstream: String,
    /// `runnable`, or what it waits for.
    pub state: String,
    /// For how long, milliseconds, to the precision of the stall detector.
    pub since_msec: Option<u64>,
    /// Its stack, innermost first, if it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

impl Instance {
    /// What this instance does at the moment: its phase, pools with their waiting units, execution
    /// streams, operations in flight, timers, suspended ULTs with what they wait for, counters and
    /// configuration.
    ///
    /// May be called from anywhere but signal handlers, at any time. Takes some tens of
    /// microseconds, and 10 for each thousand of suspended ULTs; half a second if an execution
    /// stream is held by a unit that does not yield, which the dump then says.
    ///
    /// Counterpart: `margo_state_dump`.
    pub fn state_dump(&self) -> StateDump {
        dump(self, &DumpOptions::new().stacks(false))
    }

    /// [`state_dump`](Self::state_dump) with the stacks of the suspended ULTs. The first one in a
    /// process reads debug information, which may take a second.
    pub fn state_dump_with_stacks(&self) -> StateDump {
        dump(self, &DumpOptions::new())
    }
}

fn dump(instance: &Instance, options: &DumpOptions) -> StateDump {
    let inner = instance.inner();
    let ults = inner.runtime.dump(options);
    let shutdown = &inner.shutdown;
    let phase = match (shutdown.has_begun(), shutdown.is_done()) {
        (false, _) => Phase::Running,
        (true, false) => Phase::Finalizing,
        (true, true) => Phase::Finalized,
    };
    StateDump {
        version: env!("CARGO_PKG_VERSION"),
        process: rustix::process::getpid().as_raw_nonzero().get(),
        address: inner.core.self_addr().to_string(),
        phase,
        handlers_running: shutdown.handlers(),
        stats: inner.stats(),
        contexts: contexts(instance),
        pools: inner.runtime.pools().iter().map(pool).collect(),
        xstreams: inner.runtime.xstreams().iter().map(|x| xstream(x, &ults)).collect(),
        timers: inner.timers.list(Instant::now()),
        ults: ults.ults.iter().map(line).collect(),
        config: instance.config(),
    }
}

fn contexts(instance: &Instance) -> Vec<ContextState> {
    let inner = instance.inner();
    let state = |(pool, (core, _)): (PoolRef, (&std::sync::Arc<crate::hg::Core<_>>, _))| {
        let in_hand = core.in_hand();
        ContextState {
            progress_pool: pool.name().to_owned(),
            in_flight: in_hand.operations,
            requests_held: in_hand.requests_held,
            receives_posted: in_hand.receives_posted,
        }
    };
    instance.progress_pools().zip(inner.contexts()).map(state).collect()
}

fn pool(pool: &PoolRef) -> PoolState {
    let stats = pool.stats();
    PoolState {
        name: pool.name().to_owned(),
        waiting: pool.len(),
        alive: stats.alive(),
        finished: stats.finished,
        executed: stats.executed,
        xstreams: pool.xstreams(),
    }
}

fn xstream(xstream: &XstreamRef, dump: &Dump) -> XstreamDump {
    let stats = xstream.stats();
    XstreamDump {
        name: xstream.name().to_owned(),
        state: match xstream.state() {
            XstreamState::Running => "running",
            XstreamState::Idle => "idle",
            XstreamState::Joining => "joining",
            XstreamState::Terminated => "terminated",
            XstreamState::Removed => "removed",
            _ => "unknown",
        },
        cpus: xstream.cpus(),
        pools: xstream.pools(),
        ults: stats.ults,
        executed: stats.executed,
        sleeps: stats.sleeps,
        is_busy: dump.busy.iter().any(|busy| busy.xstream == xstream.name()),
    }
}

fn line(ult: &ult::UltDump) -> UltLine {
    let (state, since) = match ult.state {
        UltState::Runnable => ("runnable".to_owned(), None),
        UltState::Blocked { kind, since } => (kind.to_string(), since),
        _ => ("unknown".to_owned(), None),
    };
    let stack = match &ult.stack {
        StackDump::Frames(frames) => frames.iter().map(frame).collect(),
        StackDump::NoRoom { free_bytes } => {
            vec![format!("its stack has {free_bytes} bytes left, too few to walk it")]
        }
        _ => Vec::new(),
    };
    UltLine {
        id: ult.id,
        name: ult.name.clone(),
        pool: ult.pool.clone(),
        xstream: ult.xstream.clone(),
        state,
        since_msec: since.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        stack,
    }
}

/// A frame in one line.
fn frame(frame: &ult::Frame) -> String {
    let name = frame.symbol.clone().unwrap_or_else(|| format!("{:#018x}", frame.address));
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{name} ({}:{line})", file.display()),
        _ => name,
    }
}

impl fmt::Display for StateDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string_pretty(self).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}
