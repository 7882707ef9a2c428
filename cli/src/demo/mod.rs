//! `margo demo`: the main job, on the user's own files.
//!
//! For each transport: a second process, the target, is started as `margo serve` with the
//! quickstart configuration (`target.rs`); every file is stored there by RPC and bulk transfer,
//! read back, and compared by checksum; the checksums go to a key-value store, and are got again
//! (`session.rs`); then a few lines say how it went
//! (`report.rs`). The target and its directory are gone when this ends, however it ends.

mod bar;
mod files;
mod report;
mod scratch;
mod session;
mod target;

use std::path::PathBuf;
use std::sync::Arc;

use margo::Instance;

use self::bar::Bar;
use self::files::Files;
use self::session::{Outcome, Session};
use self::target::{Slot, Target};
use crate::support::output;
use crate::support::signals::Caught;
use margo::daemon::Failure;

/// A transport to show.
struct Transport {
    /// The name of the transport, as in addresses.
    name: &'static str,
    /// Where the target is to listen: on this host only.
    listen: &'static str,
}

const TRANSPORTS: [Transport; 2] = [
    Transport { name: "na+sm", listen: "na+sm://" },
    Transport { name: "na+tcp", listen: "na+tcp://127.0.0.1:0" },
];

pub(crate) fn run(paths: &[PathBuf]) -> Result<(), Failure> {
    let signals = Caught::new()?;
    let files = Arc::new(Files::gather(paths)?);
    let slot = Arc::new(Slot::default());
    let (stop, clean_up) = (slot.clone(), slot.clone());
    signals.handle(move || stop.interrupt(), move || clean_up.remove());
    output::line(report::headline(&files))?;
    for transport in &TRANSPORTS {
        let outcome = over(transport, &files, &slot).map_err(|failure| match failure {
            _ if slot.is_interrupted() => Failure::Interrupted,
            Failure::Failed(text) => Failure::Failed(format!("{}: {text}", transport.name)),
            other => other,
        })?;
        for line in report::lines(transport.name, &outcome) {
            output::line(line)?;
        }
    }
    Ok(())
}

fn over(transport: &Transport, files: &Arc<Files>, slot: &Arc<Slot>) -> Result<Outcome, Failure> {
    let target = Target::start(transport.listen, slot)?;
    let instance = Instance::builder(format!("{}://", transport.name))
        .listen(false)
        .start()
        .map_err(|error| Failure::Failed(error.to_string()))?;
    let session = Session::new(
        &instance,
        target.address(),
        files.clone(),
        Bar::new(transport.name, files),
        slot.clone(),
    )?;
    // On a ULT of the execution stream that also moves the network: a call is then a switch of
    // ULTs, not a wake-up of a thread.
    let outcome = instance
        .layout()
        .rpc_pool()
        .spawn(move || session.run())
        .map_err(|error| Failure::new("cannot start a ULT", error))?
        .join()
        .map_err(|error| Failure::new("the transfer ended early", error))?;
    match outcome {
        Ok(outcome) => {
            instance
                .finalize_and_wait()
                .map_err(|error| Failure::new("cannot shut down", error))?;
            target.stop()?;
            Ok(outcome)
        }
        Err(failure) => {
            instance.finalize();
            Err(target.explain(failure))
        }
    }
}
