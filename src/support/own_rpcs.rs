//! Names of the RPCs that a listening instance serves by itself: some always, `DESCRIBE` from when
//! a provider is described, `ADMIN` and `BEDROCK` from when the program lets the instance be
//! administered, `STAGED` and `LEND` from when it exposes memory of a device. They run where
//! progress does, and follow it to another pool.

use hg::ProviderId;

/// The end of the instance, as in C Margo.
pub(crate) const SHUTDOWN: &str = "__shutdown__";

/// The metrics of the instance.
pub(crate) const METRICS: &str = "__metrics__";

/// The descriptions of its services.
pub(crate) const DESCRIBE: &str = "__describe__";

/// The ping.
pub(crate) const PING: &str = "__ping__";

/// Changes of the instance.
pub(crate) const ADMIN: &str = "__admin__";

/// Transfers of device memory.
pub(crate) const STAGED: &str = "__staged__";

/// Copies of device memory between processes of a host.
pub(crate) const LEND: &str = "__lend__";

/// All that are of no provider.
pub(crate) const ALL: [&str; 7] = [SHUTDOWN, METRICS, DESCRIBE, PING, ADMIN, STAGED, LEND];

/// Changes of the instance by clients of Bedrock.
pub(crate) const BEDROCK: [&str; 9] = [
    "bedrock_get_config",
    "bedrock_add_pool",
    "bedrock_remove_pool",
    "bedrock_add_xstream",
    "bedrock_remove_xstream",
    "bedrock_start_provider",
    "bedrock_change_provider_pool",
    "bedrock_snapshot_provider",
    "bedrock_restore_provider",
];

/// The provider whose they are, by Bedrock's default; all others are of no provider.
pub(crate) const BEDROCK_ID: ProviderId = ProviderId::new(0);

/// All of them, with their providers.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, ProviderId)> {
    let bedrock = BEDROCK.map(|rpc| (rpc, BEDROCK_ID));
    ALL.map(|rpc| (rpc, ProviderId::DEFAULT)).into_iter().chain(bedrock)
}
