//! The report for people: a header and one table.

use crate::base::{Row, Unit};

const TITLES: [&str; 12] = [
    "id", "value", "floor", "ratio", "over", "p50", "p99", "p99.9", "n", "target", "met?",
    "line ns",
];

/// The titles and a line under them. `width` as [`id_width`] says.
pub(crate) fn head(width: usize) -> String {
    let titles = line(width, TITLES.map(String::from));
    let rule = "-".repeat(titles.len());
    format!("{titles}\n{rule}")
}

/// One row, to be printed as soon as it is there.
pub(crate) fn row(width: usize, row: &Row) -> String {
    if let Some(error) = &row.error {
        return format!("{:width$}  failed: {error}", row.id);
    }
    if let Some(lacks) = &row.lacks {
        return format!("{:width$}  not on this machine: {lacks}", row.id);
    }
    let figure = |value: Option<f64>| value.map_or_else(dash, |value| amount(value, row.unit));
    let cells = [
        row.id.clone(),
        figure(row.value),
        figure(row.floor),
        row.ratio.map_or_else(dash, |ratio| format!("{ratio:.2}")),
        figure(row.overhead),
        figure(row.samples.p50),
        figure(row.samples.p99),
        figure(row.samples.p999),
        row.samples.n.to_string(),
        figure(row.target),
        row.met.map_or_else(dash, |met| if met { "yes" } else { "NO" }.into()),
        row.line_ns.map_or_else(dash, |[before, after]| format!("{before:.0}/{after:.0}")),
    ];
    let mut text = line(width, cells);
    if !row.others.is_empty() {
        let other = |(name, value): (&String, &f64)| format!("{name} {}", amount(*value, row.unit));
        let others: Vec<String> = row.others.iter().map(other).collect();
        text.push_str(&format!("\n{:width$}  beside: {}", "", others.join(", ")));
    }
    text
}

/// Width of the first column for these ids.
pub(crate) fn id_width<'a>(ids: impl Iterator<Item = &'a str>) -> usize {
    ids.map(str::len).max().unwrap_or(0).max(TITLES[0].len())
}

fn line(width: usize, cells: [String; TITLES.len()]) -> String {
    let mut text = format!("{:width$}", cells[0]);
    for (index, cell) in cells.iter().enumerate().skip(1) {
        let width = match TITLES[index] {
            "ratio" | "met?" => 7,
            "n" | "line ns" => 9,
            _ => 11,
        };
        text.push_str(&format!(" {cell:>width$}"));
    }
    text
}

fn dash() -> String {
    "-".into()
}

/// A value with a prefix that leaves three or four digits.
fn amount(value: f64, unit: Unit) -> String {
    let steps: &[(f64, &str)] = match unit {
        Unit::Nanoseconds => &[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")],
        Unit::PerSecond => &[(1e9, "G/s"), (1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")],
        Unit::BytesPerSecond => &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")],
        Unit::Bytes => &[(1024.0 * 1024.0, "MiB"), (1024.0, "KiB"), (1.0, "B")],
        Unit::Percent => &[(1.0, "%")],
    };
    let smallest = steps[steps.len() - 1];
    let (scale, name) = *steps.iter().find(|(scale, _)| value >= *scale).unwrap_or(&smallest);
    let value = value / scale;
    let digits = match value {
        value if value >= 1000.0 => 0,
        value if value >= 100.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Distribution, Figure, Target};

    #[test]
    fn amounts_keep_three_digits() {
        let cases = [
            (2.5, Unit::Nanoseconds, "2.50 ns"),
            (999.0, Unit::Nanoseconds, "999.0 ns"),
            (7_812.0, Unit::Nanoseconds, "7.81 us"),
            (3.3e6, Unit::Nanoseconds, "3.30 ms"),
            (4.02e6, Unit::PerSecond, "4.02 M/s"),
            (51.3e9, Unit::BytesPerSecond, "51.30 GB/s"),
            (8704.0, Unit::Bytes, "8.50 KiB"),
            (0.0, Unit::Percent, "0.00 %"),
        ];
        for (value, unit, text) in cases {
            assert_eq!(amount(value, unit), text);
        }
    }

    #[test]
    fn cells_stand_under_their_titles() {
        let samples =
            Distribution { p50: Some(12.0), p99: Some(15.0), p999: Some(90.0), n: 20_000 };
        let figure = Figure::median(samples, Some(6.0));
        let target = Target::Limit(10.0);
        let got =
            Row::measured("ult.yield", Unit::Nanoseconds, target, figure, Some([110.0, 498.0]));
        let width = id_width(["ult.create_join", "ult.yield"].into_iter());
        let head = head(width);
        let titles = head.lines().next().unwrap();
        let text = row(width, &got);
        assert_eq!(text.len(), titles.len());
        for (title, cell) in
            [("value", "12.00 ns"), ("ratio", "2.00"), ("over", "6.00 ns"), ("met?", "NO")]
        {
            let end = titles.find(title).unwrap() + title.len();
            assert!(text[..end].ends_with(cell), "{cell} under {title}:\n{titles}\n{text}");
        }
        assert!(text.ends_with("110/498"), "{text}");
    }

    #[test]
    fn others_stand_below_their_row() {
        let figure = Figure::single(10.0, None).beside("rival", Some(12.0));
        let got = Row::measured("ult.fib.1", Unit::Nanoseconds, Target::None, figure, None);
        let text = row(9, &got);
        assert_eq!(text.lines().nth(1), Some("           beside: rival 12.00 ns"));
    }

    #[test]
    fn a_row_that_lacks_something_says_what() {
        let figure = Figure::lacking("no library".into());
        let got = Row::measured("fabric.x", Unit::Nanoseconds, Target::None, figure, None);
        assert_eq!(row(8, &got), "fabric.x  not on this machine: no library");
    }

    #[test]
    fn a_failed_row_says_why() {
        let got = Row::failed("na.sm.rtt", Unit::Nanoseconds, Target::None, "no answer");
        assert_eq!(row(10, &got), "na.sm.rtt   failed: no answer");
    }
}
