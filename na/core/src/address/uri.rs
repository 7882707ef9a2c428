//! The address syntax `[class+]protocol[://rest]`, as in Mercury's init strings.

use crate::Error;

/// A parsed address: `na+tcp://127.0.0.1:0` is class `na`, protocol `tcp`, rest `127.0.0.1:0`.
///
/// ```
/// # use na_core as na;
/// use na::Uri;
///
/// let uri = Uri::parse("na+tcp://node7:7000")?;
/// assert_eq!((uri.class, uri.protocol, uri.rest), (Some("na"), "tcp", "node7:7000"));
/// assert!(Uri::parse("node7:7000").is_err(), "it names no transport");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uri<'a> {
    /// The text it was parsed from.
    pub text: &'a str,
    /// The class, which stands before `+`, if there is one: `na`, `ofi`, `ucx`.
    pub class: Option<&'a str>,
    /// The protocol: `sm`, `tcp`.
    pub protocol: &'a str,
    /// The rest, which follows `://`; empty when absent.
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

/// The class of addresses of programs of C Mercury that use our transports. The rest of such an
/// address is that of class `na`.
pub const MERCURY_CLASS: &str = "margo";

/// The reason why nothing is said to a peer of C Mercury that was taken for one of ours.
pub fn for_mercury_unknown(uri: &str) -> String {
    let address = uri.strip_prefix("na+").unwrap_or(uri);
    format!(
        "a program of C Mercury answers there, to which requests are written otherwise: it is \
         known now, so try again, and call it by the address {MERCURY_CLASS}+{address} from the \
         beginning"
    )
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
