//! `margo.trace`, and the environment variables that win over it.

use super::Findings;
use super::scalars::{number, overridden};
use crate::document::trace::TraceOptions;

const ENV_ENABLE: &str = "MARGO_ENABLE_TRACE";
const ENV_PREFIX: &str = "MARGO_TRACE_FILENAME_PREFIX";
const ENV_RATE: &str = "MARGO_TRACE_SAMPLE_RATE";

/// Returns the trace settings in effect, with whether traces are on.
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
    // What the environment says wrong is no reason not to start where nothing is recorded: it may
    // be meant for others. The document's value stays then.
    let mut environment = |name: &str, message: String| {
        let path = format!("environment {name}");
        match options.enable {
            true => found.error(path, message),
            false => found.warn(path, message),
        }
    };
    let prefix = set(ENV_PREFIX).and_then(|prefix| match check_prefix(&prefix) {
        Ok(()) => Some(prefix),
        Err(message) => {
            environment(ENV_PREFIX, format!("{prefix:?} {message}"));
            None
        }
    });
    let rate = set(ENV_RATE).and_then(|text| number::<f64>(&text)).and_then(|rate| {
        let rate = rate.and_then(|rate| check_rate(rate).map(|()| rate));
        rate.map_err(|message| environment(ENV_RATE, message)).ok()
    });
    if let Err(message) = check_prefix(&given.filename_prefix) {
        found.error("margo.trace.filename_prefix", message);
    }
    let rates = [
        ("margo.trace.sample_rate", Some(given.sample_rate)),
        ("margo.trace.request_sample_rate", given.request_sample_rate),
    ];
    for (path, rate) in rates {
        if let Some(Err(message)) = rate.map(check_rate) {
            found.error(path, message);
        }
    }
    if let Some(prefix) = prefix {
        options.filename_prefix = prefix;
    }
    if let Some(rate) = rate {
        if given.sample_rate != rate && given.sample_rate != TraceOptions::default().sample_rate {
            found.warn("margo.trace.sample_rate", overridden(ENV_RATE, rate));
        }
        options.sample_rate = rate;
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

fn check_prefix(prefix: &str) -> Result<(), &'static str> {
    match prefix.is_empty() || prefix.contains('\0') || prefix.ends_with('/') {
        true => Err("is no beginning of a file name; \"margo\" is the default"),
        false => Ok(()),
    }
}

fn check_rate(rate: f64) -> Result<(), String> {
    match (0.0..=1.0).contains(&rate) {
        true => Ok(()),
        false => Err(format!("{rate} is no share: from 0 (none) to 1 (all)")),
    }
}
