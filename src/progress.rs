//! The progress ULT: the one place that polls the network.
//!
//! Each instance has one, in the pool that the configuration calls `progress_pool`, or one for each
//! of its contexts (`contexts.rs`). Until shutdown it repeats:
//!
//! - **poll**: take completions from the network and act on them. A caller suspended in `forward`
//!   becomes runnable here, and an arrived request becomes a handler ULT here;
//! - **yield**, if anything else can run on this execution stream;
//! - **spin or sleep**, if nothing can. It spins for as long as `Patience` allows, because a
//!   wake-up by the kernel costs tens of microseconds; then it asks the execution stream to sleep
//!   on the network's descriptor ([`ult::idle`]), which any push to one of its pools also ends.
//!
//! Nothing here polls a clock while asleep, and there is no tick.
//!
//! # Who may touch what
//!
//! | state | owner | others |
//! |---|---|---|
//! | `Patience` | the progress ULT | nobody |
//! | `Core::poll` of its context | the progress ULT | nobody |
//! | `Progress::asleep` | the progress ULT writes it | `kick` reads it; pair: PROGRESS-ASLEEP |
//!
//! # Errors
//!
//! Trouble with a peer ends that peer's operations. An error of the endpoint itself closes the RPC
//! layer, which ends every operation with an error, and begins the shutdown; the process goes on.
//!
//! The policy follows Margo's progress loop, without its fixed tick and its abort on errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use crate::bulk::BulkCall;
use crate::call::Call;
use crate::handler;
use crate::hg::{Core, HgError, RequestHandle, Response, Sink};
use crate::instance::Inner;

/// Completions taken from the network in one go, before other ULTs get their turn.
const BUDGET: usize = 64;

/// What the RPC layer gives back when an operation ends.
#[derive(Debug)]
pub(crate) enum Token {
    /// A call of ours.
    Forward(Arc<Call>),
    /// A bulk transfer of ours.
    Bulk(Arc<BulkCall>),
    /// An answer of ours; nobody waits for it.
    Respond,
}

/// How others reach the progress ULT.
#[derive(Debug)]
pub(crate) struct Progress {
    unparker: ult::Unparker,
    /// Of its execution stream, on which it stays.
    rank: usize,
    asleep: AtomicBool,
    stop: AtomicBool,
}

impl Progress {
    pub(crate) fn new(unparker: ult::Unparker, rank: usize) -> Self {
        Self { unparker, rank, asleep: AtomicBool::new(false), stop: AtomicBool::new(false) }
    }

    /// Rank of the execution stream that it runs on.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Wakes the progress ULT if it sleeps, after something was queued for it.
    pub(crate) fn kick(&self) {
        // Either this load sees that it is asleep, or its check after going to sleep sees what the
        // caller queued: the fence orders "queue, then look" against its "store, then check".
        fence(Ordering::SeqCst); // pair: PROGRESS-ASLEEP
        if self.asleep.load(Ordering::Relaxed) {
            self.unparker.unpark();
        }
    }

    /// Asks the progress ULT to close the network and end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release); // pair: PROGRESS-STOP
        self.unparker.unpark();
    }
}

/// Runs on the progress ULT of a context until shutdown.
pub(crate) fn run(inner: &Arc<Inner>, core: &Arc<Core<Token>>, progress: &Progress) {
    let resolved = &inner.resolved;
    let mut patience = match resolved.mercury.na_no_block {
        true => Patience::endless(),
        false => Patience::new(resolved.progress_spindown),
    };
    let mut closing = false;
    loop {
        if !closing && progress.stop.load(Ordering::Acquire) {
            // pair: PROGRESS-STOP
            closing = true;
            core.close();
        }
        if poll(inner, core) > 0 {
            patience.useful();
            if ult::has_runnable() {
                ult::yield_now();
            }
            continue;
        }
        if closing && core.in_flight() == 0 {
            break;
        }
        if ult::has_runnable() {
            ult::yield_now();
        } else if patience.keep_spinning() {
            std::hint::spin_loop();
        } else {
            sleep(core, progress);
            patience.slept();
        }
    }
    inner.shutdown.progress_ended();
}

/// One round of the network; how much happened.
fn poll(inner: &Arc<Inner>, core: &Arc<Core<Token>>) -> usize {
    core.poll(BUDGET, &mut Dispatch { inner }).unwrap_or_else(|error| {
        tracing::error!(%error, "the network endpoint failed; shutting down");
        core.close();
        crate::shutdown::begin(inner);
        1
    })
}

fn sleep(core: &Core<Token>, progress: &Progress) {
    let Some(fd) = core.wait_fd() else {
        // A transport that can only be polled: give the others their turn and go on.
        ult::yield_now();
        return;
    };
    let arm = || {
        progress.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // pair: PROGRESS-ASLEEP
        !progress.stop_requested_late(core) && core.prepare_wait()
    };
    ult::idle(fd, None, arm);
    progress.asleep.store(false, Ordering::Relaxed);
}

impl Progress {
    /// A stop that came after the loop looked. The unpark that follows the flag is not lost either;
    /// this only spares the sleep.
    fn stop_requested_late(&self, core: &Core<Token>) -> bool {
        // pair: PROGRESS-STOP
        self.stop.load(Ordering::Acquire) && core.in_flight() == 0
    }
}

/// Passes what the RPC layer reports to those who wait for it.
struct Dispatch<'a> {
    inner: &'a Arc<Inner>,
}

impl Sink<Token> for Dispatch<'_> {
    fn request(&mut self, request: RequestHandle<Token>) {
        handler::dispatch(self.inner, request);
    }

    fn response(&mut self, token: Token, result: Result<Response, HgError>) {
        if let Token::Forward(call) = token {
            call.complete(result);
        }
    }

    fn responded(&mut self, _token: Token, result: Result<(), HgError>) {
        if let Err(error) = result {
            tracing::debug!(%error, "an answer was not delivered");
        }
    }

    fn bulk(&mut self, token: Token, result: Result<u64, HgError>) {
        if let Token::Bulk(call) = token {
            call.complete(result);
        }
    }
}

/// How long to spin before sleeping: longer when the last spin paid, shorter when it did not,
/// within hard bounds.
#[derive(Debug)]
struct Patience {
    window: Duration,
    window_max: Duration,
    /// Set at the first fruitless poll after something happened.
    spinning_since: Option<Instant>,
    polls: u32,
}

impl Patience {
    /// A spin shorter than this is not worth the clock read that bounds it.
    const WINDOW_MIN: Duration = Duration::from_micros(20);
    /// What a wake-up by the kernel costs, with room: spinning this long at first loses little.
    const WINDOW_START: Duration = Duration::from_micros(200);
    /// Polls between two looks at the clock.
    const POLLS_PER_LOOK: u32 = 32;

    fn new(window_max: Duration) -> Self {
        let window = Self::WINDOW_START.min(window_max);
        Self { window, window_max, spinning_since: None, polls: 0 }
    }

    /// Never sleeps: `na_no_block`.
    fn endless() -> Self {
        Self { window: Duration::MAX, ..Self::new(Duration::MAX) }
    }

    /// Something arrived. If we were spinning for it, the spin paid: be more patient.
    fn useful(&mut self) {
        if self.spinning_since.take().is_some() {
            self.window = self.window.saturating_mul(2).min(self.window_max);
        }
        self.polls = 0;
    }

    /// Whether to poll once more rather than to sleep.
    fn keep_spinning(&mut self) -> bool {
        if self.window_max.is_zero() {
            return false;
        }
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(Self::POLLS_PER_LOOK) {
            return true;
        }
        let now = Instant::now();
        let since = *self.spinning_since.get_or_insert(now);
        now - since < self.window
    }

    /// The spin ended in sleep: it did not pay.
    fn slept(&mut self) {
        self.window = (self.window / 2).max(Self::WINDOW_MIN.min(self.window_max));
        self.spinning_since = None;
        self.polls = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_grows_when_it_pays_and_shrinks_when_it_does_not() {
        let mut patience = Patience::new(Duration::from_millis(10));
        let start = patience.window;
        patience.slept();
        assert!(patience.window < start);
        for _ in 0..100 {
            patience.spinning_since = Some(Instant::now());
            patience.useful();
        }
        assert_eq!(patience.window, Duration::from_millis(10), "bounded above");
        for _ in 0..100 {
            patience.slept();
        }
        assert_eq!(patience.window, Patience::WINDOW_MIN, "bounded below");
    }

    #[test]
    fn zero_spindown_never_spins() {
        let mut patience = Patience::new(Duration::ZERO);
        assert!(!patience.keep_spinning());
        patience.slept();
        assert!(!patience.keep_spinning());
    }

    #[test]
    fn endless_patience_stays_endless() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60));
        let mut patience = Patience::endless();
        for _ in 0..3 {
            // As if nothing had arrived for longer than any window of the other kind.
            patience.spinning_since = long_ago;
            assert!((0..2 * Patience::POLLS_PER_LOOK).all(|_| patience.keep_spinning()));
            patience.useful();
        }
        patience = Patience::new(Duration::from_millis(10));
        patience.spinning_since = long_ago;
        assert!(!(0..2 * Patience::POLLS_PER_LOOK).all(|_| patience.keep_spinning()));
    }

    #[test]
    fn a_spin_ends() {
        let mut patience = Patience::new(Duration::from_micros(50));
        let started = Instant::now();
        while patience.keep_spinning() {
            assert!(started.elapsed() < Duration::from_secs(30), "spins for ever");
        }
    }
}
