//! Settings that only the tcp transport has. Here, so that they exist in every build.

use std::path::PathBuf;
use std::time::Duration;

use crate::Error;

/// Most connections to one endpoint, unless said otherwise.
pub(crate) const CONNECTIONS_MAX: usize = 65_536;

/// Time after which the kernel looks after an idle connection, unless said otherwise.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Settings of the tcp transport, as [`OpenOptions::tcp`](crate::OpenOptions::tcp).
///
/// Times are accurate to about a quarter of themselves.
///
/// ```
/// # use na_core as na;
/// use std::time::Duration;
///
/// use na::OpenOptions;
///
/// let mut options = OpenOptions::listening(false);
/// options.tcp.connect_retry = Duration::from_secs(3);
/// assert_eq!(options.tcp.keep_alive, Duration::from_secs(60), "as by default");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TcpOptions {
    /// How long connecting is tried again, for targets that are about to start. It is tried again
    /// when the connection is refused or ends before it is greeted, and when the host cannot be
    /// reached or the target has no descriptor for it. The pauses grow from 10 ms to 500 ms, and
    /// the attempts end with [`connect_timeout`](crate::OpenOptions::connect_timeout) in any case.
    /// Default zero: the first refusal is reported.
    pub connect_retry: Duration,
    /// Connections that others may have to this endpoint. Further ones are refused, and their
    /// dialer is told so ([`Error::Unreachable`]). Default 65,536; at least 1. Never more than the
    /// process may have descriptors when the endpoint is opened (the soft `RLIMIT_NOFILE`), less an
    /// eighth of those, but 16 to 256, for everything else. Where the process has used up its
    /// descriptors otherwise, dialers are told that, and the limit.
    pub connections_max: usize,
    /// How long a peer may take none of the data that we have for it before it is given up
    /// ([`Error::PeerGone`]). Default zero: for ever; sends to it just do not complete, up to
    /// [`unread_answers_max`](crate::OpenOptions::unread_answers_max).
    pub slow_reader_limit: Duration,
    /// Time after which the kernel asks an idle peer's host whether the connection still exists;
    /// a host that does not answer within as much again has gone. In whole seconds; zero: never
    /// asks. Default 60 s.
    pub keep_alive: Duration,
    /// How long a poll that finds nothing may ask the network card directly (`SO_BUSY_POLL`),
    /// which spares an interrupt; in whole microseconds. Needs a driver that can do that, and
    /// the capability `CAP_NET_ADMIN`. Loopback has no card: no effect. Default zero: off.
    pub busy_poll: Duration,
    /// How connections are kept private and who may make them. Default [`TcpSecurity::None`].
    pub security: TcpSecurity,
}

/// How tcp connections are kept private and who may make them.
///
/// Both ends of a connection need the same kind: one that asks for TLS never speaks without it.
/// Files must belong to the user that the process runs as, or to root, and hold for nobody else:
/// not readable by others, and by the group only where they belong to root. They are read when the
/// endpoint is opened and again when they change; connections that exist go on.
///
/// ```
/// # use na_core as na;
/// use na::{OpenOptions, TcpSecurity};
///
/// let mut options = OpenOptions::listening(true);
/// assert_eq!(options.tcp.security, TcpSecurity::None, "as by default");
/// options.tcp.security = TcpSecurity::ClusterSecret("/etc/margo/secret".into());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpSecurity {
    /// Everybody may connect, and everybody on the way can read and change what is sent.
    #[default]
    None,
    /// Both ends show a certificate (TLS 1.3).
    MutualTls(Certificates),
    /// Both ends prove that they know a secret (TLS 1.3 with public keys that are derived from it).
    /// The file has one secret a line, of at least 32 characters, and at most two of them: we prove
    /// that we know the first one, and accept both. To change it, add the new one in all files as
    /// the second, then make it the first, then remove the old one.
    ClusterSecret(PathBuf),
}

/// Files of [`TcpSecurity::MutualTls`], all of them in PEM.
///
/// ```
/// # use na_core as na;
/// use na::{Certificates, OpenOptions, TcpSecurity};
///
/// let mut files = Certificates::new("node7.pem", "node7.key", "ca.pem");
/// files.names = vec!["*.storage.example".to_owned()];
/// let mut options = OpenOptions::listening(true);
/// options.tcp.security = TcpSecurity::MutualTls(files);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Certificates {
    /// Our certificate, and those between it and the authority's.
    pub certificate: PathBuf,
    /// The private key of our certificate.
    pub key: PathBuf,
    /// The certificates of authorities whose certificates we accept.
    pub trust: PathBuf,
    /// Lists of revoked certificates. With it, each authority needs one, and a list that has
    /// expired counts no certificate as valid. Default none.
    pub revoked: Option<PathBuf>,
    /// Names of which a peer must have one, those that call and those that are called alike; `*`
    /// stands for any text. Default none: callers may have any name, and who is called must have
    /// the IP address that was dialed.
    pub names: Vec<String>,
}

impl Certificates {
    /// The files that are needed.
    pub fn new(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        trust: impl Into<PathBuf>,
    ) -> Self {
        let [certificate, key, trust] = [certificate.into(), key.into(), trust.into()];
        Self { certificate, key, trust, revoked: None, names: Vec::new() }
    }
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            connect_retry: Duration::ZERO,
            connections_max: CONNECTIONS_MAX,
            slow_reader_limit: Duration::ZERO,
            keep_alive: KEEP_ALIVE,
            busy_poll: Duration::ZERO,
            security: TcpSecurity::None,
        }
    }
}

impl TcpOptions {
    /// Refuses what cannot work.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), Error> {
        check_connections("tcp.connections_max", self.connections_max)
    }
}

/// Refuses a bound that would let nobody in.
pub(crate) fn check_connections(option: &'static str, max: usize) -> Result<(), Error> {
    if max == 0 {
        let reason = "it is 0; at least 1 is needed (or do not listen)".to_owned();
        return Err(Error::BadOption { option, reason });
    }
    Ok(())
}
