//! The rules of `margo.security`: what they refer to, and holes in them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::dependencies::typed;
use super::{Findings, ResolvedProvider};
use crate::document::config::Config;
use crate::document::security::{
    RULES_MAX, ResolvedRule, ResolvedSecurity, ResolvedTcpSecurity, Rule, SecurityOptions,
    TcpSecurityMode, TcpSecurityOptions, Who,
};
use crate::document::subnet::IpSubnet;
use crate::report::suggest::choices;

const PATH: &str = "margo.security";

/// Bits by which a host is known that has an IPv6 address: it chooses among the rest.
const HOST_BITS: u8 = 64;

/// Checks the rules and finds what they refer to.
pub(super) fn resolve(
    config: &Config,
    providers: &[ResolvedProvider],
    found: &mut Findings,
) -> Option<ResolvedSecurity> {
    let tcp = tcp(config, found);
    let options = config.margo.security.as_ref()?;
    let known = Referents { roles: roles(&options.roles, found), providers: ids_of(providers) };
    let mut list = |key: &str, rules: &[Rule]| {
        if rules.len() > RULES_MAX {
            let message = format!("{} rules are too many: at most {RULES_MAX}", rules.len());
            found.error(format!("{PATH}.{key}"), message);
            return Vec::new();
        }
        let each = rules.iter().enumerate();
        each.filter_map(|(index, rule)| known.rule(key, index, rule, found)).collect()
    };
    let (mut allow, deny) = (list("allow", &options.allow), list("deny", &options.deny));
    if options.allow.is_empty() && tcp != ResolvedTcpSecurity::None {
        // The transport has asked for proof.
        let (name, rpc) = ("security.tcp".to_owned(), "*".to_owned());
        allow.push(ResolvedRule { name, who: [Who::Anyone].into(), providers: None, rpc });
    }
    let resolved = ResolvedSecurity { options: options.clone(), allow, deny, tcp };
    // One that was left out may be what is missing.
    if found.errors.is_empty() {
        holes(config, &resolved, found);
    }
    Some(resolved)
}

/// Checks who may connect over `na+tcp`.
fn tcp(config: &Config, found: &mut Findings) -> ResolvedTcpSecurity {
    const TCP: &str = "margo.security.tcp";
    let options = config.margo.security.as_ref().and_then(|security| security.tcp.as_ref());
    let default = TcpSecurityOptions::default();
    let given = options.unwrap_or(&default);
    let TcpSecurityOptions { mode, secret, certificate, key, trust, revoked, names, .. } = given;
    let (of_secret, of_tls) = (TcpSecurityMode::ClusterSecret, TcpSecurityMode::MutualTls);
    for (name, is_given, of) in [
        ("secret", secret.is_some(), of_secret),
        ("certificate", certificate.is_some(), of_tls),
        ("key", key.is_some(), of_tls),
        ("trust", trust.is_some(), of_tls),
        ("revoked", revoked.is_some(), of_tls),
        ("names", !names.is_empty(), of_tls),
        ("beyond_loopback", given.beyond_loopback, TcpSecurityMode::None),
    ] {
        if is_given && *mode != of {
            found.error(format!("{TCP}.{name}"), format!("belongs to the mode {}", word(of)));
        }
    }
    let address = &*config.margo.address;
    let mut file = |name: &str, path: &Option<String>| match path.as_deref() {
        Some("") | None => {
            let needs = word(*mode);
            let message = format!("missing key `{name}`, the path of a file: {needs} needs it");
            found.error(TCP, message);
            PathBuf::new()
        }
        Some(path) => PathBuf::from(path),
    };
    match mode {
        TcpSecurityMode::ClusterSecret => {
            ResolvedTcpSecurity::ClusterSecret(file("secret", secret))
        }
        TcpSecurityMode::MutualTls => ResolvedTcpSecurity::MutualTls {
            certificate: file("certificate", certificate),
            key: file("key", key),
            trust: file("trust", trust),
            revoked: revoked.as_ref().map(PathBuf::from),
            names: names.clone(),
        },
        TcpSecurityMode::None => {
            let subnet = IpSubnet::parse(config.mercury.ip_subnet.as_deref().unwrap_or_default());
            let is_wide = subnet.is_ok_and(|subnet| !subnet.ip.is_loopback());
            let is_open = address.starts_with("na+tcp") && (is_wide || !is_near(address));
            if is_open && config.margo.listen && !given.beyond_loopback {
                found.error("margo.address", everybody(address));
            }
            ResolvedTcpSecurity::None
        }
    }
}

fn word(mode: TcpSecurityMode) -> &'static str {
    match mode {
        TcpSecurityMode::None => "\"none\"",
        TcpSecurityMode::ClusterSecret => "\"cluster_secret\"",
        TcpSecurityMode::MutualTls => "\"mutual_tls\"",
    }
}

/// The refusal of an address where everybody could call, with what to write instead.
fn everybody(address: &str) -> String {
    format!(
        "other hosts reach {address:?}, and nothing says who may connect: set `{PATH}.tcp`, such \
         as {{ \"mode\": \"cluster_secret\", \"secret\": \"FILE\" }} (`margo security new-secret \
         FILE` makes one), or, where everybody may, {{ \"mode\": \"none\", \"beyond_loopback\": \
         true }}"
    )
}

/// The names that rules may refer to.
struct Referents<'a> {
    roles: BTreeMap<&'a str, Arc<[Who]>>,
    /// By type, and by name.
    providers: HashMap<&'a str, Vec<u16>>,
}

fn ids_of(providers: &[ResolvedProvider]) -> HashMap<&str, Vec<u16>> {
    let mut ids = HashMap::<_, Vec<_>>::new();
    // One with an error has neither.
    for provider in providers.iter().filter(|provider| !provider.name.is_empty()) {
        ids.entry(&*provider.type_name).or_default().push(provider.provider_id);
        ids.entry(&*provider.name).or_default().push(provider.provider_id);
    }
    ids
}

fn roles<'a>(
    given: &'a BTreeMap<String, Vec<String>>,
    found: &mut Findings,
) -> BTreeMap<&'a str, Arc<[Who]>> {
    let mut roles = BTreeMap::new();
    for (role, members) in given {
        let path = format!("{PATH}.roles.{role}");
        let mut all = Vec::with_capacity(members.len());
        for (index, text) in members.iter().enumerate() {
            match caller(text) {
                Ok(Who::Anyone) => {
                    let message = "\"anyone\" has no role: write it as `who` of the rule";
                    found.error(format!("{path}[{index}]"), message);
                }
                Ok(who) => all.push(who),
                Err(message) => found.error(format!("{path}[{index}]"), message),
            }
        }
        if members.is_empty() {
            found.warn(path, "nobody has this role");
        }
        roles.insert(role.as_str(), all.into());
    }
    roles
}

impl Referents<'_> {
    fn rule(
        &self,
        list: &str,
        index: usize,
        rule: &Rule,
        found: &mut Findings,
    ) -> Option<ResolvedRule> {
        let path = format!("{PATH}.{list}[{index}]");
        let name = rule.name.clone().unwrap_or_else(|| format!("{list}[{index}]"));
        let who = match self.who(&rule.who) {
            _ if rule.who.is_empty() => {
                found.error(&path, "missing key `who`, such as \"uid:self\"");
                None
            }
            Ok(who) => Some(who),
            Err(message) => {
                found.error(format!("{path}.who"), message);
                None
            }
        };
        let providers = self.ids(&path, rule.provider.as_deref().unwrap_or("*"), found);
        let rpc = rule.rpc.clone().unwrap_or_else(|| "*".to_owned());
        if rpc.is_empty() {
            found.error(format!("{path}.rpc"), "is empty; \"*\" stands for every RPC");
        }
        Some(ResolvedRule { name, who: who?, providers: providers?, rpc })
    }

    fn who(&self, text: &str) -> Result<Arc<[Who]>, String> {
        let Some(role) = text.strip_prefix("role:") else {
            return Ok([caller(text)?].into());
        };
        let names = || self.roles.keys().copied().collect::<Vec<_>>();
        let none = || format!("no role {role:?}{}", choices("have", role, &names()));
        self.roles.get(role).cloned().ok_or_else(none)
    }

    /// Returns the ids of the providers that are meant; `Some(None)`: all.
    fn ids(&self, path: &str, text: &str, found: &mut Findings) -> Option<Option<Vec<u16>>> {
        if text == "*" {
            return Some(None);
        }
        if let Some((type_name, id)) = typed(text) {
            let is_known = self.providers.get(type_name).is_some_and(|ids| ids.contains(&id));
            if !is_known && !found.lacks.providers() {
                let message = format!(
                    "this document has no provider {text:?}: the rule is for provider {id}, \
                     whatever the program registers there"
                );
                found.warn(format!("{path}.provider"), message);
            }
            return Some(Some(vec![id]));
        }
        if let Some(ids) = self.providers.get(text) {
            return Some(Some(ids.clone()));
        }
        if !found.lacks.providers() && !found.is_full() {
            let mut names: Vec<_> = self.providers.keys().copied().collect();
            names.sort_unstable();
            let message = format!(
                "no provider {text:?} in this document{}; one that the program registers is \
                 \"type:id\"",
                choices("have", text, &names)
            );
            found.error(format!("{path}.provider"), message);
        }
        None
    }
}

/// Reads what is no role.
fn caller(text: &str) -> Result<Who, String> {
    match text.split_once(':') {
        None if text == "anyone" => Ok(Who::Anyone),
        None if text == "member" => Ok(Who::Member),
        Some(("name", "")) => {
            Err("an empty name names nobody; \"name:*\" is every name".to_owned())
        }
        Some(("name", name)) => Ok(Who::Name(name.into())),
        Some(("uid", "self")) => Ok(Who::OwnUser),
        Some(("uid", id)) => {
            let digits = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
            let id = id.parse().ok().filter(|_| digits).map(Who::User);
            id.ok_or_else(|| {
                format!("{text:?} is no user: write \"uid:1000\", a number, or \"uid:self\"")
            })
        }
        Some(("host", subnet)) => host(IpSubnet::parse(subnet)?),
        other => {
            let kind = other.map_or(text, |(kind, _)| kind);
            let kinds =
                choices("allowed", kind, &["anyone", "member", "name", "uid", "host", "role"]);
            Err(format!("{text:?} names no callers{kinds}"))
        }
    }
}

fn host(subnet: IpSubnet) -> Result<Who, String> {
    match subnet.ip {
        IpAddr::V6(ip) if subnet.bits > HOST_BITS && !(ip.is_loopback() && subnet.bits == 128) => {
            Err(format!(
                "a host with IPv6 chooses among the addresses that begin with the same {HOST_BITS} \
                 bits: write \"{ip}/{HOST_BITS}\", or less bits"
            ))
        }
        _ => Ok(Who::Host(subnet)),
    }
}

/// Warns of rules that do nothing, and of those that do more than most want.
fn holes(config: &Config, security: &ResolvedSecurity, found: &mut Findings) {
    let ResolvedSecurity { options, allow, deny, tcp } = security;
    if allow.is_empty() {
        found.warn(PATH, "no rule allows anything: every call from outside is refused");
    }
    let (address, auto_sm) = (&*config.margo.address, config.mercury.auto_sm);
    let is_sm = address.split("://").next() == Some("na+sm");
    let knows_users = is_sm || auto_sm;
    let knows_hosts = address.starts_with("na+tcp") || address.starts_with("ucx+");
    let unknown = |who: &Who| match who {
        Who::User(_) | Who::OwnUser => !knows_users,
        Who::Host(_) => !knows_hosts,
        Who::Member => !matches!(tcp, ResolvedTcpSecurity::ClusterSecret(_)),
        Who::Name(_) => !matches!(tcp, ResolvedTcpSecurity::MutualTls { .. }),
        Who::Anyone => false,
    };
    let lists = [("allow", allow), ("deny", deny)];
    for (list, index, rule) in lists.iter().flat_map(|(list, rules)| {
        rules.iter().enumerate().map(move |(index, rule)| (*list, index, rule))
    }) {
        let path = format!("{PATH}.{list}[{index}]");
        if !rule.who.is_empty() && rule.who.iter().all(unknown) {
            let message = format!("never applies: over {address:?} nobody is known by that");
            found.warn(format!("{path}.who"), message);
        } else if list == "allow"
            && let Some(deny) = deny.iter().find(|deny| deny.covers(rule))
        {
            found.warn(path, format!("never applies: the rule {:?} denies all of it", deny.name));
        } else if list == "allow"
            && rule.who.contains(&Who::Anyone)
            && !is_near(address)
            && *tcp == ResolvedTcpSecurity::None
        {
            let message = format!("lets everybody call who reaches {address:?}");
            found.warn(format!("{path}.who"), message);
        }
    }
    warn_of_unused_roles(options, found);
}

fn warn_of_unused_roles(options: &SecurityOptions, found: &mut Findings) {
    let all = || options.allow.iter().chain(&options.deny);
    let used: std::collections::BTreeSet<_> =
        all().filter_map(|rule| rule.who.strip_prefix("role:")).collect();
    for role in options.roles.keys().filter(|role| !used.contains(role.as_str())) {
        found.warn(format!("{PATH}.roles.{role}"), "no rule names this role");
    }
}

/// Returns true if only processes of this host reach the address.
fn is_near(address: &str) -> bool {
    let (transport, rest) = address.split_once("://").unwrap_or((address, ""));
    let host = match rest.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => rest.split([':', '/']).next(),
    };
    let host = host.unwrap_or_default();
    matches!(transport, "na+sm" | "na+sim" | "ucx+sm")
        // Without a host, it listens on the loopback address.
        || (host.is_empty() && transport == "na+tcp")
        || host == "localhost"
        || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_known() {
        for (address, near) in [
            ("na+sm://", true),
            ("na+sm", true),
            ("na+tcp://127.0.0.1:7000", true),
            ("na+tcp://[::1]:7000", true),
            ("na+tcp://localhost:0", true),
            ("ucx+tcp://127.1.2.3", true),
            ("na+tcp://", true),
            ("na+tcp://:7000", true),
            ("na+tcp", true),
            ("na+tcp://eth0:7000", false),
            ("na+tcp://0.0.0.0:7000", false),
            ("na+tcp://[::]:7000", false),
            ("ofi+verbs://ib0", false),
        ] {
            assert_eq!(is_near(address), near, "{address}");
        }
    }
}
