//! `margo.security.tcp`: the proof that `na+tcp` asks of both ends of a connection.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The proof that `na+tcp` asks of both ends of a connection (`margo.security.tcp`), which need the
/// same mode. With any, nobody on the way can read or change what is sent. Files are read when the
/// instance starts, and again when they change; they must belong to the user of the process, or to
/// root, and nobody else may write them, or read those that are secret.
///
/// ```
/// use margo_config::{Config, ResolvedTcpSecurity};
///
/// let text = r#"{ "margo": { "address": "na+tcp://0.0.0.0:7000", "security": {
///     "tcp": { "mode": "cluster_secret", "secret": "/etc/margo/secret" }
/// } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// assert_eq!(security.tcp, ResolvedTcpSecurity::ClusterSecret("/etc/margo/secret".into()));
/// assert!(!security.has_rules(), "all who know the secret may call everything");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TcpSecurityOptions {
    /// The proof that both ends ask for. Default `"none"`.
    pub mode: TcpSecurityMode,
    /// The file with the secret of a cluster, for `"cluster_secret"`: one a line, at least 32
    /// characters. A second line is accepted and not shown, so that a secret can be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The file with our certificate, and those between it and an authority's, in PEM, for
    /// `"mutual_tls"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The file with the private key of `certificate`, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The file with the certificates of authorities that we believe, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<String>,
    /// The file with lists of revoked certificates, one for each authority, in PEM. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked: Option<String>,
    /// Names of which a peer's certificate must have one; `*` stands for any text. Default `[]`:
    /// callers may have any name, and the certificate of who is called must have the address that
    /// was dialed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// With the mode `"none"`: lets the instance listen where other hosts reach it, though
    /// everybody there may connect, and read and change what others send. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub beyond_loopback: bool,
}

/// The proof that [`TcpSecurityOptions::mode`] asks for.
///
/// ```
/// use margo_config::TcpSecurityMode;
///
/// assert_eq!(TcpSecurityMode::default(), TcpSecurityMode::None);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TcpSecurityMode {
    /// None: whoever can connect may.
    #[default]
    None,
    /// Both ends know a secret (TLS 1.3 with public keys that are derived from it).
    ClusterSecret,
    /// Both ends have a certificate (TLS 1.3).
    MutualTls,
}

/// The proof that `na+tcp` asks for, resolved.
///
/// ```
/// use margo_config::{Config, ResolvedTcpSecurity};
///
/// let text = r#"{ "margo": { "security": { "allow": [{ "who": "uid:self" }] } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// assert_eq!(security.tcp, ResolvedTcpSecurity::None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResolvedTcpSecurity {
    /// Everybody.
    #[default]
    None,
    /// Peers that know the secret in this file.
    ClusterSecret(PathBuf),
    /// Peers that have a certificate.
    MutualTls {
        /// As [`TcpSecurityOptions::certificate`].
        certificate: PathBuf,
        /// As [`TcpSecurityOptions::key`].
        key: PathBuf,
        /// As [`TcpSecurityOptions::trust`].
        trust: PathBuf,
        /// As [`TcpSecurityOptions::revoked`].
        revoked: Option<PathBuf>,
        /// As [`TcpSecurityOptions::names`].
        names: Vec<String>,
    },
}
