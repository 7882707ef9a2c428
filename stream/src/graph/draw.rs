//! Drawings of plans.

use margo::config::drawing::{BOX_HEIGHT, Drawing};

use super::plan::{Plan, PlannedEdge};
use super::resolve::Cut;

/// Size of a box, and of a box with its distance to the next.
const BOX: (usize, usize) = (200, BOX_HEIGHT);
const STEP: (usize, usize) = (300, BOX_HEIGHT + 20);
/// Room around the boxes.
const MARGIN: usize = 20;

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
        let mut drawing = Drawing::new("Stages and the edges between them", (width, height));
        let edges = self.edges.iter().enumerate().filter(|(_, edge)| !edge.is_feedback);
        for (number, edge) in edges {
            let is_cut = |cut: &Cut| {
                cut.groups.iter().any(|group| group.sends.iter().any(|to| to.edge == number))
            };
            let ends = [places[edge.from], places[edge.to]];
            line(&mut drawing, ends, edge, cut.is_some_and(is_cut));
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
            let more = cut.map_or_else(String::new, runs);
            drawing.boxed(false, place, BOX.0, [&*name, &*more]);
        }
        drawing.finish()
    }
}

/// A line from the right of a box to the left of another one, or to one below it.
fn line(drawing: &mut Drawing, places: [(usize, usize); 2], edge: &PlannedEdge, is_cut: bool) {
    let [(x1, y1), (x2, y2)] = places;
    let ((x1, y1), (x2, y2)) = if x1 == x2 {
        ((x1 + BOX.0 / 2, y1 + BOX.1), (x2 + BOX.0 / 2, y2))
    } else {
        ((x1 + BOX.0, y1 + BOX.1 / 2), (x2, y2 + BOX.1 / 2))
    };
    drawing.line(if is_cut { "cut" } else { "" }, [(x1, y1), (x2, y2)], edge.item);
    let place = (usize::midpoint(x1, x2) - 40, usize::midpoint(y1, y2) - 4);
    drawing.text("more", place, &edge.spread.to_string());
}
