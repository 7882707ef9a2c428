//! The record of one call, at its origin or at its target, or of one bulk transfer.
//!
//! A span is filled in as the call goes on, and handed out once, when nothing can be added any
//! more. A moment that is `None` was not reached, or is not known at this end.

use std::fmt;

use hg::{HgError, OnBehalfOf, ProviderId, ReturnCode, RpcId};
use serde::{Deserialize, Serialize};

use crate::observe::clock::Moment;
use crate::observe::trace::SpanOfTrace;
use crate::{Addr, Pool, Principal};

/// How a call ended for its origin: success, or the kind of its
/// [`ForwardError`](crate::ForwardError).
///
/// ```
/// use margo::{Instance, Rpc, monitor::CallOutcome};
///
/// const NOWHERE: Rpc<(), ()> = Rpc::new("nowhere");
///
/// let instance = Instance::builder("na+sm://").start()?;
/// instance.monitoring().start_statistics(1);
/// assert!(instance.forward(NOWHERE, &instance.self_addr().into(), &()).is_err());
/// for (outcome, calls) in &instance.monitoring().statistics().origin[0].outcomes {
///     assert_eq!((*outcome, *calls), (CallOutcome::NotRegistered, 1));
///     println!("{calls} ended with {outcome}");
/// }
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum CallOutcome {
    /// With a result, or, if it has none, with the request on its way.
    Ok,
    /// The peer has no such RPC.
    NotRegistered,
    /// The peer could not decode the arguments.
    BadArguments,
    /// The handler panicked.
    Panicked,
    /// The peer has too much to do.
    Busy,
    /// The peer is shutting down.
    PeerClosing,
    /// The handler said that it failed, or gave no answer.
    Failed,
    /// The deadline passed.
    TimedOut,
    /// It was cancelled here.
    Canceled,
    /// The network or the peer failed.
    Network,
    /// This instance is shutting down.
    Closing,
    /// The arguments could not be encoded; nothing was sent.
    Encode,
    /// The result could not be decoded.
    Decode,
    /// The rules of the peer do not allow it.
    Permission,
}

impl CallOutcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 14] = [
        Self::Ok,
        Self::NotRegistered,
        Self::BadArguments,
        Self::Panicked,
        Self::Busy,
        Self::PeerClosing,
        Self::Failed,
        Self::TimedOut,
        Self::Canceled,
        Self::Network,
        Self::Closing,
        Self::Encode,
        Self::Decode,
        Self::Permission,
    ];

    /// As it stands in statistics, for example `not_registered`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotRegistered => "not_registered",
            Self::BadArguments => "bad_arguments",
            Self::Panicked => "panicked",
            Self::Busy => "busy",
            Self::PeerClosing => "peer_closing",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Canceled => "canceled",
            Self::Network => "network",
            Self::Closing => "closing",
            Self::Encode => "encode",
            Self::Decode => "decode",
            Self::Permission => "permission",
        }
    }

    /// The outcome of an answer with that code, and a text that explains it.
    pub(crate) fn of_answer(code: ReturnCode, detail: &str) -> Self {
        match code {
            ReturnCode::Permission if !detail.is_empty() => Self::Permission,
            code => Self::of_code(code),
        }
    }

    fn of_code(code: ReturnCode) -> Self {
        match code {
            ReturnCode::Success => Self::Ok,
            ReturnCode::NoEntry => Self::NotRegistered,
            ReturnCode::Fault => Self::Panicked,
            ReturnCode::ProtocolError => Self::BadArguments,
            ReturnCode::Again | ReturnCode::Busy => Self::Busy,
            ReturnCode::Permission => Self::PeerClosing,
            ReturnCode::Timeout => Self::TimedOut,
            _ => Self::Failed,
        }
    }

    pub(crate) fn of_error(error: &HgError) -> Self {
        match error {
            HgError::Remote(code) => Self::of_code(*code),
            HgError::Foreign(_) => Self::Failed,
            HgError::Proc(_) => Self::Encode,
            HgError::Closed | HgError::Na(na::Error::Closed) => Self::Closing,
            HgError::Canceled => Self::Canceled,
            _ => Self::Network,
        }
    }
}

impl fmt::Display for CallOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The outcome of a request for its target.
///
/// ```
/// use margo::{Instance, Rpc, monitor::RequestOutcome};
///
/// const FAIL: Rpc<(), ()> = Rpc::new("fail");
///
/// let instance = Instance::builder("na+sm://").start()?;
/// instance.monitoring().start_statistics(1);
/// instance.register(FAIL, |request| {
///     let _ = request.fail("as always");
/// })?;
/// assert!(instance.forward(FAIL, &instance.self_addr().into(), &()).is_err());
/// instance.finalize_and_wait()?; // Now its handlers have ended.
/// let outcomes = &instance.monitoring().statistics().target[0].outcomes;
/// assert_eq!(outcomes[&RequestOutcome::Failed], 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum RequestOutcome {
    /// Answered with a result; of a one-way request: handled.
    Ok,
    /// The arguments could not be decoded.
    BadArguments,
    /// The handler panicked.
    Panicked,
    /// Refused: a bound on requests in hand was reached.
    Busy,
    /// Refused: this instance is shutting down.
    Closing,
    /// The deadline had passed before a handler was free; the handler did not run.
    TimedOut,
    /// It was canceled before a handler was free; the handler did not run.
    Canceled,
    /// The handler said that it failed, gave no answer, or its result could not be encoded.
    Failed,
    /// No ULT could be made for the handler.
    NoUlt,
    /// The network did not take the answer. One that it took and lost, with its origin, counts as
    /// [`Ok`](Self::Ok): calls end at their origins.
    Network,
    /// Refused: the rules (`margo.security`) do not allow it.
    Permission,
}

impl RequestOutcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Ok,
        Self::BadArguments,
        Self::Panicked,
        Self::Busy,
        Self::Closing,
        Self::TimedOut,
        Self::Canceled,
        Self::Failed,
        Self::NoUlt,
        Self::Network,
        Self::Permission,
    ];

    /// As it stands in statistics, for example `bad_arguments`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::BadArguments => "bad_arguments",
            Self::Panicked => "panicked",
            Self::Busy => "busy",
            Self::Closing => "closing",
            Self::TimedOut => "timed_out",
            Self::Canceled => "canceled",
            Self::Failed => "failed",
            Self::NoUlt => "no_ult",
            Self::Network => "network",
            Self::Permission => "permission",
        }
    }

    pub(crate) fn of_code(code: ReturnCode) -> Self {
        match code {
            ReturnCode::Success => Self::Ok,
            ReturnCode::Fault => Self::Panicked,
            ReturnCode::ProtocolError => Self::BadArguments,
            ReturnCode::Busy => Self::Busy,
            ReturnCode::Again => Self::NoUlt,
            ReturnCode::Permission => Self::Closing,
            ReturnCode::Timeout => Self::TimedOut,
            ReturnCode::Canceled => Self::Canceled,
            _ => Self::Failed,
        }
    }
}

impl fmt::Display for RequestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call, as its origin saw it.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use margo::monitor::{Monitor, OriginSpan};
///
/// #[derive(Default)]
/// struct Calls(Mutex<Vec<OriginSpan>>);
///
/// impl Monitor for Calls {
///     fn on_origin_call(&self, span: &OriginSpan) {
///         self.0.lock().unwrap().push(span.clone());
///     }
/// }
/// # use margo::{Instance, Rpc};
/// # const PING: Rpc<(), ()> = Rpc::new("ping");
/// # let calls = Arc::new(Calls::default());
/// # let instance = Instance::builder("na+sm://").monitor(calls.clone()).start()?;
/// # instance.serve(PING).function(|()| ())?;
/// # instance.forward(PING, &instance.self_addr().into(), &())?;
/// # instance.finalize_and_wait()?;
/// // … a call of `ping` …
/// let calls = calls.0.lock().unwrap();
/// let ping = calls.iter().find(|span| span.rpc == "ping").expect("it was called");
/// let (Some(sent), Some(arrived)) = (ping.sent, ping.arrived) else { panic!("it has ended") };
/// println!("{:?} until it was sent, {:?} away", sent.since(ping.created), arrived.since(sent));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OriginSpan {
    /// The RPC's name.
    pub rpc: &'static str,
    /// The number, provider included.
    pub rpc_id: RpcId,
    /// The provider that was called.
    pub provider: ProviderId,
    /// The RPC in whose handler the call was made; `None`: outside of any.
    pub parent: Option<RpcId>,
    /// The peer that was called.
    pub peer: Addr,
    /// No response is waited for.
    pub one_way: bool,
    /// The trace that it is part of, across processes, if this instance records that.
    pub trace: Option<SpanOfTrace>,
    /// How it ended.
    pub outcome: CallOutcome,
    /// Bytes of the encoded arguments; 0 if they were not encoded.
    pub bytes_out: u64,
    /// Bytes of the encoded result; `None`: none came.
    pub bytes_in: Option<u64>,
    /// How many calls this one stands for, because statistics look at some only; 1: all are looked
    /// at.
    pub weight: u32,
    /// The call began.
    pub created: Moment,
    /// Encoding of the arguments began.
    pub encode_start: Option<Moment>,
    /// Encoding of the arguments ended.
    pub encode_end: Option<Moment>,
    /// The network had taken the request, and the caller went on or began to wait.
    pub sent: Option<Moment>,
    /// The response, or the end of the call, was here.
    pub arrived: Option<Moment>,
    /// The caller ran again and looked at the response; `None`: it did not.
    pub resumed: Option<Moment>,
    /// The result was decoded.
    pub decoded: Option<Moment>,
}

/// A request, as its target saw it.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use margo::monitor::{Monitor, TargetSpan};
///
/// #[derive(Default)]
/// struct Requests(Mutex<Vec<TargetSpan>>);
///
/// impl Monitor for Requests {
///     fn on_target_call(&self, span: &TargetSpan) {
///         self.0.lock().unwrap().push(span.clone());
///     }
/// }
/// # use margo::{Instance, Rpc};
/// # const PING: Rpc<(), ()> = Rpc::new("ping");
/// # let requests = Arc::new(Requests::default());
/// # let instance = Instance::builder("na+sm://").monitor(requests.clone()).start()?;
/// # instance.serve(PING).function(|()| ())?;
/// # instance.forward(PING, &instance.self_addr().into(), &())?;
/// # instance.finalize_and_wait()?;
/// // … a request of `ping` …
/// let requests = requests.0.lock().unwrap();
/// let ping = requests.iter().find(|span| span.rpc == "ping").expect("it was served");
/// let started = ping.started.expect("its handler ran");
/// println!("from {}, begun after {:?}", ping.peer, started.since(ping.arrived));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TargetSpan {
    /// The RPC's name.
    pub rpc: &'static str,
    /// The number, provider included.
    pub rpc_id: RpcId,
    /// The provider that was called.
    pub provider: ProviderId,
    /// The RPC in whose handler, at the origin, the call was made; `None`: outside of any.
    pub parent: Option<RpcId>,
    /// The peer that called.
    pub peer: Addr,
    /// The user, host or name behind it, as [`Handle::principal`](crate::Handle::principal) tells
    /// it.
    pub caller: Principal,
    /// The caller on whose behalf the call is made, as
    /// [`Handle::on_behalf_of`](crate::Handle::on_behalf_of) tells it.
    pub on_behalf_of: Option<Box<OnBehalfOf>>,
    /// No response is waited for.
    pub one_way: bool,
    /// The trace that it is part of, across processes, if the origin has named one.
    pub trace: Option<SpanOfTrace>,
    /// The pool of the handler.
    pub pool: Pool,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// Bytes of the encoded arguments.
    pub bytes_in: u64,
    /// Bytes of the encoded result; `None`: there is none.
    pub bytes_out: Option<u64>,
    /// How many requests this one stands for, because statistics look at some only; 1: all are
    /// looked at.
    pub weight: u32,
    /// It was here, with all of its arguments.
    pub arrived: Moment,
    /// It had passed all bounds on requests in hand; `None`: it was refused.
    pub admitted: Option<Moment>,
    /// The ULT, or tasklet, began.
    pub started: Option<Moment>,
    /// The arguments were decoded, and the handler was called.
    pub decoded: Option<Moment>,
    /// The handler answered, or the runtime in its stead.
    pub respond_start: Option<Moment>,
    /// The result was encoded.
    pub encode_end: Option<Moment>,
    /// The result was encoded and given to the network.
    pub respond_end: Option<Moment>,
    /// The network had taken all of the response.
    pub sent: Option<Moment>,
    /// The handler's ULT ended.
    pub ended: Option<Moment>,
    /// Bulk transfers that the handler's ULT made.
    pub bulk: BulkOfRequest,
}

/// The bulk transfers that the ULT of a handler made and that were over before its span was.
///
/// ```
/// use margo::monitor::{Monitor, TargetSpan};
///
/// /// Reports handlers that move a lot of data.
/// struct Heavy;
///
/// impl Monitor for Heavy {
///     fn on_target_call(&self, span: &TargetSpan) {
///         if span.bulk.bytes > 1 << 30 {
///             let (bytes, transfers) = (span.bulk.bytes, span.bulk.transfers);
///             println!("{}: {bytes} bytes in {transfers} transfers", span.rpc);
///         }
///     }
/// }
/// # let heavy = std::sync::Arc::new(Heavy);
/// # margo::Instance::builder("na+sm://").monitor(heavy).start()?.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkOfRequest {
    /// How many.
    pub transfers: u64,
    /// Bytes that were to be moved.
    pub bytes: u64,
    /// The time that each of them took, added up, nanoseconds; longer than the handler if they went
    /// on at once.
    pub nanos: u64,
}

/// The direction in which bulk data moves.
///
/// ```
/// use margo::monitor::{BulkDirection, Statistics};
///
/// /// The bytes that an instance has fetched, and those that it has written.
/// fn moved(statistics: &Statistics) -> (u64, u64) {
///     statistics.bulk.iter().fold((0, 0), |(pulled, pushed), row| match row.direction {
///         BulkDirection::Pull => (pulled + row.bytes, pushed),
///         BulkDirection::Push => (pulled, pushed + row.bytes),
///     })
/// }
/// assert_eq!(moved(&Statistics::default()), (0, 0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkDirection {
    /// From the peer's memory.
    Pull,
    /// Into the peer's memory.
    Push,
}

/// The outcome of a bulk transfer.
///
/// ```
/// # use margo::{Access, Instance, monitor::BulkOutcome};
/// # let instance = Instance::builder("na+sm://").start()?;
/// # let exposed = instance.expose(vec![7; 100_000], Access::ReadOnly)?;
/// # let mut buffer = instance.memory().bulk_buffer(100_000)?;
/// instance.monitoring().start_statistics(1);
/// instance.pull(&instance.self_addr(), exposed.bulk(), 0, &mut buffer, 0..100_000)?;
/// let outcomes = &instance.monitoring().statistics().bulk[0].outcomes;
/// assert_eq!(outcomes[&BulkOutcome::Ok], 1);
/// assert_eq!(BulkOutcome::TimedOut.name(), "timed_out");
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum BulkOutcome {
    /// All bytes have been moved.
    Ok,
    /// The deadline passed.
    TimedOut,
    /// It was cancelled here.
    Canceled,
    /// The network or the peer failed, or refused it.
    Failed,
}

impl BulkOutcome {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Ok, Self::TimedOut, Self::Canceled, Self::Failed];

    /// As it stands in statistics, for example `timed_out`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::TimedOut => "timed_out",
            Self::Canceled => "canceled",
            Self::Failed => "failed",
        }
    }
}

/// A bulk transfer, as the side that asked for it saw it.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use margo::monitor::{BulkSpan, Monitor};
///
/// #[derive(Default)]
/// struct Transfers(Mutex<Vec<BulkSpan>>);
///
/// impl Monitor for Transfers {
///     fn on_bulk(&self, span: &BulkSpan) {
///         self.0.lock().unwrap().push(span.clone());
///     }
/// }
/// # use margo::{Access, Instance};
/// # let transfers = Arc::new(Transfers::default());
/// # let instance = Instance::builder("na+sm://").monitor(transfers.clone()).start()?;
/// # let exposed = instance.expose(vec![7; 100_000], Access::ReadOnly)?;
/// # let mut buffer = instance.memory().bulk_buffer(100_000)?;
/// # instance.pull(&instance.self_addr(), exposed.bulk(), 0, &mut buffer, 0..100_000)?;
/// # instance.finalize_and_wait()?;
/// // … a pull of 100,000 bytes …
/// let span = &transfers.0.lock().unwrap()[0];
/// assert_eq!(span.bytes, 100_000);
/// println!("{:?}", span.ended.expect("it is over").since(span.created));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BulkSpan {
    /// The direction.
    pub direction: BulkDirection,
    /// The peer whose memory is at the other side.
    pub peer: Addr,
    /// Bytes that were to be moved.
    pub bytes: u64,
    /// The RPC on whose behalf it was made; `None`: outside of any.
    pub rpc_id: Option<RpcId>,
    /// The trace that it is part of, across processes, if this instance records that.
    pub trace: Option<SpanOfTrace>,
    /// The request in whose handler's ULT it was made, if that request has a span.
    pub request: Option<RequestOfBulk>,
    /// How it ended.
    pub outcome: BulkOutcome,
    /// How many transfers this one stands for; 1: all are looked at.
    pub weight: u32,
    /// It began.
    pub created: Moment,
    /// The network had been asked for it, and the caller went on or began to wait.
    pub started: Option<Moment>,
    /// All had been moved, or it had ended otherwise.
    pub ended: Option<Moment>,
    /// The caller ran again and looked at the end; `None`: it did not.
    pub resumed: Option<Moment>,
}

/// The request to which a bulk transfer belongs.
///
/// ```
/// use margo::monitor::{BulkSpan, Monitor};
///
/// /// Reports for whom data is moved.
/// struct Movers;
///
/// impl Monitor for Movers {
///     fn on_bulk(&self, span: &BulkSpan) {
///         if let Some(request) = &span.request {
///             let after = span.created.since(request.arrived);
///             println!("{} bytes for {}, {after:?} after it asked", span.bytes, request.peer);
///         }
///     }
/// }
/// # let movers = std::sync::Arc::new(Movers);
/// # margo::Instance::builder("na+sm://").monitor(movers).start()?.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RequestOfBulk {
    /// The RPC in whose handler, at the origin, the call was made.
    pub parent: Option<RpcId>,
    /// The peer that sent the request.
    pub peer: Addr,
    /// The time of its arrival.
    pub arrived: Moment,
    /// The time at which its ULT began.
    pub started: Option<Moment>,
    /// The trace that it is part of, across processes, if the origin has named one.
    pub trace: Option<SpanOfTrace>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_listed_by_number_with_names_of_their_own() {
        for (number, outcome) in CallOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
            let json = serde_json::to_value(outcome).unwrap();
            assert_eq!(json, outcome.name());
        }
        for (number, outcome) in RequestOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
            let json = serde_json::to_value(outcome).unwrap();
            assert_eq!(json, outcome.name());
        }
        for (number, outcome) in BulkOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.name());
        }
    }

    #[test]
    fn codes_of_both_ends_belong_together() {
        use CallOutcome as C;
        use RequestOutcome as R;
        for (code, target, origin) in [
            (ReturnCode::Success, R::Ok, C::Ok),
            (ReturnCode::Fault, R::Panicked, C::Panicked),
            (ReturnCode::ProtocolError, R::BadArguments, C::BadArguments),
            (ReturnCode::Busy, R::Busy, C::Busy),
            (ReturnCode::Again, R::NoUlt, C::Busy),
            (ReturnCode::Permission, R::Closing, C::PeerClosing),
            (ReturnCode::Timeout, R::TimedOut, C::TimedOut),
            (ReturnCode::OtherError, R::Failed, C::Failed),
        ] {
            assert_eq!(R::of_code(code), target);
            assert_eq!(C::of_code(code), origin);
        }
    }
}
