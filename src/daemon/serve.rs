//! Serving: from the document to the end of the process.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use margo_config::{Config, DumpSignal, Errors, process_env};

use super::args::ServeArgs;
use super::failure::Failure;
use super::support::signals::{Caught, die_with};
use super::support::{document, output};
use super::{Daemon, LISTENING_ON};
use crate::providers::component::check_providers;
use crate::providers::running::{RunningProviders, Unsupported};
use crate::{AddressFile, Instance, ProviderError};

/// How the line begins that says where Prometheus finds it, if it does.
const METRICS_AT: &str = "metrics at ";

pub(super) fn run(daemon: &Daemon, args: &ServeArgs) -> Result<(), Failure> {
    if let Some(parent) = args.die_with {
        die_with(parent)?;
    }
    // Found at the end it would cost the snapshots.
    if let Some(to) = args.snapshot.as_ref().filter(|to| to.symlink_metadata().is_ok()) {
        let text = "is there already; --snapshot makes a new folder";
        return Err(Failure::Usage(format!("{} {text}", to.display())));
    }
    let signals = Caught::new()?;
    let mut config = read_config(daemon, args)?;
    // Written below, when the providers have started.
    let address_file = config.margo.address_file.take().map(PathBuf::from);
    let address_file = args.address_file.clone().or(address_file);
    let instance = Instance::from_config(&config)
        .map_err(|error| Failure::new(document::called(&args.file), error))?;
    for prepare in &daemon.prepare {
        prepare(&instance).map_err(|error| Failure::new("cannot prepare the service", error))?;
    }
    let providers = instance
        .start_providers(&daemon.components())
        .map_err(|error| Failure::new(document::called(&args.file), error))?;
    if let Some(from) = &args.restore {
        restore(&providers, from)?;
    }
    let providers = instance
        .administer_with(providers, daemon.components.clone())
        .map_err(|error| Failure::new("cannot let others administer the service", error))?;

    // Whoever finds the address may send a signal at once, so what is done then is said before.
    let file = Arc::new(OnceLock::<AddressFile>::new());
    let remove = {
        let file = file.clone();
        move || file.get().into_iter().for_each(AddressFile::remove)
    };
    signals.handle(
        {
            let (instance, remove) = (instance.clone(), remove.clone());
            move || {
                // Nobody is to find a service that takes no more requests.
                remove();
                instance.finalize();
            }
        },
        remove.clone(),
    );
    {
        let instance = instance.clone();
        signals.at_hangup(move || {
            tracing::info!("SIGHUP: secrets and certificates are looked at again");
            instance.inner().shards.iter().for_each(|shard| shard.core.look_at_secrets());
        });
    }
    let address = instance.self_addr().uri().to_owned();
    if let Some(path) = address_file {
        let written = AddressFile::write(path, &address)
            .map_err(|error| Failure::new("cannot write the address file", error))?;
        let _ = file.set(written);
        // Peers may end it, too.
        let remove = remove.clone();
        if let Ok(entered) = instance.on_prefinalize(move |_| remove()) {
            entered.keep();
        }
    }
    // A service does its work whether or not anybody reads its output.
    if let Err(failure) = output::line(format_args!("{LISTENING_ON}{address}")) {
        tracing::warn!("cannot tell the address {address}: {failure}");
    }

    if let Some(metrics) = instance.monitoring().metrics_addr() {
        let _ = output::line(format_args!("{METRICS_AT}http://{metrics}/metrics"));
    }

    let ended = instance.wait_for_finalize();
    remove();
    ended.map_err(|error| {
        let lost = args.snapshot.as_ref().map_or("", |_| "; no snapshot was written");
        Failure::Failed(format!("{error}{lost}"))
    })?;
    args.snapshot.as_ref().map_or(Ok(()), |to| snapshot(&providers.take(), to))
}

/// Has each provider restore the folder of its name.
fn restore(providers: &RunningProviders, from: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::new(format_args!("cannot restore {}", from.display()), error);
    for entry in std::fs::read_dir(from).map_err(|error| failed(error.to_string()))? {
        let path = entry.map_err(|error| failed(error.to_string()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        providers.restore(&name, &path).map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

/// Has each provider write a snapshot to the folder of its name. One that fails does not keep the
/// others from it.
fn snapshot(providers: &RunningProviders, to: &Path) -> Result<(), Failure> {
    let failed = |why: String| Failure::new(format_args!("cannot write {}", to.display()), why);
    std::fs::create_dir(to).map_err(|error| failed(error.to_string()))?;
    let mut wrong = Vec::new();
    for name in providers.names() {
        match providers.snapshot(name, &to.join(name)) {
            Ok(()) => {}
            Err(ProviderError::Asked { source, .. }) if source.is::<Unsupported>() => {
                output::note(format_args!("provider `{name}` has no snapshot: {source}"));
            }
            Err(error) => wrong.push(error.to_string()),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(failed(wrong.join("\n"))) }
}

fn read_config(daemon: &Daemon, args: &ServeArgs) -> Result<Config, Failure> {
    let invalid = |errors: Errors| document::invalid(&args.file, errors);
    let mut config = Config::from_json(&document::read(&args.file)?).map_err(invalid)?;
    if let Some(address) = &args.address {
        config.margo.address.clone_from(address);
    }
    config.margo.dump_on_signal.get_or_insert(DumpSignal::Usr1);
    // What else is wrong is said at the start.
    if let Ok(resolved) = config.resolve(&process_env) {
        check_providers(&resolved, &daemon.components()).map_err(invalid)?;
    }
    if !config.margo.listen {
        let file = document::called(&args.file);
        return Err(Failure::Usage(format!(
            "{file}: `margo.listen` is false, so nobody could call the providers"
        )));
    }
    Ok(config)
}
