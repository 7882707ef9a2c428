//! The part of the lines that fits on a screen.

use crate::support::output;

/// Columns and rows.
pub(super) type Size = (usize, usize);

/// The part that a screen shows of lines that may be more, and longer, than fit on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// Lines above it.
    above: usize,
    /// Characters left of it.
    left: usize,
}

/// Where a window goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scroll {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
}

/// The last row, where all lines fit.
const HELP: &str = "(q ends; left and right show the rest of long lines)";

/// Columns by which a window goes to the side.
const ASIDE: usize = 8;

impl Window {
    /// Moves it on a screen with so many rows; how far there are lines is seen to by
    /// [`page`](Self::page).
    pub(super) fn scroll(&mut self, to: Scroll, rows: usize) {
        // One line stays to be recognised; one is the last, which tells of the rest.
        let page = rows.saturating_sub(2).max(1);
        match to {
            Scroll::Up => self.above = self.above.saturating_sub(1),
            Scroll::Down => self.above = self.above.saturating_add(1),
            Scroll::PageUp => self.above = self.above.saturating_sub(page),
            Scroll::PageDown => self.above = self.above.saturating_add(page),
            Scroll::Home => *self = Self::default(),
            Scroll::End => self.above = usize::MAX,
            Scroll::Left => self.left = self.left.saturating_sub(ASIDE),
            Scroll::Right => self.left = self.left.saturating_add(ASIDE),
        }
    }

    /// Returns the lines in it: no more rows and columns than the screen has. What does not fit is
    /// told: more lines in the last row, and the rest of a line by a sign at its end.
    pub(super) fn page(&mut self, lines: &[String], (columns, rows): Size) -> Vec<String> {
        let rows = rows.max(1);
        let shown = if lines.len() > rows { rows - 1 } else { rows };
        self.above = self.above.min(lines.len().saturating_sub(shown));
        let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        self.left = self.left.min(widest.saturating_sub(columns));
        let below = lines.len().saturating_sub(self.above + shown);
        let mut page: Vec<String> = lines.iter().skip(self.above).take(shown).cloned().collect();
        if lines.len() > rows {
            // In the sight of who has scrolled to the side, too.
            page.push(" ".repeat(self.left) + &self.rest(below));
        }
        // Below all that there is, if a row is free.
        if page.len() < rows {
            page.push(" ".repeat(self.left) + HELP);
        }
        page.iter().map(|line| self.cut(line, columns)).collect()
    }

    fn rest(&self, below: usize) -> String {
        let above = match self.above {
            0 => String::new(),
            above => format!(", {} above", output::thousands(above as u64)),
        };
        let below = output::count(below as u64, "more line");
        format!("… {below}{above}   (arrows, PgUp, PgDn, Home, End; q ends)")
    }

    fn cut(&self, line: &str, columns: usize) -> String {
        let mut rest = line.chars().skip(self.left);
        let mut cut: String = rest.by_ref().take(columns).collect();
        if rest.next().is_some() && cut.pop().is_some() {
            cut.push('…');
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_goes_over_all_lines_and_not_beyond() {
        let all: Vec<String> = (0..50).map(|n| format!("{n:02}{}", "x".repeat(30))).collect();
        let (mut window, size) = (Window::default(), (20, 11));
        let mut go = |to: &[Scroll]| {
            to.iter().for_each(|to| window.scroll(*to, size.1));
            window.page(&all, size)
        };
        for (to, first, last) in [
            (&[][..], "00", "… 40 more lines   (…"),
            (&[Scroll::Up], "00", "… 40 more lines   (…"),
            (&[Scroll::Down, Scroll::Down], "02", "… 38 more lines, 2 …"),
            (&[Scroll::PageDown], "11", "… 29 more lines, 11…"),
            (&[Scroll::PageUp, Scroll::PageUp], "00", "… 40 more lines   (…"),
            (&[Scroll::End, Scroll::Down, Scroll::PageDown], "40", "… 0 more lines, 40 …"),
            (&[Scroll::Up], "39", "… 1 more line, 39 ab…"),
            (&[Scroll::Home], "00", "… 40 more lines   (…"),
        ] {
            let page = go(to);
            assert_eq!(page.len(), 11);
            assert!(page[0].starts_with(first), "{to:?}: {page:#?}");
            assert_eq!(page[10].chars().take(19).collect::<String>() + "…", cut_to(last, 20));
        }
        assert!(go(&[])[0].ends_with("x…"));
        let aside = go(&[Scroll::Right, Scroll::Right, Scroll::Right]);
        assert_eq!((aside[0].as_str(), aside[10].chars().count()), ("x".repeat(20).as_str(), 20));
        assert!(aside[10].starts_with("… 40 more"), "{aside:#?}");
        assert!(go(&[Scroll::Left, Scroll::Left, Scroll::Left])[0].starts_with("00"));
    }

    fn cut_to(text: &str, chars: usize) -> String {
        text.chars().take(chars - 1).collect::<String>() + "…"
    }
}
