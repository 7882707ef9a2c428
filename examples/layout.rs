//! A JSON document decides which core does what; the program stays the same.
//!
//! Here progress has an execution stream of its own, and slow requests have a pool that cannot
//! delay the quick ones.
//!
//! ```text
//! cargo run --example layout
//! ```
//!
//! Prints the answer of the quick RPC before that of the slow one, then what each pool executed.

use std::sync::mpsc;
use std::time::Duration;

use margo::{ProviderHandle, ProviderId, Rpc};

const SLOW: Rpc<(), String> = Rpc::new("slow");
const QUICK: Rpc<(), String> = Rpc::new("quick");

const LAYOUT: &str = r#"{
    "argobots": {
        "pools": [ { "name": "net" }, { "name": "quick" }, { "name": "slow" } ],
        "xstreams": [
            { "name": "net",   "scheduler": { "pools": ["net"] } },
            { "name": "quick", "scheduler": { "pools": ["quick"] } },
            { "name": "slow",  "scheduler": { "pools": ["slow"] } }
        ]
    },
    "progress_pool": "net",
    "rpc_pool": "quick",
    "margo": { "address": "na+sm://" }
}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let margo = margo::init(LAYOUT)?;
    let slow_pool = margo.layout().pool("slow").ok_or("the layout has a pool `slow`")?;
    let provider = margo.provider(ProviderId::new(1), &slow_pool);
    let (quick_done, wait_for_quick) = mpsc::channel::<()>();
    let wait_for_quick = std::sync::Mutex::new(wait_for_quick);
    provider.register(SLOW, move |request| {
        // Blocks its whole execution stream, as a system call would; only `slow` is behind it.
        let guard = wait_for_quick.lock();
        let waited = guard.is_ok_and(|rx| rx.recv_timeout(Duration::from_secs(30)).is_ok());
        let _ =
            request.respond(&(if waited { "slow, after quick" } else { "slow, alone" }).to_owned());
    })?;
    margo.register(QUICK, |request| {
        let _ = request.respond(&"quick".to_owned());
    })?;

    let quick = ProviderHandle::from(margo.self_addr());
    let slow = ProviderHandle::new(margo.self_addr(), ProviderId::new(1));
    let caller = margo.clone();
    let pending = margo.layout().rpc_pool().spawn(move || caller.forward(SLOW, &slow, &()))?;
    println!("{}", margo.forward(QUICK, &quick, &())?);
    quick_done.send(())?;
    println!("{}", pending.join()??);

    for pool in margo.layout().pools() {
        println!("pool {}: {} units executed", pool.name(), pool.stats().executed);
    }
    drop(provider);
    margo.finalize_and_wait()?;
    Ok(())
}
