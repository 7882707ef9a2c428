//! Records a small program and writes a timeline that <https://ui.perfetto.dev> opens.
//!
//!     cargo run -p margo-ult --example trace -- trace.json
//!
//! Two xstreams: producers on one wake consumers on the other. Prints how many events there are.

use std::fs::File;
use std::io::BufWriter;
use std::sync::Arc;
use std::time::Duration;

use ult::{Eventual, PoolSpec, RecordOptions, Runtime, XstreamSpec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "trace.json".to_owned());
    let runtime = Runtime::builder()
        .pool(PoolSpec::new("producers"))
        .pool(PoolSpec::new("consumers"))
        .xstream(XstreamSpec::new("x0").pools(["producers"]))
        .xstream(XstreamSpec::new("x1").pools(["consumers"]))
        .start()?;
    let producers = runtime.pool("producers").ok_or("no such pool")?;
    let consumers = runtime.pool("consumers").ok_or("no such pool")?;

    let recording = runtime.record(&RecordOptions::new())?;
    let mut ults = Vec::new();
    for number in 0..10u64 {
        let value = Arc::new(Eventual::new());
        let given = value.clone();
        let name = format!("consumer {number}");
        ults.push(consumers.ult().name(name).spawn(move || *value.wait())?);
        ults.push(producers.ult().name("producer").spawn(move || {
            ult::sleep(Duration::from_micros(100 * number));
            // Nobody else sets it.
            let _ = given.set(number);
            number
        })?);
    }
    for ult in ults {
        ult.join()?;
    }
    let trace = recording.stop();

    trace.write_chrome(BufWriter::new(File::create(&path)?))?;
    println!("{} events in {path}, {} dropped", trace.len(), trace.dropped());
    runtime.shutdown()?;
    Ok(())
}
