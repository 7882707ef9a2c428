//! A handler that computes on the threads of a rayon pool. `install` blocks its caller until the
//! result is there, so it is called in `ult::blocking`.
//!
//! ```text
//! cargo run --example rayon_in_handler
//! ```
//!
//! Prints the sum of many squares, and what became of a computation that panicked.

use std::sync::Arc;

use margo::{ForwardError, Instance, ProviderHandle, Rpc};
use rayon::prelude::*;

const SQUARES: Rpc<u64, u64> = Rpc::new("squares");

fn sum_of_squares(count: u64) -> u64 {
    assert!(count <= 1_000_000, "that is too much");
    (1..=count).into_par_iter().map(|number| number * number).sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Made here, not in a handler: new threads inherit the CPUs that their maker is bound to.
    let computes = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build()?);
    let service = Instance::builder("na+sm://").start()?;
    service.serve(SQUARES).function(move |count: u64| {
        let computes = computes.clone();
        ult::blocking(move || computes.install(|| sum_of_squares(count)))
    })?;

    let client = Instance::builder("na+sm://").listen(false).start()?;
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);
    println!("sum: {}", client.forward(SQUARES, &target, &1000)?);
    // The panic goes through rayon and `blocking` to the handler, and its caller is told.
    match client.forward(SQUARES, &target, &2_000_000) {
        Err(ForwardError::Panicked { .. }) => println!("too many: the handler panicked"),
        other => println!("unexpected: {other:?}"),
    }
    client.finalize_and_wait()?;
    service.finalize_and_wait()?;
    Ok(())
}
