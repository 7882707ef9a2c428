//! Calls the service of `sum_server`, then stops it.
//!
//! ```text
//! cargo run --example sum_client -- <the address that sum_server printed>
//! ```
//!
//! A document as second argument says how the client is set up, for example towards a server of C
//! Margo (docs/interop.md): `'{ "margo": { "mercury_build": "checksums" } }'`.
//!
//! Prints `40 + 2 = 42`.

use std::process::ExitCode;
use std::time::Duration;

use margo::{InstanceBuilder, ProviderHandle, Rpc, config::Config};

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const STOP: Rpc<(), ()> = Rpc::new("stop");

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let (address, document) = match &args[..] {
        [address] => (address, "{}"),
        [address, document] => (address, document.as_str()),
        _ => {
            eprintln!(
                "usage: sum_client ADDRESS [DOCUMENT]   (the address that sum_server printed)"
            );
            return ExitCode::from(2);
        }
    };
    if let Err(error) = call(address, document) {
        eprintln!("sum_client: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn call(address: &str, document: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::from_json(document)?;
    if config.margo.address == Config::default().margo.address {
        // A client needs a transport of the same kind, but no address that others could find.
        let own = address.split("://").next().unwrap_or_default();
        // A program of C Mercury with our plugin has the class `margo` in its address.
        let own = own.replace("margo+", "na+");
        config.margo.address = format!("{own}://");
    }
    let margo = InstanceBuilder::from_config(config).listen(false).start()?;

    let service = ProviderHandle::from(margo.lookup(address)?);
    let sum = margo.forward_timed(SUM, &service, &(40, 2), Duration::from_secs(5))?;
    println!("40 + 2 = {sum}");

    margo.forward_timed(STOP, &service, &(), Duration::from_secs(5))?;
    margo.finalize_and_wait()?;
    Ok(())
}
