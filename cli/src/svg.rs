//! A drawing of a layout: execution streams on the left, pools on the right, and a line from each
//! execution stream to each of its pools.

use margo::config::drawing::{BOX_HEIGHT, Drawing};
use margo::{elasticity::Layout, elasticity::LayoutPool, elasticity::LayoutXstream};
use serde::Serialize;

/// Height of a box with its distance to the next.
const ROW: usize = BOX_HEIGHT + 12;
/// Room above the boxes.
const TOP: usize = 40;
/// Width of a box.
const WIDTH: usize = 330;
/// Left side of the execution streams, and of the pools.
const XSTREAMS_X: usize = 20;
const POOLS_X: usize = 520;

/// Draws a layout.
pub(crate) fn drawing(layout: &Layout) -> String {
    let rows = layout.pools.len().max(layout.xstreams.len()).max(1);
    let size = (POOLS_X + WIDTH + 20, TOP + rows * ROW + 10);
    let mut drawing = Drawing::new("Execution streams and the pools that they run", size);
    drawing.text("", (XSTREAMS_X, 24), "execution streams");
    drawing.text("", (POOLS_X, 24), "pools");
    for (row, xstream) in layout.xstreams.iter().enumerate() {
        for (order, name) in xstream.pools.iter().enumerate() {
            if let Some(to) = layout.pools.iter().position(|pool| pool.name == *name) {
                line(&mut drawing, [row, to], order, xstream.pools.len());
            }
        }
    }
    let place = |x, row| (x, TOP + row * ROW);
    for (row, xstream) in layout.xstreams.iter().enumerate() {
        let lines = [&*xstream.name, &of_xstream(xstream)];
        drawing.boxed(false, place(XSTREAMS_X, row), WIDTH, lines);
    }
    for (row, pool) in layout.pools.iter().enumerate() {
        drawing.boxed(pool.progress, place(POOLS_X, row), WIDTH, [&*pool.name, &of_pool(pool)]);
    }
    drawing.finish()
}

/// A line to the pool that is the `order`-th of `count`; numbered if there are several.
fn line(drawing: &mut Drawing, rows: [usize; 2], order: usize, count: usize) {
    let [y1, y2] = rows.map(|row| TOP + row * ROW + BOX_HEIGHT / 2);
    let ends = [(XSTREAMS_X + WIDTH, y1), (POOLS_X, y2)];
    drawing.line(if order == 0 { "first" } else { "" }, ends, "");
    if count > 1 {
        // Near the end, where lines of one execution stream are apart.
        drawing.text("more", (POOLS_X - 16, (y1 + 9 * y2) / 10), &(order + 1).to_string());
    }
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

#[cfg(test)]
mod tests {
    use margo::config::Config;

    use super::*;

    fn drawn(document: &str) -> String {
        drawing(&Layout::of(&Config::from_json(document).unwrap()).unwrap())
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
