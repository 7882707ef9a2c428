//! One error enum for each kind of operation.
//!
//! Each variant says what was wrong and where; its documentation says what to do. No failure turns
//! into a hang: a call always ends with its result or with one of these.

use std::fmt;
use std::time::Duration;

use hg::{self, HgError, ProviderId, ReturnCode};

pub(crate) mod register;

pub use self::register::RegisterError;

/// The reason why an instance did not start. Everything that had been started was undone.
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
#[derive(Debug, thiserror::Error)]
#[error("cannot look up `{uri}`: {source}")]
pub struct LookupError {
    /// The text that was given.
    pub uri: String,
    /// The reason, as the transport gives it.
    pub source: na::Error,
}

/// The reason why a [`forward`](crate::Instance::forward) has no result.
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
    /// The handle cannot be bound to its owner, or names one that this transport cannot reach.
    #[error("the owner of a bulk handle: {0}")]
    Owner(#[source] HgError),
}

/// The reason why a provider is not what it was taken for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// It is something else. Check the provider id, and which of the two sides is configured wrong.
    #[error("{provider} is `{}`, not `{expected}`", na::plain::text(.found))]
    Other {
        /// Which one.
        provider: String,
        /// The identity that it was taken for.
        expected: String,
        /// The identity that it reports.
        found: String,
    },
    /// There is no such provider, or it does not say what it is.
    #[error("{provider} does not say that it is `{expected}`, or is not there")]
    None {
        /// Which one.
        provider: String,
        /// The identity that it was taken for.
        expected: String,
    },
    /// It could not be asked.
    #[error("cannot ask a provider what it is: {0}")]
    Forward(#[from] ForwardError),
}

/// The reason why providers could not be started from the configuration, or do what was asked of
/// them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// No component of that type was offered to `start_providers`.
    #[error("provider `{name}`: no component of type `{type_name}` (this program has: {known})")]
    UnknownType {
        /// The provider's name in the configuration.
        name: String,
        /// The type in the configuration.
        type_name: String,
        /// The types that there are.
        known: String,
    },
    /// The `dependencies` are not what its type needs, or the address of one cannot be looked up.
    #[error("provider `{name}` of type `{type_name}`: dependencies: {reason}")]
    Dependency {
        /// The provider's name in the configuration.
        name: String,
        /// The type.
        type_name: String,
        /// Which, and what is wrong with it.
        reason: String,
    },
    /// The component refused to start. Providers that had been started were stopped.
    #[error("provider `{name}` of type `{type_name}` did not start: {source}")]
    Start {
        /// The provider's name in the configuration.
        name: String,
        /// The type.
        type_name: String,
        /// The component's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No provider of that name runs.
    #[error("no provider `{name}` was started (there are: {known})")]
    UnknownName {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A running provider could not do what was asked of it.
    #[error("provider `{name}` of type `{type_name}`: {what}: {source}")]
    Asked {
        /// The provider's name.
        name: String,
        /// The type.
        type_name: String,
        /// `drain`, `snapshot` or `restore`.
        what: &'static str,
        /// The provider's error; [`Unsupported`](crate::component::Unsupported) if its type cannot.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The failure of a step while an instance was shutting down. The instance is shut down as far as
/// possible.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FinalizeError {
    /// Some ULTs did not end: the network is closed, but their execution streams still run.
    #[error("finalized, but some ULTs did not end: {0}")]
    Stuck(String),
    /// The thread that ends the instance could not be started.
    #[error("cannot start the thread that finalizes the instance: {0}")]
    Thread(String),
    /// A step of the end panicked, which the log tells of. The network is closed; execution streams
    /// end when the instance is not held any more.
    #[error("finalizing panicked, see the log; the network is closed")]
    Panicked,
    /// This process is a child that was forked off. The instance is its parent's and goes on there;
    /// nothing of it works here but reading its configuration and statistics, and dropping it.
    #[error("this process was forked off: the instance belongs to its parent process")]
    Forked,
    /// A tasklet, such as the inline callback of a timer, must not wait; nothing was waited for.
    #[error("a tasklet must not wait for the end of an instance; use a ULT")]
    Inline,
    /// The caller is a callback of [`on_prefinalize`](crate::Instance::on_prefinalize) or
    /// [`on_finalize`](crate::Instance::on_finalize), or other code that the end runs, such as the
    /// destructor of a handler or a monitor: of this instance or of a child of it. The end waits
    /// for it, and so it must not wait for the end. Nothing was waited for.
    #[error(
        "the end of the instance waits for this callback, which must not wait for it; leave that \
         to another thread"
    )]
    OwnCallback,
}

/// The reason why a profile was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The execution streams cannot be recorded, because they are being recorded already: by the
    /// parent instance, or by the program with [`ult::Runtime::record`].
    #[error(transparent)]
    Recording(#[from] ult::RecordError),
    /// [`finalize`](crate::Instance::finalize) has come to the point where profiles end.
    #[error("the instance has ended: it is not recorded any more")]
    Ended,
    /// This process is a child that was forked off. The profile is its parent's.
    #[error("this process was forked off: the profile belongs to its parent process")]
    Forked,
}

/// The reason why a timer is not armed, or was not waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimerError {
    /// It is armed already and stays so. [`Timer::restart`](crate::timers::Timer::restart) arms it
    /// anew.
    #[error("the timer is armed already; disarm or restart it")]
    Armed,
    /// [`finalize`](crate::Instance::finalize) has come to the point where timers end.
    #[error("the instance is shutting down")]
    Closing,
    /// A period of zero. Give the time between two runs.
    #[error("the period of a timer is zero; give the time between two runs")]
    ZeroPeriod,
    /// The pool is private to its execution stream, and the caller runs elsewhere. Arm the timer
    /// there, or give the pool another access; without a pool of its own, a timer takes any that is
    /// not private, and the instance has none.
    #[error(
        "cannot arm the timer: pool `{pool}` is private to its xstream; arm it there, or define \
         the pool as mpsc"
    )]
    PrivatePool {
        /// The pool.
        pool: String,
    },
    /// No unit could be made for it: its pool has been removed or has shut down.
    #[error("cannot arm the timer: {0}")]
    Spawn(#[source] ult::SpawnError),
    /// The timer is disarmed, but its callback cannot wait for its own end. Use
    /// [`disarm`](crate::timers::Timer::disarm) or [`Tick::stop`](crate::timers::Tick::stop) there.
    #[error("disarmed; but the callback of a timer cannot wait for its own end")]
    OwnCallback,
    /// The timer is disarmed, but a tasklet, such as the inline callback of a timer, must not wait
    /// for the callback that runs. Use [`disarm`](crate::timers::Timer::disarm) there.
    #[error("disarmed; but a tasklet must not wait for the callback that runs")]
    Inline,
    /// This process is a child that was forked off; the timer is its parent's.
    #[error("this process was forked off: the timer belongs to its parent process")]
    Forked,
}

/// A finalize callback came too late: the instance has gone past the point at which it would run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the instance is shutting down and has gone past this stage; the callback will not run")]
pub struct StageOver;

/// The reason why a peer was not shut down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownRemoteError {
    /// The peer does not allow it. Set `margo.remote_shutdown` in its configuration, or have it
    /// call [`enable_remote_shutdown`](crate::groups::InstanceNetwork::enable_remote_shutdown).
    #[error("{peer} does not let others shut it down (`margo.remote_shutdown` is not set there)")]
    NotEnabled {
        /// The peer's address.
        peer: String,
    },
    /// The peer was not reached, or did not answer. It may have shut down all the same, unless
    /// [`never_ran`](ForwardError::never_ran).
    #[error("cannot shut down a peer: {0}")]
    Forward(#[from] ForwardError),
}

/// The reason why the services of a peer are not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// The peer describes none: its providers have RPCs that were written by hand, or it is a C
    /// program.
    #[error("{peer} describes no services: its RPCs were written by hand, or it is a C program")]
    Unknown {
        /// The peer's address.
        peer: String,
    },
    /// The answer does not mean anything here: the peer is of a later version.
    #[error("the services of {peer} cannot be read: {reason}")]
    Unreadable {
        /// The peer's address.
        peer: String,
        /// The reason why not.
        reason: String,
    },
    /// The peer was not reached, or did not answer.
    #[error("cannot ask a peer for its services: {0}")]
    Forward(#[from] ForwardError),
}

/// The reason why the metrics of a peer cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The peer does not allow it. Set `margo.metrics.remote` in its configuration, or have it call
    /// [`enable_remote_metrics`](crate::groups::InstanceNetwork::enable_remote_metrics).
    #[error(
        "{peer} does not let others read its metrics (`margo.metrics.remote` is not set there)"
    )]
    NotEnabled {
        /// The peer's address.
        peer: String,
    },
    /// The peer does not have the RPC: it is of a version that had no metrics, or a C program.
    #[error("{peer} has no metrics: it is a C program, or margo before it had them")]
    Unknown {
        /// The peer's address.
        peer: String,
    },
    /// The answer does not mean anything here.
    #[error("the metrics of {peer} cannot be read: {reason}")]
    Unreadable {
        /// The peer's address.
        peer: String,
        /// The reason why not.
        reason: String,
    },
    /// The peer was not reached, or did not answer.
    #[error("cannot read the metrics of a peer: {0}")]
    Forward(#[from] ForwardError),
}
