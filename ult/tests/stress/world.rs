//! State that the units of one program share, and the record of each of them.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::ThreadId;

use ult::channel::{Receiver, Sender, bounded};
use ult::{Condvar, Eventual, JoinError, JoinHandle, PoolRef, Semaphore, UltLocal, Unparker};

pub(crate) const CANCELLED: u32 = 1;
pub(crate) const MAY_BE_LOST: u32 = 2;
pub(crate) const PANICS: u32 = 4;
pub(crate) const EXITS: u32 = 8;
pub(crate) const DONE: u32 = 16;
pub(crate) const STARTED: u32 = 32;
/// The closure panics when it is dropped unused.
pub(crate) const BOMB: u32 = 64;
pub(crate) const REFUSED: u32 = 128;

/// The payload of panics that are part of the program.
pub(crate) const EXPECTED: &str = "expected";

/// The records of all units, by their numbers, which are their names.
pub(crate) type Records = Arc<Mutex<Vec<Arc<Record>>>>;

/// Locks a mutex that no panic can leave half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// xorshift*; one for each unit.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| {
            random.next();
        });
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }
}

/// The record of one unit.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: u32,
    pub(crate) flags: AtomicU32,
    /// How often its closure has been dropped.
    pub(crate) drops: AtomicU32,
    /// How many values it returned, less those that have been dropped.
    pub(crate) values: AtomicI64,
    pub(crate) running: AtomicBool,
    pub(crate) thread: Mutex<Option<ThreadId>>,
}

impl Record {
    pub(crate) fn has(&self, flags: u32) -> bool {
        self.flags.load(SeqCst) & flags != 0
    }

    pub(crate) fn set(&self, flags: u32) {
        self.flags.fetch_or(flags, SeqCst);
    }
}

/// Stands in the closure of a unit.
pub(crate) struct ClosureGuard(pub(crate) Arc<Record>);

impl Drop for ClosureGuard {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, SeqCst);
        if self.0.has(BOMB) && !self.0.has(STARTED) && !std::thread::panicking() {
            std::panic::resume_unwind(Box::new(EXPECTED));
        }
    }
}

/// The return value of a unit. Some of them yield when they are dropped.
#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) record: Arc<Record>,
    pub(crate) yields: bool,
}

impl Value {
    pub(crate) fn new(record: &Arc<Record>, yields: bool) -> Self {
        record.values.fetch_add(1, SeqCst);
        Self { record: record.clone(), yields }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.record.values.fetch_sub(1, SeqCst);
        if self.yields {
            ult::yield_now();
        }
    }
}

pub(crate) type Handle = (Arc<Record>, JoinHandle<Value>);

/// A value of each unit for itself.
pub(crate) struct Local(pub(crate) AtomicU32);

pub(crate) static LOCALS_ALIVE: AtomicI64 = AtomicI64::new(0);
pub(crate) static LOCAL: UltLocal<Local> = UltLocal::new(|| {
    LOCALS_ALIVE.fetch_add(1, SeqCst);
    Local(AtomicU32::new(0))
});

impl Drop for Local {
    fn drop(&mut self) {
        LOCALS_ALIVE.fetch_sub(1, SeqCst);
    }
}

/// A lock, and a flag that says whether somebody is inside.
pub(crate) struct Locked {
    pub(crate) mutex: ult::Mutex<u64>,
    pub(crate) inside: AtomicBool,
    pub(crate) entries: AtomicU64,
}

/// Everything that the units share.
pub(crate) struct World {
    pub(crate) pools: Mutex<Vec<PoolRef>>,
    /// For each private pool its xstream.
    pub(crate) private: Vec<(String, String)>,
    pub(crate) records: Records,
    /// Units that may still be spawned.
    pub(crate) budget: AtomicI64,
    pub(crate) accepted: AtomicU64,
    pub(crate) locks: Vec<Locked>,
    pub(crate) eventuals: Vec<Eventual<u64>>,
    pub(crate) sender: Sender<u64>,
    pub(crate) receiver: Receiver<u64>,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// The program is over: nobody waits any more.
    pub(crate) over: (ult::Mutex<bool>, Condvar),
    pub(crate) permits: Semaphore,
    pub(crate) parked: Mutex<Vec<Unparker>>,
    pub(crate) handles: Mutex<Vec<Handle>>,
    pub(crate) problems: Mutex<Vec<String>>,
}

impl World {
    pub(crate) fn new(
        pools: Vec<PoolRef>,
        private: Vec<(String, String)>,
        records: Records,
        random: &mut Random,
    ) -> Self {
        let (sender, receiver) = bounded(1 + random.below(4));
        let locked = || Locked {
            mutex: ult::Mutex::new(0),
            inside: AtomicBool::new(false),
            entries: AtomicU64::new(0),
        };
        Self {
            pools: Mutex::new(pools),
            private,
            records,
            budget: AtomicI64::new(20 + random.below(120) as i64),
            accepted: AtomicU64::new(0),
            locks: (0..2).map(|_| locked()).collect(),
            eventuals: (0..6).map(|_| Eventual::new()).collect(),
            sender,
            receiver,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            over: (ult::Mutex::new(false), Condvar::new()),
            permits: Semaphore::new(2),
            parked: Mutex::default(),
            handles: Mutex::default(),
            problems: Mutex::default(),
        }
    }

    pub(crate) fn problem(&self, text: impl Into<String>) {
        let mut problems = lock(&self.problems);
        if problems.len() < 20 {
            problems.push(text.into());
        }
    }

    pub(crate) fn check(&self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.problem(text());
        }
    }

    pub(crate) fn record(&self) -> Arc<Record> {
        let mut records = lock(&self.records);
        let record = Arc::new(Record {
            id: u32::try_from(records.len()).unwrap(),
            flags: AtomicU32::new(0),
            drops: AtomicU32::new(0),
            values: AtomicI64::new(0),
            running: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        records.push(record.clone());
        record
    }

    /// A random pool into which the caller may spawn.
    pub(crate) fn pool(&self, random: &mut Random) -> PoolRef {
        let pools = lock(&self.pools);
        for _ in 0..20 {
            let pool = random.pick(&pools);
            match self.private.iter().find(|(name, _)| name == pool.name()) {
                Some((_, xstream)) => {
                    if here().is_some_and(|here| here == *xstream) {
                        return pool.clone();
                    }
                }
                None => return pool.clone(),
            }
        }
        pools[0].clone()
    }

    /// Takes a handle that somebody left.
    pub(crate) fn take_handle(&self, random: &mut Random) -> Option<Handle> {
        let mut handles = lock(&self.handles);
        if handles.is_empty() {
            return None;
        }
        let at = random.below(handles.len());
        Some(handles.swap_remove(at))
    }

    pub(crate) fn leave_handle(&self, handle: Handle) {
        lock(&self.handles).push(handle);
    }

    pub(crate) fn take_parked(&self, random: &mut Random) -> Option<Unparker> {
        let mut parked = lock(&self.parked);
        if parked.is_empty() {
            return None;
        }
        let at = random.below(parked.len());
        Some(parked.swap_remove(at))
    }

    /// Returns whether a unit ended in a way that somebody asked for.
    pub(crate) fn check_outcome(&self, record: &Record, outcome: Result<Value, JoinError>) {
        let id = record.id;
        let flags = record.flags.load(SeqCst);
        let is_fine = match &outcome {
            Ok(value) => value.record.id == id && flags & DONE != 0,
            Err(JoinError::Panicked(panic)) => flags & PANICS != 0 && panic.message() == EXPECTED,
            Err(JoinError::Exited) => flags & EXITS != 0,
            Err(JoinError::Cancelled) => flags & CANCELLED != 0 && flags & DONE == 0,
            Err(JoinError::Lost) => flags & MAY_BE_LOST != 0 && flags & STARTED == 0,
            Err(_) => false,
        };
        self.check(is_fine, || format!("unit {id}: {outcome:?} with flags {flags:b}"));
    }
}

/// Name of the xstream of the caller.
#[inline(never)]
pub(crate) fn here() -> Option<String> {
    ult::current().map(|info| info.xstream)
}

static PANICS_SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The program's own panics run no hook; whatever runs it is a failed assertion somewhere.
pub(crate) fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            lock(&PANICS_SEEN).push(info.to_string());
            before(info);
        }));
    });
}

pub(crate) fn take_panics() -> Vec<String> {
    std::mem::take(&mut lock(&PANICS_SEEN))
}
