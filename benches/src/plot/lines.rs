//! Lines: a figure over the number of cores.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Error, Write};

use super::picture::{begin, class};
use crate::scale::Line;

/// Width and height of the picture, and of the part with lines.
const SIZE: [f64; 2] = [720.0, 400.0];
const INNER: [f64; 2] = [480.0, 300.0];
/// The upper left corner of that part.
const CORNER: [f64; 2] = [70.0, 45.0];

/// Returns a picture, with its name, for each topic that was measured with several numbers of
/// cores.
pub(super) fn draw(lines: &[Line]) -> Result<Vec<(String, String)>, Error> {
    let mut topics = BTreeMap::<String, Vec<&Line>>::new();
    for line in lines.iter().filter(|line| line.number("value").is_some()) {
        topics.entry(line.topic()).or_default().push(line);
    }
    let mut pictures = Vec::new();
    for (topic, lines) in topics {
        let counts: BTreeSet<usize> = lines.iter().map(|line| line.cores).collect();
        if counts.len() > 1 {
            let picture = picture(&topic, &lines, &counts)?;
            pictures.push((topic, picture));
        }
    }
    Ok(pictures)
}

fn picture(topic: &str, lines: &[&Line], counts: &BTreeSet<usize>) -> Result<String, Error> {
    let (least, most) = (counts.first().copied().unwrap_or(1), counts.last().copied());
    let octaves = (most.unwrap_or(1) as f64 / least as f64).log2().max(1.0);
    let top = lines.iter().filter_map(|line| line.number("value")).fold(0.0, f64::max) * 1.05;
    let x = |count: usize| CORNER[0] + (count as f64 / least as f64).log2() / octaves * INNER[0];
    let y = |value: f64| CORNER[1] + INNER[1] * (1.0 - value / top);
    let (unit, scale) = match lines[0].text("unit") {
        "RPC/s" => ("million RPC/s", 1e6),
        unit => (unit, 1.0),
    };
    let mut svg = begin(SIZE, &format!("{topic}, {unit}"));
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let (left, right, y) = (CORNER[0], CORNER[0] + INNER[0], y(value));
        writeln!(
            svg,
            "<path class=\"grid\" d=\"M{left} {y:.1}H{right}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{:.2}</text>",
            left - 6.0,
            y + 4.0,
            value / scale
        )?;
    }
    let bottom = CORNER[1] + INNER[1] + 18.0;
    for count in counts {
        let x = x(*count);
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{bottom}\" text-anchor=\"middle\">{count}</text>")?;
    }
    let middle = CORNER[0] + INNER[0] / 2.0;
    writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">cores</text>",
        bottom + 18.0
    )?;
    let mut series = BTreeMap::<&str, BTreeMap<usize, f64>>::new();
    for line in lines {
        let points = series.entry(&line.by).or_default();
        points.insert(line.cores, line.number("value").unwrap_or_default());
    }
    for (at, (by, points)) in series.iter().enumerate() {
        let points: Vec<_> = points.iter().map(|(count, value)| [x(*count), y(*value)]).collect();
        let all: Vec<_> = points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        write!(
            svg,
            "<g class=\"{}\"><polyline points=\"{}\" fill=\"none\" stroke=\"currentColor\" \
             stroke-width=\"2\"/>",
            class(at),
            all.join(" ")
        )?;
        for [x, y] in points {
            write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"currentColor\"/>")?;
        }
        // The legend: a mark of the color, and a name that can be read on either ground.
        let (x, y) = (CORNER[0] + INNER[0] + 24.0, CORNER[1] + 20.0 * at as f64);
        writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"currentColor\"/></g>\
             <text x=\"{}\" y=\"{y}\">{by}</text>",
            y - 10.0,
            x + 18.0
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}
