//! Rows `streams.wordcount.*`: the words of a text are counted by a graph in one process, on two
//! xstreams. Two replicas read blocks of the text and cut them into words; two count.
//!
//! - `streams.wordcount.keyed`: each word goes to the replica that counts it;
//! - `streams.wordcount.aggregated`: each reader counts for itself, and the counts are added up.
//!
//! The text lies in memory, so no file is read. Words are [`CompactString`]s, which need no
//! allocation. Floor: one thread that cuts the same text into words by the same code, and does
//! nothing with them; beside it, one thread that counts them in a map of slices.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use compact_str::CompactString;
use margo_stream::graph::{Graph, ReplicaAt};
use ult::PoolRef;

use super::text::{blocks, zipf};
use crate::base::{Doing, Effort, Figure, Result, Samples, fail};
use crate::process::Context;
use crate::rows::ult::on_ult::Streams;

/// Row `streams.wordcount.keyed`.
pub(crate) fn keyed(context: &Context) -> Result<Figure> {
    run(context, false)
}

/// Row `streams.wordcount.aggregated`.
pub(crate) fn aggregated(context: &Context) -> Result<Figure> {
    run(context, true)
}

/// The words of a text, for graph and floor.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_ascii_whitespace()
}

fn run(context: &Context, is_aggregated: bool) -> Result<Figure> {
    let bytes = if context.quick { 1 << 20 } else { 200 << 20 };
    let text = Arc::new(zipf(bytes));
    let bytes = text.len();
    let count = words(&text).count() as u64;
    let effort = Effort::runs(context.quick);
    let streams = Streams::start(&context.cores.take(2)?)?;
    let mut counted = effort.room(1);
    let floor = |samples: &mut Samples| {
        samples.each(|| {
            words(&text).for_each(|word| {
                black_box(word);
            });
            Ok(())
        })?;
        counted.each(|| {
            let mut counts = HashMap::<_, u64, foldhash::fast::RandomState>::default();
            words(&text).for_each(|word| *counts.entry(word).or_default() += 1);
            black_box(counts);
            Ok(())
        })
    };
    let figures = effort.in_turns([1, 1], floor, |samples| {
        samples.told(|| {
            let start = Instant::now();
            let found = graph(&text, is_aggregated, &streams.pools)?;
            let elapsed = start.elapsed();
            if found != count {
                fail!("{found} words of {count} were counted");
            }
            context.deadline.check("counting words")?;
            Ok(elapsed)
        })
    })?;
    streams.stop()?;
    let counted = counted.bandwidth(bytes).p50;
    Ok(Figure::bandwidth(figures, bytes).beside("one thread", counted))
}

/// Counts, and returns the sum of all counts.
fn graph(text: &Arc<String>, is_aggregated: bool, pools: &[PoolRef]) -> Result<u64> {
    let (parts, whole) = (blocks(text), text.clone());
    let graph = Graph::new();
    let words = graph
        .sources("read", 2, move |at: ReplicaAt| parts.into_iter().skip(at.index).step_by(at.count))
        .expand(move |block, found| {
            found.extend(words(&whole[block]).map(|word| (CompactString::new(word), 1u64)));
        })
        .keyed();
    let add = |count: &mut u64, more: u64| *count += more;
    let sums = if is_aggregated {
        let counts = words.fold(0, add).farm("count", 2).fold(0, add);
        counts.pairs().sink(0, |sum, (_, count)| *sum += count)
    } else {
        let counts = words.farm("count", 2).fold(0, add);
        counts.pairs().sink(0, |sum, (_, count)| *sum += count)
    };
    let run = graph.start(pools).doing("starting a graph")?;
    run.join().doing("running a graph")?;
    Ok(sums.take().into_iter().sum())
}
