//! Tables of figures that streams and graphs publish with the metrics of their instances.

use margo::Instance;
use margo::metrics::{Column, PublishedTable, TableSpec};

const ITEMS: &str = "items_total";
const BYTES: &str = "bytes_total";
const HELD: Column = Column::gauge("held_bytes", "Bytes that are not acknowledged: credit in use.");
const CREDIT: Column = Column::gauge("credit_bytes", "Bytes that may be so.");

/// The table of streams: one row for those of a name that are received here, one for those that are
/// sent.
const STREAMS: TableSpec<2, 5> = TableSpec {
    name: "stream",
    labels: ["stream", "end"],
    columns: [
        Column::counter(ITEMS, "Items that were sent, or that the program was given."),
        Column::counter(BYTES, "Bytes of these."),
        Column::gauge("waiting", "Batches that have arrived and that nobody has taken."),
        HELD,
        CREDIT,
    ],
};

/// The table of edges.
const EDGES: TableSpec<2, 5> = TableSpec {
    name: "stream_edge",
    labels: ["graph", "edge"],
    columns: [
        Column::counter(ITEMS, "Items that stages of this process have sent."),
        Column::counter(BYTES, "Bytes that have come from other groups."),
        Column::gauge("queued", "Bundles that wait at the stage that the edge goes to."),
        HELD,
        CREDIT,
    ],
};

/// Figures of an edge, or of one end of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowFigures {
    pub(crate) items: u64,
    pub(crate) bytes: u64,
    pub(crate) waiting: usize,
    pub(crate) held: u64,
    pub(crate) credit: u64,
}

impl FlowFigures {
    #[expect(clippy::cast_precision_loss, reason = "metrics have no other numbers")]
    fn values(self) -> [f64; 5] {
        let Self { items, bytes, waiting, held, credit } = self;
        [items, bytes, waiting as u64, held, credit].map(|value| value as f64)
    }
}

/// Publishes one end of a stream. `None`: the program has figures of that name.
pub(crate) fn publish_stream(
    instance: &Instance,
    (stream, end): (&'static str, &'static str),
    look: impl Fn() -> FlowFigures + Send + Sync + 'static,
) -> Option<PublishedTable> {
    let row = move || vec![([stream.to_owned(), end.to_owned()], look().values())];
    instance.monitoring().publish(&STREAMS, row).ok()
}

/// Publishes the edges of a graph. `None`: the program has figures of that name.
pub(crate) fn publish_edges(
    instance: &Instance,
    graph: String,
    look: impl Fn() -> Vec<(String, FlowFigures)> + Send + Sync + 'static,
) -> Option<PublishedTable> {
    let row = move |(edge, figures): (_, FlowFigures)| ([graph.clone(), edge], figures.values());
    let rows = move || look().into_iter().map(&row).collect();
    instance.monitoring().publish(&EDGES, rows).ok()
}
