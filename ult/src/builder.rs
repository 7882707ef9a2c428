//! From a description to a running runtime.
//!
//! Everything is checked before anything is started. Then each xstream's thread sets itself up and
//! reports; if one fails, those that run already are told to leave, and joined.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::current::Seat;
use crate::error::StartError;
use crate::monitor::{self, MonitorSpec};
use crate::overflow::{self, AltStack};
use crate::pool::{PoolShared, PoolSpec, Server};
use crate::runtime::Runtime;
use crate::sched::{BasicWait, Scheduler};
use crate::shared::{CoreParts, EXIT, RuntimeCore};
use crate::sleep::SPIN_MAX_DEFAULT;
use crate::stack::{STACK_BYTES_DEFAULT, class_of};
use crate::sync::{Arc, thread};
use crate::xstream::{Xstream, XstreamShared};

/// Idle stacks per xstream, as in C Margo.
const STACK_CACHE_MAX_DEFAULT: usize = 8;

/// What an xstream shall be; see [`RuntimeBuilder::xstream`].
pub struct XstreamSpec {
    name: String,
    pools: Vec<String>,
    scheduler: Option<Box<dyn Scheduler>>,
    cpus: Vec<usize>,
}

impl XstreamSpec {
    /// An xstream with the default scheduler ([`BasicWait`]), not bound to a processor.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), pools: Vec::new(), scheduler: None, cpus: Vec::new() }
    }

    /// The pools that it serves, in the scheduler's order.
    #[must_use]
    pub fn pools<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.pools = names.into_iter().map(Into::into).collect();
        self
    }

    /// Its scheduler.
    #[must_use]
    pub fn scheduler(mut self, scheduler: Box<dyn Scheduler>) -> Self {
        self.scheduler = Some(scheduler);
        self
    }

    /// Binds it to one processor.
    ///
    /// Counterpart: `ABT_xstream_set_cpubind`.
    #[must_use]
    pub fn cpubind(self, cpu: usize) -> Self {
        self.affinity(vec![cpu])
    }

    /// Restricts it to these processors; an empty list means all that the process may use.
    ///
    /// Counterpart: `ABT_xstream_set_affinity`.
    #[must_use]
    pub fn affinity(mut self, cpus: Vec<usize>) -> Self {
        self.cpus = cpus;
        self
    }
}

impl fmt::Debug for XstreamSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XstreamSpec")
            .field("name", &self.name)
            .field("pools", &self.pools)
            .field("cpus", &self.cpus)
            .finish_non_exhaustive()
    }
}

/// Collects the description of a runtime. Nothing is started before [`start`](Self::start).
#[derive(Debug)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct RuntimeBuilder {
    pools: Vec<PoolSpec>,
    xstreams: Vec<XstreamSpec>,
    stack_bytes: usize,
    stack_cache_max: usize,
    spin_max: Duration,
    pub(crate) monitor: Option<MonitorSpec>,
}

impl RuntimeBuilder {
    pub(crate) fn new() -> Self {
        Self {
            pools: Vec::new(),
            xstreams: Vec::new(),
            stack_bytes: STACK_BYTES_DEFAULT,
            stack_cache_max: STACK_CACHE_MAX_DEFAULT,
            spin_max: SPIN_MAX_DEFAULT,
            monitor: None,
        }
    }

    /// Adds a pool.
    pub fn pool(mut self, spec: PoolSpec) -> Self {
        self.pools.push(spec);
        self
    }

    /// Adds an xstream.
    pub fn xstream(mut self, spec: XstreamSpec) -> Self {
        self.xstreams.push(spec);
        self
    }

    /// Stack size in bytes of ULTs for which neither the spawn nor the pool says another. Virtual:
    /// memory is used as far as a ULT reaches down. Rounded up to whole pages, at least 16 KiB.
    /// Default 2 MiB.
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = bytes;
        self
    }

    /// Idle stacks kept per xstream. Default 8. The runtime keeps 32 times as many for all
    /// xstreams together; what exceeds both is given back to the system at once. Raise it if
    /// more ULTs than that come and go in waves. `abt_mem_max_num_stacks` in a Margo
    /// configuration.
    pub fn stack_cache_max(mut self, count: usize) -> Self {
        self.stack_cache_max = count;
        self
    }

    /// Longest time that an xstream with nothing to do spins before it sleeps. The time adapts
    /// below this cap. Default 20 us, which is about what a wake-up costs; zero never spins, and is
    /// the default if the process has only one processor.
    pub fn spin_max(mut self, limit: Duration) -> Self {
        self.spin_max = limit;
        self
    }

    /// Starts the xstreams.
    ///
    /// # Errors
    ///
    /// See [`StartError`]. Nothing is left running.
    ///
    /// Counterpart: `ABT_init`.
    pub fn start(self) -> Result<Runtime, StartError> {
        let allowed = allowed_cpus();
        self.check(&allowed)?;
        overflow::install();
        let mut pool_names = Vec::new();
        let mut pools = Vec::new();
        for (index, spec) in self.pools.into_iter().enumerate() {
            let servers = servers_of(&spec.name, &self.xstreams);
            pool_names.push(spec.name.clone());
            pools.push(PoolShared::new(spec, index, self.stack_bytes, servers));
        }
        let index_of = |name: &String| pool_names.iter().position(|other| other == name);
        let mut xstreams = Vec::new();
        let mut schedulers = Vec::new();
        for (index, spec) in self.xstreams.into_iter().enumerate() {
            let served = spec.pools.iter().filter_map(index_of).collect();
            let name = spec.name.clone();
            let shared = XstreamShared::new(spec.name, index, spec.cpus, served).map_err(|e| {
                StartError::System { xstream: name, what: "make an eventfd", source: e }
            })?;
            xstreams.push(shared);
            schedulers.push(spec.scheduler.unwrap_or_else(|| Box::new(BasicWait::new())));
        }
        let core = Arc::new(RuntimeCore::new(CoreParts {
            pools,
            xstreams,
            spin_max: if allowed.len() > 1 { self.spin_max } else { Duration::ZERO },
            stack_cache_max: self.stack_cache_max,
            stack_bytes: class_of(self.stack_bytes),
        }));
        let monitor = monitor::start(&core, self.monitor)?;
        let mut threads = start_threads(&core, schedulers)?;
        threads.extend(monitor);
        Ok(Runtime::new(core, threads))
    }

    fn check(&self, allowed: &BTreeSet<usize>) -> Result<(), StartError> {
        if self.xstreams.is_empty() {
            return Err(StartError::NoXstream);
        }
        let mut names = BTreeSet::new();
        for pool in &self.pools {
            if !names.insert(pool.name.as_str()) {
                return Err(StartError::DuplicatePool { pool: pool.name.clone() });
            }
        }
        let mut xstream_names = BTreeSet::new();
        for spec in &self.xstreams {
            if !xstream_names.insert(spec.name.as_str()) {
                return Err(StartError::DuplicateXstream { xstream: spec.name.clone() });
            }
            check_xstream(spec, &names, allowed)?;
        }
        let served: BTreeSet<&str> =
            self.xstreams.iter().flat_map(|spec| &spec.pools).map(String::as_str).collect();
        match names.difference(&served).next() {
            Some(pool) => Err(StartError::UnservedPool { pool: (*pool).to_owned() }),
            None => Ok(()),
        }
    }
}

fn check_xstream(
    spec: &XstreamSpec,
    pools: &BTreeSet<&str>,
    allowed: &BTreeSet<usize>,
) -> Result<(), StartError> {
    let xstream = || spec.name.clone();
    if spec.pools.is_empty() {
        return Err(StartError::NoPool { xstream: xstream() });
    }
    let mut seen = BTreeSet::new();
    for pool in &spec.pools {
        if !pools.contains(pool.as_str()) {
            let have: Vec<&str> = pools.iter().copied().collect();
            let have = have.join(", ");
            return Err(StartError::UnknownPool { xstream: xstream(), pool: pool.clone(), have });
        }
        if !seen.insert(pool) {
            return Err(StartError::RepeatedPool { xstream: xstream(), pool: pool.clone() });
        }
    }
    match spec.cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(cpu) => {
            let have: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            Err(StartError::Cpu { xstream: xstream(), cpu: *cpu, have: have.join(",") })
        }
        None => Ok(()),
    }
}

fn servers_of(pool: &str, xstreams: &[XstreamSpec]) -> Vec<Server> {
    let place = |spec: &XstreamSpec| spec.pools.iter().position(|name| name == pool);
    let served = xstreams.iter().enumerate();
    served.filter_map(|(xstream, spec)| Some(Server { xstream, slot: place(spec)? })).collect()
}

/// The processors that this thread may use, and may hence hand on.
fn allowed_cpus() -> BTreeSet<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
        // More processors than the call has room for: let the kernel judge.
        Err(_) => (0..CpuSet::MAX_CPU).collect(),
    }
}

/// Starts one thread per xstream, or none.
fn start_threads(
    core: &Arc<RuntimeCore>,
    schedulers: Vec<Box<dyn Scheduler>>,
) -> Result<Vec<thread::JoinHandle<()>>, StartError> {
    let (report, reports) = mpsc::channel();
    let mut threads = Vec::new();
    let mut result = Ok(());
    for (index, scheduler) in schedulers.into_iter().enumerate() {
        let name = &core.xstreams[index].name;
        let thread_core = core.clone();
        let thread_report = report.clone();
        let body = move || run_thread(&thread_core, index, scheduler, thread_report);
        // The system's names end at a zero byte, and the standard library panics at one.
        let thread_name = name.replace('\0', "?");
        match thread::Builder::new().name(thread_name).spawn(body) {
            Ok(thread) => threads.push(thread),
            Err(source) => {
                let what = "start its thread";
                result = Err(StartError::System { xstream: name.to_string(), what, source });
                break;
            }
        }
    }
    drop(report);
    // Ends when every thread has reported, or is gone.
    let mut reported = 0;
    for report in reports {
        reported += 1;
        result = result.and(report);
    }
    if reported < threads.len() {
        result = result.and_then(|()| {
            let xstream = core.xstreams[reported].name.to_string();
            let source = io::Error::other("a thread ended before it was set up");
            Err(StartError::System { xstream, what: "set up its thread", source })
        });
    }
    if let Err(error) = result {
        core.set_phase(EXIT);
        for thread in threads {
            // Its panic, if any, has been printed by the panic hook.
            let _ = thread.join();
        }
        core.depot.close();
        return Err(error);
    }
    Ok(threads)
}

fn run_thread(
    core: &Arc<RuntimeCore>,
    index: usize,
    scheduler: Box<dyn Scheduler>,
    report: mpsc::Sender<Result<(), StartError>>,
) {
    let shared = &core.xstreams[index];
    if let Err(source) = pin(&shared.cpus) {
        let xstream = shared.name.to_string();
        let what = "bind it to its processors";
        // The other side waits for this report.
        let _ = report.send(Err(StartError::System { xstream, what, source }));
        return;
    }
    // Otherwise the kernel may end every timed sleep 50 us late.
    //
    // SAFETY: changes the timer slack of this thread; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    let _alt_stack = AltStack::ensure();
    let xstream = Xstream::new(core.clone(), index);
    let seat = Seat::take(&xstream);
    let _ = report.send(Ok(()));
    drop(report);
    xstream.main(scheduler);
    drop(seat);
    xstream.cache.borrow_mut().drain(&core.depot);
}

fn pin(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}
