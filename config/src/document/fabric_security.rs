//! `margo.security.fabrics`: the proof that is asked of peers over `ofi+…` and `ucx+…`, which do
//! not tell who a peer is.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The proof that both ends give by messages of their own over transports that do not tell who a
/// peer is (`margo.security.fabrics`): `ofi+…`, `ucx+…` and `na+sim`. Nothing is encrypted: whoever
/// is on the way reads everything, and can change results and bulk data.
///
/// ```
/// use margo_config::{Config, ResolvedFabricSecurity};
///
/// let text = r#"{ "margo": { "address": "ofi+tcp://", "security": {
///     "fabrics": { "mode": "cluster_secret", "secret": "/etc/margo/secret" }
/// } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// let secret = "/etc/margo/secret".into();
/// let fabrics = ResolvedFabricSecurity::ClusterSecret { secret, strangers: false };
/// assert_eq!(security.fabrics, fabrics);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct FabricSecurityOptions {
    /// The proof that is asked for. Default `"none"`.
    pub mode: FabricSecurityMode,
    /// The file with the secret of a cluster, for `"cluster_secret"`, as that of
    /// [`TcpSecurityOptions::secret`](crate::TcpSecurityOptions::secret).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// With the mode `"cluster_secret"`: serves peers that prove nothing, as far as rules for
    /// `"anyone"` or their host allow, and calls them. C programs are such peers. Default false:
    /// they are refused, and not called.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strangers: bool,
}

impl FabricSecurityOptions {
    /// Returns true if the transport of an address, or of the last part of a composed one, does not
    /// tell who a peer is.
    ///
    /// ```
    /// use margo_config::FabricSecurityOptions;
    ///
    /// assert!(FabricSecurityOptions::concern("ofi+tcp;ofi_rxm://127.0.0.1:0"));
    /// assert!(!FabricSecurityOptions::concern("na+tcp://127.0.0.1:0"));
    /// ```
    pub fn concern(address: &str) -> bool {
        let part = address.rsplit('#').next().unwrap_or(address);
        let transport = part.split("://").next().unwrap_or(part);
        ["ofi", "ucx", "na+sim"].iter().any(|prefix| transport.starts_with(prefix))
    }
}

/// The proof that [`FabricSecurityOptions::mode`] asks for.
///
/// ```
/// use margo_config::FabricSecurityMode;
///
/// assert_eq!(FabricSecurityMode::default(), FabricSecurityMode::None);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FabricSecurityMode {
    /// None: nobody is known, but for the host of a connection over `ucx+…`.
    #[default]
    None,
    /// Both ends know a secret: such a peer is a `"member"`.
    ClusterSecret,
}

/// The proof that is asked for over fabrics, resolved.
///
/// ```
/// use margo_config::{Config, ResolvedFabricSecurity};
///
/// let text = r#"{ "margo": { "security": { "allow": [{ "who": "uid:self" }] } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// assert_eq!(security.fabrics, ResolvedFabricSecurity::None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResolvedFabricSecurity {
    /// None.
    #[default]
    None,
    /// Knowledge of a secret.
    ClusterSecret {
        /// The file.
        secret: PathBuf,
        /// Peers that prove nothing are served and called, too.
        strangers: bool,
    },
}

impl ResolvedFabricSecurity {
    /// Returns true if peers that prove nothing are refused.
    pub fn is_strict(&self) -> bool {
        matches!(self, Self::ClusterSecret { strangers: false, .. })
    }
}
