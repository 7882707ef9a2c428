//! Figures of all groups as tables: the edges while they run, and groups and edges in the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use margo_stream::graph::GroupNews;

use super::group::GroupProcess;
use crate::support::output;

/// Edges that are shown, at most: as many as a program has, and not as many as it can say.
const EDGES_MAX: usize = 1000;

/// Counts of an edge: those of a group, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct EdgeRow {
    items: u64,
    bytes: u64,
    queued: usize,
    held: u64,
    credit: u64,
}

/// The figures that groups have told.
#[derive(Debug)]
pub(super) struct FigureTable {
    since: Instant,
    /// By edge, and by group; the order is that in which the edges were first heard of.
    edges: Vec<(String, BTreeMap<String, EdgeRow>)>,
    /// The time of the last look, and what there was.
    last: (Instant, Vec<EdgeRow>),
}

impl FigureTable {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { since: now, edges: Vec::new(), last: (now, Vec::new()) }
    }

    pub(super) fn take(&mut self, group: &str, news: GroupNews) {
        let GroupNews::Edge { edge, items, bytes, queued, held, credit } = news else { return };
        let at = match self.edges.iter().position(|(name, _)| *name == edge) {
            Some(at) => at,
            None if self.edges.len() >= EDGES_MAX => return,
            None => {
                self.edges.push((edge, BTreeMap::new()));
                self.edges.len() - 1
            }
        };
        let row = EdgeRow { items, bytes, queued, held, credit };
        self.edges[at].1.insert(group.to_owned(), row);
    }

    fn sums(&self) -> Vec<EdgeRow> {
        let sum = |rows: &BTreeMap<String, EdgeRow>| {
            rows.values().fold(EdgeRow::default(), |sum, row| EdgeRow {
                items: sum.items.saturating_add(row.items),
                bytes: sum.bytes.saturating_add(row.bytes),
                queued: sum.queued.saturating_add(row.queued),
                held: sum.held.saturating_add(row.held),
                credit: sum.credit.saturating_add(row.credit),
            })
        };
        self.edges.iter().map(|(_, rows)| sum(rows)).collect()
    }

    /// The edges, with rates since the last look.
    pub(super) fn look(&mut self) -> Vec<String> {
        let now = (Instant::now(), self.sums());
        let last = std::mem::replace(&mut self.last, now);
        let elapsed = self.last.0 - last.0;
        let rows = self.last.1.iter().enumerate().map(|(at, now)| {
            let before = last.1.get(at).copied().unwrap_or_default();
            let [items, mib] = rates(now, &before, elapsed);
            let credit = match now.credit {
                0 => "-".to_owned(),
                credit => format!("{} / {}", output::bytes(now.held), output::bytes(credit)),
            };
            [self.edges[at].0.clone(), items, mib, output::thousands(now.queued as u64), credit]
        });
        aligned(["edge", "items/s", "MiB/s", "queue", "credit in use"], rows)
    }

    /// All in the end: the groups, and the edges with rates since the start.
    pub(super) fn summary(&self, groups: &[GroupProcess]) -> Vec<String> {
        let ends = groups.iter().filter_map(|group| Some((&group.name, group.end.as_ref()?)));
        let mut lines = aligned(
            ["group", "seconds", "end"],
            ends.map(|(name, end)| {
                [name.clone(), format!("{:.2}", end.elapsed.as_secs_f64()), end.status.to_string()]
            }),
        );
        if !self.edges.is_empty() {
            let rows = self.sums().into_iter().enumerate().map(|(at, sum)| {
                let [items, mib] = rates(&sum, &EdgeRow::default(), self.since.elapsed());
                let counts = [output::thousands(sum.items), items, output::bytes(sum.bytes), mib];
                let [all, items, bytes, mib] = counts;
                [self.edges[at].0.clone(), all, items, bytes, mib]
            });
            lines.push(String::new());
            let heads = ["edge", "items", "items/s", "between groups", "MiB/s"];
            lines.extend(aligned(heads, rows));
        }
        lines
    }
}

/// Items and MiB in a second.
fn rates(now: &EdgeRow, before: &EdgeRow, elapsed: Duration) -> [String; 2] {
    let seconds = elapsed.as_secs_f64().max(1e-3);
    #[expect(clippy::cast_precision_loss, reason = "figures are shown")]
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
    let items = output::thousands(rate(now.items, before.items).round() as u64);
    let mib = rate(now.bytes, before.bytes) / f64::from(1 << 20);
    [items, if now.bytes == 0 { "-".to_owned() } else { format!("{mib:.1}") }]
}

/// Columns, the first to the left and the others to the right. Names come from other processes.
fn aligned<const N: usize>(
    heads: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Vec<String> {
    let mut all = vec![heads.map(str::to_owned)];
    all.extend(rows.map(|row| row.map(|cell| output::printable(&cell))));
    let widths: [usize; N] =
        std::array::from_fn(|at| all.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        line
    };
    all.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_groups_are_summed() {
        let mut table = FigureTable::new();
        for (group, items, bytes) in [("A", 1000, 0), ("A", 2000, 0), ("B", 500, 3 << 20)] {
            let edge = "read->\u{1b}count".to_owned();
            let (queued, held, credit) = (2, 1 << 20, bytes * 2);
            let news = GroupNews::Edge { edge, items, bytes, queued, held, credit };
            table.take(group, news);
        }
        let lines = table.look();
        assert_eq!(lines.len(), 2);
        assert!(lines[1].starts_with("read->\\u{1b}count"), "{lines:?}");
        assert!(lines[1].ends_with("    4  2.0 MiB / 6.0 MiB"), "{lines:?}");
        assert!(table.summary(&[])[2].ends_with("MiB/s"));
        assert!(table.summary(&[])[3].contains("  2,500  "));
        // Nothing has come since.
        assert!(table.look()[1].contains("  0    0.0  "), "{:?}", table.look());
    }

    #[test]
    fn edges_are_bounded() {
        let mut table = FigureTable::new();
        for number in 0..2 * EDGES_MAX {
            let (items, bytes, queued, held, credit) = Default::default();
            let edge = number.to_string();
            table.take("A", GroupNews::Edge { edge, items, bytes, queued, held, credit });
        }
        assert_eq!(table.look().len(), EDGES_MAX + 1);
    }
}
