//! `margo serve`: runs the providers of a configuration, and says which documents it could run.
//!
//! Imports `support` and `args`. Read [`run`]; `pool_stats.rs` is an RPC that the demo calls.

pub(crate) mod pool_stats;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use margo::{AddressFile, Instance, component::Component};
use margo_config::{Config, DumpSignal, Errors, MonitoringOptions, Resolved, nearest, process_env};
use margo_provider_blob::BlobComponent;
use margo_provider_echo::EchoComponent;

use crate::args::ServeArgs;
use crate::support::failure::Failure;
use crate::support::signals::{Caught, die_with};
use crate::support::{document, output};

/// The components that can stand in `type` of a provider.
const COMPONENTS: [&dyn Component; 2] = [&BlobComponent, &EchoComponent];

/// How the line begins that says that the service is up.
pub(crate) const LISTENING_ON: &str = "listening on ";

/// How the line begins that says where Prometheus finds it, if it does.
const METRICS_AT: &str = "metrics at ";

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    if let Some(parent) = args.die_with {
        die_with(parent)?;
    }
    let signals = Caught::new()?;
    let mut config = read_config(args)?;
    // Written below, when the providers have started.
    let address_file = config.margo.address_file.take().map(PathBuf::from);
    let address_file = args.address_file.clone().or(address_file);
    let instance = Instance::from_config(&config)
        .map_err(|error| Failure::new(document::called(&args.file), error))?;
    pool_stats::register(&instance)
        .map_err(|error| Failure::new("cannot serve pool statistics", error))?;
    let providers = instance
        .start_providers(&COMPONENTS)
        .map_err(|error| Failure::new(document::called(&args.file), error))?;

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
    drop(providers);
    ended.map_err(|error| Failure::Failed(error.to_string()))
}

/// Says what is wrong with the settings of the providers that this program has.
pub(crate) fn check_providers(resolved: &Resolved) -> Result<(), Errors> {
    margo::component::check_providers(resolved, &COMPONENTS)
}

/// The parts of a document that this program does not serve: for people, a line each.
#[derive(Default)]
pub(crate) struct NotServed {
    /// It is for another program, with providers or a monitor of its own.
    pub(crate) foreign: Vec<String>,
    /// It is most likely misspelt.
    pub(crate) misspelt: Vec<String>,
}

/// Looks for providers that this program has not, nor another one that has those of the types
/// `others`, and for a monitor that it has not.
pub(crate) fn not_served(config: &Config, others: &[String]) -> NotServed {
    let types = COMPONENTS.map(Component::type_name);
    let own = types.join(", ");
    let mut found = NotServed::default();
    for (index, provider) in config.margo.providers.iter().enumerate() {
        let name = &provider.type_name;
        if types.contains(&name.as_str()) || others.contains(name) {
            continue;
        }
        let path = format!("margo.providers[{index}].type");
        let known: Vec<&str> = types.into_iter().chain(others.iter().map(String::as_str)).collect();
        match nearest(name, &known) {
            Some(meant) => found.misspelt.push(format!(
                "{path}: did you mean `{meant}`? `margo serve` has no providers of type `{name}` \
                 (it has {own}); if another program has, say so with --provider-type {name}"
            )),
            None => found.foreign.push(format!(
                "{path}: `margo serve` has no providers of type `{name}` (it has {own}); other \
                 programs may"
            )),
        }
    }
    let monitoring = config.monitoring.as_ref();
    if let Some(monitoring) = monitoring.filter(|given| MonitoringOptions::of(given) == Ok(None)) {
        let name = &monitoring["name"];
        found.foreign.push(format!(
            "monitoring.name: `margo serve` has no monitor {name} (it has \"default\"); other \
             programs may"
        ));
    }
    found
}

fn read_config(args: &ServeArgs) -> Result<Config, Failure> {
    let invalid = |errors: Errors| document::invalid(&args.file, errors);
    let mut config = Config::from_json(&document::read(&args.file)?).map_err(invalid)?;
    if let Some(address) = &args.address {
        config.margo.address.clone_from(address);
    }
    config.margo.dump_on_signal.get_or_insert(DumpSignal::Usr1);
    // What else is wrong is said at the start.
    if let Ok(resolved) = config.resolve(&process_env) {
        check_providers(&resolved).map_err(invalid)?;
    }
    if !config.margo.listen {
        let file = document::called(&args.file);
        return Err(Failure::Usage(format!(
            "{file}: `margo.listen` is false, so nobody could call the providers"
        )));
    }
    Ok(config)
}
