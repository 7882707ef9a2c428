//! Drawings of boxes with two lines of text, and of lines between them.
//!
//! Plain SVG without scripts and without anything from elsewhere; colours follow the reader's
//! choice of light or dark. All text is escaped, and made safe to show.

use std::fmt::Write as _;

use super::text::printable;

const STYLE: &str = "\
  text { font: 13px system-ui, sans-serif; fill: #1c2733 }
  .more { font-size: 11px; fill: #667788 }
  .paper { fill: #ffffff }
  rect.box { fill: #f2f5f8; stroke: #9aa8b5 }
  rect.marked { stroke: #2266cc; stroke-width: 2 }
  line { stroke: #8899aa }
  line.first { stroke-width: 2 }
  line.cut { stroke: #2266cc; stroke-width: 2; stroke-dasharray: 6 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #dde6ee }
    .more { fill: #8899aa }
    .paper { fill: #12181f }
    rect.box { fill: #1b232c; stroke: #556575 }
    rect.marked, line.cut { stroke: #66aaff }
  }
";

/// Height of a box.
pub const BOX_HEIGHT: usize = 46;

/// A drawing, which grows.
#[derive(Debug)]
pub struct Drawing(String);

impl Drawing {
    /// An empty one of that width and height.
    #[must_use]
    pub fn new(title: &str, (width, height): (usize, usize)) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
             <title>{}</title>\n<style>\n{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n",
            escaped(title)
        ))
    }

    /// Adds a text. Classes: `more`, which is smaller.
    pub fn text(&mut self, class: &str, (x, y): (usize, usize), text: &str) {
        let text = escaped(text);
        self.line_of(format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>"));
    }

    /// Adds a line, with a title for the pointer. Classes: `first` and `cut`.
    pub fn line(&mut self, class: &str, [from, to]: [(usize, usize); 2], title: &str) {
        let (((x1, y1), (x2, y2)), title) = ((from, to), escaped(title));
        self.line_of(format_args!(
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\">\
             <title>{title}</title></line>"
        ));
    }

    /// Adds a box of that width with two lines of text, which are cut if they are too long.
    pub fn boxed(
        &mut self,
        is_marked: bool,
        (x, y): (usize, usize),
        width: usize,
        lines: [&str; 2],
    ) {
        let class = if is_marked { "box marked" } else { "box" };
        let title = lines.map(escaped).join(": ");
        self.line_of(format_args!(
            "<g><title>{title}</title><rect class=\"{class}\" x=\"{x}\" y=\"{y}\" \
             width=\"{width}\" height=\"{BOX_HEIGHT}\" rx=\"6\"/>"
        ));
        for (line, (class, below)) in lines.into_iter().zip([("", 18), ("more", 36)]) {
            self.text(class, (x + 10, y + below), &cut(line, width / 7));
        }
        self.line_of(format_args!("</g>"));
    }

    /// Returns the text of the drawing.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.line_of(format_args!("</svg>"));
        self.0
    }

    fn line_of(&mut self, line: std::fmt::Arguments<'_>) {
        // A string takes everything.
        let _ = writeln!(self.0, "{line}");
    }
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Text for XML, without what steers a terminal.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in printable(text).chars() {
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
    use super::*;

    #[test]
    fn names_are_text_and_never_markup() {
        let mut drawing = Drawing::new("<b>", (400, 100));
        drawing.boxed(false, (0, 0), 200, ["<script>&\"", "\u{1b}[2J"]);
        drawing.boxed(true, (200, 0), 140, [&"n".repeat(200), ""]);
        drawing.line("", [(0, 0), (200, 0)], "a<b");
        let svg = drawing.finish();
        assert!(svg.contains("&lt;script&gt;&amp;&quot;") && !svg.contains("<script"), "{svg}");
        assert!(svg.contains(&format!(">{}…</text>", "n".repeat(19))), "{svg}");
        assert!(svg.contains("a&lt;b") && !svg.contains('\u{1b}') && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
    }
}
