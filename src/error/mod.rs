//! One error enum for each kind of operation.
//!
//! Each variant says what was wrong and where; its documentation says what to do. No failure turns
//! into a hang: a call always ends with its result or with one of these.

use std::fmt;
use std::time::Duration;

use hg::{self, HgError, ProviderId, ReturnCode};

mod own;
mod peers;
pub(crate) mod register;

pub use self::own::{
    FinalizeError, ProfileError, ProviderError, PublishError, StageOver, TimerError,
};
pub use self::peers::{DescribeError, IdentityError, MetricsError, ShutdownRemoteError};
pub use self::register::RegisterError;

/// The reason why an instance did not start. Everything that had been started was undone.
///
/// ```
/// use margo::InitError;
///
/// match margo::init(r#"{ "margo": { "listen": "yes" } }"#) {
///     Ok(_) => unreachable!("`listen` is true or false"),
///     Err(InitError::Config(errors)) => assert!(errors.to_string().contains("margo.listen")),
///     Err(InitError::Network { address, source }) => println!("{address}: {source}"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The configuration is wrong. All of its errors, each with its path, and where it was read
    /// from text mostly with line and column.
    #[error("the configuration is not valid:\n{0}")]
    Config(#[from] margo_config::Errors),
    /// The layout does not work on this machine: everything that is wrong with it.
    #[error("the layout does not work on this machine:\n{0}")]
    Layout(LayoutErrors),
    /// The execution streams or pools could not be made.
    #[error("cannot start the execution streams: {}", chain(.0))]
    Ult(#[from] ult::StartError),
    /// The network address could not be opened, though it could be elsewhere.
    #[error("cannot open `{address}`: {source}")]
    Network {
        /// The address of the configuration.
        address: String,
        /// The transport's error.
        source: na::Error,
    },
    /// The RPC layer could not start.
    #[error("cannot start the RPC layer on `{address}`: {source}")]
    Rpc {
        /// The address of the configuration.
        address: String,
        /// Why.
        source: HgError,
    },
    /// The file of `margo.trace` could not be made.
    #[error("cannot record calls in `{}`: {source}", path.display())]
    Trace {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file of `margo.security.audit` could not be opened.
    #[error("margo.security.audit: cannot write to `{}`: {source}", path.display())]
    Audit {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file of `margo.address_file` could not be written.
    #[error("margo.address_file: cannot write the address to {source}")]
    AddressFile {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error, with the file's name.
        source: std::io::Error,
    },
    /// A file that is to be written when the instance ends cannot be: statistics, time series, or a
    /// profile. Found by making an empty file beside it, which is removed.
    #[error("{key}: cannot write {source}")]
    Destination {
        /// The key of the configuration that names the place.
        key: &'static str,
        /// The file, without the number that further instances of a process have in it.
        path: std::path::PathBuf,
        /// The system's error, with the file's name.
        source: std::io::Error,
    },
    /// The progress ULT could not be made.
    #[error("cannot start the progress ULT: {0}")]
    Progress(#[from] ult::SpawnError),
    /// The system has no memory for the stack of the progress ULT. Lower the stack size, or give
    /// the process more address space.
    #[error(
        "cannot start the progress ULT in pool `{pool}`: no memory for a stack of {bytes} bytes; \
         lower stack_bytes of the pool or argobots.abt_thread_stacksize, or raise the limits of \
         the process (ulimit -v, vm.max_map_count)"
    )]
    NoStack {
        /// The pool.
        pool: String,
        /// Stack size of its ULTs, bytes.
        bytes: usize,
    },
    /// The [parent](crate::InstanceBuilder::parent) is shutting down, or is that of a process which
    /// forked this one off.
    #[error("the parent instance is shutting down, or belongs to the parent of this process")]
    ParentClosing,
    /// A tasklet, such as the inline callback of a timer, must not wait, and here it would be for
    /// the runtime that it runs in: for the progress ULT of a child, or of an instance in a
    /// [runtime](crate::InstanceBuilder::runtime) of the program's.
    #[error("a tasklet must not wait for the start of an instance in its own runtime; use a ULT")]
    Inline,
    /// A pool of the parent, or of the program's runtime, was removed meanwhile.
    #[error("pool `{pool}`, in which the instance was to run, has been removed")]
    PoolGone {
        /// The name.
        pool: String,
    },
    /// The progress ULT was to run in a private pool of the program's
    /// [runtime](crate::InstanceBuilder::runtime): only units of its xstream may spawn into it.
    #[error("progress_pool: pool `{pool}` is private; make it mpsc or mpmc")]
    PrivatePool {
        /// The pool.
        pool: String,
    },
    /// The devices that `mercury.na_request_mem_device` asks for cannot be used: the driver is
    /// missing, or a device.
    #[error("mercury.na_request_mem_device: {0}")]
    Device(String),
    /// The server for Prometheus could not start.
    #[error("margo.metrics.listen: cannot listen on {listen}: {source}")]
    Metrics {
        /// The address that the configuration gives.
        listen: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The signal of `margo.dump_on_signal` cannot be caught, or there is no thread to answer it.
    #[error("margo.dump_on_signal: cannot answer {signal}: {source}")]
    Signal {
        /// The name.
        signal: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// An RPC that each instance serves could not be registered.
    #[error("cannot register the RPCs that every instance serves: {0}")]
    Register(#[from] RegisterError),
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// One thing that this machine, or the runtime, refuses.
///
/// ```
/// use margo::{InitError, config::Config, elasticity::Layout};
///
/// let config = Config::from_json(
///     r#"{ "argobots": {
///         "pools": [{ "name": "p" }],
///         "xstreams": [{ "name": "x", "cpubind": 1000000, "scheduler": { "pools": ["p"] } }]
///     } }"#,
/// )?;
/// let Err(InitError::Layout(errors)) = Layout::of(&config) else { panic!("no such CPUs") };
/// let error = &errors.as_slice()[0];
/// assert_eq!(error.path, "argobots.xstreams[0].cpubind");
/// println!("{}", error.message); // Says what would be right, too.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
#[non_exhaustive]
pub struct LayoutError {
    /// The place in the configuration, such as `argobots.xstreams[1].cpubind`.
    pub path: String,
    /// The value, what is wrong with it, and what would be right.
    pub message: String,
}

/// All [`LayoutError`]s of a document, in its order. Never empty; prints one per line.
///
/// ```
/// use margo::{InitError, config::Config, elasticity::Layout};
///
/// let config = Config::from_json(
///     r#"{ "argobots": {
///         "pools": [{ "name": "p" }],
///         "xstreams": [
///             { "name": "x", "cpubind": 1000000, "scheduler": { "pools": ["p"] } },
///             { "name": "y", "cpubind": 1000001, "scheduler": { "pools": ["p"] } }]
///     } }"#,
/// )?;
/// let Err(InitError::Layout(errors)) = Layout::of(&config) else { panic!("no such CPUs") };
/// assert_eq!(errors.as_slice().len(), 2);
/// assert_eq!(errors.to_string().lines().count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutErrors(pub(crate) Vec<LayoutError>);

impl LayoutErrors {
    /// The errors.
    pub fn as_slice(&self) -> &[LayoutError] {
        &self.0
    }
}

impl std::fmt::Display for LayoutErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LayoutErrors {}

/// The reason why an address could not be looked up.
///
/// ```
/// # let instance = margo::Instance::builder("na+sm://").start()?;
/// let error = instance.lookup("the server").unwrap_err();
/// assert_eq!(error.uri, "the server");
/// println!("{}", error.source);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("cannot look up `{uri}`: {source}")]
pub struct LookupError {
    /// The text that was given.
    pub uri: String,
    /// The reason, as the transport gives it.
    pub source: na::Error,
}

/// The reason why a [`forward`](crate::Instance::forward) has no result.
///
/// ```
/// use margo::{ForwardError, Instance, ProviderHandle, Rpc};
///
/// const NOWHERE: Rpc<(), ()> = Rpc::new("nowhere");
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let target = ProviderHandle::from(instance.self_addr());
/// match instance.forward(NOWHERE, &target, &()) {
///     Ok(()) => unreachable!("nobody serves it"),
///     Err(ForwardError::NotRegistered { rpc, .. }) => assert_eq!(rpc, "nowhere"),
///     Err(error) if error.never_ran() => println!("safe to repeat: {error}"),
///     Err(error) => println!("it may have run: {error}"),
/// }
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// The reply did not come in time. The handler may have run, or may still run: repeat only what
    /// is idempotent, unless `never_ran` says that it did not.
    #[error("no reply to `{rpc}` from {peer} within {limit:?}")]
    TimedOut {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
        /// The time that was allowed.
        limit: Duration,
        /// The time was over before a handler was free, as the peer has said, or before a request
        /// without a response was sent.
        never_ran: bool,
    },
    /// The call was cancelled here. The handler may have run, or may still run: its answer is
    /// dropped; unless `never_ran` says that it did not.
    #[error("the call of `{rpc}` at {peer} was cancelled")]
    Canceled {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
        /// Nothing was sent: the token that cancels it
        /// ([`cancels_calls_in`](crate::cancel::CancelToken::cancels_calls_in)) had fired before.
        never_ran: bool,
    },
    /// The peer runs, but has no such RPC under this provider id. Check both, and whether the
    /// provider was started. From a C peer: Mercury's RPC layer said so. (That C Margo has no
    /// handler for an RPC which it calls itself is [`Failed`](Self::Failed) with `HG_NOENTRY`.)
    #[error("{peer} has no RPC `{rpc}` for provider {provider}")]
    NotRegistered {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
        /// The provider that was asked for.
        provider: ProviderId,
    },
    /// The handler panicked. The peer goes on serving. Only our own peers say so.
    #[error("the handler of `{rpc}` at {peer} panicked: {detail}")]
    Panicked {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
        /// The panic's message.
        detail: String,
    },
    /// The peer could not decode the arguments: the two sides define the RPC differently. Only our
    /// own peers say so.
    #[error("{peer} cannot decode the arguments of `{rpc}`: {detail}")]
    BadArguments {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
        /// Where decoding failed.
        detail: String,
    },
    /// The peer did not take the request, which did not run; or its handler has changed nothing and
    /// asks to come again later ([`Handle::fail_with`](crate::Handle::fail_with)). Without a detail
    /// it has too much to do: try again later, or raise the bounds there: `margo.admission`,
    /// [`Serve::admission`](crate::Serve::admission). Only our own peers say so.
    #[error("{peer} {}", Refused { rpc, detail })]
    Busy {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
        /// The reason, if it is not those bounds, or what the handler says; often empty.
        detail: String,
    },
    /// The peer is shutting down. The request did not run. Only our own peers say so; of C Margo it
    /// is [`Failed`](Self::Failed) with `HG_PERMISSION`, which a handler of C may have answered,
    /// too.
    #[error("{peer} is shutting down and refused `{rpc}`")]
    PeerClosing {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
    },
    /// The rules of the peer (`margo.security`) do not let this caller call that RPC. The request
    /// did not run. The log of the peer says why; here nothing tells. Only our own peers say so.
    #[error("{peer} does not let this caller call `{rpc}`")]
    Permission {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
    },
    /// The handler ended with an error code, or without an answer. Or a C peer has answered with
    /// that code, whichever it is: its runtime, or a handler that has run; nothing tells which.
    #[error("`{rpc}` at {peer} failed with {code}: {detail}")]
    Failed {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
        /// The code, as Mercury numbers them.
        code: ReturnCode,
        /// The peer's explanation; may be empty.
        detail: String,
    },
    /// The arguments cannot be encoded. Nothing was sent.
    #[error("cannot encode the arguments of `{rpc}`: {source}")]
    Encode {
        /// The RPC's name.
        rpc: &'static str,
        /// Why.
        source: hg::ProcError,
    },
    /// The reply cannot be decoded: the two sides define the RPC differently. The handler ran.
    #[error("cannot decode the reply to `{rpc}` from {peer}: {source}")]
    Decode {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
        /// Where decoding failed.
        source: hg::ProcError,
    },
    /// The network or the peer failed; see [`HgError`]. Whether the handler ran is unknown, unless
    /// [`never_ran`](Self::never_ran) says so.
    #[error("call of `{rpc}` at {peer} failed: {source}")]
    Network {
        /// The RPC's name.
        rpc: &'static str,
        /// The peer's address.
        peer: String,
        /// The failure.
        source: HgError,
    },
    /// The caller is a tasklet, which cannot wait without blocking its whole execution stream.
    /// Register the handler without [`tasklet`](crate::Serve::tasklet), or make the call in a ULT
    /// that it spawns.
    #[error("a tasklet cannot wait for `{rpc}`: make the call in a ULT")]
    Tasklet {
        /// The RPC's name.
        rpc: &'static str,
        /// Nothing was sent. Otherwise it waited for a [`ForwardRequest`](crate::ForwardRequest),
        /// whose call was cancelled: the handler may have run, or may still run.
        never_ran: bool,
    },
    /// This instance is shutting down. If the request was already sent, the handler may have run.
    #[error("call of `{rpc}` ended: this instance is shutting down")]
    Closing {
        /// The RPC's name.
        rpc: &'static str,
    },
}

/// Prints why a request was not taken.
struct Refused<'a> {
    rpc: &'static str,
    detail: &'a str,
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rpc, detail } = self;
        match detail.is_empty() {
            true => write!(
                f,
                "is too busy for `{rpc}`: try again later, or raise its bounds (`margo.admission`)"
            ),
            false => write!(f, "did not take `{rpc}`: {detail}"),
        }
    }
}

impl ForwardError {
    /// Returns whether the handler certainly did not run, or says itself that it has changed
    /// nothing ([`Busy`](Self::Busy)), so that calling again is harmless.
    ///
    /// Of the codes of C peers only `HG_NOENTRY` of Mercury's RPC layer says so
    /// ([`NotRegistered`](Self::NotRegistered)). That code is believed: a program that registers
    /// handlers with Mercury's core layer (`HG_Core_register`), or any program on Mercury before
    /// 2.1, must not return it from a handler that has done something.
    pub fn never_ran(&self) -> bool {
        match self {
            Self::NotRegistered { .. }
            | Self::BadArguments { .. }
            | Self::Busy { .. }
            | Self::PeerClosing { .. }
            | Self::Permission { .. }
            | Self::TimedOut { never_ran: true, .. }
            | Self::Canceled { never_ran: true, .. }
            | Self::Tasklet { never_ran: true, .. }
            | Self::Encode { .. } => true,
            Self::Network { source: HgError::Na(error), .. } => error.never_arrived(),
            Self::Network { source: HgError::Forked, .. } => true,
            _ => false,
        }
    }
}

/// The reason why an answer was not sent, or, for a caller that has waited for its end, not
/// delivered.
///
/// ```
/// use std::sync::mpsc;
///
/// use margo::{Instance, ProviderHandle, RespondError, Rpc};
///
/// const PING: Rpc<(), ()> = Rpc::new("ping");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let (sender, second) = mpsc::channel();
/// service.register(PING, move |request| {
///     let _ = request.respond(&());
///     let _ = sender.send(request.respond(&()));
/// })?;
/// service.forward(PING, &ProviderHandle::from(service.self_addr()), &())?;
/// match second.recv()? {
///     Err(RespondError::Answered { rpc }) => assert_eq!(rpc, "ping"),
///     other => panic!("the first answer stands: {other:?}"),
/// }
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RespondError {
    /// The code is not for handlers: it would tell the origin what only the runtime can know, such
    /// as that no handler has run. The request is not answered. Use another one; see
    /// [`Handle::fail_with`](crate::Handle::fail_with).
    #[error(
        "`{rpc}` was not answered with {code}, which only the runtime sends; use another code, for \
         example HG_INVALID_ARG, HG_ACCESS, or HG_BUSY for \"come again\""
    )]
    Reserved {
        /// The RPC's name.
        rpc: &'static str,
        /// The code.
        code: ReturnCode,
    },
    /// This request was answered before. The first answer stands.
    #[error("`{rpc}` was already answered")]
    Answered {
        /// The RPC's name.
        rpc: &'static str,
    },
    /// The result cannot be encoded. The origin was told so.
    #[error("cannot encode the result of `{rpc}`: {source}")]
    Encode {
        /// The RPC's name.
        rpc: &'static str,
        /// Why.
        source: hg::ProcError,
    },
    /// The network refused the answer, or lost it; the origin is gone or the instance is closed.
    /// Or, with [`HgError::Unfetched`], too many bytes of long results are kept for origins that do
    /// not fetch them (`margo.overflow_held_max`); the origin was told so. Or, with
    /// [`HgError::GaveWay`], the origin has not fetched this one for a minute, and others needed
    /// the room.
    #[error("cannot answer `{rpc}`: {source}")]
    Network {
        /// The RPC's name.
        rpc: &'static str,
        /// The failure.
        source: HgError,
    },
    /// The origin lives, but did not take or fetch the answer in time. It cannot any more: its call
    /// ends with an error, if it is not over.
    #[error("{peer} did not take the answer to `{rpc}` within {limit:?}")]
    TimedOut {
        /// The RPC's name.
        rpc: &'static str,
        /// The origin's address.
        peer: String,
        /// The time that was allowed.
        limit: Duration,
    },
    /// The answer was cancelled here before the origin had it. Its call ends with an error.
    #[error("the answer to `{rpc}` of {peer} was cancelled")]
    Canceled {
        /// The RPC's name.
        rpc: &'static str,
        /// The origin's address.
        peer: String,
    },
    /// The answer came to the origin, which has not read it: no caller waited for it any more, or
    /// it was damaged on its way, could not be fetched, or is longer than the origin accepts. Only
    /// our own origins say so, of answers that do not fit into a message.
    #[error("{peer} has not read the answer to `{rpc}`: {}", Why { given_up: *given_up })]
    Unread {
        /// The RPC's name.
        rpc: &'static str,
        /// The origin's address.
        peer: String,
        /// It had given its call up.
        given_up: bool,
    },
    /// The caller is a tasklet, which cannot wait without blocking its whole execution stream. The
    /// answer is on its way, and goes on. Wait for it in a ULT.
    #[error("a tasklet cannot wait for the end of its answer to `{rpc}`: do that in a ULT")]
    Tasklet {
        /// The RPC's name.
        rpc: &'static str,
    },
}

/// Prints why an answer was not read.
struct Why {
    given_up: bool,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.given_up {
            true => "it had given the call up",
            false => "it could not fetch it, or not read what it fetched",
        })
    }
}

/// Why a bulk operation failed. On error, none of the destination's bytes may be relied on.
///
/// ```
/// use margo::{Access, BulkError, Instance};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let exposed = instance.expose(vec![7; 100], Access::ReadOnly)?;
/// let mut buffer = instance.memory().bulk_buffer(100)?;
/// match instance.pull(&instance.self_addr(), exposed.bulk(), 0, &mut buffer, 50..101) {
///     Ok(()) => unreachable!("the buffer is shorter"),
///     Err(BulkError::LocalRange { end, len, .. }) => assert_eq!((end, len), (101, 100)),
///     Err(BulkError::TimedOut { limit, .. }) => println!("more than {limit:?}"),
///     Err(error) => println!("{error}"),
/// }
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BulkError {
    /// The range is not inside the local buffer. Nothing was started.
    #[error("bytes {start}..{end} are not inside the local buffer of {len} bytes")]
    LocalRange {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// The buffer's length.
        len: usize,
    },
    /// The transfer did not end in time and was cancelled; or was not started, as a handler's
    /// after the deadline of its request.
    #[error("bulk transfer with {peer} did not end within {limit:?}")]
    TimedOut {
        /// The peer's address.
        peer: String,
        /// The time that was allowed.
        limit: Duration,
    },
    /// The transfer had no deadline, and stood still for so long that it was given up: the peer is
    /// there and serves nothing. It may take longer with a deadline of its own
    /// ([`BulkTransfer::timeout`](crate::BulkTransfer::timeout)), or with another
    /// `margo.bulk.timeout_msec` in the configuration.
    #[error(
        "bulk transfer with {peer} has stood still for {limit:?} and was given up (the setting \
         `margo.bulk.timeout_msec`)"
    )]
    StoodStill {
        /// The peer's address.
        peer: String,
        /// How long, at least; longer where much was under way.
        limit: Duration,
    },
    /// The transfer was cancelled here.
    #[error("bulk transfer with {peer} was cancelled")]
    Canceled {
        /// The peer's address.
        peer: String,
    },
    /// There is no such memory: none is left, or not where it was asked for.
    #[error("cannot allocate memory for bulk transfer: {0}")]
    Alloc(#[source] HgError),
    /// The memory could not be registered with the transport.
    #[error("cannot register memory for bulk transfer: {0}")]
    Register(#[source] HgError),
    /// The transfer failed: the owner refused it, is gone, or the network failed.
    #[error("bulk transfer with {peer} failed: {source}")]
    Transfer {
        /// The peer's address.
        peer: String,
        /// The failure.
        source: HgError,
    },
    /// The caller is a tasklet, which cannot wait without blocking its whole execution stream.
    /// Nothing was started, nor exposed. Transfer in a ULT.
    #[error("a tasklet cannot wait for a bulk transfer: make it in a ULT")]
    Tasklet,
    /// The bytes are in the memory of a device, where this host can neither read nor write them.
    /// Transfer them, or copy them by the device.
    #[error(
        "memory of a device cannot be read or written in place: transfer its bytes, or copy them \
         with device::DeviceMemory"
    )]
    OfDevice,
    /// The handle cannot be bound to its owner, or names one that this transport cannot reach.
    #[error("the owner of a bulk handle: {0}")]
    Owner(#[source] HgError),
}
