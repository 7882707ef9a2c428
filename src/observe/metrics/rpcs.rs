//! RPCs, from the statistics: peers and call paths summed up, times in buckets that are the same
//! for all.

use std::collections::BTreeMap;

use super::{PhaseMetrics, RpcEnd, RpcMetrics};
use crate::observe::monitor::{
    Figures, Monitoring, OriginFigures, RpcName, Statistics, TargetFigures,
};

/// Upper ends of the buckets, nanoseconds.
const BUCKETS: [u64; 20] = [
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// The phases that are told; the statistics have more.
fn of_call(figures: &OriginFigures) -> [(&'static str, &Figures); 3] {
    [("network", &figures.network), ("total", &figures.total), ("wake", &figures.wake)]
}

fn of_request(figures: &TargetFigures) -> [(&'static str, &Figures); 5] {
    [
        ("bulk", &figures.bulk),
        ("queue", &figures.queue),
        ("respond", &figures.respond),
        ("run", &figures.run),
        ("total", &figures.total),
    ]
}

/// Returns the metrics of RPCs that the statistics have; none if the statistics never were on.
pub(crate) fn rpcs(monitoring: &Monitoring) -> Vec<RpcMetrics> {
    sum_up(&monitoring.read(String::new(), false))
}

#[derive(Default)]
struct Sum {
    begun: u64,
    in_flight: u64,
    outcomes: BTreeMap<String, u64>,
    phases: BTreeMap<&'static str, Figures>,
}

impl Sum {
    fn add<O: Copy>(
        &mut self,
        (begun, in_flight): (u64, u64),
        outcomes: &BTreeMap<O, u64>,
        name: fn(O) -> &'static str,
        phases: &[(&'static str, &Figures)],
    ) {
        self.begun += begun;
        self.in_flight += in_flight;
        for (outcome, count) in outcomes {
            *self.outcomes.entry(name(*outcome).to_owned()).or_default() += count;
        }
        for (phase, figures) in phases.iter().filter(|(_, figures)| figures.count > 0) {
            self.phases.entry(phase).or_default().merge(figures);
        }
    }

    fn told(self, end: RpcEnd, name: String, provider: u16) -> RpcMetrics {
        let Self { begun, in_flight, outcomes, phases } = self;
        let phases = phases.into_iter().map(|(phase, all)| (phase.to_owned(), told(&all)));
        RpcMetrics { end, name, provider, begun, in_flight, outcomes, phases: phases.collect() }
    }
}

fn sum_up(statistics: &Statistics) -> Vec<RpcMetrics> {
    let mut sums = BTreeMap::<(RpcEnd, String, u16), Sum>::new();
    let key = |end, rpc: &RpcName| {
        let name = match rpc.name.is_empty() {
            true => format!("{:#x}", rpc.rpc_id),
            false => rpc.name.clone(),
        };
        (end, name, rpc.provider)
    };
    for row in &statistics.target {
        let sum = sums.entry(key(RpcEnd::Target, &row.rpc)).or_default();
        let counts = (row.requests, row.in_hand);
        sum.add(counts, &row.outcomes, |outcome| outcome.name(), &of_request(&row.figures));
    }
    for row in &statistics.origin {
        let sum = sums.entry(key(RpcEnd::Origin, &row.rpc)).or_default();
        let counts = (row.calls, row.in_flight);
        sum.add(counts, &row.outcomes, |outcome| outcome.name(), &of_call(&row.figures));
    }
    sums.into_iter().map(|((end, name, provider), sum)| sum.told(end, name, provider)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of months fit")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn told(figures: &Figures) -> PhaseMetrics {
    let mut buckets = BUCKETS.map(|upper| (seconds(upper), 0));
    for (largest, count) in &figures.buckets {
        // Cumulative, as Prometheus has them.
        let first = BUCKETS.partition_point(|upper| upper < largest);
        buckets[first..].iter_mut().for_each(|(_, sum)| *sum += count);
    }
    PhaseMetrics {
        count: figures.count,
        sum_sec: figures.sum() / 1e9,
        p50_sec: seconds(figures.p50),
        p99_sec: seconds(figures.p99),
        max_sec: seconds(figures.max),
        buckets: buckets.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_hold_what_is_not_longer() {
        let buckets = vec![(400, 1), (500, 1), (501, 1), (3_000_000, 2), (u64::MAX, 1)];
        let figures = Figures { count: 6, mean: 1e9, buckets, ..Figures::default() };
        let told = told(&figures);
        let up_to = |sec: f64| told.buckets.iter().find(|(upper, _)| *upper == sec).unwrap().1;
        assert_eq!([5e-7, 1e-6, 2.5e-3, 5e-3, 10.0].map(up_to), [2, 3, 3, 5, 5]);
        assert!(told.buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        assert_eq!((told.count, told.sum_sec), (6, 6.0));
    }
}
