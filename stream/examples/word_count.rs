//! Word count over a folder of text: which words are the most frequent ones?
//!
//! ```text
//! cargo run --release -p margo-stream --example word_count [FOLDER]
//! ```
//!
//! Prints the ten most frequent words, each with its count. Default folder: `docs`.

use margo_stream::graph::Graph;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (own, arguments) = Graph::split_args(std::env::args().skip(1));
    let folder = own.first().map_or("docs", String::as_str);
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{folder}: {error}"))?;
    let files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;

    let graph = Graph::new();
    let counts = graph
        .source("list", files.into_iter().filter(|path| path.is_file()))
        .farm("read", 2)
        .try_map(std::fs::read_to_string)
        .expand(|text, words| {
            let split = text.split(|letter: char| !letter.is_alphanumeric());
            words.extend(split.filter(|word| !word.is_empty()).map(|word| (word.to_lowercase(), 1)))
        })
        .keyed()
        .farm("count", 2)
        .fold(0u64, |count, one| *count += one)
        .collect();
    graph.run_from_args(arguments)?;

    let mut counts = counts.take();
    counts.sort_by(|(a, m), (b, n)| n.cmp(m).then(a.cmp(b)));
    counts.iter().take(10).for_each(|(word, count)| println!("{count:8} {word}"));
    Ok(())
}
