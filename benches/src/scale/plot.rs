//! Plots: a figure over the number of cores, as SVG.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use super::line::Line;
use crate::base::{Doing, Result};

/// Width and height of the picture, and of the part with lines.
const SIZE: [f64; 2] = [720.0, 400.0];
const INNER: [f64; 2] = [480.0, 320.0];
/// The upper left corner of that part.
const CORNER: [f64; 2] = [70.0, 40.0];
const COLORS: [&str; 8] =
    ["#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f"];

/// Writes a picture for each topic that was measured with several numbers of cores.
///
/// # Errors
///
/// When a file cannot be written.
pub(crate) fn write(lines: &[Line], directory: &Path) -> Result<()> {
    let mut topics = BTreeMap::<String, Vec<&Line>>::new();
    for line in lines.iter().filter(|line| line.number("value").is_some()) {
        topics.entry(line.topic()).or_default().push(line);
    }
    for (topic, lines) in topics {
        let counts: BTreeSet<usize> = lines.iter().map(|line| line.cores).collect();
        if counts.len() > 1 {
            let path = directory.join(format!("{topic}.svg"));
            let picture = picture(&topic, &lines, &counts).doing("drawing")?;
            std::fs::write(&path, picture).doing(&format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

fn picture(
    topic: &str,
    lines: &[&Line],
    counts: &BTreeSet<usize>,
) -> std::result::Result<String, std::fmt::Error> {
    let (least, most) = (counts.first().copied().unwrap_or(1), counts.last().copied());
    let octaves = (most.unwrap_or(1) as f64 / least as f64).log2().max(1.0);
    let top = lines.iter().filter_map(|line| line.number("value")).fold(0.0, f64::max) * 1.05;
    let x = |count: usize| CORNER[0] + (count as f64 / least as f64).log2() / octaves * INNER[0];
    let y = |value: f64| CORNER[1] + INNER[1] * (1.0 - value / top);
    let (unit, scale) = match lines[0].text("unit") {
        "RPC/s" => ("million RPC/s", 1e6),
        unit => (unit, 1.0),
    };
    let mut svg = String::new();
    let [width, height] = SIZE;
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"20\" font-size=\"14\">{topic}, {unit}</text>",
        CORNER[0]
    )?;
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let (left, right, y) = (CORNER[0], CORNER[0] + INNER[0], y(value));
        writeln!(
            svg,
            "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{:.3}</text>",
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
    let mut series = BTreeMap::<&str, BTreeMap<usize, f64>>::new();
    for line in lines {
        let points = series.entry(&line.by).or_default();
        points.insert(line.cores, line.number("value").unwrap_or_default());
    }
    for (at, (by, points)) in series.iter().enumerate() {
        let color = COLORS[at % COLORS.len()];
        let points: Vec<_> = points
            .iter()
            .map(|(count, value)| format!("{:.1},{:.1}", x(*count), y(*value)))
            .collect();
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            points.join(" ")
        )?;
        for point in &points {
            let (x, y) = point.split_once(',').unwrap_or_default();
            writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{color}\"/>")?;
        }
        let (x, y) = (CORNER[0] + INNER[0] + 20.0, CORNER[1] + 18.0 * at as f64);
        writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{color}\">{by}</text>")?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}
