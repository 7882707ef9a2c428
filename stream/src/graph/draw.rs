//! Drawings of plans: plain SVG without scripts, light or dark as the reader has chosen.

use std::fmt::Write as _;

use super::plan::{Plan, PlannedEdge};
use super::resolve::Cut;

/// Size of a box, and of a box with its distance to the next.
const BOX: (usize, usize) = (200, 46);
const STEP: (usize, usize) = (300, 66);
/// Room around the boxes.
const MARGIN: usize = 20;
/// Characters of a line that fit into a box.
const LINE_CHARS_MAX: usize = 28;

const STYLE: &str = "\
  text { font: 13px system-ui, sans-serif; fill: #1c2733 }
  .more { font-size: 11px; fill: #667788 }
  .paper { fill: #ffffff }
  rect.box { fill: #f2f5f8; stroke: #9aa8b5 }
  line { stroke: #8899aa }
  line.cut { stroke: #2266cc; stroke-width: 2; stroke-dasharray: 6 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #dde6ee }
    .more { fill: #8899aa }
    .paper { fill: #12181f }
    rect.box { fill: #1b232c; stroke: #556575 }
    line.cut { stroke: #66aaff }
  }
";

impl Plan {
    /// Draws the graph as SVG: a box for each stage, with the groups that run it if it is cut, and
    /// a line for each edge, which is dashed where it goes from one group to another.
    ///
    /// ```
    /// use margo_stream::graph::Graph;
    ///
    /// let graph = Graph::new();
    /// graph.source("read", [1u8]).farm("drop", 2).for_each(drop);
    /// let svg = graph.plan().svg(None);
    /// assert!(svg.starts_with("<svg") && svg.contains("drop"));
    /// ```
    pub fn svg(&self, cut: Option<&Cut>) -> String {
        let mut used = vec![0; self.stages.iter().map(|stage| stage.level + 1).max().unwrap_or(0)];
        let mut place = |level: usize| {
            used[level] += 1;
            (MARGIN + level * STEP.0, MARGIN + (used[level] - 1) * STEP.1)
        };
        // An all-to-all has two stages on one level, one above the other.
        let places: Vec<_> = self.stages.iter().map(|stage| place(stage.level)).collect();
        let width = places.iter().map(|(x, _)| x + BOX.0).max().unwrap_or(0) + MARGIN;
        let height = places.iter().map(|(_, y)| y + BOX.1).max().unwrap_or(0) + MARGIN;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
             <title>Stages and the edges between them</title>\n<style>\n{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n"
        );
        let edges = self.edges.iter().enumerate().filter(|(_, edge)| !edge.is_feedback);
        for (number, edge) in edges {
            let is_cut = |cut: &Cut| {
                cut.groups.iter().any(|group| group.sends.iter().any(|to| to.edge == number))
            };
            line(&mut svg, [places[edge.from], places[edge.to]], edge, cut.is_some_and(is_cut));
        }
        for (number, (stage, place)) in self.stages.iter().zip(places).enumerate() {
            let name = match stage.replicas {
                1 => stage.name.to_string(),
                count => format!("{} × {count}", stage.name),
            };
            let runs = |cut: &Cut| {
                let groups = cut.groups.iter();
                let groups = groups.filter(|group| group.replicas.contains_key(&number));
                let names: Vec<_> = groups.map(|group| group.name.as_str()).collect();
                format!("in {}", names.join(", "))
            };
            boxed(&mut svg, place, &name, &cut.map_or_else(String::new, runs));
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// A line from the right of a box to the left of another one, or to one below it.
fn line(svg: &mut String, places: [(usize, usize); 2], edge: &PlannedEdge, is_cut: bool) {
    let class = if is_cut { " class=\"cut\"" } else { "" };
    let [(x1, y1), (x2, y2)] = places;
    let ((x1, y1), (x2, y2)) = if x1 == x2 {
        ((x1 + BOX.0 / 2, y1 + BOX.1), (x2 + BOX.0 / 2, y2))
    } else {
        ((x1 + BOX.0, y1 + BOX.1 / 2), (x2, y2 + BOX.1 / 2))
    };
    let PlannedEdge { item, spread, .. } = edge;
    let (x, y) = (usize::midpoint(x1, x2) - 40, usize::midpoint(y1, y2) - 4);
    let title = escaped(item);
    let _ = writeln!(
        svg,
        "<g><title>{title}</title><line{class} x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>\n\
         <text class=\"more\" x=\"{x}\" y=\"{y}\">{spread}</text></g>",
    );
}

fn boxed(svg: &mut String, (x, y): (usize, usize), name: &str, more: &str) {
    let (width, height) = BOX;
    let _ = writeln!(
        svg,
        "<g><title>{} {}</title><rect class=\"box\" x=\"{x}\" y=\"{y}\" width=\"{width}\" \
         height=\"{height}\" rx=\"6\"/>\n<text x=\"{4}\" y=\"{5}\">{2}</text>\n\
         <text class=\"more\" x=\"{4}\" y=\"{6}\">{3}</text></g>",
        escaped(name),
        escaped(more),
        escaped(&shortened(name)),
        escaped(&shortened(more)),
        x + 10,
        y + 18,
        y + 36,
    );
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= LINE_CHARS_MAX {
        return text.to_owned();
    }
    text.chars().take(LINE_CHARS_MAX - 1).chain(['…']).collect()
}

/// Text for XML.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}
