//! The receiving end of a stream: [`Receiver`].

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Instant;

use margo::metrics::PublishedTable;
use margo::trace::TraceContext;
use margo::{FinalizeCallback, Instance, Provider};
use serde::de::DeserializeOwned;
use ult::channel::{self, RecvTimeoutError, TryRecvError};

use crate::base::definition::Stream;
use crate::base::figures::{self, FlowFigures};
use crate::base::schema::schema_of;
use crate::base::turn::let_others_run;
use crate::error::{ServeError, StreamError};
use crate::receiver::batch::Batch;
use crate::receiver::handlers;
use crate::receiver::table::{Delivered, Table, answer_all, refusal};
use crate::spec::{Acknowledge, Positions, ReceiveSpec};
use crate::wire::StreamRpcs;

/// The receiving end of a stream, at any number of endpoints.
///
/// Items come in batches, those of each sender in order. The stream ends when all senders that were
/// declared have ended; a sender that is lost before is an event for which there is a
/// [policy](crate::OnLoss). A receiver holds at most as many bytes of each sender as its
/// [credit](ReceiveSpec::credit_bytes): senders wait then.
///
/// ULTs, OS threads and async tasks may use it, which is a `Stream` of batches for these; a ULT
/// that waits suspends. Clones take batches in turn: then the items of a sender are in order within
/// a batch only.
///
/// Dropped before the end (all clones), it closes the stream: senders are told.
///
/// ```
/// use margo::Instance;
/// use margo_stream::{Receiver, ReceiveSpec, Route, SendSpec, Sender, Stream};
///
/// const WORDS: Stream<String> = Stream::new("words");
///
/// let (tcp, sm) =
///     (Instance::builder("na+tcp://127.0.0.1").start()?, Instance::builder("na+sm://").start()?);
/// let mut receiver = Receiver::serve(&[&tcp, &sm], WORDS, &ReceiveSpec::new().senders(2))?;
///
/// for (instance, word) in [(&tcp, "far"), (&sm, "near")] {
///     let here = instance.self_addr();
///     let mut sender = Sender::connect(
///         &[instance], WORDS, &[here.uri()], &SendSpec::new(), Route::RoundRobin,
///     )?;
///     sender.send(&word.to_owned())?;
///     sender.finish_without_waiting()?;
/// }
/// let mut words = Vec::new();
/// while let Some(word) = receiver.recv()? {
///     words.push(word);
/// }
/// words.sort();
/// assert_eq!(words, ["far", "near"]);
/// # drop(receiver);
/// # tcp.finalize_and_wait()?;
/// # sm.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Receiver<T> {
    batches: channel::Receiver<Delivered>,
    current: Option<Batch<T>>,
    /// The stream of futures has ended.
    is_over: bool,
    serving: Arc<Serving>,
}

/// The endpoints of a stream.
struct Serving {
    table: Arc<Table>,
    batches: channel::Receiver<Delivered>,
    addresses: Vec<String>,
    callbacks: Vec<FinalizeCallback>,
    providers: Vec<Provider>,
    figures: Vec<PublishedTable>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let stream = self.table.stream;
        let end = match std::thread::panicking() {
            false => StreamError::Closed { stream },
            true => StreamError::Failed { stream, why: "the program has panicked".to_owned() },
        };
        self.table.end(Err(end));
        self.providers.clear();
        for callback in self.callbacks.drain(..) {
            callback.remove();
        }
        let answer = self.table.outcome().map(|outcome| Err(refusal(outcome)));
        while let Ok(delivered) = self.batches.try_recv() {
            answer_all([delivered.arrived.answer], answer.as_ref().unwrap_or(&Ok(())));
        }
    }
}

impl<T: DeserializeOwned + 'static> Receiver<T> {
    /// Serves `stream` at these instances, which listen. The handlers that take batches run in
    /// their default handler pools.
    ///
    /// # Errors
    ///
    /// [`ServeError`]: there is no instance, one does not listen, serves a stream of that name
    /// already, or shuts down.
    pub fn serve(
        endpoints: &[&Instance],
        stream: Stream<T>,
        spec: &ReceiveSpec,
    ) -> Result<Self, ServeError> {
        let name = stream.name();
        check(endpoints, name, spec)?;
        let (queue, batches) = channel::unbounded();
        let table = Arc::new(Table::new(name, spec.clone(), schema_of::<T>(), queue));
        let mut serving = Serving {
            table,
            batches: batches.clone(),
            addresses: Vec::new(),
            callbacks: Vec::new(),
            providers: Vec::new(),
            figures: Vec::new(),
        };
        for (endpoint, instance) in endpoints.iter().enumerate() {
            let table = &serving.table;
            let provider = handlers::register(instance, StreamRpcs::of(name), table, endpoint)
                .map_err(|source| ServeError::Register { stream: name, endpoint, source })?;
            serving.providers.push(provider);
            let weak = Arc::downgrade(table);
            let closing = instance.on_prefinalize(move |_| {
                if let Some(table) = weak.upgrade() {
                    table.end(Err(StreamError::Closed { stream: table.stream }));
                }
            });
            let closing = closing.map_err(|_| ServeError::Closing { stream: name, endpoint })?;
            serving.callbacks.push(closing);
            let (table, queue) = (table.clone(), batches.clone());
            let look = move || figures_of(&table, &queue);
            serving.figures.extend(figures::publish_stream(instance, (name, "receives"), look));
            serving.addresses.push(instance.self_addr().uri().to_owned());
        }
        if let Some(limit) = spec.connect_within {
            let table = serving.table.clone();
            let watch = move || table.watch_for_senders(limit);
            let pool = endpoints[0].layout().rpc_pool();
            let spawned = pool.ult().name("margo_stream.senders").spawn_detached(watch);
            spawned.map_err(|_| ServeError::Closing { stream: name, endpoint: 0 })?;
        }
        Ok(Self { batches, current: None, is_over: false, serving: Arc::new(serving) })
    }

    /// The next item, waiting for it; `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// [`StreamError`], after all items that had arrived before; from then on the same.
    #[inline]
    pub fn recv(&mut self) -> Result<Option<T>, StreamError> {
        loop {
            if let Some(batch) = &mut self.current {
                if let Some(item) = batch.next() {
                    return Ok(Some(item));
                }
                self.current = None;
            }
            self.current = self.recv_batch()?;
            if self.current.is_none() {
                return Ok(None);
            }
        }
    }

    /// The next batch, waiting for it; `None` at the end of the stream. What is left of the batch
    /// from which [`recv`](Self::recv) takes its items comes first.
    ///
    /// # Errors
    ///
    /// As `recv`.
    pub fn recv_batch(&mut self) -> Result<Option<Batch<T>>, StreamError> {
        match self.current.take() {
            Some(batch) if !batch.is_empty() => Ok(Some(batch)),
            empty => {
                // Its credit goes back before this waits.
                drop(empty);
                let_others_run();
                match self.batches.recv() {
                    Ok(delivered) => self.batch(delivered),
                    Err(_) => self.end(),
                }
            }
        }
    }

    /// As [`recv_batch`](Self::recv_batch), waiting no longer than until `deadline`: then the error
    /// is `None`.
    ///
    /// # Errors
    ///
    /// As `recv_batch`, or `None`.
    pub fn recv_batch_deadline(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<Batch<T>>, Option<StreamError>> {
        match self.current.take() {
            Some(batch) if !batch.is_empty() => Ok(Some(batch)),
            empty => {
                drop(empty);
                match self.batches.recv_deadline(deadline) {
                    Ok(delivered) => self.batch(delivered).map_err(Some),
                    Err(RecvTimeoutError::TimedOut) => Err(None),
                    Err(_) => self.end().map_err(Some),
                }
            }
        }
    }

    /// The next batch if it is there: `None` if nothing has arrived that was not taken.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn try_recv_batch(&mut self) -> Option<Result<Option<Batch<T>>, StreamError>> {
        match self.current.take() {
            Some(batch) if !batch.is_empty() => Some(Ok(Some(batch))),
            empty => {
                drop(empty);
                match self.batches.try_recv() {
                    Ok(delivered) => Some(self.batch(delivered)),
                    Err(TryRecvError::Empty) => None,
                    Err(TryRecvError::Closed) => Some(self.end()),
                }
            }
        }
    }

    fn batch(&self, delivered: Delivered) -> Result<Option<Batch<T>>, StreamError> {
        let table = self.serving.table.clone();
        Ok(Some(Batch::new(table, delivered)))
    }

    fn end(&self) -> Result<Option<Batch<T>>, StreamError> {
        match self.serving.table.outcome() {
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(())) | None => Ok(None),
        }
    }
}

/// Batches, for async code on any executor. After an error it is over.
impl<T: DeserializeOwned + 'static> futures_core::Stream for Receiver<T> {
    type Item = Result<Batch<T>, StreamError>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let mut next = self.try_recv_batch();
        if next.is_none() {
            self.serving.table.tasks.wait(task.waker());
            next = self.try_recv_batch();
        }
        let Some(next) = next else { return Poll::Pending };
        self.is_over = !matches!(next, Ok(Some(_)));
        Poll::Ready(next.transpose())
    }
}

impl<T> Unpin for Receiver<T> {}

impl<T> Receiver<T> {
    /// The addresses of the endpoints, in their order.
    pub fn addresses(&self) -> &[String] {
        &self.serving.addresses
    }

    /// The trace that the item which [`recv`](Self::recv) has given last is part of; see
    /// [`Batch::trace`].
    pub fn trace(&self) -> Option<TraceContext> {
        self.current.as_ref().and_then(Batch::trace)
    }

    /// The position of each sender that has come, and of those of the checkpoint: how far the
    /// program has been given items, those of a batch when it gets the batch. To be saved together
    /// with what was made of them ([`Acknowledge::OnCommit`]).
    pub fn positions(&self) -> Positions {
        let mut positions = self.serving.table.positions();
        if let Some(batch) = &self.current
            && let Some(at) = positions.get_mut(batch.sender())
        {
            at.item -= batch.left();
            at.has_ended &= batch.is_empty();
        }
        positions
    }

    /// Says that what was made of the items below these [positions](Self::positions) is saved:
    /// their credit goes back, and their senders forget them. A batch of which `recv` has not given
    /// all items stays until a later commit. Without [`Acknowledge::OnCommit`] nothing waits for
    /// this.
    pub fn commit(&self, positions: &Positions) {
        if self.serving.table.spec.acknowledge == Acknowledge::OnCommit {
            for (sender, position) in positions {
                self.serving.table.commit(sender, *position);
            }
        }
    }

    /// Ends the stream with [`StreamError::Failed`], since the program cannot go on: senders are
    /// told why, and so are other clones.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.current = None;
        let (stream, why) = (self.serving.table.stream, why.into());
        self.serving.table.end(Err(StreamError::Failed { stream, why }));
    }

    /// Figures so far.
    pub fn stats(&self) -> ReceiverStats {
        let counts = &self.serving.table.counts;
        ReceiverStats {
            items: counts.items.load(Relaxed),
            batches: counts.batches.load(Relaxed),
            bytes: counts.bytes.load(Relaxed),
            lost: counts.lost.load(Relaxed),
            waiting: self.batches.len(),
            held: self.serving.table.held(),
        }
    }
}

/// Figures of a receiver, see [`Receiver::stats`].
///
/// ```
/// use margo::Instance;
/// use margo_stream::{Receiver, ReceiveSpec, Stream};
///
/// const NUMBERS: Stream<u64> = Stream::new("numbers");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let receiver = Receiver::serve(&[&service], NUMBERS, &ReceiveSpec::new())?;
/// assert_eq!(receiver.stats().items, 0);
/// # drop(receiver);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReceiverStats {
    /// Items that the program was given, in batches.
    pub items: u64,
    /// The batches.
    pub batches: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Connections of senders that were lost.
    pub lost: u64,
    /// Batches that have arrived and that nobody has taken.
    pub waiting: usize,
    /// Bytes of all senders that are not acknowledged: their credit that is in use.
    pub held: u64,
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        let (batches, serving) = (self.batches.clone(), self.serving.clone());
        Self { batches, current: None, is_over: false, serving }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("stream", &self.serving.table.stream)
            .field("addresses", &self.serving.addresses)
            .field("outcome", &self.serving.table.outcome())
            .finish_non_exhaustive()
    }
}

fn figures_of(table: &Table, batches: &channel::Receiver<Delivered>) -> FlowFigures {
    let credit = table.spec.credit_bytes.saturating_mul(table.spec.senders as u64);
    FlowFigures {
        items: table.counts.items.load(Relaxed),
        bytes: table.counts.bytes.load(Relaxed),
        waiting: batches.len(),
        held: table.held(),
        credit,
    }
}

fn check(
    endpoints: &[&Instance],
    stream: &'static str,
    spec: &ReceiveSpec,
) -> Result<(), ServeError> {
    let wrong = |what: String| Err(ServeError::Spec { stream, what });
    if endpoints.is_empty() {
        return wrong("it is served at no instance; give one, or several".to_owned());
    }
    if let Some(at) = endpoints.iter().position(|instance| !instance.network().is_listening()) {
        return wrong(format!(
            "endpoint {at} does not listen; start its instance with `listen(true)`, the default"
        ));
    }
    if let Some(at) = spec.senders_at.keys().find(|at| **at >= endpoints.len()) {
        let count = endpoints.len();
        return wrong(format!("senders at endpoint {at} were declared, and there are {count}"));
    }
    if spec.credit_bytes == 0 {
        return wrong("credit_bytes is 0, with which nothing can be sent".to_owned());
    }
    Ok(())
}
