//! A service that adds two numbers. Start it first; it prints the address for `sum_client`.
//!
//! ```text
//! cargo run --example sum_server -- na+tcp://127.0.0.1:0
//! cargo run --example sum_client -- <the address that it prints>
//! ```
//!
//! It prints `listening on <address>` and serves until a client asks it to stop.

use margo::{Instance, Rpc};

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const STOP: Rpc<(), ()> = Rpc::new("stop");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "na+sm://".into());
    let margo = Instance::builder(address).start()?;

    // Each request runs on a ULT of its own and may block there.
    margo.register(SUM, |request| {
        let (a, b) = *request.args();
        if let Err(error) = request.respond(&(a + b)) {
            eprintln!("{error}");
        }
    })?;
    margo.register(STOP, |request| {
        if let Err(error) = request.respond(&()) {
            eprintln!("{error}");
        }
        request.instance().finalize();
    })?;

    println!("listening on {}", margo.self_addr());
    margo.wait_for_finalize()?;
    Ok(())
}
