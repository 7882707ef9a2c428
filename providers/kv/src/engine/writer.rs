//! The thread that writes: takes all requests that wait, has them committed together, and answers
//! each.
//!
//! A commit lasts as long as the disk takes, on a thread where no ULT is held up. Meanwhile the
//! next requests gather, so the slower the disk, the more go together. Those whose callers were
//! answered just now come a little later than the others, and would go with every second commit
//! only: the thread waits for as many as it has answered, an eighth of the time that that took.
//!
//! A request is taken once: by the thread, or by a caller that gives up, whoever is first.
//!
//! | state | who writes | who reads |
//! |---|---|---|
//! | the queue | callers add, the thread takes all | under its lock |
//! | [`Ticket::is_taken`] | the thread and the caller, by a swap | the two |
//! | [`Ticket::answer`] | set by the thread, or by a request that is dropped | the caller |

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use margo::ult::Eventual;

use super::committer::{Committer, Request};
use crate::model::{Batch, Change, Condition, KeyRange, Outcomes};
use crate::{KvError, StoreConfig};

/// The longest time for which requests wait for others.
const PATIENCE_MAX: Duration = Duration::from_millis(1);

type Answer = Result<Outcomes, KvError>;

/// A request and its caller.
#[derive(Debug, Default)]
struct Ticket {
    is_taken: AtomicBool,
    answer: Eventual<Mutex<Option<Answer>>>,
}

impl Ticket {
    /// Returns whether nobody has taken it before.
    fn take(&self) -> bool {
        // What a request is made of goes through the lock of the queue.
        !self.is_taken.swap(true, Ordering::Relaxed)
    }

    fn answer(&self, answer: Answer) {
        // Only the first answer counts.
        let _ = self.answer.set(Mutex::new(Some(answer)));
    }
}

/// A caller that waits. If its ULT is canceled, a request that was not taken is withdrawn.
struct Caller(Arc<Ticket>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// A request that waits. Dropped, it answers that the store failed.
struct Waiting {
    request: Request,
    deadline: Option<Instant>,
    ticket: Arc<Ticket>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.ticket.answer(Err(KvError::Failed("it is closed".into())));
    }
}

#[derive(Default)]
struct Requests {
    waiting: Vec<Waiting>,
    bytes: usize,
    /// How many have to wait for the thread to be woken.
    wanted: usize,
    is_closed: bool,
}

/// How many were answered at once, and the time that it took.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    answered: usize,
    lasted: Duration,
}

/// The queue.
struct Queue {
    requests: Mutex<Requests>,
    changed: Condvar,
    max_requests: usize,
    max_bytes: usize,
    ended: Eventual<()>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all that wait, once there are any or the time has come. `None`: it is closed.
    fn take(&self, until: Option<Instant>, last: Round) -> Option<Vec<Waiting>> {
        let mut requests = self.wait(self.lock(), 1, until);
        if requests.waiting.is_empty() && requests.is_closed {
            return None;
        }
        if !requests.waiting.is_empty() {
            let patience = (last.lasted / 8).min(PATIENCE_MAX);
            requests = self.wait(requests, last.answered, Some(Instant::now() + patience));
        }
        requests.bytes = 0;
        Some(std::mem::take(&mut requests.waiting))
    }

    /// Waits for so many requests, until the time has come or it is closed.
    fn wait<'q>(
        &'q self,
        mut requests: MutexGuard<'q, Requests>,
        wanted: usize,
        until: Option<Instant>,
    ) -> MutexGuard<'q, Requests> {
        requests.wanted = wanted;
        while requests.waiting.len() < wanted && !requests.is_closed {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            requests = match left {
                Some(left) if left.is_zero() => break,
                Some(left) => {
                    let woken = self.changed.wait_timeout(requests, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(requests).unwrap_or_else(PoisonError::into_inner),
            };
        }
        requests
    }

    /// Queues a request, if there is room.
    fn push(&self, waiting: Waiting) -> Result<(), KvError> {
        let bytes = bytes_of(&waiting.request.batch);
        let mut requests = self.lock();
        // One that is larger than the bound is taken when nothing else waits. Orders are few.
        let has_room = requests.waiting.is_empty()
            || waiting.request.order.is_some()
            || (requests.waiting.len() < self.max_requests
                && requests.bytes.saturating_add(bytes) <= self.max_bytes);
        if !has_room {
            return Err(KvError::Busy);
        }
        requests.bytes += bytes;
        requests.waiting.push(waiting);
        if requests.waiting.len() >= requests.wanted {
            self.changed.notify_one();
        }
        Ok(())
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }
}

/// Callers' side. Dropped, it waits until all that was asked for is done and the store is closed.
pub(super) struct Writer(Arc<Queue>);

impl Writer {
    pub(super) fn start(committer: Committer, config: &StoreConfig) -> Result<Self, KvError> {
        let queue = Arc::new(Queue {
            requests: Mutex::default(),
            changed: Condvar::new(),
            max_requests: config.max_queued_requests,
            max_bytes: config.max_queued_bytes,
            ended: Eventual::new(),
        });
        let queued = queue.clone();
        let thread = std::thread::Builder::new().name("margo-kv".into());
        let started = thread.spawn(move || run(&queued, committer));
        let failed = |error| KvError::Failed(format!("no thread to write with: {error}"));
        started.map(|_| Self(queue)).map_err(failed)
    }

    /// Requests and bytes that wait.
    pub(super) fn queued(&self) -> (usize, usize) {
        let requests = self.0.lock();
        (requests.waiting.len(), requests.bytes)
    }

    /// Queues a batch and waits for its end.
    ///
    /// # Errors
    ///
    /// [`KvError::Busy`] if too much waits, [`KvError::Deadline`] if the deadline passes before the
    /// batch is taken.
    pub(super) fn apply(&self, request: Request, deadline: Option<Instant>) -> Answer {
        let Self(queue) = self;
        let ticket = Arc::new(Ticket::default());
        let caller = Caller(ticket.clone());
        queue.push(Waiting { request, deadline, ticket })?;
        let answer = &caller.0.answer;
        let is_in_time = deadline.is_none_or(|deadline| answer.wait_ready_deadline(deadline));
        if !is_in_time && caller.0.take() {
            return Err(KvError::Deadline);
        }
        let answer = answer.wait().lock().unwrap_or_else(PoisonError::into_inner).take();
        answer.unwrap_or_else(|| unreachable!("the one caller takes it once"))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.close();
        self.0.ended.wait_ready_fully();
    }
}

/// The thread.
fn run(queue: &Queue, mut committer: Committer) {
    let mut last = Round::default();
    while let Some(waiting) = queue.take(committer.sync_due(), last) {
        let begun = Instant::now();
        // A panic that is not of the store, which contains its own, ends no caller's patience.
        let round = || serve(waiting, &mut committer);
        let answered = catch_unwind(AssertUnwindSafe(round)).unwrap_or_else(|_| {
            tracing::error!("a thread that writes for a key-value store panicked; it goes on");
            0
        });
        last = Round { answered, lasted: begun.elapsed() };
    }
    let _ = catch_unwind(AssertUnwindSafe(|| committer.close()));
    drop(committer);
    let _ = queue.ended.set(());
}

/// Returns how many it has made.
fn serve(waiting: Vec<Waiting>, committer: &mut Committer) -> usize {
    let now = Instant::now();
    let (mut requests, mut tickets) = (Vec::new(), Vec::new());
    for mut waiting in waiting {
        if !waiting.ticket.take() {
            continue;
        }
        if waiting.deadline.is_some_and(|deadline| deadline <= now) {
            waiting.ticket.answer(Err(KvError::Deadline));
            continue;
        }
        requests.push(std::mem::take(&mut waiting.request));
        tickets.push(waiting);
    }
    if !requests.is_empty() {
        for (waiting, answer) in tickets.iter().zip(committer.commit(requests)) {
            waiting.ticket.answer(answer);
        }
    }
    if committer.sync_due().is_some_and(|due| due <= Instant::now()) {
        // Whoever comes next hears of an error.
        let _ = committer.sync();
    }
    tickets.len()
}

/// Bytes of keys and values.
fn bytes_of(batch: &Batch) -> usize {
    let in_condition = |when: &Condition| match when {
        Condition::Value(value) => value.len(),
        _ => 0,
    };
    let in_change = |change: &Change| match change {
        Change::Put { key, value, when } | Change::Append { key, value, when } => {
            key.len() + value.len() + in_condition(when)
        }
        Change::Erase { key, when, .. } => key.len() + in_condition(when),
        Change::EraseRange(KeyRange { from, to }) => {
            let len = |bound: &std::ops::Bound<margo::encoding::Bytes>| match bound {
                std::ops::Bound::Included(key) | std::ops::Bound::Excluded(key) => key.len(),
                std::ops::Bound::Unbounded => 0,
            };
            len(from) + len(to)
        }
    };
    let conditions = batch.only_if.iter().map(|(key, when)| key.len() + in_condition(when));
    conditions.chain(batch.changes.iter().map(in_change)).sum()
}
