//! The address syntax `[class+]protocol[://rest]`, as in Mercury's init strings.

use crate::Error;

/// A parsed address: `na+tcp://127.0.0.1:0` is class `na`, protocol `tcp`, rest `127.0.0.1:0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uri<'a> {
    /// The text it was parsed from.
    pub text: &'a str,
    /// What stands before `+`, if anything: `na`, `ofi`, `ucx`.
    pub class: Option<&'a str>,
    /// The protocol: `sm`, `tcp`.
    pub protocol: &'a str,
    /// What follows `://`; empty when absent.
    pub rest: &'a str,
}

impl<'a> Uri<'a> {
    /// Splits an address. Whether a transport of that name exists is not looked at.
    ///
    /// # Errors
    ///
    /// [`Error::BadUri`] when the part before `://` is not made of names.
    pub fn parse(text: &'a str) -> Result<Self, Error> {
        let bad = |reason: &str| Error::BadUri { uri: text.to_owned(), reason: reason.to_owned() };
        if text.is_empty() {
            return Err(bad(
                "it is empty; expected for example `na+sm://` or `na+tcp://host:port`",
            ));
        }
        let (head, rest) = match text.split_once("://") {
            Some((head, rest)) => (head, rest),
            None if text.contains(':') || text.contains('/') => {
                return Err(bad("expected `protocol://…`, for example `na+tcp://host:port`"));
            }
            None => (text, ""),
        };
        let (class, protocol) = match head.split_once('+') {
            Some((class, protocol)) => (Some(class), protocol),
            None => (None, head),
        };
        let is_name = |s: &str| {
            !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b';')
        };
        if !is_name(protocol) || !class.is_none_or(is_name) {
            return Err(bad("the part before `://` must be `protocol` or `class+protocol`"));
        }
        Ok(Self { text, class, protocol, rest })
    }
}

/// For fuzzers, see [`crate::fuzzing`].
pub(crate) mod fuzzing {
    use super::Uri;
    use crate::{Addr, OpenOptions, RemoteMem};

    /// Addresses as text and as bytes, and descriptions of memory: whatever is accepted says the
    /// same when it is written again.
    ///
    /// # Panics
    ///
    /// If a rule does not hold.
    pub fn addresses(data: &[u8]) {
        if let Some(remote) = RemoteMem::from_bytes(data) {
            assert_eq!(remote.to_bytes()[..], *data);
        }
        if let Ok(text) = Addr::text_in(data) {
            let addr = Addr::new(text, 0, 0, ());
            assert_eq!(addr.to_bytes().expect("it is not longer"), data);
        }
        let Ok(text) = str::from_utf8(data) else { return };
        // Opens nothing, so those of fabrics are read as well.
        let _ = crate::check_address(text, &OpenOptions::default());
        let Ok(uri) = Uri::parse(text) else { return };
        assert_eq!(uri.text, text);
        assert!(text.ends_with(uri.rest) && text.contains(uri.protocol));
        // Names of hosts would be asked for in the network.
        let is_numeric = |b: u8| b.is_ascii_hexdigit() || b".:[]%/".contains(&b);
        let may_ask = ["tcp", "net", "tcp_exp"].contains(&uri.protocol);
        if !may_ask || uri.rest.bytes().all(is_numeric) {
            look_up(text);
        }
    }

    fn look_up(text: &str) {
        thread_local! {
            // Not those of fabrics: their libraries patch functions of the program when they are
            // opened, and the sanitizer's do not survive that.
            static ENDPOINTS: Vec<prim::sync::Arc<dyn crate::Endpoint>> = crate::plugins()
                .iter()
                .filter(|plugin| plugin.probe_uri().starts_with("na+"))
                .filter_map(|plugin| {
                    crate::open(plugin.probe_uri(), &OpenOptions::default()).ok()
                })
                .collect();
        }
        ENDPOINTS.with(|endpoints| {
            for endpoint in endpoints {
                let Ok(addr) = endpoint.lookup(text) else { continue };
                let again = endpoint.lookup(addr.uri()).expect("its own text form");
                assert_eq!((again.uri(), &again), (addr.uri(), &addr));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_the_usual_forms() {
        let uri = Uri::parse("na+tcp://127.0.0.1:0").unwrap();
        assert_eq!((uri.class, uri.protocol, uri.rest), (Some("na"), "tcp", "127.0.0.1:0"));
        let uri = Uri::parse("sm").unwrap();
        assert_eq!((uri.class, uri.protocol, uri.rest), (None, "sm", ""));
        let uri = Uri::parse("na+sm://").unwrap();
        assert_eq!((uri.class, uri.protocol, uri.rest), (Some("na"), "sm", ""));
    }

    #[test]
    fn says_what_is_wrong() {
        for text in ["", "://x", "na+://x", "+tcp://x", "127.0.0.1:80", "n a+sm://"] {
            let error = Uri::parse(text).unwrap_err();
            assert!(matches!(error, Error::BadUri { .. }), "{text}: {error}");
        }
    }
}
