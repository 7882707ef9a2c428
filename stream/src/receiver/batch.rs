//! Batches as the program sees them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hg::proc;
use margo::trace::TraceContext;
use serde::de::DeserializeOwned;

use crate::error::StreamError;
use crate::receiver::session::BatchRef;
use crate::receiver::table::{Delivered, Owed, Payload, Session, Table, answer_all};
use crate::wire::Refusal;

/// Items of one sender, in order, as they came: an iterator.
///
/// With the batch its credit goes back to the sender, when it is dropped, also if items are left.
/// An item that cannot be decoded ends the batch, and the stream: the next call of the receiver
/// says so.
///
/// ```
/// use margo::Instance;
/// use margo_stream::{Receiver, ReceiveSpec, Route, SendSpec, Sender, Stream};
///
/// const NUMBERS: Stream<u64> = Stream::new("numbers");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let mut receiver = Receiver::serve(&[&service], NUMBERS, &ReceiveSpec::new())?;
/// let here = service.self_addr();
/// let spec = SendSpec::new().name("one");
/// let mut sender =
///     Sender::connect(&[&service], NUMBERS, &[here.uri()], &spec, Route::RoundRobin)?;
/// sender.send_all([1, 2, 3])?;
/// sender.flush()?;
/// let mut batch = receiver.recv_batch()?.expect("the stream goes on");
/// assert_eq!((batch.sender(), batch.endpoint(), batch.first()), ("one", 0, 0));
/// assert_eq!(batch.next(), Some(1));
/// drop(batch); // its credit goes back
/// let rest: u64 = receiver.recv_batch()?.into_iter().flatten().sum();
/// assert_eq!(rest, 2 + 3);
/// sender.finish()?;
/// assert!(receiver.recv_batch()?.is_none());
/// # drop(receiver);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch<T> {
    received: Received,
    /// Where the next item begins.
    at: usize,
    /// Items that are left.
    left: u64,
    items: PhantomData<fn() -> T>,
}

/// A batch that was received, and the duty to acknowledge it.
struct Received {
    table: Arc<Table>,
    session: Arc<Session>,
    batch: BatchRef,
    owed: Option<Owed>,
    payload: Payload,
}

impl Received {
    /// The encoded items.
    #[inline]
    fn items(&self) -> &[u8] {
        match &self.payload {
            Payload::Items(bytes) | Payload::Data(bytes, ..) => bytes,
            Payload::Fetched(buffer, len) => &buffer[..*len],
        }
    }

    fn acknowledge(&mut self) {
        if let Some(owed) = self.owed.take() {
            self.table.taken(&self.session, self.batch, owed);
        }
    }

    fn data(&self) -> Option<&[u8]> {
        match &self.payload {
            Payload::Data(_, buffer, len) => Some(&buffer[..*len]),
            _ => None,
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let payload = std::mem::replace(&mut self.payload, Payload::Items(Vec::new()));
        if let Payload::Fetched(buffer, _) | Payload::Data(_, buffer, _) = payload {
            self.table.buffers.give_back(self.session.endpoint, buffer);
        }
        if std::thread::panicking()
            && let Some(owed) = self.owed.take()
        {
            let (stream, why) = (self.table.stream, "the program has panicked in a batch");
            answer_all([owed], &Err(Refusal::Failed(why.to_owned())));
            self.table.end(Err(StreamError::Failed { stream, why: why.to_owned() }));
        }
        self.acknowledge();
    }
}

impl<T: DeserializeOwned> Batch<T> {
    pub(super) fn new(table: Arc<Table>, delivered: Delivered) -> Self {
        let Delivered { session, arrived } = delivered;
        let batch = arrived.batch();
        let (owed, payload) = (Some(arrived.answer), arrived.payload);
        let left = batch.end - batch.first;
        table.counts.items.fetch_add(left, Relaxed);
        table.counts.batches.fetch_add(1, Relaxed);
        table.counts.bytes.fetch_add(batch.bytes, Relaxed);
        session.state.lock().given = batch.end;
        let received = Received { table, session, batch, owed, payload };
        let mut this = Self { received, at: 0, left, items: PhantomData };
        // Items that came before, in batches that were cut otherwise.
        this.left += arrived.skip;
        for _ in 0..arrived.skip {
            this.next();
        }
        this
    }
}

impl<T> Batch<T> {
    /// The name of the sender.
    pub fn sender(&self) -> &str {
        &self.received.session.name
    }

    /// The endpoint where it came: the place of that in the list that
    /// [`Receiver::serve`](crate::Receiver::serve) got.
    pub fn endpoint(&self) -> usize {
        self.received.session.endpoint
    }

    /// The number of its first item among those of its sender, from 0 on.
    pub fn first(&self) -> u64 {
        self.received.batch.first
    }

    /// The trace that it is part of, if it is sampled: that of whoever has sent its first item, or
    /// the one that began with the call which has brought it. Code within it
    /// ([`margo::trace::within`]), and what that sends, is part of it too.
    pub fn trace(&self) -> Option<TraceContext> {
        self.received.owed.as_ref().and_then(Owed::trace)
    }

    /// Items that are left in it.
    pub fn len(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX)
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Returns whether no item is left.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// The data that was sent with its only item ([`Sender::send_with`](crate::Sender::send_with)).
    pub fn data(&self) -> Option<&[u8]> {
        self.received.data()
    }
}

impl<T: DeserializeOwned> Batch<T> {
    /// The only item, and its data, which is kept together with its credit as long as the program
    /// has it.
    ///
    /// # Errors
    ///
    /// The batch, if it has no data ([`data`](Self::data)), or its item was taken, or cannot be
    /// decoded.
    #[expect(clippy::result_large_err, reason = "it is the batch, and no error")]
    pub fn into_data(mut self) -> Result<(T, Data), Self> {
        if self.data().is_none() {
            return Err(self);
        }
        match self.next() {
            Some(item) => Ok((item, Data(self.received))),
            None => Err(self),
        }
    }

    #[cold]
    fn broken(&mut self, error: &hg::ProcError) {
        let Received { table, session, batch, .. } = &self.received;
        let (stream, sender) = (table.stream, session.name.clone());
        let (item, why) = (batch.end - self.left, error.to_string());
        self.left = 0;
        table.end(Err(StreamError::Decode { stream, sender, item, why }));
    }
}

impl<T: DeserializeOwned> Iterator for Batch<T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.left == 0 {
            return None;
        }
        let bytes = self.received.items().get(self.at..)?;
        match proc::from_prefix::<T>(bytes) {
            Ok((item, rest)) => {
                self.at += bytes.len() - rest.len();
                self.left -= 1;
                Some(item)
            }
            Err(error) => {
                self.broken(&error);
                None
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.len()))
    }

    /// Without a look at where the bytes are for each item.
    #[inline]
    fn fold<B, F: FnMut(B, T) -> B>(mut self, init: B, mut f: F) -> B {
        let mut bytes = self.received.items().get(self.at..).unwrap_or_default();
        let (mut folded, mut left) = (init, self.left);
        while left > 0 {
            match proc::from_prefix::<T>(bytes) {
                Ok((item, rest)) => (bytes, folded) = (rest, f(folded, item)),
                Err(error) => {
                    self.left = left;
                    self.broken(&error);
                    break;
                }
            }
            left -= 1;
        }
        folded
    }
}

impl<T> fmt::Debug for Batch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("sender", &self.sender())
            .field("endpoint", &self.endpoint())
            .field("first", &self.first())
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

/// The data of an item, in memory that comes from and goes back to the receiver's buffers.
///
/// ```
/// use margo::Instance;
/// use margo_stream::{Receiver, ReceiveSpec, Route, SendSpec, Sender, Stream};
///
/// const IMAGES: Stream<String> = Stream::new("images");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let mut receiver = Receiver::serve(&[&service], IMAGES, &ReceiveSpec::new())?;
/// let here = service.self_addr();
/// let mut sender = Sender::connect(
///     &[&service], IMAGES, &[here.uri()], &SendSpec::new(), Route::RoundRobin,
/// )?;
/// sender.send_with(&"black".to_owned(), vec![0; 100_000])?;
/// let batch = receiver.recv_batch()?.expect("the stream goes on");
/// let (name, image) = batch.into_data().expect("it has data");
/// assert_eq!((name.as_str(), image.len()), ("black", 100_000));
/// drop(image); // the credit goes back
/// sender.finish()?;
/// # drop(receiver);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Data(Received);

impl Data {
    /// Gives the credit back before the memory.
    pub(crate) fn acknowledge(&mut self) {
        self.0.acknowledge();
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.data().unwrap_or_default()
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} bytes)", self.len())
    }
}
