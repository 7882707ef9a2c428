//! Loops.

use std::ops::ControlFlow::{Break, Continue};

use margo_stream::graph::Graph;

/// Ranges are halved until they are short: each item becomes two that go round.
#[test]
fn a_loop_ends_when_nothing_goes_round_any_more() {
    for (xstreams, bundle) in [(1, 1), (2, 1), (2, 7), (2, 1000)] {
        let graph = Graph::new();
        let parts = graph
            .source("ranges", (0..20u64).map(|n| (n * 1000, n * 1000 + 1000)))
            .bundle(bundle)
            .iterate("halve", |ranges| {
                ranges.flat_map(|(from, to)| {
                    if to - from <= 3 {
                        return vec![Break((from, to))];
                    }
                    let middle = u64::midpoint(from, to);
                    vec![Continue((from, middle)), Continue((middle, to))]
                })
            })
            .replicas(3)
            .stage("all")
            .collect();
        graph.run_on(xstreams).unwrap();
        let mut parts = parts.take();
        parts.sort_unstable();
        assert_eq!(parts.first().unwrap().0, 0);
        assert_eq!(parts.last().unwrap().1, 20_000);
        assert!(parts.windows(2).all(|pair| pair[0].1 == pair[1].0));
    }
}

#[test]
fn a_loop_that_drops_all_ends_too() {
    let graph = Graph::new();
    let rest = graph
        .source("numbers", 0..1000u32)
        .iterate("count down", |numbers| {
            numbers.filter(|n| *n > 0).map(|n| Continue::<u32, _>(n - 1))
        })
        .replicas(2)
        .collect();
    graph.run_on(2).unwrap();
    assert!(rest.take().is_empty());
}

#[test]
fn a_failure_within_a_loop_ends_the_graph() {
    let graph = Graph::new();
    graph
        .source("numbers", 0u32..)
        .iterate("loop", |numbers| {
            numbers.try_map(|n| if n < 5000 { Ok(Continue::<(), _>(n + 1)) } else { Err("high") })
        })
        .replicas(2)
        .for_each(drop);
    assert!(graph.run_on(2).unwrap_err().to_string().ends_with("high"));
}

#[test]
fn a_loop_with_stages_within_is_refused() {
    let graph = Graph::new();
    graph
        .source("numbers", 0..3u32)
        .iterate("loop", |numbers| {
            numbers.stage("within").map(|n| if n > 0 { Continue(n - 1) } else { Break(n) })
        })
        .for_each(drop);
    let text = graph.plan().check().unwrap_err().to_string();
    assert_eq!(text, "the loop `loop` has stages within it");
}
