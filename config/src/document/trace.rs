//! `margo.trace`: files that show calls across processes. The only home of these defaults.

use serde::{Deserialize, Serialize};

/// Which calls are recorded, and where: see `docs/tracing.md`.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{ "margo": { "trace": { "sample_rate": 0.01 } } }"#)?;
/// let env = |name: &str| (name == "MARGO_ENABLE_TRACE").then(|| "1".to_owned());
/// let trace = config.resolve(&env)?.trace;
/// assert!(trace.enable);
/// assert_eq!(trace.sample_rate, 0.01);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TraceOptions {
    /// Records calls. Default false. The environment variable `MARGO_ENABLE_TRACE` wins: anything
    /// but nothing, `0` and `false` turns it on.
    pub enable: bool,
    /// How the name of the file begins; `.HOST.PID.trace.json` follows. Default `"margo"`, in the
    /// working directory. The environment variable `MARGO_TRACE_FILENAME_PREFIX` wins.
    pub filename_prefix: String,
    /// Share of the calls made outside of any handler that are recorded, with all that is done on
    /// their behalf in other processes, too: 0 to 1. Default 1.0. The environment variable
    /// `MARGO_TRACE_SAMPLE_RATE` wins.
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    pub sample_rate: f64,
    /// The part of the requests that is recorded although their origin does not record them, of C
    /// peers say, with all that is done here on their behalf and behind: 0 to 1. Default none: as
    /// `sample_rate`.
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_sample_rate: Option<f64>,
    /// Longest file, in bytes, from 65536; once it is full, which the log says, nothing more is
    /// recorded. Default 268435456 (256 MiB), some 600,000 calls or 300,000 requests.
    #[cfg_attr(test, schemars(range(min = 65536)))]
    pub file_bytes_max: u64,
    /// Most calls that wait to be written, from 16 to 16777216, some 300 bytes each; what comes
    /// beyond is counted, nobody waits. Default 65536.
    #[cfg_attr(test, schemars(range(min = 16, max = 16777216)))]
    pub queue_max: usize,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self {
            enable: false,
            filename_prefix: "margo".to_owned(),
            sample_rate: 1.0,
            request_sample_rate: None,
            file_bytes_max: 256 << 20,
            queue_max: 1 << 16,
        }
    }
}
