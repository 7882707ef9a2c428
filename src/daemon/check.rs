//! Checking a document without starting anything.

use margo_config::{
    Config, ConfigFlags, Error, Errors, MonitoringOptions, Resolved, Warning, nearest, process_env,
};

use super::Daemon;
use super::args::CheckArgs;
use super::callers;
use super::devices;
use super::failure::Failure;
use super::support::{document, output};
use crate::layout::network_check::check_network;
use crate::layout::options::start_warnings;
use crate::layout::plan::Layout;
use crate::providers::component::check_providers;

/// Checks a document: for this program; with `others` for any program, of which these are types of
/// providers.
pub(super) fn run(
    daemon: &Daemon,
    args: &CheckArgs,
    others: Option<&[String]>,
) -> Result<(), Failure> {
    let called = document::called(&args.file);
    let text = document::read(&args.file)?;
    let flags = ConfigFlags { use_names: args.names, ..ConfigFlags::default() };
    let (mut at_start, mut may_call) = (Vec::new(), Vec::new());
    let mut of_devices = Ok(Vec::new());
    let checked = Config::check_with(&text, &process_env, flags, |resolved| {
        at_start = start_warnings(resolved);
        of_devices = devices::explain(resolved, None);
        may_call = resolved.security.as_ref().map(callers::explain).unwrap_or_default();
        let types = if others.is_none() { own_types(daemon, resolved) } else { Ok(()) };
        let found =
            [check_network(resolved), check_providers(resolved, &daemon.components()), types];
        Errors::none_of(found.into_iter().filter_map(Result::err).flatten())
    });
    let (effective, warnings) = checked.map_err(|errors| {
        let lines: Vec<_> = errors.iter().map(|error| format!("  {error}")).collect();
        document::invalid(&args.file, lines.join("\n"))
    })?;
    let explained = Layout::explain(&effective);
    let NotServed { foreign, misspelt } = not_served(daemon, &effective, others.unwrap_or(&[]));
    let is_never_kept_waiting = warnings.is_empty();
    let warnings: Vec<_> = warnings.iter().map(Warning::to_string).chain(at_start).collect();
    let lacking = explained.as_ref().err().map(ToString::to_string);
    let elsewhere = lacking.iter().chain(of_devices.as_ref().err());
    let elsewhere = elsewhere.map(|error| format!("it does not start on this machine: {error}"));
    let elsewhere: Vec<_> = elsewhere.collect();
    let remarks: Vec<_> = warnings.iter().chain(&elsewhere).chain(&misspelt).collect();
    for remark in &remarks {
        output::note(format_args!("{called}: warning: {remark}"));
    }
    for remark in &foreign {
        output::note(format_args!("{called}: note: {remark}"));
    }
    if !args.json {
        let mut lines = explained.unwrap_or_default();
        if is_never_kept_waiting {
            lines.push(
                "No pool that is in use can be kept waiting by the order of pools.".to_owned(),
            );
        }
        lines.extend(of_devices.unwrap_or_default());
        lines.extend(may_call);
        let warned = warnings.iter().chain(&misspelt);
        lines.extend(warned.map(|warning| format!("Warning: {warning}")));
        lines.extend(foreign);
        for line in lines.iter().flat_map(|text| text.lines()) {
            output::line(format_args!("// {line}"))?;
        }
    }
    output::line(effective.to_json_pretty())?;
    if args.strict && !remarks.is_empty() {
        let warnings = output::count(remarks.len() as u64, "warning");
        return Err(Failure::Failed(format!("{called}: {warnings}, and --strict is given")));
    }
    Ok(())
}

/// A provider of a type that this program has not.
struct Unknown {
    path: String,
    name: String,
    why: String,
    /// The known type that is most likely meant.
    meant: Option<String>,
}

/// Looks for types that neither this program nor one of those with the types `others` has; an empty
/// one has been told of.
fn unknown_types<'a>(
    daemon: &Daemon,
    names: impl Iterator<Item = &'a String>,
    others: &[String],
) -> Vec<Unknown> {
    let own: Vec<_> = daemon.components.iter().map(|one| one.type_name()).collect();
    let known: Vec<_> = own.iter().copied().chain(others.iter().map(String::as_str)).collect();
    let unknown = names
        .enumerate()
        .filter(|(_, name)| !name.is_empty() && !known.contains(&name.as_str()))
        .map(|(index, name)| Unknown {
            path: format!("margo.providers[{index}].type"),
            name: name.clone(),
            why: format!(
                "`{}` has no providers of type `{name}` (it has {})",
                daemon.command,
                own.join(", ")
            ),
            meant: nearest(name, &known).map(str::to_owned),
        });
    unknown.collect()
}

/// Refuses types of providers that this program has not.
fn own_types(daemon: &Daemon, resolved: &Resolved) -> Result<(), Errors> {
    let names = resolved.providers.iter().map(|provider| &provider.type_name);
    Errors::none_of(unknown_types(daemon, names, &[]).into_iter().map(
        |Unknown { path, why, meant, .. }| {
            let meant =
                meant.map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
            Error::new(path, why + &meant)
        },
    ))
}

/// The parts of a document that this program does not serve: for people, a line each.
#[derive(Default)]
struct NotServed {
    /// It is for another program, with providers or a monitor of its own.
    foreign: Vec<String>,
    /// It is most likely misspelt.
    misspelt: Vec<String>,
}

/// Looks for providers that this program has not, nor another one that has those of the types
/// `others`, and for a monitor that it has not.
fn not_served(daemon: &Daemon, config: &Config, others: &[String]) -> NotServed {
    let mut found = NotServed::default();
    let names = config.margo.providers.iter().map(|provider| &provider.type_name);
    for Unknown { path, name, why, meant } in unknown_types(daemon, names, others) {
        match meant {
            Some(meant) => found.misspelt.push(format!(
                "{path}: did you mean `{meant}`? {why}; if another program has, say so with \
                 --types {name}"
            )),
            None => found.foreign.push(format!("{path}: {why}; other programs may")),
        }
    }
    let monitoring = config.monitoring.as_ref();
    if let Some(monitoring) = monitoring.filter(|given| MonitoringOptions::of(given) == Ok(None)) {
        let name = &monitoring["name"];
        found.foreign.push(format!(
            "monitoring.name: `{}` has no monitor {name} (it has \"default\"); other programs may",
            daemon.command
        ));
    }
    found
}
