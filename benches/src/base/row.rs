//! One row of the report: what is measured, in which unit, against which floor and target.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::stats::{Distribution, Samples};

/// Unit of a row's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    /// Nanoseconds; less is better.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Operations per second; more is better.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Bytes per second; more is better.
    #[serde(rename = "bytes/s")]
    BytesPerSecond,
    /// Bytes of memory; less is better.
    #[serde(rename = "bytes")]
    Bytes,
    /// Share of one core; less is better.
    #[serde(rename = "%")]
    Percent,
}

/// The figure that a row's value should reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Target {
    /// No target is set. Floors have none.
    None,
    /// A limit in the row's unit.
    Limit(f64),
    /// A limit for the value and one for p99.9.
    LimitWithTail(f64, f64),
    /// A multiple of the floor of the same run.
    TimesFloor(f64),
    /// So much more than the floor of the same run, in the row's unit.
    MoreThanFloor(f64),
    /// A multiple of what is named so needs in the same run; see [`Figure::beside`].
    TimesOther(f64, &'static str),
}

impl Target {
    /// The limit in the row's unit, once the floor and the others are known.
    fn limit(self, floor: Option<f64>, others: &BTreeMap<String, f64>) -> Option<f64> {
        match self {
            Self::None => None,
            Self::Limit(limit) | Self::LimitWithTail(limit, _) => Some(limit),
            Self::TimesFloor(times) => floor.map(|floor| floor * times),
            Self::MoreThanFloor(more) => floor.map(|floor| floor + more),
            Self::TimesOther(times, name) => others.get(name).map(|other| other * times),
        }
    }
}

/// The figures of one measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// The figure, in the row's unit; a median unless the row says otherwise.
    pub(crate) value: Option<f64>,
    /// The floor in the same unit, from the same run.
    pub(crate) floor: Option<f64>,
    /// Where the value comes from.
    pub(crate) samples: Distribution,
    /// The figures of others for the same in the same run, by name, in the row's unit.
    pub(crate) others: BTreeMap<String, f64>,
    /// The thing that this machine lacks for the row: nothing was measured.
    pub(crate) lacks: Option<String>,
}

impl Figure {
    /// The figure of a row for which this machine lacks something.
    pub(crate) fn lacking(what: String) -> Self {
        Self { lacks: Some(what), ..Self::default() }
    }

    /// The median of `samples`.
    pub(crate) fn median(samples: Distribution, floor: Option<f64>) -> Self {
        Self { value: samples.p50, floor, samples, ..Self::default() }
    }

    /// The 99th percentile of `samples`.
    pub(crate) fn tail(samples: Distribution, floor: Option<f64>) -> Self {
        Self { value: samples.p99, ..Self::median(samples, floor) }
    }

    /// A figure that is no median, measured once.
    pub(crate) fn single(value: f64, floor: Option<f64>) -> Self {
        let samples = Distribution { n: 1, ..Distribution::default() };
        Self { value: Some(value), floor, samples, ..Self::default() }
    }

    /// The median time of the second, beside the floor, which is that of the first.
    pub(crate) fn latency([mut floors, mut samples]: [Samples; 2]) -> Self {
        Self::median(samples.latency(), floors.quantile(500))
    }

    /// The median bandwidth of the second, beside that of the first, in transfers of `bytes`.
    pub(crate) fn bandwidth([mut floors, mut samples]: [Samples; 2], bytes: usize) -> Self {
        Self::median(samples.bandwidth(bytes), floors.bandwidth(bytes).p50)
    }

    /// The median rate of the second, beside that of the first.
    pub(crate) fn rate([mut floors, mut samples]: [Samples; 2]) -> Self {
        Self::median(samples.rate(), floors.rate().p50)
    }

    /// Adds what `name` needs for the same, if it could be measured.
    pub(crate) fn beside(mut self, name: &str, value: Option<f64>) -> Self {
        self.others.extend(value.map(|value| (name.to_owned(), value)));
        self
    }
}

/// One line of the report; one object of the JSON array. Every key is always there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// `group.what.variant`.
    pub(crate) id: String,
    /// The figure; null when the row failed.
    pub(crate) value: Option<f64>,
    /// Unit of `value`, `floor`, the percentiles and `target`.
    pub(crate) unit: Unit,
    /// The least that the machine needs for this, measured in the same run.
    pub(crate) floor: Option<f64>,
    /// `value / floor`.
    pub(crate) ratio: Option<f64>,
    /// `value - floor`; of times.
    pub(crate) overhead: Option<f64>,
    /// Median, tail, and number of samples.
    #[serde(flatten)]
    pub(crate) samples: Distribution,
    /// The limit that `value` should keep.
    pub(crate) target: Option<f64>,
    /// True if it does, and its tail where that has a limit too.
    pub(crate) met: Option<bool>,
    /// Round trip of a cache line between the cores before and after the row, ns; two-process rows.
    pub(crate) line_ns: Option<[f64; 2]>,
    /// The figures of others for the same in the same run, by name.
    pub(crate) others: BTreeMap<String, f64>,
    /// The thing that this machine lacks for the row, which then has no figure and did not fail.
    pub(crate) lacks: Option<String>,
    /// Why there is no figure.
    pub(crate) error: Option<String>,
}

impl Row {
    /// The row of a measurement that came to an end.
    pub(crate) fn measured(
        id: &str,
        unit: Unit,
        target: Target,
        figure: Figure,
        line_ns: Option<[f64; 2]>,
    ) -> Self {
        let Figure { value, floor, samples, others, lacks } = figure;
        let floor = floor.filter(|floor| *floor > 0.0);
        let limit = target.limit(floor, &others);
        let beyond = value.zip(floor).map(|(value, floor)| value - floor);
        let more = matches!(unit, Unit::PerSecond | Unit::BytesPerSecond);
        let keeps = |value, limit| if more { value >= limit } else { value <= limit };
        let tail_kept = match target {
            Target::LimitWithTail(_, tail) => samples.p999.is_some_and(|p999| keeps(p999, tail)),
            _ => true,
        };
        Self {
            id: id.to_owned(),
            value,
            unit,
            floor,
            ratio: value.zip(floor).map(|(value, floor)| value / floor),
            overhead: beyond.filter(|_| unit == Unit::Nanoseconds),
            samples,
            target: limit,
            met: value.zip(limit).map(|(value, limit)| keeps(value, limit) && tail_kept),
            line_ns,
            others,
            lacks,
            error: None,
        }
    }

    /// The row of a measurement that failed.
    pub(crate) fn failed(id: &str, unit: Unit, target: Target, error: impl ToString) -> Self {
        let row = Self::measured(id, unit, target, Figure::default(), None);
        Self { error: Some(error.to_string()), ..row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, floor: f64, p999: f64) -> Figure {
        let samples = Distribution { p50: Some(value), p99: None, p999: Some(p999), n: 3 };
        Figure::median(samples, Some(floor))
    }

    #[test]
    fn less_is_better_for_times_and_more_for_rates() {
        let met =
            |unit, target| Row::measured("x", unit, target, figure(10.0, 5.0, 20.0), None).met;
        assert_eq!(met(Unit::Nanoseconds, Target::Limit(10.0)), Some(true));
        assert_eq!(met(Unit::Nanoseconds, Target::Limit(9.0)), Some(false));
        assert_eq!(met(Unit::PerSecond, Target::Limit(11.0)), Some(false));
        assert_eq!(met(Unit::BytesPerSecond, Target::TimesFloor(0.8)), Some(true));
        assert_eq!(met(Unit::Nanoseconds, Target::TimesFloor(1.5)), Some(false));
        assert_eq!(met(Unit::Nanoseconds, Target::MoreThanFloor(5.0)), Some(true));
        assert_eq!(met(Unit::Nanoseconds, Target::MoreThanFloor(4.9)), Some(false));
        assert_eq!(met(Unit::Nanoseconds, Target::LimitWithTail(10.0, 20.0)), Some(true));
        assert_eq!(met(Unit::Nanoseconds, Target::LimitWithTail(10.0, 19.0)), Some(false));
        assert_eq!(met(Unit::Nanoseconds, Target::None), None);
    }

    #[test]
    fn something_else_of_the_same_run_can_be_the_target() {
        let met = |other| {
            let figure = figure(10.0, 5.0, 20.0).beside("rival", other);
            Row::measured("x", Unit::Nanoseconds, Target::TimesOther(2.0, "rival"), figure, None)
                .met
        };
        assert_eq!(met(Some(5.0)), Some(true));
        assert_eq!(met(Some(4.9)), Some(false));
        assert_eq!(met(None), None);
    }

    #[test]
    fn the_ratio_is_value_over_floor_and_absent_without_a_floor() {
        let row = Row::measured("x", Unit::Nanoseconds, Target::None, figure(10.0, 5.0, 1.0), None);
        assert_eq!(row.ratio, Some(2.0));
        assert_eq!(row.overhead, Some(5.0));
        let rate = Row::measured("x", Unit::PerSecond, Target::None, figure(10.0, 5.0, 1.0), None);
        assert_eq!(rate.overhead, None, "no difference of rates");
        let row = Row::measured("x", Unit::Bytes, Target::None, Figure::single(3.0, None), None);
        assert_eq!((row.ratio, row.value, row.samples.n), (None, Some(3.0), 1));
        let row = Row::measured("x", Unit::Percent, Target::None, figure(1.0, 0.0, 1.0), None);
        assert_eq!(row.ratio, None, "no division by zero");
    }

    #[test]
    fn a_row_that_lacks_something_says_so_and_has_not_failed() {
        let figure = Figure::lacking("no library".into());
        let row = Row::measured("x", Unit::Nanoseconds, Target::TimesFloor(1.0), figure, None);
        assert_eq!((row.lacks.as_deref(), row.error, row.met), (Some("no library"), None, None));
    }

    #[test]
    fn the_json_has_every_key_and_the_units_of_the_documents() {
        let row = Row::failed("rpc.x", Unit::PerSecond, Target::Limit(4e6), "late");
        let json = serde_json::to_value(&row).unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        for key in ["id", "value", "unit", "floor", "ratio", "p50", "p99", "p999", "n", "target"] {
            assert!(keys.contains(&key), "{key} missing in {keys:?}");
        }
        assert_eq!(json["unit"], "1/s");
        assert_eq!(json["value"], serde_json::Value::Null);
        assert_eq!(json["target"], 4e6);
        assert_eq!(json["error"], "late");
        let units = [Unit::Nanoseconds, Unit::BytesPerSecond, Unit::Bytes, Unit::Percent];
        let units: Vec<_> = units.iter().map(|u| serde_json::to_value(u).unwrap()).collect();
        assert_eq!(units, ["ns", "bytes/s", "bytes", "%"]);
    }
}
