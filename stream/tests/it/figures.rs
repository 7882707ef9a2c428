//! Figures of streams and edges, with the metrics of their instances.

use std::time::Instant;

use margo::Instance;
use margo::metrics::TableMetrics;
use margo_stream::graph::{Graph, GraphDocument};
use margo_stream::{ReceiveSpec, SendSpec};

use crate::common::{SOON, client, end, instance, receiver, sender};

fn table(at: &Instance, name: &str) -> Option<TableMetrics> {
    at.metrics().tables.into_iter().find(|table| table.name == name)
}

/// A value of the row with these labels.
fn value(table: &TableMetrics, labels: [&str; 2], column: &str) -> f64 {
    let column = table.columns.iter().position(|one| one.name == column).unwrap();
    table.rows.iter().find(|row| row.labels == labels).unwrap().values[column]
}

#[test]
fn both_ends_of_a_stream_are_with_the_metrics_of_their_instances() {
    let (service, from) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new().senders(2).credit_bytes(1 << 20));
    // Two of one instance are one row.
    let mut senders = [0, 1].map(|_| sender(&from, &receiver, &SendSpec::new()));
    for sender in &mut senders {
        sender.send_all(0..100).unwrap();
        sender.flush().unwrap();
    }
    let (mut batches, mut taken) = (Vec::new(), 0);
    while taken < 200 {
        batches.push(receiver.recv_batch().unwrap().unwrap());
        taken += batches.last().unwrap().len();
    }
    let (sent, received) = (table(&from, "stream").unwrap(), table(&service, "stream").unwrap());
    for (table, end) in [(&sent, "sends"), (&received, "receives")] {
        let of = |column| value(table, ["numbers", end], column);
        assert_eq!((table.rows.len(), of("items_total"), of("bytes_total")), (1, 200.0, 1600.0));
        assert_eq!((of("held_bytes"), of("credit_bytes")), (1600.0, f64::from(2 << 20)), "{end}");
    }
    let text = service.metrics().prometheus();
    let line = "\nstream_items_total{stream=\"numbers\",end=\"receives\"} 200\n";
    assert!(text.contains(line), "{text}");
    drop(batches);
    let now = table(&service, "stream").unwrap();
    assert_eq!(value(&now, ["numbers", "receives"], "held_bytes"), 0.0);
    senders.into_iter().for_each(|sender| sender.finish().unwrap());
    assert_eq!(table(&from, "stream"), None);
    drop(receiver);
    assert_eq!(table(&service, "stream"), None);
    end([from, service]);
}

#[test]
fn edges_of_a_group_are_with_the_metrics_of_its_instances() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("G2").display().to_string();
    let document = format!(
        r#"{{ "groups": {{ "G1": {{ "stages": ["read"] }}, "G2": {{ "stages": ["sum"],
             "endpoints": [{{ "address": "na+sm://", "file": "{file}" }}] }} }} }}"#
    );
    let document = GraphDocument::from_json(&document).unwrap();
    let (own, from) = (instance("na+sm://"), client("na+sm://"));
    let _file = margo::AddressFile::write(&file, own.self_addr().uri()).unwrap();
    let start = |group, at: &Instance| {
        let graph = Graph::new();
        graph.source("read", 0u64..).stage("sum").for_each(drop);
        let pools = [at.layout().rpc_pool()];
        graph.start_group(group, &document, &pools, std::slice::from_ref(at)).unwrap()
    };
    let (read, sum) = (start("G1", &from), start("G2", &own));
    let edge = ["graph", "read->sum"];
    let until = Instant::now() + SOON;
    let look = |at, column: &str| table(at, "stream_edge").map(|it| value(&it, edge, column));
    while look(&from, "items_total") < Some(1.0) || look(&own, "bytes_total") < Some(1.0) {
        assert!(Instant::now() < until, "no item has come");
        std::thread::yield_now();
    }
    // The sender's items, and the receiver's bytes, as the launcher sums them up.
    assert_eq!((look(&own, "items_total"), look(&from, "bytes_total")), (Some(0.0), Some(0.0)));
    assert!(look(&own, "credit_bytes") > Some(0.0));
    sum.canceler().cancel();
    assert!(sum.join().is_err() && read.join().is_err());
    assert_eq!([look(&own, "queued"), look(&from, "queued")], [None, None]);
    end([from, own]);
}
