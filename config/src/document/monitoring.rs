//! The settings of the default monitor: `monitoring.config`. The only home of these defaults.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::read::decode::decode_value;
use crate::read::tree::join;
use crate::report::error::{Error, Warning};

/// Name of the monitor that comes with margo.
pub(crate) const DEFAULT_MONITOR: &str = "default";

/// Most decimal digits that a figure is printed with.
const PRECISION_MAX: u32 = 9;

/// Shortest time between two entries, seconds: less is mostly spent on the entries themselves.
const INTERVAL_MIN: f64 = 0.001;
/// Longest time between two entries, seconds.
const INTERVAL_MAX: f64 = 1e9;

/// Highest bound on what is kept.
const KEPT_MAX: u32 = 1_000_000;

/// Switches the default monitor on, whatever it is set to, unless the document names another one.
const ENV_ENABLE: &str = "MARGO_ENABLE_MONITORING";
/// The environment's say where the document has none.
const ENV_PREFIX: &str = "MARGO_MONITORING_FILENAME_PREFIX";
const ENV_NO_STATISTICS: &str = "MARGO_MONITORING_DISABLE_STATISTICS";
const ENV_NO_SERIES: &str = "MARGO_MONITORING_DISABLE_TIME_SERIES";

/// The records of the default monitor and where they go: the content of `monitoring.config`.
///
/// Read it with [`MonitoringOptions::of`]; the document itself keeps what was written, because a
/// monitor of one's own has keys of its own.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{ "monitoring": { "config": {
///     "filename_prefix": "/tmp/run7",
///     "time_series": { "disable": true },
/// } } }"#)?;
/// let monitor = config.resolve(&|_| None)?.monitor.ok_or("it is off")?;
/// assert_eq!(monitor.filename_prefix, "/tmp/run7");
/// assert!(monitor.time_series.disable && !monitor.statistics.disable);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Counterpart: the keys that `margo_default_monitor` reads (Margo).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct MonitoringOptions {
    /// How the names of the files begin. Default `"margo"`.
    pub filename_prefix: String,
    /// Printed by C Margo. Ignored on input: see those of the two parts. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<u32>,
    /// Figures for each call path.
    pub statistics: StatisticsOptions,
    /// Figures over time.
    pub time_series: TimeSeriesOptions,
}

impl Default for MonitoringOptions {
    fn default() -> Self {
        Self {
            filename_prefix: "margo".to_owned(),
            precision: None,
            statistics: StatisticsOptions::default(),
            time_series: TimeSeriesOptions::default(),
        }
    }
}

/// Figures for each call path.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{ "monitoring": { "config": {
///     "statistics": { "sample_rpcs_every": 1 }, // as in C
/// } } }"#)?;
/// let statistics = config.resolve(&|_| None)?.monitor.ok_or("it is off")?.statistics;
/// assert_eq!((statistics.sample_rpcs_every, statistics.rows_max), (1, 500));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct StatisticsOptions {
    /// Leaves them out. Default false.
    pub disable: bool,
    /// Decimal digits of times, 0 to 9; more count as 9, with a warning. Default 9.
    pub precision: u32,
    /// Records each so many-th sleep of the progress loop, and of its polls, of which there are far
    /// more, one in 1024 times as many; 0: none. Default 1.
    pub sample_progress_every: u32,
    /// Indents the file. Default false.
    pub pretty_json: bool,
    /// Looks at the times of one in so many calls of a path, at random; 1: all, as C does; 0: none.
    /// All calls are counted in any case, and of the first ones of a path all are looked at.
    /// Default 256. Not in C.
    pub sample_rpcs_every: u32,
    /// Most rows: pairs of a call path and a peer, of calls and of requests each; from 1 to
    /// 1,000,000. Further peers of a path are counted together. Default 500. Not in C.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub rows_max: u32,
}

impl Default for StatisticsOptions {
    fn default() -> Self {
        Self {
            disable: false,
            precision: PRECISION_MAX,
            sample_progress_every: 1,
            pretty_json: false,
            sample_rpcs_every: 256,
            rows_max: 500,
        }
    }
}

/// Figures over time.
///
/// ```
/// use margo_config::Config;
///
/// let config = Config::from_json(r#"{ "monitoring": { "config": {
///     "time_series": { "time_interval_sec": 0.5, "entries_max": 120 }, // the last minute
/// } } }"#)?;
/// let series = config.resolve(&|_| None)?.monitor.ok_or("it is off")?.time_series;
/// assert_eq!((series.time_interval_sec, series.entries_max), (0.5, 120));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TimeSeriesOptions {
    /// Leaves them out. Default false.
    pub disable: bool,
    /// Decimal digits of times, 0 to 9; more count as 9, with a warning. Default 9. In C the last
    /// one given holds for both parts.
    pub precision: u32,
    /// Seconds between two entries, from 0.001 to 1e9. Default 1.0. C ignores one that is written
    /// as an integer.
    #[cfg_attr(test, schemars(range(min = 0.001, max = 1e9)))]
    pub time_interval_sec: f64,
    /// Indents the file. Default false.
    pub pretty_json: bool,
    /// Most entries of a series that are kept; older ones are dropped; from 1 to 1,000,000.
    /// Default 3600. Not in C, which loses all after the 256th.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub entries_max: u32,
}

impl Default for TimeSeriesOptions {
    fn default() -> Self {
        Self {
            disable: false,
            precision: PRECISION_MAX,
            time_interval_sec: 1.0,
            pretty_json: false,
            entries_max: 3600,
        }
    }
}

impl MonitoringOptions {
    /// Reads the `monitoring` object of a document. `None`: it names another monitor than
    /// `"default"`, whose keys are its own.
    ///
    /// # Errors
    ///
    /// All that is wrong with it, by path; [`Config::resolve`](crate::Config::resolve) reports the
    /// same.
    pub fn of(monitoring: &Map<String, Value>) -> Result<Option<Self>, Vec<Error>> {
        let mut errors = Vec::new();
        for key in monitoring.keys().filter(|key| !matches!(key.as_str(), "name" | "config")) {
            let message = "unknown key (allowed: name, config)";
            errors.push(Error::new(join("monitoring", key), message));
        }
        let name = match monitoring.get("name") {
            None | Some(Value::Null) => DEFAULT_MONITOR,
            Some(Value::String(name)) => name,
            Some(other) => {
                let message = format!("expected a string, found {other}");
                errors.push(Error::new("monitoring.name", message));
                DEFAULT_MONITOR
            }
        };
        let config = monitoring.get("config").filter(|config| !config.is_null());
        let options = match config {
            Some(config) if name == DEFAULT_MONITOR => Some(Self::from_value(config)),
            Some(config) if !config.is_object() => {
                errors.push(Error::new("monitoring.config", "expected an object"));
                None
            }
            _ => (name == DEFAULT_MONITOR).then(|| Ok(Self::default())),
        };
        match options.transpose() {
            Ok(options) if errors.is_empty() => Ok(options),
            Ok(_) => Err(errors),
            Err(more) => {
                errors.extend(more);
                Err(errors)
            }
        }
    }

    /// Returns the tasks of the default monitor: as the document says, then as the environment
    /// says. `None`: it is off, because neither asks for it, or the document names another one.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub(crate) fn effective(
        monitoring: Option<&Map<String, Value>>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, Vec<Error>> {
        if monitoring.is_none() && env(ENV_ENABLE).is_none() {
            return Ok(None);
        }
        let options = monitoring.map_or(Ok(Some(Self::default())), Self::of)?;
        let Some(mut options) = options else { return Ok(None) };
        let is_given = |pointer: &str| {
            let config = monitoring.and_then(|map| map.get("config"));
            config.and_then(|config| config.pointer(pointer)).is_some_and(|value| !value.is_null())
        };
        if let Some(prefix) = env(ENV_PREFIX).filter(|_| !is_given("/filename_prefix")) {
            options.filename_prefix = prefix;
        }
        if env(ENV_NO_STATISTICS).is_some() && !is_given("/statistics/disable") {
            options.statistics.disable = true;
        }
        if env(ENV_NO_SERIES).is_some() && !is_given("/time_series/disable") {
            options.time_series.disable = true;
        }
        Ok(Some(options))
    }

    /// Returns a warning for each value that C takes and makes something else of, as is done here.
    pub(crate) fn warnings(monitoring: &Map<String, Value>) -> Vec<Warning> {
        let given = |part: &str| {
            let config = monitoring.get("config")?;
            config.get(part)?.get("precision")?.as_u64().filter(|n| *n > PRECISION_MAX.into())
        };
        let about = |part| {
            let message = format!("{} digits count as {PRECISION_MAX}, as in C", given(part)?);
            Some(Warning::new(format!("monitoring.config.{part}.precision"), message))
        };
        ["statistics", "time_series"].into_iter().filter_map(about).collect()
    }

    fn from_value(config: &Value) -> Result<Self, Vec<Error>> {
        let mut options: Self = decode_value(config, "monitoring.config")?;
        let wrong = options.out_of_range();
        for precision in [&mut options.statistics.precision, &mut options.time_series.precision] {
            *precision = PRECISION_MAX.min(*precision);
        }
        if wrong.is_empty() { Ok(options) } else { Err(wrong) }
    }

    fn out_of_range(&self) -> Vec<Error> {
        let mut wrong = Vec::new();
        let bounds = [
            ("monitoring.config.statistics.rows_max", self.statistics.rows_max),
            ("monitoring.config.time_series.entries_max", self.time_series.entries_max),
        ];
        for (path, max) in bounds.into_iter().filter(|(_, max)| !(1..=KEPT_MAX).contains(max)) {
            let message = format!("{max} is not allowed: from 1 to {KEPT_MAX}");
            wrong.push(Error::new(path, message));
        }
        let interval = self.time_series.time_interval_sec;
        if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
            let message = format!(
                "{interval} seconds are not allowed: from {INTERVAL_MIN} to {INTERVAL_MAX:e}"
            );
            wrong.push(Error::new("monitoring.config.time_series.time_interval_sec", message));
        }
        wrong
    }
}

/// The schema of the `monitoring` object: the keys of `config` are known for the default monitor
/// only.
#[cfg(test)]
pub(crate) fn schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let options = generator.subschema_for::<MonitoringOptions>();
    schemars::json_schema!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "config": { "type": "object" } },
        "additionalProperties": false,
        // As always, null is nothing given.
        "if": { "properties": { "name": { "enum": [DEFAULT_MONITOR, null] } } },
        "then": { "properties": { "config": options } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<MonitoringOptions>, Vec<String>> {
        let map = serde_json::from_str(text).expect("an object");
        let errors = |errors: Vec<Error>| errors.iter().map(ToString::to_string).collect();
        MonitoringOptions::of(&map).map_err(errors)
    }

    #[test]
    fn keys_have_their_defaults() {
        let all = of("{}").expect("accepted").expect("default");
        assert_eq!((all.filename_prefix.as_str(), all.statistics.precision), ("margo", 9));
        assert_eq!(all.time_series.time_interval_sec, 1.0);
        assert_eq!(of(r#"{"name": "default", "config": {}}"#), Ok(Some(all.clone())));
        assert_eq!(of(r#"{"config": {"statistics": null}}"#), Ok(Some(all)));
    }

    #[test]
    fn an_interval_may_be_an_integer() {
        let given = of(r#"{"config": {"time_series": {"time_interval_sec": 2}}}"#);
        assert_eq!(given.expect("accepted").expect("default").time_series.time_interval_sec, 2.0);
    }

    #[test]
    fn bounds_are_checked() {
        for key in ["\"statistics\": {\"rows_max\"", "\"time_series\": {\"entries_max\""] {
            for (value, good) in [("0", false), ("1", true), ("1000000", true), ("1000001", false)]
            {
                let text = format!("{{\"config\": {{{key}: {value}}}}}}}");
                assert_eq!(of(&text).is_ok(), good, "{text}");
            }
        }
    }

    #[test]
    fn the_environment_switches_on_and_speaks_where_the_document_is_silent() {
        let effective = |document: Option<&str>, set: &[(&str, &str)]| {
            let map = document.map(|text| serde_json::from_str(text).expect("an object"));
            let env = |name: &str| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            };
            MonitoringOptions::effective(map.as_ref(), &env).expect("accepted")
        };
        let off = [("MARGO_MONITORING_DISABLE_STATISTICS", "")];
        assert_eq!(effective(None, &off), None);
        assert_eq!(
            effective(Some(r#"{"name": "mine"}"#), &[("MARGO_ENABLE_MONITORING", "1")]),
            None
        );
        assert_eq!(effective(Some("{}"), &[]), Some(MonitoringOptions::default()));
        let all = [
            ("MARGO_ENABLE_MONITORING", ""),
            ("MARGO_MONITORING_FILENAME_PREFIX", "of env"),
            ("MARGO_MONITORING_DISABLE_STATISTICS", "1"),
            ("MARGO_MONITORING_DISABLE_TIME_SERIES", "1"),
        ];
        let by_env = effective(None, &all).expect("on");
        assert_eq!(by_env.filename_prefix, "of env");
        assert!(by_env.statistics.disable && by_env.time_series.disable);
        let document =
            r#"{"config": {"filename_prefix": "own", "statistics": {"disable": false}}}"#;
        let both = effective(Some(document), &all).expect("on");
        assert_eq!(both.filename_prefix, "own");
        assert!(!both.statistics.disable && both.time_series.disable);
    }

    #[test]
    fn another_monitor_has_keys_of_its_own() {
        assert_eq!(of(r#"{"name": "mine", "config": {"x": [1]}}"#), Ok(None));
        assert!(of(r#"{"name": "mine", "config": 1}"#).is_err());
    }
}
