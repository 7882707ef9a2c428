//! The options of an endpoint.

use std::time::Duration;

use crate::{
    AddrFormat, CopyHelper, Error, PeerUsers, RegionTable, SessionObserver, SmOptions, Subnet,
    TcpOptions, TrafficClass, UcxOptions,
};

/// Bytes of answers that a peer may leave unread, and the least number of answers of full length,
/// unless said otherwise: as many of the default length as there may be requests that have not
/// begun.
const UNREAD_ANSWERS_MAX: usize = 64 << 20;
const UNREAD_ANSWERS_MIN: usize = 64;

/// The bound for all peers of a host, and for all peers, in multiples of the bound of one.
const UNREAD_BY_HOST: usize = 2;
const UNREAD_BY_ALL: usize = 4;

/// Bytes of early messages of all peers, unless said otherwise.
const EARLY_BYTES_MAX: usize = 64 << 20;

/// How to open an endpoint.
///
/// ```
/// # mod na { pub use na_core::*; pub use na_sim as sim; }
/// # use na::Plugin;
/// use na::{OpenOptions, Uri};
///
/// let mut options = OpenOptions::listening(true);
/// options.message_bytes_max = 64 << 10;
/// # let open = |uri, options: &_| na::sim::Sim.open(&Uri::parse(uri)?, options);
/// let endpoint = open("na+sim://options/a", &options)?;
/// assert_eq!(endpoint.limits().unexpected_bytes_max, 64 << 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Accepts peers that connect to us. Off: we can only connect to others. Default off.
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
    /// still to be posted, each with 64 bytes on top, all these peers together. Beyond, the peer
    /// that left last loses its messages, with a warning in the log. So a peer that connects, sends
    /// and leaves again and again cannot fill the memory of an endpoint that is slow to receive.
    /// Raise it for a service that many short-lived clients tell something without waiting for an
    /// answer. Zero: nothing is kept of peers that are gone. Over ofi, which does not tell which
    /// peers are gone, it is the bound for all peers, at least 256 KiB; beyond, senders are held
    /// back. Default 16 MiB.
    pub left_bytes_max: usize,
    /// Bytes of messages that all peers together may have sent before their receives are posted,
    /// each with 64 bytes on top; those of one host may have half of it, and one peer 256 KiB.
    /// Beyond, senders are held back; a message for which a receive is posted is received all the
    /// same. For tcp, and for sm, which does not tell hosts apart. Default 64 MiB.
    pub early_bytes_max: usize,
    /// Bytes of memory that answers (expected messages) left unread by one peer may take. A peer
    /// with more is given up ([`Error::PeerGone`]): one that asks without end and reads nothing
    /// would fill our memory. Over tcp, answers of up to 4 KiB are packed as long as they take less
    /// than a quarter of this. Reading from a peer pauses when a mebibyte of answers, or an eighth
    /// of this, waits and nothing is awaited of it. Over ofi and ucx each answer counts with its
    /// whole buffer. An honest peer never has more answers waiting than it has calls in flight,
    /// times [`message_bytes_max`](Self::message_bytes_max). Over sm the bound is 1,024 answers.
    /// Default `None`: 64 MiB, which is 16,384 answers of the default length, or 64 of full length
    /// if that is more; at least 1.
    pub unread_answers_max: Option<usize>,
    /// Bytes of memory that unread answers to all peers of one host together may take, as a host
    /// can connect as often as it likes. Beyond, the peer of that host with the most unread answers
    /// is given up. For tcp. Default `None`: twice
    /// [`unread_answers_max`](Self::unread_answers_max); at least 1.
    pub unread_answers_per_host_max: Option<usize>,
    /// Bytes of memory that unread answers to all peers together may take. Beyond, the peer with
    /// the most unread answers is given up; over tcp, the one with the most of the host with the
    /// most. For tcp, ofi and ucx. Default `None`: four times
    /// [`unread_answers_max`](Self::unread_answers_max); at least 1.
    pub unread_answers_total_max: Option<usize>,
    /// Promises that the caller polls the endpoint without a break and never sleeps on its
    /// [`wait_fd`](crate::Endpoint::wait_fd), which may then be `None`. With libfabric this makes
    /// messages cheaper over TCP, because `poll` looks at the sockets and nothing need watch them
    /// meanwhile. Over shared memory, `na+sm` and that of UCX, it does so because no sender asks
    /// whether the receiver sleeps. Other transports do as ever. Default off.
    ///
    /// Counterpart: `NA_NO_BLOCK` in the progress mode of `na_init_info`.
    pub no_block: bool,
    /// The RPC layer above is C Mercury's, as in our plugin of it. `na+sm` and `na+tcp` tell peers
    /// so, who then say nothing to it that only an RPC layer of ours understands. Default off.
    pub for_mercury: bool,
    /// Asks the library below to move memory of devices by itself
    /// ([`moves_device_memory`](crate::Endpoint::moves_device_memory)), where it can. For ofi.
    /// Default off.
    ///
    /// Counterpart: `request_mem_device` of `na_init_info`.
    pub request_mem_device: bool,
    /// Settings that only `na+sm` looks at.
    pub sm: SmOptions,
    /// Settings that only `na+tcp` looks at.
    pub tcp: TcpOptions,
    /// Settings that only `ucx+…` looks at.
    pub ucx: UcxOptions,
    /// The users whose processes may connect and be connected to, where the transport can tell
    /// (sm). Default: this user.
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
    /// The authorisation key, for a fabric that requires one: cxi takes `SERVICE:VNI`, or
    /// `SERVICE:VNI:INDEX`. A 0 stands for what the job was given, by the environment variables
    /// `SLINGSHOT_DEVICES`, `SLINGSHOT_SVC_IDS` and `SLINGSHOT_VNIS`; of the VNIs the one with
    /// number INDEX, from 0, default 1. Default: none.
    ///
    /// Counterpart: `auth_key` of `na_init_info`.
    pub auth_key: Option<String>,
    /// The class of its traffic, for networks that treat classes apart; see [`TrafficClass`]. tcp:
    /// the code point of all connections. ofi: passed to the provider; ucx: InfiniBand and RoCE. A
    /// class that cannot be had is an error; transports that have none say so
    /// (`na::ignored`). Default: unspecified.
    ///
    /// Counterpart: `traffic_class` of `na_init_info`.
    pub traffic_class: TrafficClass,
    /// Form of the endpoint's own address, for tcp, ucx and those providers of ofi that have IP
    /// addresses. Over ucx it is the family of all peers as well. Default: unspecified.
    ///
    /// Counterpart: `addr_format` of `na_init_info`.
    pub addr_format: AddrFormat,
    /// Chooses the endpoint's own address where the URI names no host, for the same transports: the
    /// address of this machine that is in the subnet. If the URI names a host, an interface or a
    /// device with several addresses, one in the subnet goes first; apart from that, the subnet
    /// does not overrule the URI. Default: none.
    ///
    /// Counterpart: `ip_subnet` of `na_init_info`.
    pub ip_subnet: Option<Subnet>,
    /// Table of keys of registered memory, for endpoints that share it: memory that is registered
    /// at one can be reached through all. Default: a table of its own.
    pub regions: Option<RegionTable>,
    /// Is told of peers that connect, are not let in, and leave, by sm and tcp. Default: nobody.
    pub sessions: Option<SessionObserver>,
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
            for_mercury: false,
            request_mem_device: false,
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
            sessions: None,
        }
    }
}

impl OpenOptions {
    /// Default options with [`listen`](Self::listen) as given.
    pub fn listening(listen: bool) -> Self {
        Self { listen, ..Self::default() }
    }

    /// Refuses a [`message_bytes_max`](Self::message_bytes_max) that is not within these limits.
    #[doc(hidden)]
    pub fn check_message_bytes(
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
    #[doc(hidden)]
    pub fn unread_answers_bounds(&self) -> Result<crate::limits::budget::BudgetLimits, Error> {
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
        Ok(crate::limits::budget::BudgetLimits { of_peer, of_host, of_all })
    }

    /// Which of the options about networks are given, by name.
    #[doc(hidden)]
    pub fn about_networks(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            (self.traffic_class != TrafficClass::Unspec, "traffic_class"),
            (self.addr_format != AddrFormat::Unspec, "addr_format"),
            (self.ip_subnet.is_some(), "ip_subnet"),
        ];
        given.into_iter().filter_map(|(is_given, name)| is_given.then_some(name))
    }
}
