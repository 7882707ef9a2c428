//! `margo.trace`, and the environment variables that win over it.

use super::Findings;
use super::scalars::{from_env, overridden};
use crate::trace::TraceOptions;

const ENV_ENABLE: &str = "MARGO_ENABLE_TRACE";
const ENV_PREFIX: &str = "MARGO_TRACE_FILENAME_PREFIX";
const ENV_RATE: &str = "MARGO_TRACE_SAMPLE_RATE";

/// What holds; whether it is turned on is part of it.
pub(super) fn resolve(
    given: &TraceOptions,
    env: &dyn Fn(&str) -> Option<String>,
    found: &mut Findings,
) -> TraceOptions {
    let mut options = given.clone();
    let set = |name| env(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    if let Some(switch) = set(ENV_ENABLE) {
        options.enable = switch != "0" && !switch.eq_ignore_ascii_case("false");
    }
    if let Some(prefix) = set(ENV_PREFIX) {
        options.filename_prefix = prefix;
    }
    check_rate("margo.trace.sample_rate", given.sample_rate, found);
    if let Some(rate) = given.request_sample_rate {
        check_rate("margo.trace.request_sample_rate", rate, found);
    }
    if let Some(rate) = from_env::<f64>(env, ENV_RATE, found) {
        if given.sample_rate != rate && given.sample_rate != TraceOptions::default().sample_rate {
            found.warn("margo.trace.sample_rate", overridden(ENV_RATE, rate));
        }
        check_rate(&format!("environment {ENV_RATE}"), rate, found);
        options.sample_rate = rate;
    }
    let prefix = &options.filename_prefix;
    if prefix.is_empty() || prefix.contains('\0') || prefix.ends_with('/') {
        let message = "is no beginning of a file name; \"margo\" is the default";
        found.error("margo.trace.filename_prefix", message);
    }
    super::network::limit(
        "margo.trace.file_bytes_max",
        given.file_bytes_max,
        1 << 16,
        u64::MAX,
        found,
    );
    super::network::limit("margo.trace.queue_max", given.queue_max as u64, 16, 1 << 24, found);
    options
}

fn check_rate(path: &str, rate: f64, found: &mut Findings) {
    if !(0.0..=1.0).contains(&rate) {
        found.error(path, format!("{rate} is no share: from 0 (none) to 1 (all)"));
    }
}
