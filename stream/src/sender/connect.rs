//! The sending end of a stream: [`Sender`], and how it is connected.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use margo::metrics::PublishedTable;
use margo::{Instance, ProviderHandle, trace};
use prim::lock::BiasedLock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use ult::channel;

use crate::base::definition::Stream;
use crate::base::{figures, random, schema};
use crate::error::{ConnectError, SendError};
use crate::sender::linger;
use crate::sender::link::{Link, Peer, ReceiverConnection};
use crate::sender::open_batch::OpenBatch;
use crate::sender::route::Route;
use crate::sender::state::{Shared, State, To};
use crate::spec::{Delivery, SendSpec};
use crate::wire::{NAME_BYTES_MAX, StreamRpcs};

/// The sending end of a stream, with any number of receivers.
///
/// Items are encoded into batches, one behind the other; a batch goes when it is
/// [long](SendSpec::batch_bytes) enough, when nothing else is under way to its receiver, or when it
/// has [waited](SendSpec::linger). What was not acknowledged is at most the credit that the
/// receiver has granted: then a send waits, as a ULT that suspends, or an OS thread that blocks.
///
/// The end of the stream is said by [`finish`](Self::finish). A sender that is dropped without it
/// was lost, for its receivers, as one whose process has died: so a program that panics or returns
/// early does not make a part of a stream look like the whole.
///
/// ```
/// use margo::{Instance, ProviderHandle};
/// use margo_stream::{Receiver, ReceiveSpec, Route, SendSpec, Sender, Stream};
///
/// const NUMBERS: Stream<u64> = Stream::new("numbers");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let mut receiver = Receiver::serve(&[&service], NUMBERS, &ReceiveSpec::new())?;
/// let address = receiver.addresses()[0].clone();
///
/// let sending = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>>
/// { let client = Instance::builder("na+sm://").listen(false).start()?; let mut sender =
/// Sender::connect( &[&client], NUMBERS, &[&address], &SendSpec::new(), Route::RoundRobin, )?;
/// sender.send_all(0..100_000)?; sender.finish()?; client.finalize_and_wait()?; Ok(()) }); let mut
/// sum = 0; while let Some(number) = receiver.recv()? { sum += number; } assert_eq!(sum,
/// 4_999_950_000); sending.join().unwrap().unwrap();
/// # drop(receiver);
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sender<T> {
    pub(super) shared: Arc<Shared>,
    pub(super) route: Route<T>,
    pub(super) position: u64,
    /// Set by `finish`: what is dropped then is no loss.
    pub(super) is_finished: bool,
    _figures: Vec<PublishedTable>,
    items: PhantomData<fn(T)>,
}

impl<T: Serialize + DeserializeOwned + 'static> Sender<T> {
    /// Connects with a receiver at each of the addresses, by the first of the instances that takes
    /// the address. An address `@PATH` stands for the one in that file (`margo.address_file`),
    /// which is read at each attempt.
    ///
    /// While no receiver listens there it tries again, for as long as
    /// [`SendSpec::connect_within`] says.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect<A: AsRef<str>>(
        instances: &[&Instance],
        stream: Stream<T>,
        addresses: &[A],
        spec: &SendSpec,
        route: Route<T>,
    ) -> Result<Self, ConnectError> {
        let name = stream.name();
        let wrong = |what: &str| ConnectError::Spec { stream: name, what: what.to_owned() };
        if addresses.is_empty() {
            return Err(wrong("it is sent to no address; give one, or several"));
        }
        let life = random::number();
        let sender = spec.name.clone().unwrap_or_else(|| format!("{life:016x}"));
        if sender.len() > NAME_BYTES_MAX {
            return Err(wrong("the sender's name has over 256 bytes"));
        }
        let instances: Vec<Instance> = instances.iter().map(|&it| it.clone()).collect();
        let pool = match instances.first() {
            Some(first) => first.layout().rpc_pool(),
            None => return Err(wrong("it is sent by no instance; give one, or several")),
        };
        let replays = spec.delivery != Delivery::AtMostOnce;
        let (mut links, mut figures) = (Vec::new(), Vec::new());
        for address in addresses {
            let peer = Arc::new(Peer {
                stream: name,
                rpcs: StreamRpcs::of(name),
                instances: instances.clone(),
                address: address.as_ref().to_owned(),
                name: sender.clone(),
                life,
                schema: schema::schema_of::<T>(),
                resumes: spec.resumes,
            });
            let (connection, opened) = peer.connect(0, spec.connect_within)?;
            let instance = connection.target().0;
            let link = Link::new(peer, connection, &opened, replays);
            let counts = link.window.counts.clone();
            let look = move || counts.look();
            figures.extend(figures::publish_stream(&instance, (name, "sends"), look));
            links.push(link);
        }
        let position = links.iter().map(|link| link.next).min().unwrap_or(0);
        let (to, batches) = match &route {
            Route::RoundRobin => (To::Next, 1),
            Route::OnDemand => (To::Least, 1),
            Route::Broadcast => (To::All, 1),
            Route::Hash(_) | Route::Direct => (To::Own, links.len()),
        };
        let least = links.iter().map(|link| link.credit).min().unwrap_or(0);
        let of = |batch: usize| if batches == 1 { least } else { links[batch].credit };
        let goes_at = (spec.batch_bytes, spec.batch_items);
        let open = (0..batches).map(|batch| OpenBatch::new(goes_at, of(batch))).collect();
        let (bell, rings) = channel::bounded(1);
        let shared = Arc::new(Shared {
            stream: name,
            spec: spec.clone(),
            state: BiasedLock::new(State::new(links, open, to)),
            since: (0..batches).map(|_| AtomicU64::new(0)).collect(),
            looks: AtomicBool::new(false),
            bell,
        });
        let weak = Arc::downgrade(&shared);
        let lingers = move || linger::run(&weak, &rings);
        // What it sends is part of other traces, or of none.
        trace::within(None, || pool.ult().name("margo_stream.linger").spawn_detached(lingers))
            .map_err(|error| ConnectError::Spawn { stream: name, source: Arc::new(error) })?;
        let (_figures, items) = (figures, PhantomData);
        Ok(Self { shared, route, position, is_finished: false, _figures, items })
    }
}

impl<T> Sender<T> {
    /// The number of the item that comes first: 0, or, for a sender that was restarted and
    /// [resumes](SendSpec::resumes), the number of items that its receiver has; with several
    /// receivers the least of them. The program begins behind these.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The receiver with which the only link is connected, and by which instance.
    pub(crate) fn target(&self) -> Option<(Instance, ProviderHandle)> {
        let state = self.shared.state.lock();
        state.links[0].connection.as_ref().map(ReceiverConnection::target)
    }

    /// The error that each further call would give, if the sender has failed.
    pub fn error(&self) -> Option<SendError> {
        self.shared.state.lock().links.iter().find_map(|link| link.failed.clone())
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("stream", &self.shared.stream)
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}
