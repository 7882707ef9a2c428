//! From a URI to the plugin that serves it.

use std::sync::Arc;

use crate::{Endpoint, Error, OpenOptions, Uri};

/// A transport: stateless, opens endpoints.
pub trait Plugin: Send + Sync {
    /// Name in logs and in `na+<name>://`.
    fn name(&self) -> &'static str;

    /// One line for people: what it is for.
    fn summary(&self) -> &'static str;

    /// Whether this plugin serves `uri`.
    fn serves(&self, uri: &Uri<'_>) -> bool {
        uri.protocol == self.name() && uri.class.is_none_or(|class| class == "na")
    }

    /// An address that opens on any machine, for probing: `na+sm://`, `na+tcp://127.0.0.1:0`.
    fn probe_uri(&self) -> &'static str;

    /// What can be opened on this machine, for a transport that depends on devices. Default: none.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when the transport does not work here at all.
    ///
    /// Counterpart: `NA_Get_protocol_info`.
    fn devices(&self) -> Result<Vec<Device>, Error> {
        Ok(Vec::new())
    }

    /// Options that are given and mean nothing for `uri`, by name. Default: those that are about
    /// networks (`traffic_class`, `addr_format`, `ip_subnet`).
    fn ignores(&self, uri: &Uri<'_>, options: &OpenOptions) -> Vec<&'static str> {
        let _ = uri;
        options.about_networks().collect()
    }

    /// Opens an endpoint.
    ///
    /// # Errors
    ///
    /// [`Error::BadUri`], [`Error::Unavailable`] or [`Error::Io`]; nothing is left behind.
    fn open(&self, uri: &Uri<'_>, options: &OpenOptions) -> Result<Arc<dyn Endpoint>, Error>;
}

/// A device that a transport can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// What stands before `://` of its addresses.
    pub protocol: String,
    /// As the library below names it.
    pub name: String,
    /// Its network address, or what is said instead.
    pub address: String,
    /// One line for people: what the protocol is.
    pub summary: &'static str,
}

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

/// Opens an endpoint for `uri`; two that act as one if that is a composed address, or if
/// [`OpenOptions::auto_sm`] asks for it.
///
/// # Errors
///
/// As [`plugin_for`] and [`Plugin::open`].
///
/// Counterpart: `NA_Initialize_opt2`.
pub fn open(uri: &str, options: &OpenOptions) -> Result<Arc<dyn Endpoint>, Error> {
    if let Some((near, far)) = crate::auto_sm::parts(uri).transpose()? {
        // Also as a restarted process names itself.
        let options = OpenOptions { auto_sm: Some(near.to_owned()), ..options.clone() };
        return open(far, &options);
    }
    let uri = Uri::parse(uri)?;
    let plugin = plugin_for(&uri)?;
    match options.auto_sm.as_deref().filter(|_| plugin.name() != "sm") {
        Some(near) => crate::auto_sm::open(plugin, &uri, options, near),
        None => plugin.open(&uri, options),
    }
}

/// Whether this build has the transport of `uri`, which may be a composed address. Opens nothing,
/// and does not look at what follows `://`.
///
/// # Errors
///
/// As [`plugin_for`].
pub fn check_transport(uri: &str) -> Result<(), Error> {
    let plugin_of = |uri| plugin_for(&Uri::parse(uri)?);
    match crate::auto_sm::parts(uri).transpose()? {
        Some((near, far)) => plugin_of(near).and_then(|_| plugin_of(far)),
        None => plugin_of(uri),
    }
    .map(drop)
}

/// Options about networks that are given and mean nothing for `uri`, by name (`traffic_class`,
/// `addr_format`, `ip_subnet`): for a warning, since an endpoint opens all the same. With
/// [`OpenOptions::auto_sm`] the network beside the shared memory counts. Nothing for a URI that
/// cannot be opened.
pub fn ignored(uri: &str, options: &OpenOptions) -> Vec<&'static str> {
    let uri = match crate::auto_sm::parts(uri) {
        Some(Ok((_, far))) => far,
        _ => uri,
    };
    let Ok(uri) = Uri::parse(uri) else { return Vec::new() };
    plugin_for(&uri).map_or_else(|_| Vec::new(), |plugin| plugin.ignores(&uri, options))
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

    #[cfg(all(feature = "sm", feature = "tcp"))]
    #[test]
    fn a_transport_is_looked_for_without_opening_anything() {
        for known in
            ["tcp", "na+sm://", "na+tcp://no.such.host:1", "uid://h#na+sm://a#na+tcp://b:1"]
        {
            assert_eq!(check_transport(known).map_err(|error| error.to_string()), Ok(()));
        }
        for unknown in ["", "na+pigeon://a", "uid://h#na+sm://a#na+pigeon://b:1", "127.0.0.1:7000"]
        {
            assert!(check_transport(unknown).is_err(), "{unknown}");
        }
    }

    #[test]
    fn an_unknown_transport_is_told_what_there_is() {
        let error = open("bmi+tcp://x", &OpenOptions::default()).unwrap_err().to_string();
        assert!(error.contains("bmi+tcp") && error.contains("this build has"), "{error}");
    }
}
