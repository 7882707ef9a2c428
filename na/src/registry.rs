//! From a URI to the plugin that serves it.
//!
//! - Imports: everything but `conformance` and `fuzzing`; no transport imports it.

use std::sync::Arc;

use crate::{Endpoint, Error, OpenOptions, Plugin, Uri};
use na_core::address::composed;
use na_core::limits::file_limit;

/// The transports of this build.
pub fn plugins() -> &'static [&'static dyn Plugin] {
    &[
        #[cfg(feature = "sm")]
        &crate::sm::Sm,
        #[cfg(feature = "tcp")]
        &crate::tcp::Tcp,
        #[cfg(feature = "sim")]
        &crate::sim::Sim,
        #[cfg(feature = "ofi")]
        &crate::ofi::Ofi,
        #[cfg(feature = "ucx")]
        &crate::ucx::Ucx,
    ]
}

/// Transports that this build could have had, with the feature that adds each.
const OPTIONAL: &[(&str, &str, bool)] = &[
    ("sm", "shared memory within one host", cfg!(feature = "sm")),
    ("tcp", "TCP", cfg!(feature = "tcp")),
    ("sim", "simulated network", cfg!(feature = "sim")),
    ("ofi", "libfabric", cfg!(feature = "ofi")),
    ("ucx", "UCX", cfg!(feature = "ucx")),
];

/// The plugin that serves `uri`.
///
/// # Errors
///
/// [`Error::BadUri`] that says which transports there are and, if one was left out of this build,
/// which feature adds it.
pub fn plugin_for<'a>(uri: &Uri<'_>) -> Result<&'a dyn Plugin, Error> {
    if let Some(plugin) = plugins().iter().find(|plugin| plugin.serves(uri)) {
        return Ok(*plugin);
    }
    let bad = |reason: String| Error::BadUri { uri: uri.text.to_owned(), reason };
    // Those above a library have a class of their own, and protocols below it.
    let name = match uri.class {
        None | Some("na") => uri.protocol,
        Some(class) => class,
    };
    if let Some((name, what, _)) = OPTIONAL.iter().find(|(own, _, built)| !built && *own == name) {
        let reason = format!(
            "transport `{name}` ({what}) was left out of this build; enable the feature `{name}` \
             of margo-na"
        );
        return Err(bad(reason));
    }
    let head = |uri: &'static str| uri.split("://").next().unwrap_or(uri);
    let names: Vec<_> = plugins().iter().map(|plugin| head(plugin.probe_uri())).collect();
    let asked = match uri.class {
        Some(class) => format!("{class}+{}", uri.protocol),
        None => uri.protocol.to_owned(),
    };
    Err(bad(format!("there is no transport `{asked}`; this build has {}", names.join(", "))))
}

/// Opens an endpoint for `uri`. It opens two that act as one if that is a composed address, or if
/// [`OpenOptions::auto_sm`] asks for it.
///
/// # Errors
///
/// As [`plugin_for`] and [`Plugin::open`].
///
/// Counterpart: `NA_Initialize_opt2`.
pub fn open(uri: &str, options: &OpenOptions) -> Result<Arc<dyn Endpoint>, Error> {
    let mut one = open_group(uri, options, 1)?;
    one.pop().ok_or(Error::Closed)
}

/// Opens a group of `shards` endpoints behind one address, for an instance that uses several cores:
/// one for each. See [`Plugin::open_group`].
///
/// ```
/// # #[cfg(feature = "tcp")] {
/// let options = na::OpenOptions::listening(true);
/// let shards = na::open_group("na+tcp://127.0.0.1:0", &options, 2)?;
/// assert_eq!(shards[0].self_addr(), shards[1].self_addr());
/// # }
/// # Ok::<(), na::Error>(())
/// ```
///
/// # Errors
///
/// As [`open`] and [`Plugin::open_group`].
pub fn open_group(
    uri: &str,
    options: &OpenOptions,
    shards: usize,
) -> Result<Vec<Arc<dyn Endpoint>>, Error> {
    let (plugin, far, near) = transports(uri, options)?;
    opened(|| match near {
        Some(near) => {
            let near = crate::auto_sm::near(near)?;
            let near = (plugin_for(&near)?, &near);
            crate::auto_sm::open_group(near, (plugin, &far), options, shards)
        }
        None => plugin.open_group(&far, options, shards),
    })
}

/// Opens something, and says so if that failed for a limit of the length of files.
fn opened<R>(open: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    prim::standard::keep_standard_descriptors();
    // Libraries of the field make files for shared memory, and know nothing of the limit.
    let (opened, exceeded) = file_limit::held(open);
    match opened {
        Err(Error::Io { what, .. }) if exceeded => Err(Error::io(what, file_limit::exceeded())),
        Err(Error::Unavailable { transport, reason }) if exceeded => {
            let reason = format!("{reason}; a file: {}", file_limit::exceeded());
            Err(Error::Unavailable { transport, reason })
        }
        opened => opened,
    }
}

/// Refuses what [`open`] would refuse on any machine: a transport that this build has not, an
/// address of another form, options that cannot be had with it. Opens nothing and asks nobody, so
/// names of hosts, interfaces and devices are not looked up.
///
/// # Errors
///
/// As [`plugin_for`] and [`Plugin::check`].
pub fn check_address(uri: &str, options: &OpenOptions) -> Result<(), Error> {
    let (plugin, far, near) = transports(uri, options)?;
    if let Some(near) = near {
        let near = crate::auto_sm::near(near)?;
        plugin_for(&near)?.check(&near, options)?;
    }
    plugin.check(&far, options)
}

/// Returns whether an endpoint of that address would move memory of devices by itself on this
/// machine: see [`Endpoint::moves_device_memory`]. Opens nothing.
///
/// # Errors
///
/// As [`open`].
pub fn moves_device_memory(uri: &str, options: &OpenOptions) -> Result<bool, Error> {
    match transports(uri, options)? {
        // Peers of this host would have to be told of it in another way than others.
        (.., Some(_near)) => Ok(false),
        (plugin, far, None) => plugin.moves_device_memory(&far, options),
    }
}

/// The transport of `uri`, what it is to open, and the shared memory beside it, if there is to be
/// one.
fn transports<'a>(
    uri: &'a str,
    options: &'a OpenOptions,
) -> Result<(&'static dyn Plugin, Uri<'a>, Option<&'a str>), Error> {
    let (near, far) = match composed::parts(uri).transpose()? {
        // Also as a restarted process names itself.
        Some((near, far)) => (Some(near), far),
        None => (options.auto_sm.as_deref(), uri),
    };
    let far = Uri::parse(far)?;
    let plugin = plugin_for(&far)?;
    Ok((plugin, far, near.filter(|_| plugin.name() != "sm")))
}

/// Returns the names of options about networks that are given and mean nothing for `uri`
/// (`traffic_class`, `addr_format`, `ip_subnet`). They are for a warning, since an endpoint opens
/// all the same. With [`OpenOptions::auto_sm`] the network beside the shared memory counts. Nothing
/// for a URI that cannot be opened.
pub fn ignored(uri: &str, options: &OpenOptions) -> Vec<&'static str> {
    let found = transports(uri, options);
    found.map_or_else(|_| Vec::new(), |(plugin, far, _)| plugin.ignores(&far, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(feature = "sm", feature = "tcp", feature = "sim", feature = "ofi", feature = "ucx"))]
    #[test]
    fn what_a_transport_has_no_use_for_is_told() {
        use crate::{AddrFormat, Subnet, TrafficClass};
        let mut options = OpenOptions::default();
        let all = ["traffic_class", "addr_format", "ip_subnet"];
        for uri in ["na+sm://", "ofi+shm://", "ucx+sm://", "no such thing"] {
            assert_eq!(ignored(uri, &options), [""; 0], "{uri}");
        }
        options.traffic_class = TrafficClass::BulkData;
        options.addr_format = AddrFormat::Ipv4;
        options.ip_subnet = Subnet::new([127, 0, 0, 0].into(), 8);
        for (uri, expected) in [
            ("na+sm://", &all[..]),
            ("na+sim://x", &all),
            ("na+tcp://", &[]),
            ("uid://a-b-c#na+sm://1-0#na+tcp://127.0.0.1:7", &[]),
            ("ofi+tcp://", &all[..1]),
            ("ofi+verbs://", &all[..1]),
            ("ofi+cxi://", &all[2..]),
            ("ofi+efa://", &all[2..]),
            ("ofi+shm://", &["traffic_class", "ip_subnet"]),
            ("ucx+tcp://", &all[..1]),
            ("ucx+sm://", &all[..1]),
            ("ucx+all://", &[]),
            ("ucx+rc://", &[]),
            ("bmi+tcp://", &[]),
        ] {
            assert_eq!(ignored(uri, &options), expected, "{uri}");
        }
    }

    /// Returns the error for an address and its options; empty if that could be opened.
    #[cfg(all(feature = "sm", feature = "tcp", feature = "sim", feature = "ofi", feature = "ucx"))]
    fn told(uri: &str, set: impl Fn(&mut OpenOptions)) -> String {
        let mut options = OpenOptions::default();
        set(&mut options);
        let told = check_address(uri, &options).err();
        told.map_or_else(String::new, |error| match error {
            Error::BadUri { .. } | Error::BadOption { .. } => error.to_string(),
            other => panic!("{uri}: {other}"),
        })
    }

    #[cfg(all(feature = "sm", feature = "tcp", feature = "sim", feature = "ofi", feature = "ucx"))]
    #[test]
    fn what_is_no_address_is_told_without_opening() {
        let port = "a number from 0 to 65535";
        for (uri, said) in [
            ("", "it is empty"),
            ("127.0.0.1:7000", "expected `protocol://"),
            ("na+pigeon://a", "there is no transport `na+pigeon`; this build has na+sm"),
            ("na+tcp://127.0.0.1:99999", port),
            ("na+tcp://::1:7", "brackets"),
            ("na+tcp://[1.2.3.4%lo]:7", "not an IPv6 address"),
            ("na+tcp://h/x:7", "does not belong into `host:port`"),
            ("na+sm://a/b", "is not a name"),
            ("na+sim://a/b/c", "is not the name of a node"),
            ("ucx+all://mlx5_0:1/[::1]:x", port),
            ("ofi+tcp://eth0/10.0.0.1:65536", port),
            ("ofi+pigeon://", "no provider of that name; known are "),
            ("ofi+cxi://cxi0:511", "PID 0 to 510"),
            ("uid://h#na+sm://a#na+tcp://127.0.0.1:99999", port),
            ("uid://h#na+sm://a#na+pigeon://b:1", "there is no transport `na+pigeon`"),
            ("uid://h#na+sm://a/b#na+tcp://127.0.0.1:9", "is not a name"),
            ("uid://h#na+tcp://1#na+tcp://127.0.0.1:9", "must be shared memory"),
            // What other machines, and other users, can have.
            ("tcp", ""),
            ("na+sm://4294967294@x", ""),
            ("na+tcp://no.such.host.invalid:7", ""),
            ("na+tcp://[fe80::1%no-such-link]:7", ""),
            ("na+tcp://10.99.98.97:7", ""),
            ("uid://h#na+sm://a#na+tcp://b:1", ""),
            ("ofi+verbs://mlx5_0/10.0.0.1:7", ""),
            ("ofi+shm://", ""),
            ("ucx+rc://mlx5_0:1/h:7", ""),
        ] {
            let found = told(uri, |_| {});
            assert!(found.contains(said) && found.is_empty() == said.is_empty(), "{uri}: {found}");
        }
    }

    #[cfg(all(feature = "sm", feature = "tcp", feature = "sim", feature = "ofi", feature = "ucx"))]
    #[test]
    fn options_that_an_address_cannot_have_are_told_without_opening() {
        use crate::AddrFormat::{Ipv4, Ipv6, Native};
        type Set = fn(&mut OpenOptions);
        let huge: Set = |options| options.message_bytes_max = (1 << 20) + 1;
        let tiny: Set = |options| options.message_bytes_max = 511;
        let near: Set = |options| options.auto_sm = Some("na+tcp://".to_owned());
        let nobody: Set = |options| options.sm.connections_max = 0;
        let beside: Set = |options| {
            (options.sm.connections_max, options.auto_sm) = (0, Some("na+sm://".to_owned()));
        };
        let v6: Set = |options| options.addr_format = Ipv6;
        let v4: Set = |options| options.addr_format = Ipv4;
        let native: Set = |options| options.addr_format = Native;
        let key: Set = |options| options.auth_key = Some("1".to_owned());
        let bytes = "message_bytes_max: 1048577 bytes; transport ";
        let no_v6 = "addr_format: `127.0.0.1` of `";
        for (uri, set, said) in [
            ("na+sm://", huge, bytes),
            ("na+tcp://", huge, bytes),
            ("na+sim://", huge, bytes),
            ("ofi+cxi://", huge, bytes),
            ("ucx+rc://", huge, bytes),
            ("ofi+tcp://", tiny, "511 bytes; transport ofi takes 512 to 1048576"),
            ("na+tcp://", tiny, ""),
            ("na+tcp://127.0.0.1:0", near, "must be shared memory"),
            ("na+sm://", near, ""),
            ("na+sm://", nobody, "sm.connections_max: it is 0"),
            ("na+tcp://", nobody, ""),
            ("na+tcp://", beside, "sm.connections_max: it is 0"),
            ("na+tcp://127.0.0.1:0", v6, no_v6),
            ("ofi+tcp://127.0.0.1:0", v6, no_v6),
            ("ucx+tcp://127.0.0.1:0", v6, no_v6),
            ("na+tcp://[fe80::1%2]:7", v4, "addr_format: `fe80::1%2` of `"),
            ("na+tcp://127.0.0.1:0", v4, ""),
            ("na+tcp://localhost:0", v6, ""),
            ("na+tcp://", v6, ""),
            ("na+sm://", v6, ""),
            ("ofi+cxi://", v4, "addr_format: for provider cxi"),
            ("ofi+verbs://", native, "addr_format: for provider verbs"),
            ("ofi+cxi://", key, "auth_key: it is `1`; cxi takes"),
            ("ofi+tcp://", key, "auth_key: provider tcp takes none"),
        ] {
            let found = told(uri, set);
            assert!(found.contains(said) && found.is_empty() == said.is_empty(), "{uri}: {found}");
        }
    }

    #[test]
    fn an_unknown_transport_is_told_what_there_is() {
        let error = open("bmi+tcp://x", &OpenOptions::default()).unwrap_err().to_string();
        assert!(error.contains("bmi+tcp") && error.contains("this build has"), "{error}");
    }
}
