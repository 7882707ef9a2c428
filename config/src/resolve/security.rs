//! The rules of `margo.security`: what they refer to, and holes in them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::dependencies::typed;
use super::tcp_security::{self, is_near, tcp_part};
use super::{Findings, ResolvedProvider, fabric_security};
use crate::document::config::Config;
use crate::document::fabric_security::{FabricSecurityOptions, ResolvedFabricSecurity};
use crate::document::security::{
    AuditOptions, CallerLimit, RULES_MAX, RateLimit, ResolvedLimit, ResolvedRule, ResolvedSecurity,
    Rule, SecurityOptions, Who,
};
use crate::document::subnet::IpSubnet;
use crate::document::tcp_security::ResolvedTcpSecurity;
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
    let tcp = tcp_security::resolve(config, found);
    let fabrics = fabric_security::resolve(config, found);
    let options = config.margo.security.as_ref()?;
    let known = Referents { roles: roles(&options.roles, found), providers: ids_of(providers) };
    let mut rules = |key, rules: &[Rule]| -> Vec<_> {
        let each = few_enough(key, rules, found).iter().enumerate();
        each.filter_map(|(index, rule)| known.rule(key, index, rule, found)).collect()
    };
    let (mut allow, mut deny) = (rules("allow", &options.allow), rules("deny", &options.deny));
    if config.margo.remote_admin {
        nobody_administers_unknown(&options.allow, found);
    }
    let asks = tcp != ResolvedTcpSecurity::None || fabrics != ResolvedFabricSecurity::None;
    if options.allow.is_empty() && asks {
        allow.push(those_let_in(&fabrics));
    }
    if fabrics.is_strict() {
        let who = [Who::Unproven].into();
        let (name, rpc) = ("fabrics".to_owned(), "*".to_owned());
        deny.push(ResolvedRule { name, who, providers: None, rpc, on_behalf_of: None });
    }
    let limits = few_enough("limits", &options.limits, found).iter().enumerate();
    let limits = limits.filter_map(|(index, limit)| known.limit(index, limit, found)).collect();
    if let Some(audit) = &options.audit {
        check_audit(audit, found);
    }
    let options = options.clone();
    let resolved = ResolvedSecurity { options, allow, deny, limits, tcp, fabrics };
    // One that was left out may be what is missing.
    if found.errors.is_empty() {
        holes(config, &resolved, found);
    }
    Some(resolved)
}

/// The RPC by which an instance is administered (`margo.remote_admin`).
const ADMIN: &str = "__admin__";

fn nobody_administers_unknown(allow: &[Rule], found: &mut Findings) {
    for (index, rule) in allow.iter().enumerate() {
        if rule.who == "anyone" && rule.rpc.as_deref() == Some(ADMIN) {
            let message = "\"anyone\" may not administer an instance: say who, such as \
                           \"uid:self\", \"member\" or \"role:admin\"";
            found.error(format!("{PATH}.allow[{index}].who"), message);
        }
    }
}

/// A rule for all who have given the proof that is asked for, and for strangers where they are to
/// be served.
fn those_let_in(fabrics: &ResolvedFabricSecurity) -> ResolvedRule {
    let proven = || [Who::OwnUser, Who::Member, Who::Name("*".into())].into();
    let (name, who) = match fabrics {
        ResolvedFabricSecurity::None => ("tcp", proven()),
        strict if strict.is_strict() => ("fabrics", proven()),
        _ => ("fabrics", [Who::Anyone].into()),
    };
    let (name, rpc) = (name.to_owned(), "*".to_owned());
    ResolvedRule { name, who, providers: None, rpc, on_behalf_of: None }
}

/// Returns a list if it is short enough.
fn few_enough<'a, T>(key: &str, list: &'a [T], found: &mut Findings) -> &'a [T] {
    if list.len() <= RULES_MAX {
        return list;
    }
    let message = format!("{} rules are too many: at most {RULES_MAX}", list.len());
    found.error(format!("{PATH}.{key}"), message);
    &[]
}

fn check_audit(audit: &AuditOptions, found: &mut Findings) {
    if audit.file.is_empty() || audit.file.contains('\0') || audit.file.ends_with('/') {
        found.error(format!("{PATH}.audit.file"), "is no name of a file, such as \"audit.jsonl\"");
    }
    let mut check = |key, value, min, max| {
        super::network::limit(&format!("{PATH}.audit.{key}"), value, min, max, found);
    };
    check("rotate_bytes", audit.rotate_bytes, 1 << 16, u64::MAX);
    check("keep", audit.keep.into(), 0, 1000);
    check("records_per_sec", audit.records_per_sec.into(), 1, 1_000_000);
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
        let who = self.callers(&path, &rule.who, found);
        let providers = self.ids(&path, rule.provider.as_deref().unwrap_or("*"), found);
        let rpc = rule.rpc.clone().unwrap_or_else(|| "*".to_owned());
        if rpc.is_empty() {
            found.error(format!("{path}.rpc"), "is empty; \"*\" stands for every RPC");
        }
        let on_behalf_of = match rule.on_behalf_of.as_deref().map(|text| self.who(text)) {
            Some(Err(message)) => {
                found.error(format!("{path}.on_behalf_of"), message);
                return None;
            }
            named => named.and_then(Result::ok),
        };
        Some(ResolvedRule { name, who: who?, providers: providers?, rpc, on_behalf_of })
    }

    fn limit(
        &self,
        index: usize,
        limit: &CallerLimit,
        found: &mut Findings,
    ) -> Option<ResolvedLimit> {
        const CALLS_MAX: u64 = 1_000_000_000;
        const BYTES_MAX: u64 = 1 << 40;
        let path = format!("{PATH}.limits[{index}]");
        let who = self.callers(&path, &limit.who, found);
        let mut checked = |key: &str, value: Option<u64>, max| {
            let value = value?;
            super::network::limit(&format!("{path}.{key}"), value, 1, max, found);
            Some(value)
        };
        let calls = checked("calls_per_sec", limit.calls_per_sec, CALLS_MAX);
        let calls = (calls, checked("calls_burst", limit.calls_burst, CALLS_MAX));
        let bytes = checked("bytes_per_sec", limit.bytes_per_sec, BYTES_MAX);
        let bytes = (bytes, checked("bytes_burst", limit.bytes_burst, BYTES_MAX));
        let handlers_max = checked("handlers_max", limit.handlers_max, u64::MAX);
        let request_bytes_max = checked("request_bytes_max", limit.request_bytes_max, u64::MAX);
        for (of, pair) in [("calls", calls), ("bytes", bytes)] {
            if let (None, Some(_)) = pair {
                let message = format!("goes with `{of}_per_sec`, which is not given");
                found.error(format!("{path}.{of}_burst"), message);
            }
        }
        let rate = |(per_sec, burst): (Option<u64>, Option<u64>)| {
            per_sec.map(|per_sec| RateLimit { per_sec, burst: burst.unwrap_or(per_sec) })
        };
        Some(ResolvedLimit {
            name: limit.name.clone().unwrap_or_else(|| format!("limits[{index}]")),
            who: who?,
            calls: rate(calls),
            bytes: rate(bytes),
            handlers_max,
            request_bytes_max,
        })
    }

    /// Returns the callers of a rule or limit, which has to name some.
    fn callers(&self, path: &str, text: &str, found: &mut Findings) -> Option<Arc<[Who]>> {
        let named = match text {
            "" => {
                found.error(path, "missing key `who`, such as \"uid:self\"");
                return None;
            }
            text => self.who(text),
        };
        named.map_err(|message| found.error(format!("{path}.who"), message)).ok()
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
    let ResolvedSecurity { options, allow, deny, limits, tcp, fabrics } = security;
    if allow.is_empty() && security.has_rules() {
        found.warn(PATH, "no rule allows anything: every call from outside is refused");
    }
    let (address, auto_sm) = (&*config.margo.address, config.mercury.auto_sm);
    let is_sm = address.split("://").next() == Some("na+sm");
    let knows_users = is_sm || auto_sm;
    let is_tcp = tcp_part(address).is_some();
    let tells_of_fabrics = *fabrics != ResolvedFabricSecurity::None;
    let knows_members = match tcp {
        ResolvedTcpSecurity::ClusterSecret(_) if is_tcp => true,
        _ => tells_of_fabrics && FabricSecurityOptions::concern(address),
    };
    let knows_names = is_tcp && matches!(tcp, ResolvedTcpSecurity::MutualTls { .. });
    let knows_hosts = is_tcp || address.starts_with("ucx+") || knows_members;
    // There a test says who is behind a node.
    let is_sim = address.starts_with("na+sim");
    let unknown = |who: &Who| match who {
        _ if is_sim => false,
        Who::User(_) | Who::OwnUser => !knows_users,
        Who::Host(_) => !knows_hosts,
        Who::Member => !knows_members,
        Who::Name(_) => !knows_names,
        Who::Anyone | Who::Unproven => false,
    };
    let lists = [("allow", allow), ("deny", deny)];
    for (list, index, rule) in lists.iter().flat_map(|(list, rules)| {
        rules.iter().enumerate().map(move |(index, rule)| (*list, index, rule))
    }) {
        let path = format!("{PATH}.{list}[{index}]");
        let is_known = rule.who.is_empty() || !rule.who.iter().all(unknown);
        if !is_known && list == "allow" && options.allow.is_empty() {
            let message = format!(
                "every call from outside is refused: nobody can prove anything over {address:?}"
            );
            found.warn(PATH, message);
        } else if !is_known {
            found.warn(format!("{path}.who"), known_by_none_of(&rule.who, address));
        } else if list == "allow"
            && let Some(deny) = deny.iter().find(|deny| deny.covers(rule))
        {
            found.warn(path, format!("never applies: the rule {:?} denies all of it", deny.name));
        } else if list == "allow"
            && rule.who.contains(&Who::Anyone)
            && !is_near(address)
            && *tcp == ResolvedTcpSecurity::None
            && !fabrics.is_strict()
        {
            let message = format!("lets everybody call who reaches {address:?}");
            found.warn(format!("{path}.who"), message);
        }
    }
    for (index, limit) in limits.iter().enumerate() {
        let path = format!("{PATH}.limits[{index}]");
        let takes_all = |other: &&ResolvedLimit| other.who.contains(&Who::Anyone);
        if !limit.who.is_empty() && limit.who.iter().all(unknown) {
            found.warn(format!("{path}.who"), known_by_none_of(&limit.who, address));
        } else if let Some(other) = limits[..index].iter().find(takes_all) {
            found.warn(path, format!("never applies: {:?} is before it, for anyone", other.name));
        }
    }
    warn_of_unused_roles(options, found);
}

fn known_by_none_of(who: &[Who], address: &str) -> String {
    let names = match who.iter().any(|who| matches!(who, Who::Name(_))) {
        true => "; a name is proven by a certificate, over na+tcp (mode \"mutual_tls\")",
        false => "",
    };
    format!("never applies: over {address:?} nobody is known by that{names}")
}

fn warn_of_unused_roles(options: &SecurityOptions, found: &mut Findings) {
    let rules = || options.allow.iter().chain(&options.deny);
    let on_behalf = rules().filter_map(|rule| rule.on_behalf_of.as_ref());
    let rules = rules().map(|rule| &rule.who).chain(on_behalf);
    let all = rules.chain(options.limits.iter().map(|limit| &limit.who));
    let used: std::collections::BTreeSet<_> =
        all.filter_map(|who| who.strip_prefix("role:")).collect();
    for role in options.roles.keys().filter(|role| !used.contains(role.as_str())) {
        found.warn(format!("{PATH}.roles.{role}"), "no rule names this role");
    }
}
