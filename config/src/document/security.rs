//! `margo.security`: who may connect, rules of who may call what, how much, and where that is
//! recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use prim::glob;
use serde::{Deserialize, Serialize};

use super::fabric_security::{FabricSecurityOptions, ResolvedFabricSecurity};
use super::subnet::IpSubnet;
use super::tcp_security::{ResolvedTcpSecurity, TcpSecurityOptions};

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
    /// The proof that `na+tcp` asks of both ends of a connection. With this key, and without
    /// `allow`, `deny` and `limits`, all who are let in may call everything; with a `mode` that
    /// asks for proof, `deny` and `limits` need no `allow`. Default none: everybody, and only on
    /// this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpSecurityOptions>,
    /// The proof that is asked of peers over `ofi+…` and `ucx+…`, which do not tell who a peer is.
    /// As with `tcp`, and a `mode` that asks for proof, all who give it may call everything without
    /// `allow`. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabrics: Option<FabricSecurityOptions>,
    /// How much each caller may ask for, at most 4096 limits; the first one whose `who` names a
    /// caller is its own. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<CallerLimit>,
    /// The file that records refusals and administrative acts. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditOptions>,
}

/// How much each of some callers may ask for; part of [`SecurityOptions`]. A user or host is one
/// caller, with however many connections, and has what is said here for itself.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "margo": { "security": {
///     "allow": [{ "who": "anyone" }],
///     "limits": [{ "who": "uid:self" }, { "who": "anyone", "calls_per_sec": 100 }]
/// } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// let [own, others] = &security.limits[..] else { panic!("there are two") };
/// assert_eq!((own.calls, others.calls.map(|calls| calls.burst)), (None, Some(100)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct CallerLimit {
    /// Name for the audit file. Default `limits[<index>]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The callers, as in [`Rule::who`]. Required.
    pub who: String,
    /// Calls in a second, 1 to 1000000000. Default: as many as come.
    #[cfg_attr(test, schemars(range(min = 1, max = 1000000000)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_sec: Option<u64>,
    /// Calls that may come at once after a time without any, 1 to 1000000000; goes with
    /// `calls_per_sec`. Default: those of one second.
    #[cfg_attr(test, schemars(range(min = 1, max = 1000000000)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_burst: Option<u64>,
    /// Bytes of encoded arguments in a second, 1 to 1099511627776 (1 TiB). Default: as many as
    /// come.
    #[cfg_attr(test, schemars(range(min = 1, max = 1099511627776u64)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_sec: Option<u64>,
    /// Bytes that may come at once after a time without any, 1 to 1099511627776; goes with
    /// `bytes_per_sec`. A longer request is taken after such a time. Default: those of one second.
    #[cfg_attr(test, schemars(range(min = 1, max = 1099511627776u64)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_burst: Option<u64>,
    /// Requests in hand at once, from 1. Default: what `margo.admission` leaves.
    #[cfg_attr(test, schemars(range(min = 1)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handlers_max: Option<u64>,
    /// Bytes of encoded arguments of the requests in hand, from 1; one request may be longer if
    /// there is no other. Default: what `margo.overflow_held_max` leaves.
    #[cfg_attr(test, schemars(range(min = 1)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_bytes_max: Option<u64>,
}

/// Where refusals and administrative acts are recorded; part of [`SecurityOptions`].
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "margo": { "security": {
///     "allow": [{ "who": "anyone" }], "audit": { "file": "audit.jsonl" }
/// } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// let audit = security.options.audit.expect("it is there");
/// assert_eq!((audit.keep, audit.records_per_sec), (4, 1000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AuditOptions {
    /// The file, to which a line of JSON is added for each record. Required.
    pub file: String,
    /// Bytes at which the file is renamed to `FILE.1`, and a new one begun, from 65536. Default
    /// 67108864 (64 MiB).
    #[cfg_attr(test, schemars(range(min = 65536)))]
    pub rotate_bytes: u64,
    /// Earlier files that are kept, `FILE.1` being the latest, 0 to 1000. Default 4.
    #[cfg_attr(test, schemars(range(min = 0, max = 1000)))]
    pub keep: u32,
    /// Most records in a second, 1 to 1000000; how many were left out is a record, too. Default
    /// 1000.
    #[cfg_attr(test, schemars(range(min = 1, max = 1000000)))]
    pub records_per_sec: u32,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self { file: String::new(), rotate_bytes: 64 << 20, keep: 4, records_per_sec: 1000 }
    }
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
    /// the secret of the cluster (see `tcp` and `fabrics`), and `"name:*.storage.example"`, those
    /// whose certificate has such a name, over `na+tcp`; `"role:admin"`, one of `roles`; or
    /// `"anyone"`. Required.
    pub who: String,
    /// The providers that are called: `"kv"`, those of this document with that type or name;
    /// `"kv:3"`, the one with that id; `"*"`, all, and RPCs without a provider. Default `"*"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The names of the RPCs; `*` stands for any text. Default `"*"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<String>,
    /// Only calls that the callers make on behalf of others, as they say, and of whom: as `who`,
    /// with `"anyone"` for calls on behalf of anybody. Default: calls of their own, and on behalf
    /// of anybody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
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
    /// How much callers may ask for: the first one that names a caller is its own.
    pub limits: Vec<ResolvedLimit>,
    /// The proof that `na+tcp` asks for.
    pub tcp: ResolvedTcpSecurity,
    /// The proof that is asked for over fabrics.
    pub fabrics: ResolvedFabricSecurity,
}

impl ResolvedSecurity {
    /// Returns false if all who are let in may call everything, as often as they like: the document
    /// says who may connect, or where to record that, and nothing of calls.
    pub fn has_rules(&self) -> bool {
        let SecurityOptions { allow, deny, limits, tcp, fabrics, audit, .. } = &self.options;
        let says_nothing = allow.is_empty() && deny.is_empty() && limits.is_empty();
        let has_others = tcp.is_some() || fabrics.is_some() || audit.is_some();
        self.fabrics.is_strict() || !(says_nothing && has_others)
    }
}

/// One of the limits of callers, resolved.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "margo": { "security": {
///     "allow": [{ "who": "anyone" }],
///     "limits": [{ "who": "anyone", "bytes_per_sec": 1000000, "handlers_max": 8 }]
/// } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// let limit = &security.limits[0];
/// assert_eq!((&*limit.name, limit.handlers_max), ("limits[0]", Some(8)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedLimit {
    /// The name that is written, or list and index.
    pub name: String,
    /// The callers.
    pub who: Arc<[Who]>,
    /// Calls.
    pub calls: Option<RateLimit>,
    /// Bytes of encoded arguments.
    pub bytes: Option<RateLimit>,
    /// Requests in hand at once.
    pub handlers_max: Option<u64>,
    /// Bytes of encoded arguments of the requests in hand.
    pub request_bytes_max: Option<u64>,
}

/// A rate, and how much of it may come at once.
///
/// ```
/// use margo_config::Config;
///
/// let text = r#"{ "margo": { "security": { "allow": [{ "who": "anyone" }],
///     "limits": [{ "who": "anyone", "calls_per_sec": 10, "calls_burst": 50 }] } } }"#;
/// let security = Config::from_json(text)?.resolve(&|_| None)?.security.expect("it is there");
/// let calls = security.limits[0].calls.expect("it is there");
/// assert_eq!((calls.per_sec, calls.burst), (10, 50));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimit {
    /// How much in a second, at least 1.
    pub per_sec: u64,
    /// How much at once after a time without any, at least 1.
    pub burst: u64,
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
    /// Only calls on behalf of one of these; `None`: all.
    pub on_behalf_of: Option<Arc<[Who]>>,
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
        let behalf = self.on_behalf_of.is_none() || self.on_behalf_of == other.on_behalf_of;
        let rpc = glob::matches(&self.rpc, &other.rpc);
        providers && behalf && rpc && self.covers_callers_of(other)
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
    /// Peers that know the secret of the cluster.
    Member,
    /// Peers with a name of this form, where `*` stands for any text.
    Name(Arc<str>),
    /// Peers that have proven nothing: of whom a host is known at most. No document names them.
    Unproven,
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
            on_behalf_of: None,
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
