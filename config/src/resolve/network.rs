//! Settings of the RPC layer: limits, and combinations that do not work.

use super::Findings;
use super::declared::Layout;
use crate::document::config::{Config, PoolAccess};
use crate::document::margo::{MargoOptions, MercuryBuild, PayloadChecksum};
use crate::document::mercury::{ChecksumLevel, MULTI_RECV_OP_MAX, Mercury, NaAddrFormat};
use crate::document::network::NetworkOptions;
use crate::document::subnet::IpSubnet;

/// Most that `margo.requests_max` may be.
const REQUESTS_MAX: usize = 1 << 22;

/// Longest message where the document does not say, in bytes: that of the transports.
const EAGER_SIZE: u64 = 4096;

/// The bytes of receive buffers, all of which exist from the start, above which there is a warning.
const RECEIVE_BYTES_MAX: u64 = 1 << 30;

/// `margo.requests_max`; its default follows `mercury.request_post_init`, which C has alone.
pub(super) fn requests_max(config: &Config) -> usize {
    let written = config.margo.requests_max;
    let first = config.mercury.request_post_init as usize;
    match written == MargoOptions::default().requests_max {
        true => written.max(first.min(REQUESTS_MAX)),
        false => written,
    }
}

/// Checks the settings of device memory.
fn devices(config: &Config, found: &mut Findings) {
    let device = &config.margo.device;
    limit("margo.device.chunk_bytes", device.chunk_bytes, 64 << 10, 1 << 30, found);
    limit("margo.device.buffers", device.buffers.into(), 4, 4096, found);
    limit("margo.device.streams", device.streams.into(), 1, 64, found);
    for (index, name) in device.devices.iter().enumerate() {
        let is_number = name.parse::<u32>().is_ok();
        let is_pci = name.contains(':')
            && name.contains('.')
            && name.chars().all(|c| c.is_ascii_hexdigit() || ":.".contains(c));
        if !is_number && !is_pci {
            let path = format!("margo.device.devices[{index}]");
            let message = format!(
                "`{name}` is neither the number of a device, as \"0\", nor a PCI address, as \
                 \"0000:3b:00.0\" (`margo info` lists both)"
            );
            found.error(path, message);
        }
    }
    if !device.devices.is_empty() && !config.mercury.na_request_mem_device {
        let message = "has no effect while `mercury.na_request_mem_device` is false";
        found.warn("margo.device.devices", message);
    }
}

/// Checks `margo`'s and `mercury`'s settings of messages and bulk transfers. Returns the pool that
/// takes part in copies.
pub(super) fn check(config: &Config, layout: &Layout, found: &mut Findings) -> Option<usize> {
    let (margo, mercury) = (&config.margo, &config.mercury);
    limit("margo.overflow_bytes_max", margo.overflow_bytes_max, 1, 1 << 40, found);
    limit("margo.overflow_held_max", margo.overflow_held_max, 1, 1 << 44, found);
    limit("margo.requests_max", margo.requests_max as u64, 1, REQUESTS_MAX as u64, found);
    limit("margo.bulk.chunk_bytes", margo.bulk.chunk_bytes, 4096, u64::MAX, found);
    limit("margo.bulk.window", margo.bulk.window.into(), 1, 32, found);
    devices(config, found);
    let proc = &margo.proc;
    limit("margo.proc.depth_max", proc.depth_max as u64, 1, 4096, found);
    limit("margo.proc.len_max", proc.len_max.unwrap_or(u64::MAX), 1, u64::MAX, found);
    peers(&margo.network, found);
    receives(config, found);
    if mercury.request_post_incr < -1 {
        let message =
            format!("{} receive buffers cannot be added; -1 adds none", mercury.request_post_incr);
        found.error("mercury.request_post_incr", message);
    }
    large_buffers(mercury, found);
    if mercury.checksum_level != ChecksumLevel::None
        && margo.mercury_build == Some(MercuryBuild::Plain)
    {
        let message = "headers of a plain build have no room for checksums, as \
                       `mercury.checksum_level` asks for; write \"checksums\", \
                       or leave the key out";
        found.error("margo.mercury_build", message);
    }
    if margo.payload_checksum != PayloadChecksum::default()
        && mercury.checksum_level != ChecksumLevel::RpcPayload
    {
        let message = "is ignored because `mercury.checksum_level` is not \"rpc_payload\"";
        found.warn("margo.payload_checksum", message);
    }
    copy_pool(config, layout, found)
}

/// Receives that are posted at the start: how many, and what they take where none share a buffer.
fn receives(config: &Config, found: &mut Findings) {
    let (margo, mercury) = (&config.margo, &config.mercury);
    let (path, requests_max) = ("mercury.request_post_init", requests_max(config));
    if mercury.request_post_init as usize > requests_max {
        let message = format!("use at most `margo.requests_max`, which is {requests_max}");
        found.error(path, message);
        return;
    }
    let largest = mercury.na_max_unexpected_size.max(mercury.na_max_expected_size);
    let bytes = match margo.eager_size {
        Some(bytes) => bytes as u64,
        None if largest > 0 => largest.into(),
        None => EAGER_SIZE,
    };
    let first = mercury.in_effect(requests_max).request_post_init;
    let all = bytes.saturating_mul(first.into());
    if margo.listen && mercury.no_multi_recv && all > RECEIVE_BYTES_MAX {
        let message = format!(
            "{first} receives of {bytes} bytes each take {all} bytes from the start: post fewer, \
             or leave out `mercury.no_multi_recv`, so that requests share buffers"
        );
        found.warn(path, message);
    }
}

/// Large buffers for requests: how many, and how many of these are spared.
fn large_buffers(mercury: &Mercury, found: &mut Findings) {
    let count = match mercury.multi_recv_op_max {
        0 => MULTI_RECV_OP_MAX,
        count => count,
    };
    limit("mercury.multi_recv_op_max", count.into(), 1, 4096, found);
    if mercury.multi_recv_copy_threshold > count {
        let message = format!("use at most `mercury.multi_recv_op_max`, which is {count}");
        found.error("mercury.multi_recv_copy_threshold", message);
    }
}

/// Reads `mercury.ip_subnet`, and looks whether addresses of its family are wanted.
pub(super) fn subnet(mercury: &Mercury, found: &mut Findings) -> Option<IpSubnet> {
    let path = "mercury.ip_subnet";
    let text = mercury.ip_subnet.as_deref().filter(|text| !text.is_empty())?;
    let subnet = IpSubnet::parse(text).map_err(|message| found.error(path, message)).ok()?;
    let (is_other, family) = match mercury.na_addr_format {
        NaAddrFormat::Ipv4 => (subnet.ip.is_ipv6(), "IPv4"),
        NaAddrFormat::Ipv6 => (subnet.ip.is_ipv4(), "IPv6"),
        NaAddrFormat::Unspec | NaAddrFormat::Native => (false, ""),
    };
    if is_other {
        let message =
            format!("{text:?} has no {family} addresses, which `mercury.na_addr_format` asks for");
        found.error(path, message);
    }
    Some(subnet)
}

/// Limits of zero that would let nobody in.
fn peers(network: &NetworkOptions, found: &mut Findings) {
    let bound = |most: Option<usize>| most.unwrap_or(usize::MAX) as u64;
    for (key, value) in [
        ("connect_timeout_msec", network.connect_timeout_msec.into()),
        ("connections_max", bound(network.connections_max)),
        ("connections_per_user_max", network.connections_per_user_max as u64),
        ("unread_answers_max", bound(network.unread_answers_max)),
        ("unread_answers_per_host_max", bound(network.unread_answers_per_host_max)),
        ("unread_answers_total_max", bound(network.unread_answers_total_max)),
        ("rendezvous_bytes_min", bound(network.rendezvous_bytes_min)),
    ] {
        limit(&format!("margo.network.{key}"), value, 1, u64::MAX, found);
    }
    if network.connect_retry_msec > network.connect_timeout_msec {
        let message = format!(
            "ends after `margo.network.connect_timeout_msec`, which is {}",
            network.connect_timeout_msec
        );
        found.warn("margo.network.connect_retry_msec", message);
    }
}

fn copy_pool(config: &Config, layout: &Layout, found: &mut Findings) -> Option<usize> {
    let path = "margo.bulk.copy_pool";
    let index = layout.named_pool(path, config.margo.bulk.copy_pool.as_ref()?, found)?;
    let pool = &layout.pools[index];
    if pool.access == PoolAccess::Private {
        let message = format!(
            "pool {:?} is private, but progress pushes helpers into it from another xstream; use \
             mpsc or mpmc",
            pool.name
        );
        found.error(path, message);
    }
    Some(index)
}

pub(super) fn limit(path: &str, value: u64, min: u64, max: u64, found: &mut Findings) {
    if (min..=max).contains(&value) {
        return;
    }
    let message = match max {
        u64::MAX => format!("{value} is not allowed: from {min}"),
        max => format!("{value} is not allowed: from {min} to {max}"),
    };
    found.error(path, message);
}
