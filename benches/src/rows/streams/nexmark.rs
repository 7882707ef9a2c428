//! Rows `streams.nexmark.q0` to `q8`: queries of the Nexmark benchmark as graphs in one process, on
//! two xstreams, in events per second. They are those of the example `nexmark` of `margo-stream`.
//!
//! Two replicas make the events, which the figure includes. Floor: a loop on one thread that
//! answers the same query over the same events.

use std::cell::Cell;
use std::hint::black_box;

use margo_stream::graph::{Flow, Graph, Operator};

use self::events::Event;
use self::queries::Events;
use crate::base::{Doing, Effort, Figure, Result, Samples, fail};
use crate::process::Context;
use crate::rows::ult::on_ult::Streams;

// `nexmark` is a link to the folder of the example, since a package has only what lies in it.
mod events;
pub(crate) mod plain;
pub(crate) mod queries;

/// The first events, in the order of their times.
pub(crate) type InOrder = std::iter::Map<std::ops::Range<u64>, fn(u64) -> Event>;

/// A row of a query: as a graph, and as a loop.
pub(crate) fn run<I, O, P>(
    context: &Context,
    query: impl Fn(Events) -> Flow<I, O>,
    plain: impl Fn(InOrder) -> P,
) -> Result<Figure>
where
    I: Send + 'static,
    O: Operator<I>,
    P: Iterator<Item = O::Out>,
{
    let events: u32 = if context.quick { 50_000 } else { 5_000_000 };
    let count = u64::from(events);
    let effort = Effort::runs(context.quick);
    let streams = Streams::start(&context.cores.take(2)?)?;
    let expected = Cell::new(0);
    let floor = |samples: &mut Samples| {
        samples.each(|| {
            expected.set(plain((0..count).map(Event::nth)).map(black_box).count());
            Ok(())
        })
    };
    let figures = effort.in_turns([events; 2], floor, |samples| {
        samples.each(|| {
            let graph = Graph::new();
            let results = query(queries::events(&graph, count));
            let found = results.sink(0, |found, result| {
                black_box(result);
                *found += 1;
            });
            graph
                .start(&streams.pools)
                .doing("starting a graph")?
                .join()
                .doing("running a graph")?;
            let found = found.take().into_iter().sum::<usize>();
            if found != expected.get() {
                fail!("{found} results, and the loop has {}", expected.get());
            }
            context.deadline.check("answering a query")
        })
    })?;
    streams.stop()?;
    Ok(Figure::rate(figures))
}
