//! Streams of items between processes, and graphs of stages that are joined by them.
//!
//! A [`Stream`] is a definition that both sides share, as an RPC is: a name and the type of its
//! items. A [`Receiver`] serves it at any number of endpoints, and gives out the items of all its
//! senders; a [`Sender`] sends them to any number of receivers, by a [`Route`].
#![forbid(unsafe_code)]

/// The code of the guide is compiled and run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/src/streams.md")]
struct Guide;

mod base;
mod error;
pub mod graph;
mod receiver;
mod sender;
mod spec;
mod wire;

pub use base::definition::Stream;
pub use error::{ConnectError, SendError, ServeError, StreamError};
pub use receiver::batch::{Batch, Data};
pub use receiver::serve::{Receiver, ReceiverStats};
pub use sender::connect::Sender;
pub use sender::lent::Lent;
pub use sender::route::Route;
pub use spec::{
    Acknowledge, BATCH_BYTES, CREDIT_BYTES, Delivery, LINGER, OnLoss, Position, Positions,
    ReceiveSpec, SendSpec,
};
