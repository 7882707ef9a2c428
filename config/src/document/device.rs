//! Memory of devices.

use serde::{Deserialize, Serialize};

/// How memory of devices (GPUs) moves: through buffers of the host, which each device that is used
/// has.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{
///     "mercury": { "na_request_mem_device": true },
///     "margo": { "device": { "devices": ["0000:3b:00.0"], "buffers": 32 } },
/// }"#)?;
/// let resolved = config.resolve(&|_| None)?;
/// assert_eq!((resolved.device.chunk_bytes, resolved.device.buffers), (2 << 20, 32));
/// # Ok::<(), margo_config::Errors>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DeviceOptions {
    /// Bytes of a buffer, and so of what is copied at a time, from 65536 to 1073741824. Default
    /// 2097152 (2 MiB).
    pub chunk_bytes: u64,
    /// Buffers of each device that is used, from 4 to 4096: half for transfers of this process,
    /// half for those that peers ask for. They are pinned. Default 16.
    pub buffers: u32,
    /// Streams of each device, from 1 to 64: copies of several run side by side. Default 4.
    pub streams: u32,
    /// Devices that are made ready at the start if `mercury.na_request_mem_device` is true, by
    /// number or PCI address; others are when their memory is first used. Default none, which
    /// stands for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { chunk_bytes: 2 << 20, buffers: 16, streams: 4, devices: Vec::new() }
    }
}
