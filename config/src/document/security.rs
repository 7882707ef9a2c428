//! `margo.security`: who may connect, and rules of who may call what.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use prim::glob;
use serde::{Deserialize, Serialize};

use super::subnet::IpSubnet;

/// Most rules in one list.
pub(crate) const RULES_MAX: usize = 4096;

/// Rules of who may call what. Without this object everybody may call everything; with it, only
/// what a rule of `allow` says and no rule of `deny` takes back.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "margo": {
///     "providers": [{ "type": "kv", "provider_id": 3 }],
///     "security": {
///         "roles": { "admin": ["uid:0", "uid:self"] },
///         "allow": [
///             { "who": "role:admin" }, { "who": "anyone", "provider": "kv", "rpc": "get*" }
///         ],
///         "deny": [{ "name": "guests", "who": "uid:1001" }]
///     }
/// } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// assert!(security.allow[1].is_about("get_many", 3) && !security.allow[1].is_about("put", 3));
/// assert_eq!((&*security.allow[0].name, &*security.deny[0].name), ("allow[0]", "guests"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SecurityOptions {
    /// Calls that are allowed, at most 4096 rules. Default none.
    pub allow: Vec<Rule>,
    /// Calls that are refused, whatever `allow` says, at most 4096 rules. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Rule>,
    /// Names for several callers, as `who` of a rule lists them: `"uid:…"`, `"host:…"`, `"member"`
    /// and `"name:…"`. Default `{}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, Vec<String>>,
    /// The proof that `na+tcp` asks of both ends of a connection. With a `mode` that asks for some,
    /// and neither `allow` nor `deny`, all who are let in may call everything. Default none:
    /// everybody, and only on this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpSecurityOptions>,
}

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
    /// Those that know the secret in this file.
    ClusterSecret(PathBuf),
    /// Those that have a certificate.
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

/// One rule of [`SecurityOptions`].
///
/// ```
/// use margo_config::Rule;
///
/// let readers = Rule {
///     who: "host:10.0.0.0/8".to_owned(),
///     rpc: Some("get*".to_owned()),
///     ..Rule::default()
/// };
/// assert_eq!(readers.provider, None, "every provider");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// Name for the log. Default `allow[<index>]` or `deny[<index>]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The callers: `"uid:1000"` or `"uid:self"`, a user of this host over `na+sm`;
    /// `"host:10.0.0.0/8"`, a host or subnet over `na+tcp` and `ucx+…`; `"member"`, those that know
    /// the secret of the cluster, and `"name:*.storage.example"`, those whose certificate has such
    /// a name, over `na+tcp` (see `tcp`); `"role:admin"`, one of `roles`; or `"anyone"`. Required.
    pub who: String,
    /// The providers that are called: `"kv"`, those of this document with that type or name;
    /// `"kv:3"`, the one with that id; `"*"`, all, and RPCs without a provider. Default `"*"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The names of the RPCs; `*` stands for any text. Default `"*"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<String>,
}

/// The rules of [`SecurityOptions`], with their names and references resolved.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "margo": { "security": { "allow": [{ "who": "uid:self" }] } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// assert_eq!((security.allow.len(), security.deny.len()), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedSecurity {
    /// As the document says it.
    pub options: SecurityOptions,
    /// The calls that are allowed.
    pub allow: Vec<ResolvedRule>,
    /// The calls that are refused all the same.
    pub deny: Vec<ResolvedRule>,
    /// The proof that `na+tcp` asks for.
    pub tcp: ResolvedTcpSecurity,
}

impl ResolvedSecurity {
    /// Returns false if all who are let in may call everything.
    pub fn has_rules(&self) -> bool {
        let none = self.options.allow.is_empty() && self.options.deny.is_empty();
        !none || self.tcp == ResolvedTcpSecurity::None
    }
}

/// One rule, resolved.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "margo": { "security": { "allow": [{ "who": "anyone", "rpc": "get*" }] } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// let rule = &security.allow[0];
/// assert!(rule.is_about("get_many", 3) && !rule.names_its_rpc());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedRule {
    /// The name that is written, or list and index.
    pub name: String,
    /// The callers; those of a role are shared by its rules.
    pub who: Arc<[Who]>,
    /// The ids of the providers; `None`: all, and RPCs without one.
    pub providers: Option<Vec<u16>>,
    /// The pattern of the names of RPCs.
    pub rpc: String,
}

impl ResolvedRule {
    /// Returns true if the rule concerns calls of that RPC at that provider.
    pub fn is_about(&self, rpc: &str, provider: u16) -> bool {
        self.providers.as_ref().is_none_or(|ids| ids.contains(&provider))
            && glob::matches(&self.rpc, rpc)
    }

    /// Returns true if the rule names one RPC, and not a pattern.
    pub fn names_its_rpc(&self) -> bool {
        !self.rpc.contains('*')
    }

    /// Returns true if this rule concerns all that `other` does, as far as that is easily seen.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let providers = match (&self.providers, &other.providers) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(others)) => others.iter().all(|id| own.contains(id)),
        };
        // A `*` of the other one is a character that only a `*` of this one matches.
        providers && glob::matches(&self.rpc, &other.rpc) && self.covers_callers_of(other)
    }

    fn covers_callers_of(&self, other: &Self) -> bool {
        /// Pairs of callers that are compared.
        const PAIRS_MAX: usize = 1000;
        let is_covered = |who: &Who| self.who.iter().any(|own| own.covers(who));
        Arc::ptr_eq(&self.who, &other.who)
            || (self.who.len() * other.who.len() <= PAIRS_MAX && other.who.iter().all(is_covered))
    }
}

/// Some callers of a rule.
///
/// ```
/// use margo_config::{Config, Who};
///
/// let text = r#"{ "margo": { "security": { "allow": [{ "who": "uid:1000" }] } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// assert_eq!(*security.allow[0].who, [Who::User(1000)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Who {
    /// Everybody.
    Anyone,
    /// The user that the process runs as.
    OwnUser,
    /// The user of that id.
    User(u32),
    /// The hosts of a subnet. Of IPv6, at most 64 bits count, or it is the loopback address.
    Host(IpSubnet),
    /// Those that know the secret of the cluster.
    Member,
    /// Those with a name of this form, where `*` stands for any text.
    Name(Arc<str>),
}

impl Who {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Anyone, _) => true,
            (Self::Name(own), Self::Name(other)) => glob::matches(own, other),
            (Self::Host(own), Self::Host(other)) => own.bits <= other.bits && own.has(other.ip),
            _ => self == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_a_pattern_covers_it_matches(
            one in "[ab*]{0,5}", other in "[ab*]{0,5}", text in "[ab]{0,6}",
        ) {
            if glob::matches(&one, &other) && glob::matches(&other, &text) {
                prop_assert!(glob::matches(&one, &text));
            }
        }
    }

    #[test]
    fn a_rule_covers_those_that_say_less() {
        let rule = |who: &[Who], providers: Option<&[u16]>, rpc: &str| ResolvedRule {
            name: String::new(),
            who: who.into(),
            providers: providers.map(<[_]>::to_vec),
            rpc: rpc.to_owned(),
        };
        let net = |text| Who::Host(IpSubnet::parse(text).unwrap());
        let name = |text: &str| Who::Name(text.into());
        let (all, user) = (rule(&[Who::Anyone], None, "*"), [Who::User(1)]);
        let tens = [net("10.0.0.0/8"), user[0].clone(), name("*.a")];
        let tens = rule(&tens, Some(&[1, 2]), "get*");
        for (who, providers, rpc, is_covered) in [
            (&user[..], Some(&[1][..]), "get", true),
            (&[net("10.1.0.0/16"), user[0].clone()], Some(&[2]), "get_*", true),
            (&[name("b.*.a")], Some(&[2]), "get_*", true),
            (&[name("*a")], Some(&[2]), "get_*", false),
            (&[Who::Member], Some(&[2]), "get_*", false),
            (&[net("10.1.0.0/7")], Some(&[2]), "get", false),
            (&[net("11.0.0.1")], Some(&[2]), "get", false),
            (&[net("a00::/8")], Some(&[2]), "get", false),
            (&[Who::User(2)], Some(&[2]), "get", false),
            (&[Who::Anyone], Some(&[2]), "get", false),
            (&user, Some(&[2, 3]), "get", false),
            (&user, None, "get", false),
            (&user, Some(&[2]), "ge*", false),
        ] {
            let other = rule(who, providers, rpc);
            assert_eq!(tens.covers(&other), is_covered, "{other:?}");
            assert!(all.covers(&other), "{other:?}");
        }
    }
}
