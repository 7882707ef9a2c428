//! Figures that a program publishes with those of its instance.

use crate::InstanceMonitoring;
use crate::error::PublishError;
use crate::observe::metrics::{PublishedTable, TableSpec};

impl InstanceMonitoring<'_> {
    /// Publishes a table of figures of the program's own: it is in
    /// [`metrics`](crate::Instance::metrics), has a family of Prometheus for each column, and a
    /// table in `margo top` and on the live page, until what this returns is dropped.
    ///
    /// `look` is called for each snapshot, and returns the rows: texts for the labels, and a value
    /// for each column. It runs on the thread that takes the snapshot, and must not wait for what
    /// may be stuck: who looks would be, too. If it panics, its rows are missing. While it runs,
    /// others who look get the rows of the look before.
    ///
    /// Several may publish a table of the same head; rows with the same labels are added up then. A
    /// snapshot has 1000 rows of a table, with 256 characters for each label; a value that is not
    /// finite is 0.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use margo::Instance;
    /// use margo::metrics::{Column, TableSpec};
    ///
    /// const CACHES: TableSpec<1, 1> = TableSpec {
    ///     name: "cache",
    ///     labels: ["cache"],
    ///     columns: [Column::counter("hits_total", "Entries that were found.")],
    /// };
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// let hits = Arc::new(AtomicU64::new(0));
    /// let counted = hits.clone();
    /// let published = instance.monitoring().publish(&CACHES, move || {
    ///     vec![(["users".to_owned()], [counted.load(Ordering::Relaxed) as f64])]
    /// })?;
    /// hits.fetch_add(7, Ordering::Relaxed);
    /// assert_eq!(instance.metrics().tables[0].rows[0].values, [7.0]);
    /// let text = instance.metrics().prometheus();
    /// assert!(text.contains("\ncache_hits_total{cache=\"users\"} 7\n"));
    /// drop(published);
    /// assert!(instance.metrics().tables.is_empty());
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PublishError`]: a name cannot be one, or belongs to another table.
    pub fn publish<const L: usize, const C: usize>(
        &self,
        table: &TableSpec<L, C>,
        look: impl Fn() -> Vec<([String; L], [f64; C])> + Send + Sync + 'static,
    ) -> Result<PublishedTable, PublishError> {
        self.inner().metrics.tables.publish(table, look)
    }
}
