//! Settings of the RPC layer: limits, and what does not go together.

use super::Findings;
use crate::config::Config;
use crate::margo::{MercuryBuild, PayloadChecksum};
use crate::mercury::ChecksumLevel;

/// Checks `margo`'s and `mercury`'s settings of messages and bulk transfers.
pub(super) fn check(config: &Config, found: &mut Findings) {
    let (margo, mercury) = (&config.margo, &config.mercury);
    limit("margo.overflow_bytes_max", margo.overflow_bytes_max, 1, 1 << 40, found);
    limit("margo.requests_max", margo.requests_max as u64, 1, 1 << 22, found);
    limit("margo.bulk.chunk_bytes", margo.bulk.chunk_bytes, 4096, u64::MAX, found);
    limit("margo.bulk.window", margo.bulk.window.into(), 1, 32, found);
    let first = mercury.request_post_init as usize;
    if first > margo.requests_max {
        // Each is a message buffer, allocated at once.
        let message = format!("use at most `margo.requests_max`, which is {}", margo.requests_max);
        found.error("mercury.request_post_init", message);
    }
    if mercury.request_post_incr < -1 {
        let message =
            format!("{} receive buffers cannot be added; -1 adds none", mercury.request_post_incr);
        found.error("mercury.request_post_incr", message);
    }
    if mercury.checksum_level != ChecksumLevel::None
        && margo.mercury_build == Some(MercuryBuild::Plain)
    {
        let message = "headers of a plain build have no room for checksums; write \"checksums\", \
                       or leave the key out";
        found.error("margo.mercury_build", message);
    }
    if margo.payload_checksum != PayloadChecksum::default()
        && mercury.checksum_level != ChecksumLevel::RpcPayload
    {
        let message = "is ignored because `mercury.checksum_level` is not \"rpc_payload\"";
        found.warn("margo.payload_checksum", message);
    }
}

fn limit(path: &str, value: u64, min: u64, max: u64, found: &mut Findings) {
    if (min..=max).contains(&value) {
        return;
    }
    let message = match max {
        u64::MAX => format!("{value} is not allowed: from {min}"),
        max => format!("{value} is not allowed: from {min} to {max}"),
    };
    found.error(path, message);
}
