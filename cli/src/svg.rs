//! A drawing of a layout: execution streams on the left, pools on the right, and a line from each
//! execution stream to each of its pools.
//!
//! Plain SVG without scripts and without anything from elsewhere; colours follow the reader's
//! choice of light or dark.

use std::fmt::Write as _;

use margo::{elasticity::Layout, elasticity::LayoutPool, elasticity::LayoutXstream};
use serde::Serialize;

use crate::support::output;

/// Height of a box, and of a box with its distance to the next.
const BOX: usize = 46;
const ROW: usize = 58;
/// Room above the boxes.
const TOP: usize = 40;
/// Width of a box.
const WIDTH: usize = 330;
/// Left side of the pools.
const POOLS_X: usize = 520;
/// Characters of a line that fit into a box.
const LINE_CHARS_MAX: usize = 46;

const STYLE: &str = "\
  text { font: 13px system-ui, sans-serif; fill: #1c2733 }
  .more { font-size: 11px; fill: #667788 }
  .paper { fill: #ffffff }
  rect.box { fill: #f2f5f8; stroke: #9aa8b5 }
  rect.progress { stroke: #2266cc; stroke-width: 2 }
  line { stroke: #8899aa }
  line.first { stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #dde6ee }
    .more { fill: #8899aa }
    .paper { fill: #12181f }
    rect.box { fill: #1b232c; stroke: #556575 }
    rect.progress { stroke: #66aaff }
  }
";

/// Draws a layout.
pub(crate) fn drawing(layout: &Layout) -> String {
    let rows = layout.pools.len().max(layout.xstreams.len()).max(1);
    let (width, height) = (POOLS_X + WIDTH + 20, TOP + rows * ROW + 10);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>Execution streams and the pools that they run</title>\n<style>\n{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n\
         <text x=\"20\" y=\"24\">execution streams</text>\n\
         <text x=\"{POOLS_X}\" y=\"24\">pools</text>\n"
    );
    for (row, xstream) in layout.xstreams.iter().enumerate() {
        for (order, name) in xstream.pools.iter().enumerate() {
            if let Some(to) = layout.pools.iter().position(|pool| pool.name == *name) {
                line(&mut svg, row, to, order, xstream.pools.len());
            }
        }
    }
    for (row, xstream) in layout.xstreams.iter().enumerate() {
        boxed(&mut svg, 20, row, false, &[xstream.name.clone(), of_xstream(xstream)]);
    }
    for (row, pool) in layout.pools.iter().enumerate() {
        boxed(&mut svg, POOLS_X, row, pool.progress, &[pool.name.clone(), of_pool(pool)]);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A line to the pool that is the `order`-th of `count`; numbered if there are several.
fn line(svg: &mut String, from: usize, to: usize, order: usize, count: usize) {
    let (x1, x2) = (20 + WIDTH, POOLS_X);
    let middle = |row: usize| TOP + row * ROW + BOX / 2;
    let class = if order == 0 { " class=\"first\"" } else { "" };
    let (y1, y2) = (middle(from), middle(to));
    let _ = writeln!(svg, "<line{class} x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>");
    if count > 1 {
        // Near the end, where lines of one execution stream are apart.
        let (x, y) = (x2 - 16, (y1 + 9 * y2) / 10);
        let _ = writeln!(svg, "<text class=\"more\" x=\"{x}\" y=\"{y}\">{}</text>", order + 1);
    }
}

fn boxed(svg: &mut String, x: usize, row: usize, progress: bool, [name, more]: &[String; 2]) {
    let y = TOP + row * ROW;
    let class = if progress { "box progress" } else { "box" };
    let _ = writeln!(
        svg,
        "<g><title>{}: {}</title><rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" \
         height=\"{BOX}\" rx=\"6\"/>\n<text x=\"{}\" y=\"{}\">{}</text>\n\
         <text class=\"more\" x=\"{}\" y=\"{}\">{}</text></g>",
        escaped(name),
        escaped(more),
        x + 10,
        y + 18,
        escaped(&cut(name)),
        x + 10,
        y + 36,
        escaped(&cut(more)),
    );
}

fn of_xstream(xstream: &LayoutXstream) -> String {
    let cpus: Vec<_> = xstream.cpus.iter().map(ToString::to_string).collect();
    let cpus = match cpus.len() {
        0 => "any CPU".to_owned(),
        1 => format!("CPU {}", cpus[0]),
        _ => format!("CPUs {}", cpus.join(", ")),
    };
    let node = xstream.numa_node.map_or_else(String::new, |node| format!(", NUMA node {node}"));
    format!("{cpus}{node}, scheduler {}", word(&xstream.scheduler))
}

fn of_pool(pool: &LayoutPool) -> String {
    let mut parts = vec![word(&pool.kind)];
    for (is_so, what) in [(pool.progress, "progress"), (pool.handlers, "handlers")] {
        if is_so {
            parts.push(what.to_owned());
        }
    }
    parts.extend(pool.providers.iter().map(|provider| format!("provider {provider}")));
    if pool.xstreams.is_empty() {
        parts.push("run by nobody".to_owned());
    }
    parts.join(", ")
}

/// The word of the document for a value of one of its enums.
fn word(value: &impl Serialize) -> String {
    let word = serde_json::to_value(value).ok();
    word.as_ref().and_then(|word| word.as_str()).unwrap_or_default().to_owned()
}

fn cut(text: &str) -> String {
    if text.chars().count() <= LINE_CHARS_MAX {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(LINE_CHARS_MAX - 1).collect();
    cut.push('…');
    cut
}

/// Text for XML, without what steers a terminal.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in output::printable(text).chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use margo::config::Config;

    use super::*;

    fn drawn(document: &str) -> String {
        drawing(&Layout::of(&Config::from_json(document).unwrap()).unwrap())
    }

    #[test]
    fn names_are_text_and_never_markup() {
        let document = r#"{ "argobots": { "pools": [ { "name": "a" }, { "name": "b" } ] } }"#;
        let mut layout = Layout::of(&Config::from_json(document).unwrap()).unwrap();
        // No document may have such names; the drawing does not depend on that.
        layout.pools[0].name = "<script>&\"".to_owned();
        layout.pools[1].name = "n".repeat(200);
        let svg = drawing(&layout);
        assert!(svg.contains("&lt;script&gt;&amp;") && !svg.contains("<script"), "{svg}");
        assert!(svg.contains("n…</text>") && svg.contains("run by nobody"), "{svg}");
    }

    #[test]
    fn each_pool_of_an_xstream_has_a_line_with_its_turn() {
        let svg = drawn(
            r#"{ "argobots": { "pools": [ { "name": "a" }, { "name": "b" } ], "xstreams": [
                 { "name": "x", "scheduler": { "pools": ["a", "b"] } },
                 { "name": "y", "scheduler": { "pools": ["b"] } } ] } }"#,
        );
        let lines = svg.matches("<line").count();
        assert!(lines >= 3 && svg.contains(">1</text>") && svg.contains(">2</text>"), "{svg}");
        assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
        assert!(svg.contains("prefers-color-scheme: dark") && svg.ends_with("</svg>\n"));
    }
}
