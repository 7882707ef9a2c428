//! The floor of a message round trip over each transport, between two processes that poll; rows
//! `floor.sm.rtt` and `floor.tcp.rtt`.
//!
//! One caller in a closed loop, each side on its core: a 56-byte message in one cache line of
//! shared memory, 64 bytes over a TCP connection on loopback, or a message by the own calls of a
//! library for fabrics. No queue, no header, no matching: no RPC can be faster.
//!
//! The caller's process makes an [`Offer`] and hands its place to the peer, which [`join`]s; then
//! each side has its end of a [`Channel`].

use std::net::TcpListener;

use serde::{Deserialize, Serialize};

use super::channel::{self, Channel};
use super::fabric::{self, Bare, Fabric};
use super::lines::{End, SharedLines};
use super::{tcp, tls};
use crate::base::{Deadline, Effort, Figure, Result};
use crate::process::Context;

/// The transport over which two processes talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    /// Shared memory.
    Sm,
    /// TCP on loopback.
    Tcp,
    /// TCP with TLS.
    Private,
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
            Self::Private => "private",
            Self::Fabric(fabric) => fabric.word(),
        }
    }

    /// The URI at which a side opens its endpoint.
    pub(crate) fn uri(self) -> &'static str {
        match self {
            Self::Sm => "na+sm://",
            Self::Tcp | Self::Private => "na+tcp://127.0.0.1:0",
            Self::Fabric(fabric) => fabric.uri(),
        }
    }
}

/// A channel that waits for its peer.
pub(crate) enum Offer {
    /// Ready as it is.
    Sm(SharedLines),
    /// Waits for a connection.
    Tcp(TcpListener),
    /// Waits for a connection, and then for TLS.
    Private(TcpListener),
    /// Waits for a message.
    Fabric(Box<dyn Bare>),
}

impl Offer {
    /// A new channel.
    ///
    /// # Errors
    ///
    /// When the system gives no memory or port.
    pub(crate) fn new(transport: Transport) -> Result<Self> {
        Ok(match transport {
            Transport::Sm => Self::Sm(SharedLines::new()?),
            Transport::Tcp => Self::Tcp(TcpListener::bind("127.0.0.1:0")?),
            Transport::Private => Self::Private(TcpListener::bind("127.0.0.1:0")?),
            Transport::Fabric(fabric) => Self::Fabric(fabric.open()?),
        })
    }

    /// The place that the peer needs to know: a path, `host:port`, or an address of the library's.
    ///
    /// # Errors
    ///
    /// When the system or the library does not know.
    pub(crate) fn place(&self) -> Result<Vec<u8>> {
        match self {
            Self::Sm(lines) => Ok(lines.name().into()),
            Self::Tcp(listener) | Self::Private(listener) => {
                Ok(listener.local_addr()?.to_string().into())
            }
            Self::Fabric(bare) => bare.address(),
        }
    }

    /// The caller's end.
    ///
    /// # Errors
    ///
    /// When the peer does not connect in time.
    pub(crate) fn accept(self, deadline: Deadline) -> Result<Box<dyn Channel>> {
        Ok(match self {
            Self::Sm(lines) => Box::new(End::caller(lines)),
            Self::Tcp(listener) => Box::new(tcp::Connection::new(tcp::accept(
                &listener,
                deadline,
                std::hint::spin_loop,
            )?)),
            Self::Private(listener) => {
                let stream = tcp::accept(&listener, deadline, std::hint::spin_loop)?;
                Box::new(tcp::Connection::new(tls::serve(stream, deadline, std::hint::spin_loop)?))
            }
            Self::Fabric(mut bare) => {
                fabric::wait_for_join(&mut bare, deadline)?;
                Box::new(bare)
            }
        })
    }
}

/// The responder's end of the channel at `place`.
///
/// # Errors
///
/// When there is none, or it does not answer until the deadline.
pub(crate) fn join(
    transport: Transport,
    place: &[u8],
    deadline: Deadline,
) -> Result<Box<dyn Channel>> {
    Ok(match transport {
        Transport::Sm => Box::new(End::responder(SharedLines::open(str::from_utf8(place)?)?)),
        Transport::Tcp => Box::new(tcp::Connection::new(tcp::connect(str::from_utf8(place)?)?)),
        Transport::Private => {
            let stream = tls::dial(tcp::connect(str::from_utf8(place)?)?, deadline)?;
            Box::new(tcp::Connection::new(stream))
        }
        Transport::Fabric(fabric) => Box::new(fabric::join(fabric, place, deadline)?),
    })
}

/// Rows `floor.*.rtt`.
pub(crate) fn rtt(context: &Context, transport: Transport) -> Result<Figure> {
    let (effort, deadline) = (Effort::latency(context.quick), context.deadline);
    let offer = Offer::new(transport)?;
    let peer = context.start_peer(offer.place()?)?;
    let mut caller = offer.accept(deadline)?;
    let mut samples = effort.alone(1, |samples| {
        channel::round(&mut *caller, samples, deadline, std::hint::spin_loop)
    })?;
    peer.finish()?;
    Ok(Figure::median(samples.latency(), None))
}

/// The peer of these rows.
pub(crate) fn answer(context: &Context, transport: Transport, place: &[u8]) -> Result<()> {
    let mut responder = join(transport, place, context.deadline)?;
    let rounds = Effort::latency(context.quick).rounds;
    (0..rounds).try_for_each(|_| responder.answer(context.deadline))
}
