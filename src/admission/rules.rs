//! The rules of who may call what (`margo.security`).
//!
//! The rules that concern an RPC of a provider are compiled when it is registered: callers are
//! numbers ([`number_of`]), the allowed ones are ranges of them, and a request costs a look at a
//! few numbers that were allowed lately, or a binary search. Nothing is kept by caller, so nothing
//! that peers do makes it grow, and a verdict is never out of date: a registration keeps its rules,
//! and a new one compiles its own. How much a caller may ask for is looked at with the rules
//! (`limits.rs`).
//!
//! Names in certificates are no ranges, see `named_callers.rs`.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hg::{OnBehalfOf, ProviderId};
use margo_config::{IpSubnet, ResolvedRule, ResolvedSecurity, Who};

use prim::glob;

use crate::Principal;
use crate::admission::limits::{Limits, OverLimit};
use crate::admission::named_callers::NamedCallers;

/// Callers that were allowed lately and are found without a search.
const RECENT: usize = 16;

/// How the names of RPCs begin by which a provider is administered.
const ADMIN: &str = "__admin_";

// The kinds of callers, above the 64 bits that tell those of a kind apart.
const UNKNOWN: u128 = 0;
const USER: u128 = 1 << 64;
const IPV4: u128 = 2 << 64;
/// The first 64 bits of the address.
const IPV6: u128 = 3 << 64;
const IPV6_LOOPBACK: u128 = 4 << 64;
/// Members of the cluster: the same three kinds once more.
const MEMBER: u128 = 3 << 64;
const NAME: u128 = 8 << 64;
const END: u128 = 9 << 64;

/// The rules of an instance.
pub(crate) struct Rules {
    security: ResolvedSecurity,
    own_user: u32,
    limits: Option<Arc<Limits>>,
}

/// The callers of one RPC of one provider.
pub(crate) struct Callers {
    /// Numbers of callers at which an allowed range begins or ends, in turn.
    edges: Box<[u128]>,
    /// The rules about names, if there are any: what is above says nothing of these then.
    names: Option<Box<NamedCallers>>,
    /// All rules, if some of them are about calls on behalf of others: those above are then without
    /// these.
    on_behalf: Option<Box<OnBehalfRules>>,
    /// Allowed callers, each at the place that its number has; 0: none. Relaxed: a number says all.
    recent: [AtomicU64; RECENT],
    limits: Option<Arc<Limits>>,
}

/// The rules of one RPC of one provider, for calls on behalf of others: looked at one by one.
struct OnBehalfRules {
    allow: Vec<OnBehalfRule>,
    deny: Vec<OnBehalfRule>,
    own_user: u32,
}

struct OnBehalfRule {
    who: Vec<Who>,
    on_behalf_of: Option<Arc<[Who]>>,
}

impl OnBehalfRules {
    fn may(&self, caller: Principal, on_behalf_of: &OnBehalfOf) -> bool {
        let own = self.own_user;
        let is_about = |rule: &OnBehalfRule| {
            is_one_of(&rule.who, own, caller) && speaks_for(rule, own, on_behalf_of)
        };
        self.allow.iter().any(is_about) && !self.deny.iter().any(is_about)
    }
}

/// Returns whether a rule is about calls on behalf of this one.
fn speaks_for(rule: &OnBehalfRule, own_user: u32, on_behalf_of: &OnBehalfOf) -> bool {
    rule.on_behalf_of.as_ref().is_none_or(|who| is_for(who, own_user, on_behalf_of))
}

/// Returns whether somebody on whose behalf a call is made is one of these.
fn is_for(who: &[Who], own_user: u32, on_behalf_of: &OnBehalfOf) -> bool {
    match on_behalf_of {
        OnBehalfOf::User(id) => is_one_of(who, own_user, Principal::User(*id)),
        OnBehalfOf::Host(host) => is_one_of(who, own_user, Principal::of_host(*host)),
        OnBehalfOf::Member(host) => is_one_of(who, own_user, Principal::member_at(*host)),
        OnBehalfOf::Name(name) => who.iter().any(|who| match who {
            Who::Name(pattern) => glob::matches(pattern, name),
            who => *who == Who::Anyone,
        }),
        _ => is_one_of(who, own_user, Principal::Unknown),
    }
}

fn number_of(caller: Principal) -> u128 {
    match caller {
        Principal::User(id) => USER | u128::from(id),
        Principal::Host(ip) => number_of_host(ip),
        Principal::Member(ip) => MEMBER + number_of_host(ip),
        Principal::Name(name) => NAME | u128::from(name.number()),
        _ => UNKNOWN,
    }
}

fn number_of_host(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => IPV4 | u128::from(u32::from(ip)),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => IPV6_LOOPBACK,
        IpAddr::V6(ip) => IPV6 | (u128::from(ip) >> 64),
    }
}

/// The number of a user, a name, or a host or member with IPv4 in 64 bits, which is not 0. Others
/// come over networks that take longer than a search.
#[inline]
fn short(number: u128) -> Option<u64> {
    let kind = (number >> 64) as u64;
    matches!(kind, 1 | 2 | 5 | 8).then_some(kind << 32 | number as u64)
}

impl Rules {
    pub(crate) fn new(security: ResolvedSecurity) -> Self {
        let own_user = rustix::process::geteuid().as_raw();
        let limits = Limits::new(&security.limits, own_user);
        Self { security, own_user, limits }
    }

    /// Compiles what concerns an RPC of a provider. One of the runtime itself has no limits: a
    /// service whose callers are at theirs is one that people want to look at, or to end.
    pub(crate) fn of(&self, rpc: &str, provider: ProviderId, is_internal: bool) -> Callers {
        let (mut changes, mut names) = (Vec::new(), NamedCallers::default());
        let ResolvedSecurity { allow, deny, options, .. } = &self.security;
        // Where nobody has written a rule that allows something, all who are let in may do all.
        let is_implicit = options.allow.is_empty();
        let mut on_behalf = OnBehalfRules { allow: vec![], deny: vec![], own_user: self.own_user };
        let mut is_asked = false;
        for (rules, is_deny) in [(allow, false), (deny, true)] {
            for rule in rules.iter().filter(|rule| rule.is_about(rpc, provider.get())) {
                let may = |who: &&Who| is_deny || is_implicit || may(rule, who, rpc, provider);
                let who: Vec<_> = rule.who.iter().filter(may).collect();
                let kept = if is_deny { &mut on_behalf.deny } else { &mut on_behalf.allow };
                kept.push(OnBehalfRule {
                    who: who.iter().copied().cloned().collect(),
                    on_behalf_of: rule.on_behalf_of.clone(),
                });
                if rule.on_behalf_of.is_some() {
                    is_asked = true;
                    continue;
                }
                for who in who {
                    for (from, to) in ranges(who, self.own_user) {
                        changes.extend([(from, is_deny, 1), (to, is_deny, -1)]);
                    }
                    names.add(who, is_deny);
                }
            }
        }
        let recent = [const { AtomicU64::new(0) }; RECENT];
        let limits = self.limits.clone().filter(|_| !is_internal);
        let names = names.has_patterns().then(|| Box::new(names));
        let on_behalf = is_asked.then(|| Box::new(on_behalf));
        Callers { edges: edges(changes), names, on_behalf, recent, limits }
    }

    /// Says for the log why a caller is refused.
    #[cold]
    pub(crate) fn reason(
        &self,
        rpc: &str,
        provider: ProviderId,
        (caller, on_behalf_of): (Principal, Option<&OnBehalfOf>),
    ) -> String {
        let own = self.own_user;
        let denies = |rule: &&ResolvedRule| {
            let is_meant = match (&rule.on_behalf_of, on_behalf_of) {
                (None, _) => true,
                (Some(who), Some(on_behalf_of)) => is_for(who, own, on_behalf_of),
                (Some(_), None) => false,
            };
            is_meant && rule.is_about(rpc, provider.get()) && is_one_of(&rule.who, own, caller)
        };
        match self.security.deny.iter().find(denies) {
            Some(rule) => format!("the rule {:?} denies it", rule.name),
            None => "no rule allows it".to_owned(),
        }
    }

    /// Says for the log which limit a caller is over.
    #[cold]
    pub(crate) fn reason_of(&self, over: &OverLimit) -> String {
        let name = self.limits.as_ref().map_or("", |limits| limits.name_of(over));
        format!("the limit {name:?}: {over}")
    }
}

/// Returns whether a caller is one of these.
pub(crate) fn is_one_of(who: &[Who], own_user: u32, caller: Principal) -> bool {
    let number = number_of(caller);
    who.iter().any(|who| match (who, caller) {
        (Who::Name(pattern), Principal::Name(name)) => glob::matches(pattern, name.as_str()),
        _ => ranges(who, own_user).any(|(from, to)| (from..to).contains(&number)),
    })
}

/// The numbers of some callers, but for those that have a name: some ranges.
fn ranges(who: &Who, own_user: u32) -> impl Iterator<Item = (u128, u128)> + use<> {
    let one = |number| Some((number, number + 1));
    let ranges = match who {
        Who::Anyone => [Some((UNKNOWN, END)), None, None, None],
        Who::OwnUser => [one(USER | u128::from(own_user)), None, None, None],
        Who::User(id) => [one(USER | u128::from(*id)), None, None, None],
        Who::Member => [Some((MEMBER + IPV4, NAME)), None, None, None],
        Who::Unproven => [one(UNKNOWN), Some((IPV4, MEMBER + IPV4)), None, None],
        Who::Host(net) => {
            let (first, second) = of_subnet(*net);
            let member = |(from, to)| (MEMBER + from, MEMBER + to);
            [Some(first), second, Some(member(first)), second.map(member)]
        }
        // Names, or a kind of a later version of the document, which is nobody here.
        _ => [None; 4],
    };
    ranges.into_iter().flatten()
}

/// Returns whether a rule allows these callers an RPC. One of the instance itself, which ends it or
/// looks at it, is for everybody only where a rule names it; one by which a provider is
/// administered is for nobody else.
fn may(rule: &ResolvedRule, who: &Who, rpc: &str, provider: ProviderId) -> bool {
    let is_hidden = match provider {
        ProviderId::DEFAULT => *who == Who::Anyone && rpc.starts_with("__") && rpc.ends_with("__"),
        _ => rpc.starts_with(ADMIN),
    };
    !is_hidden || rule.names_its_rpc()
}

fn of_subnet(net: IpSubnet) -> ((u128, u128), Option<(u128, u128)>) {
    // So many numbers have the same first bits.
    let range = |kind: u128, bits: u128, free: u32| {
        let first = bits >> free << free;
        (kind | first, (kind | first) + (1 << free))
    };
    let loopback = (IPV6_LOOPBACK, IPV6_LOOPBACK + 1);
    let bits = u32::from(net.bits);
    match net.ip {
        IpAddr::V4(ip) => (range(IPV4, u32::from(ip).into(), 32 - bits), None),
        // Of the others at most 64 bits are given.
        IpAddr::V6(_) if bits > 64 => (loopback, None),
        IpAddr::V6(ip) => {
            let prefix = range(IPV6, u128::from(ip) >> 64, 64 - bits);
            (prefix, (prefix.0 == IPV6).then_some(loopback))
        }
    }
}

/// The edges of what is allowed and not denied, from the places where a rule begins and ends.
fn edges(mut changes: Vec<(u128, bool, i32)>) -> Box<[u128]> {
    changes.sort_unstable();
    let (mut edges, mut is_inside, [mut allows, mut denies]) = (Vec::new(), false, [0; 2]);
    for at in changes.chunk_by(|one, other| one.0 == other.0) {
        for (_, is_deny, change) in at {
            *(if *is_deny { &mut denies } else { &mut allows }) += change;
        }
        if is_inside != (allows > 0 && denies == 0) {
            is_inside = !is_inside;
            edges.push(at[0].0);
        }
    }
    edges.into()
}

impl Callers {
    /// The limits of how much they may ask for, if there are any.
    #[inline]
    pub(crate) fn limits(&self) -> Option<&Arc<Limits>> {
        self.limits.as_ref()
    }

    /// Returns whether this one may call, on behalf of somebody if it says so.
    #[inline]
    pub(crate) fn may_for(&self, caller: Principal, on_behalf_of: Option<&OnBehalfOf>) -> bool {
        match (on_behalf_of, &self.on_behalf) {
            (Some(who), Some(rules)) => rules.may(caller, who),
            _ => self.may(caller),
        }
    }

    /// Returns whether this one may call.
    #[inline]
    pub(crate) fn may(&self, caller: Principal) -> bool {
        let number = number_of(caller);
        let place = short(number).map(|short| (&self.recent[short as usize % RECENT], short));
        place.is_some_and(|(place, short)| place.load(Ordering::Relaxed) == short)
            || self.search(caller, number, place)
    }

    #[inline(never)]
    fn search(&self, caller: Principal, number: u128, place: Option<(&AtomicU64, u64)>) -> bool {
        let is_allowed = match (caller, &self.names) {
            (Principal::Name(name), Some(names)) => names.may(name),
            _ => self.edges.partition_point(|edge| *edge <= number) % 2 == 1,
        };
        if let Some((place, short)) = place.filter(|_| is_allowed) {
            place.store(short, Ordering::Relaxed);
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use margo_config::{Config, Rule, SecurityOptions};
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::PeerName;

    const RPCS: [&str; 6] = ["get", "get_all", "put", "__shutdown__", "__ping__", "__admin_kv__"];
    const PROVIDERS: [u16; 3] = [1, 2, u16::MAX];

    fn callers() -> Vec<Principal> {
        let hosts = [
            "10.0.0.1",
            "10.1.2.3",
            "11.0.0.0",
            "127.0.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "::1",
            "::2",
            "2001:db8:0:1::9",
            "2001:db8:0:2::9",
            "ffff:ffff:ffff:ffff::1",
        ];
        let hosts = hosts.map(|ip| Principal::of_host(ip.parse().unwrap()));
        let own = rustix::process::geteuid().as_raw();
        let users = [0, 1, 1000, u32::MAX, own].map(Principal::User);
        let members = ["10.1.2.3", "::1", "2001:db8:0:1::9"];
        let members = members.map(|ip| Principal::member_at(ip.parse().unwrap()));
        let names = ["a.example", "b.a.example", "spiffe://x/y"];
        let names = names.map(|name| Principal::Name(PeerName::new(name)));
        let known = hosts.into_iter().chain(users).chain(members).chain(names);
        known.chain([Principal::Unknown]).collect()
    }

    /// Reads `who` of a rule anew, and bit by bit.
    fn is_meant(who: &str, caller: Principal) -> bool {
        let bits = |ip: IpAddr| -> Vec<bool> {
            let bytes = match ip {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1 == 1)).collect()
        };
        match (who.split_once(':'), caller) {
            (None, Principal::Member(_)) => who == "anyone" || who == "member",
            (None, _) => who == "anyone",
            (Some(("name", name)), Principal::Name(known)) => match name.split_once('*') {
                None => name == known.as_str(),
                Some((head, tail)) => {
                    let rest = known.as_str().strip_prefix(head);
                    rest.is_some_and(|rest| rest.ends_with(tail))
                }
            },
            (Some(("uid", "self")), Principal::User(id)) => {
                id == rustix::process::geteuid().as_raw()
            }
            (Some(("uid", id)), Principal::User(user)) => id == user.to_string(),
            (Some(("host", net)), Principal::Host(ip) | Principal::Member(ip)) => {
                let (net, len) = net.split_once('/').unwrap_or((net, "128"));
                let net = bits(net.parse().unwrap());
                let len = net.len().min(len.parse().unwrap());
                net.len() == bits(ip).len() && net[..len] == bits(ip)[..len]
            }
            _ => false,
        }
    }

    /// A rule: callers, provider, RPC.
    type Written = (&'static str, &'static str, &'static str);

    fn written() -> impl Strategy<Value = Vec<Written>> {
        let who = select(
            &[
                "anyone",
                "member",
                "name:a.example",
                "name:*.example",
                "name:spiffe://*",
                "uid:self",
                "uid:0",
                "uid:1000",
                "uid:4294967295",
                "host:10.0.0.0/8",
                "host:10.1.2.3",
                "host:0.0.0.0/1",
                "host:255.255.255.255",
                "host:::1",
                "host:::/64",
                "host:2001:db8::/32",
                "host:2001:db8:0:1::/64",
                "host:8000::/1",
                "role:mixed",
            ][..],
        );
        let rpc =
            select(&["*", "get*", "get", "*t", "__shutdown__", "__admin_kv__", "__*", "put"][..]);
        proptest::collection::vec((who, select(&["*", "kv:1", "kv:2"][..]), rpc), 0..6)
    }

    const MIXED: [&str; 3] = ["uid:1", "host:127.0.0.1", "host:11.0.0.0/16"];

    fn compiled(allow: &[Written], deny: &[Written]) -> Rules {
        let list = |rules: &[Written]| -> Vec<_> {
            let rule = |&(who, provider, rpc): &Written| Rule {
                name: None,
                who: who.to_owned(),
                provider: Some(provider.to_owned()),
                rpc: Some(rpc.to_owned()),
                on_behalf_of: None,
            };
            rules.iter().map(rule).collect()
        };
        let mixed = MIXED.map(str::to_owned).to_vec();
        let roles = BTreeMap::from([("mixed".to_owned(), mixed)]);
        let mut config = Config::default();
        config.margo.security = Some(SecurityOptions {
            allow: list(allow),
            deny: list(deny),
            roles,
            ..Default::default()
        });
        Rules::new(config.resolve(&|_| None).unwrap().security.unwrap())
    }

    /// The meaning of the rules, one after the other.
    fn is_allowed(
        (allow, deny): (&[Written], &[Written]),
        (rpc, provider, caller): (&str, u16, Principal),
    ) -> bool {
        let concerns = |&(who, of, pattern): &Written| {
            let is_about = match pattern {
                "*" => true,
                "get*" => rpc.starts_with("get"),
                "*t" => rpc.ends_with('t'),
                "__*" => rpc.starts_with("__"),
                name => rpc == name,
            };
            let of_provider = of == "*" || of == format!("kv:{provider}");
            let one_of = |who: &str| match who {
                "role:mixed" => MIXED.iter().any(|member| is_meant(member, caller)),
                who => is_meant(who, caller),
            };
            is_about && of_provider && one_of(who)
        };
        let allows = |rule: &&Written| {
            let is_own = rpc.starts_with("__") && provider == u16::MAX && rule.0 == "anyone";
            let is_of_admin = rpc == "__admin_kv__" && provider != u16::MAX;
            concerns(rule) && (!(is_own || is_of_admin) || rule.2 == rpc)
        };
        allow.iter().any(|rule| allows(&rule)) && !deny.iter().any(concerns)
    }

    proptest! {
        #[test]
        fn compiled_rules_mean_what_they_say(allow in written(), deny in written()) {
            let rules = compiled(&allow, &deny);
            for (rpc, provider) in RPCS.iter().flat_map(|rpc| PROVIDERS.map(|id| (*rpc, id))) {
                let compiled = rules.of(rpc, ProviderId::new(provider), false);
                for caller in callers() {
                    let expected = is_allowed((&allow, &deny), (rpc, provider, caller));
                    let about = format!("{rpc} of {provider} by {caller}");
                    prop_assert_eq!(compiled.may(caller), expected, "{}", about);
                    prop_assert_eq!(compiled.may(caller), expected, "{} again", about);
                }
            }
        }
    }

    #[test]
    fn rules_about_others_are_for_calls_on_their_behalf() {
        let rule = |who: &str, on_behalf_of: Option<&str>| Rule {
            who: who.to_owned(),
            on_behalf_of: on_behalf_of.map(str::to_owned),
            ..Rule::default()
        };
        let mut config = Config::default();
        config.margo.security = Some(SecurityOptions {
            allow: vec![rule("uid:1", None), rule("uid:2", Some("name:a*")), rule("uid:3", None)],
            deny: vec![rule("anyone", Some("host:10.0.0.0/8")), rule("uid:3", None)],
            ..Default::default()
        });
        let rules = Rules::new(config.resolve(&|_| None).unwrap().security.unwrap());
        let compiled = rules.of("get", ProviderId::new(1), false);
        let host = OnBehalfOf::Host([10, 1, 2, 3].into());
        let [ann, bob] = ["ann", "bob"].map(|name| OnBehalfOf::Name(name.into()));
        for (user, who, may) in [
            (1, None, true),
            (1, Some(&ann), true),
            (1, Some(&host), false),
            (2, None, false),
            (2, Some(&ann), true),
            (2, Some(&bob), false),
            (2, Some(&OnBehalfOf::Unknown), false),
            (3, Some(&ann), false),
            (4, Some(&ann), false),
        ] {
            let is_allowed = compiled.may_for(Principal::User(user), who);
            assert_eq!(is_allowed, may, "{user} for {who:?}");
        }
        // Without such rules, who says more is treated as who says nothing.
        let plain =
            self::compiled(&[("uid:1", "*", "*")], &[]).of("get", ProviderId::new(1), false);
        assert!(plain.may_for(Principal::User(1), Some(&host)));
        assert!(!plain.may_for(Principal::User(2), Some(&host)));
    }

    #[test]
    fn what_was_allowed_lately_makes_room_for_others_and_for_nobody_else() {
        let all = [("host:10.0.0.0/8", "*", "*"), ("uid:1000", "*", "*")];
        let compiled = compiled(&all, &[]).of("get", ProviderId::new(1), false);
        for n in 0..1000_u32 {
            let host = |first: u32| Principal::Host(IpAddr::V4((first << 24 | n).into()));
            assert!(compiled.may(host(10)) && !compiled.may(host(11)), "{n}");
            assert_eq!(compiled.may(Principal::User(n + 500)), n == 500);
        }
    }

    #[test]
    fn the_log_names_the_rule_that_denies() {
        let rules = compiled(&[("anyone", "*", "*")], &[("uid:7", "*", "put")]);
        let why = |rpc, caller| rules.reason(rpc, ProviderId::new(1), (caller, None));
        assert_eq!(why("put", Principal::User(7)), "the rule \"deny[0]\" denies it");
        assert_eq!(why("get", Principal::User(7)), "no rule allows it");
    }
}
