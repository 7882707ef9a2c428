//! The reports of the [`monitor`](crate::observe::monitor).

use crate::observe::backtrace::UltDump;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// A finding of the monitor.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use ult::{MonitorSpec, Report};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// let (sender, reports) = mpsc::channel();
/// let spec = MonitorSpec::new()
///     .tick(Duration::from_millis(1))
///     .stall_limit(Duration::from_millis(2))
///     .on_report(move |report| drop(sender.send(report.clone())));
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .monitor(spec)
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let (release, released) = mpsc::channel::<()>();
/// # let blocks = pool.ult().name("blocks").spawn(move || released.recv())?;
/// // A ULT blocks the thread of its xstream.
/// match reports.recv()? {
///     Report::Stall(stall) => assert_eq!(stall.xstream, "x0"),
///     Report::StallEnd(stall) => println!("it took {:?}", stall.lasted),
///     other => println!("{other}"),
/// }
/// # drop(release);
/// # blocks.join()?.unwrap_err();
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Report {
    /// A unit has run without a switch for longer than the limit; its xstream runs nothing else.
    Stall(Stall),
    /// The unit has switched at last; `lasted` is the total.
    StallEnd(Stall),
    /// Units wait, and none of their pool runs.
    Starvation(Starvation),
    /// Nothing moves, and nothing in the runtime can change that. Another thread could; if none
    /// will, this is a deadlock.
    Deadlock(Deadlock),
}

/// A unit that did not switch.
///
/// ```
/// # use std::sync::mpsc;
/// # use std::time::Duration;
/// # use ult::{MonitorSpec, PoolSpec, Runtime, XstreamSpec};
/// use ult::Report;
///
/// # let (sender, reports) = mpsc::channel();
/// # let spec = MonitorSpec::new()
/// #     .tick(Duration::from_millis(1))
/// #     .stall_limit(Duration::from_millis(2))
/// #     .on_report(move |report| drop(sender.send(report.clone())));
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .monitor(spec)
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let (release, released) = mpsc::channel::<()>();
/// // A wait of the standard library, which blocks the thread.
/// let blocks = pool.ult().name("blocks").spawn(move || released.recv())?;
/// // The callback of the monitor sends what is found.
/// if let Report::Stall(stall) = reports.recv()? {
///     assert_eq!((stall.ult, stall.name), (Some(blocks.id()), Some("blocks")));
///     assert!(stall.lasted >= Duration::from_millis(2));
/// }
/// # drop(release);
/// # blocks.join()?.unwrap_err();
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// Number of the unit; `None`: it began before a [lazy](crate::MonitorSpec::lazy) monitor
    /// looked.
    pub ult: Option<u64>,
    /// The name, if that is known and was given as a literal.
    pub name: Option<&'static str>,
    /// The pool, if the unit is known.
    pub pool: Option<String>,
    /// If the unit is not known: name and pool of the last one there that
    /// [`announce`](crate::integration::announce)d itself, which it may be, or may not.
    pub perhaps: Option<(&'static str, String)>,
    /// Where it runs.
    pub xstream: String,
    /// How long it has been seen to run, at least; one tick less than the truth, at most.
    pub lasted: Duration,
    /// The system call in which its thread was blocked when the report was made, by its name.
    /// `None`: it ran, or the system does not tell; always so at the end of a stall.
    pub system_call: Option<Cow<'static, str>>,
}

/// A pool whose units wait for their turn.
///
/// ```
/// use std::time::Duration;
/// use ult::{MonitorSpec, PoolSpec, Report};
///
/// # use std::sync::mpsc;
/// # use ult::{Runtime, XstreamSpec};
/// # let (sender, reports) = mpsc::channel();
/// let spec = MonitorSpec::new().starve_limit(Some(Duration::from_millis(2)));
/// # let spec = spec
/// #     .tick(Duration::from_millis(1))
/// #     .stall_limit(Duration::from_secs(60))
/// #     .on_report(move |report| drop(sender.send(report.clone())));
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .monitor(spec)
/// #     .start()?;
/// # let main = runtime.pool("main").expect("defined above");
/// let spare = runtime.add_pool(PoolSpec::new("spare"))?;
/// let waits = spare.spawn(|| ())?;
/// // The callback of the monitor sends what is found.
/// if let Report::Starvation(starvation) = reports.recv()? {
///     assert_eq!((&*starvation.pool, starvation.waiting), ("spare", 1));
///     assert!(starvation.xstreams.is_empty());
/// }
/// # spare.move_all_to(&main)?;
/// # waits.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Starvation {
    /// The pool.
    pub pool: String,
    /// How many units wait.
    pub waiting: usize,
    /// The xstreams that serve it.
    pub xstreams: Vec<String>,
    /// How long none of them has run, at least.
    pub lasted: Duration,
}

/// ULTs that wait for each other, perhaps.
///
/// ```
/// # use std::sync::{Arc, mpsc};
/// # use std::time::Duration;
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// use ult::{Eventual, MonitorSpec, Report};
///
/// # let (sender, reports) = mpsc::channel();
/// let spec = MonitorSpec::new().deadlock_limit(Some(Duration::from_millis(5)));
/// # let spec = spec
/// #     .tick(Duration::from_millis(1))
/// #     .stall_limit(Duration::from_secs(60))
/// #     .on_report(move |report| drop(sender.send(report.clone())));
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .monitor(spec)
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let never = Arc::new(Eventual::<()>::new());
/// let waits = never.clone();
/// let waiter = pool.ult().name("waiter").spawn(move || waits.wait_ready())?;
/// // The callback of the monitor sends what is found.
/// if let Report::Deadlock(deadlock) = reports.recv()? {
///     assert_eq!(deadlock.ults[0].name.as_deref(), Some("waiter"));
/// }
/// # never.set(()).expect("set once");
/// # waiter.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Deadlock {
    /// How long nothing has moved.
    pub lasted: Duration,
    /// The suspended ULTs, without their stacks.
    pub ults: Vec<UltDump>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        match self {
            Self::Stall(stall) => {
                let (xstream, unit, lasted) = (&stall.xstream, stall.unit(), stall.lasted);
                write!(f, "xstream `{xstream}` is stalled: {unit} has run for {lasted:?}")?;
                match &stall.system_call {
                    Some(call) => write!(
                        f,
                        " without a switch; its thread is blocked in the system call `{call}`: \
                         call what blocks in `ult::blocking`"
                    ),
                    None => f.write_str(
                        " without a switch; it should yield, wait with objects of this crate, or \
                         run in `ult::blocking`",
                    ),
                }
            }
            Self::StallEnd(stall) => write!(
                f,
                "xstream `{}` goes on: {} has switched after {:?}",
                stall.xstream,
                stall.unit(),
                stall.lasted
            ),
            Self::Starvation(Starvation { pool, waiting, xstreams, lasted }) => {
                write!(f, "{waiting} units of pool `{pool}` wait: none has run for {lasted:?}; ")?;
                match &xstreams[..] {
                    [] => f.write_str("no xstream serves the pool"),
                    names => write!(f, "the pool is served by {}", names.join(", ")),
                }
            }
            Self::Deadlock(Deadlock { lasted, ults }) => {
                let count = ults.len();
                write!(
                    f,
                    "perhaps a deadlock: {count} ULTs are suspended, all xstreams sleep, and \
                     nothing has moved for {lasted:?}"
                )?;
                for ult in ults.iter().take(SHOWN) {
                    write!(f, "\n  {ult}")?;
                }
                if count > SHOWN {
                    write!(f, "\n  and {} more", count - SHOWN)?;
                }
                Ok(())
            }
        }
    }
}

impl Stall {
    fn unit(&self) -> String {
        let name = self.name.map(|name| format!(" `{name}`")).unwrap_or_default();
        match (self.ult, &self.pool, &self.perhaps) {
            (Some(ult), Some(pool), _) => format!("ULT {ult}{name} of pool `{pool}`"),
            (_, _, Some((name, pool))) => {
                format!("a unit (perhaps `{name}` of pool `{pool}`, the last to begin there)")
            }
            _ => "a unit".to_owned(),
        }
    }
}
