//! Names of endpoints: `na+sm://<name>`, found through an abstract Unix socket.
//!
//! The socket's name is `\0margo-sm/<effective uid>/<name>`. Nothing appears in the file system,
//! and the kernel frees the name when its owner ends, however it ends. A name is given at open or
//! made as `<pid>-<counter>`.

use rustix::net::SocketAddrUnix;
use rustix::process::{geteuid, getpid};

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::{Error, Uri};

/// Longest name, bytes; an abstract socket name has room for 107 with the prefix.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// A fresh name for an endpoint of this process.
pub(super) fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let counter = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{counter}", getpid().as_raw_nonzero())
}

/// The address of the endpoint called `name`.
pub(super) fn uri_of(name: &str) -> String {
    format!("na+sm://{name}")
}

/// The name in the address of a peer, or of an endpoint to open (empty: choose one).
pub(super) fn name_of<'a>(uri: &Uri<'a>) -> Result<&'a str, Error> {
    let bad = |reason: String| Error::BadUri { uri: uri.text.to_owned(), reason };
    if uri.protocol != "sm" || uri.class.is_some_and(|class| class != "na") {
        return Err(bad("it is not an address of transport sm, `na+sm://name`".into()));
    }
    let name = uri.rest;
    if !name.is_empty() && !is_name(name) {
        return Err(bad(format!(
            "`{name}` is not a name: expected up to {NAME_BYTES_MAX} letters, digits, `.`, `_` or \
             `-`, and no `/`"
        )));
    }
    Ok(name)
}

/// Where the endpoint called `name` of this user listens.
pub(super) fn socket_address(name: &str) -> Result<SocketAddrUnix, Error> {
    let text = format!("margo-sm/{}/{name}", geteuid().as_raw());
    SocketAddrUnix::new_abstract_name(text.as_bytes())
        .map_err(|errno| Error::io(format!("cannot form the socket name `@{text}`"), errno))
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_names_and_refuses_paths() {
        let name = |text| name_of(&Uri::parse(text).unwrap()).map(str::to_owned);
        assert_eq!(name("na+sm://").unwrap(), "");
        assert_eq!(name("sm").unwrap(), "");
        assert_eq!(name("sm://my.name_1-x").unwrap(), "my.name_1-x");
        let long = format!("sm://{}", "x".repeat(NAME_BYTES_MAX + 1));
        for text in ["sm://a/b", "sm://a b", "sm://ä", &long, "tcp://x", "ofi+sm://x"] {
            assert!(matches!(name(text), Err(Error::BadUri { .. })), "{text}");
        }
    }

    #[test]
    fn makes_distinct_names() {
        let name = fresh_name();
        assert!(name.starts_with(&format!("{}-", std::process::id())), "{name}");
        assert!(is_name(&name), "{name}");
        assert_ne!(name, fresh_name());
    }
}
