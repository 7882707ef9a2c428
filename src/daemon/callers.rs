//! The rules of a document in words: who may call what, and how much.

use margo_config::{
    CallerLimit, PROVIDER_ID_DEFAULT, ResolvedLimit, ResolvedRule, ResolvedSecurity, Rule,
    SecurityOptions, Who,
};

use crate::support::own_rpcs;

/// Says who may call what, and how much, in lines.
pub(super) fn explain(security: &ResolvedSecurity) -> Vec<String> {
    let ResolvedSecurity { options, allow, deny, limits, fabrics, .. } = security;
    if !security.has_rules() {
        return vec!["All who are let in may call everything: there are no rules.".to_owned()];
    }
    let mut lines = vec!["These may call (margo.security), and nobody else:".to_owned()];
    if let ([], [implied]) = (&options.allow[..], &allow[..]) {
        let name = &implied.name;
        let who = match implied.who.contains(&Who::Anyone) {
            true => "anyone",
            false => "who has proven something",
        };
        lines.push(format!("  {who}: * of every provider, by {name}"));
    }
    let say = |rules: &[Rule], resolved: &[ResolvedRule]| -> Vec<_> {
        let each = rules.iter().zip(resolved);
        each.map(|(rule, resolved)| in_words(options, rule, resolved)).collect()
    };
    lines.extend(say(&options.allow, allow));
    if !deny.is_empty() {
        lines.push("Of these calls, the following are refused:".to_owned());
        lines.extend(say(&options.deny, deny));
        if fabrics.is_strict() {
            lines.push("  who proves nothing: * of every provider, by fabrics".to_owned());
        }
    }
    let may_call = |rpc: &&str| {
        let allows = |rule: &&ResolvedRule| {
            let is_meant = rule.names_its_rpc() || rule.who.iter().any(|who| *who != Who::Anyone);
            is_meant && rule.is_about(rpc, PROVIDER_ID_DEFAULT)
        };
        let rules: Vec<_> = allow.iter().filter(allows).map(|rule| &*rule.name).collect();
        match rules.is_empty() {
            true => format!("  {rpc}: nobody"),
            false => format!("  {rpc}: by {}", rules.join(", ")),
        }
    };
    lines.push("The RPCs of the instance itself, which a rule for anyone has to name:".to_owned());
    lines.extend(own_rpcs::ALL.iter().map(may_call));
    if !limits.is_empty() {
        let header = "Each of these may ask for so much; of several limits a caller has the first:";
        lines.push(header.to_owned());
        let each = options.limits.iter().zip(limits);
        lines.extend(each.map(|(limit, resolved)| limit_in_words(options, limit, resolved)));
    }
    lines
}

fn limit_in_words(
    options: &SecurityOptions,
    limit: &CallerLimit,
    resolved: &ResolvedLimit,
) -> String {
    let mut of = Vec::new();
    for (rate, what) in [(resolved.calls, "calls"), (resolved.bytes, "bytes")] {
        of.extend(rate.map(|rate| {
            format!("{} {what} in a second, {} of them at once", rate.per_sec, rate.burst)
        }));
    }
    of.extend(resolved.handlers_max.map(|max| format!("{max} requests in hand")));
    of.extend(resolved.request_bytes_max.map(|max| format!("{max} bytes of requests in hand")));
    let much = if of.is_empty() { "as much as they like".to_owned() } else { of.join(", ") };
    format!("  {}{}: {much}, by {}", limit.who, members(options, &limit.who), resolved.name)
}

/// The members of a role, if that is one.
fn members(options: &SecurityOptions, who: &str) -> String {
    let role = who.strip_prefix("role:").and_then(|role| options.roles.get(role));
    role.map_or_else(String::new, |members| format!(" ({})", members.join(", ")))
}

fn in_words(options: &SecurityOptions, rule: &Rule, resolved: &ResolvedRule) -> String {
    let members = members(options, &rule.who);
    let providers = match (&rule.provider, &resolved.providers) {
        (Some(given), Some(ids)) => {
            let ids: Vec<_> = ids.iter().map(u16::to_string).collect();
            format!("provider {given} (id {})", ids.join(", "))
        }
        _ => "every provider".to_owned(),
    };
    let behalf = rule.on_behalf_of.as_ref().map_or_else(String::new, |who| {
        format!(", on behalf of {who}{}", self::members(options, who))
    });
    let (who, rpc, name) = (&rule.who, &resolved.rpc, &resolved.name);
    format!("  {who}{members}{behalf}: {rpc} of {providers}, by {name}")
}
