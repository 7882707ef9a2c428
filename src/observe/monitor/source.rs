//! The statistics that an instance offers.

use margo_config::MonitoringOptions;
use serde_json::Value;

use super::c_layout;
use super::monitoring::Monitoring;
use super::series::Series;
use super::statistics::Statistics;

/// The source of the reports of an instance's statistics.
pub(crate) struct Source<'a> {
    pub(crate) monitoring: &'a Monitoring,
    /// The monitor's options, if the configuration asks for it.
    pub(crate) options: Option<&'a MonitoringOptions>,
    /// The address of the instance.
    pub(crate) address: String,
    /// The statistics are a parent process's, whose locks may be held for ever here.
    pub(crate) is_forked: bool,
}

pub(crate) fn read(source: &Source<'_>, reset: bool) -> Statistics {
    if source.is_forked {
        return Statistics::default();
    }
    source.monitoring.read(source.address.clone(), reset)
}

/// The two documents of C's layout.
pub(crate) fn dump(source: &Source<'_>, reset: bool) -> (Value, Value) {
    let options = source.options.cloned().unwrap_or_default();
    let stats = c_layout::stats(&read(source, reset), options.statistics.precision);
    // As in `read`.
    let none = Series::default();
    let series = if source.is_forked { &none } else { &source.monitoring.shared.series };
    (stats, series.to_json(&source.address, options.time_series.precision, reset))
}
