//! Queries 0 to 8 of the Nexmark benchmark, over events of an auction site: `queries.rs` has them
//! as graphs, `plain.rs` as loops, and `events.rs` makes the events.
//!
//! ```text
//! cargo run --release -p margo-stream --example nexmark [EVENTS]
//! ```
//!
//! Runs each over so many events, by default a million, and prints how many results it has, and the
//! million events a second of the graph and of the loop. Fails if their results are not the same.

mod events;
mod plain;
mod queries;

use std::error::Error;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use events::Event;
use margo_stream::graph::{Flow, Graph, Operator};
use queries::Events;

fn main() -> Result<(), Box<dyn Error>> {
    let count = std::env::args().nth(1).map_or(Ok(1_000_000), |count| count.parse())?;
    let all = || (0..count).map(Event::nth);
    println!("{:>5}{:>10}{:>8}{:>8}", "query", "results", "graph", "loop");
    compare("q0", count, queries::q0, || plain::q0(all()))?;
    compare("q1", count, queries::q1, || plain::q1(all()))?;
    compare("q2", count, queries::q2, || plain::q2(all()))?;
    compare("q3", count, queries::q3, || plain::q3(all()))?;
    compare("q4", count, queries::q4, || plain::q4(all()))?;
    compare("q5", count, queries::q5, || plain::q5(all()))?;
    compare("q6", count, queries::q6, || plain::q6(all()))?;
    compare("q7", count, queries::q7, || plain::q7(all()))?;
    compare("q8", count, queries::q8, || plain::q8(all()))
}

/// Runs a query both ways.
fn compare<I, O, P>(
    name: &str,
    count: u64,
    query: impl FnOnce(Events) -> Flow<I, O>,
    plain: impl FnOnce() -> P,
) -> Result<(), Box<dyn Error>>
where
    I: Send + 'static,
    O: Operator<I, Out: Ord + Debug>,
    P: Iterator<Item = O::Out>,
{
    let graph = Graph::new();
    let results = query(queries::events(&graph, count)).collect();
    let by_graph = graph.run_on(2)?.elapsed;
    let since = Instant::now();
    let mut expected: Vec<_> = plain().collect();
    let by_loop = since.elapsed();

    let mut results = results.take();
    results.sort();
    expected.sort();
    if let Some(at) =
        (0..results.len().max(expected.len())).find(|at| results.get(*at) != expected.get(*at))
    {
        return Err(format!("{name}: {:?}, not {:?}", results.get(at), expected.get(at)).into());
    }
    let rate = |time: Duration| count as f64 / time.as_secs_f64() / 1e6;
    println!("{name:>5}{:>10}{:>8.2}{:>8.2}", results.len(), rate(by_graph), rate(by_loop));
    Ok(())
}
