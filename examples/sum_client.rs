//! Calls the service of `sum_server`, then stops it.
//!
//! ```text
//! cargo run --example sum_client -- <the address that sum_server printed>
//! ```
//!
//! Prints `40 + 2 = 42`.

use std::process::ExitCode;
use std::time::Duration;

use margo::{Instance, ProviderHandle, Rpc};

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const STOP: Rpc<(), ()> = Rpc::new("stop");

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [address] = &args[..] else {
        eprintln!("usage: sum_client ADDRESS   (the one that sum_server printed)");
        return ExitCode::from(2);
    };
    if let Err(error) = call(address) {
        eprintln!("sum_client: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn call(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    // A client needs a transport of the same kind, but no address that others could find.
    let own = address.split("://").next().unwrap_or_default();
    let margo = Instance::builder(format!("{own}://")).listen(false).start()?;

    let service = ProviderHandle::from(margo.lookup(address)?);
    let sum = margo.forward_timed(SUM, &service, &(40, 2), Duration::from_secs(5))?;
    println!("40 + 2 = {sum}");

    margo.forward_timed(STOP, &service, &(), Duration::from_secs(5))?;
    margo.finalize_and_wait()?;
    Ok(())
}
