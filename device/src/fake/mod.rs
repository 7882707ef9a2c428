//! A driver for tests, which needs no device.
//!
//! | what a real driver does | what this one does |
//! |---|---|
//! | memory of a device is not the host's | its address is a mapping that nobody may read or write (`PROT_NONE`); the bytes are in a memfd that is mapped a second time, for the copies |
//! | copies end later | a copy happens when an event is asked about, a random number of times |
//! | streams overtake each other | each question lets one stream of all, by chance, make a step |
//! | calls fail | [`Fake::fail`] lets any call fail, with any error |
//! | a device is busy | [`Fake::hold`] lets no copy go on until it is taken back |
//!
//! Misuse (freeing memory that a copy uses, a call without a context) is noted in [`Fake::faults`];
//! things that were not given back are counted in [`Fake::in_use`].

mod functions;
#[cfg(feature = "level-zero")]
mod level_zero;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::raw::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS,
    CUresult, CUstream, Functions, SYMBOLS,
};
use crate::{DeviceError, Driver, DriverKind};

/// Bytes of a page of a device.
const PAGE: usize = 2 << 20;

/// A driver without devices: see the module.
#[derive(Debug, Clone)]
pub struct Fake(Arc<Table>);

#[derive(Debug)]
struct Table(Mutex<State>);

#[derive(Debug)]
struct State {
    devices: usize,
    random: fastrand::Rng,
    held: bool,
    orders_writes: bool,
    /// Contexts that are retained, by device.
    contexts: Vec<usize>,
    /// The contexts that are current, by thread.
    current: HashMap<ThreadId, Vec<usize>>,
    /// Memory of devices by its address.
    memory: BTreeMap<u64, Mapped>,
    reserved: BTreeMap<u64, usize>,
    handles: HashMap<u64, Arc<Block>>,
    pinned: BTreeMap<usize, usize>,
    streams: HashMap<usize, VecDeque<Step>>,
    /// For each event the number of records of it that are not reached.
    events: HashMap<usize, usize>,
    numbers: usize,
    failures: Vec<(String, usize, CUresult)>,
    faults: Vec<String>,
    copies: Counts,
}

/// The copies that were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Between host and device, of pinned memory.
    pub pinned: usize,
    /// Between host and device, of other memory.
    pub pageable: usize,
    /// Within devices.
    pub within: usize,
}

/// The counts of things that were not given back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InUse {
    /// Contexts that are retained.
    pub contexts: usize,
    /// Contexts on the stacks of threads.
    pub current: usize,
    /// Pieces of memory of devices.
    pub memory: usize,
    /// Pieces of pinned memory of the host.
    pub pinned: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Handles of memory.
    pub handles: usize,
}

#[derive(Debug)]
struct Mapped {
    block: Arc<Block>,
    bytes: usize,
    device: usize,
}

/// Bytes in a memfd, mapped for the copies.
#[derive(Debug)]
struct Block {
    fd: OwnedFd,
    view: usize,
    bytes: usize,
    device: usize,
}

#[derive(Debug, Clone, Copy)]
struct Copy {
    from: Place,
    to: Place,
    bytes: usize,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Host(usize),
    Device(u64),
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Copy(Copy),
    Record(usize),
}

fn map(fd: Option<&OwnedFd>, bytes: usize, access: c_int) -> usize {
    let (flags, fd) = match fd {
        Some(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: the kernel chooses the address, so that no mapping is replaced.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED, "no memory for the fake driver");
    at.addr()
}

impl Block {
    fn of(fd: OwnedFd, bytes: usize, device: usize) -> Arc<Self> {
        let view = map(Some(&fd), bytes, libc::PROT_READ | libc::PROT_WRITE);
        Arc::new(Self { fd, view, bytes, device })
    }

    fn new(bytes: usize, device: usize) -> Arc<Self> {
        // SAFETY: a string with an end, and a flag that there is.
        let fd = unsafe { libc::memfd_create(c"device".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "no memfd for the fake driver");
        // SAFETY: made just now, and of nobody else.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(bytes as u64).expect("no memory for the fake driver");
        Self::of(file.into(), bytes, device)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length; copies look the view up in the state, under its
        // lock, and this is no longer there.
        unsafe { libc::munmap(self.view as *mut c_void, self.bytes) };
    }
}

impl Fake {
    /// A driver of so many devices. The same seed gives the same order of copies.
    pub fn new(devices: usize, seed: u64) -> Self {
        Self(Arc::new(Table(Mutex::new(State {
            devices,
            random: fastrand::Rng::with_seed(seed),
            held: false,
            orders_writes: true,
            contexts: vec![0; devices],
            current: HashMap::new(),
            memory: BTreeMap::new(),
            reserved: BTreeMap::new(),
            handles: HashMap::new(),
            pinned: BTreeMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            numbers: 1,
            failures: Vec::new(),
            faults: Vec::new(),
            copies: Counts::default(),
        }))))
    }

    /// The driver, as [`Driver::cuda`] gives a real one.
    ///
    /// # Errors
    ///
    /// Errors that [`fail`](Self::fail) asks for.
    pub fn driver(&self) -> Result<Driver, DeviceError> {
        self.driver_of(DriverKind::Cuda)
    }

    /// The driver, as one of that kind; Level Zero's needs the feature `level-zero`.
    ///
    /// # Errors
    ///
    /// As of [`driver`](Self::driver).
    pub fn driver_of(&self, kind: DriverKind) -> Result<Driver, DeviceError> {
        let table: Arc<dyn Functions> = match kind {
            #[cfg(feature = "level-zero")]
            DriverKind::LevelZero => {
                let ze = level_zero::FakeZe(self.0.clone());
                Arc::new(crate::level_zero::LevelZero::new(Arc::new(ze)))
            }
            _ => self.0.clone(),
        };
        Driver::of(kind, table, "the fake driver")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state()
    }

    /// Lets the `nth` next call (from 0) of the function fail.
    pub fn fail(&self, function: &str, nth: usize, code: CUresult) {
        assert!(SYMBOLS.iter().any(|(name, _)| *name == function), "no function {function}");
        self.state().failures.push((function.to_owned(), nth, code));
    }

    /// Lets no copy go on, or all again.
    pub fn hold(&self, held: bool) {
        self.state().held = held;
    }

    /// Lets kernels see what adapters write without a flush, or not.
    pub fn order_writes(&self, ordered: bool) {
        self.state().orders_writes = ordered;
    }

    /// Returns where the bytes of memory of a device are, for an adapter without hardware. It is
    /// there as long as the memory.
    pub fn view(&self, at: u64, bytes: usize) -> Option<usize> {
        self.state().view(at, bytes)
    }

    /// Returns what was done wrong so far.
    pub fn faults(&self) -> Vec<String> {
        self.state().faults.clone()
    }

    /// Returns what was not given back so far.
    pub fn in_use(&self) -> InUse {
        let state = self.state();
        InUse {
            contexts: state.contexts.iter().sum(),
            current: state.current.values().map(Vec::len).sum(),
            memory: state.memory.len() + state.reserved.len(),
            pinned: state.pinned.len(),
            streams: state.streams.len(),
            events: state.events.len(),
            handles: state.handles.len(),
        }
    }

    /// The copies that are not over.
    pub fn pending(&self) -> usize {
        let state = self.state();
        let copies = state.streams.values().flatten();
        copies.filter(|step| matches!(step, Step::Copy(_))).count()
    }

    /// The copies that were made.
    pub fn copies(&self) -> Counts {
        self.state().copies
    }
}

impl Table {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for a call of that function, unless it is to fail.
    fn call(&self, function: &str) -> Result<MutexGuard<'_, State>, CUresult> {
        let mut state = self.state();
        let meant = |(name, _, _): &(String, usize, CUresult)| name == function;
        let mut failing = None;
        for (at, failure) in state.failures.iter_mut().enumerate().filter(|(_, it)| meant(it)) {
            match failure.1 {
                0 => failing = Some(at),
                _ => failure.1 -= 1,
            }
        }
        match failing {
            Some(at) => Err(state.failures.remove(at).2),
            None => Ok(state),
        }
    }

    /// As [`call`](Self::call), for what needs a context; with the device of it.
    fn within(&self, function: &str) -> Result<(MutexGuard<'_, State>, usize), CUresult> {
        let mut state = self.call(function)?;
        let thread = std::thread::current().id();
        match state.current.get(&thread).and_then(|stack| stack.last()) {
            Some(device) => {
                let device = *device;
                Ok((state, device))
            }
            None => {
                state.faults.push(format!("{function} without a context"));
                Err(CUDA_ERROR_INVALID_CONTEXT)
            }
        }
    }
}

impl State {
    fn number(&mut self) -> usize {
        self.numbers += 1;
        self.numbers
    }

    fn mapped(&self, at: u64, bytes: usize) -> Option<(&Mapped, usize)> {
        let (start, mapped) = self.memory.range(..=at).next_back()?;
        let offset = usize::try_from(at - start).ok()?;
        (offset.checked_add(bytes)? <= mapped.bytes).then_some((mapped, offset))
    }

    /// The device that memory is of, or mapped for.
    fn device_of(&self, at: u64) -> Option<usize> {
        self.mapped(at, 0).map(|(mapped, _)| mapped.device)
    }

    fn view(&self, at: u64, bytes: usize) -> Option<usize> {
        self.mapped(at, bytes).map(|(mapped, offset)| mapped.block.view + offset)
    }

    fn is_pinned(&self, at: usize, bytes: usize) -> bool {
        let piece = self.pinned.range(..=at).next_back();
        piece.is_some_and(|(start, len)| at + bytes <= start + len)
    }

    fn queue(&mut self, stream: CUstream, copy: Copy) -> CUresult {
        let device = |place| match place {
            Place::Device(at) => self.view(at, copy.bytes).is_some(),
            Place::Host(_) => true,
        };
        if !device(copy.from) || !device(copy.to) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        let pinned = match (copy.from, copy.to) {
            (Place::Host(at), _) | (_, Place::Host(at)) => Some(self.is_pinned(at, copy.bytes)),
            _ => None,
        };
        match pinned {
            Some(true) => self.copies.pinned += 1,
            Some(false) => self.copies.pageable += 1,
            None => self.copies.within += 1,
        }
        match self.streams.get_mut(&stream.addr()) {
            Some(steps) => {
                steps.push_back(Step::Copy(copy));
                CUDA_SUCCESS
            }
            None => CUDA_ERROR_INVALID_HANDLE,
        }
    }

    /// Lets a stream make its next step.
    fn step(&mut self, stream: usize) {
        match self.streams.get_mut(&stream).and_then(VecDeque::pop_front) {
            Some(Step::Copy(Copy { from, to, bytes })) => {
                let at = |place| match place {
                    Place::Host(at) => Some(at),
                    Place::Device(at) => self.view(at, bytes),
                };
                match (at(from), at(to)) {
                    // SAFETY: within a view that is mapped, and memory of the host that stays until
                    // the copy is over, by the contract of the copies.
                    (Some(from), Some(to)) => unsafe {
                        std::ptr::copy(from as *const u8, to as *mut u8, bytes);
                    },
                    _ => self.faults.push("memory was freed before its copy was over".into()),
                }
            }
            Some(Step::Record(event)) => match self.events.get_mut(&event) {
                Some(waiting) => *waiting -= 1,
                None => self.faults.push("an event was destroyed that is waited for".into()),
            },
            None => {}
        }
    }

    /// Lets a stream that has something to do, by chance, make a step, by chance.
    fn go_on(&mut self) {
        if self.held || self.random.bool() {
            return;
        }
        let mut busy: Vec<_> =
            self.streams.iter().filter(|(_, steps)| !steps.is_empty()).map(|it| *it.0).collect();
        busy.sort_unstable();
        if !busy.is_empty() {
            let stream = busy[self.random.usize(..busy.len())];
            self.step(stream);
        }
    }

    fn is_used(&self, start: u64, bytes: usize) -> bool {
        let range = start..start + bytes as u64;
        let is_in = |place| matches!(place, Place::Device(at) if range.contains(&at));
        let mut steps = self.streams.values().flatten();
        steps.any(|step| matches!(step, Step::Copy(copy) if is_in(copy.from) || is_in(copy.to)))
    }

    fn uses_host(&self, start: usize, bytes: usize) -> bool {
        let range = start..start + bytes;
        let is_in = |place| matches!(place, Place::Host(at) if range.contains(&at));
        let mut steps = self.streams.values().flatten();
        steps.any(|step| matches!(step, Step::Copy(copy) if is_in(copy.from) || is_in(copy.to)))
    }
}
