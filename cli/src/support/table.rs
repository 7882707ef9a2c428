//! Tables of text.

/// Longest text of a cell, characters. What a service says may have any length, and what is
/// written with a width may not.
const CELL_CHARS_MAX: usize = 200;

/// Text of the service for one cell of one line.
pub(crate) fn cell(text: &str) -> String {
    let mut shown = margo::config::text::shown(text);
    let mut cell: String = shown.by_ref().take(CELL_CHARS_MAX).collect();
    if shown.next().is_some() {
        cell.pop();
        cell.push('…');
    }
    cell
}

/// Columns as wide as what is in them.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// Columns of words; the others are numbers.
    words: Vec<usize>,
}

impl Table {
    pub(crate) fn new<S: AsRef<str>>(head: &[S], words: &[usize]) -> Self {
        let mut table = Self { rows: Vec::new(), words: words.to_vec() };
        table.row(head.iter().map(AsRef::as_ref));
        table
    }

    /// A row of as many cells as the head.
    pub(crate) fn row<S: AsRef<str>>(&mut self, row: impl IntoIterator<Item = S>) {
        self.rows.push(row.into_iter().map(|text| cell(text.as_ref())).collect());
    }

    /// Returns the lines after an empty one, or nothing if there is only the head.
    pub(crate) fn finish(self) -> Vec<String> {
        if self.rows.len() == 1 {
            return Vec::new();
        }
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<_> =
            (0..self.rows[0].len()).map(|column| width(column).unwrap_or(0)).collect();
        let line = |row: &Vec<String>| {
            let cells =
                row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                    match self.words.contains(&column) {
                        true => format!("{cell:<width$}"),
                        false => format!("{cell:>width$}"),
                    }
                });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        std::iter::once(String::new()).chain(self.rows.iter().map(line)).collect()
    }
}
