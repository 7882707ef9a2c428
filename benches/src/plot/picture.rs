//! A picture: its head, and colors that are right for light and dark pages.

use std::fmt::Write;

/// Colors of series on light and dark ground.
const COLORS: [[&str; 2]; 8] = [
    ["#1769aa", "#6cb6ff"],
    ["#c62828", "#ff8a80"],
    ["#2e7d32", "#7ee787"],
    ["#b45309", "#ffb86b"],
    ["#7e57c2", "#c9a6ff"],
    ["#6d4c41", "#d7b8a8"],
    ["#00838f", "#5ee0e6"],
    ["#616161", "#bdbdbd"],
];

/// Begins a picture of this size, with a title.
pub(super) fn begin([width, height]: [f64; 2], title: &str) -> String {
    let mut style = String::from(
        "svg{background:#fff}text{fill:#24292f}.grid{stroke:#d8dee4}.axis{stroke:#57606a}",
    );
    let mut dark = String::from(
        "svg{background:#0d1117}text{fill:#e6edf3}.grid{stroke:#30363d}.axis{stroke:#8b949e}",
    );
    for (at, [on_light, on_dark]) in COLORS.iter().enumerate() {
        let _ = write!(style, ".s{at}{{color:{on_light}}}");
        let _ = write!(dark, ".s{at}{{color:{on_dark}}}");
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"{title}\">\n\
         <style>{style}@media(prefers-color-scheme:dark){{{dark}}}</style>\n\
         <text x=\"20\" y=\"22\" font-size=\"15\">{title}</text>\n"
    )
}

/// The class of the series of that number.
pub(super) fn class(series: usize) -> String {
    format!("s{}", series % COLORS.len())
}
