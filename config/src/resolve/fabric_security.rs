//! `margo.security.fabrics`: whether what its mode needs is there, and has an effect.

use std::path::PathBuf;

use super::Findings;
use crate::document::config::Config;
use crate::document::fabric_security::{
    FabricSecurityMode, FabricSecurityOptions, ResolvedFabricSecurity,
};

const FABRICS: &str = "margo.security.fabrics";

/// Checks the proof that is asked of peers over fabrics.
pub(super) fn resolve(config: &Config, found: &mut Findings) -> ResolvedFabricSecurity {
    let options = config.margo.security.as_ref().and_then(|security| security.fabrics.as_ref());
    let Some(given) = options else { return ResolvedFabricSecurity::None };
    if given.mode == FabricSecurityMode::None {
        for (name, is_given) in [("secret", given.secret.is_some()), ("strangers", given.strangers)]
        {
            if is_given {
                let message = "belongs to the mode \"cluster_secret\"";
                found.error(format!("{FABRICS}.{name}"), message);
            }
        }
        return ResolvedFabricSecurity::None;
    }
    let address = &*config.margo.address;
    if !FabricSecurityOptions::concern(address) {
        let message = format!(
            "has no effect over {address:?}, which tells who a peer is: it is for ofi+…, ucx+… and \
             na+sim"
        );
        found.warn(FABRICS, message);
    }
    let secret = match given.secret.as_deref() {
        Some("") | None => {
            let message = "missing key `secret`, the path of a file: \"cluster_secret\" needs it";
            found.error(FABRICS, message);
            PathBuf::new()
        }
        Some(path) => PathBuf::from(path),
    };
    ResolvedFabricSecurity::ClusterSecret { secret, strangers: given.strangers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabrics_are_those_that_do_not_tell_who_a_peer_is() {
        for (address, fabric) in [
            ("ofi+tcp;ofi_rxm://127.0.0.1:0", true),
            ("ucx+tcp://127.0.0.1:0", true),
            ("na+sim://net/a", true),
            ("uid://h#na+sm://a#ofi+tcp://127.0.0.1:7", true),
            ("na+sm://", false),
            ("na+tcp://0.0.0.0:7000", false),
        ] {
            assert_eq!(FabricSecurityOptions::concern(address), fabric, "{address}");
        }
    }
}
