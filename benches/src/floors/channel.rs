//! The floor of a message round trip over each transport, between two processes.
//!
//! The caller's process makes an [`Offer`] and hands its [`Place`] to the peer, which
//! [joins](Responder::join); then each side has its end.

use std::net::TcpListener;

use serde::{Deserialize, Serialize};

use super::fabric::{Fabric, Side};
use super::tcp;
use crate::base::failure::{Doing, Result};
use crate::base::wait::Deadline;
use crate::floors::lines::{self, SharedLines};

/// The transport over which two processes talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    /// Shared memory.
    Sm,
    /// TCP on loopback.
    Tcp,
    /// A library for fabrics.
    Fabric(Fabric),
}

impl Transport {
    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let fabrics = Fabric::ALL.into_iter().map(Self::Fabric);
        [Self::Sm, Self::Tcp].into_iter().chain(fabrics)
    }

    /// The word in row ids.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sm => "sm",
            Self::Tcp => "tcp",
            Self::Fabric(fabric) => fabric.word(),
        }
    }

    /// The URI at which a side opens its endpoint.
    pub(crate) fn uri(self) -> &'static str {
        match self {
            Self::Sm => "na+sm://",
            Self::Tcp => "na+tcp://127.0.0.1:0",
            Self::Fabric(fabric) => fabric.uri(),
        }
    }
}

/// Where the peer finds the channel.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Place {
    /// A path of shared memory.
    Lines(String),
    /// `host:port`
    Tcp(String),
    /// An address of the library's.
    Fabric(Fabric, Vec<u8>),
}

/// A channel that waits for its peer.
#[derive(Debug)]
pub(crate) enum Offer {
    /// Ready as it is.
    Sm(SharedLines),
    /// Waits for a connection.
    Tcp(TcpListener),
    /// Waits for a message.
    Fabric(Fabric, Side),
}

impl Offer {
    /// A new channel.
    ///
    /// # Errors
    ///
    /// When the system gives no memory or port.
    pub(crate) fn new(transport: Transport) -> Result<Self> {
        match transport {
            Transport::Sm => SharedLines::new().map(Self::Sm),
            Transport::Tcp => {
                Ok(Self::Tcp(TcpListener::bind("127.0.0.1:0").doing("listening on loopback")?))
            }
            Transport::Fabric(fabric) => Ok(Self::Fabric(fabric, Side::offer(fabric)?)),
        }
    }

    /// The place that the peer needs to know.
    ///
    /// # Errors
    ///
    /// When the socket does not know its address.
    pub(crate) fn place(&self) -> Result<Place> {
        match self {
            Self::Sm(lines) => Ok(Place::Lines(lines.name())),
            Self::Tcp(listener) => {
                let address = listener.local_addr().doing("asking for the port")?;
                Ok(Place::Tcp(address.to_string()))
            }
            Self::Fabric(fabric, side) => Ok(Place::Fabric(*fabric, side.address()?)),
        }
    }

    /// The caller's end. `idle` runs while waiting for the peer's connection.
    ///
    /// # Errors
    ///
    /// When the peer does not connect in time.
    pub(crate) fn accept(self, deadline: Deadline, idle: impl FnMut()) -> Result<Caller> {
        match self {
            Self::Sm(lines) => Ok(Caller::Sm(lines::Caller::new(lines))),
            Self::Tcp(listener) => {
                let stream = tcp::accept(&listener, deadline, idle)?;
                Ok(Caller::Tcp(tcp::Connection::new(stream)))
            }
            Self::Fabric(_, mut side) => {
                side.wait_for_join(deadline, idle)?;
                Ok(Caller::Fabric(side))
            }
        }
    }
}

/// The end that asks.
#[derive(Debug)]
pub(crate) enum Caller {
    /// A pair of cache lines.
    Sm(lines::Caller<SharedLines>),
    /// A connection.
    Tcp(tcp::Connection),
    /// A library's endpoint.
    Fabric(Side),
}

impl Caller {
    /// Waits for the responder to begin a round; `idle` runs meanwhile.
    ///
    /// # Errors
    ///
    /// When it does not in time.
    pub(crate) fn wait_for_hello(
        &mut self,
        deadline: Deadline,
        mut idle: impl FnMut(),
    ) -> Result<()> {
        loop {
            let greeted = match self {
                Self::Sm(lines) => lines.greeted(),
                Self::Tcp(connection) => connection.greeted()?,
                Self::Fabric(side) => side.greeted()?,
            };
            if greeted {
                return Ok(());
            }
            idle();
            deadline.check("the responder's hello")?;
        }
    }

    /// From now on calls carry so many bytes, at most 1 KiB, if they are cache lines; those over a
    /// connection stay as long as they are.
    pub(crate) fn carry(&mut self, bytes: usize) {
        if let Self::Sm(lines) = self {
            lines.carry(bytes);
        }
    }

    /// One round trip.
    ///
    /// # Errors
    ///
    /// When the answer does not come in time.
    #[inline]
    pub(crate) fn round_trip(&mut self, deadline: Deadline) -> Result<()> {
        match self {
            Self::Sm(lines) => lines.round_trip(deadline),
            Self::Tcp(connection) => connection.round_trip(deadline),
            Self::Fabric(side) => side.round_trip(deadline),
        }
    }

    /// Ends the responder's round.
    ///
    /// # Errors
    ///
    /// When it does not confirm in time.
    pub(crate) fn stop(&mut self, deadline: Deadline) -> Result<()> {
        match self {
            Self::Sm(lines) => lines.stop(deadline),
            Self::Tcp(connection) => connection.stop(deadline),
            Self::Fabric(side) => side.stop(deadline),
        }
    }
}

/// The end that answers.
#[derive(Debug)]
pub(crate) enum Responder {
    /// A pair of cache lines.
    Sm(lines::Responder<SharedLines>),
    /// A connection.
    Tcp(tcp::Connection),
    /// A library's endpoint.
    Fabric(Side),
}

impl Responder {
    /// The other end of the channel at `place`.
    ///
    /// # Errors
    ///
    /// When there is none, or it does not answer until the deadline.
    pub(crate) fn join(place: &Place, deadline: Deadline) -> Result<Self> {
        match place {
            Place::Lines(name) => Ok(Self::Sm(lines::Responder::new(SharedLines::open(name)?))),
            Place::Tcp(address) => Ok(Self::Tcp(tcp::Connection::new(tcp::connect(address)?))),
            Place::Fabric(fabric, address) => {
                Side::join(*fabric, address, deadline).map(Self::Fabric)
            }
        }
    }

    /// Serves one round: says hello, answers until the caller stops.
    ///
    /// # Errors
    ///
    /// When no message comes until the deadline.
    pub(crate) fn answer(&mut self, deadline: Deadline) -> Result<()> {
        match self {
            Self::Sm(lines) => lines.answer(deadline),
            Self::Tcp(connection) => connection.answer(deadline),
            Self::Fabric(side) => side.answer(deadline),
        }
    }
}
