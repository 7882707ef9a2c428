//! Tables of figures that a program, or a library on top of margo, publishes with those of an
//! instance.
//!
//! | state | touched by | under |
//! |---|---|---|
//! | `PublishedTables::sources` | who publishes and takes back, snapshots | its lock |
//! | `TableSource::last` | snapshots | its lock |
//!
//! The program's code runs under neither: it may publish, and take a snapshot itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, hash_map};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::PublishError;
use crate::support::contain::contain;
use crate::support::log::Log;

/// Rows of a table that a snapshot has.
const ROWS_MAX: usize = 1000;
/// Characters of a label.
const LABEL_CHARS_MAX: usize = 256;
/// Characters of the name of a table, a label or a column.
const NAME_CHARS_MAX: usize = 64;

/// The meaning of the values of a column.
///
/// ```
/// use margo::metrics::{ColumnKind, ColumnMetrics};
///
/// /// A head for a screen.
/// fn head(column: &ColumnMetrics) -> String {
///     match column.kind {
///         ColumnKind::Counter => format!("{}/s", column.name.trim_end_matches("_total")),
///         _ => column.name.clone(),
///     }
/// }
///
/// let column = serde_json::json!({ "name": "hits_total", "kind": "counter" });
/// assert_eq!(head(&serde_json::from_value(column)?), "hits/s");
/// // Of a peer that has a later version:
/// let kind: ColumnKind = serde_json::from_value("histogram".into())?;
/// assert_eq!(kind, ColumnKind::Unknown);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ColumnKind {
    /// Goes up and down.
    #[default]
    Gauge,
    /// Only grows: what is shown of it is how fast.
    Counter,
    /// A version that is not known here says something else.
    #[serde(other)]
    Unknown,
}

/// A column of a [`TableSpec`].
///
/// ```
/// use margo::metrics::Column;
///
/// const COLUMNS: [Column; 2] = [
///     Column::counter("hits_total", "Entries that were found."),
///     Column::gauge("used_bytes", "Bytes of the entries."),
/// ];
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    name: &'static str,
    kind: ColumnKind,
    help: &'static str,
}

impl Column {
    /// A count that only grows. The name ends in `_total`, and in `_bytes_total` for bytes.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: ColumnKind::Counter, help }
    }

    /// A value that goes up and down. The name ends in the unit, if it has one: `_bytes`,
    /// `_seconds`.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: ColumnKind::Gauge, help }
    }
}

/// The head of a table that a program publishes with the metrics of an instance
/// ([`InstanceMonitoring::publish`](crate::groups::InstanceMonitoring::publish)): what its `L`
/// labels and its `C` columns are.
///
/// ```
/// use margo::metrics::{Column, TableSpec};
///
/// const CACHES: TableSpec<1, 1> = TableSpec {
///     name: "cache",
///     labels: ["cache"],
///     columns: [Column::gauge("used_bytes", "Bytes of the entries.")],
/// };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableSpec<const L: usize, const C: usize> {
    /// The name. With the name of a column behind it, it is that of a family of Prometheus.
    pub name: &'static str,
    /// The names of the labels, which tell rows apart.
    pub labels: [&'static str; L],
    /// The columns.
    pub columns: [Column; C],
}

/// A column of a [`TableMetrics`].
///
/// ```
/// # use margo::Instance;
/// # use margo::metrics::{Column, TableSpec};
/// # const CACHES: TableSpec<1, 1> = TableSpec {
/// #     name: "cache",
/// #     labels: ["cache"],
/// #     columns: [Column::counter("hits_total", "Entries that were found.")],
/// # };
/// # let instance = Instance::builder("na+sm://").start()?;
/// # let rows = || vec![(["users".to_owned()], [7.0])];
/// # let published = instance.monitoring().publish(&CACHES, rows)?;
/// use margo::metrics::ColumnKind;
///
/// let metrics = instance.metrics();
/// let column = &metrics.tables[0].columns[0];
/// assert_eq!((&*column.name, column.kind), ("hits_total", ColumnKind::Counter));
/// println!("{}: {}", column.name, column.help);
/// # drop(published);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ColumnMetrics {
    /// The name.
    pub name: String,
    /// The way in which its values change.
    pub kind: ColumnKind,
    /// The meaning of its values, in words.
    pub help: String,
}

/// A row of a [`TableMetrics`].
///
/// ```
/// # use margo::Instance;
/// # use margo::metrics::{Column, TableSpec};
/// # const CACHES: TableSpec<1, 1> = TableSpec {
/// #     name: "cache",
/// #     labels: ["cache"],
/// #     columns: [Column::counter("hits_total", "Entries that were found.")],
/// # };
/// # let instance = Instance::builder("na+sm://").start()?;
/// # let rows = || vec![(["users".to_owned()], [7.0])];
/// # let published = instance.monitoring().publish(&CACHES, rows)?;
/// use margo::metrics::RowMetrics;
///
/// let metrics = instance.metrics();
/// for RowMetrics { labels, values, .. } in &metrics.tables[0].rows {
///     assert_eq!((&*labels[0], values[0]), ("users", 7.0));
/// }
/// # drop(published);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RowMetrics {
    /// One text for each label.
    pub labels: Vec<String>,
    /// One value for each column.
    pub values: Vec<f64>,
}

/// A table that a program has published: see
/// [`InstanceMonitoring::publish`](crate::groups::InstanceMonitoring::publish).
///
/// ```
/// # use margo::Instance;
/// # use margo::metrics::{Column, TableSpec};
/// # const CACHES: TableSpec<1, 1> = TableSpec {
/// #     name: "cache",
/// #     labels: ["cache"],
/// #     columns: [Column::counter("hits_total", "Entries that were found.")],
/// # };
/// # let instance = Instance::builder("na+sm://").start()?;
/// # let rows = || vec![(["users".to_owned()], [7.0])];
/// # let published = instance.monitoring().publish(&CACHES, rows)?;
/// let metrics = instance.metrics();
/// let table = metrics.tables.iter().find(|table| table.name == "cache").expect("it is published");
/// let hits = table.columns.iter().position(|column| column.name == "hits_total").expect("it is");
/// let all: f64 = table.rows.iter().map(|row| row.values[hits]).sum();
/// assert_eq!((all, table.rows_left_out), (7.0, 0));
/// # drop(published);
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TableMetrics {
    /// The name.
    pub name: String,
    /// The names of the labels.
    pub labels: Vec<String>,
    /// The columns.
    pub columns: Vec<ColumnMetrics>,
    /// The rows, 1000 at most.
    pub rows: Vec<RowMetrics>,
    /// Rows beyond these.
    pub rows_left_out: usize,
}

/// A table that is published, until this is dropped. See
/// [`InstanceMonitoring::publish`](crate::groups::InstanceMonitoring::publish).
///
/// ```
/// # use margo::Instance;
/// # use margo::metrics::{Column, TableSpec};
/// # const CACHES: TableSpec<1, 1> = TableSpec {
/// #     name: "cache",
/// #     labels: ["cache"],
/// #     columns: [Column::counter("hits_total", "Entries that were found.")],
/// # };
/// # let instance = Instance::builder("na+sm://").start()?;
/// use margo::metrics::PublishedTable;
///
/// /// A cache whose figures are seen for as long as it lives.
/// struct Cache {
///     _published: PublishedTable,
/// }
///
/// let rows = || vec![(["users".to_owned()], [7.0])];
/// let cache = Cache { _published: instance.monitoring().publish(&CACHES, rows)? };
/// assert_eq!(instance.metrics().tables.len(), 1);
/// drop(cache);
/// assert!(instance.metrics().tables.is_empty());
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the table is taken back when this is dropped"]
#[derive(Debug)]
pub struct PublishedTable {
    all: Arc<PublishedTables>,
    number: u64,
}

impl Drop for PublishedTable {
    fn drop(&mut self) {
        let source = self.all.lock().by_number.remove(&self.number);
        // Not under the lock: it has values of the program.
        drop(source);
    }
}

/// The tables of an instance.
#[derive(Debug, Default)]
pub(crate) struct PublishedTables(Mutex<Sources>);

#[derive(Debug, Default)]
struct Sources {
    next: u64,
    /// In the order in which they were published.
    by_number: BTreeMap<u64, Arc<TableSource>>,
}

/// Some rows of a table.
struct TableSource {
    /// The table, without rows.
    head: TableMetrics,
    look: Box<dyn Fn() -> Vec<RowMetrics> + Send + Sync>,
    last: Mutex<LastLook>,
}

#[derive(Default)]
struct LastLook {
    /// Somebody looks.
    is_asked: bool,
    rows: Vec<RowMetrics>,
}

impl std::fmt::Debug for TableSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableSource").field("table", &self.head.name).finish_non_exhaustive()
    }
}

impl PublishedTables {
    fn lock(&self) -> MutexGuard<'_, Sources> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish<const L: usize, const C: usize>(
        self: &Arc<Self>,
        spec: &TableSpec<L, C>,
        look: impl Fn() -> Vec<([String; L], [f64; C])> + Send + Sync + 'static,
    ) -> Result<PublishedTable, PublishError> {
        let head = head(spec)?;
        let row = |(labels, values): ([String; L], [f64; C])| RowMetrics {
            labels: labels.into_iter().map(cut).collect(),
            // Neither JSON nor a sum has others.
            values: values.map(|value| if value.is_finite() { value } else { 0.0 }).to_vec(),
        };
        let look = Box::new(move || look().into_iter().map(row).collect());
        let source = Arc::new(TableSource { head, look, last: Mutex::default() });
        let mut sources = self.lock();
        for other in sources.by_number.values().map(|other| &other.head) {
            let is_same = source.head == *other;
            if !is_same && families(&source.head).any(|name| families(other).any(|it| it == name)) {
                return Err(PublishError::Differs { table: spec.name.to_owned() });
            }
        }
        let number = sources.next;
        sources.next += 1;
        sources.by_number.insert(number, source);
        Ok(PublishedTable { all: self.clone(), number })
    }

    /// Asks all who have published one.
    pub(crate) fn look(&self, log: &Log) -> Vec<TableMetrics> {
        let sources: Vec<_> = self.lock().by_number.values().cloned().collect();
        let mut tables: Vec<(TableMetrics, HashMap<Vec<String>, usize>)> = Vec::new();
        for source in sources {
            let at = tables.iter().position(|(table, _)| table.name == source.head.name);
            let at = at.unwrap_or_else(|| {
                tables.push((source.head.clone(), HashMap::new()));
                tables.len() - 1
            });
            let (table, places) = &mut tables[at];
            for row in source.look(log) {
                let place = match places.entry(row.labels.clone()) {
                    hash_map::Entry::Occupied(place) => *place.get(),
                    hash_map::Entry::Vacant(_) if table.rows.len() >= ROWS_MAX => {
                        table.rows_left_out += 1;
                        continue;
                    }
                    hash_map::Entry::Vacant(place) => {
                        place.insert(table.rows.len());
                        table.rows.push(row);
                        continue;
                    }
                };
                let sums = table.rows[place].values.iter_mut();
                sums.zip(row.values).for_each(|(sum, value)| *sum += value);
            }
        }
        tables.into_iter().map(|(table, _)| table).collect()
    }
}

impl TableSource {
    /// The rows; those of the last look while somebody else, or the program's code itself, asks.
    fn look(&self, log: &Log) -> Vec<RowMetrics> {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut last = last();
            if last.is_asked {
                return last.rows.clone();
            }
            last.is_asked = true;
        }
        let rows =
            contain(log, format_args!("the code of the table `{}`", self.head.name), &self.look);
        let mut rows = rows.unwrap_or_default();
        let mut last = last();
        last.is_asked = false;
        last.rows = rows.iter().take(ROWS_MAX).cloned().collect();
        rows.shrink_to(ROWS_MAX);
        rows
    }
}

/// The names of a table's families.
pub(super) fn families(table: &TableMetrics) -> impl Iterator<Item = String> {
    table.columns.iter().map(|column| format!("{}_{}", table.name, column.name))
}

/// Returns whether this can be the name of a table, a label or a column, and nothing of margo's
/// own.
pub(super) fn is_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    let own = ["margo", "process"].iter().any(|own| name.split('_').next() == Some(own));
    begins && name.len() <= NAME_CHARS_MAX && name.chars().all(is_letter) && !own
}

/// Returns whether the name of a column says what it is.
pub(super) fn fits_kind(column: &ColumnMetrics) -> bool {
    column.name.ends_with("_total") == (column.kind == ColumnKind::Counter)
}

fn head<const L: usize, const C: usize>(
    spec: &TableSpec<L, C>,
) -> Result<TableMetrics, PublishError> {
    let columns = spec.columns.iter().map(|Column { name, kind, help }| ColumnMetrics {
        name: (*name).to_owned(),
        kind: *kind,
        help: (*help).to_owned(),
    });
    let columns: Vec<_> = columns.collect();
    let names = || spec.labels.into_iter().chain(spec.columns.iter().map(|column| column.name));
    let wrong = std::iter::once(spec.name).chain(names()).find(|name| !is_name(name));
    let wrong = wrong.or_else(|| {
        let not_fitting = columns.iter().position(|column| !fits_kind(column));
        not_fitting.map(|at| spec.columns[at].name)
    });
    let mut seen = BTreeSet::new();
    let wrong = wrong.or_else(|| names().find(|name| !seen.insert(*name)));
    if let Some(name) = wrong {
        let (table, name) = (spec.name.to_owned(), name.to_owned());
        return Err(PublishError::Name { table, name });
    }
    let labels = spec.labels.map(str::to_owned).to_vec();
    Ok(TableMetrics {
        name: spec.name.to_owned(),
        labels,
        columns,
        rows: Vec::new(),
        rows_left_out: 0,
    })
}

fn cut(label: String) -> String {
    match label.char_indices().nth(LABEL_CHARS_MAX) {
        Some((end, _)) => label[..end].to_owned(),
        None => label,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

    const CACHES: TableSpec<1, 2> = TableSpec {
        name: "cache",
        labels: ["cache"],
        columns: [Column::counter("hits_total", "Hits."), Column::gauge("used_bytes", "Bytes.")],
    };

    #[test]
    fn rows_of_several_are_one_table_and_those_that_are_alike_are_added_up() {
        let (all, log) = (Arc::new(PublishedTables::default()), Log::default());
        let row = |name: &str, hits| ([name.to_owned()], [hits, f64::NAN]);
        let one = all.publish(&CACHES, move || vec![row("a", 1.0), row("b", 2.0)]).unwrap();
        let two = all.publish(&CACHES, move || vec![row("b", 40.0), row(&"c".repeat(999), 3.0)]);
        let rows = all.look(&log).remove(0).rows;
        let hits: Vec<_> = rows.iter().map(|row| row.values[0]).collect();
        assert_eq!((hits, rows[1].values[1]), (vec![1.0, 42.0, 3.0], 0.0));
        assert_eq!(rows[2].labels[0].len(), LABEL_CHARS_MAX);
        drop(one);
        assert_eq!(all.look(&log)[0].rows[0].values[0], 40.0);
        drop(two);
        assert_eq!(all.look(&log), []);
    }

    #[test]
    fn rows_are_bounded() {
        let (all, log) = (Arc::new(PublishedTables::default()), Log::default());
        let rows = |from: usize| {
            (from..from + 600).map(|number| ([number.to_string()], [1.0, 0.0])).collect()
        };
        let _published = [0, 500].map(|from| all.publish(&CACHES, move || rows(from)).unwrap());
        let table = all.look(&log).remove(0);
        assert_eq!((table.rows.len(), table.rows_left_out), (ROWS_MAX, 100));
        assert_eq!(table.rows[550].values[0], 2.0);
    }

    #[test]
    fn names_that_would_not_be_told_apart_are_refused() {
        let all = Arc::new(PublishedTables::default());
        let _caches = all.publish(&CACHES, Vec::new).unwrap();
        let column = |name| [Column::gauge(name, "")];
        let spec = |name, label, columns| TableSpec { name, labels: [label], columns };
        for (name, label, columns) in [
            ("margo_x", "a", column("b")),
            ("process", "a", column("b")),
            ("Cap", "a", column("b")),
            ("", "a", column("b")),
            ("x", "__a", column("b")),
            ("x", "a", column("a")),
            ("x", "a", column("b\n")),
            ("x", "a", column("b_total")),
            ("x", "a", [Column::counter("b", "")]),
        ] {
            let refused = all.publish(&spec(name, label, columns), Vec::new);
            assert!(matches!(refused, Err(PublishError::Name { .. })), "{name} {label}");
        }
        for other in
            [spec("cache", "a", column("used_bytes")), spec("cache_used", "a", column("bytes"))]
        {
            let refused = all.publish(&other, Vec::new);
            assert!(matches!(refused, Err(PublishError::Differs { .. })), "{other:?}");
        }
        assert_eq!(all.look(&Log::default()).len(), 1);
    }

    #[test]
    fn code_of_the_program_may_panic_and_look_itself() {
        let (all, log) = (Arc::new(PublishedTables::default()), Log::default());
        let _bad = all.publish(&CACHES, || panic!("on purpose")).unwrap();
        let inner = Arc::new(OnceLock::<Arc<PublishedTables>>::new());
        let own = inner.clone();
        let again = all.publish(&CACHES, move || {
            let within = own.get().map(|all| all.look(&Log::default())[0].rows.len());
            vec![(["again".to_owned()], [within.unwrap_or(9) as f64, 0.0])]
        });
        inner.set(all.clone()).unwrap();
        assert_eq!(all.look(&log)[0].rows[0].values[0], 0.0, "nothing was seen before");
        assert_eq!(all.look(&log)[0].rows[0].values[0], 1.0, "the row of the look before");
        drop(again);
    }
}
