//! Three stages joined by channels, each a ULT; a stage that has to wait gives its core away.
//!
//! The middle stage works in a pool of its own that two xstreams serve, so its ULTs spread over
//! both. Room in the channels is bounded: a fast stage waits for a slow one instead of filling the
//! memory.
//!
//! ```text
//! cargo run -p margo-ult --example pipeline
//! ```
//!
//! Prints `10000 words, 78890 letters`.

use ult::channel::{self, Receiver, Sender};
use ult::{PoolSpec, Runtime, XstreamSpec};

const WORDS: usize = 10_000;
const ROOM: usize = 64;
const COUNTERS: usize = 4;

/// First stage: the words.
fn produce(words: &Sender<String>) {
    for n in 0..WORDS {
        // Waits while `ROOM` words are queued. An error means that nobody receives any more.
        if words.send(format!("word{n}")).is_err() {
            return;
        }
    }
}

/// Second stage, several of it: the letters of each word.
fn count(words: &Receiver<String>, lengths: &Sender<usize>) {
    for word in words {
        if lengths.send(word.len()).is_err() {
            return;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::builder()
        .pool(PoolSpec::new("io"))
        .pool(PoolSpec::new("cpu"))
        .xstream(XstreamSpec::new("x0").pools(["io", "cpu"]))
        .xstream(XstreamSpec::new("x1").pools(["cpu"]))
        .start()?;
    let io = runtime.pool("io").ok_or("defined above")?;
    let cpu = runtime.pool("cpu").ok_or("defined above")?;

    let (word_in, word_out) = channel::bounded(ROOM);
    let (length_in, length_out) = channel::bounded(ROOM);
    let producer = io.ult().name("producer").spawn(move || produce(&word_in))?;
    for n in 0..COUNTERS {
        let (words, lengths) = (word_out.clone(), length_in.clone());
        let counter = cpu.ult().name(format!("counter {n}"));
        counter.spawn_detached(move || count(&words, &lengths))?;
    }
    // The channel ends when its last sender is gone; this one would keep it open.
    drop(length_in);

    // An OS thread receives like a ULT: it blocks, they suspend.
    let (mut words, mut letters) = (0, 0);
    for length in &length_out {
        words += 1;
        letters += length;
    }
    producer.join()?;
    println!("{words} words, {letters} letters");
    runtime.shutdown()?;
    Ok(())
}
