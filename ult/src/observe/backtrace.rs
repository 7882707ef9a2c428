//! Stack dumps of suspended ULTs.
//!
//! An xstream that is asked for a dump resumes each of its suspended ULTs with
//! [`Wakeup::Inspect`](crate::stack::context::Wakeup). The ULT, on its own stack, inside the call
//! with which it suspended, walks up its frames, stores the instruction pointers in the memory that
//! the xstream has ready, and suspends again. The party that asked turns the pointers into names,
//! on its own stack. So a ULT needs room for the walk only, and says so if it has not even that.
//!
//! The xstreams are asked by mail, and answer between two units, in slices: one that is home to
//! many ULTs runs other units in between. One that runs a unit which neither yields nor suspends
//! does not answer; it is named as busy when the time is over.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::base::contain::log;
use crate::base::limit::Limit;
use crate::base::payload;
use crate::base::wait_kind::WaitKind;
use crate::engine::model::runtime_core::RuntimeCore;
use crate::engine::model::unit::UltPtr;
use crate::engine::model::xstream_shared::{State, XstreamShared};
use crate::engine::pulse::Capture;
use crate::engine::xstream::current;
use crate::engine::xstream::inspect;
use crate::engine::xstream::inspect::warm_up;
use crate::engine::xstream::owner::Xstream;
use crate::runtime::handle::Runtime;
use crate::stack::context::Wakeup;
use crate::sync::{Arc, Mutex, lock, thread};
use crate::wait::eventual::Eventual;

const FRAMES_MAX: usize = 256;
/// The work that an xstream does on an answer before it runs a unit: it lists so many ULTs, which
/// takes some tens of microseconds. A stack costs as much as `COST_OF_STACK` of them.
const SLICE: usize = 256;
const COST_OF_STACK: usize = 32;

/// Options of a dump; see [`Runtime::dump`].
///
/// ```
/// use std::time::Duration;
/// use ult::DumpOptions;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// // A list of the ULTs, without their stacks.
/// let options = DumpOptions::new().stacks(false).limit(Duration::from_secs(5));
/// let dump = runtime.dump(&options);
/// assert!(dump.ults.is_empty() && dump.busy.is_empty());
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpOptions {
    /// True if to walk the stacks. Default `true`; without, a dump is a cheap list of ULTs.
    pub stacks: bool,
    /// How many stacks at most, in equal parts for all xstreams; further ULTs are listed without,
    /// as [`StackDump::LeftOut`]. Default 1000, which take some 10 ms of the xstreams' time.
    pub stacks_max: usize,
    /// How many frames per stack at most, innermost first. Default 64, at most 256.
    pub frames_max: usize,
    /// How long to wait for the xstreams. Default 500 ms.
    pub limit: Duration,
}

impl Default for DumpOptions {
    fn default() -> Self {
        let limit = Duration::from_millis(500);
        Self { stacks: true, stacks_max: 1000, frames_max: 64, limit }
    }
}

impl DumpOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`stacks`](Self::stacks).
    #[must_use]
    pub fn stacks(mut self, stacks: bool) -> Self {
        self.stacks = stacks;
        self
    }

    /// Sets [`stacks_max`](Self::stacks_max).
    #[must_use]
    pub fn stacks_max(mut self, stacks: usize) -> Self {
        self.stacks_max = stacks;
        self
    }

    /// Sets [`frames_max`](Self::frames_max).
    #[must_use]
    pub fn frames_max(mut self, frames: usize) -> Self {
        self.frames_max = frames;
        self
    }

    /// Sets [`limit`](Self::limit).
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

/// The ULTs of a runtime; see [`Runtime::dump`]. `Display` prints them like a backtrace.
///
/// ```
/// use ult::DumpOptions;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let go = std::sync::Arc::new(ult::Eventual::<()>::new());
/// # let waits = go.clone();
/// # let waiter = pool.ult().name("waiter").spawn(move || waits.wait_ready())?;
/// # // It runs behind the other one, which waits by then.
/// # pool.spawn(|| ())?.join()?;
/// // A ULT with the name `waiter` waits for an eventual.
/// let dump = runtime.dump(&DumpOptions::new().stacks(false));
/// assert_eq!((dump.ults.len(), dump.busy.len()), (1, 0));
/// // As a log or a status page would show it.
/// let text = dump.to_string();
/// assert!(text.contains("waiter"));
/// # go.set(()).expect("set once");
/// # waiter.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Dump {
    /// The ULTs that have started and not ended, by number. Those that run now are missing; see
    /// [`busy`](Self::busy). So are runnable ULTs that may go on at any xstream; see
    /// [`PoolRef::units`](crate::PoolRef::units).
    pub ults: Vec<UltDump>,
    /// Xstreams that did not answer in time. The ULTs at home there are missing.
    pub busy: Vec<BusyXstream>,
    /// Names of xstreams that had begun to answer when the time was over. Some of the ULTs at home
    /// there are missing.
    pub partial: Vec<String>,
}

/// An xstream that did not answer, because a unit on it neither yields nor suspends.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use ult::DumpOptions;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// let (release, released) = mpsc::channel::<()>();
/// let (begin, begun) = mpsc::channel();
/// let blocks = pool.spawn(move || {
///     begin.send(()).ok();
///     // This blocks the thread of the xstream: a wait of `ult::channel` would not.
///     released.recv()
/// })?;
/// begun.recv()?;
/// let dump = runtime.dump(&DumpOptions::new().limit(Duration::from_millis(1)));
/// assert_eq!(dump.busy[0].xstream, "x0");
/// drop(release);
/// # blocks.join()?.unwrap_err();
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BusyXstream {
    /// The name.
    pub xstream: String,
    /// Number of the unit that runs. Known while the runtime has a monitor
    /// ([`RuntimeBuilder::monitor`](crate::RuntimeBuilder::monitor)), is recorded, or has sinks.
    pub ult: Option<u64>,
    /// Pool of that unit.
    pub pool: Option<String>,
}

/// One ULT of a [`Dump`].
///
/// ```
/// use ult::DumpOptions;
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let go = std::sync::Arc::new(ult::Eventual::<()>::new());
/// # let waits = go.clone();
/// # let waiter = pool.ult().name("waiter").spawn(move || waits.wait_ready())?;
/// # // It runs behind the other one, which waits by then.
/// # pool.spawn(|| ())?.join()?;
/// // A ULT with the name `waiter` waits for an eventual.
/// let dump = runtime.dump(&DumpOptions::new().stacks(false));
/// let ult = &dump.ults[0];
/// assert_eq!((ult.id, ult.name.as_deref()), (waiter.id(), Some("waiter")));
/// assert_eq!((&*ult.pool, &*ult.xstream), ("main", "x0"));
/// # go.set(()).expect("set once");
/// # waiter.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UltDump {
    /// Number, unique in the runtime.
    pub id: u64,
    /// Name given at spawn.
    pub name: Option<String>,
    /// Pool that it belongs to.
    pub pool: String,
    /// The home xstream.
    pub xstream: String,
    /// The state: runnable or blocked.
    pub state: UltState,
    /// The stack.
    pub stack: StackDump,
}

/// The state of a ULT in a dump.
///
/// ```
/// use ult::{DumpOptions, UltState, WaitKind};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let go = std::sync::Arc::new(ult::Eventual::<()>::new());
/// # let waits = go.clone();
/// # let waiter = pool.ult().name("waiter").spawn(move || waits.wait_ready())?;
/// # // It runs behind the other one, which waits by then.
/// # pool.spawn(|| ())?.join()?;
/// // A ULT with the name `waiter` waits for an eventual.
/// let dump = runtime.dump(&DumpOptions::new().stacks(false));
/// match dump.ults[0].state {
///     UltState::Runnable => panic!("it waits"),
///     // Without a monitor nobody knows since when.
///     UltState::Blocked { kind, since } => assert_eq!((kind, since), (WaitKind::Eventual, None)),
///     _ => {}
/// }
/// # go.set(()).expect("set once");
/// # waiter.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UltState {
    /// It could run.
    Runnable,
    /// It waits.
    Blocked {
        /// For what.
        kind: WaitKind,
        /// How long, to the precision of the monitor's tick; `None`: there is no monitor.
        since: Option<Duration>,
    },
}

/// The frames of one ULT, innermost first.
///
/// ```
/// use ult::{DumpOptions, StackDump};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let go = std::sync::Arc::new(ult::Eventual::<()>::new());
/// # let waits = go.clone();
/// # let waiter = pool.ult().name("waiter").spawn(move || waits.wait_ready())?;
/// # // It runs behind the other one, which waits by then.
/// # pool.spawn(|| ())?.join()?;
/// // A ULT with the name `waiter` waits for an eventual.
/// let dump = runtime.dump(&DumpOptions::new().stacks_max(0));
/// match &dump.ults[0].stack {
///     StackDump::Frames(frames) => println!("{} frames", frames.len()),
///     StackDump::NoRoom { free_bytes } => println!("only {free_bytes} bytes are left"),
///     other => assert_eq!(*other, StackDump::LeftOut),
/// }
/// # go.set(()).expect("set once");
/// # waiter.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackDump {
    /// Nobody asked for them.
    NotAsked,
    /// There were more than [`DumpOptions::stacks_max`].
    LeftOut,
    /// The stack has so few bytes left that the walk could have overflowed it.
    NoRoom {
        /// The part of the stack that is left.
        free_bytes: usize,
    },
    /// These.
    Frames(Vec<Frame>),
}

/// One frame of a stack. A frame into which others were inlined stands once for each.
///
/// ```
/// use ult::{DumpOptions, StackDump};
///
/// # use ult::{PoolSpec, Runtime, XstreamSpec};
/// # let runtime = Runtime::builder()
/// #     .pool(PoolSpec::new("main"))
/// #     .xstream(XstreamSpec::new("x0").pools(["main"]))
/// #     .start()?;
/// # let pool = runtime.pool("main").expect("defined above");
/// # let go = std::sync::Arc::new(ult::Eventual::<()>::new());
/// # let waits = go.clone();
/// # let waiter = pool.ult().name("waiter").spawn(move || waits.wait_ready())?;
/// # // It runs behind the other one, which waits by then.
/// # pool.spawn(|| ())?.join()?;
/// // A ULT with the name `waiter` waits for an eventual.
/// let dump = runtime.dump(&DumpOptions::new().frames_max(16));
/// let StackDump::Frames(frames) = &dump.ults[0].stack else { panic!("{dump}") };
/// for frame in frames {
///     println!("{:#x} {:?} {:?}:{:?}", frame.address, frame.symbol, frame.file, frame.line);
/// }
/// assert!(!frames.is_empty());
/// # go.set(()).expect("set once");
/// # waiter.join()?;
/// # runtime.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Instruction pointer.
    pub address: usize,
    /// Name of the function.
    pub symbol: Option<String>,
    /// Source file.
    pub file: Option<PathBuf>,
    /// Line in it.
    pub line: Option<u32>,
}

/// A ULT as its xstream describes it.
struct RawUlt {
    dump: UltDump,
    pointers: Vec<usize>,
}

/// One call of [`Runtime::dump`].
struct Request {
    /// How many stacks each xstream walks.
    stacks_max: Option<usize>,
    frames_max: usize,
    /// Xstreams that have not answered to the end, and whether they have begun. Empty as soon as
    /// nobody waits any more.
    pending: Mutex<BTreeMap<usize, bool>>,
    found: Mutex<Vec<RawUlt>>,
}

/// How far an xstream is with an answer.
#[derive(Clone, Copy)]
struct Progress {
    /// The number of stacks in its register that are still to come. They are taken from the end,
    /// because a stack that leaves is replaced by the last one, which is then seen twice, and not
    /// missed.
    stacks_left: usize,
    walked: usize,
}

impl Runtime {
    /// Lists the ULTs that have started, with what they wait for and where they stand.
    ///
    /// Each xstream answers between two units, for the ULTs at home there, of which those are
    /// certain to be listed that are suspended all the while. Walking a stack takes some
    /// microseconds; after a few, or some hundred ULTs without, it runs a unit, if there is one, so
    /// no unit is held up for long by that. The first dump of a process reads debug information,
    /// which may take a second, on the calling thread; the binary needs some for file and line, and
    /// names of inlined functions are without their path if it has only line tables. May be called
    /// by ULTs, also of this runtime.
    ///
    /// Counterpart: `ABT_info_print_thread_stacks_in_pool`, which prints raw bytes.
    #[must_use]
    pub fn dump(&self, options: &DumpOptions) -> Dump {
        let Collected { raw, busy, partial } = ask(&self.owner.core, options);
        Dump { ults: name_frames(raw), busy, partial }
    }
}

/// The ULTs of a runtime, without names of frames.
pub(crate) fn ask_list(core: &RuntimeCore, options: &DumpOptions) -> Vec<UltDump> {
    ask(core, options).raw.into_iter().map(|raw| raw.dump).collect()
}

/// The answers that came in time; each ULT is listed once, by number.
struct Collected {
    raw: Vec<RawUlt>,
    busy: Vec<BusyXstream>,
    partial: Vec<String>,
}

fn ask(core: &RuntimeCore, options: &DumpOptions) -> Collected {
    let xstreams: Vec<_> = core.xstreams().into_iter().filter(is_there).collect();
    let stacks_each = options.stacks_max.div_ceil(xstreams.len().max(1));
    let request = Arc::new(Request {
        stacks_max: options.stacks.then_some(stacks_each),
        frames_max: options.frames_max.min(FRAMES_MAX),
        pending: Mutex::new(xstreams.iter().map(|xstream| (xstream.index, false)).collect()),
        found: Mutex::default(),
    });
    for xstream in &xstreams {
        let request = request.clone();
        xstream.ask(move |xstream| xstream.begin_answer(request));
    }
    let is_late = |xstream: &Arc<XstreamShared>| {
        is_there(xstream) && lock(&request.pending).contains_key(&xstream.index)
    };
    core.news.wait_until(&mut Limit::new(options.limit), || !xstreams.iter().any(is_late));
    // Who comes now does nothing more.
    let pending = std::mem::take(&mut *lock(&request.pending));
    let (mut busy, mut partial) = (Vec::new(), Vec::new());
    for xstream in xstreams.iter().filter(|xstream| is_there(xstream)) {
        match pending.get(&xstream.index) {
            Some(true) => partial.push(xstream.name.to_string()),
            Some(false) => busy.push(describe_busy(core, xstream)),
            None => {}
        }
    }
    let mut raw = std::mem::take(&mut *lock(&request.found));
    raw.sort_by_key(|ult| ult.dump.id);
    raw.dedup_by_key(|ult| ult.dump.id);
    Collected { raw, busy, partial }
}

/// Returns whether the xstream has not left. One that has is home to nobody, and does not answer.
fn is_there(xstream: &Arc<XstreamShared>) -> bool {
    !matches!(xstream.state(), State::Terminated | State::Removed)
}

fn describe_busy(core: &RuntimeCore, xstream: &XstreamShared) -> BusyXstream {
    let running = xstream.diag.read().running;
    BusyXstream {
        xstream: xstream.name.to_string(),
        ult: running.map(|(id, _)| id),
        pool: running.and_then(|(_, pool)| core.pool_name(pool)),
    }
}

impl Xstream {
    /// Answers a dump. On its own stack, between two units.
    fn begin_answer(&self, request: Arc<Request>) {
        if request.stacks_max.is_some() {
            warm_up();
        }
        self.answer(request, Progress { stacks_left: self.stacks.len(), walked: 0 });
    }

    /// The next slice of an answer, unless nobody waits for it any more.
    fn answer(&self, request: Arc<Request>, mut progress: Progress) {
        let index = self.shared().index;
        if !lock(&request.pending).contains_key(&index) {
            return;
        }
        let raw = self.describe_some(&request, &mut progress);
        let is_over = progress.stacks_left == 0;
        let mut pending = lock(&request.pending);
        let Some(has_begun) = pending.get_mut(&index) else { return };
        *has_begun = true;
        lock(&request.found).extend(raw);
        if is_over {
            pending.remove(&index);
        }
        drop(pending);
        if is_over {
            self.core.tell_news();
        } else {
            // Comes after the next unit.
            self.shared().ask(move |xstream| xstream.answer(request, progress));
        }
    }

    fn describe_some(&self, request: &Request, progress: &mut Progress) -> Vec<RawUlt> {
        let mut found = Vec::new();
        let mut cost = 0;
        progress.stacks_left = progress.stacks_left.min(self.stacks.len());
        while cost < SLICE && progress.stacks_left > 0 {
            progress.stacks_left -= 1;
            cost += 1;
            // What is at home here cannot end within the slice, since that takes this thread.
            let block = self.stacks.get(progress.stacks_left);
            let Some(ult) = block.and_then(|block| block.ult()) else { continue };
            let walks = request.stacks_max.map(|max| progress.walked < max);
            if walks == Some(true) {
                progress.walked += 1;
                cost += COST_OF_STACK;
            }
            found.push(self.describe(ult, walks, request.frames_max));
        }
        found
    }

    /// `walks`: whether there is room for its stack; `None`: nobody asked for that.
    fn describe(&self, ult: UltPtr, walks: Option<bool>, frames_max: usize) -> RawUlt {
        let state = if ult.state.cell.is_parked() {
            UltState::Blocked { kind: ult.state.waits.get(), since: since(&self.core, ult) }
        } else {
            UltState::Runnable
        };
        let mut pointers = Vec::new();
        let mut stack = if walks.is_some() { StackDump::LeftOut } else { StackDump::NotAsked };
        if walks == Some(true) {
            self.inspect(ult, frames_max);
            let mut capture = self.diag.capture.borrow_mut();
            pointers = std::mem::take(&mut capture.pointers);
            stack = match capture.no_room.take() {
                Some(free_bytes) => StackDump::NoRoom { free_bytes },
                None => StackDump::Frames(Vec::new()),
            };
        }
        let dump = UltDump {
            id: ult.id.get(),
            name: ult.name().map(str::to_owned),
            pool: ult.pool().name.to_string(),
            xstream: self.shared().name.to_string(),
            state,
            stack,
        };
        RawUlt { dump, pointers }
    }

    /// Has a suspended ULT of this xstream walk its stack.
    fn inspect(&self, ult: UltPtr, frames_max: usize) {
        let Some(block) = ult.block() else { return };
        let mut capture = self.diag.capture.borrow_mut();
        *capture = Capture { pointers: Vec::with_capacity(frames_max), frames_max, no_room: None };
        drop(capture);
        // For the report of a stack overflow.
        self.current.set(Some(ult));
        // SAFETY:
        // - one resumer: only the home xstream runs the ULT, and it runs none now;
        // - alive: the ULT has started and not ended.
        //
        // It repeats the command with which it had suspended, and that has been carried out.
        unsafe { block.context.resume(Wakeup::Inspect) };
        self.current.set(None);
    }
}

fn since(core: &RuntimeCore, ult: UltPtr) -> Option<Duration> {
    let tick = ult.waits_since.get();
    let now = core.diag.epoch.elapsed();
    (tick != 0).then(|| now.saturating_sub(Duration::from_nanos(tick)))
}

/// Replaces pointers by names. On a thread with a large stack.
fn name_frames(raw: Vec<RawUlt>) -> Vec<UltDump> {
    let has_frames = raw.iter().any(|ult| !ult.pointers.is_empty());
    if !has_frames || !current::is_ult() {
        return name_here(raw);
    }
    // Reading debug information takes more stack than a ULT may have.
    let shared = Arc::new((Mutex::new(Named::Not(raw)), Eventual::new()));
    let theirs = shared.clone();
    let body = move || {
        let _done = SetOnDrop(&theirs.1);
        let mut state = lock(&theirs.0);
        if let Named::Not(raw) = &mut *state {
            *state = Named::Yes(name_here(std::mem::take(raw)));
        }
    };
    match thread::Builder::new().name("ult-dump".to_owned()).spawn(body) {
        Ok(_) => {
            shared.1.wait();
        }
        Err(error) => {
            log!(WARN, %error, "cannot start a thread to name the frames of a dump");
        }
    }
    let mut state = lock(&shared.0);
    match &mut *state {
        Named::Yes(ults) => std::mem::take(ults),
        Named::Not(raw) => std::mem::take(raw).into_iter().map(|ult| ult.dump).collect(),
    }
}

enum Named {
    Not(Vec<RawUlt>),
    Yes(Vec<UltDump>),
}

/// Ends the wait for a thread, also if it panics.
struct SetOnDrop<'a>(&'a Eventual<()>);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        // Nobody else sets it.
        let _ = self.0.set(());
    }
}

fn name_here(raw: Vec<RawUlt>) -> Vec<UltDump> {
    let mut known: HashMap<usize, Vec<Frame>> = HashMap::new();
    let name = |mut ult: RawUlt| {
        if let StackDump::Frames(frames) = &mut ult.dump.stack {
            for pointer in ult.pointers {
                let named = known.entry(pointer).or_insert_with(|| resolve(pointer));
                frames.extend_from_slice(named);
            }
            trim(frames);
        }
        ult.dump
    };
    raw.into_iter().map(name).collect()
}

fn resolve(pointer: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    ::backtrace::resolve(std::ptr::without_provenance_mut::<c_void>(pointer), |symbol| {
        frames.push(Frame {
            address: pointer,
            symbol: symbol.name().map(|name| format!("{name:#}")),
            file: symbol.filename().map(PathBuf::from),
            line: symbol.lineno(),
        });
    });
    if frames.is_empty() {
        frames.push(Frame { address: pointer, symbol: None, file: None, line: None });
    }
    frames
}

/// Leaves out the frames of the dump itself, and those below the closure of the ULT.
///
/// An inlined function may have a bare name, so its file counts as well; without debug information
/// there is no file.
fn trim(frames: &mut Vec<Frame>) {
    let is = |frame: &Frame, [module, file]: [&str; 2]| {
        frame.symbol.as_deref().is_some_and(|name| name.contains(module))
            || frame.file.as_deref().is_some_and(|path| path.ends_with(file))
    };
    // The walk stands on top, below the unwinder; a ULT that asks for a dump has more of ours.
    let is_ours = |frame: &Frame| is(frame, inspect::PLACE);
    if let Some(first) = frames.iter().position(is_ours) {
        let rest = frames[first..].iter().position(|frame| !is_ours(frame));
        frames.drain(..rest.map_or(frames.len(), |rest| first + rest));
    }
    if let Some(at) = frames.iter().position(|frame| is(frame, payload::PLACE)) {
        frames.truncate(at);
        while frames.last().is_some_and(is_catch) {
            frames.pop();
        }
    }
}

/// Returns whether the frame belongs to `catch_unwind`, which stands between a closure and its
/// caller.
fn is_catch(frame: &Frame) -> bool {
    const SYMBOLS: [&str; 4] = ["std::panic", "core::panic", "core::ops::function", "__rust_try"];
    const FILES: [&str; 4] =
        ["std/src/panicking.rs", "std/src/panic.rs", "panic/unwind_safe.rs", "ops/function.rs"];
    frame.symbol.as_deref().is_some_and(|name| SYMBOLS.iter().any(|known| name.contains(known)))
        || frame.file.as_deref().is_some_and(|path| FILES.iter().any(|file| path.ends_with(file)))
}

impl fmt::Display for UltState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runnable => f.write_str("runnable"),
            Self::Blocked { kind, since: None } => write!(f, "waits for: {kind}"),
            Self::Blocked { kind, since: Some(since) } => {
                write!(f, "waits for: {kind}, for {:.3} s", since.as_secs_f64())
            }
        }
    }
}

impl fmt::Display for UltDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("(unnamed)");
        let Self { id, pool, xstream, state, .. } = self;
        write!(f, "ULT `{name}` (id {id}) of pool `{pool}` on xstream `{xstream}`: {state}")?;
        match &self.stack {
            StackDump::NotAsked => Ok(()),
            StackDump::LeftOut => f.write_str("\n  (no stack dump: there are too many)"),
            StackDump::NoRoom { free_bytes } => {
                write!(f, "\n  (no stack dump: only {free_bytes} bytes of the stack are left)")
            }
            StackDump::Frames(frames) => {
                for (number, frame) in frames.iter().enumerate() {
                    write!(f, "\n{number:4}: {frame}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.symbol {
            Some(symbol) => f.write_str(symbol)?,
            None => write!(f, "{:#018x}", self.address)?,
        }
        if let (Some(file), Some(line)) = (&self.file, self.line) {
            write!(f, "\n             at {}:{line}", file.display())?;
        }
        Ok(())
    }
}

impl fmt::Display for BusyXstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xstream `{}` did not answer: it runs ", self.xstream)?;
        match (self.ult, &self.pool) {
            (Some(id), Some(pool)) => {
                write!(f, "ULT {id} of pool `{pool}`, which neither yields nor suspends")
            }
            _ => f.write_str("a unit that neither yields nor suspends; a monitor would name it"),
        }
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ULTs have started", self.ults.len())?;
        for busy in &self.busy {
            write!(f, "\n{busy}")?;
        }
        for xstream in &self.partial {
            write!(f, "\nxstream `{xstream}` had not listed all of its ULTs when time was over")?;
        }
        for ult in &self.ults {
            write!(f, "\n{ult}")?;
        }
        Ok(())
    }
}
