//! One error enum for each kind of operation.

use std::sync::Arc;
use std::time::Duration;

use margo::errors::LookupError;
use margo::{BulkError, ForwardError, RegisterError};

/// The reason why a stream is not served.
///
/// ```
/// use margo::Instance;
/// use margo_stream::{Receiver, ReceiveSpec, ServeError, Stream};
///
/// const NUMBERS: Stream<u64> = Stream::new("numbers");
///
/// let error = Receiver::serve(&[], NUMBERS, &ReceiveSpec::new()).unwrap_err();
/// assert!(matches!(error, ServeError::Spec { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The specification contradicts itself, or the instances.
    #[error("stream `{stream}`: {what}")]
    Spec {
        /// The stream.
        stream: &'static str,
        /// The contradiction, and what to do.
        what: String,
    },
    /// An endpoint serves a stream of that name already, or shuts down.
    #[error("stream `{stream}` cannot be served at endpoint {endpoint}: {source}")]
    Register {
        /// The stream.
        stream: &'static str,
        /// The place of the endpoint in the list.
        endpoint: usize,
        /// The error of the instance.
        source: RegisterError,
    },
    /// An endpoint shuts down.
    #[error("stream `{stream}` cannot be served at endpoint {endpoint}: it is shutting down")]
    Closing {
        /// The stream.
        stream: &'static str,
        /// The place of the endpoint in the list.
        endpoint: usize,
    },
}

/// The reason why a stream that is received has no further items, other than its end.
///
/// ```
/// use margo_stream::StreamError;
///
/// fn may_be_run_again(error: &StreamError) -> bool {
///     matches!(error, StreamError::Lost { .. } | StreamError::Closed { .. })
/// }
/// # let error = StreamError::Closed { stream: "numbers" };
/// assert!(may_be_run_again(&error));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A sender is gone before its end. What it had sent until then was handed out.
    #[error("stream `{stream}`: sender `{sender}` at {address} is lost after {items} items: {why}")]
    Lost {
        /// The stream.
        stream: &'static str,
        /// The sender's name.
        sender: String,
        /// The address from which it had connected.
        address: String,
        /// Items that had arrived of it, in order.
        items: u64,
        /// The sign of its loss.
        why: String,
    },
    /// Senders that were declared have not come in time
    /// ([`ReceiveSpec::connect_within`](crate::ReceiveSpec::connect_within)). What others had sent
    /// until then was handed out.
    #[error(
        "stream `{stream}`: {there} of {declared} senders have connected within {limit:?}; start \
         the others, or declare fewer (ReceiveSpec::senders)"
    )]
    Missing {
        /// The stream.
        stream: &'static str,
        /// Senders that have come.
        there: usize,
        /// Senders that were declared.
        declared: usize,
        /// The time that they had.
        limit: Duration,
    },
    /// A sender has said what it must not, such as more than its credit. It is refused from then
    /// on.
    #[error("stream `{stream}`: sender `{sender}` is refused: {what}")]
    Breach {
        /// The stream.
        stream: &'static str,
        /// The sender's name.
        sender: String,
        /// The breach.
        what: String,
    },
    /// An item is not what its type says.
    #[error("stream `{stream}`: item {item} of sender `{sender}` cannot be decoded: {why}")]
    Decode {
        /// The stream.
        stream: &'static str,
        /// The sender's name.
        sender: String,
        /// The number of the item.
        item: u64,
        /// The error of the decoder.
        why: String,
    },
    /// An endpoint has been shut down, or the receiver closed, before the end.
    #[error("stream `{stream}`: the receiver was closed before the end of the stream")]
    Closed {
        /// The stream.
        stream: &'static str,
    },
    /// The program has said that it cannot go on ([`Receiver::fail`](crate::Receiver::fail)).
    #[error("stream `{stream}`: {why}")]
    Failed {
        /// The stream.
        stream: &'static str,
        /// The reason that it gave.
        why: String,
    },
}

/// The reason why a sender is not connected.
///
/// ```
/// use std::time::Duration;
///
/// use margo::Instance;
/// use margo_stream::{ConnectError, Route, SendSpec, Sender, Stream};
///
/// const NUMBERS: Stream<u64> = Stream::new("numbers");
///
/// let client = Instance::builder("na+sm://").listen(false).start()?;
/// let spec = SendSpec::new().connect_within(Duration::ZERO);
/// let error = Sender::connect(&[&client], NUMBERS, &["na+sm://none"], &spec, Route::RoundRobin);
/// assert!(matches!(error, Err(ConnectError::Address { .. } | ConnectError::Unreachable { .. })));
/// # client.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The specification contradicts itself.
    #[error("stream `{stream}`: {what}")]
    Spec {
        /// The stream.
        stream: &'static str,
        /// The contradiction, and what to do.
        what: String,
    },
    /// None of the instances takes an address.
    #[error("stream `{stream}`: no instance takes the address `{address}`: {source}")]
    Address {
        /// The stream.
        stream: &'static str,
        /// The address.
        address: String,
        /// The error of the last instance.
        source: Box<LookupError>,
    },
    /// No receiver answers there.
    #[error("stream `{stream}`: no receiver answers at {address}: {source}")]
    Unreachable {
        /// The stream.
        stream: &'static str,
        /// The address.
        address: String,
        /// The error of the last attempt.
        source: Box<ForwardError>,
    },
    /// The receiver does not take this sender.
    #[error("stream `{stream}`: the receiver at {address} refuses sender `{sender}`: {why}")]
    Refused {
        /// The stream.
        stream: &'static str,
        /// The address.
        address: String,
        /// The sender's name.
        sender: String,
        /// The reason.
        why: String,
    },
    /// The system has no memory for the sender.
    #[error("stream `{stream}`: {source}")]
    Memory {
        /// The stream.
        stream: &'static str,
        /// The error of the instance.
        source: BulkError,
    },
    /// The ULT that sends what has waited long enough could not be made.
    #[error("stream `{stream}`: {source}")]
    Spawn {
        /// The stream.
        stream: &'static str,
        /// The error of the runtime.
        source: Arc<ult::SpawnError>,
    },
}

/// The reason why an item was not sent. After all but [`Encode`](Self::Encode) and
/// [`TooLarge`](Self::TooLarge) the sender has failed, and says the same to each further call.
///
/// ```
/// use margo_stream::SendError;
///
/// fn is_the_item_wrong(error: &SendError) -> bool {
///     matches!(error, SendError::Encode { .. } | SendError::TooLarge { .. })
/// }
/// # let error = SendError::TooLarge { stream: "numbers", bytes: 9, max: 8 };
/// assert!(is_the_item_wrong(&error));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The item cannot be encoded. Nothing of it was sent.
    #[error("stream `{stream}`: an item cannot be encoded: {why}")]
    Encode {
        /// The stream.
        stream: &'static str,
        /// The error of the encoder.
        why: String,
    },
    /// The item is longer than all the credit that a receiver has granted. Nothing of it was sent.
    #[error(
        "stream `{stream}`: an item of {bytes} bytes is longer than the credit of {max} bytes; \
         raise the receiver's credit_bytes, or send the data in parts"
    )]
    TooLarge {
        /// The stream.
        stream: &'static str,
        /// The length of the item.
        bytes: u64,
        /// The credit.
        max: u64,
    },
    /// The receiver takes no more.
    #[error("stream `{stream}`: the receiver at {address} takes no more: {why}")]
    Refused {
        /// The stream.
        stream: &'static str,
        /// The address.
        address: String,
        /// The reason that it gives.
        why: String,
    },
    /// The receiver is gone, or was for longer than [`Delivery::Replay`](crate::Delivery::Replay)
    /// allows.
    #[error("stream `{stream}`: the receiver at {address} is lost: {source}")]
    Lost {
        /// The stream.
        stream: &'static str,
        /// The address.
        address: String,
        /// The error of the call.
        source: Arc<ForwardError>,
    },
    /// Memory for the data was refused.
    #[error("stream `{stream}`: {source}")]
    Memory {
        /// The stream.
        stream: &'static str,
        /// The error of the instance.
        source: Arc<BulkError>,
    },
    /// There is no receiver of that number, or none at all for
    /// [`Route::Direct`](crate::Route::Direct) without one.
    #[error("stream `{stream}`: there is no receiver {index}; there are {count}")]
    NoReceiver {
        /// The stream.
        stream: &'static str,
        /// The number that was asked for.
        index: usize,
        /// The number of receivers.
        count: usize,
    },
}
