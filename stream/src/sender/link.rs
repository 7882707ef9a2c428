//! One receiver: its session, its window, and what happens when it is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use margo::encoding::Raw;
use margo::na::{AllocOptions, MsgBuf, SharedBuffer};
use margo::trace::{self, TraceContext};
use margo::{Access, Exposed, ForwardError, ForwardRequest, Instance, ProviderHandle};
use ult::Eventual;

use crate::base::random;
use crate::error::{ConnectError, SendError};
use crate::sender::open_batch::Items;
use crate::sender::window::{Content, SendWindow, Sent};
use crate::wire::{Head, Open, Opened, Pulled, Refusal, SessionId, StreamRpcs, Taken, VERSION};

/// Encoded bytes of a batch's request beside its items, and a little more.
const HEAD_BYTES: usize = 64;

/// Buffers that a link keeps for further batches.
const KEPT_MAX: usize = 64;

/// The pause between two attempts to reach a receiver: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(250));

/// The longest time of one attempt: a receiver that is stopped answers none.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The two ends of a link, and the stream: they do not change.
pub(super) struct Peer {
    pub(super) stream: &'static str,
    pub(super) rpcs: StreamRpcs,
    pub(super) instances: Vec<Instance>,
    pub(super) address: String,
    pub(super) name: String,
    pub(super) life: u64,
    pub(super) schema: u64,
    pub(super) resumes: bool,
}

/// A connection with a receiver.
pub(super) struct ReceiverConnection {
    pub(super) instance: Instance,
    target: ProviderHandle,
    session: SessionId,
    eager_bytes: usize,
    /// Is over when the receiver is, or the session. `None` when that was seen, and while the
    /// sender waits for it.
    pub(super) hold: Option<ForwardRequest<Taken>>,
}

impl ReceiverConnection {
    pub(super) fn target(&self) -> (Instance, ProviderHandle) {
        (self.instance.clone(), self.target.clone())
    }

    /// Lets the receiver have no sign of an end of this side but the one that it was sent.
    pub(super) fn detach(self) {
        if let Some(hold) = self.hold {
            hold.detach();
        }
    }
}

impl Peer {
    /// Opens a session, trying again for so long while nobody listens.
    pub(super) fn connect(
        &self,
        from: u64,
        within: Duration,
    ) -> Result<(ReceiverConnection, Opened), ConnectError> {
        let until = Instant::now().checked_add(within);
        let mut pause = PAUSES.0;
        loop {
            let error = match self.try_connect(from) {
                Ok(connected) => return Ok(connected),
                Err(error @ (ConnectError::Refused { .. } | ConnectError::Spec { .. })) => {
                    return Err(error);
                }
                Err(error) => error,
            };
            if until.is_some_and(|until| until.saturating_duration_since(Instant::now()) < pause) {
                return Err(error);
            }
            ult::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn try_connect(&self, from: u64) -> Result<(ReceiverConnection, Opened), ConnectError> {
        let (instance, target) = self.look_up()?;
        let unreachable = |source| {
            let (stream, address) = (self.stream, self.address.clone());
            ConnectError::Unreachable { stream, address, source: Box::new(source) }
        };
        // Held before it is opened: the receiver sees the end of this side whenever it comes.
        let session = SessionId(random::number());
        let hold = instance.rpc(self.rpcs.hold, &target, &session).start().map_err(unreachable)?;
        let open = Open {
            version: VERSION,
            session,
            sender: self.name.clone(),
            life: self.life,
            schema: self.schema,
            resumes: self.resumes,
            from,
        };
        let opened = match instance.rpc(self.rpcs.open, &target, &open).timeout(ATTEMPT).wait() {
            Ok(Ok(opened)) => opened,
            // Until the receiver knows that the other one is gone, or another receiver is there.
            Ok(Err(refusal @ (Refusal::InUse | Refusal::NoSession | Refusal::Closed))) => {
                let detail = refusal.to_string();
                return Err(unreachable(busy(self, &target, detail)));
            }
            Ok(Err(refusal)) => {
                let (stream, address) = (self.stream, self.address.clone());
                let (sender, why) = (self.name.clone(), refusal.to_string());
                return Err(ConnectError::Refused { stream, address, sender, why });
            }
            Err(error) => return Err(unreachable(error)),
        };
        let hold = Some(hold);
        let eager_bytes = instance.network().eager_bytes().saturating_sub(HEAD_BYTES);
        Ok((ReceiverConnection { instance, target, session, eager_bytes, hold }, opened))
    }

    /// The first instance that takes the address.
    fn look_up(&self) -> Result<(Instance, ProviderHandle), ConnectError> {
        let in_file = self.address.strip_prefix('@').map(|path| {
            let path = path.to_owned();
            ult::blocking(move || std::fs::read_to_string(path))
        });
        let address = match &in_file {
            None => self.address.as_str(),
            // Not there yet, or not any more.
            Some(read) => read.as_deref().unwrap_or_default().trim(),
        };
        let mut last = None;
        for instance in &self.instances {
            match instance.lookup(address) {
                Ok(addr) => return Ok((instance.clone(), ProviderHandle::from(addr))),
                Err(error) => last = Some(error),
            }
        }
        let (stream, address) = (self.stream, self.address.clone());
        Err(match last {
            Some(source) => ConnectError::Address { stream, address, source: Box::new(source) },
            None => {
                let what = "it is sent by no instance; give one, or several".to_owned();
                ConnectError::Spec { stream, what }
            }
        })
    }
}

fn busy(peer: &Peer, target: &ProviderHandle, detail: String) -> ForwardError {
    let (rpc, to) = (peer.rpcs.open.name(), target.addr().to_string());
    ForwardError::Busy { rpc, peer: to, detail }
}

/// A receiver, as the sender's state has it.
pub(super) struct Link {
    pub(super) peer: Arc<Peer>,
    /// `None` while it is connected again, and when the link has failed.
    pub(super) connection: Option<ReceiverConnection>,
    pub(super) window: SendWindow,
    /// The number of the next item.
    pub(super) next: u64,
    /// The bytes that may be without an answer.
    pub(super) credit: u64,
    pub(super) failed: Option<SendError>,
    /// Set by whoever waits for the link; comes when that one looks at it again.
    pub(super) lifted: Option<Arc<Eventual<()>>>,
    /// True if batches without an answer may be sent again.
    replays: bool,
    free: Vec<MsgBuf>,
    free_shared: Vec<Exposed<SharedBuffer>>,
}

/// The content of a batch before it goes.
pub(super) enum Outgoing {
    Items(Arc<Items>),
    Data(Content),
}

impl Link {
    pub(super) fn new(
        peer: Arc<Peer>,
        connection: ReceiverConnection,
        opened: &Opened,
        replays: bool,
    ) -> Self {
        let window = SendWindow::default();
        window.counts.credit.store(opened.credit, Relaxed);
        Self {
            peer,
            connection: Some(connection),
            window,
            next: opened.next,
            credit: opened.credit,
            failed: None,
            lifted: None,
            replays,
            free: Vec::new(),
            free_shared: Vec::new(),
        }
    }

    /// Returns whether a batch of so many bytes may go now. What was answered is forgotten before.
    ///
    /// # Errors
    ///
    /// The link has failed.
    pub(super) fn has_room(&mut self, bytes: u64) -> Result<bool, SendError> {
        self.reap();
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(self.connection.is_some() && self.window.has_room(bytes, self.credit)),
        }
    }

    pub(super) fn free_buf(&mut self) -> Option<MsgBuf> {
        self.free.pop()
    }

    /// Forgets what was answered. If an answer was an error, or the receiver has ended, the link is
    /// broken.
    pub(super) fn reap(&mut self) {
        while let Some(front) = self.window.front_mut() {
            match front.request.take().map(ForwardRequest::try_wait) {
                Some(Ok(Ok(Ok(())))) => self.forget_front(),
                Some(Ok(error)) => return self.broken(error),
                Some(Err(request)) => {
                    front.request = Some(request);
                    break;
                }
                None => break,
            }
        }
        let Some(connection) = &mut self.connection else { return };
        match connection.hold.take().map(ForwardRequest::try_wait) {
            Some(Ok(ended)) => self.broken(ended),
            Some(Err(hold)) => connection.hold = Some(hold),
            None => {}
        }
    }

    /// The oldest batch was acknowledged.
    pub(super) fn forget_front(&mut self) {
        let Some(sent) = self.window.pop() else { return };
        match sent.content {
            Content::Items(items) => self.keep(items),
            Content::Exposed(memory, _) if self.free_shared.len() < KEPT_MAX => {
                self.free_shared.extend(Arc::try_unwrap(memory).ok());
            }
            Content::Gone | Content::Exposed(..) | Content::Data(_) => {}
        }
    }

    fn keep(&mut self, items: Arc<Items>) {
        if self.free.len() < KEPT_MAX
            && let Ok(Items::Message(mut buf)) = Arc::try_unwrap(items)
        {
            buf.clear();
            self.free.push(buf);
        }
    }

    /// An answer was an error, or a request could not be sent: the connection is of no use any
    /// more.
    pub(super) fn broken(&mut self, error: Result<Taken, ForwardError>) {
        let (stream, address) = (self.peer.stream, self.peer.address.clone());
        let hold = self.connection.as_mut().and_then(|connection| connection.hold.take());
        let error = match (error, hold.map(ForwardRequest::try_wait)) {
            // A receiver that ends says why, and may be gone before the answer of a batch.
            (Err(_), Some(Ok(said @ Ok(Err(_))))) => said,
            (error, _) => error,
        };
        let why = match &error {
            Ok(Ok(())) => return,
            Ok(Err(refusal)) => refusal.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(stream, address, why, "the connection with a receiver is gone");
        let error = match error {
            Ok(Ok(())) => return,
            Ok(Err(refusal)) => {
                let is_final = !matches!(refusal, Refusal::NoSession | Refusal::Closed);
                let why = refusal.to_string();
                let error = SendError::Refused { stream, address, why };
                if is_final || !self.replays {
                    self.failed = Some(error);
                }
                self.connection = None;
                return;
            }
            Err(source) => SendError::Lost { stream, address, source: Arc::new(source) },
        };
        self.connection = None;
        if !self.replays {
            self.failed = Some(error);
        }
    }

    /// Nothing of it is sent any more: what was lent goes back.
    pub(super) fn give_back(&mut self) {
        if self.failed.is_some() {
            self.window.clear();
        }
    }

    /// Sends a batch, for which there [is room](Self::has_room): the lock was not given back since.
    ///
    /// # Errors
    ///
    /// Memory was refused: the link has failed.
    pub(super) fn launch(
        &mut self,
        outgoing: Outgoing,
        (count, is_last): (u32, bool),
        trace: Option<TraceContext>,
    ) -> Result<(), SendError> {
        let Some(connection) = &self.connection else {
            unreachable!("a link has room while it is connected");
        };
        let (bytes, content) = match outgoing {
            Outgoing::Items(items) => {
                let len = items.as_slice().len();
                let content = match len <= connection.eager_bytes {
                    true => Content::Items(items),
                    false => {
                        let shared = shared(&mut self.free_shared, &connection.instance, &items);
                        let shared = match shared {
                            Ok(shared) => shared,
                            Err(source) => {
                                let (stream, source) = (self.peer.stream, Arc::new(source));
                                let error = SendError::Memory { stream, source };
                                self.failed = Some(error.clone());
                                return Err(error);
                            }
                        };
                        self.keep(items);
                        Content::Exposed(Arc::new(shared), len)
                    }
                };
                (len as u64, content)
            }
            Outgoing::Data(content) => match &content {
                Content::Data(data) => (data.0.len() as u64 + data.2, content),
                _ => (0, content),
            },
        };
        let (first, request) = (self.next, None);
        self.next += u64::from(count);
        let mut sent = Sent { first, count, is_last, bytes, content, trace, request };
        self.send(&mut sent);
        // What goes with the request is not needed any more, unless it may have to be sent again.
        if !self.replays
            && matches!(sent.content, Content::Items(_))
            && let Content::Items(items) = std::mem::replace(&mut sent.content, Content::Gone)
        {
            self.keep(items);
        }
        self.window.push(sent);
        Ok(())
    }

    /// Makes the call of a batch. If it cannot be made, the link is broken.
    fn send(&mut self, sent: &mut Sent) {
        let Some(connection) = &self.connection else { return };
        let head = Head {
            session: connection.session,
            first: sent.first,
            count: sent.count,
            is_last: sent.is_last,
        };
        let (instance, rpcs) = (&connection.instance, &self.peer.rpcs);
        let pull = |len, bulk, item| {
            let args = (head, Pulled { len, bulk, item });
            instance.rpc(rpcs.pull, &connection.target, &args).start()
        };
        let eager = |items: &[u8]| {
            let rpc = rpcs.batch.sending::<(Head, Raw<&[u8]>)>();
            instance.rpc(rpc, &connection.target, &(head, Raw(items))).start()
        };
        let request = || match &sent.content {
            Content::Gone => eager(&[]),
            Content::Items(items) => eager(items.as_slice()),
            Content::Exposed(memory, len) => pull(*len as u64, memory.bulk().clone(), None),
            Content::Data(data) => {
                let (item, loan, len) = &**data;
                pull(*len, loan.bulk.clone(), Some(Raw(item.clone())))
            }
        };
        let request = match sent.trace {
            None => request(),
            Some(_) => trace::within(sent.trace, request),
        };
        match request {
            Ok(request) => sent.request = Some(request),
            Err(error) => self.broken(Err(error)),
        }
    }

    /// Goes on with a new connection: what has no answer is sent again.
    pub(super) fn reconnected(&mut self, connection: ReceiverConnection, opened: &Opened) {
        if opened.credit < self.credit {
            let (stream, address) = (self.peer.stream, self.peer.address.clone());
            let why = format!(
                "it grants {} bytes, and granted {} before, by which items were sent; start it \
                 again with the same credit_bytes",
                opened.credit, self.credit
            );
            self.failed = Some(SendError::Refused { stream, address, why });
            return;
        }
        self.connection = Some(connection);
        while let Some(front) = self.window.front_mut()
            && front.end() <= opened.acknowledged
            && !front.is_last
        {
            self.forget_front();
        }
        let mut window = std::mem::take(&mut self.window);
        for sent in window.iter_mut() {
            sent.request = None;
            self.send(sent);
        }
        self.window = window;
    }

    /// The first item that can still be sent.
    pub(super) fn from(&mut self) -> u64 {
        let next = self.next;
        self.window.front_mut().map_or(next, |front| front.first)
    }
}

/// The items, in memory that the receiver copies itself if it is on this host.
fn shared(
    free: &mut Vec<Exposed<SharedBuffer>>,
    instance: &Instance,
    items: &Items,
) -> Result<Exposed<SharedBuffer>, margo::BulkError> {
    let bytes = items.as_slice();
    let fits = |shared: &Exposed<SharedBuffer>| shared.bulk().len() >= bytes.len() as u64;
    let shared = match free.iter().position(fits) {
        Some(place) => free.swap_remove(place),
        None => {
            let len = bytes.len().next_power_of_two();
            instance.expose(instance.alloc(len, &AllocOptions::default())?, Access::ReadOnly)?
        }
    };
    shared.write_at(0, bytes)?;
    Ok(shared)
}
