//! A libfabric within the process, for tests. It stands in for devices that a machine does not
//! have, and does things that such devices may do and software providers do not. No system package
//! is needed.
//!
//! A [`Fake`] is a network of [`Device`]s. Endpoints that are opened through it reach each other.
//! It does what libfabric's man pages say, moves data within the call, and complains at the end of
//! the test about everything that the pages forbid: operations beyond the limits that were told,
//! memory that is not registered as the device wants it, a context that is used twice, objects that
//! are closed in the wrong order or not at all. It makes use of what the pages leave open: contexts
//! are written over, and fields of completions that are not valid hold rubbish.
//!
//! A test can make it refuse calls ([`Fake::refuse`]), end operations in errors ([`Fake::fail`]),
//! and keep completions back or shuffle them, and can ask which calls were made.
//!
//! # Files
//!
//! `device` (the devices that a search finds) · `library` (the library's functions) · `objects`
//! (opening and closing) · `traffic` (messages and transfers) · `reading` (completions).
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "structures of libfabric's are read and filled in as one thing"
)]

mod device;
mod library;
mod objects;
mod reading;
mod traffic;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Barrier;

use ofi_sys::{Library, Version};

use self::device::plain;
pub(super) use self::device::{Device, Fault};
pub(super) use self::library::symbol;
use self::traffic::{Done, Held, Posted};
use crate::endpoint::{OfiEndpoint, Setup};
use na_core::base::random::Random;
use na_core::{Error, OpenOptions, Uri};
use prim::sync::{Arc, Mutex, MutexGuard, lock};

/// Calls that can be refused, or whose operations can end in an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    GetInfo,
    Domain,
    AvInsert,
    CqOpen,
    GetWait,
    SetOpt,
    Enable,
    Register,
    Bind,
    EnableMemory,
    Cancel,
    CloseMemory,
    CloseEndpoint,
    /// `fi_sendmsg`.
    Send,
    /// `fi_injectdata`.
    Inject,
    /// `fi_tsend`, `fi_tsendmsg`.
    TaggedSend,
    /// `fi_tinject`.
    TaggedInject,
    /// `fi_recv`, `fi_recvmsg`.
    Recv,
    /// `fi_trecv`.
    TaggedRecv,
    Read,
    Write,
    CqRead,
}

/// A search for devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Search {
    pub(super) provider: Option<String>,
    pub(super) node: Option<String>,
    pub(super) service: Option<String>,
    pub(super) source: Option<Vec<u8>>,
    pub(super) mr_mode: u32,
    pub(super) mode: u64,
    /// Memory of GPUs is to be moved.
    pub(super) hmem: bool,
    /// The version of the interface that was asked for.
    pub(super) version: u32,
    /// `FI_SOURCE` or `FI_SOURCE_ERR` was asked for.
    pub(super) source_told: bool,
}

/// The options that a domain, or an endpoint, is opened with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Opening {
    /// Traffic class of the domain, and of what the endpoint sends.
    pub(super) class: u32,
    pub(super) sends_class: u32,
    /// Authorisation of the domain.
    pub(super) auth_key: Vec<u8>,
}

/// A registration that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) base: u64,
    pub(super) len: usize,
    pub(super) access: u64,
    pub(super) wanted_key: u64,
    /// The one that it has.
    pub(super) key: u64,
    /// The kind of memory (`FI_HMEM_…`), and the number of the device.
    pub(super) place: (u32, i32),
}

/// A transfer that was asked for, by the side that asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemoteAccess {
    pub(super) put: bool,
    pub(super) addr: u64,
    pub(super) key: u64,
    pub(super) len: usize,
}

/// Memory of the program. Only looked at in calls, as libfabric does for which it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place(*mut u8);

// SAFETY: an address; whoever goes there has reasons of their own.
unsafe impl Send for Place {}

/// A completion queue.
#[derive(Debug, Default)]
struct Queue {
    done: Vec<Done>,
    /// Most entries.
    entries: usize,
    /// Readable when something was put in.
    bell: Option<OwnedFd>,
}

/// An endpoint.
#[derive(Debug)]
struct Endpoint {
    name: Vec<u8>,
    device: Arc<Device>,
    domain: u64,
    av: Option<u64>,
    cq: Option<u64>,
    enabled: bool,
    caps: u64,
    /// The requirements on memory that were agreed on.
    mr_mode: u32,
    /// Bytes that must be left in a buffer for many messages.
    multi_min: usize,
    posted: Vec<Posted>,
    held: Vec<Held>,
}

/// Registered memory.
#[derive(Debug)]
struct Registered {
    domain: u64,
    endpoint: Option<u64>,
    enabled: bool,
    base: Place,
    len: usize,
    access: u64,
    key: u64,
    /// Memory of a GPU.
    of_device: bool,
}

/// Where the bytes of a GPU's memory are, which nobody reaches by its address: for an address and a
/// length the address of a view, or nothing for other memory.
type View = Box<dyn Fn(u64, usize) -> Option<usize> + Send>;

/// The views of all GPUs.
#[derive(Default)]
struct Views(Vec<View>);

impl std::fmt::Debug for Views {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Views({})", self.0.len())
    }
}

impl Views {
    /// The view of memory of a GPU.
    fn of(&self, at: *mut u8, len: usize) -> Option<*mut u8> {
        let found = self.0.iter().find_map(|view| view(at.addr() as u64, len))?;
        Some(std::ptr::with_exposed_provenance_mut(found))
    }
}

/// Everything in it.
#[derive(Debug)]
pub(super) struct State {
    devices: Vec<Arc<Device>>,
    /// The interface version that a fabric was opened for.
    api: u32,
    random: Random,
    /// Completions come in any order that the pages allow.
    pub(super) shuffles: bool,
    /// One in so many operations is not taken now; 0: none.
    pub(super) again_one_in: usize,
    /// Completions are kept back, but for so many.
    holds: bool,
    lets: usize,
    /// So many messages and transfers are taken, of all endpoints; `None`: all.
    room: Option<usize>,
    /// Objects may stay open at the end.
    pub(super) leaves_open: bool,
    refusals: HashMap<Call, Answer>,
    failures: HashMap<Call, Answer>,
    pauses: HashMap<Call, Arc<Barrier>>,
    counts: HashMap<Call, usize>,
    pub(super) searches: Vec<Search>,
    /// Sizes of completion queues that were asked for.
    pub(super) cq_sizes: Vec<usize>,
    pub(super) domains: Vec<Opening>,
    pub(super) opened: Vec<Opening>,
    pub(super) registrations: Vec<Registration>,
    pub(super) accesses: Vec<RemoteAccess>,
    complaints: Vec<String>,
    views: Views,
    next: u64,
    avs: HashMap<u64, Vec<Option<Vec<u8>>>>,
    queues: HashMap<u64, Queue>,
    endpoints: HashMap<u64, Endpoint>,
    memories: HashMap<u64, Registered>,
    /// Their numbers, by domain and key: several where registrations are cached.
    keys: HashMap<(u64, u64), Vec<u64>>,
    /// Domains and ranges of all registrations that there have been, where they are cached, with
    /// their keys.
    cached: Vec<(u64, std::ops::Range<usize>, u64)>,
    /// Connections of an endpoint, by the peer's name, that have ended, with how often it must be
    /// asked for completions until there are others.
    broken: HashMap<(u64, Vec<u8>), usize>,
    /// Contexts that are the library's, with the endpoint.
    contexts: HashMap<usize, u64>,
    /// Endpoint and memory of descriptors, by the contexts of operations whose end was not read.
    named: HashMap<usize, (u64, u64)>,
    /// Objects that are open, with those that they were opened of.
    open: HashMap<u64, u64>,
}

impl State {
    fn complain(&mut self, about: impl Into<String>) {
        self.complaints.push(about.into());
    }

    fn new_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Counts a call; the number of the error with which it is refused, if it is.
    fn refused(&mut self, call: Call) -> Option<c_int> {
        *self.counts.entry(call).or_default() += 1;
        take_one(&mut self.refusals, call).map(|(errno, _)| errno)
    }

    /// The error in which an operation that was taken ends, if it does.
    fn fails(&mut self, call: Call) -> Option<Fault> {
        take_one(&mut self.failures, call)
    }

    fn is_not_now(&mut self) -> bool {
        self.again_one_in > 0 && self.random.below(self.again_one_in) == 0
    }

    /// Takes a place of those that there are for what is sent.
    fn takes_room(&mut self) -> bool {
        match &mut self.room {
            Some(0) => return false,
            Some(room) => *room -= 1,
            None => {}
        }
        true
    }

    /// The endpoint of that name.
    fn named(&self, name: &[u8]) -> Option<u64> {
        let found = self.endpoints.iter().find(|(_, own)| own.enabled && own.name == name);
        found.map(|(number, _)| *number)
    }
}

/// An error for so many calls, when so many others were made.
#[derive(Debug)]
struct Answer {
    fault: Fault,
    times: usize,
    after: usize,
}

fn take_one(of: &mut HashMap<Call, Answer>, call: Call) -> Option<Fault> {
    let Answer { fault, times, after } = of.get_mut(&call)?;
    if *after > 0 {
        *after -= 1;
        return None;
    }
    let fault = *fault;
    *times = times.saturating_sub(1);
    if *times == 0 {
        of.remove(&call);
    }
    Some(fault)
}

/// The state that all objects of a network share.
#[derive(Debug)]
struct Shared {
    version: Version,
    state: Mutex<State>,
}

impl Shared {
    /// If a test wants that of the call: meets it, and waits until it lets the call go on.
    fn pause(&self, call: Call) {
        let pause = lock(&self.state).pauses.remove(&call);
        if let Some(pause) = pause {
            pause.wait();
            pause.wait();
        }
    }
}

thread_local! {
    /// The network whose library functions this thread calls: the functions get no object that
    /// would tell.
    static CURRENT: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// The library, while this thread is [with](Fake::with) a network.
pub(super) fn of_this_thread() -> Option<&'static Library> {
    CURRENT.with_borrow(|current| current.as_ref().map(|_shared| library::library()))
}

/// A network.
#[derive(Debug)]
pub(super) struct Fake {
    shared: Arc<Shared>,
    functions: &'static Library,
}

impl Fake {
    /// A network of one kind of device, of libfabric 1.22.
    pub(super) fn new(device: Device) -> Self {
        Self::of_version(1, 22, [device])
    }

    /// A network of several kinds, of that version of libfabric.
    pub(super) fn of_version(
        major: u16,
        minor: u16,
        devices: impl IntoIterator<Item = Device>,
    ) -> Self {
        let version = Version { major, minor };
        let state = State {
            devices: devices.into_iter().map(Arc::new).collect(),
            api: 0,
            random: Random::new(7),
            shuffles: false,
            again_one_in: 0,
            holds: false,
            lets: 0,
            room: None,
            leaves_open: false,
            refusals: HashMap::new(),
            failures: HashMap::new(),
            pauses: HashMap::new(),
            counts: HashMap::new(),
            searches: Vec::new(),
            cq_sizes: Vec::new(),
            domains: Vec::new(),
            opened: Vec::new(),
            registrations: Vec::new(),
            accesses: Vec::new(),
            complaints: Vec::new(),
            views: Views::default(),
            next: 0,
            avs: HashMap::new(),
            queues: HashMap::new(),
            endpoints: HashMap::new(),
            memories: HashMap::new(),
            keys: HashMap::new(),
            cached: Vec::new(),
            broken: HashMap::new(),
            contexts: HashMap::new(),
            named: HashMap::new(),
            open: HashMap::new(),
        };
        let shared = Arc::new(Shared { version, state: Mutex::new(state) });
        Self { shared, functions: library::library() }
    }

    /// Runs `call` while the library is this one.
    pub(super) fn with<T>(&self, call: impl FnOnce(&'static Library) -> T) -> T {
        let before = CURRENT.replace(Some(self.shared.clone()));
        let result = call(self.functions);
        CURRENT.set(before);
        result
    }

    /// Opens an endpoint.
    pub(super) fn open_as(
        &self,
        uri: &str,
        options: &OpenOptions,
        setup: Setup,
    ) -> Result<OfiEndpoint, Error> {
        let uri = Uri::parse(uri)?;
        self.with(|library| OfiEndpoint::open_through(&uri, options, setup, || Ok(library)))
    }

    /// Opens an endpoint as it is opened outside of tests.
    pub(super) fn open_with(&self, uri: &str, options: &OpenOptions) -> Result<OfiEndpoint, Error> {
        self.open_as(uri, options, Setup::default())
    }

    /// Opens an endpoint with default options.
    pub(super) fn open(&self, uri: &str) -> Result<OfiEndpoint, Error> {
        self.open_with(uri, &OpenOptions::default())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.state)
    }

    /// The next `times` calls of that kind are refused.
    pub(super) fn refuse(&self, call: Call, errno: u32, times: usize) {
        let answer = Answer { fault: plain(errno as c_int), times, after: 0 };
        self.state().refusals.insert(call, answer);
    }

    /// One call of that kind is refused, when so many were not.
    pub(super) fn refuse_after(&self, after: usize, call: Call, errno: u32) {
        let answer = Answer { fault: plain(errno as c_int), times: 1, after };
        self.state().refusals.insert(call, answer);
    }

    /// The next call of that kind, `Register` or `CloseMemory`, meets the caller at the barrier
    /// when it begins, and goes on when they meet there again.
    pub(super) fn pause(&self, call: Call) -> Arc<Barrier> {
        let pause = Arc::new(Barrier::new(2));
        self.state().pauses.insert(call, pause.clone());
        pause
    }

    /// None is any more.
    pub(super) fn relent(&self) {
        self.state().refusals.clear();
    }

    /// The next `times` operations of that kind are taken, and end in an error.
    pub(super) fn fail(&self, call: Call, errno: u32, times: usize) {
        self.fail_as(call, plain(errno as c_int), times);
    }

    /// The next `times` operations of that kind are taken, and end in an error with the device's
    /// own number in `fault`.
    pub(super) fn fail_as(&self, call: Call, fault: Fault, times: usize) {
        self.state().failures.insert(call, Answer { fault, times, after: 0 });
    }

    /// How often that was called.
    pub(super) fn count(&self, call: Call) -> usize {
        self.state().counts.get(&call).copied().unwrap_or_default()
    }

    /// Keeps completions back, or lets them go.
    pub(super) fn hold(&self, holds: bool) {
        let mut state = self.state();
        state.holds = holds;
        for queue in state.queues.values().filter(|queue| !queue.done.is_empty()) {
            queue.ring();
        }
    }

    /// Lets the next `count` go, of those that are kept back.
    pub(super) fn release(&self, count: usize) {
        self.state().lets = count;
    }

    /// So many messages and transfers are taken from now on, whomever they are for; `None`: all.
    pub(super) fn take(&self, room: Option<usize>) {
        self.state().room = room;
    }

    /// Lets those of the newest operations go first.
    pub(super) fn release_backwards(&self) {
        self.state().queues.values_mut().for_each(|queue| queue.done.reverse());
        self.hold(false);
    }

    /// Adds memory of a GPU, which is where `view` says.
    pub(super) fn add_gpu(&self, view: impl Fn(u64, usize) -> Option<usize> + Send + 'static) {
        self.state().views.0.push(Box::new(view));
    }

    /// Reports an error of no operation to all endpoints.
    pub(super) fn report(&self, errno: u32) {
        let mut state = self.state();
        let all: Vec<u64> = state.endpoints.keys().copied().collect();
        all.into_iter().for_each(|number| state.report(number, plain(errno as c_int)));
    }

    /// A message of somebody arrives at the endpoint of that name, without data.
    pub(super) fn deliver(&self, to: &[u8], from: &[u8], bytes: &[u8]) {
        let mut state = self.state();
        let target = state.named(to).expect("an endpoint of that name");
        state.deliver(target, from.to_vec(), bytes.to_vec());
    }

    /// Returns the requirements on memory that were agreed on for each endpoint.
    pub(super) fn mr_modes(&self) -> Vec<u32> {
        self.state().endpoints.values().map(|own| own.mr_mode).collect()
    }

    /// How many addresses of peers are known, in all address vectors.
    pub(super) fn count_addresses(&self) -> usize {
        self.state().avs.values().flatten().flatten().count()
    }

    /// How many objects are open.
    pub(super) fn count_open(&self) -> usize {
        self.state().open.len()
    }

    /// Takes the complaints.
    pub(super) fn complaints(&self) -> Vec<String> {
        std::mem::take(&mut self.state().complaints)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let complaints = self.complaints();
        let state = self.state();
        let (open, leaves_open) = (state.open.len(), state.leaves_open);
        drop(state);
        if !std::thread::panicking() {
            assert!(complaints.is_empty(), "against the man pages: {complaints:#?}");
            assert!(leaves_open || open == 0, "{open} objects were not closed");
        }
    }
}
