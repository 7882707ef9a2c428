//! Edges between groups: streams, whose items are those of the edge.
//!
//! A replica has a sender for each queue in another group. There a *pump* takes the items out of
//! the stream of the queue, and puts them into it; while the queue is full, the pump waits, and so
//! does the sender when the credit of the stream is used up.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec::Drain;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::blob::Blob;
use super::body::Body;
use super::edge::{Bundle, Lost, Output, within};
use super::life;
use super::links::{Links, QueueAt};
use super::state::{EdgeLoad, Gauge, RunState};
use super::stop::{BoxError, Stop};
use crate::base::schema::schema_of;
use crate::wire::Refusal;
use crate::{
    CREDIT_BYTES, ConnectError, Data, ReceiveSpec, Receiver, ReceiverStats, Route, SendError,
    SendSpec,
};
use crate::{Sender, ServeError, Stream, StreamError};

/// The reason that producers are given if all who took their items have ended: no failure. Others
/// begin with the name of a group.
const UNWANTED: &str = "nobody takes the items any more";

/// The ways of the items of one type to other groups and from there.
pub(crate) struct Remote<T> {
    pub(crate) schema: fn() -> u64,
    output: [OutputFn<T>; 2],
    pump: [PumpFn<T>; 2],
}

/// An end of an edge, for one queue.
pub(crate) struct Place<'a> {
    pub(crate) links: &'a Arc<Links>,
    pub(crate) at: QueueAt,
    pub(crate) state: &'a Arc<RunState>,
}

type OutputFn<T> = fn(Place<'_>, usize) -> Box<dyn Output<T>>;
type PumpFn<T> = fn(Place<'_>, usize, Box<dyn Output<T>>) -> Result<Box<dyn Body>, ServeError>;

impl<T> Clone for Remote<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Remote<T> {}

impl<T: Serialize + DeserializeOwned + Send + 'static> Remote<T> {
    pub(crate) fn new() -> Self {
        Self {
            schema: schema_of::<T>,
            output: [output::<T, T>, output::<T, Timed<T>>],
            pump: [pump::<T, T>, pump::<T, Timed<T>>],
        }
    }
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Remote<(T, Blob)> {
    pub(crate) fn with_blobs() -> Self {
        Self {
            schema: schema_of::<T>,
            output: [output::<_, Timed<T>>; 2],
            pump: [pump::<_, Timed<T>>; 2],
        }
    }
}

impl<T> Remote<T> {
    /// The output of a replica to a queue in another group.
    pub(crate) fn output(
        &self,
        place: Place<'_>,
        (replica, is_timed): (usize, bool),
    ) -> Box<dyn Output<T>> {
        self.output[usize::from(is_timed)](place, replica)
    }

    /// Serves the stream to a queue here; `first` is the number of the first replica of the edge
    /// among the producers of the queue.
    pub(crate) fn pump(
        &self,
        place: Place<'_>,
        (first, is_timed): (usize, bool),
        queue: Box<dyn Output<T>>,
    ) -> Result<Box<dyn Body>, ServeError> {
        self.pump[usize::from(is_timed)](place, first, queue)
    }
}

/// An item of the stream of an edge on which watermarks go with the items `T`, or blobs; on others
/// they are the items of the stream themselves.
#[derive(Serialize, Deserialize)]
enum Timed<T> {
    Item(T),
    Watermark(u64),
}

/// Items of a stream, for those of an edge.
trait OnWire<T>: Serialize + DeserializeOwned + Send + Sized + 'static {
    fn send(
        sender: &mut Sender<Self>,
        items: Drain<'_, T>,
        watermark: Option<u64>,
    ) -> Result<(), SendError>;

    /// The item, with the data that was sent with it, or a watermark.
    fn take(self, data: Option<Data>) -> Result<T, u64>;
}

impl<T: Serialize + DeserializeOwned + Send + 'static> OnWire<T> for T {
    fn send(sender: &mut Sender<T>, items: Drain<'_, T>, _: Option<u64>) -> Result<(), SendError> {
        sender.send_slice(items.as_slice())
    }

    fn take(self, _: Option<Data>) -> Result<T, u64> {
        Ok(self)
    }
}

impl<T: Serialize + DeserializeOwned + Send + 'static> OnWire<T> for Timed<T> {
    fn send(
        sender: &mut Sender<Self>,
        items: Drain<'_, T>,
        watermark: Option<u64>,
    ) -> Result<(), SendError> {
        sender.send_all(items.map(Self::Item).chain(watermark.map(Self::Watermark)))
    }

    fn take(self, _: Option<Data>) -> Result<T, u64> {
        match self {
            Self::Item(item) => Ok(item),
            Self::Watermark(time) => Err(time),
        }
    }
}

impl<T: Serialize + DeserializeOwned + Send + 'static> OnWire<(T, Blob)> for Timed<T> {
    fn send(
        sender: &mut Sender<Self>,
        mut items: Drain<'_, (T, Blob)>,
        watermark: Option<u64>,
    ) -> Result<(), SendError> {
        items.try_for_each(|(item, blob)| {
            let item = Self::Item(item);
            // There is no memory to be fetched of one without bytes.
            if blob.is_empty() {
                sender.send(&item)
            } else {
                sender.send_with(&item, blob.into_vec()).map(drop)
            }
        })?;
        watermark.map_or(Ok(()), |time| sender.send(&Self::Watermark(time)))
    }

    fn take(self, data: Option<Data>) -> Result<(T, Blob), u64> {
        match self {
            Self::Item(item) => {
                Ok((item, data.map_or_else(|| Blob::from(Vec::new()), Blob::received)))
            }
            Self::Watermark(time) => Err(time),
        }
    }
}

fn output<T: Send + 'static, W: OnWire<T>>(place: Place<'_>, replica: usize) -> Box<dyn Output<T>> {
    let Place { links, at, state } = place;
    let (links, state, sender, spare) = (links.clone(), state.clone(), None, Vec::new());
    Box::new(RemoteOutput::<T, W> { links, at, state, replica, sender, spare })
}

/// The end of an edge that leads to another group, for one replica.
struct RemoteOutput<T, W> {
    links: Arc<Links>,
    at: QueueAt,
    state: Arc<RunState>,
    replica: usize,
    /// `None` until it is opened.
    sender: Option<Sender<W>>,
    /// The vector of the last bundle.
    spare: Vec<T>,
}

impl<T, W> RemoteOutput<T, W> {
    fn failed(&self, error: impl Into<BoxError>) -> Lost {
        Lost::Failed(self.links.peer_error(&self.at, &self.at.group, error).into())
    }

    fn lost(&self, error: SendError) -> Lost {
        match error {
            SendError::Refused { stream, why, .. } if is_unwanted(stream, &why) => Lost::Gone,
            error => self.failed(error),
        }
    }
}

fn is_unwanted(stream: &'static str, why: &str) -> bool {
    let error = StreamError::Failed { stream, why: UNWANTED.to_owned() };
    why == Refusal::Failed(error.to_string()).to_string()
}

impl<T: Send + 'static, W: OnWire<T>> Output<T> for RemoteOutput<T, W> {
    fn open(&mut self) -> Result<(), Lost> {
        let options = self.links.options(&self.at);
        let mut spec = SendSpec::new()
            .name(self.replica.to_string())
            .connect_within(self.links.start_within());
        if let Some(bytes) = options.batch_bytes {
            spec = spec.batch_bytes(bytes);
        }
        if let Some(items) = options.batch_items {
            spec = spec.batch_items(u32::try_from(items).unwrap_or(u32::MAX));
        }
        let instances: Vec<_> = self.links.instances.iter().collect();
        let address = self.links.address(&self.at.group);
        let stream = Stream::new(self.links.stream(&self.at));
        match Sender::connect(&instances, stream, &[address], &spec, Route::RoundRobin) {
            Ok(sender) => {
                if let Some(target) = sender.target() {
                    life::watch(&self.links, &self.at, target, &self.state)
                        .map_err(|error| self.failed(error))?;
                }
                self.sender = Some(sender);
            }
            Err(ConnectError::Refused { stream, why, .. }) if is_unwanted(stream, &why) => {
                return Err(Lost::Gone);
            }
            Err(error) => return Err(self.failed(error)),
        }
        Ok(())
    }

    fn is_busy(&mut self) -> bool {
        self.sender.as_ref().is_some_and(Sender::is_busy)
    }

    fn put(&mut self, mut bundle: Bundle<T>) -> Result<Duration, Lost> {
        let Some(sender) = &mut self.sender else { return Err(Lost::Gone) };
        let since = Instant::now();
        let sent = within(bundle.trace, || {
            W::send(sender, bundle.items.drain(..), bundle.watermark)?;
            bundle.trace.into_iter().for_each(|trace| sender.mark(trace));
            Ok(())
        });
        sent.map_err(|error| self.lost(error))?;
        self.spare = bundle.items;
        Ok(since.elapsed())
    }

    fn spare(&mut self) -> Vec<T> {
        std::mem::take(&mut self.spare)
    }

    fn finish(&mut self) -> Result<(), Lost> {
        let finished = self.sender.take().map_or(Ok(()), Sender::finish);
        finished.map_err(|error| self.lost(error))
    }
}

fn pump<T: Send + 'static, W: OnWire<T>>(
    place: Place<'_>,
    first: usize,
    queue: Box<dyn Output<T>>,
) -> Result<Box<dyn Body>, ServeError> {
    let Place { links, at, state } = place;
    let senders = links.senders(at.from);
    let mut spec = ReceiveSpec::new();
    for (endpoint, count) in senders.iter().enumerate() {
        spec = spec.senders_at(endpoint, *count);
    }
    if let Some(bytes) = links.options(&at).credit_bytes {
        spec = spec.credit_bytes(bytes);
    }
    let stream = Stream::<W>::new(links.stream(&at));
    let receiver = Receiver::serve(&links.endpoints(), stream, &spec)?;
    let (closing, own) = (receiver.clone(), links.own.clone());
    state.on_over(Box::new(move |why| closing.clone().fail(format!("group `{own}`: {why}"))));
    let (looking, senders) = (receiver.clone(), senders.iter().sum());
    let credit = links.options(&at).credit_bytes.unwrap_or(CREDIT_BYTES);
    let credit = credit.saturating_mul(senders as u64);
    let look = Box::new(move || {
        let ReceiverStats { bytes, held, .. } = looking.stats();
        EdgeLoad { queued: 0, bytes, held, credit }
    });
    state.on_look(Gauge { from: Some(at.from), to: at.to, look });
    let (links, state, queue) = (links.clone(), state.clone(), Some(queue));
    let types = PhantomData;
    Ok(Box::new(Pump { links, at, first, senders, receiver, queue, state, types }))
}

/// A ULT that moves the items of a stream into a queue.
struct Pump<T, W> {
    links: Arc<Links>,
    at: QueueAt,
    first: usize,
    senders: usize,
    receiver: Receiver<W>,
    /// `None`: nobody takes from it any more.
    queue: Option<Box<dyn Output<T>>>,
    state: Arc<RunState>,
    types: PhantomData<fn(T)>,
}

impl<T, W> Pump<T, W> {
    /// The replica whose name a sender has.
    fn replica(&self, sender: &str) -> Option<(usize, &str)> {
        let replica = sender.parse().ok()?;
        let group = self.links.group_of(self.at.from, replica)?;
        (group != self.links.own).then_some((replica, group))
    }

    fn failed(&self, error: StreamError) -> Stop {
        let sender = match &error {
            StreamError::Lost { sender, .. }
            | StreamError::Breach { sender, .. }
            | StreamError::Decode { sender, .. } => self.replica(sender),
            _ => None,
        };
        let group = sender.map_or(self.links.own.as_str(), |(_, group)| group);
        Stop::failed(self.links.peer_error(&self.at, group, error))
    }
}

impl<T: Send + 'static, W: OnWire<T>> Pump<T, W> {
    fn next(&mut self) -> Result<Option<crate::Batch<W>>, Stop> {
        match self.receiver.recv_batch() {
            Ok(batch) => Ok(batch),
            Err(_) if self.state.is_over() => Err(Stop::over()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn put(&mut self, bundle: Bundle<T>) -> Result<(), Stop> {
        match self.queue.as_mut().map(|queue| queue.put(bundle)) {
            Some(Err(Lost::Gone)) if self.state.is_over() => Err(Stop::over()),
            Some(Err(Lost::Gone)) => {
                self.queue = None;
                Ok(())
            }
            Some(Err(Lost::Failed(error))) => Err(Stop::failed(error)),
            Some(Ok(_)) | None => Ok(()),
        }
    }
}

impl<T: Send + 'static, W: OnWire<T>> Body for Pump<T, W> {
    fn run(&mut self) -> Result<(), Stop> {
        while let Some(batch) = self.next()? {
            let Some((replica, _)) = self.replica(batch.sender()) else {
                let what = format!("`{}` is no replica of another group", batch.sender());
                let own = &self.links.own;
                return Err(Stop::failed(self.links.peer_error(&self.at, own, what)));
            };
            let (from, trace) = (self.first + replica, batch.trace());
            let mut items = self.spare();
            let mut batch = match batch.into_data() {
                Ok((item, mut data)) => {
                    // The program may keep it longer than others can wait for credit.
                    data.acknowledge();
                    items.extend(item.take(Some(data)).ok());
                    None
                }
                Err(batch) => Some(batch),
            };
            for item in batch.iter_mut().flatten() {
                match item.take(None) {
                    Ok(item) => items.push(item),
                    Err(time) => {
                        self.put(Bundle { from, items, watermark: Some(time), trace })?;
                        items = self.spare();
                    }
                }
            }
            if !items.is_empty() {
                self.put(Bundle { from, items, watermark: None, trace })?;
            }
            // Its credit goes back now that there was room for its items.
            drop(batch);
            // Once all producers are here, so that each is told.
            if self.queue.is_none() && self.receiver.positions().len() == self.senders {
                self.receiver.fail(UNWANTED);
                break;
            }
        }
        Ok(())
    }
}

impl<T, W> Pump<T, W> {
    fn spare(&mut self) -> Vec<T> {
        self.queue.as_mut().map_or_else(Vec::new, |queue| queue.spare())
    }
}
