//! The output of the demo.

use std::time::Duration;

use super::files::Files;
use super::session::Outcome;
use crate::support::output::{bytes, count, thousands};

/// Says what is about to be done.
pub(super) fn headline(files: &Files) -> String {
    let skipped = match files.skipped {
        0 => String::new(),
        skipped => format!(" ({} skipped)", thousands(skipped)),
    };
    let (number, size) = (count(files.list.len() as u64, "file"), bytes(files.bytes()));
    format!("storing {number}, {size}{skipped}, in a second process, and reading them back")
}

/// How it went over one transport.
pub(super) fn lines(transport: &str, outcome: &Outcome) -> Vec<String> {
    let size = outcome.bytes;
    let (p50, p99) = (percentile(&outcome.calls, 50), percentile(&outcome.calls, 99));
    let mut lines = vec![
        format!(
            "{transport:<8}{}, {}: stored and read back, all checksums equal",
            count(outcome.files, "file"),
            bytes(size)
        ),
        row("write", rate(size, outcome.storing)),
        row("read", rate(size, outcome.reading)),
        row(
            "keys",
            format!(
                "{} put durably in {}, get p50 {}, p99 {}",
                thousands(outcome.gets.len() as u64),
                millis(outcome.putting),
                micros(percentile(&outcome.gets, 50)),
                micros(percentile(&outcome.gets, 99)),
            ),
        ),
        row(
            "RPC",
            format!(
                "p50 {}, p99 {} ({})",
                micros(p50),
                micros(p99),
                count(outcome.calls.len() as u64, "echo call")
            ),
        ),
    ];
    for pool in &outcome.pools {
        let text = format!(
            "pool {} ran {}, {}",
            pool.name,
            count(pool.created, "ULT"),
            count(pool.executed, "switch-in")
        );
        lines.push(row("target", text));
    }
    lines
}

fn row(what: &str, text: String) -> String {
    format!("        {what:<8}{text}")
}

/// The smallest value that at least `percent` of 100 are not above. `sorted` is sorted.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn micros(time: Duration) -> String {
    format!("{:.1} us", time.as_secs_f64() * 1e6)
}

/// Bytes in that time, per second.
fn rate(bytes: u64, time: Duration) -> String {
    if bytes == 0 || time.is_zero() {
        return "nothing to move".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let mib = bytes as f64 / f64::from(1 << 20);
    format!("{:.1} MiB/s", mib / time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::pool_stats::PoolRow;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let times: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!(percentile(&times, 50), Duration::from_micros(100));
        assert_eq!(percentile(&times, 99), Duration::from_micros(198));
        assert_eq!(percentile(&times, 100), Duration::from_micros(200));
        assert_eq!(percentile(&times[..1], 50), Duration::from_micros(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn says_everything() {
        let outcome = Outcome {
            files: 14,
            bytes: 3 << 20,
            storing: Duration::from_millis(1500),
            reading: Duration::from_millis(750),
            putting: Duration::from_micros(4200),
            gets: vec![Duration::from_nanos(2500); 14],
            calls: vec![Duration::from_nanos(1250); 2000],
            pools: vec![PoolRow {
                name: "__primary__".to_owned(),
                created: 2345,
                finished: 2344,
                executed: 12345,
            }],
        };
        let expected = "\
na+sm   14 files, 3.0 MiB: stored and read back, all checksums equal
        write   2.0 MiB/s
        read    4.0 MiB/s
        keys    14 put durably in 4.2 ms, get p50 2.5 us, p99 2.5 us
        RPC     p50 1.2 us, p99 1.2 us (2,000 echo calls)
        target  pool __primary__ ran 2,345 ULTs, 12,345 switch-ins";
        assert_eq!(lines("na+sm", &outcome).join("\n"), expected);
    }

    #[test]
    fn empty_files_have_no_rate() {
        assert_eq!(rate(0, Duration::from_secs(1)), "nothing to move");
        assert_eq!(rate(1, Duration::ZERO), "nothing to move");
    }
}
