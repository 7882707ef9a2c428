//! Bars: how many times its floor each row of a report costs.

use std::fmt::{Error, Write};

use super::Bar;
use super::picture::{begin, class};

/// Width of the picture, of the column of names, and of the longest bar.
const WIDTH: f64 = 720.0;
const NAMES: f64 = 220.0;
const BARS: f64 = 420.0;
/// Height of a row, and where the first one begins.
const ROW: f64 = 18.0;
const TOP: f64 = 60.0;

/// Returns the picture of the rows that have a floor, with its name; none if there are no such
/// rows.
pub(super) fn draw(bars: &[Bar]) -> Result<Option<(String, String)>, Error> {
    let rows: Vec<_> = bars.iter().filter_map(|bar| Some((&*bar.id, cost(bar)?))).collect();
    if rows.is_empty() {
        return Ok(None);
    }
    // In octaves: a row that costs half of its floor is as far from 1 as one that costs twice.
    let octaves = rows.iter().map(|(_, cost)| cost.log2());
    let least = octaves.clone().fold(-1.0, f64::min).floor();
    let most = octaves.fold(1.0, f64::max).ceil();
    let x = |octave: f64| NAMES + (octave - least) / (most - least) * BARS;
    let bottom = TOP + ROW * rows.len() as f64;
    let title = "cost beside the floor of the same run (1: as fast as the machine itself)";
    let mut svg = begin([WIDTH, bottom + 16.0], title);
    let mut octave = least;
    while octave <= most {
        let (at, kind) = (x(octave), if octave == 0.0 { "axis" } else { "grid" });
        writeln!(
            svg,
            "<path class=\"{kind}\" d=\"M{at:.1} {}V{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            TOP - 6.0,
            TOP - 12.0,
            octave.exp2()
        )?;
        octave += 1.0;
    }
    for (at, (id, cost)) in rows.iter().enumerate() {
        let (y, end) = (TOP + ROW * at as f64, x(cost.log2()));
        let (left, right) = (end.min(x(0.0)), end.max(x(0.0)));
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{id}</text>\
             <rect class=\"{}\" x=\"{left:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\" \
             fill=\"currentColor\"/><text x=\"{:.1}\" y=\"{}\">{cost:.2}</text>",
            NAMES - 8.0,
            y + 10.0,
            class(usize::from(*cost > 1.0)),
            (right - left).max(1.0),
            ROW - 6.0,
            right + 5.0,
            y + 10.0
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(Some(("rows".into(), svg)))
}

/// How many times the floor's time or memory the row takes; of rates the inverse of their ratio.
fn cost(bar: &Bar) -> Option<f64> {
    let ratio = bar.ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0)?;
    Some(if bar.unit.ends_with("/s") { 1.0 / ratio } else { ratio })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cost_more_when_they_are_below_their_floor() {
        let bar = |unit: &str, ratio| Bar { id: "row".into(), unit: unit.into(), ratio };
        assert_eq!(cost(&bar("ns", Some(2.0))), Some(2.0));
        assert_eq!(cost(&bar("bytes/s", Some(0.5))), Some(2.0));
        assert_eq!(cost(&bar("ns", None)), None);
        assert_eq!(draw(&[bar("ns", None)]).unwrap(), None);
        let (_, picture) = draw(&[bar("1/s", Some(0.25))]).unwrap().unwrap();
        assert!(picture.contains(">row</text>") && picture.contains(">4.00</text>"), "{picture}");
    }
}
