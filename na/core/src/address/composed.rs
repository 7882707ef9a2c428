//! Composed addresses: `uid://<host>#na+sm://<name>#na+tcp://<host>:<port>`, as in Mercury.
//!
//! `<host>` names the kernel that runs (its boot id), the network namespace, in which names of
//! shared memory are found, and the user: `<32 hex digits>-<namespace>-<user id>`. Two processes
//! with the same name can reach each other through shared memory. A clone of a machine, a container
//! with a network of its own and another user's process have another one.

use crate::{Error, PeerUsers};

const PREFIX: &str = "uid://";

/// Begins the address of a program of C Mercury, whose parts are of the class
/// [`MERCURY_CLASS`](crate::MERCURY_CLASS).
const MERCURY_PREFIX: &str = "margo+all://";

/// Where a process runs.
///
/// ```
/// use na_core::PeerUsers;
/// use na_core::address::composed::Host;
///
/// let own = Host::own()?;
/// assert!(own.reaches(&Host::own()?, &PeerUsers::Own));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    boot: String,
    namespace: u64,
    user: u32,
}

impl Host {
    /// The host of this process.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when `/proc` cannot be read.
    pub fn own() -> Result<Self, Error> {
        let path = "/proc/sys/kernel/random/boot_id";
        let boot = std::fs::read_to_string(path).map_err(|error| cannot_read(path, &error))?;
        let path = "/proc/self/ns/net";
        let namespace = std::fs::metadata(path).map_err(|error| cannot_read(path, &error))?;
        Ok(Self {
            boot: boot.chars().filter(char::is_ascii_hexdigit).collect(),
            namespace: std::os::unix::fs::MetadataExt::ino(&namespace),
            user: rustix::process::geteuid().as_raw(),
        })
    }

    /// Reads the text form.
    fn parse(text: &str) -> Option<Self> {
        let (boot, rest) = text.split_once('-')?;
        let (namespace, user) = rest.split_once('-')?;
        let is_hex = boot.len() == 32 && boot.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        (is_hex && number(namespace) && number(user)).then_some(())?;
        Some(Self {
            boot: boot.to_owned(),
            namespace: namespace.parse().ok()?,
            user: user.parse().ok()?,
        })
    }

    /// Returns whether a process of `other` can be reached through shared memory.
    pub fn reaches(&self, other: &Self, users: &PeerUsers) -> bool {
        self.boot == other.boot
            && self.namespace == other.namespace
            && users.allows(other.user, self.user)
    }
}

/// A composed address, taken apart.
///
/// ```
/// use na_core::address::composed::{Composed, Host, format, parse};
///
/// let text = format(&Host::own()?, "na+sm://12-0", "na+tcp://10.0.0.1:7000");
/// let Composed { near, far, .. } = parse(&text).ok_or("not composed")??;
/// assert_eq!((near, far), ("na+sm://12-0", "na+tcp://10.0.0.1:7000"));
/// assert!(parse("na+sm://12-0").is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Composed<'a> {
    /// The host of the endpoint.
    pub host: Host,
    /// The address over shared memory.
    pub near: &'a str,
    /// The address over the network.
    pub far: &'a str,
}

/// The parts of a composed address; `None`: it is not one.
pub fn parse(uri: &str) -> Option<Result<Composed<'_>, Error>> {
    let rest = uri.strip_prefix(PREFIX).or_else(|| uri.strip_prefix(MERCURY_PREFIX))?;
    let mut parts = rest.split('#');
    let composed = match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(host), Some(near), Some(far), None) if !near.is_empty() && !far.is_empty() => {
            // Another implementation may name hosts otherwise: then it is another host.
            let unknown = Host { boot: String::new(), namespace: 0, user: u32::MAX };
            Ok(Composed { host: Host::parse(host).unwrap_or(unknown), near, far })
        }
        _ => Err(Error::BadUri {
            uri: uri.to_owned(),
            reason: "a composed address is `uid://<host>#na+sm://<name>#<network address>`".into(),
        }),
    };
    Some(composed)
}

/// Near and far part of a composed address; `None`: it is not one.
pub fn parts(uri: &str) -> Option<Result<(&str, &str), Error>> {
    parse(uri).map(|composed| composed.map(|Composed { near, far, .. }| (near, far)))
}

/// The text of a composed address.
pub fn format(host: &Host, near: &str, far: &str) -> String {
    let Host { boot, namespace, user } = host;
    format!("{PREFIX}{boot}-{namespace}-{user}#{near}#{far}")
}

/// The part of a composed address that transport `protocol` can read (`sm`, `tcp`; `ofi` and
/// `ucx` with whatever they are over); other texts as they are.
/// For endpoints of a single transport.
pub fn part_for<'a>(uri: &'a str, protocol: &str) -> &'a str {
    let reads = |part: &&str| {
        part.split_once("://").is_some_and(|(head, _)| match head.split_once('+') {
            Some(("na" | crate::MERCURY_CLASS, of_ours)) => of_ours == protocol,
            Some((class, _)) => class == protocol,
            None => head == protocol,
        })
    };
    match parse(uri) {
        Some(Ok(Composed { near, far, .. })) => [near, far].into_iter().find(reads).unwrap_or(uri),
        _ => uri,
    }
}

/// The part of a composed address for an endpoint of shared memory alone; other texts as they are.
///
/// # Errors
///
/// [`Error::BadUri`] if it is of another host, where another process may have that name, or of a
/// host that is not named as here. Whether its user may be reached is asked when it is.
pub fn part_for_near(uri: &str) -> Result<&str, Error> {
    let part = part_for(uri, "sm");
    if part != uri
        && let Some(composed) = parse(uri)
        && !Host::own()?.reaches(&composed?.host, &PeerUsers::All)
    {
        return Err(Error::BadUri {
            uri: uri.to_owned(),
            reason: "it is on another host, which shared memory does not reach; open a network, \
                     with `auto_sm` for both"
                .into(),
        });
    }
    Ok(part)
}

fn cannot_read(path: &str, error: &std::io::Error) -> Error {
    let errno =
        error.raw_os_error().map_or(rustix::io::Errno::IO, rustix::io::Errno::from_raw_os_error);
    Error::io(format!("cannot tell hosts apart for `auto_sm`: reading {path}"), errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_text_form() {
        let host = Host::own().unwrap();
        let text = format(&host, "na+sm://12-0", "na+tcp://10.0.0.1:5");
        let composed = parse(&text).unwrap().unwrap();
        assert_eq!(composed, Composed { host, near: "na+sm://12-0", far: "na+tcp://10.0.0.1:5" });
        assert_eq!(part_for(&text, "sm"), "na+sm://12-0");
        assert_eq!(part_for(&text, "tcp"), "na+tcp://10.0.0.1:5");
        assert_eq!(part_for(&text, "sim"), text);
        let fabric = text.replace("na+tcp", "ofi+tcp;ofi_rxm");
        assert_eq!(part_for(&fabric, "ofi"), "ofi+tcp;ofi_rxm://10.0.0.1:5");
        assert_eq!(part_for(&fabric, "tcp"), fabric, "not ours");
        assert_eq!(part_for("na+tcp://h:1", "tcp"), "na+tcp://h:1");
        let of_c = text.replace("uid://", "margo+all://").replace("na+", "margo+");
        assert_eq!(part_for(&of_c, "tcp"), "margo+tcp://10.0.0.1:5");
        assert_eq!(part_for(&of_c, "sm"), "margo+sm://12-0");
    }

    #[test]
    fn hosts_differ_by_kernel_namespace_and_user() {
        let own = Host { boot: "0".repeat(32), namespace: 7, user: 3 };
        assert!(own.reaches(&own, &PeerUsers::Own));
        let other = Host { boot: "1".repeat(32), ..own.clone() };
        assert!(!own.reaches(&other, &PeerUsers::All));
        let other = Host { namespace: 8, ..own.clone() };
        assert!(!own.reaches(&other, &PeerUsers::All));
        let other = Host { user: 4, ..own.clone() };
        assert!(!own.reaches(&other, &PeerUsers::Own));
        assert!(own.reaches(&other, &PeerUsers::And(vec![4])));
    }

    #[test]
    fn a_host_of_another_kind_is_another_host() {
        // As C Mercury writes it: the number of `gethostid`.
        let text = "uid://8323328#na+sm://17-0#ofi+tcp://10.0.0.1:5";
        let composed = parse(text).unwrap().unwrap();
        assert!(!Host::own().unwrap().reaches(&composed.host, &PeerUsers::All));
        assert_eq!(composed.far, "ofi+tcp://10.0.0.1:5");
    }

    #[test]
    fn shared_memory_alone_reaches_this_host_only() {
        let own = Host::own().unwrap();
        let of = |host: &Host| format(host, "na+sm://12-0", "na+tcp://10.0.0.1:5");
        let user = Host { user: own.user.wrapping_add(1), ..own.clone() };
        for text in [of(&own), of(&user), "na+sm://12-0".to_owned()] {
            assert_eq!(part_for_near(&text).unwrap(), "na+sm://12-0", "{text}");
        }
        let boot = Host { boot: "0".repeat(32), ..own.clone() };
        let namespace = Host { namespace: own.namespace + 1, ..own };
        let of_c = "uid://8323328#na+sm://17-0#ofi+tcp://10.0.0.1:5".to_owned();
        for text in [of(&boot), of(&namespace), of_c] {
            let error = part_for_near(&text).unwrap_err();
            assert!(error.to_string().contains("on another host"), "{error}");
        }
    }

    #[test]
    fn what_is_incomplete_is_refused() {
        for text in ["uid://", "uid://1#na+sm://a", "uid://1##na+tcp://h:1", "uid://1#a#b#c"] {
            assert!(parse(text).unwrap().is_err(), "{text}");
        }
        assert!(parse("na+tcp://h:1").is_none());
    }
}
