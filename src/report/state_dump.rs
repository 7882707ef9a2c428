//! The state of an instance at the moment, for people who wonder why it does not do something else.
//!
//! Everything here is read from counters and lists that are kept anyway, so a dump costs nothing
//! before it is taken. Its parts are not of one moment: the instance goes on meanwhile.

use std::fmt;
use std::time::Instant;

use margo_config::{Config, ConfigFlags};
use serde::Serialize;
use ult::{DumpOptions, StackDump, UltState};

use crate::InstanceMonitoring;
use crate::instance::inner::Inner;
use crate::timer::TimerState;
use crate::{Metrics, report::collect};

/// The state of an instance at about one moment; see
/// [`InstanceMonitoring::state_dump`](crate::groups::InstanceMonitoring::state_dump).
///
/// `Display` prints it as indented JSON, whose keys are the fields here, and those of [`Metrics`]
/// beside them.
///
/// ```
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// let dump = instance.monitoring().state_dump();
/// assert_eq!(dump.metrics.address, instance.self_addr().uri());
/// println!("these run a unit that does not yield: {:?}", dump.busy_xstreams);
/// // All of it as JSON, for a report.
/// assert!(dump.to_string().starts_with('{'));
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct StateDump {
    /// The figures of [`Instance::metrics`](crate::Instance::metrics).
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Execution streams that did not answer: a unit on each neither yields nor waits.
    pub busy_xstreams: Vec<String>,
    /// Execution streams that had not listed all of their ULTs when half a second was over.
    pub partial_xstreams: Vec<String>,
    /// Timers that there are.
    pub timers: Vec<TimerState>,
    /// ULTs that have begun, not ended, and do not run now.
    pub ults: Vec<UltLine>,
    /// How many of those are without their stacks because there were more than 1000.
    pub stacks_left_out: usize,
    /// The effective configuration.
    pub config: Config,
}

/// One ULT.
///
/// ```
/// let instance = margo::Instance::builder("na+sm://").start()?;
/// for ult in instance.monitoring().state_dump().ults {
///     let name = ult.name.as_deref().unwrap_or("a ULT");
///     println!("{name} in {}, for {:?} ms: {}", ult.pool, ult.since_msec, ult.state);
///     assert!(ult.stack.is_empty(), "they were not asked for");
/// }
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct UltLine {
    /// Number, unique in the process's runtime.
    pub id: u64,
    /// The name of its RPC, if it is a handler.
    pub name: Option<String>,
    /// The pool.
    pub pool: String,
    /// The execution stream.
    pub xstream: String,
    /// `runnable`, or what it waits for.
    pub state: String,
    /// For how long, milliseconds, to the precision of the stall detector.
    pub since_msec: Option<u64>,
    /// The stack, innermost first, if it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

impl InstanceMonitoring<'_> {
    /// Returns the state of this instance at the moment: its [`metrics`](crate::Instance::metrics),
    /// timers, suspended ULTs with what they wait for, and its configuration.
    ///
    /// May be called from anywhere but signal handlers, at any time. Takes some tens of
    /// microseconds, and some hundred for each thousand of suspended ULTs, of which their execution
    /// streams list some hundred between two units. Half a second if an execution stream is held by
    /// a unit that does not yield, or has not come to the end by then, which the dump then says. In
    /// a child process that was forked off there are its [`metrics`](crate::Instance::metrics) and
    /// the configuration of the start only.
    ///
    /// Counterpart: `margo_state_dump`.
    pub fn state_dump(&self) -> StateDump {
        dump(self.inner(), &DumpOptions::new().stacks(false))
    }

    /// [`state_dump`](Self::state_dump) with the stacks of the suspended ULTs, up to 1000: each
    /// takes its execution stream some microseconds, which runs other units after a few of them.
    /// The first one in a process reads debug information, which may take a second.
    ///
    /// To have it at a signal: [`InstanceBuilder::dump_on_signal`].
    ///
    /// [`InstanceBuilder::dump_on_signal`]: crate::InstanceBuilder::dump_on_signal
    pub fn state_dump_with_stacks(&self) -> StateDump {
        with_stacks(self.inner())
    }
}

pub(crate) fn with_stacks(inner: &Inner) -> StateDump {
    dump(inner, &DumpOptions::new())
}

fn dump(inner: &Inner, options: &DumpOptions) -> StateDump {
    if inner.is_forked() {
        // Execution streams are not there, and locks may be held for ever.
        return StateDump {
            metrics: collect::collect(inner),
            busy_xstreams: Vec::new(),
            partial_xstreams: Vec::new(),
            timers: Vec::new(),
            ults: Vec::new(),
            stacks_left_out: 0,
            config: inner.resolved.effective(),
        };
    }
    let ults = inner.runtime.dump(options);
    StateDump {
        metrics: collect::collect(inner),
        busy_xstreams: ults.busy.iter().map(|busy| busy.xstream.clone()).collect(),
        partial_xstreams: ults.partial,
        timers: inner.timers.list(Instant::now()),
        ults: ults.ults.iter().map(line).collect(),
        stacks_left_out: ults.ults.iter().filter(|ult| ult.stack == StackDump::LeftOut).count(),
        config: inner.config_as(ConfigFlags::default()),
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
