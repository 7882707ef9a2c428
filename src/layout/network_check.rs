//! Errors in the network settings of a document, told by its keys: those found before anything is
//! opened, here and in `margo config check`, and those that only opening finds.

use hg::MESSAGE_BYTES_MIN;
use margo_config::{Error, Errors, Resolved};

use crate::InitError;
use crate::layout::options::na_options;

/// Checks the address of a document and its settings of the network, whatever the machine: an
/// address that is none, a size of messages that its transport does not take, a form of address
/// that it has not. An instance begins with this. Nothing is opened and no resolver is asked, so
/// names of hosts, interfaces and devices are checked only when the network opens.
///
/// # Errors
///
/// By the document's path; [`Config::check_with`](crate::config::Config::check_with) adds the
/// position.
///
/// ```
/// use margo::config::Config;
///
/// let document = r#"{ "margo": { "address": "na+tcp://127.0.0.1:99999" } }"#;
/// let resolved = Config::from_json(document)?.resolve(&|_| None)?;
/// let errors = margo::elasticity::check_network(&resolved).unwrap_err();
/// assert_eq!(errors.as_slice()[0].path, "margo.address");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check_network(resolved: &Resolved) -> Result<(), Errors> {
    let options = na_options(resolved);
    na::check_address(&resolved.address, &options).map_err(|error| {
        of_option(resolved, &error).unwrap_or_else(|| {
            // A composed address has the shared memory in it, any other has it from its own key.
            let is_near = matches!(&error, na::Error::BadUri { uri, .. }
                if resolved.mercury.auto_sm && !resolved.address.contains(uri.as_str()));
            let path = if is_near { "mercury.sm_info_string" } else { "margo.address" };
            Error::new(path, error.to_string())
        })
    })?;
    let bytes = options.message_bytes_max;
    if bytes < MESSAGE_BYTES_MIN {
        let message = format!(
            "{bytes} bytes are too few: headers and the description of an overflow take \
             {MESSAGE_BYTES_MIN}"
        );
        return Err(Error::new(size_key(resolved), message).into());
    }
    Ok(())
}

/// Why the endpoint was not opened, after all.
pub(crate) fn not_opened(resolved: &Resolved, source: na::Error) -> InitError {
    match of_option(resolved, &source) {
        Some(error) => InitError::Config(error.into()),
        None => InitError::Network { address: resolved.address.clone(), source },
    }
}

/// By the key from which the option comes, if it is about one.
fn of_option(resolved: &Resolved, error: &na::Error) -> Option<Error> {
    let na::Error::BadOption { option, reason } = error else { return None };
    let path = match *option {
        "message_bytes_max" => size_key(resolved),
        "addr_format" => "mercury.na_addr_format",
        "ip_subnet" => "mercury.ip_subnet",
        "tcp.security" => "margo.security.tcp",
        "auth_key" => "mercury.auth_key",
        "unread_answers_max" => "margo.network.unread_answers_max",
        "unread_answers_per_host_max" => "margo.network.unread_answers_per_host_max",
        "unread_answers_total_max" => "margo.network.unread_answers_total_max",
        "sm.connections_max" | "tcp.connections_max" | "ucx.connections_max" => {
            "margo.network.connections_max"
        }
        "sm.connections_per_user_max" => "margo.network.connections_per_user_max",
        _ => "margo.address",
    };
    Some(Error::new(path, reason.clone()))
}

/// Which key decides how long messages are; see [`na_options`].
fn size_key(resolved: &Resolved) -> &'static str {
    let mercury = &resolved.mercury;
    let (unexpected, expected) = (mercury.na_max_unexpected_size, mercury.na_max_expected_size);
    match resolved.eager_size {
        Some(_) => "margo.eager_size",
        None if unexpected >= expected => "mercury.na_max_unexpected_size",
        None => "mercury.na_max_expected_size",
    }
}

#[cfg(test)]
mod tests {
    use margo_config::{Config, EAGER_SIZE_MAX, EAGER_SIZE_MIN};

    use super::*;

    fn resolved(document: &str) -> Resolved {
        Config::from_json(document).unwrap().resolve(&|_| None).unwrap()
    }

    fn address(address: &str, more: &str) -> String {
        format!(r#"{{ "margo": {{ "address": "{address}" {more} }} }}"#)
    }

    fn mercury(keys: &str, address: &str) -> String {
        format!(r#"{{ "mercury": {{ {keys} }}, "margo": {{ "address": "{address}" }} }}"#)
    }

    fn sizes(unexpected: u32, expected: u32, address: &str) -> String {
        let sizes = format!(
            r#""na_max_unexpected_size": {unexpected}, "na_max_expected_size": {expected}"#
        );
        mercury(&sizes, address)
    }

    #[test]
    fn a_setting_that_no_machine_can_have_is_told_by_its_key() {
        let near = r#""auto_sm": true, "sm_info_string": "na+tcp://x""#;
        let v6 = r#""na_addr_format": "ipv6""#;
        let open = r#", "security": { "tcp": { "beyond_loopback": true } }"#;
        for (document, said) in [
            ("{}".into(), ""),
            (
                address("na+tcp://127.0.0.1:99999", ""),
                "margo.address: cannot use address `na+tcp://127.0.0.1:99999`: the port must be",
            ),
            (address("127.0.0.1:80", ""), "margo.address: cannot use address `127.0.0.1:80`"),
            (
                address("na+pigeon://x", ""),
                "margo.address: cannot use address `na+pigeon://x`: there is no transport",
            ),
            (
                address("ofi+pigeon://x", ""),
                "margo.address: cannot use address `ofi+pigeon://x`: there is no provider",
            ),
            (address("na+tcp://no.such.host.invalid:7", open), ""),
            (
                address("ofi+tcp://", r#", "eager_size": 511"#),
                "margo.eager_size: 511 bytes; transport ofi takes 512 to 1048576",
            ),
            (address("ofi+tcp://", r#", "eager_size": 512"#), ""),
            (
                sizes(0, 2_000_000, "na+sm://"),
                "mercury.na_max_expected_size: 2000000 bytes; transport sm takes 1 to 1048576",
            ),
            (sizes(1, 2_000_000, "na+tcp://"), "mercury.na_max_expected_size: 2000000 bytes;"),
            (sizes(9_000_000, 2, "na+sim://"), "mercury.na_max_unexpected_size: 9000000 bytes;"),
            (
                sizes(MESSAGE_BYTES_MIN as u32 - 1, 0, "na+sm://"),
                "mercury.na_max_unexpected_size: 254 bytes are too few: headers and",
            ),
            (sizes(MESSAGE_BYTES_MIN as u32, 0, "na+sm://"), ""),
            (sizes(0, 0, "na+sm://"), ""),
            (
                mercury(v6, "na+tcp://127.0.0.1:0"),
                "mercury.na_addr_format: `127.0.0.1` of `na+tcp://127.0.0.1:0` has no IPv6 address",
            ),
            (mercury(r#""auth_key": "1""#, "ofi+cxi://"), "mercury.auth_key: it is `1`; cxi takes"),
            (mercury(near, "na+tcp://"), "mercury.sm_info_string: cannot use address `na+tcp://x`"),
            (
                mercury(r#""auto_sm": true"#, "na+tcp://127.0.0.1:y"),
                "margo.address: cannot use address `na+tcp://127.0.0.1:y`",
            ),
        ] {
            let found = check_network(&resolved(&document));
            let found = found.map_or_else(|errors| errors.to_string(), |()| String::new());
            assert!(found.starts_with(said), "{document}: {found}");
            assert_eq!(found.is_empty(), said.is_empty(), "{document}: {found}");
        }
    }

    #[test]
    fn what_only_opening_finds_is_told_by_its_key_as_well() {
        let of = |source| not_opened(&resolved("{}"), source);
        let option = na::Error::BadOption { option: "ip_subnet", reason: "it is odd".into() };
        assert!(of(option).to_string().ends_with("\nmercury.ip_subnet: it is odd"));
        assert!(matches!(of(na::Error::Closed), InitError::Network { .. }));
    }

    #[test]
    fn eager_sizes_of_documents_are_those_of_the_transports() {
        for plugin in na::plugins() {
            let takes = |bytes| {
                let mut options = na::OpenOptions::default();
                options.message_bytes_max = bytes;
                na::check_address(plugin.probe_uri(), &options).is_ok()
            };
            assert!(takes(EAGER_SIZE_MAX) && !takes(EAGER_SIZE_MAX + 1), "{}", plugin.name());
        }
        const { assert!(EAGER_SIZE_MIN >= MESSAGE_BYTES_MIN) };
    }
}
