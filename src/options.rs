//! From the document to the options of the transport and of the RPC layer.

use margo_config::{
    ChecksumLevel, MercuryBuild, NaAddrFormat, PayloadChecksum, Resolved, TrafficClass,
};

use crate::InitError;
use crate::hg::{self, HgOptions};

/// Settings of the document that this version reads but cannot act on.
///
/// Each is something that can be lived without, so it is a warning.
pub(crate) fn without_effect(resolved: &Resolved) -> Vec<&'static str> {
    let mercury = &resolved.mercury;
    let given = [
        (mercury.na_no_retry, "mercury.na_no_retry"),
        (mercury.release_input_early == Some(false), "mercury.release_input_early"),
        (mercury.multi_recv_op_max > 0, "mercury.multi_recv_op_max"),
        (mercury.multi_recv_copy_threshold > 0, "mercury.multi_recv_copy_threshold"),
        (mercury.ip_subnet.is_some(), "mercury.ip_subnet"),
        (mercury.auth_key.is_some(), "mercury.auth_key"),
        (mercury.sm_info_string.is_some() && !mercury.auto_sm, "mercury.sm_info_string"),
        (mercury.na_request_mem_device, "mercury.na_request_mem_device"),
        (mercury.na_addr_format != NaAddrFormat::default(), "mercury.na_addr_format"),
        (resolved.enable_abt_profiling, "enable_abt_profiling"),
        (resolved.monitoring.is_some(), "monitoring"),
    ];
    given.into_iter().filter_map(|(given, key)| given.then_some(key)).collect()
}

fn unsupported(path: String, what: impl std::fmt::Debug, help: &str) -> InitError {
    InitError::Unsupported { path, what: format!("`{what:?}`"), help: help.to_owned() }
}

/// How to open the endpoint.
pub(crate) fn na_options(resolved: &Resolved) -> na::OpenOptions {
    let mercury = &resolved.mercury;
    let mut options = na::OpenOptions::listening(resolved.listen);
    // Our transports have one limit for both kinds of message; 0 stands for their default.
    let largest = mercury.na_max_unexpected_size.max(mercury.na_max_expected_size) as usize;
    if let Some(bytes) = resolved.eager_size.or((largest > 0).then_some(largest)) {
        options.message_bytes_max = bytes;
    }
    if mercury.auto_sm {
        let name = mercury.sm_info_string.as_deref().unwrap_or_default();
        let is_address = name.contains("://");
        options.auto_sm =
            Some(if is_address { name.to_owned() } else { format!("na+sm://{name}") });
    }
    options
}

/// How the RPC layer behaves.
///
/// # Errors
///
/// [`InitError::Unsupported`] for what cannot be honoured and matters.
pub(crate) fn hg_options(resolved: &Resolved) -> Result<HgOptions, InitError> {
    let defaults = HgOptions::default();
    let mercury = &resolved.mercury;
    let request_post_init = match mercury.request_post_init as usize {
        0 => defaults.request_post_init.min(resolved.requests_max),
        receives => receives,
    };
    let request_post_incr = match usize::try_from(mercury.request_post_incr) {
        Err(_never) => 0,
        Ok(0) => defaults.request_post_incr,
        Ok(receives) => receives,
    };
    if !matches!(mercury.traffic_class, TrafficClass::Unspec | TrafficClass::BestEffort) {
        let help = "no transport of this version tells traffic classes apart; write \"unspec\"";
        return Err(unsupported("mercury.traffic_class".into(), mercury.traffic_class, help));
    }
    let checksum_level = match (mercury.checksum_level, resolved.payload_checksum) {
        (ChecksumLevel::None, _) => hg::ChecksumLevel::None,
        (ChecksumLevel::RpcHeaders, _) => hg::ChecksumLevel::Headers,
        (ChecksumLevel::RpcPayload, PayloadChecksum::Crc32c) => hg::ChecksumLevel::Payload,
        (ChecksumLevel::RpcPayload, PayloadChecksum::Crc64) => hg::ChecksumLevel::Payload64,
    };
    // Only headers of a build with checksum support have room for them.
    let protected = checksum_level != hg::ChecksumLevel::None;
    let with_room = protected || resolved.mercury_build == Some(MercuryBuild::Checksums);
    Ok(HgOptions {
        build: if with_room { hg::Build::Checksum } else { defaults.build },
        checksum_level,
        listen: resolved.listen,
        request_post_init,
        request_post_incr,
        max_contexts: resolved.more_progress_pools.len() as u8 + 1,
        requests_max: resolved.requests_max,
        overflow_bytes_max: usize::try_from(resolved.overflow_bytes_max).unwrap_or(usize::MAX),
        stats: mercury.stats,
        overflow: !mercury.no_overflow,
        bulk_eager: !mercury.no_bulk_eager,
        bulk_chunk_bytes: resolved.bulk.chunk_bytes,
        bulk_window: resolved.bulk.window,
        loopback: !mercury.no_loopback,
        // A handler may run for long, and wait for other requests.
        release_input_early: true,
        ..defaults
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use margo_config::Config;

    fn resolved(document: &str) -> Resolved {
        Config::from_json(document).unwrap().resolve(&|_| None).unwrap()
    }

    /// The options of a document, with those that the default document has besides.
    fn changed(document: &str, change: impl FnOnce(&mut HgOptions)) {
        let mut expected = hg_options(&resolved("{}")).unwrap();
        change(&mut expected);
        assert_eq!(hg_options(&resolved(document)).unwrap(), expected, "{document}");
    }

    #[test]
    fn the_empty_document_has_the_defaults_of_the_rpc_layer() {
        let expected = HgOptions { release_input_early: true, ..HgOptions::default() };
        assert_eq!(hg_options(&resolved("{}")).unwrap(), expected);
        assert_eq!(without_effect(&resolved("{}")), Vec::<&str>::new());
    }

    #[test]
    fn every_key_of_mercury_reaches_its_option() {
        changed(r#"{ "mercury": { "request_post_init": 7 } }"#, |o| o.request_post_init = 7);
        changed(r#"{ "mercury": { "request_post_init": 0 } }"#, |_| {});
        changed(r#"{ "mercury": { "request_post_incr": 9 } }"#, |o| o.request_post_incr = 9);
        changed(r#"{ "mercury": { "request_post_incr": 0 } }"#, |_| {});
        changed(r#"{ "mercury": { "request_post_incr": -1 } }"#, |o| o.request_post_incr = 0);
        changed(r#"{ "mercury": { "no_bulk_eager": true } }"#, |o| o.bulk_eager = false);
        changed(r#"{ "mercury": { "no_loopback": true } }"#, |o| o.loopback = false);
        changed(r#"{ "mercury": { "no_overflow": true } }"#, |o| o.overflow = false);
        changed(r#"{ "mercury": { "stats": true } }"#, |o| o.stats = true);
        changed(r#"{ "mercury": { "max_contexts": 3 } }"#, |o| o.max_contexts = 3);
        changed(r#"{ "mercury": { "release_input_early": true } }"#, |_| {});
        changed(r#"{ "mercury": { "no_multi_recv": true } }"#, |_| {});
        changed(r#"{ "margo": { "listen": false } }"#, |o| o.listen = false);
    }

    #[test]
    fn every_own_key_reaches_its_option() {
        changed(r#"{ "margo": { "requests_max": 300 } }"#, |o| o.requests_max = 300);
        changed(r#"{ "margo": { "overflow_bytes_max": 5 } }"#, |o| o.overflow_bytes_max = 5);
        changed(r#"{ "margo": { "bulk": { "window": 2, "chunk_bytes": 8192 } } }"#, |o| {
            (o.bulk_window, o.bulk_chunk_bytes) = (2, 8192);
        });
    }

    #[test]
    fn checksums_choose_the_headers_that_have_room_for_them() {
        use hg::{Build, ChecksumLevel};
        for (keys, build, level) in [
            (r#""mercury": { "checksum_level": "none" }"#, Build::Plain, ChecksumLevel::None),
            (r#""margo": { "mercury_build": "plain" }"#, Build::Plain, ChecksumLevel::None),
            (r#""margo": { "mercury_build": "checksums" }"#, Build::Checksum, ChecksumLevel::None),
            (
                r#""mercury": { "checksum_level": "rpc_headers" }"#,
                Build::Checksum,
                ChecksumLevel::Headers,
            ),
            (
                r#""mercury": { "checksum_level": "rpc_payload" }"#,
                Build::Checksum,
                ChecksumLevel::Payload,
            ),
            (
                r#""mercury": { "checksum_level": "rpc_payload" },
                   "margo": { "payload_checksum": "crc64" }"#,
                Build::Checksum,
                ChecksumLevel::Payload64,
            ),
        ] {
            changed(&format!("{{ {keys} }}"), |o| (o.build, o.checksum_level) = (build, level));
        }
    }

    #[test]
    fn what_is_read_without_effect_is_told() {
        for (key, value) in [
            ("na_no_retry", "true"),
            ("release_input_early", "false"),
            ("multi_recv_op_max", "4"),
            ("multi_recv_copy_threshold", "2"),
            ("ip_subnet", r#""10.0.0.0/8""#),
            ("auth_key", r#""0:0:1""#),
            ("sm_info_string", r#""x""#),
            ("na_request_mem_device", "true"),
            ("na_addr_format", r#""ipv6""#),
        ] {
            let document = format!(r#"{{ "mercury": {{ "{key}": {value} }} }}"#);
            assert_eq!(without_effect(&resolved(&document)), [format!("mercury.{key}")]);
        }
    }

    #[test]
    fn a_traffic_class_that_no_transport_has_is_refused() {
        for class in ["unspec", "best_effort"] {
            changed(&format!(r#"{{ "mercury": {{ "traffic_class": "{class}" }} }}"#), |_| {});
        }
        let document = r#"{ "mercury": { "traffic_class": "low_latency" } }"#;
        let error = hg_options(&resolved(document)).unwrap_err().to_string();
        assert!(error.starts_with("mercury.traffic_class: "), "{error}");
        assert!(error.contains("no transport of this version tells traffic classes"), "{error}");
    }
}
