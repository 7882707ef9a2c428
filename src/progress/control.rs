//! How a progress ULT is woken, stopped and moved, and what it counts.
//!
//! The table of who may touch what stands in `polling/driver.rs`.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hg::Core;
use ult::Eventual;

use crate::operation::token::Token;
use crate::progress::caller_polling::CallerPolling;
use crate::progress::progress_group::GroupMember;
use crate::progress::spin_window::SpinWindow;

/// After so many rounds it yields even if nothing else can run: the stall detector takes a unit
/// that does not switch for one that holds its execution stream.
const ROUNDS_PER_YIELD: u32 = 256;

/// How others reach the progress ULT.
#[derive(Debug)]
pub(crate) struct Progress {
    unparker: Mutex<ult::Unparker>,
    /// Index of its execution stream, on which it stays until it moves.
    xstream: AtomicUsize,
    /// Number of the ULT.
    ult: AtomicU64,
    pub(crate) asleep: AtomicBool,
    /// `STOP`, `MOVE`.
    pub(crate) orders: AtomicU8,
    destination: Mutex<Destination>,
    pub(crate) stand_in: CallerPolling,
    pub(crate) tally: Tally,
}

/// The counters of the progress ULT. It alone writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    rounds: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) sleeps: AtomicU64,
}

impl Tally {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    /// Rounds, to some hundred; events; sleeps.
    pub(crate) fn read(&self) -> [u64; 3] {
        [&self.rounds, &self.events, &self.sleeps].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// Close the network and end.
pub(crate) const STOP: u8 = 1;
/// Look at `destination`.
pub(crate) const MOVE: u8 = 2;

/// Where a progress ULT is to move.
#[derive(Debug)]
enum Destination {
    None,
    Pool(ult::PoolRef, Arc<Arrival>),
    /// The successor was made.
    Coming(Arc<Arrival>),
    /// The successor runs, and waits to hear whether the place is its own.
    Here(Arc<Eventual<bool>>),
    /// Nowhere: somebody waits until it has passed the top of its loop.
    Pass(Arc<Eventual<()>>),
    /// It has ended, or is about to.
    Ended,
}

/// Set when a progress ULT runs where it was to run, or will not.
pub(crate) type Arrival = Eventual<Result<(), MoveError>>;

/// Why a progress ULT stays where it is, or is not there.
#[derive(Debug, Clone)]
pub(crate) enum MoveError {
    /// It ends.
    Closing,
    /// The new one cannot be made.
    Spawn(ult::SpawnError),
    /// The new one was made and did not start, which is how a ULT ends that gets no stack.
    NoStack,
}

impl Progress {
    /// Makes the state for the calling ULT, which is the progress ULT.
    pub(crate) fn new(xstream: usize) -> Self {
        Self {
            unparker: Mutex::new(ult::unparker()),
            xstream: AtomicUsize::new(xstream),
            ult: AtomicU64::new(own_number()),
            asleep: AtomicBool::new(false),
            orders: AtomicU8::new(0),
            destination: Mutex::new(Destination::None),
            stand_in: CallerPolling::default(),
            tally: Tally::default(),
        }
    }

    /// The calling ULT takes the place of the one that has moved.
    pub(crate) fn arrive(&self, xstream: usize) {
        *lock(&self.unparker) = ult::unparker();
        self.xstream.store(xstream, Ordering::Relaxed);
        self.ult.store(own_number(), Ordering::Relaxed);
    }

    /// Index of the execution stream that it runs on.
    pub(crate) fn xstream(&self) -> usize {
        self.xstream.load(Ordering::Relaxed)
    }

    /// Returns whether it waits for the network without polling.
    #[cfg(test)]
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Returns whether the caller, a unit of the same runtime, is the progress ULT.
    pub(crate) fn is_caller(&self) -> bool {
        self.ult.load(Ordering::Relaxed) == own_number()
    }

    /// Wakes the progress ULT if it sleeps, after something was queued for it.
    pub(crate) fn kick(&self) {
        // Either this load sees that it is asleep, or its check after going to sleep sees what the
        // caller queued: the fence orders "queue, then look" against its "store, then check".
        fence(Ordering::SeqCst); // pair: PROGRESS-ASLEEP
        if self.asleep.load(Ordering::Relaxed) {
            self.unpark();
        }
    }

    fn unpark(&self) {
        let unparker = lock(&self.unparker).clone();
        unparker.unpark();
    }

    /// Asks the progress ULT to close the network and end.
    pub(crate) fn stop(&self) {
        self.orders.fetch_or(STOP, Ordering::Release); // pair: PROGRESS-ORDERS
        self.unpark();
    }

    /// Asks the progress ULT to move. `arrived` is set when it runs in `pool`, or stays.
    pub(crate) fn ask_to_move(&self, pool: ult::PoolRef, arrived: Arc<Arrival>) {
        if !self.order_move(Destination::Pool(pool, arrived.clone())) {
            let _ = arrived.set(Err(MoveError::Closing));
        }
    }

    /// Waits until the progress ULT has passed the top of its loop, or has ended: it does nothing
    /// any more that it had begun before. The caller keeps others from moving it.
    pub(crate) fn pass(&self) {
        let passed = Arc::new(Eventual::new());
        if self.order_move(Destination::Pass(passed.clone())) {
            passed.wait();
        }
    }

    /// On a successor: waits until the one before it has ended; `false`: that one ends with the
    /// network, and needs no successor.
    pub(crate) fn succeed(&self) -> bool {
        let go = Arc::new(Eventual::new());
        self.order_move(Destination::Here(go.clone())) && *go.wait()
    }

    /// `false`: the progress ULT has ended, or is about to.
    fn order_move(&self, to: Destination) -> bool {
        {
            let mut destination = lock(&self.destination);
            if matches!(*destination, Destination::Ended) {
                return false;
            }
            *destination = to;
        }
        self.orders.fetch_or(MOVE, Ordering::Release); // pair: PROGRESS-ORDERS
        self.unpark();
        true
    }

    /// On the progress ULT: makes the successor, if that is asked for; whether the caller is to
    /// end, because the successor is there.
    pub(crate) fn hand_over(
        &self,
        start: impl FnOnce(&ult::PoolRef, Arc<Arrival>) -> Result<(), ult::SpawnError>,
    ) -> bool {
        self.orders.fetch_and(!MOVE, Ordering::Relaxed);
        let mut destination = lock(&self.destination);
        match std::mem::replace(&mut *destination, Destination::None) {
            Destination::Pool(pool, arrived) => {
                *destination = Destination::Coming(arrived.clone());
                drop(destination);
                if let Err(error) = start(&pool, arrived.clone()) {
                    let _ = arrived.set(Err(MoveError::Spawn(error)));
                }
                false
            }
            Destination::Here(go) => {
                drop(destination);
                let _ = go.set(true);
                true
            }
            Destination::Pass(passed) => {
                drop(destination);
                let _ = passed.set(());
                false
            }
            other => {
                *destination = other;
                false
            }
        }
    }

    /// On the progress ULT: a poll has found so much.
    #[inline]
    pub(crate) fn found(&self, found: usize, patience: &mut SpinWindow, seat: &mut GroupMember) {
        Tally::add(&self.tally.events, found as u64);
        patience.useful();
        seat.useful();
    }

    /// On the progress ULT: counts a round, and yields now and then; whether it has.
    #[inline]
    pub(crate) fn begin_round(
        &self,
        rounds: &mut u32,
        patience: &mut SpinWindow,
        seat: &mut GroupMember,
    ) -> bool {
        *rounds = rounds.wrapping_add(1);
        let yields = rounds.is_multiple_of(ROUNDS_PER_YIELD);
        if yields {
            Tally::add(&self.tally.rounds, ROUNDS_PER_YIELD.into());
            self.yield_now(patience, seat);
        }
        yields
    }

    /// On the progress ULT: yields. Events that callers have found meanwhile count as found here.
    #[inline]
    pub(crate) fn yield_now(&self, patience: &mut SpinWindow, seat: &mut GroupMember) {
        let found = self.stand_in.while_yielding(self.xstream());
        if found > 0 {
            self.found(found, patience, seat);
        }
    }

    /// Returns whether the progress ULT is wanted: to end, or to move.
    #[inline]
    pub(crate) fn is_ordered(&self) -> bool {
        self.orders.load(Ordering::Relaxed) != 0
    }

    /// Returns whether it is to close the network and end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.orders.load(Ordering::Acquire) & STOP != 0 // pair: PROGRESS-ORDERS
    }

    /// On the progress ULT, at its end: it is not moved any more.
    pub(crate) fn end(&self) {
        let asked = std::mem::replace(&mut *lock(&self.destination), Destination::Ended);
        match asked {
            Destination::Pool(_, arrived) | Destination::Coming(arrived) => {
                let _ = arrived.set(Err(MoveError::Closing));
            }
            Destination::Here(go) => _ = go.set(false),
            Destination::Pass(passed) => _ = passed.set(()),
            Destination::None | Destination::Ended => {}
        }
    }

    /// An order that came after the loop looked. The unpark that follows it is not lost either;
    /// this only spares the sleep.
    pub(crate) fn is_ordered_late(&self, core: &Core<Token>) -> bool {
        let orders = self.orders.load(Ordering::Acquire); // pair: PROGRESS-ORDERS
        orders & MOVE != 0 || (orders & STOP != 0 && core.in_flight() == 0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn own_number() -> u64 {
    ult::current().map_or(u64::MAX, |ult| ult.id)
}
