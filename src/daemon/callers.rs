//! The rules of a document in words: who may call what.

use margo_config::{
    PROVIDER_ID_DEFAULT, ResolvedRule, ResolvedSecurity, Rule, SecurityOptions, Who,
};

use crate::support::own_rpcs;

/// Says who may call what, in lines.
pub(super) fn explain(security: &ResolvedSecurity) -> Vec<String> {
    let ResolvedSecurity { options, allow, deny, .. } = security;
    let mut lines = vec!["These may call (margo.security), and nobody else:".to_owned()];
    let say = |rules: &[Rule], resolved: &[ResolvedRule]| -> Vec<_> {
        let each = rules.iter().zip(resolved);
        each.map(|(rule, resolved)| in_words(options, rule, resolved)).collect()
    };
    lines.extend(say(&options.allow, allow));
    if !deny.is_empty() {
        lines.push("Of these calls, the following are refused:".to_owned());
        lines.extend(say(&options.deny, deny));
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
    lines
}

fn in_words(options: &SecurityOptions, rule: &Rule, resolved: &ResolvedRule) -> String {
    let role = rule.who.strip_prefix("role:").and_then(|role| options.roles.get(role));
    let members = role.map_or_else(String::new, |members| format!(" ({})", members.join(", ")));
    let providers = match (&rule.provider, &resolved.providers) {
        (Some(given), Some(ids)) => {
            let ids: Vec<_> = ids.iter().map(u16::to_string).collect();
            format!("provider {given} (id {})", ids.join(", "))
        }
        _ => "every provider".to_owned(),
    };
    format!("  {}{members}: {} of {providers}, by {}", rule.who, resolved.rpc, resolved.name)
}
