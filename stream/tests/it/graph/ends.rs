//! How a run ends: by itself, by a failure, from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use margo::ult::{self, PoolSpec, Runtime, XstreamSpec};
use margo_stream::graph::{Graph, GraphError};

fn runtime(xstreams: usize) -> Runtime {
    let mut builder = Runtime::builder();
    for name in (0..xstreams).map(|number| format!("x{number}")) {
        builder = builder.pool(PoolSpec::new(&name));
        builder = builder.xstream(XstreamSpec::new(&name).pools([name]));
    }
    builder.start().unwrap()
}

/// A count of values that have been dropped.
#[derive(Clone, Default)]
struct Drops(Arc<AtomicUsize>);

struct Counted(Drops);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A source without an end in front of stages, the last of which fails as `fail` says.
fn failing(fail: impl FnMut(u64) -> Result<(), String> + Clone + Send + 'static) -> GraphError {
    let graph = Graph::new();
    graph
        .source("numbers", 0u64..)
        .farm("twice", 3)
        .map(|n| 2 * n)
        .stage("last")
        .try_for_each(fail);
    graph.run_on(2).unwrap_err()
}

#[test]
fn an_error_of_a_stage_ends_the_graph_and_names_it() {
    let error = failing(|n| if n < 10_000 { Ok(()) } else { Err("too many".to_owned()) });
    let GraphError::Stage { stage, replica, cause } = &error else { panic!("{error}") };
    assert_eq!((&**stage, *replica), ("last", 0));
    assert_eq!(cause.to_string(), "too many");
    assert_eq!(error.to_string(), "stage `last`, replica 0: too many");
}

#[test]
fn a_panic_of_a_stage_ends_the_graph_and_names_it() {
    let error = failing(|n| if n < 10_000 { Ok(()) } else { panic!("at {}", "the disco") });
    let GraphError::Panicked { stage, message, .. } = &error else { panic!("{error}") };
    assert_eq!((&**stage, message.as_str()), ("last", "at the disco"));
}

#[test]
fn what_is_cut_short_is_not_taken_for_an_end() {
    let is_ended = Arc::new(AtomicBool::new(false));
    let ended = is_ended.clone();
    let graph = Graph::new();
    graph
        .source("numbers", 0..1_000_000u64)
        .stage("fails")
        .try_map(|n| if n < 100_000 { Ok(n) } else { Err("broken") })
        .own("writes", move |io| {
            while io.recv()?.is_some() {}
            // Where a file would be renamed to its proper name.
            ended.store(true, Ordering::Relaxed);
            io.emit(())?;
            Ok(())
        })
        .for_each(drop);
    assert!(matches!(graph.run_on(1), Err(GraphError::Stage { .. })));
    // Its receive says that there is no more only if that is so.
    assert!(!is_ended.load(Ordering::Relaxed));
}

#[test]
fn a_failure_in_a_source_or_at_the_end_of_a_fold_is_told() {
    let graph = Graph::new();
    graph
        .generate("source", |emit| {
            emit.emit(1u8)?;
            Err("no such file".into())
        })
        .for_each(drop);
    assert_eq!(graph.run_on(1).unwrap_err().to_string(), "stage `source`, replica 0: no such file");

    let graph = Graph::new();
    let sums = graph.source("numbers", [1u8, 2]).fold(0, |sum, n| *sum += n);
    sums.try_for_each(|sum| Err::<(), _>(format!("{sum} is too much")));
    assert_eq!(
        graph.run_on(1).unwrap_err().to_string(),
        "stage `numbers`, replica 0: 3 is too much"
    );
}

#[test]
fn a_stage_that_returns_early_ends_its_producers() {
    let graph = Graph::new();
    let found = graph
        .source("numbers", 0u64..)
        .stage("square")
        .map(|n| n * n)
        .own("first", |io| {
            for _ in 0..3 {
                if let Some(n) = io.recv()? {
                    io.emit(n)?;
                }
            }
            Ok(())
        })
        .collect();
    graph.run_on(2).unwrap();
    assert_eq!(found.take(), [0, 1, 4]);
}

#[test]
fn a_run_is_cancelled_while_its_stages_wait_for_other_things() {
    let runtime = runtime(1);
    let drops = Drops::default();
    let graph = Graph::new();
    let item = Counted(drops.clone());
    graph
        .generate("asleep", move |emit| {
            emit.emit(7u8)?;
            emit.flush()?;
            let _item = item;
            ult::park();
            Ok(())
        })
        .stage("waits")
        .for_each(drop);
    let run = graph.start(&runtime.pools()).unwrap();
    let canceler = run.canceler();
    let cancel = std::thread::spawn(move || canceler.cancel());
    assert!(matches!(run.join(), Err(GraphError::Cancelled)));
    cancel.join().unwrap();
    assert_eq!(drops.0.load(Ordering::Relaxed), 1);
    runtime.shutdown().unwrap();
}

#[test]
fn a_run_has_a_deadline() {
    let runtime = runtime(2);
    let graph = Graph::new();
    graph.source("numbers", 0u64..).farm("drop", 2).for_each(drop);
    let run = graph.start(&runtime.pools()).unwrap().timeout(Duration::from_millis(20));
    assert!(matches!(run.join(), Err(GraphError::Late)));
    runtime.shutdown().unwrap();
}

#[test]
fn a_run_that_is_dropped_leaves_nothing() {
    let runtime = runtime(2);
    let drops = Drops::default();
    let graph = Graph::new();
    let item = Counted(drops.clone());
    graph.source("numbers", 0u64..).stage("drop").for_each({
        let item = Arc::new(item);
        move |_| drop(item.clone())
    });
    drop(graph.start(&runtime.pools()).unwrap());
    // Waits for all ULTs.
    runtime.shutdown().unwrap();
    assert_eq!(drops.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_slow_sink_holds_its_source_up() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
    let seen = Arc::new(AtomicUsize::new(0));
    let graph = Graph::new();
    graph
        .source(
            "numbers",
            (0..1_000_000u64).inspect(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
            }),
        )
        .bundle(64)
        .stage("slow")
        .try_for_each(move |_| {
            let ahead = made.load(Ordering::Relaxed) - seen.fetch_add(1, Ordering::Relaxed);
            // 8 bundles in the channel, one at each end, a chunk of the source.
            if ahead < 64 * 10 + 256 * 2 { Ok(()) } else { Err(format!("{ahead} items ahead")) }
        });
    graph.run_on(2).unwrap();
}

#[test]
fn an_incomplete_graph_is_refused_with_names() {
    let refused = |build: fn(&Graph)| {
        let graph = Graph::new();
        build(&graph);
        let Err(GraphError::Plan(errors)) = graph.run_on(1) else { panic!("it has run") };
        errors.to_string()
    };
    assert_eq!(refused(|_| {}), "it has no stages");
    let text = refused(|graph| drop(graph.source("read", [1u8]).stage("parse").map(|n| n)));
    assert!(text.starts_with("the items of stage `parse` go nowhere"), "{text}");
    let text = refused(|graph| graph.source("a", [1u8]).stage("a").for_each(drop));
    assert_eq!(text, "two stages are called `a`");
    let text = refused(|graph| graph.source("a", [1u8]).farm("none", 0).for_each(drop));
    assert_eq!(text, "stage `none` has no replicas");
}
