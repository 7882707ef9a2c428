//! The contract between a transport and everything above it.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Access, Addr, AddrFormat, EndpointStats, Error, LargeBuffers, LocalMem, Memory, MsgBuf,
    Principal, RegionTable, RemoteMem, SmOptions, Subnet, TcpOptions, TrafficClass, UcxOptions,
};

/// Names an operation in its completion and in `cancel`. Chosen by the caller, unique among the
/// endpoint's operations in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub u64);

impl OpId {
    /// Numbers from this one on are those of endpoints that are made of others.
    pub const RESERVED: Self = Self(u64::MAX << 32);
}

/// Pairs an expected message with its receive. Counterpart: `na_tag_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub u32);

/// What an endpoint can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest unexpected message, bytes.
    pub unexpected_bytes_max: usize,
    /// Largest expected message, bytes.
    pub expected_bytes_max: usize,
}

/// Bytes of answers that a peer may leave unread, and how many of the longest in any case, unless
/// said otherwise: as many of the default length as there may be requests that have not begun.
const UNREAD_ANSWERS_MAX: usize = 64 << 20;
const UNREAD_ANSWERS_MIN: usize = 64;

/// The same of all peers of a host, and of all peers, in multiples of the bound of one.
const UNREAD_BY_HOST: usize = 2;
const UNREAD_BY_ALL: usize = 4;

/// Bytes of early messages of all peers, unless said otherwise.
const EARLY_BYTES_MAX: usize = 64 << 20;

/// How to open an endpoint.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Accept peers that come to us. Off: we can only reach out. Default off.
    pub listen: bool,
    /// Largest message, bytes, both kinds. Default 4096, as in Mercury.
    pub message_bytes_max: usize,
    /// How long connecting to a peer may take. Default 10 s.
    pub connect_timeout: Duration,
    /// Longest time without a sign of life from a connected peer that owes us something; zero
    /// relies on what the operating system reports (which includes every death on the same host).
    /// Over sm, tcp and ucx it counts as 200 ms if it is shorter. Over tcp a peer that cannot send
    /// signs of life, as its greeting says, is not given up for its silence. Default zero.
    pub liveness_limit: Duration,
    /// Bytes of unexpected messages that peers which are gone may have left for receives that are
    /// still to be posted, each with 64 bytes on top, all these peers together. Beyond, the last
    /// who left loses its messages, with a warning in the log: so somebody who connects, sends and
    /// leaves again and again cannot fill the memory of an endpoint that is slow to receive. Raise
    /// it for a service that many short-lived clients tell something without waiting for an answer.
    /// Zero: nothing is kept of who is gone. Over ofi, which does not tell who is, it is the bound
    /// for all peers, at least 256 KiB; beyond, senders are held back. Default 16 MiB.
    pub left_bytes_max: usize,
    /// Bytes of messages that all peers together may have sent before their receives are posted,
    /// each with 64 bytes on top; those of one host may have half of it, and one peer 256 KiB.
    /// Beyond, senders are held back; a message for which a receive is posted is received all the
    /// same. For tcp, and for sm, which does not tell hosts apart. Default 64 MiB.
    pub early_bytes_max: usize,
    /// Bytes of memory that answers (expected messages) may take which a peer leaves unread. A peer
    /// for which more wait is given up ([`Error::PeerGone`]): one that asks without end and reads
    /// nothing would fill our memory. Over tcp, answers of up to 4 KiB are packed as long as they
    /// take less than a quarter of this, and reading from a peer pauses when a mebibyte of them, or
    /// an eighth of this, waits and nothing is awaited of it; over ofi and ucx each answer counts
    /// with its whole buffer. For an honest peer never more wait than it has calls in flight, times
    /// [`message_bytes_max`](Self::message_bytes_max). Over sm it is 1,024 answers. Default `None`:
    /// 64 MiB, which is 16,384 answers of the default length, or 64 of full length if that is more;
    /// at least 1.
    pub unread_answers_max: Option<usize>,
    /// The same for all peers of a host together, as each host can connect as often as it likes;
    /// beyond, that peer of the host which leaves most is given up. For tcp. Default `None`: twice
    /// [`unread_answers_max`](Self::unread_answers_max); at least 1.
    pub unread_answers_per_host_max: Option<usize>,
    /// The same for all peers together; beyond, the peer that leaves most is given up, over tcp of
    /// the host that leaves most. For tcp, ofi and ucx. Default `None`: four times
    /// [`unread_answers_max`](Self::unread_answers_max); at least 1.
    pub unread_answers_total_max: Option<usize>,
    /// Whoever has the endpoint polls it without a break, and never sleeps on its
    /// [`wait_fd`](Endpoint::wait_fd): that may then be `None`. With libfabric this makes messages
    /// cheaper over TCP, as sockets are looked at by `poll` and need not be watched meanwhile;
    /// over shared memory, `na+sm` and that of UCX, as no sender asks whether the receiver sleeps.
    /// Other transports do as ever. Default off.
    ///
    /// Counterpart: `NA_NO_BLOCK` in the progress mode of `na_init_info`.
    pub no_block: bool,
    /// What only `na+sm` looks at.
    pub sm: SmOptions,
    /// What only `na+tcp` looks at.
    pub tcp: TcpOptions,
    /// What only `ucx+…` looks at.
    pub ucx: UcxOptions,
    /// Whose processes may be connected with, where the transport can tell (sm). Default: those of
    /// this user.
    pub peer_users: PeerUsers,
    /// Runs the parts of large copies that this side makes (sm). Default: the thread that polls
    /// copies alone.
    pub copy_helper: Option<CopyHelper>,
    /// Reach peers on the same host through shared memory, all others through the network that is
    /// opened: the address of the shared memory, usually `na+sm://`. Our own address is then a
    /// composed one, `uid://<host>#na+sm://…#na+tcp://…`; an endpoint without this option takes the
    /// part that it understands. Default: none.
    ///
    /// Counterpart: `auto_sm` and `sm_info_string` of `HG_Init_opt2`.
    pub auto_sm: Option<String>,
    /// What the fabric asks for as authorisation, where it does: cxi takes `SERVICE:VNI`, or
    /// `SERVICE:VNI:INDEX`. A 0 stands for what the job was given, by the environment variables
    /// `SLINGSHOT_DEVICES`, `SLINGSHOT_SVC_IDS` and `SLINGSHOT_VNIS`; of the VNIs the one with
    /// number INDEX, from 0, default 1. Default: none.
    ///
    /// Counterpart: `auth_key` of `na_init_info`.
    pub auth_key: Option<String>,
    /// What kind of traffic it makes, for networks that treat kinds apart; see [`TrafficClass`].
    /// tcp: the code point of all connections. ofi: what the provider is told; ucx: InfiniBand and
    /// RoCE. A class that cannot be had is an error; transports that have none say so
    /// ([`ignored`](crate::ignored)). Default: unspecified.
    ///
    /// Counterpart: `traffic_class` of `na_init_info`.
    pub traffic_class: TrafficClass,
    /// Form of the own address: of tcp and ucx, and those providers of ofi that have IP addresses.
    /// Over ucx it is the family of all peers as well. Default: unspecified.
    ///
    /// Counterpart: `addr_format` of `na_init_info`.
    pub addr_format: AddrFormat,
    /// Chooses the own address where the URI names no host, for the same transports: that of this
    /// machine which is in the subnet. If the URI names a host, an interface or a device with
    /// several addresses, one in the subnet goes first; otherwise who names it means it. Default:
    /// none.
    ///
    /// Counterpart: `ip_subnet` of `na_init_info`.
    pub ip_subnet: Option<Subnet>,
    /// Where keys of registered memory are kept, for endpoints that share it: what is registered at
    /// one can be reached through all. Default: a table of its own.
    pub regions: Option<RegionTable>,
}

/// Which users' processes an endpoint talks with, where the operating system tells who a peer is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PeerUsers {
    /// The own (effective) user.
    #[default]
    Own,
    /// The own user and those with these user ids.
    And(Vec<u32>),
    /// All users of the host.
    All,
}

impl PeerUsers {
    /// Whether processes of user `uid` are let in; `own` is ours.
    pub fn allows(&self, uid: u32, own: u32) -> bool {
        uid == own
            || match self {
                Self::Own => false,
                Self::And(others) => others.contains(&uid),
                Self::All => true,
            }
    }
}

/// What runs the parts of a copy, possibly at the same time, and returns when all are done.
type RunParts = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync;

/// Lets several threads (execution streams) take part in large copies.
#[derive(Clone)]
pub struct CopyHelper(Arc<RunParts>);

impl CopyHelper {
    /// `run` is given a number of parts and a function, which it calls once with each number below
    /// that, from whichever threads; it returns when these calls have returned. It is called by
    /// `poll`, so it must not poll the endpoint. Parts that it leaves out are done by the caller.
    pub fn new(run: impl Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }

    #[allow(dead_code, reason = "a build may have only transports that do not copy")]
    pub(crate) fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        (self.0)(parts, part);
    }
}

impl fmt::Debug for CopyHelper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CopyHelper")
    }
}

impl PartialEq for CopyHelper {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            listen: false,
            message_bytes_max: 4096,
            connect_timeout: Duration::from_secs(10),
            liveness_limit: Duration::ZERO,
            left_bytes_max: 16 << 20,
            early_bytes_max: EARLY_BYTES_MAX,
            unread_answers_max: None,
            unread_answers_per_host_max: None,
            unread_answers_total_max: None,
            no_block: false,
            sm: SmOptions::default(),
            tcp: TcpOptions::default(),
            ucx: UcxOptions::default(),
            peer_users: PeerUsers::default(),
            copy_helper: None,
            auto_sm: None,
            auth_key: None,
            traffic_class: TrafficClass::Unspec,
            addr_format: AddrFormat::Unspec,
            ip_subnet: None,
            regions: None,
        }
    }
}

impl OpenOptions {
    /// Default options with [`listen`](Self::listen) as given.
    pub fn listening(listen: bool) -> Self {
        Self { listen, ..Self::default() }
    }

    /// Refuses a [`message_bytes_max`](Self::message_bytes_max) that is not within these limits.
    #[allow(dead_code, reason = "a build may be without transports")]
    pub(crate) fn check_message_bytes(
        &self,
        transport: &str,
        min: usize,
        max: usize,
    ) -> Result<(), Error> {
        let bytes = self.message_bytes_max;
        if (min..=max).contains(&bytes) {
            return Ok(());
        }
        let reason = format!("{bytes} bytes; transport {transport} takes {min} to {max}");
        Err(Error::BadOption { option: "message_bytes_max", reason })
    }

    /// Bytes of answers that peers may leave unread.
    ///
    /// # Errors
    ///
    /// When one of them is 0.
    #[cfg(any(feature = "tcp", feature = "ofi", feature = "ucx"))]
    pub(crate) fn unread_answers_bounds(&self) -> Result<crate::budget::Bounds, Error> {
        let given = [
            ("unread_answers_max", self.unread_answers_max),
            ("unread_answers_per_host_max", self.unread_answers_per_host_max),
            ("unread_answers_total_max", self.unread_answers_total_max),
        ];
        if let Some((option, _)) = given.into_iter().find(|(_, bytes)| *bytes == Some(0)) {
            let reason = "it is 0: no peer could be answered; at least 1 is needed".to_owned();
            return Err(Error::BadOption { option, reason });
        }
        let of_messages = UNREAD_ANSWERS_MIN.saturating_mul(self.message_bytes_max);
        let of_peer = self.unread_answers_max.unwrap_or(UNREAD_ANSWERS_MAX.max(of_messages));
        let times = |count| of_peer.saturating_mul(count);
        let of_host = self.unread_answers_per_host_max.unwrap_or(times(UNREAD_BY_HOST));
        let of_all = self.unread_answers_total_max.unwrap_or(times(UNREAD_BY_ALL));
        Ok(crate::budget::Bounds { of_peer, of_host, of_all })
    }

    /// Which of the options about networks are given, by name.
    pub(crate) fn about_networks(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            (self.traffic_class != TrafficClass::Unspec, "traffic_class"),
            (self.addr_format != AddrFormat::Unspec, "addr_format"),
            (self.ip_subnet.is_some(), "ip_subnet"),
        ];
        given.into_iter().filter_map(|(is_given, name)| is_given.then_some(name))
    }
}

/// An operation that was not started, with the buffer that it was given.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: Error,
    /// The caller's buffer, unchanged.
    pub buf: MsgBuf,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// A contiguous part of registered memory, as C peers are told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemPart {
    /// Its address at the owner.
    pub base: u64,
    /// Bytes, at least one.
    pub len: u64,
    /// The bytes by which a peer names it.
    pub handle: Vec<u8>,
}

/// Where a received message came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// The sender; sending to this address reaches it, also when it does not listen.
    pub from: Addr,
    /// The sender's tag.
    pub tag: Tag,
}

/// The end of one operation. Each operation that was started has exactly one, but for
/// `multi_recv_unexpected`, which has one for each message.
#[derive(Debug)]
pub enum Completion {
    /// `send_unexpected` or `send_expected`: the transport took the message (it need not have
    /// arrived), or never will.
    Send {
        /// The operation.
        op: OpId,
        /// The buffer that was sent.
        buf: MsgBuf,
        /// Whether it was sent.
        result: Result<(), Error>,
    },
    /// `recv_unexpected` or `recv_expected`, or a message of `multi_recv_unexpected`.
    Recv {
        /// The operation.
        op: OpId,
        /// The buffer; holds the message on success.
        buf: MsgBuf,
        /// Whose message it is.
        result: Result<Arrival, Error>,
    },
    /// `put` or `get`: all bytes are in place, or none may be relied on.
    Transfer {
        /// The operation.
        op: OpId,
        /// Whether the data was moved.
        result: Result<(), Error>,
    },
}

/// One remote memory access.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// Our memory: source of a put, destination of a get. Kept alive until the completion.
    pub local: LocalMem,
    /// First byte of `local`.
    pub local_offset: u64,
    /// The peer's memory.
    pub remote: RemoteMem,
    /// First byte of `remote`.
    pub remote_offset: u64,
    /// Bytes to move; zero is allowed and still asks the owner's permission.
    pub len: u64,
}

/// One open endpoint. No method blocks.
///
/// `send_*`, `recv_*`, `put`, `get`, `cancel` and the queries may be called from any thread.
/// [`poll`](Self::poll) and [`prepare_wait`](Self::prepare_wait) have one caller at a time (the
/// progress ULT); a second caller waits for the first.
///
/// Messages between two endpoints are matched in the order in which they were sent, per kind. A
/// sender that outruns its receiver is slowed: its sends complete later, and nothing is dropped.
/// What waits meanwhile is what the sender itself has begun. Who answers peers cannot slow them so:
/// over tcp, ofi and ucx one that asks on and reads no answers is given up
/// ([`OpenOptions::unread_answers_max`]).
///
/// An endpoint belongs to the process that opened it. A child that is forked off may drop its copy,
/// which does nothing to the parent's, and must not use it otherwise. As long as it keeps the copy
/// (`exec` ends it), peers do not see the parent die; those over sm do, where they can watch its
/// process.
pub trait Endpoint: Send + Sync + fmt::Debug {
    /// The plugin's name: `sm`, `tcp` …
    fn transport(&self) -> &'static str;

    /// What it can carry.
    fn limits(&self) -> Limits;

    /// Expected receives that may stay posted although nothing may ever come for them: of calls
    /// that were given up, and those that watch a peer. A transport whose device takes few at a
    /// time keeps the others of all peers waiting behind these, so the oldest of more are to be
    /// canceled. Default: any number.
    fn idle_receives_max(&self) -> usize {
        usize::MAX
    }

    /// Whether `to` is certainly a program of ours, which understands what the RPC layer of ours
    /// says in messages beside what that of C says. Does not contact it. Default: no, for a
    /// transport that C programs have, too.
    fn carries_extensions(&self, to: &Addr) -> bool {
        let _ = to;
        false
    }

    /// Whether C programs have this transport, so that peers may be C Mercury's. Default: no.
    fn may_meet_mercury(&self) -> bool {
        false
    }

    /// Whether `peer` is known to be gone for good: nothing that is sent there arrives; or, if it
    /// came with a message ([`Arrival::from`]), whether the connection has ended since, so that
    /// nobody waits for the answer. Cheap, no look at the peer itself. `false` says nothing: the
    /// end of a peer may not have been seen yet, and one that listens may come back under its
    /// address. Default: `false`, for a transport that cannot tell at once.
    fn is_gone(&self, peer: &Addr) -> bool {
        let _ = peer;
        false
    }

    /// Who is behind `peer`, as far as the kernel tells (see [`Principal`]): the host of its
    /// connection over tcp and ucx, its user over sm. [`Principal::Unknown`] where nothing is known
    /// that the peer could not have chosen itself (ofi, sim), for this endpoint itself, and for a
    /// peer that is not connected.
    fn principal(&self, peer: &Addr) -> Principal {
        let _ = peer;
        Principal::Unknown
    }

    /// Whether the owner of memory is asked before each transfer. Then memory can be taken back at
    /// any time, and only the transfer that is refused ends. Default: yes. Where it is not, the
    /// network may close the connection on account of a transfer that finds no memory, with all
    /// that is under way over it.
    fn asks_owners(&self) -> bool {
        true
    }

    /// Our own address. A peer can look it up if this endpoint listens.
    fn self_addr(&self) -> Addr;

    /// The peer of that name. Does not contact it.
    ///
    /// # Errors
    ///
    /// [`Error::BadUri`] when the text is not an address of this transport.
    fn lookup(&self, uri: &str) -> Result<Addr, Error>;

    /// Reads what [`Addr::to_bytes`] of any endpoint of this transport wrote. Does not contact the
    /// peer. The address of an endpoint that does not listen only works where its connection is, so
    /// it cannot be read back.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the bytes are not a serialised address, and as
    /// [`lookup`](Self::lookup).
    ///
    /// Counterpart: `NA_Addr_deserialize`.
    fn addr_from_bytes(&self, bytes: &[u8]) -> Result<Addr, Error> {
        self.lookup(Addr::text_in(bytes)?)
    }

    /// An address of this endpoint as bytes, to travel in a message; read by
    /// [`addr_from_bytes`](Self::addr_from_bytes). Default: [`Addr::to_bytes`].
    ///
    /// # Errors
    ///
    /// As [`Addr::to_bytes`]; [`Error::InvalidArgument`] for an address of another endpoint, where
    /// that is looked at.
    ///
    /// Counterpart: `NA_Addr_serialize`.
    fn addr_to_bytes(&self, addr: &Addr) -> Result<Vec<u8>, Error> {
        addr.to_bytes()
    }

    /// A buffer for a message, as large as the limits allow.
    fn alloc_msg(&self) -> MsgBuf {
        let limits = self.limits();
        MsgBuf::with_capacity(limits.unexpected_bytes_max.max(limits.expected_bytes_max))
    }

    /// Sends a message that the peer receives with `recv_unexpected`.
    ///
    /// # Errors
    ///
    /// [`Refused`] when nothing was started: too long, foreign address, endpoint closed.
    fn send_unexpected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused>;

    /// Sends an unexpected message if the transport can take it at once, without a completion:
    /// `true`, and `message` may be used again. `false`: nothing was sent, for whatever reason; use
    /// [`send_unexpected`](Self::send_unexpected), which also tells the reason. Keeps the order of
    /// messages. Nothing may tell that the message is lost.
    ///
    /// Counterpart: `fi_inject`.
    fn send_unexpected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let _ = (to, tag, message);
        false
    }

    /// Posts a buffer for the next unexpected message of any peer.
    ///
    /// # Errors
    ///
    /// [`Refused`] when nothing was started: buffer below the limit, endpoint closed.
    fn recv_unexpected(&self, op: OpId, buf: MsgBuf) -> Result<(), Refused>;

    /// Whether [`multi_recv_unexpected`](Self::multi_recv_unexpected) works. Default: no.
    ///
    /// Counterpart: `NA_Has_opt_feature` of `NA_OPT_MULTI_RECV`.
    fn has_multi_recv(&self) -> bool {
        false
    }

    /// Posts a receive for the next `count` unexpected messages of any peer. Each is a completion
    /// with a buffer of `buffers`, just as long as the message; where these are all in use, of its
    /// own. So `count` alone says when senders are held back, and a message that is held for ever
    /// keeps nobody from being received. To be dropped, not used again.
    ///
    /// Messages are taken in their order; those that were there before the receive may be reported
    /// after later ones.
    ///
    /// The operation is over with its last message, or with the only completion that is an error,
    /// as by [`cancel`](Self::cancel) or [`close`](Self::close). Pass the same `buffers` each time:
    /// memory of others is given back.
    ///
    /// Post receives of this kind or of the other one: which of them takes a message if there are
    /// both is up to the transport.
    ///
    /// # Errors
    ///
    /// When nothing was started: no message to be received, endpoint closed, or not
    /// [to be had](Self::has_multi_recv), as by default.
    ///
    /// Counterpart: `NA_Msg_multi_recv_unexpected`.
    fn multi_recv_unexpected(
        &self,
        op: OpId,
        count: usize,
        buffers: &LargeBuffers,
    ) -> Result<(), Error> {
        let _ = (op, count, buffers);
        let text = format!("{} receives one message at a time", self.transport());
        Err(Error::InvalidArgument(text))
    }

    /// Sends a message that the peer receives with `recv_expected` from us with this tag.
    ///
    /// Over our own transports and ucx, to an address that came with a message it is an answer: it
    /// ends with [`Error::PeerGone`] if the connection with the peer has ended since, whether or
    /// not there is another one. For its receives have ended with it, and what is posted now under
    /// that tag waits for something else.
    ///
    /// # Errors
    ///
    /// As `send_unexpected`.
    fn send_expected(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused>;

    /// Sends an expected message if that can be done at once, as
    /// [`send_unexpected_now`](Self::send_unexpected_now) does. Whoever waits for the peer then
    /// uses [`send_expected`](Self::send_expected): where nothing else shows the end of a peer, a
    /// message that does not reach it ends all that waits for it.
    fn send_expected_now(&self, to: &Addr, tag: Tag, message: &[u8]) -> bool {
        let _ = (to, tag, message);
        false
    }

    /// Posts a buffer for one expected message. If the peer dies first, the operation ends with
    /// [`Error::PeerGone`]; if it was never connected, it waits for the connection.
    ///
    /// So it does if the peer was connected and that had ended before: nothing tells whether it
    /// will come back, and a receive alone contacts nobody. Who must not wait for ever sends the
    /// peer something after posting the receive (a peer that cannot be reached then ends both
    /// operations), or [cancels](Self::cancel) the receive after a time of its own. Only a peer
    /// that cannot come back, since its address was that connection, ends the receive at once.
    ///
    /// # Errors
    ///
    /// As `recv_unexpected`.
    fn recv_expected(&self, op: OpId, from: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), Refused>;

    /// Sends the request in `buf` at once, as [`send_unexpected_now`](Self::send_unexpected_now)
    /// does, and posts the same buffer for its answer, as [`recv_expected`](Self::recv_expected)
    /// does for that peer and tag. From then on `op` is that receive, which also ends if the peer
    /// does, however soon after the send.
    ///
    /// # Errors
    ///
    /// The buffer, unchanged, when nothing was sent and nothing posted, for whatever reason: post a
    /// receive, then send; these calls also tell the reason. Default: that always.
    fn call_now(&self, op: OpId, to: &Addr, tag: Tag, buf: MsgBuf) -> Result<(), MsgBuf> {
        let _ = (op, to, tag);
        Err(buf)
    }

    /// Makes memory reachable for peers (and usable as the local side of a transfer).
    ///
    /// The memory's owner is given back by [`LocalMem::revoke`] or by dropping the last clone.
    ///
    /// What the target of a transfer contains before that has ended means nothing. Over tcp it may
    /// even be a message of the peer that sends the data, for the time of one read: memory that one
    /// peer writes should not be open at the same time to others that must not see, or alter, what
    /// it says.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], or [`Error::Io`] when the transport cannot register it.
    fn register(&self, memory: Memory, access: Access) -> Result<LocalMem, Error>;

    /// Makes memory usable as the local side of transfers, and of nothing else: it costs less than
    /// [`register`](Self::register) where memory needs no more than a key. No peer is to be told of
    /// it; it may then be denied, as over sm, tcp and sim. `access` is what the transfers do: a get
    /// writes.
    ///
    /// # Errors
    ///
    /// As `register`. Default: that.
    fn register_local(&self, memory: Memory, access: Access) -> Result<LocalMem, Error> {
        self.register(memory, access)
    }

    /// The bytes that let a peer name `memory`; travels inside a bulk descriptor.
    fn mem_to_bytes(&self, memory: &LocalMem) -> Vec<u8> {
        memory.region().describe().to_bytes().to_vec()
    }

    /// The parts of `memory`, each with bytes of its own that name it, for a transport whose peers
    /// are told so: C peers know no other form. Read by [`mem_from_bytes`](Self::mem_from_bytes),
    /// one by one. Default: none, [`mem_to_bytes`](Self::mem_to_bytes) names all of it.
    fn mem_parts(&self, memory: &LocalMem) -> Option<Vec<MemPart>> {
        let _ = memory;
        None
    }

    /// Reads what `mem_to_bytes` of a peer wrote.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the bytes are not such a description.
    fn mem_from_bytes(&self, bytes: &[u8]) -> Result<RemoteMem, Error> {
        RemoteMem::from_bytes(bytes).ok_or_else(|| {
            Error::InvalidArgument(format!("{} bytes do not describe memory", bytes.len()))
        })
    }

    /// Writes our memory into the peer's.
    ///
    /// # Errors
    ///
    /// When nothing was started: bounds or access of the local side, foreign address, closed.
    fn put(&self, op: OpId, to: &Addr, transfer: Transfer) -> Result<(), Error>;

    /// Reads the peer's memory into ours.
    ///
    /// After an error, [`LocalMem::may_be_written`] tells whether the peer may still write there:
    /// over sm one that is stopped in the midst of a copy, to which a canceled get leaves its
    /// memory.
    ///
    /// # Errors
    ///
    /// As `put`.
    fn get(&self, op: OpId, from: &Addr, transfer: Transfer) -> Result<(), Error>;

    /// Asks for an early end. The completion still follows, once, and says which it was:
    /// [`Error::Canceled`] or the real outcome. An unknown or finished `op` is ignored. Over sm and
    /// tcp a transfer ends soon whatever the peer does; over ofi and ucx what the library has in
    /// hand of it is waited for.
    ///
    /// A message whose send ends with [`Error::Canceled`] does not arrive, not even later. One that
    /// has begun to leave is not taken back: its send ends as one that was not canceled does, with
    /// `Ok` at once where the transport has the message in hand.
    fn cancel(&self, op: OpId);

    /// Moves the network forward and reports at most `budget` completions to `sink`; returns how
    /// many it reported. `sink` may start operations on this endpoint, but must not poll it.
    ///
    /// Trouble with one peer ends that peer's operations and is not an error here.
    ///
    /// # Errors
    ///
    /// Only when the endpoint itself can no longer work; all its operations have then completed or
    /// will complete in further polls.
    fn poll(&self, budget: usize, sink: &mut dyn FnMut(Completion)) -> Result<usize, Error>;

    /// Whether a poll might find something now; for whoever would otherwise poll without a break,
    /// between two polls that found nothing. Cheaper than a poll: touches only memory, asks no
    /// kernel and no library, moves nothing. So it sees what peers of the same host and threads of
    /// this process have done, and polls still have to follow now and then. `true` where there is
    /// no such cheap look, or when in doubt.
    fn may_find(&self) -> bool {
        true
    }

    /// Announces that the caller is about to sleep on [`wait_fd`](Self::wait_fd). `false`: there is
    /// work, poll again. After `true`, whatever gives `poll` something to do makes the descriptor
    /// readable; the next `poll` ends the announcement.
    fn prepare_wait(&self) -> bool;

    /// Becomes readable when `poll` has work, see [`prepare_wait`](Self::prepare_wait). `None`:
    /// this transport can only be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Ends every operation with [`Error::Closed`] and every connection; the completions are
    /// reported by further polls. Peers see that we are gone. Idempotent.
    fn close(&self);

    /// After [`close`](Self::close): whether a peer is still copying in memory of this side.
    /// Further polls give the memory back when the peer has stopped copying or is dead. Default:
    /// memory is given back before `close` returns, or by the next polls.
    fn keeps_memory(&self) -> bool {
        false
    }

    /// Longest transfer that `peer` does by itself, bytes, in the call that starts it, once it has
    /// used the same region of [`Memory::alloc`] before; 0: none. It pays then to keep such memory
    /// registered, for this peer alone.
    fn direct_bytes_max(&self, peer: &Addr) -> u64 {
        let _ = peer;
        0
    }

    /// A number that grows with what this side does for transfers that peers have begun. Such work
    /// ends no operation here, so polls do not tell it; but whoever is about to sleep because
    /// nothing happens may learn from it that something does. Default: always the same.
    fn served(&self) -> u64 {
        0
    }

    /// Peers and registered memory at the moment. Takes time for each of them. Waits for nobody who
    /// polls. Default: nothing is told.
    fn stats(&self) -> EndpointStats {
        EndpointStats::default()
    }

    /// How this endpoint moves bulk data, for `margo info` and logs; for example
    /// `"cross-memory attach"`.
    fn bulk_path(&self) -> String;
}
