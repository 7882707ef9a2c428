//! The senders of a stream, and its end.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | `Table::senders` | handlers that open, end or lose a session; the receiver | its lock |
//! | `Session::state` | handlers of that sender's batches, and whoever acknowledges them | its lock |
//! | `Table::outcome` | the first who sets it | anybody |
//!
//! The lock of the senders is taken before that of a session. No answer is sent under either: what
//! is to be answered is collected, and sent when they are given back.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use margo::bulk_memory::BulkBuffer;
use margo::{Handle, Instance};
use prim::lock::{Guard, Lock};
use ult::Eventual;
use ult::channel;

use crate::error::StreamError;
use crate::receiver::session::{Arrived, BatchRef, Order};
use crate::spec::{Acknowledge, OnLoss, Position, Positions, ReceiveSpec};
use crate::wire::{Head, Refusal, SessionId, Taken};

/// The request of a batch, whose answer is owed.
pub(super) type Owed = Handle<(), Taken>;

/// The content of a batch that has arrived.
pub(super) enum Payload {
    /// Items, encoded one behind the other.
    Items(Vec<u8>),
    /// Items that were fetched: so many bytes of the buffer.
    Fetched(BulkBuffer, usize),
    /// One item, and its data: so many bytes of the buffer.
    Data(Vec<u8>, BulkBuffer, usize),
}

/// A batch on its way to the program.
pub(crate) struct Delivered {
    pub(super) session: Arc<Session>,
    pub(super) arrived: Arrived<Owed, Payload>,
}

/// One stream, as its receiver knows it.
pub(crate) struct Table {
    pub(super) stream: &'static str,
    pub(super) spec: ReceiveSpec,
    pub(super) schema: u64,
    /// Bounded by the credit of the senders.
    pub(super) queue: channel::Sender<Delivered>,
    senders: Lock<Senders>,
    /// Connections that are held or are to be, by their numbers.
    connections: Lock<HashMap<u64, Arc<SenderConnection>>>,
    /// How the stream has ended: set before the queue is closed.
    outcome: OnceLock<Result<(), StreamError>>,
    /// Set when the stream has ended, for those who wait for a sender that comes back.
    over: Eventual<()>,
    pub(super) buffers: Buffers,
    /// Async tasks that wait for a batch.
    pub(super) tasks: Tasks,
    pub(super) counts: Counts,
}

#[derive(Default)]
struct Senders {
    by_name: BTreeMap<String, Arc<Session>>,
    /// Sessions with a connection, by the number of that.
    by_id: HashMap<u64, Arc<Session>>,
    /// Senders by endpoint.
    at: BTreeMap<usize, usize>,
    ended: usize,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) items: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) lost: AtomicU64,
}

/// The state of one sender at its receiver.
pub(crate) struct Session {
    pub(super) name: String,
    pub(super) endpoint: usize,
    pub(super) state: Lock<SessionState>,
}

pub(super) struct SessionState {
    pub(super) order: Order<Owed, Payload>,
    life: u64,
    status: Status,
    address: String,
    connection: Arc<SenderConnection>,
    /// Items that the program was given.
    pub(super) given: u64,
    /// Batches that the program has taken and not committed.
    uncommitted: BTreeMap<u64, (BatchRef, Owed)>,
    /// The answer to the end that the sender has said.
    end_owed: Vec<Owed>,
    /// Set when the program has committed the end.
    is_end_committed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Live,
    /// The connection is gone, and it may come back.
    Gone,
    /// All of its items have arrived. It may come back for answers that were lost.
    Ended,
    /// It is not waited for any more.
    GivenUp,
}

/// Connections that are known, beyond one for each sender: of those that come and are refused.
const CONNECTIONS_MAX: usize = 1024;

/// One connection of a sender.
pub(super) struct SenderConnection {
    pub(super) id: SessionId,
    /// Set when the sender holds it.
    pub(super) held: Eventual<()>,
    /// Set when the session is over, or has another connection.
    pub(super) over: Eventual<Taken>,
    end: Lock<ConnectionEnd>,
}

/// The session that hears of the end of a connection, or that it has come already.
enum ConnectionEnd {
    Unbound,
    Session(Arc<Session>),
    Over,
}

impl SenderConnection {
    fn new(id: SessionId) -> Self {
        let end = Lock::new(ConnectionEnd::Unbound);
        Self { id, held: Eventual::new(), over: Eventual::new(), end }
    }

    /// The connection is that of a session, which hears of its end. `false`: it has ended.
    pub(super) fn bind(&self, session: &Arc<Session>) -> bool {
        let mut end = self.end.lock();
        let is_over = matches!(*end, ConnectionEnd::Over);
        if !is_over {
            *end = ConnectionEnd::Session(session.clone());
        }
        !is_over
    }

    /// The connection has ended; returns the session that hears of it.
    pub(super) fn leave(&self) -> Option<Arc<Session>> {
        match std::mem::replace(&mut *self.end.lock(), ConnectionEnd::Over) {
            ConnectionEnd::Session(session) => Some(session),
            ConnectionEnd::Unbound | ConnectionEnd::Over => None,
        }
    }
}

/// The sender that opens a session.
pub(super) struct Opener {
    pub(super) name: String,
    pub(super) life: u64,
    pub(super) resumes: bool,
    pub(super) from: u64,
    pub(super) endpoint: usize,
    pub(super) address: String,
}

/// A session that was opened.
pub(super) struct OpenSession {
    pub(super) next: u64,
    pub(super) acknowledged: u64,
}

impl Table {
    pub(super) fn new(
        stream: &'static str,
        spec: ReceiveSpec,
        schema: u64,
        queue: channel::Sender<Delivered>,
    ) -> Self {
        let table = Self {
            stream,
            spec,
            schema,
            queue,
            senders: Lock::new(Senders::default()),
            connections: Lock::new(HashMap::new()),
            outcome: OnceLock::new(),
            over: Eventual::new(),
            buffers: Buffers(Lock::new(Vec::new())),
            tasks: Tasks::new(),
            counts: Counts::default(),
        };
        table.resume();
        table
    }

    /// Enters the senders that have ended by the checkpoint.
    fn resume(&self) {
        let mut senders = self.senders.lock();
        for (name, position) in self.spec.resume_at.iter().filter(|(_, at)| at.has_ended) {
            let connection = Arc::new(SenderConnection::new(SessionId(0)));
            let mut state = SessionState::new(position.item, self.spec.credit_bytes, connection);
            state.status = Status::Ended;
            state.is_end_committed = true;
            // Nothing has arrived that could be behind it.
            let _ = state.order.end_at(position.item);
            let (name, endpoint) = (name.clone(), 0);
            let session = Session { name: name.clone(), endpoint, state: Lock::new(state) };
            senders.by_name.insert(name, Arc::new(session));
            senders.ended += 1;
        }
        let is_over = senders.ended >= self.spec.senders;
        drop(senders);
        if is_over {
            self.end(Ok(()));
        }
    }

    /// How the stream has ended; `None`: it goes on.
    pub(super) fn outcome(&self) -> Option<&Result<(), StreamError>> {
        self.outcome.get()
    }

    pub(super) fn over(&self) -> &Eventual<()> {
        &self.over
    }

    /// Waits until the time for senders to come is over, and ends the stream if one is missing.
    pub(super) fn watch_for_senders(&self, limit: Duration) {
        let until = Instant::now().checked_add(limit);
        if ult::wait_any(&[&self.over], until).is_some() {
            return;
        }
        let (stream, declared) = (self.stream, self.spec.senders);
        let there = self.senders.lock().by_name.len();
        if there < declared {
            self.end(Err(StreamError::Missing { stream, there, declared, limit }));
        }
    }

    /// Bytes of all senders without an answer.
    pub(super) fn held(&self) -> u64 {
        let senders = self.senders.lock();
        senders.by_name.values().map(|session| session.state.lock().order.bytes()).sum()
    }

    pub(super) fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        self.senders.lock().by_id.get(&id.0).cloned()
    }

    /// The connection of that number, which is new unless its sender has held or opened it. `None`:
    /// there are too many.
    pub(super) fn connection(&self, id: SessionId) -> Option<Arc<SenderConnection>> {
        let mut connections = self.connections.lock();
        if let Some(connection) = connections.get(&id.0) {
            return Some(connection.clone());
        }
        if connections.len() >= CONNECTIONS_MAX.saturating_add(self.spec.senders) {
            return None;
        }
        let connection = Arc::new(SenderConnection::new(id));
        connections.insert(id.0, connection.clone());
        Some(connection)
    }

    /// The connection is gone, or was never opened.
    pub(super) fn forget(&self, connection: &SenderConnection) {
        self.connections.lock().remove(&connection.id.0);
    }

    /// A sender comes, or comes back.
    pub(super) fn open(
        &self,
        opener: Opener,
        connection: &Arc<SenderConnection>,
    ) -> Result<(OpenSession, Arc<Session>), Refusal> {
        self.check_open()?;
        let mut senders = self.senders.lock();
        let Some(session) = senders.by_name.get(&opener.name).cloned() else {
            return self.open_new(&mut senders, opener, connection);
        };
        let mut state = session.state.lock();
        let comes_back = state.life == opener.life;
        match state.status {
            Status::GivenUp => return Err(Refusal::Open("it was given up".to_owned())),
            Status::Live if !comes_back => return Err(Refusal::InUse),
            Status::Live | Status::Gone | Status::Ended => {}
        }
        let (next, has_ended) = (state.order.next(), state.status == Status::Ended);
        if !comes_back && !opener.resumes && next > 0 && !has_ended {
            return Err(Refusal::Open(format!(
                "a sender of this name has sent {next} items, and another process is to go on; it \
                 says so by SendSpec::resumes, and begins behind them"
            )));
        }
        check_from(opener.from, next)?;
        let mut old = state.order.reconnect();
        old.append(&mut state.end_owed);
        let replaced = std::mem::replace(&mut state.connection, connection.clone());
        (state.life, state.address) = (opener.life, opener.address);
        if !has_ended {
            state.status = Status::Live;
        }
        let acknowledged = state.order.acknowledged();
        drop(state);
        senders.by_id.remove(&replaced.id.0);
        senders.by_id.insert(connection.id.0, session.clone());
        drop(senders);
        let _ = replaced.over.set(Err(Refusal::NoSession));
        if has_ended {
            let _ = connection.over.set(Ok(()));
        }
        answer_all(old, &Err(Refusal::NoSession));
        Ok((OpenSession { next, acknowledged }, session))
    }

    fn open_new(
        &self,
        senders: &mut Senders,
        opener: Opener,
        connection: &Arc<SenderConnection>,
    ) -> Result<(OpenSession, Arc<Session>), Refusal> {
        let Opener { name, life, from, endpoint, address, .. } = opener;
        let (there, all) = (senders.by_name.len(), self.spec.senders);
        if there >= all {
            return Err(Refusal::Open(format!("it has its {all} senders already")));
        }
        if !self.spec.senders_at.is_empty() {
            let there = senders.at.get(&endpoint).copied().unwrap_or(0);
            let all = self.spec.senders_at.get(&endpoint).copied().unwrap_or(0);
            if there >= all {
                return Err(Refusal::Open(format!("this endpoint has its {all} senders already")));
            }
        }
        let next = self.spec.resume_at.get(&name).map_or(0, |position| position.item);
        check_from(from, next)?;
        let mut state = SessionState::new(next, self.spec.credit_bytes, connection.clone());
        (state.life, state.address) = (life, address);
        let session = Arc::new(Session { name: name.clone(), endpoint, state: Lock::new(state) });
        *senders.at.entry(endpoint).or_default() += 1;
        senders.by_name.insert(name, session.clone());
        senders.by_id.insert(connection.id.0, session.clone());
        Ok((OpenSession { next, acknowledged: next }, session))
    }

    /// Takes credit for a batch whose bytes are going to be fetched; returns the number of the
    /// connection.
    pub(super) fn reserve(
        &self,
        session: &Arc<Session>,
        head: &Head,
        bytes: u64,
    ) -> Result<u32, Refusal> {
        let mut state = session.state.lock();
        state.check(head.session)?;
        let reserved = state.order.reserve(bytes, head.count);
        let connection = state.order.connection();
        drop(state);
        reserved.map(|()| connection).map_err(|what| self.breach(session, what))
    }

    /// Checks that the stream goes on. Under the lock of a session: what that session is owed from
    /// then on is told of the end ([`end`](Self::end)).
    fn check_open(&self) -> Result<(), Refusal> {
        match self.outcome() {
            Some(outcome @ Err(_)) => Err(refusal(outcome)),
            _ => Ok(()),
        }
    }

    pub(super) fn unreserve(&self, session: &Session, connection: u32, bytes: u64) {
        session.state.lock().order.refuse(connection, bytes);
    }

    /// A batch is here, with the credit that was taken for it.
    pub(super) fn arrive(
        &self,
        session: &Arc<Session>,
        head: Head,
        (connection, bytes): (u32, u64),
        payload: Payload,
        owed: Owed,
    ) {
        let Some(end) = head.first.checked_add(u64::from(head.count)) else {
            let refusal = self.breach(session, "items are numbered beyond all numbers".to_owned());
            answer_all([owed], &Err(refusal));
            return;
        };
        let (mut due, mut refused) = (Vec::new(), Vec::new());
        let mut state = session.state.lock();
        if let Err(refusal) = self.check_open().and_then(|()| state.check(head.session)) {
            drop(state);
            answer_all([owed], &Err(refusal));
            return;
        }
        if head.is_last {
            self.end_arrives(session, state, (head, end), (connection, bytes), owed);
            return;
        }
        let first = head.first;
        let arrived = Arrived { first, skip: 0, end, bytes, connection, answer: owed, payload };
        let hand_out = |arrived: Arrived<Owed, Payload>| {
            let sent = self.queue.send(Delivered { session: session.clone(), arrived });
            self.tasks.wake();
            // It is closed: the stream is over.
            refused.extend(sent.map_err(|unsent| unsent.0.arrived.answer).err());
        };
        let done = state.order.arrive(arrived, hand_out, |answer| due.push(answer));
        let has_ended = state.order.has_ended();
        drop(state);
        answer_all(due, &Ok(()));
        if let Some(outcome) = self.outcome() {
            answer_all(refused, &Err(refusal(outcome)));
        }
        if let Err((owed, what)) = done {
            answer_all([owed], &Err(self.breach(session, what)));
        } else if has_ended {
            self.sender_ended(session, Status::Ended);
        }
    }

    /// A sender says that no items follow.
    fn end_arrives(
        &self,
        session: &Arc<Session>,
        mut state: Guard<'_, SessionState>,
        (head, end): (Head, u64),
        (connection, bytes): (u32, u64),
        owed: Owed,
    ) {
        state.order.refuse(connection, bytes);
        let said = match head.count {
            0 => state.order.end_at(end),
            _ => Err("an end has items".to_owned()),
        };
        if let Err(what) = said {
            drop(state);
            answer_all([owed], &Err(self.breach(session, what)));
            return;
        }
        state.end_owed.push(owed);
        let (due, has_ended) = (self.due_for_end(&mut state), state.order.has_ended());
        drop(state);
        answer_all(due, &Ok(()));
        if has_ended {
            self.sender_ended(session, Status::Ended);
        }
    }

    /// The answer to an end, if that is due: when all items are acknowledged, and, where the
    /// program commits, the end itself is. A sender that is answered need not come back.
    fn due_for_end(&self, state: &mut SessionState) -> Vec<Owed> {
        let all = state.order.end() == Some(state.order.acknowledged());
        let is_due = match self.spec.acknowledge {
            Acknowledge::OnTake => all,
            Acknowledge::OnCommit => all && state.is_end_committed,
        };
        if is_due { std::mem::take(&mut state.end_owed) } else { Vec::new() }
    }

    /// All items of a sender have arrived, or it is not waited for any more.
    fn sender_ended(&self, session: &Session, status: Status) {
        let mut senders = self.senders.lock();
        let mut state = session.state.lock();
        if matches!(state.status, Status::Ended | Status::GivenUp) {
            return;
        }
        state.status = status;
        let connection = state.connection.clone();
        drop(state);
        senders.ended += 1;
        let is_last = senders.ended == self.spec.senders;
        drop(senders);
        let _ = connection.over.set(Ok(()));
        if is_last {
            self.end(Ok(()));
        }
    }

    /// A sender has said what it must not: the stream does not go on with it.
    pub(super) fn breach(&self, session: &Session, what: String) -> Refusal {
        tracing::warn!(
            stream = self.stream,
            sender = session.name,
            what,
            "a sender of a stream is refused"
        );
        let refusal = Refusal::Breach(what.clone());
        if self.spec.on_loss == OnLoss::GoOn {
            self.give_up(session, &refusal);
        } else {
            let (stream, sender) = (self.stream, session.name.clone());
            self.end(Err(StreamError::Breach { stream, sender, what }));
        }
        refusal
    }

    /// The connection of a sender is gone. Returns the time for which it may come back.
    pub(super) fn connection_lost(
        &self,
        session: &Session,
        id: SessionId,
        why: &str,
    ) -> Option<Duration> {
        let mut state = session.state.lock();
        if state.connection.id != id || state.status != Status::Live {
            return None;
        }
        state.status = Status::Gone;
        let old = state.order.reconnect();
        drop(state);
        drop(old);
        self.counts.lost.fetch_add(1, Relaxed);
        tracing::warn!(
            stream = self.stream,
            sender = session.name,
            why,
            "a sender of a stream is gone"
        );
        match self.spec.on_loss {
            OnLoss::Wait(time) => Some(time),
            OnLoss::Fail => Some(Duration::ZERO),
            OnLoss::GoOn => {
                self.give_up(session, &Refusal::Open("it was given up".to_owned()));
                None
            }
        }
    }

    /// The time in which a sender could come back is over.
    pub(super) fn not_come_back(&self, session: &Session, id: SessionId, why: &str) {
        let state = session.state.lock();
        if state.connection.id != id || state.status != Status::Gone {
            return;
        }
        let (stream, sender, why) = (self.stream, session.name.clone(), why.to_owned());
        let (address, items) = (state.address.clone(), state.order.next());
        drop(state);
        self.end(Err(StreamError::Lost { stream, sender, address, items, why }));
    }

    /// Goes on without a sender.
    fn give_up(&self, session: &Session, refusal: &Refusal) {
        let mut state = session.state.lock();
        let old = state.order.reconnect();
        let connection = state.connection.clone();
        drop(state);
        answer_all(old, &Err(refusal.clone()));
        let _ = connection.over.set(Err(refusal.clone()));
        self.sender_ended(session, Status::GivenUp);
    }

    /// The stream ends so, unless it has ended.
    pub(super) fn end(&self, outcome: Result<(), StreamError>) {
        if self.outcome.set(outcome).is_err() {
            return;
        }
        self.queue.close();
        self.tasks.wake();
        let _ = self.over.set(());
        let Some(outcome @ Err(_)) = self.outcome() else { return };
        let answer = Err(refusal(outcome));
        let sessions: Vec<_> = self.senders.lock().by_name.values().cloned().collect();
        for session in sessions {
            let mut state = session.state.lock();
            let mut old = state.order.reconnect();
            old.append(&mut state.end_owed);
            let uncommitted = std::mem::take(&mut state.uncommitted).into_values();
            old.extend(uncommitted.map(|(_, owed)| owed));
            let connection = state.connection.clone();
            drop(state);
            answer_all(old, &answer);
            let _ = connection.over.set(answer.clone());
        }
    }

    /// The program has taken a batch.
    pub(super) fn taken(&self, session: &Session, batch: BatchRef, owed: Owed) {
        let mut due = Vec::new();
        let mut state = session.state.lock();
        match self.spec.acknowledge {
            Acknowledge::OnCommit => {
                let is_open = self.check_open();
                if is_open.is_ok() {
                    state.uncommitted.insert(batch.first, (batch, owed));
                } else {
                    drop(state);
                    answer_all([owed], &is_open);
                }
                return;
            }
            Acknowledge::OnTake => state.order.acknowledge(batch, |owed| due.push(owed)),
        }
        due.append(&mut self.due_for_end(&mut state));
        drop(state);
        due.push(owed);
        answer_all(due, &Ok(()));
    }

    /// The program has saved what it has made of the items of a sender up to there.
    pub(super) fn commit(&self, sender: &str, position: Position) {
        let Some(session) = self.senders.lock().by_name.get(sender).cloned() else { return };
        let mut due = Vec::new();
        let mut state = session.state.lock();
        while let Some(first) = state.uncommitted.first_entry()
            && first.get().0.end <= position.item
        {
            let (batch, owed) = first.remove();
            state.order.acknowledge(batch, |owed| due.push(owed));
            due.push(owed);
        }
        state.is_end_committed |= position.has_ended;
        due.append(&mut self.due_for_end(&mut state));
        drop(state);
        answer_all(due, &Ok(()));
    }

    /// The items that the program was given, by sender.
    pub(super) fn positions(&self) -> Positions {
        let senders = self.senders.lock();
        let position = |session: &Arc<Session>| {
            let state = session.state.lock();
            let item = state.given;
            Position { item, has_ended: state.order.end() == Some(item) }
        };
        // Those that have not come since the checkpoint are where they were.
        let mut positions = self.spec.resume_at.clone();
        let come = senders.by_name.iter().map(|(name, session)| (name.clone(), position(session)));
        positions.extend(come);
        positions
    }
}

impl SessionState {
    /// The state of a sender whose next item is that.
    fn new(next: u64, credit: u64, connection: Arc<SenderConnection>) -> Self {
        Self {
            order: Order::new(credit, next),
            life: 0,
            status: Status::Live,
            address: String::new(),
            connection,
            given: next,
            uncommitted: BTreeMap::new(),
            end_owed: Vec::new(),
            is_end_committed: false,
        }
    }

    /// Checks that batches by that connection are taken.
    fn check(&self, id: SessionId) -> Result<(), Refusal> {
        match self.status {
            Status::Live | Status::Ended if self.connection.id == id => Ok(()),
            _ => Err(Refusal::NoSession),
        }
    }
}

fn check_from(from: u64, next: u64) -> Result<(), Refusal> {
    if from <= next {
        return Ok(());
    }
    Err(Refusal::Open(format!(
        "items {next} to {from} are missing here, and were acknowledged to it before: the receiver \
         has begun anew, or goes on at an older checkpoint"
    )))
}

/// The refusal that tells senders of an end.
pub(super) fn refusal(outcome: &Result<(), StreamError>) -> Refusal {
    match outcome {
        Ok(()) => Refusal::Open("the stream has ended".to_owned()),
        Err(StreamError::Closed { .. }) => Refusal::Closed,
        Err(error) => Refusal::Failed(error.to_string()),
    }
}

/// One that cannot be answered any more has no origin that waits.
pub(super) fn answer_all(owed: impl IntoIterator<Item = Owed>, answer: &Taken) {
    for owed in owed {
        let _ = owed.respond(answer);
    }
}

/// Async tasks that wait for a batch, or for the end.
pub(super) struct Tasks {
    wakers: Lock<Vec<Waker>>,
    are_some: AtomicBool,
}

impl Tasks {
    fn new() -> Self {
        Self { wakers: Lock::new(Vec::new()), are_some: AtomicBool::new(false) }
    }

    /// The task is woken when the next batch is there. To be followed by another look.
    pub(super) fn wait(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        // pair: STREAM-TASKS. Either the look that follows sees the batch, or who has sent it sees
        // this.
        self.are_some.store(true, SeqCst);
        fence(SeqCst);
    }

    fn wake(&self) {
        // pair: STREAM-TASKS
        fence(SeqCst);
        if self.are_some.load(SeqCst) {
            let mut wakers = self.wakers.lock();
            let waiting = std::mem::take(&mut *wakers);
            self.are_some.store(false, SeqCst);
            drop(wakers);
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

/// Buffers for what is fetched, to be used again.
pub(super) struct Buffers(Lock<Vec<(usize, BulkBuffer)>>);

/// Buffers that are kept while they are not used.
const KEPT_MAX: usize = 64;

impl Buffers {
    /// A buffer of at least `len` bytes that `instance` may fetch into.
    pub(super) fn take(
        &self,
        at: usize,
        instance: &Instance,
        len: usize,
    ) -> Result<BulkBuffer, margo::BulkError> {
        let mut free = self.0.lock();
        let fits = |(of, buffer): &(usize, BulkBuffer)| {
            *of == at && buffer.len() >= len && buffer.len() / 4 <= len
        };
        if let Some(place) = free.iter().rposition(fits) {
            return Ok(free.swap_remove(place).1);
        }
        drop(free);
        instance.memory().bulk_buffer(len.next_power_of_two())
    }

    pub(super) fn give_back(&self, at: usize, buffer: BulkBuffer) {
        let mut free = self.0.lock();
        if free.len() < KEPT_MAX {
            free.push((at, buffer));
        }
    }
}
