//! Lines, words and bytes of the files in `docs`, as `wc` counts them: in one process, or in the
//! groups of a JSON document, each of which is this program.
//!
//! ```text
//! cargo build --release -p margo-stream --examples
//! groups=stream/examples/three_groups.mixed.json
//! for group in G1a G1b G2 G3; do
//!     target/release/examples/three_groups --group $group $groups &
//! done; wait
//! ```
//!
//! `three_groups.sm.json` and `three_groups.tcp.json` cut the same graph over one transport.
//! Without arguments all of it runs in this process.

use margo_stream::graph::Graph;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut files = std::fs::read_dir("docs")
        .map_err(|error| format!("the folder `docs`: {error}"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>, std::io::Error>>()?;
    files.retain(|path| path.is_file());
    files.sort();

    let graph = Graph::new();
    let totals = graph
        .sources("read", 2, |at| files.into_iter().skip(at.index).step_by(at.count))
        .try_map(std::fs::read_to_string)
        .expand(|text, lines| lines.extend(text.split_inclusive('\n').map(str::to_owned)))
        .farm("count", 2)
        .map(|line| [1, line.split_whitespace().count() as u64, line.len() as u64])
        .stage("sum")
        .sink([0; 3], |sum, one| sum.iter_mut().zip(one).for_each(|(sum, one)| *sum += one));
    graph.run_from_args(std::env::args().skip(1))?;

    for [lines, words, bytes] in totals.take() {
        println!("{lines} {words} {bytes}");
    }
    Ok(())
}
