//! A service as it would be written: a provider whose handlers are methods of an object, errors of
//! its own, bounds on the load that it takes, and work that stops when nobody waits for it.
//!
//! ```text
//! cargo run --example service
//! ```
//!
//! Prints what its clients get: a value, an error of the service, an error of the runtime.

use std::collections::HashMap;
use std::time::Duration;

use margo::config::Admission;
use margo::{CallError, Handle, Instance, ProviderHandle, ProviderId, Rpc};
use serde::{Deserialize, Serialize};

// What both sides share: usually a crate of its own.

/// The errors that the service may answer with instead of a result.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
enum StockError {
    #[error("no such product: {0}")]
    Unknown(String),
    #[error("only {left} left")]
    TooFew { left: u32 },
}

const PUT: Rpc<(String, u32), u32> = Rpc::new("stock_put");
const TAKE: Rpc<(String, u32), Result<u32, StockError>> = Rpc::new("stock_take");
const AUDIT: Rpc<(), ()> = Rpc::new("stock_audit");

// The service.

#[derive(Default)]
struct Stock {
    counts: ult::Mutex<HashMap<String, u32>>,
}

impl Stock {
    /// The answer is what it returns.
    fn put(&self, call: &Handle<(String, u32), u32>) -> u32 {
        let (product, count) = call.args();
        let mut counts = self.counts.lock();
        let now = counts.entry(product.clone()).or_default();
        *now += count;
        *now
    }

    /// Errors of its own reach the caller as such.
    fn take(
        &self,
        call: &Handle<(String, u32), Result<u32, StockError>>,
    ) -> Result<u32, StockError> {
        let (product, count) = call.args();
        let mut counts = self.counts.lock();
        let now = counts.get_mut(product).ok_or_else(|| StockError::Unknown(product.clone()))?;
        *now = now.checked_sub(*count).ok_or(StockError::TooFew { left: *now })?;
        Ok(*now)
    }

    /// Works for as long as somebody waits for it.
    fn audit(&self, handle: Handle<(), ()>) {
        let canceled = handle.cancel_token();
        while !canceled.is_canceled() {
            ult::sleep(Duration::from_millis(1));
        }
        // The caller has given up: there is nobody to answer.
        drop(handle);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = Instance::builder("na+sm://").start()?;
    let id = ProviderId::new(1);
    let stock = service.provider_of(id, &service.layout().rpc_pool(), Stock::default());
    stock.serve(PUT).returning_method(Stock::put)?;
    stock.serve(TAKE).returning_method(Stock::take)?;
    // One at a time; whoever comes meanwhile is told that it is busy.
    stock.serve(AUDIT).admission(Admission::new(1)).method(Stock::audit)?;

    let client = Instance::builder("na+sm://").listen(false).start()?;
    let target = ProviderHandle::new(client.lookup(service.self_addr().uri())?, id);
    let apples = |count| ("apples".to_owned(), count);
    println!("put: {}", client.forward(PUT, &target, &apples(5))?);
    println!("take: {}", client.rpc(TAKE, &target, &apples(3)).call()?);
    match client.rpc(TAKE, &target, &apples(3)).call() {
        Err(CallError::Service(StockError::TooFew { left })) => {
            println!("the service: {left} left")
        }
        other => println!("unexpected: {other:?}"),
    }
    match client.forward_timed(AUDIT, &target, &(), Duration::from_millis(20)) {
        Err(error) => println!("the runtime: {error}"),
        Ok(()) => println!("unexpected: an audit ends only when nobody waits for it"),
    }
    client.finalize_and_wait()?;
    drop(stock);
    service.finalize_and_wait()?;
    Ok(())
}
