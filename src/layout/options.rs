//! From the document to the options of the transport and of the RPC layer.

use std::time::Duration;

use hg::{self, HgOptions, ProcLimits, ProviderId, RpcId};
use margo_config::{
    ChecksumLevel, Config, MercuryBuild, NaAddrFormat, PayloadChecksum, PeerUsers, RemoteKeys,
    Resolved, ResolvedTcpSecurity, TrafficClass,
};

use crate::layout::plan::outside_of_mask;
use crate::support::own_rpcs;

/// Returns the warnings that an instance with this configuration gives when it starts, beside
/// [`Resolved::warnings`](margo_config::Resolved::warnings). They are for people, one line each,
/// which begins with the path of a key. Starts nothing; warnings that depend on the machine or on
/// the transport are those of this process.
///
/// - settings without effect in this version or over this transport;
/// - limits of messages that differ from those of peers in C;
/// - xstreams that are bound outside of the affinity mask that the process was started with.
pub fn start_warnings(resolved: &Resolved) -> Vec<String> {
    let idle = without_effect(resolved).into_iter();
    let idle = idle.map(|key| format!("{key}: has no effect in this version"));
    idle.chain(unlike_limits(resolved)).chain(outside_of_mask(resolved)).collect()
}

/// Settings of the document that this version reads but cannot act on.
///
/// Each is something that can be lived without, so it is a warning.
fn without_effect(resolved: &Resolved) -> Vec<&'static str> {
    let (mercury, defaults) = (&resolved.mercury, Config::default());
    let timeout_max = resolved.progress_timeout_max.as_millis();
    let is_timeout = timeout_max > 0 && timeout_max != defaults.progress_timeout_ub_msec.into();
    let handles = defaults.handle_cache_size as usize;
    let is_fabric = resolved.address.starts_with("ofi+");
    let given = [
        (is_timeout, "progress_timeout_ub_msec"),
        (resolved.handle_cache_size != handles, "handle_cache_size"),
        (mercury.log_level != defaults.mercury.log_level, "mercury.log_level"),
        (mercury.log_subsys != defaults.mercury.log_subsys, "mercury.log_subsys"),
        (mercury.na_no_retry, "mercury.na_no_retry"),
        (mercury.no_multi_recv && mercury.multi_recv_op_max > 0, "mercury.multi_recv_op_max"),
        (
            mercury.no_multi_recv && mercury.multi_recv_copy_threshold > 0,
            "mercury.multi_recv_copy_threshold",
        ),
        (mercury.auth_key.is_some() && !is_fabric, "mercury.auth_key"),
        (mercury.sm_info_string.is_some() && !mercury.auto_sm, "mercury.sm_info_string"),
    ];
    let ignored = na::ignored(&resolved.address, &na_options(resolved));
    let by_transport = ignored.into_iter().filter_map(|option| match option {
        "traffic_class" => Some("mercury.traffic_class"),
        "addr_format" => Some("mercury.na_addr_format"),
        "ip_subnet" => Some("mercury.ip_subnet"),
        _ => None,
    });
    let given = given.into_iter().filter_map(|(given, key)| given.then_some(key));
    given.chain(by_transport).collect()
}

/// Progress polls all the time: asked for in Mercury's way, or in that of C Margo, whose progress
/// loop waits in the network for no longer than this.
pub(crate) fn never_sleeps(resolved: &Resolved) -> bool {
    resolved.mercury.na_no_block || resolved.progress_timeout_max.is_zero()
}

/// That messages of one kind may be longer here than C Mercury takes them, which has a limit for
/// each: nothing negotiates them over ofi, so that the other side loses what is longer.
fn unlike_limits(resolved: &Resolved) -> Option<String> {
    let mercury = &resolved.mercury;
    let default = na::OpenOptions::default().message_bytes_max;
    let limit = |bytes: u32| if bytes == 0 { default } else { bytes as usize };
    let unexpected = limit(mercury.na_max_unexpected_size);
    let expected = limit(mercury.na_max_expected_size);
    let here = na_options(resolved).message_bytes_max;
    (resolved.address.starts_with("ofi+") && unexpected != expected).then(|| {
        format!(
            "mercury.na_max_unexpected_size comes to {unexpected} and na_max_expected_size to \
             {expected} in C Mercury; here messages of both kinds have up to {here} bytes, and \
             peers in C lose what is longer than theirs: set both to the same everywhere"
        )
    })
}

fn tcp_security(resolved: &Resolved) -> na::TcpSecurity {
    let tcp = resolved.security.as_ref().map(|security| &security.tcp);
    match tcp {
        Some(ResolvedTcpSecurity::ClusterSecret(secret)) => {
            na::TcpSecurity::ClusterSecret(secret.clone())
        }
        Some(ResolvedTcpSecurity::MutualTls { certificate, key, trust, revoked, names }) => {
            let mut files = na::Certificates::new(certificate, key, trust);
            files.revoked.clone_from(revoked);
            files.names.clone_from(names);
            na::TcpSecurity::MutualTls(files)
        }
        _ => na::TcpSecurity::None,
    }
}

/// How an instance opens the endpoint of `margo.address`: what the document has for transports.
pub fn na_options(resolved: &Resolved) -> na::OpenOptions {
    let mercury = &resolved.mercury;
    let mut options = na::OpenOptions::listening(resolved.listen);
    // Our transports have one limit for both kinds of message; 0 stands for their default.
    let largest = mercury.na_max_unexpected_size.max(mercury.na_max_expected_size) as usize;
    if let Some(bytes) = resolved.eager_size.or((largest > 0).then_some(largest)) {
        options.message_bytes_max = bytes;
    }
    let network = &resolved.network;
    let millis = |msec: u32| Duration::from_millis(msec.into());
    options.connect_timeout = millis(network.connect_timeout_msec);
    options.liveness_limit = millis(network.liveness_msec);
    options.left_bytes_max = network.left_bytes_max;
    options.early_bytes_max = network.early_bytes_max;
    // Progress that is made only when needed sleeps all the same.
    options.no_block = never_sleeps(resolved) && !resolved.progress_when_needed;
    options.peer_users = match &network.peer_users {
        PeerUsers::Own => na::PeerUsers::Own,
        PeerUsers::And(uids) => na::PeerUsers::And(uids.clone()),
        PeerUsers::All => na::PeerUsers::All,
    };
    options.traffic_class = match mercury.traffic_class {
        TrafficClass::Unspec => na::TrafficClass::Unspec,
        TrafficClass::BestEffort => na::TrafficClass::BestEffort,
        TrafficClass::LowLatency => na::TrafficClass::LowLatency,
        TrafficClass::BulkData => na::TrafficClass::BulkData,
        TrafficClass::DedicatedAccess => na::TrafficClass::DedicatedAccess,
        TrafficClass::Scavenger => na::TrafficClass::Scavenger,
        TrafficClass::NetworkCtrl => na::TrafficClass::NetworkCtrl,
    };
    options.addr_format = match mercury.na_addr_format {
        NaAddrFormat::Unspec => na::AddrFormat::Unspec,
        NaAddrFormat::Ipv4 => na::AddrFormat::Ipv4,
        NaAddrFormat::Ipv6 => na::AddrFormat::Ipv6,
        NaAddrFormat::Native => na::AddrFormat::Native,
    };
    options.ip_subnet = resolved.ip_subnet.and_then(|net| na::Subnet::new(net.ip, net.bits));
    options.request_mem_device = mercury.na_request_mem_device;
    options.ucx.rendezvous_bytes_min = network.rendezvous_bytes_min;
    options.ucx.remote_keys = match network.remote_keys {
        RemoteKeys::Auto => na::RemoteKeys::Auto,
        RemoteKeys::Always => na::RemoteKeys::Always,
        RemoteKeys::Never => na::RemoteKeys::Never,
    };
    options.tcp.connect_retry = millis(network.connect_retry_msec);
    options.tcp.security = tcp_security(resolved);
    options.tcp.slow_reader_limit = millis(network.slow_reader_msec);
    options.unread_answers_max = network.unread_answers_max;
    options.unread_answers_per_host_max = network.unread_answers_per_host_max;
    options.unread_answers_total_max = network.unread_answers_total_max;
    options.tcp.keep_alive = Duration::from_secs(network.keep_alive_sec.into());
    options.tcp.busy_poll = Duration::from_micros(network.busy_poll_usec.into());
    options.sm.connections_per_user_max = network.connections_per_user_max;
    options.sm.mapped_bytes_per_peer_max = network.mapped_bytes_per_peer_max;
    options.sm.cross_memory_attach = network.cross_memory_attach;
    if let Some(connections) = network.connections_max {
        options.sm.connections_max = connections;
        options.tcp.connections_max = connections;
        options.ucx.connections_max = connections;
    }
    if mercury.auto_sm {
        let name = mercury.sm_info_string.as_deref().unwrap_or_default();
        let is_address = name.contains("://");
        options.auto_sm =
            Some(if is_address { name.to_owned() } else { format!("na+sm://{name}") });
    }
    let auth_key = mercury.auth_key.clone();
    let environment = |name: &str| std::env::var(name).ok();
    options.auth_key = auth_key
        .or_else(|| job_auth_key(&resolved.address, environment))
        .filter(|_| resolved.address.starts_with("ofi+"));
    options
}

/// Authorisation on Slingshot if none is written: of several networks that the job was given, the
/// second, which is that of the whole job; else what libfabric does by itself.
///
/// Counterpart: `auto_set_cxi_auth_key` in C Margo's `margo-hg-config.c`.
fn job_auth_key(address: &str, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_slingshot = address.starts_with("ofi+cxi://");
    let networks = variable("SLINGSHOT_VNIS").filter(|_| is_slingshot)?;
    networks.contains(',').then(|| "0:0:1".to_owned())
}

/// How the RPC layer behaves.
pub(crate) fn hg_options(resolved: &Resolved) -> HgOptions {
    let defaults = HgOptions::default();
    let mercury = &resolved.mercury;
    let request_post_incr = match usize::try_from(mercury.request_post_incr) {
        Err(_never) => 0,
        Ok(0) => defaults.request_post_incr,
        Ok(receives) => receives,
    };
    let checksum_level = match (mercury.checksum_level, resolved.payload_checksum) {
        (ChecksumLevel::None, _) => hg::ChecksumLevel::None,
        (ChecksumLevel::RpcHeaders, _) => hg::ChecksumLevel::Headers,
        (ChecksumLevel::RpcPayload, PayloadChecksum::Crc32c) => hg::ChecksumLevel::Payload,
        (ChecksumLevel::RpcPayload, PayloadChecksum::Crc64) => hg::ChecksumLevel::Payload64,
    };
    // Only headers of a build with checksum support have room for them.
    let protected = checksum_level != hg::ChecksumLevel::None;
    let with_room = protected || resolved.mercury_build == Some(MercuryBuild::Checksums);
    let mut options = HgOptions::default();
    options.build = if with_room { hg::Build::Checksum } else { defaults.build };
    options.checksum_level = checksum_level;
    options.listen = resolved.listen;
    options.request_post_init = mercury.request_post_init as usize;
    options.request_post_incr = request_post_incr;
    options.requests_max = resolved.requests_max;
    options.multi_recv = !mercury.no_multi_recv;
    options.multi_recv_op_max = match mercury.multi_recv_op_max {
        0 => defaults.multi_recv_op_max,
        buffers => buffers as usize,
    };
    options.multi_recv_copy_threshold = mercury.multi_recv_copy_threshold as usize;
    options.overflow_bytes_max = usize::try_from(resolved.overflow_bytes_max).unwrap_or(usize::MAX);
    options.overflow_held_max = usize::try_from(resolved.overflow_held_max).unwrap_or(usize::MAX);
    // Who looks for the reason is to see it.
    options.results_apart = Some(RpcId::margo(own_rpcs::METRICS, ProviderId::DEFAULT));
    options.proc = ProcLimits {
        depth_max: resolved.proc.depth_max,
        len_max: resolved.proc.len_max.unwrap_or(u64::MAX),
        empty_elements_max: resolved.proc.empty_elements_max,
    };
    options.stats = mercury.stats;
    options.overflow = !mercury.no_overflow;
    options.bulk_eager = !mercury.no_bulk_eager;
    options.bulk_chunk_bytes = resolved.bulk.chunk_bytes;
    options.bulk_window = resolved.bulk.window;
    options.loopback = !mercury.no_loopback;
    // A handler may run for long, and wait for other requests.
    options.release_input_early = mercury.release_input_early.unwrap_or(true);
    options
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
        let mut expected = hg_options(&resolved("{}"));
        change(&mut expected);
        assert_eq!(hg_options(&resolved(document)), expected, "{document}");
    }

    #[test]
    fn the_empty_document_has_the_defaults_of_the_rpc_layer() {
        let apart = RpcId::margo(own_rpcs::METRICS, ProviderId::DEFAULT);
        let mut expected = HgOptions::default();
        expected.release_input_early = true;
        expected.results_apart = Some(apart);
        assert_eq!(hg_options(&resolved("{}")), expected);
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
        changed(r#"{ "mercury": { "release_input_early": true } }"#, |_| {});
        changed(r#"{ "mercury": { "release_input_early": false } }"#, |o| {
            o.release_input_early = false;
        });
        changed(r#"{ "mercury": { "no_multi_recv": true } }"#, |o| o.multi_recv = false);
        changed(r#"{ "mercury": { "multi_recv_op_max": 7 } }"#, |o| o.multi_recv_op_max = 7);
        changed(r#"{ "mercury": { "multi_recv_op_max": 0 } }"#, |_| {});
        changed(r#"{ "mercury": { "multi_recv_copy_threshold": 2 } }"#, |o| {
            o.multi_recv_copy_threshold = 2;
        });
        changed(r#"{ "margo": { "listen": false } }"#, |o| o.listen = false);
    }

    #[test]
    fn every_own_key_reaches_its_option() {
        changed(r#"{ "margo": { "requests_max": 300 } }"#, |o| o.requests_max = 300);
        changed(r#"{ "margo": { "requests_max": 1 } }"#, |o| {
            (o.requests_max, o.request_post_init) = (1, 1);
        });
        changed(r#"{ "margo": { "overflow_bytes_max": 5 } }"#, |o| o.overflow_bytes_max = 5);
        changed(r#"{ "margo": { "bulk": { "window": 2, "chunk_bytes": 8192 } } }"#, |o| {
            (o.bulk_window, o.bulk_chunk_bytes) = (2, 8192);
        });
        changed(r#"{ "margo": { "overflow_held_max": 6 } }"#, |o| o.overflow_held_max = 6);
        changed(r#"{ "margo": { "proc": { "depth_max": 7 } } }"#, |o| o.proc.depth_max = 7);
        changed(r#"{ "margo": { "proc": { "len_max": 8 } } }"#, |o| o.proc.len_max = 8);
        changed(r#"{ "margo": { "proc": { "empty_elements_max": 9 } } }"#, |o| {
            o.proc.empty_elements_max = 9;
        });
    }

    /// The transport's options of a document, with those of the default document besides.
    fn opened_by(document: &str, change: impl FnOnce(&mut na::OpenOptions)) {
        let mut expected = na::OpenOptions::listening(true);
        change(&mut expected);
        assert_eq!(na_options(&resolved(document)), expected, "{document}");
    }

    fn opened(keys: &str, change: impl FnOnce(&mut na::OpenOptions)) {
        opened_by(&format!(r#"{{ "margo": {{ "network": {{ {keys} }} }} }}"#), change);
    }

    #[test]
    fn shared_memory_beside_the_network_and_the_size_of_messages_reach_the_transport() {
        let sm = |uri: &str| Some(uri.to_owned());
        opened_by("{}", |_| {});
        opened_by(r#"{ "margo": { "listen": false } }"#, |o| o.listen = false);
        opened_by(r#"{ "mercury": { "auto_sm": true } }"#, |o| o.auto_sm = sm("na+sm://"));
        for name in ["here", "na+sm://here"] {
            let keys = format!(r#""auto_sm": true, "sm_info_string": "{name}""#);
            let document = format!(r#"{{ "mercury": {{ {keys} }} }}"#);
            opened_by(&document, |o| o.auto_sm = sm("na+sm://here"));
        }
        opened_by(r#"{ "mercury": { "sm_info_string": "here" } }"#, |_| {});
        // Fabrics ask for authorisation, nobody else does.
        opened_by(r#"{ "mercury": { "auth_key": "1:2" } }"#, |_| {});
        let fabric =
            r#"{ "mercury": { "auth_key": "1:2" }, "margo": { "address": "ofi+cxi://" } }"#;
        opened_by(fabric, |o| o.auth_key = Some("1:2".to_owned()));
        assert!(without_effect(&resolved(fabric)).is_empty());
        // The larger of C's two limits counts for both, ours before them.
        let sizes = r#""mercury": { "na_max_unexpected_size": 700, "na_max_expected_size": 800 }"#;
        opened_by(&format!("{{ {sizes} }}"), |o| o.message_bytes_max = 800);
        let ours = format!(r#"{{ {sizes}, "margo": {{ "eager_size": 900 }} }}"#);
        opened_by(&ours, |o| o.message_bytes_max = 900);
    }

    #[test]
    fn limits_that_c_would_not_share_are_told_over_ofi() {
        let told = |address: &str, sizes: &str| {
            let document =
                format!(r#"{{ "mercury": {{ {sizes} }}, "margo": {{ "address": "{address}" }} }}"#);
            unlike_limits(&resolved(&document))
        };
        let unequal = r#""na_max_unexpected_size": 700, "na_max_expected_size": 800"#;
        let said = told("ofi+tcp://", unequal).unwrap();
        for part in ["na_max_unexpected_size comes to 700", "na_max_expected_size to 800"] {
            assert!(said.contains(part), "{said}");
        }
        // The other one is C's default.
        let one = r#""na_max_unexpected_size": 8192"#;
        assert!(told("ofi+tcp://", one).unwrap().contains("to 4096 in C"));
        for (address, sizes) in [
            ("ofi+tcp://", ""),
            ("ofi+tcp://", r#""na_max_unexpected_size": 700, "na_max_expected_size": 700"#),
            ("ofi+tcp://", r#""na_max_unexpected_size": 4096"#),
            ("na+tcp://", unequal),
        ] {
            assert_eq!(told(address, sizes), None, "{address} {sizes}");
        }
    }

    #[test]
    fn a_job_with_several_networks_uses_the_second_one() {
        let key = |address, vnis: Option<&str>| {
            job_auth_key(address, |name| {
                assert_eq!(name, "SLINGSHOT_VNIS");
                vnis.map(str::to_owned)
            })
        };
        for vnis in [Some("16369,16324"), Some("1,2,3")] {
            assert_eq!(key("ofi+cxi://", vnis).as_deref(), Some("0:0:1"));
            assert_eq!(key("ofi+tcp://", vnis), None);
        }
        for vnis in [None, Some(""), Some("16369")] {
            assert_eq!(key("ofi+cxi://cxi0", vnis), None);
        }
        // What claims to be several and cannot be read is asked for all the same, so that opening
        // names the variable; without the key libfabric would take some network and say nothing.
        for vnis in [Some(","), Some("garbage,more"), Some("1;2,"), Some("16369,-1")] {
            assert_eq!(key("ofi+cxi://cxi0", vnis).as_deref(), Some("0:0:1"), "{vnis:?}");
        }
    }

    #[test]
    fn every_key_of_the_network_reaches_its_option() {
        let seconds = Duration::from_secs;
        opened("", |_| {});
        opened(r#""connect_timeout_msec": 3000"#, |o| o.connect_timeout = seconds(3));
        opened(r#""connect_retry_msec": 2000"#, |o| o.tcp.connect_retry = seconds(2));
        opened(r#""liveness_msec": 4000"#, |o| o.liveness_limit = seconds(4));
        opened(r#""slow_reader_msec": 5000"#, |o| o.tcp.slow_reader_limit = seconds(5));
        opened(r#""unread_answers_max": 9"#, |o| o.unread_answers_max = Some(9));
        opened(r#""unread_answers_per_host_max": 8"#, |o| o.unread_answers_per_host_max = Some(8));
        opened(r#""unread_answers_total_max": 7"#, |o| o.unread_answers_total_max = Some(7));
        opened(r#""early_bytes_max": 6"#, |o| o.early_bytes_max = 6);
        opened(r#""keep_alive_sec": 0"#, |o| o.tcp.keep_alive = seconds(0));
        opened(r#""busy_poll_usec": 50"#, |o| o.tcp.busy_poll = Duration::from_micros(50));
        opened(r#""connections_max": 9"#, |o| {
            (o.sm.connections_max, o.tcp.connections_max) = (9, 9);
            o.ucx.connections_max = 9;
        });
        opened(r#""connections_per_user_max": 8"#, |o| o.sm.connections_per_user_max = 8);
        opened(r#""left_bytes_max": 0"#, |o| o.left_bytes_max = 0);
        opened(r#""mapped_bytes_per_peer_max": 0"#, |o| o.sm.mapped_bytes_per_peer_max = 0);
        opened(r#""cross_memory_attach": false"#, |o| o.sm.cross_memory_attach = false);
        opened(r#""rendezvous_bytes_min": 4096"#, |o| o.ucx.rendezvous_bytes_min = Some(4096));
        opened(r#""remote_keys": "auto""#, |_| {});
        opened(r#""remote_keys": "always""#, |o| o.ucx.remote_keys = na::RemoteKeys::Always);
        opened(r#""remote_keys": "never""#, |o| o.ucx.remote_keys = na::RemoteKeys::Never);
        opened(r#""peer_users": "all""#, |o| o.peer_users = na::PeerUsers::All);
        opened(r#""peer_users": [7, 8]"#, |o| o.peer_users = na::PeerUsers::And(vec![7, 8]));
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
    fn progress_that_is_not_to_wait_in_the_network_does_not_sleep() {
        for (keys, no_block) in [
            (r#""progress_timeout_ub_msec": 0"#, true),
            (r#""mercury": { "na_no_block": true }"#, true),
            (r#""progress_timeout_ub_msec": 1"#, false),
            (
                r#""progress_timeout_ub_msec": 0, "margo": { "listen": false,
                "progress_when_needed": true }"#,
                false,
            ),
        ] {
            let resolved = resolved(&format!("{{ {keys} }}"));
            assert_eq!(na_options(&resolved).no_block, no_block, "{keys}");
        }
    }

    #[test]
    fn what_is_read_without_effect_is_told() {
        for (keys, key) in [
            (r#""progress_timeout_ub_msec": 7"#, Some("progress_timeout_ub_msec")),
            (r#""progress_timeout_ub_msec": 100"#, None),
            (r#""progress_timeout_ub_msec": 0"#, None),
            (r#""handle_cache_size": 0"#, Some("handle_cache_size")),
            (r#""handle_cache_size": 256"#, None),
        ] {
            let expected: Vec<&str> = key.into_iter().collect();
            assert_eq!(without_effect(&resolved(&format!("{{ {keys} }}"))), expected);
        }
        for (key, value) in [
            ("na_no_retry", "true"),
            ("log_level", r#""debug""#),
            ("log_subsys", r#""hg""#),
            ("ip_subnet", r#""10.0.0.0/8""#),
            ("auth_key", r#""0:0:1""#),
            ("sm_info_string", r#""x""#),
            ("na_addr_format", r#""ipv6""#),
            ("traffic_class", r#""low_latency""#),
        ] {
            let document = format!(r#"{{ "mercury": {{ "{key}": {value} }} }}"#);
            assert_eq!(without_effect(&resolved(&document)), [format!("mercury.{key}")]);
        }
    }

    #[test]
    fn large_buffers_that_are_not_used_are_told() {
        for key in ["multi_recv_op_max", "multi_recv_copy_threshold"] {
            let document =
                |no| format!(r#"{{ "mercury": {{ "no_multi_recv": {no}, "{key}": 2 }} }}"#);
            assert_eq!(without_effect(&resolved(&document(true))), [format!("mercury.{key}")]);
            assert_eq!(without_effect(&resolved(&document(false))), Vec::<&str>::new());
        }
    }

    #[test]
    fn what_is_asked_of_the_network_reaches_the_transport() {
        use na::{AddrFormat, TrafficClass};
        for (word, class) in [
            ("unspec", TrafficClass::Unspec),
            ("best_effort", TrafficClass::BestEffort),
            ("low_latency", TrafficClass::LowLatency),
            ("bulk_data", TrafficClass::BulkData),
            ("dedicated_access", TrafficClass::DedicatedAccess),
            ("scavenger", TrafficClass::Scavenger),
            ("network_ctrl", TrafficClass::NetworkCtrl),
        ] {
            let document = format!(r#"{{ "mercury": {{ "traffic_class": "{word}" }} }}"#);
            opened_by(&document, |o| o.traffic_class = class);
        }
        for (word, format) in [
            ("unspec", AddrFormat::Unspec),
            ("ipv4", AddrFormat::Ipv4),
            ("ipv6", AddrFormat::Ipv6),
            ("native", AddrFormat::Native),
        ] {
            let document = format!(r#"{{ "mercury": {{ "na_addr_format": "{word}" }} }}"#);
            opened_by(&document, |o| o.addr_format = format);
        }
        opened_by(r#"{ "mercury": { "na_request_mem_device": true } }"#, |o| {
            o.request_mem_device = true;
        });
        opened_by(r#"{ "mercury": { "ip_subnet": "10.1.2.3/8" } }"#, |o| {
            o.ip_subnet = na::Subnet::new([10, 0, 0, 0].into(), 8);
        });
        let all = r#"{ "mercury": { "traffic_class": "bulk_data", "ip_subnet": "127.0.0.0/8",
                      "na_addr_format": "ipv4" }, "margo": { "address": "na+tcp://" } }"#;
        assert!(without_effect(&resolved(all)).is_empty());
    }
}
