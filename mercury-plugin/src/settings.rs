//! The options of an endpoint: what the program asks for, and what the site says.
//!
//! The program's part comes with its call, as in C. The site's part is a document of margo's in the
//! file that `MARGO_PLUGIN_CONFIG` names, of which two objects count: `margo.network`, and
//! `margo.security.tcp`, which says who may connect. The document is checked as that of an instance
//! is, so an endpoint that other hosts reach does not open before somebody has said who may.
//!
//! In C every endpoint can be called, also that of a program which does not listen: a bulk handle
//! that is bound to its address is used by others. So an endpoint listens whether or not the
//! program asks for it, but where that would let everybody in.

use std::ffi::{CStr, c_uint};
use std::fmt;
use std::time::Duration;

use margo_config::{
    Config, NaAddrFormat, PeerUsers, Resolved, ResolvedTcpSecurity, TcpSecurityMode,
    TcpSecurityOptions, TrafficClass,
};
use na::{Certificates, OpenOptions, Subnet, TcpSecurity};

use crate::c::abi::{NO_BLOCK, NaInitInfo};

/// The variable that names the site's file.
const FILE_VARIABLE: &str = "MARGO_PLUGIN_CONFIG";

/// A protocol of this plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Shared memory.
    Sm,
    /// TCP.
    Tcp,
    /// Shared memory for peers of this host, and TCP for others.
    All,
}

impl Protocol {
    pub(crate) const ALL: [Self; 3] = [Self::Sm, Self::Tcp, Self::All];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    pub(crate) fn c_name(self) -> &'static CStr {
        match self {
            Self::Sm => c"sm",
            Self::Tcp => c"tcp",
            Self::All => c"all",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.c_name().to_str().unwrap_or_default()
    }

    /// The name of the devices that it uses, for lists.
    pub(crate) fn device(self) -> &'static CStr {
        match self {
            Self::Sm => c"shm",
            Self::Tcp => c"ip",
            Self::All => c"shm+ip",
        }
    }
}

/// The class that a program wants to open.
pub(crate) struct ClassWanted<'a> {
    pub(crate) protocol: Protocol,
    /// The text behind `://`.
    pub(crate) host: &'a str,
    pub(crate) listen: bool,
    pub(crate) init: &'a NaInitInfo,
    pub(crate) subnet: Option<&'a str>,
    pub(crate) auth_key: Option<&'a str>,
}

/// A fault in the program's options or in the site's file.
#[derive(Debug)]
pub(crate) struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The address to open, and the options.
pub(crate) fn settings(wanted: &ClassWanted<'_>) -> Result<(String, OpenOptions), Wrong> {
    let file = std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty());
    let document = match &file {
        None => String::from("{}"),
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| Wrong(format!("{FILE_VARIABLE} names {}: {error}", file.display())))?,
    };
    let named = file.map(|file| format!("{}: ", file.display())).unwrap_or_default();
    settings_of(wanted, &document).map_err(|Wrong(text)| Wrong(format!("{named}{text}")))
}

fn settings_of(wanted: &ClassWanted<'_>, document: &str) -> Result<(String, OpenOptions), Wrong> {
    let mut config = Config::from_json(document).map_err(|errors| Wrong(errors.to_string()))?;
    no_rules(&config)?;
    ask(wanted, &mut config)?;
    let mut resolved = config.resolve(&|_| None);
    if resolved.is_err() && !wanted.listen {
        config.margo.listen = false;
        resolved = config.resolve(&|_| None);
    }
    let resolved = resolved.map_err(|errors| Wrong(errors.to_string()))?;
    Ok((resolved.address.clone(), options(wanted, &resolved)))
}

/// Refuses rules, which would not be followed: the RPC layer is the program's.
fn no_rules(config: &Config) -> Result<(), Wrong> {
    let Some(security) = &config.margo.security else { return Ok(()) };
    let given = [
        ("allow", !security.allow.is_empty()),
        ("deny", !security.deny.is_empty()),
        ("limits", !security.limits.is_empty()),
        ("audit", security.audit.is_some()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((key, _)) => Err(Wrong(format!(
            "margo.security.{key} is about RPCs, which the program serves by C Mercury, so it \
             would not be followed: remove it from this file, in which only `margo.network` and \
             `margo.security.tcp` count"
        ))),
    }
}

/// Puts what the program asks for into the document.
fn ask(wanted: &ClassWanted<'_>, config: &mut Config) -> Result<(), Wrong> {
    let ClassWanted { protocol, host, init, subnet, auth_key, .. } = *wanted;
    config.margo.address = match protocol {
        Protocol::Sm => format!("na+sm://{host}"),
        Protocol::Tcp | Protocol::All => format!("na+tcp://{host}"),
    };
    config.margo.listen = true;
    let mercury = &mut config.mercury;
    mercury.auto_sm = protocol == Protocol::All;
    mercury.na_no_block = init.progress_mode & NO_BLOCK != 0;
    let bytes = |bytes: usize| {
        let too_long = || Wrong(format!("messages of {bytes} bytes: at most 1048576 can be had"));
        u32::try_from(bytes).map_err(|_| too_long())
    };
    mercury.na_max_unexpected_size = bytes(init.max_unexpected_size)?;
    mercury.na_max_expected_size = bytes(init.max_expected_size)?;
    mercury.ip_subnet = subnet.map(str::to_owned);
    mercury.na_addr_format = match init.addr_format {
        1 => NaAddrFormat::Ipv4,
        2 => NaAddrFormat::Ipv6,
        3 => NaAddrFormat::Native,
        _ => NaAddrFormat::Unspec,
    };
    mercury.traffic_class = traffic_class(init.traffic_class);
    if let Some(file) = auth_key.filter(|file| !file.is_empty()) {
        let security = config.margo.security.get_or_insert_default();
        if security.tcp.is_some() {
            return Err(Wrong(
                "both the program's authorization key and margo.security.tcp of the file say who \
                 may connect: give one of them"
                    .into(),
            ));
        }
        security.tcp = Some(TcpSecurityOptions {
            mode: TcpSecurityMode::ClusterSecret,
            secret: Some(file.to_owned()),
            ..TcpSecurityOptions::default()
        });
    }
    if init.request_mem_device {
        tracing::warn!("memory of devices was asked for: only memory of the host can be had");
    }
    Ok(())
}

fn traffic_class(number: c_uint) -> TrafficClass {
    match number {
        1 => TrafficClass::BestEffort,
        2 => TrafficClass::LowLatency,
        3 => TrafficClass::BulkData,
        4 => TrafficClass::DedicatedAccess,
        5 => TrafficClass::Scavenger,
        6 => TrafficClass::NetworkCtrl,
        _ => TrafficClass::Unspec,
    }
}

/// The options of sm and tcp that a document has; an instance gives the same ones to them.
fn options(wanted: &ClassWanted<'_>, resolved: &Resolved) -> OpenOptions {
    let (mercury, network) = (&resolved.mercury, &resolved.network);
    let millis = |msec: u32| Duration::from_millis(msec.into());
    let mut options = OpenOptions::listening(resolved.listen);
    let largest = mercury.na_max_unexpected_size.max(mercury.na_max_expected_size) as usize;
    if largest > 0 {
        options.message_bytes_max = largest;
    }
    options.for_mercury = true;
    options.no_block = mercury.na_no_block;
    options.connect_timeout = millis(network.connect_timeout_msec);
    options.liveness_limit = millis(network.liveness_msec);
    options.left_bytes_max = network.left_bytes_max;
    options.early_bytes_max = network.early_bytes_max;
    options.unread_answers_max = network.unread_answers_max;
    options.unread_answers_per_host_max = network.unread_answers_per_host_max;
    options.unread_answers_total_max = network.unread_answers_total_max;
    options.peer_users = match &network.peer_users {
        PeerUsers::Own => na::PeerUsers::Own,
        PeerUsers::And(uids) => na::PeerUsers::And(uids.clone()),
        PeerUsers::All => na::PeerUsers::All,
    };
    options.traffic_class = match mercury.traffic_class {
        TrafficClass::Unspec => na::TrafficClass::Unspec,
        TrafficClass::BestEffort => na::TrafficClass::BestEffort,
        TrafficClass::LowLatency => na::TrafficClass::LowLatency,
        TrafficClass::BulkData => na::TrafficClass::BulkData,
        TrafficClass::DedicatedAccess => na::TrafficClass::DedicatedAccess,
        TrafficClass::Scavenger => na::TrafficClass::Scavenger,
        TrafficClass::NetworkCtrl => na::TrafficClass::NetworkCtrl,
    };
    options.addr_format = match mercury.na_addr_format {
        NaAddrFormat::Unspec => na::AddrFormat::Unspec,
        NaAddrFormat::Ipv4 => na::AddrFormat::Ipv4,
        NaAddrFormat::Ipv6 => na::AddrFormat::Ipv6,
        NaAddrFormat::Native => na::AddrFormat::Native,
    };
    options.ip_subnet = resolved.ip_subnet.and_then(|net| Subnet::new(net.ip, net.bits));
    options.tcp.connect_retry = millis(network.connect_retry_msec);
    options.tcp.slow_reader_limit = millis(network.slow_reader_msec);
    options.tcp.keep_alive = Duration::from_secs(network.keep_alive_sec.into());
    options.tcp.busy_poll = Duration::from_micros(network.busy_poll_usec.into());
    options.tcp.security = tcp_security(resolved);
    options.sm.connections_per_user_max = network.connections_per_user_max;
    options.sm.mapped_bytes_per_peer_max = network.mapped_bytes_per_peer_max;
    options.sm.cross_memory_attach = network.cross_memory_attach;
    if let Some(connections) = network.connections_max {
        options.sm.connections_max = connections;
        options.tcp.connections_max = connections;
    }
    options.auto_sm = (wanted.protocol == Protocol::All).then(|| "na+sm://".to_owned());
    options
}

fn tcp_security(resolved: &Resolved) -> TcpSecurity {
    match resolved.security.as_ref().map(|security| &security.tcp) {
        Some(ResolvedTcpSecurity::ClusterSecret(secret)) => {
            TcpSecurity::ClusterSecret(secret.clone())
        }
        Some(ResolvedTcpSecurity::MutualTls { certificate, key, trust, revoked, names }) => {
            let mut files = Certificates::new(certificate, key, trust);
            files.revoked.clone_from(revoked);
            files.names.clone_from(names);
            TcpSecurity::MutualTls(files)
        }
        _ => TcpSecurity::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(
        document: &str,
        change: impl FnOnce(&mut ClassWanted<'_>),
    ) -> Result<(String, OpenOptions), String> {
        let init = NaInitInfo::default();
        let (protocol, host) = (Protocol::Tcp, "0.0.0.0:7000");
        let mut wanted =
            ClassWanted { protocol, host, listen: true, init: &init, subnet: None, auth_key: None };
        change(&mut wanted);
        settings_of(&wanted, document).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn a_file_says_who_may_connect() {
        let secret = r#"{ "margo": { "security": { "tcp": {
            "mode": "cluster_secret", "secret": "/etc/margo/secret" } } } }"#;
        let (uri, options) = opened(secret, |_| {}).unwrap();
        assert_eq!(uri, "na+tcp://0.0.0.0:7000");
        assert_eq!(options.tcp.security, TcpSecurity::ClusterSecret("/etc/margo/secret".into()));
        assert!(options.listen && options.for_mercury && options.auto_sm.is_none());
        let open = r#"{ "margo": { "security": { "tcp": { "beyond_loopback": true } } } }"#;
        assert_eq!(opened(open, |_| {}).unwrap().1.tcp.security, TcpSecurity::None);
        let tls = r#"{ "margo": { "security": { "tcp": { "mode": "mutual_tls",
            "certificate": "c", "key": "k", "trust": "t", "names": ["*.example"] } } } }"#;
        let TcpSecurity::MutualTls(files) = opened(tls, |_| {}).unwrap().1.tcp.security else {
            panic!("no certificates")
        };
        assert_eq!((files.certificate, files.names), ("c".into(), vec!["*.example".to_owned()]));
    }

    #[test]
    fn an_authorization_key_names_a_file_with_a_secret() {
        let keyed = |wanted: &mut ClassWanted<'_>| wanted.auth_key = Some("/run/secret");
        let (_, options) = opened("{}", keyed).unwrap();
        assert_eq!(options.tcp.security, TcpSecurity::ClusterSecret("/run/secret".into()));
        let file = r#"{ "margo": { "security": { "tcp": { "beyond_loopback": true } } } }"#;
        assert!(opened(file, keyed).unwrap_err().contains("give one of them"));
    }

    #[test]
    fn what_would_not_be_followed_is_refused() {
        for (document, said) in [
            ("{}", "nothing says who may connect"),
            ("{ \"margo\": 7 }", "margo"),
            ("no json", "expected"),
            (r#"{ "margo": { "security": { "deny": [{ "who": "uid:0" }] } } }"#, "deny is about"),
            (r#"{ "margo": { "netwerk": {} } }"#, "network"),
        ] {
            let error = opened(document, |_| {}).unwrap_err();
            assert!(error.contains(said), "{document}: {error}");
        }
        let error = opened("{}", |wanted| wanted.subnet = Some("10.x")).unwrap_err();
        assert!(error.contains("ip_subnet"), "{error}");
    }

    #[test]
    fn options_of_the_network_and_of_the_program_reach_the_endpoint() {
        let file = r#"{ "margo": { "network": {
            "liveness_msec": 700, "connections_max": 9, "cross_memory_attach": false } } }"#;
        let mut init = NaInitInfo::default();
        (init.progress_mode, init.max_expected_size, init.addr_format) = (NO_BLOCK, 9000, 1);
        let wanted = |protocol| ClassWanted {
            protocol,
            host: "",
            listen: false,
            init: &init,
            subnet: Some("127"),
            auth_key: None,
        };
        let (uri, options) = settings_of(&wanted(Protocol::All), file).unwrap_or_else(|wrong| {
            panic!("{wrong}");
        });
        assert_eq!((&*uri, options.auto_sm.as_deref()), ("na+tcp://", Some("na+sm://")));
        assert_eq!(options.liveness_limit, Duration::from_millis(700));
        assert_eq!((options.tcp.connections_max, options.sm.connections_max), (9, 9));
        assert!(options.no_block && options.listen && !options.sm.cross_memory_attach);
        assert_eq!((options.message_bytes_max, options.addr_format), (9000, na::AddrFormat::Ipv4));
        assert_eq!(options.ip_subnet, Subnet::new([127, 0, 0, 0].into(), 8));
    }
}
