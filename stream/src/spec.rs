//! How a stream is served and sent: [`ReceiveSpec`], [`SendSpec`], and what they are made of.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The bytes of a sender that a receiver holds at most, unless it says otherwise: 8 MiB.
pub const CREDIT_BYTES: u64 = 8 << 20;

/// The length at which a batch goes, unless the sender says otherwise: 64 KiB.
pub const BATCH_BYTES: usize = 64 << 10;

/// The time for which a batch that is not full waits for further items while others are under way,
/// unless the sender says otherwise: 200 µs.
pub const LINGER: Duration = Duration::from_micros(200);

/// The policy of a receiver for a sender that is lost: its process ends, its host vanishes, its
/// [`Sender`](crate::Sender) is dropped before its [`finish`](crate::Sender::finish).
///
/// Whatever it does, items that have arrived before are handed out before.
///
/// ```
/// use std::time::Duration;
///
/// use margo_stream::{OnLoss, ReceiveSpec};
///
/// // A sender that is restarted within ten seconds goes on where it was.
/// let spec = ReceiveSpec::new().on_loss(OnLoss::Wait(Duration::from_secs(10)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// The stream ends with [`StreamError::Lost`](crate::StreamError::Lost). The default.
    Fail,
    /// The sender counts as ended; the loss is logged, and counted in
    /// [`ReceiverStats`](crate::ReceiverStats).
    GoOn,
    /// The sender, or another one of its name, may come back for that long and goes on with the
    /// item that is next; then the stream ends as for `Fail`.
    Wait(Duration),
}

/// When the credit of a batch goes back to its sender, who then forgets its items.
///
/// ```
/// use margo_stream::{Acknowledge, ReceiveSpec};
///
/// let spec = ReceiveSpec::new().acknowledge(Acknowledge::OnCommit);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// When the program has taken the batch's items, and asks for the next batch or drops this one.
    /// A receiver that dies loses at most what the program had taken and not worked off. The
    /// default.
    OnTake,
    /// When the program says so by [`Receiver::commit`](crate::Receiver::commit), after it has
    /// saved what it has made of the items, together with the
    /// [positions](crate::Receiver::positions). A receiver that is started again from there
    /// ([`ReceiveSpec::resume_at`]) gets each item exactly once. The credit has to cover what comes
    /// between two commits.
    OnCommit,
}

/// How far a receiver is with a sender: to be saved in a checkpoint.
///
/// ```
/// use margo_stream::{Position, ReceiveSpec};
///
/// // As it was saved: 1,000 items of this sender, which had not ended.
/// let position = Position { item: 1_000, has_ended: false };
/// let spec = ReceiveSpec::new().resume_at("sensor-7", position);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The number of the item that comes next.
    pub item: u64,
    /// True if none comes: the sender has said its end, and all before it was handed out.
    pub has_ended: bool,
}

/// How far a receiver is with each sender, by its name, see
/// [`Receiver::positions`](crate::Receiver::positions).
///
/// ```
/// use margo_stream::{Position, Positions, ReceiveSpec};
///
/// let saved = Positions::from([("one".to_owned(), Position { item: 7, has_ended: true })]);
/// let spec = saved.iter().fold(ReceiveSpec::new(), |spec, (sender, position)| {
///     spec.resume_at(sender, *position)
/// });
/// ```
pub type Positions = BTreeMap<String, Position>;

/// How a stream is received: from how many senders, with how much credit, and what happens when one
/// is lost.
///
/// ```
/// use margo_stream::{OnLoss, ReceiveSpec};
///
/// let spec = ReceiveSpec::new().senders(4).credit_bytes(1 << 20).on_loss(OnLoss::GoOn);
/// ```
#[derive(Debug, Clone)]
pub struct ReceiveSpec {
    pub(crate) senders: usize,
    pub(crate) senders_at: BTreeMap<usize, usize>,
    pub(crate) connect_within: Option<Duration>,
    pub(crate) credit_bytes: u64,
    pub(crate) on_loss: OnLoss,
    pub(crate) acknowledge: Acknowledge,
    pub(crate) resume_at: Positions,
}

impl Default for ReceiveSpec {
    fn default() -> Self {
        Self::new()
    }
}

impl ReceiveSpec {
    /// One sender, with [`CREDIT_BYTES`] of credit, whose loss is an error.
    pub fn new() -> Self {
        Self {
            senders: 1,
            senders_at: BTreeMap::new(),
            connect_within: None,
            credit_bytes: CREDIT_BYTES,
            on_loss: OnLoss::Fail,
            acknowledge: Acknowledge::OnTake,
            resume_at: BTreeMap::new(),
        }
    }

    /// The number of senders, in all: the stream ends when so many have ended. Further ones are
    /// refused. Default 1.
    #[must_use]
    pub fn senders(mut self, count: usize) -> Self {
        self.senders = count;
        self
    }

    /// The number of senders at one of the endpoints, by its place in the list that
    /// [`Receiver::serve`](crate::Receiver::serve) gets. Those of all endpoints that are named so
    /// are the number of the stream, and no other endpoint takes any.
    #[must_use]
    pub fn senders_at(mut self, endpoint: usize, count: usize) -> Self {
        self.senders_at.insert(endpoint, count);
        self.senders = self.senders_at.values().sum();
        self
    }

    /// The time, from [`Receiver::serve`](crate::Receiver::serve) on, within which all senders have
    /// to have connected: one that never comes is [`StreamError::Missing`](crate::StreamError)
    /// then. Default: no limit.
    #[must_use]
    pub fn connect_within(mut self, limit: Duration) -> Self {
        self.connect_within = Some(limit);
        self
    }

    /// The bytes of items that this side holds at most of each sender: those that have arrived and
    /// were not [acknowledged](Acknowledge). An item is never longer. Default [`CREDIT_BYTES`].
    #[must_use]
    pub fn credit_bytes(mut self, bytes: u64) -> Self {
        self.credit_bytes = bytes;
        self
    }

    /// Sets the policy for a sender that is lost. Default [`OnLoss::Fail`].
    #[must_use]
    pub fn on_loss(mut self, policy: OnLoss) -> Self {
        self.on_loss = policy;
        self
    }

    /// When credit goes back. Default [`Acknowledge::OnTake`].
    #[must_use]
    pub fn acknowledge(mut self, when: Acknowledge) -> Self {
        self.acknowledge = when;
        self
    }

    /// The item with which the sender of that name goes on, where a receiver that has kept a
    /// checkpoint is started again: what [`Receiver::positions`](crate::Receiver::positions) said
    /// when it was made. A sender that cannot go on there, because it was told that later items
    /// have been taken, is refused.
    #[must_use]
    pub fn resume_at(mut self, sender: impl Into<String>, position: Position) -> Self {
        self.resume_at.insert(sender.into(), position);
        self
    }
}

/// The promise of a sender for when a connection or its receiver breaks down.
///
/// ```
/// use std::time::Duration;
///
/// use margo_stream::{Delivery, SendSpec};
///
/// let patient = Delivery::Replay { patience: Duration::from_secs(30) };
/// let spec = SendSpec::new().name("sensor-7").delivery(patient);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Items that were not acknowledged then are lost, and the sender has failed: at most once. The
    /// default.
    AtMostOnce,
    /// The sender keeps what was not acknowledged, tries for so long to reach the receiver again,
    /// or one that is started in its place, and repeats what is missing there. Towards the same
    /// receiver, and towards one that [resumes](ReceiveSpec::resume_at) at its checkpoint, each
    /// item comes exactly once; towards one that begins anew, what it had not acknowledged comes
    /// (again): at least once.
    Replay {
        /// The longest time without a receiver.
        patience: Duration,
    },
}

/// How a stream is sent: by which name, in which batches, with what promise.
///
/// ```
/// use margo_stream::SendSpec;
///
/// let spec = SendSpec::new().name("parser-3").batch_bytes(1 << 20);
/// ```
#[derive(Debug, Clone)]
pub struct SendSpec {
    pub(crate) name: Option<String>,
    pub(crate) batch_bytes: usize,
    pub(crate) batch_items: u32,
    pub(crate) linger: Duration,
    pub(crate) delivery: Delivery,
    pub(crate) connect_within: Duration,
    pub(crate) resumes: bool,
}

impl Default for SendSpec {
    fn default() -> Self {
        Self::new()
    }
}

impl SendSpec {
    /// A name that is made up, batches of [`BATCH_BYTES`] that wait for at most [`LINGER`], and no
    /// promise ([`Delivery::AtMostOnce`]).
    pub fn new() -> Self {
        Self {
            name: None,
            batch_bytes: BATCH_BYTES,
            batch_items: u32::MAX,
            linger: LINGER,
            delivery: Delivery::AtMostOnce,
            connect_within: Duration::from_secs(10),
            resumes: false,
        }
    }

    /// The name by which receivers know this sender, at most 256 bytes: no two of a stream have the
    /// same at a time, and one that is restarted is the same sender. Default: random.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The length at which a batch goes. Items are encoded one behind the other, and never cut.
    /// Default [`BATCH_BYTES`].
    #[must_use]
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.max(1);
        self
    }

    /// The number of items at which a batch goes. Default: no limit but the bytes.
    #[must_use]
    pub fn batch_items(mut self, items: u32) -> Self {
        self.batch_items = items.max(1);
        self
    }

    /// The time for which a batch that is not full waits for further items. While nothing else is
    /// under way to its receiver, a batch does not wait. Default [`LINGER`].
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// The promise for when something breaks down. Default [`Delivery::AtMostOnce`].
    #[must_use]
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// The time for which [`Sender::connect`](crate::Sender::connect) tries to reach a receiver
    /// that does not listen yet, so that the two sides may be started in any order. Default 10 s.
    #[must_use]
    pub fn connect_within(mut self, limit: Duration) -> Self {
        self.connect_within = limit;
        self
    }

    /// Lets a process that was restarted go on for the one that has sent by this name before: it
    /// begins at [`Sender::position`](crate::Sender::position), with the item behind those that the
    /// receiver has. Default false: a receiver that has items of that name refuses it, rather than
    /// have them twice.
    #[must_use]
    pub fn resumes(mut self, yes: bool) -> Self {
        self.resumes = yes;
        self
    }
}
