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
    /// Lends device memory to processes of this host and user over `na+sm`, which map it and copy
    /// between it and theirs by their device; and maps theirs. Both sides have to set it. A process
    /// that has memory mapped can read and write all of its allocation, for as long as it likes.
    /// Default false: it goes through the buffers.
    pub share: bool,
    /// Bytes of device memory of other processes that are mapped here at a time, at most; more
    /// goes through the buffers. Default 68719476736 (64 GiB).
    pub mapped_bytes_max: u64,
    /// Devices that are made ready at the start if `mercury.na_request_mem_device` is true, by
    /// number or PCI address; others are when their memory is first used. Default none, which
    /// stands for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        let (chunk_bytes, mapped_bytes_max) = (2 << 20, 64 << 30);
        let (share, devices) = (false, Vec::new());
        Self { chunk_bytes, buffers: 16, streams: 4, share, mapped_bytes_max, devices }
    }
}
