//! The sample documents that ship with the crate.

/// Commented sample documents: file name and text. Each one parses and resolves.
///
/// Start from `quickstart.json`.
pub fn samples() -> &'static [(&'static str, &'static str)] {
    &[
        ("quickstart.json", include_str!("../samples/quickstart.json")),
        ("dedicated-progress.json", include_str!("../samples/dedicated-progress.json")),
        ("pool-per-provider.json", include_str!("../samples/pool-per-provider.json")),
        ("one-core.json", include_str!("../samples/one-core.json")),
        ("numa-pinned.json", include_str!("../samples/numa-pinned.json")),
        ("two-transports.json", include_str!("../samples/two-transports.json")),
        ("several-shards.json", include_str!("../samples/several-shards.json")),
        ("shared-handlers.json", include_str!("../samples/shared-handlers.json")),
        ("client-only.json", include_str!("../samples/client-only.json")),
    ]
}
