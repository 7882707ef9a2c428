//! `margo.security.tcp`: whether what a mode needs is there, and whether it is needed.

use std::net::IpAddr;
use std::path::PathBuf;

use super::Findings;
use crate::document::config::Config;
use crate::document::subnet::IpSubnet;
use crate::document::tcp_security::{ResolvedTcpSecurity, TcpSecurityMode, TcpSecurityOptions};

const TCP: &str = "margo.security.tcp";

/// Checks who may connect over `na+tcp`.
pub(super) fn resolve(config: &Config, found: &mut Findings) -> ResolvedTcpSecurity {
    let options = config.margo.security.as_ref().and_then(|security| security.tcp.as_ref());
    let default = TcpSecurityOptions::default();
    let given = options.unwrap_or(&default);
    let TcpSecurityOptions { mode, secret, certificate, key, trust, revoked, names, .. } = given;
    let (of_secret, of_tls) = (TcpSecurityMode::ClusterSecret, TcpSecurityMode::MutualTls);
    for (name, is_given, of) in [
        ("secret", secret.is_some(), of_secret),
        ("certificate", certificate.is_some(), of_tls),
        ("key", key.is_some(), of_tls),
        ("trust", trust.is_some(), of_tls),
        ("revoked", revoked.is_some(), of_tls),
        ("names", !names.is_empty(), of_tls),
        ("beyond_loopback", given.beyond_loopback, TcpSecurityMode::None),
    ] {
        if is_given && *mode != of {
            found.error(format!("{TCP}.{name}"), format!("belongs to the mode {}", word(of)));
        }
    }
    let address = &*config.margo.address;
    if *mode != TcpSecurityMode::None && tcp_part(address).is_none() {
        let message = format!(
            "has no effect over {address:?}, where nobody connects by TLS: it is for na+tcp"
        );
        found.warn(TCP, message);
    }
    let mut file = |name: &str, path: &Option<String>| match path.as_deref() {
        Some("") | None => {
            let needs = word(*mode);
            let message = format!("missing key `{name}`, the path of a file: {needs} needs it");
            found.error(TCP, message);
            PathBuf::new()
        }
        Some(path) => PathBuf::from(path),
    };
    match mode {
        TcpSecurityMode::ClusterSecret => {
            ResolvedTcpSecurity::ClusterSecret(file("secret", secret))
        }
        TcpSecurityMode::MutualTls => ResolvedTcpSecurity::MutualTls {
            certificate: file("certificate", certificate),
            key: file("key", key),
            trust: file("trust", trust),
            revoked: revoked.as_ref().map(PathBuf::from),
            names: names.clone(),
        },
        TcpSecurityMode::None => {
            let subnet = IpSubnet::parse(config.mercury.ip_subnet.as_deref().unwrap_or_default());
            let is_wide = subnet.is_ok_and(|subnet| !subnet.ip.is_loopback());
            let is_open = |address| is_wide || !is_near(address);
            if tcp_part(address).is_some_and(is_open)
                && config.margo.listen
                && !given.beyond_loopback
            {
                found.error("margo.address", everybody(address));
            }
            ResolvedTcpSecurity::None
        }
    }
}

fn word(mode: TcpSecurityMode) -> &'static str {
    match mode {
        TcpSecurityMode::None => "\"none\"",
        TcpSecurityMode::ClusterSecret => "\"cluster_secret\"",
        TcpSecurityMode::MutualTls => "\"mutual_tls\"",
    }
}

/// The refusal of an address where everybody could call, with what to write instead.
fn everybody(address: &str) -> String {
    format!(
        "other hosts reach {address:?}, and nothing says who may connect: set `{TCP}`, such \
         as {{ \"mode\": \"cluster_secret\", \"secret\": \"FILE\" }} (`margo security new-secret \
         FILE` makes one), or, where everybody may, {{ \"mode\": \"none\", \"beyond_loopback\": \
         true }}"
    )
}

/// Returns the part of an address that is for tcp: all of it, or the last one of a composed
/// address.
pub(super) fn tcp_part(address: &str) -> Option<&str> {
    let part = address.rsplit('#').next()?;
    let transport = part.split("://").next()?;
    matches!(transport, "na+tcp" | "tcp").then_some(part)
}

/// Returns true if only processes of this host reach the address.
pub(super) fn is_near(address: &str) -> bool {
    let address = tcp_part(address).unwrap_or(address);
    let (transport, rest) = address.split_once("://").unwrap_or((address, ""));
    let host = match rest.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => rest.split([':', '/']).next(),
    };
    let host = host.unwrap_or_default();
    matches!(transport, "na+sm" | "na+sim" | "ucx+sm")
        // Without a host, it listens on the loopback address.
        || (host.is_empty() && matches!(transport, "na+tcp" | "tcp"))
        || host == "localhost"
        || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_known() {
        for (address, near) in [
            ("na+sm://", true),
            ("na+sm", true),
            ("na+tcp://127.0.0.1:7000", true),
            ("na+tcp://[::1]:7000", true),
            ("na+tcp://localhost:0", true),
            ("ucx+tcp://127.1.2.3", true),
            ("na+tcp://", true),
            ("na+tcp://:7000", true),
            ("na+tcp", true),
            ("na+tcp://eth0:7000", false),
            ("na+tcp://0.0.0.0:7000", false),
            ("na+tcp://[::]:7000", false),
            ("tcp://", true),
            ("tcp://0.0.0.0:7000", false),
            ("uid://h#na+sm://a#na+tcp://127.0.0.1:7", true),
            ("uid://h#na+sm://a#na+tcp://0.0.0.0:7", false),
            ("ofi+verbs://ib0", false),
        ] {
            assert_eq!(is_near(address), near, "{address}");
        }
    }
}
