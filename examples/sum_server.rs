//! A service that adds two numbers. Start it first; it prints the address for `sum_client`.
//!
//! ```text
//! cargo run --example sum_server -- na+tcp://127.0.0.1:0
//! cargo run --example sum_client -- <the address that it prints>
//! ```
//!
//! A document as second argument says how the server is set up: `'{ "rpc_thread_count": 2 }'`.
//!
//! It prints `listening on <address>` and serves until a client asks it to stop.

use std::process::ExitCode;

use margo::{InstanceBuilder, Rpc, config::Config};

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const STOP: Rpc<(), ()> = Rpc::new("stop");

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let (address, document) = match &args[..] {
        [] => ("na+sm://", "{}"),
        [address] => (address.as_str(), "{}"),
        [address, document] => (address.as_str(), document.as_str()),
        _ => {
            eprintln!("usage: sum_server [ADDRESS [DOCUMENT]]   (na+sm:// unless given)");
            return ExitCode::from(2);
        }
    };
    if let Err(error) = serve(address, document) {
        eprintln!("sum_server: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn serve(address: &str, document: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::from_json(document)?;
    config.margo.address = address.to_owned();
    let margo = InstanceBuilder::from_config(config).start()?;

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
