//! Addresses: `na+sim://NETWORK/NODE`.

use na_core::{Error, Uri};

/// Longest name of a network or node, bytes.
const NAME_BYTES_MAX: usize = 64;

/// The network of an address that names none.
pub(crate) const DEFAULT_NETWORK: &str = "default";

/// The address of a node.
pub(crate) fn uri_of(network: &str, node: &str) -> String {
    format!("na+sim://{network}/{node}")
}

/// Network and node of an address; empty where it names none.
pub(crate) fn parts<'a>(uri: &Uri<'a>) -> Result<(&'a str, &'a str), Error> {
    let bad = |reason: String| Error::BadUri { uri: uri.text.to_owned(), reason };
    if uri.protocol != "sim" || uri.class.is_some_and(|class| class != "na") {
        return Err(bad("it is not an address of transport sim, `na+sim://network/node`".into()));
    }
    let (network, node) = uri.rest.split_once('/').unwrap_or((uri.rest, ""));
    for (what, name) in [("network", network), ("node", node)] {
        check_name(what, name).map_err(bad)?;
    }
    Ok((network, node))
}

/// Says what is wrong with a name; the empty one is fine here.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), String> {
    let good = name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    match good {
        true => Ok(()),
        false => Err(format!(
            "`{name}` is not the name of a {what}: expected up to {NAME_BYTES_MAX} letters, \
             digits, `.`, `_` or `-`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_names_and_refuses_paths() {
        let of = |text| {
            parts(&Uri::parse(text).unwrap()).map(|(net, node)| (net.to_owned(), node.to_owned()))
        };
        assert_eq!(of("na+sim://").unwrap(), (String::new(), String::new()));
        assert_eq!(of("sim://net").unwrap(), ("net".into(), String::new()));
        assert_eq!(of("na+sim://net/a.b_c-1").unwrap(), ("net".into(), "a.b_c-1".into()));
        let long = format!("sim://n/{}", "x".repeat(NAME_BYTES_MAX + 1));
        for text in ["sim://a/b/c", "sim://a b/c", "sim://n/ä", &long, "tcp://x", "ofi+sim://x"] {
            assert!(matches!(of(text), Err(Error::BadUri { .. })), "{text}");
        }
    }
}
