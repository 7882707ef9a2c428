//! Requests, errors and bytes of web servers by minute and path, from logs in the common format:
//! `cargo run --release -p margo-stream --example log_analysis [FILE...]`
//!
//! Prints a table, with the 95th percentile of the bytes. Lines may be 30 seconds late.

use std::fs::File;
use std::io::{BufRead, BufReader};

use margo_stream::graph::{Graph, ReplicaAt, Window};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut files: Vec<_> = std::env::args().skip(1).collect();
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/log_analysis.log");
    files.extend(files.is_empty().then(|| sample.to_owned()));
    let graph = Graph::new();
    let panes = graph
        .sources("read", files.len(), move |at: ReplicaAt| [files[at.index].clone()])
        .try_map(|file| File::open(&file).map_err(|error| format!("{file}: {error}")))
        .flat_map(|file| BufReader::new(file).lines())
        .try_map(|line| line)
        .flat_map(|line| parse(&line))
        .watermarks(|(_, (time, ..))| *time, 30)
        .keyed()
        .farm("windows", 2)
        .window(Window::tumbling(60), |(time, ..)| *time)
        .fold((0, Vec::new()), |(errors, sizes), (_, status, bytes)| {
            *errors += u32::from(status >= 400);
            sizes.push(bytes);
        })
        .collect();
    graph.run()?;

    let mut panes = panes.take();
    panes.sort_by_key(|(path, pane)| (pane.from, path.clone()));
    println!("minute  requests  errors  p95 bytes  path");
    for (path, pane) in panes {
        let (errors, mut sizes) = pane.value;
        sizes.sort();
        let (count, p95) = (sizes.len(), sizes[(sizes.len() - 1) * 95 / 100]);
        let (hour, minute) = (pane.from / 3600 % 24, pane.from / 60 % 60);
        println!("{hour:02}:{minute:02} {count:10} {errors:7} {p95:10}  {path}");
    }
    Ok(())
}

/// Path, and seconds, status and bytes of a line; `None` if it has another format.
fn parse(line: &str) -> Option<(String, (u64, u64, u64))> {
    let (time, rest) = line.split_once('[')?.1.split_once("] \"")?;
    let (request, rest) = rest.split_once("\" ")?;
    let mut numbers = rest.split(' ').map(|number| number.parse().unwrap_or(0));
    let words: Vec<_> = time.split(['/', ':', ' ']).collect();
    let [day, month, year, hour, minute, second, ..] = words[..] else { return None };
    let number = |word: &str| word.parse::<u16>().ok().map(u64::from);
    // Months have 31 days here: it is for the order.
    let month = "JanFebMarAprMayJunJulAugSepOctNovDec".find(month)? as u64 / 3;
    let days = (number(year)? * 12 + month) * 31 + number(day)?;
    let minutes = (days * 24 + number(hour)?) * 60 + number(minute)?;
    let time = minutes * 60 + number(second)?;
    Some((request.split([' ', '?']).nth(1)?.to_owned(), (time, numbers.next()?, numbers.next()?)))
}
