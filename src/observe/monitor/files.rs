//! The files of the default monitor.

use std::io::{self, Write};
use std::path::PathBuf;

use margo_config::{MonitoringOptions, Resolved};
use serde_json::Value;

use super::source::{Source, dump};
use crate::{InitError, support::files};

const STATS: &str = "stats.json";
const SERIES: &str = "series.json";

/// Returns whether those that the configuration asks for can be written when the instance ends.
pub(crate) fn check(resolved: &Resolved) -> Result<(), InitError> {
    let Some(MonitoringOptions { filename_prefix, statistics, time_series, .. }) =
        &resolved.monitor
    else {
        return Ok(());
    };
    let kinds = [(statistics.disable, STATS), (time_series.disable, SERIES)];
    for (_, kind) in kinds.into_iter().filter(|(disable, _)| !disable) {
        let path = files::path(filename_prefix, 0, kind);
        files::probe(&path).map_err(|source| InitError::Destination {
            key: "monitoring.config.filename_prefix",
            path,
            source,
        })?;
    }
    Ok(())
}

/// Writes those that the configuration asks for, or both if it has switched nothing on.
pub(crate) fn write(source: &Source<'_>) -> io::Result<Vec<PathBuf>> {
    let options = source.options.cloned().unwrap_or_default();
    let (stats, series) = dump(source, false);
    let prefix = &options.filename_prefix;
    let number = *source.monitoring.shared.file_number.get_or_init(|| files::number(prefix));
    let wanted = [
        (!options.statistics.disable, STATS, stats, options.statistics.pretty_json),
        (!options.time_series.disable, SERIES, series, options.time_series.pretty_json),
    ];
    let mut written = Vec::new();
    let mut result = Ok(());
    // One that cannot be written is no reason to go without the other one.
    for (_, kind, document, pretty) in wanted.into_iter().filter(|(wanted, ..)| *wanted) {
        let path = files::path(prefix, number, kind);
        match files::replace(&path, |out| write_json(out, &document, pretty)) {
            Ok(()) => written.push(path),
            Err(error) => result = Err(error),
        }
    }
    result.map(|()| written)
}

fn write_json(mut out: impl Write, document: &Value, pretty: bool) -> io::Result<()> {
    match pretty {
        true => serde_json::to_writer_pretty(&mut out, document),
        false => serde_json::to_writer(&mut out, document),
    }?;
    out.write_all(b"\n")
}
