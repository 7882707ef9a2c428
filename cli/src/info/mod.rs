//! `margo info`: shows the machine, the outcome of a document on it, and the transports that work.
//!
//! The last question is answered by trying: two endpoints of this process, one message from one to
//! the other; over shared memory also with an endpoint of another process (`second.rs`).
//!
//! Imports `support`. Read this file, then `machine.rs` and `second.rs`.

mod machine;
pub(crate) mod second;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::config::process_env;
use margo::na::{self, Completion, Endpoint, OpId, OpenOptions, Plugin, Tag};
use margo::ult::Topology;
use margo::{config::Config, elasticity::Layout};
use serde::Serialize;

use self::machine::Machine;
use self::second::{TEXT, text};
use crate::support::{document, output};
use margo::daemon::Failure;

/// How long a message may take. Only a transport that does not work takes longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The outcome of the attempt with one transport.
#[derive(Debug, Serialize)]
struct Report {
    /// The transport, as in addresses.
    transport: String,
    /// The use of the transport, in one line.
    summary: String,
    /// True if a message arrived.
    works: bool,
    /// How bulk data moves, if it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    bulk_path: Option<String>,
    /// Why it does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The devices that it can use here, if it depends on devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<DeviceReport>,
}

/// A device of a transport.
#[derive(Debug, Serialize)]
struct DeviceReport {
    /// The part before `://` of its addresses.
    protocol: String,
    name: String,
    address: String,
    summary: &'static str,
    /// It moves memory of GPUs by itself.
    moves_device_memory: bool,
}

impl Report {
    /// `result`: how bulk data moves, or why the transport does not work.
    fn new(
        transport: &str,
        plugin: Option<&dyn Plugin>,
        summary: &str,
        result: Result<String, String>,
    ) -> Self {
        let devices = plugin.and_then(|plugin| plugin.devices().ok()).unwrap_or_default();
        let device = |device: na::Device| DeviceReport {
            protocol: device.protocol,
            name: device.name,
            address: device.address,
            summary: device.summary,
            moves_device_memory: device.moves_device_memory,
        };
        Self {
            transport: transport.to_owned(),
            summary: summary.to_owned(),
            works: result.is_ok(),
            reason: result.as_ref().err().cloned(),
            bulk_path: result.ok(),
            devices: devices.into_iter().map(device).collect(),
        }
    }
}

/// `margo info`; `settings` is the document whose settings an address is tried with.
pub(crate) fn run(file: Option<&Path>, json: bool, settings: Option<&Path>) -> Result<(), Failure> {
    let machine = Machine::new();
    let topology = Topology::get();
    let address = file.and_then(Path::to_str).filter(|text| text.contains("://"));
    let file = file.filter(|_| address.is_none());
    let layout = file.map(layout_of).transpose()?;
    if settings.is_some() && address.is_none() {
        return Err(Failure::Usage("--config goes with an address, which it is for".to_owned()));
    }
    let reports = match address {
        Some(address) => vec![attempt_at(address, &options(settings, address)?)],
        None => na::plugins().iter().map(|plugin| attempt(*plugin)).collect(),
    };
    let failed = address.filter(|_| reports.iter().any(|report| !report.works));
    print(&machine, topology, file.zip(layout), reports, json)?;
    match failed {
        Some(address) => Err(Failure::Failed(format!("{address} does not work here"))),
        None => Ok(()),
    }
}

fn print(
    machine: &Machine,
    topology: Result<&Topology, margo::ult::TopologyError>,
    layout: Option<(&Path, Layout)>,
    reports: Vec<Report>,
    json: bool,
) -> Result<(), Failure> {
    if json {
        let all = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "machine": machine,
            "topology": topology.as_ref().map_or_else(|error| text(error).into(), |t| described(t)),
            "layout": layout.map(|(_, layout)| layout),
            "transports": reports,
        });
        return output::line(format_args!("{all:#}"));
    }
    output::line(format_args!("margo {}", env!("CARGO_PKG_VERSION")))?;
    for (what, value) in machine.lines() {
        output::line(format_args!("{what:<12}{value}"))?;
    }
    let lines = topology.map_or_else(|error| text(&error), ToString::to_string);
    let labels = std::iter::once("topology").chain(std::iter::repeat(""));
    for (label, line) in labels.zip(lines.lines()) {
        output::line(format_args!("{label:<12}{line}"))?;
    }
    if let Some((file, layout)) = layout {
        output::line(format_args!("\n{} comes to", document::called(file)))?;
        output::line(layout)?;
    }
    for report in reports {
        output::line(format_args!("\n{:<12}{}", report.transport, report.summary))?;
        match (report.bulk_path, report.reason) {
            (Some(path), _) => output::line(format_args!("{:<12}works; bulk data: {path}", ""))?,
            (None, reason) => {
                let reason = reason.unwrap_or_default();
                output::line(format_args!("{:<12}does not work here: {reason}", ""))?;
            }
        }
        for line in device_lines(&report.devices) {
            output::line(format_args!("{:<12}{line}", ""))?;
        }
    }
    Ok(())
}

/// A line for each, with what they are for below each other.
fn device_lines(devices: &[DeviceReport]) -> Vec<String> {
    let named = devices.iter().map(|device| {
        let DeviceReport { protocol, name, address, summary, moves_device_memory } = device;
        let of_gpus = if *moves_device_memory { "; FI_HMEM" } else { "" };
        (format!("{protocol}://  {name} ({address})"), format!("{summary}{of_gpus}"))
    });
    let named: Vec<_> = named.collect();
    let widest = named.iter().map(|(device, _)| device.chars().count()).max().unwrap_or(0);
    named.iter().map(|(device, summary)| format!("{device:<widest$}  {summary}")).collect()
}

/// The pools and execution streams that a document comes to on this machine.
fn layout_of(file: &Path) -> Result<Layout, Failure> {
    let text = document::read(file)?;
    let (effective, warnings) =
        Config::check(&text, &process_env).map_err(|errors| document::invalid(file, errors))?;
    for warning in warnings {
        output::note(format_args!("{}: warning: {warning}", document::called(file)));
    }
    Layout::of(&effective).map_err(|error| document::invalid(file, error))
}

fn described(topology: &Topology) -> serde_json::Value {
    let nodes = topology.numa_nodes().iter().map(|node| {
        serde_json::json!({
            "id": node.id,
            "cpus": node.cpus.iter().collect::<Vec<_>>(),
            "memory_bytes": node.memory_bytes,
        })
    });
    let packages = topology.packages().iter().map(|package| package.cpus.iter().collect());
    serde_json::json!({
        "source": topology.source(),
        "cpus_online": topology.online().iter().collect::<Vec<_>>(),
        "cpus_allowed": topology.allowed().iter().collect::<Vec<_>>(),
        "cores": topology.cores().len(),
        "packages": packages.collect::<Vec<Vec<_>>>(),
        "numa_nodes": nodes.collect::<Vec<_>>(),
        "notes": topology.notes(),
    })
}

fn attempt(plugin: &dyn Plugin) -> Report {
    let result = message_between(plugin.probe_uri(), plugin.probe_uri(), &OpenOptions::default());
    let transport = plugin.probe_uri().split("://").next().unwrap_or(plugin.name());
    Report::new(transport, Some(plugin), plugin.summary(), result)
}

/// The settings of a document for an address.
fn options(file: Option<&Path>, address: &str) -> Result<OpenOptions, Failure> {
    let Some(file) = file else { return Ok(OpenOptions::default()) };
    let invalid = |errors| document::invalid(file, errors);
    let mut config = Config::from_json(&document::read(file)?).map_err(invalid)?;
    address.clone_into(&mut config.margo.address);
    let resolved = config.resolve(&process_env).map_err(invalid)?;
    Ok(margo::elasticity::na_options(&resolved))
}

/// Tries the address as a service would open it.
fn attempt_at(address: &str, options: &OpenOptions) -> Report {
    let transport = address.split("://").next().unwrap_or(address);
    let name = transport.trim_start_matches("na+");
    let class = transport.split('+').next().unwrap_or(transport);
    let plugin = na::plugins().iter().find(|plugin| [name, class].contains(&plugin.name()));
    let plugin = plugin.copied();
    // A simulated network has a name; elsewhere who calls needs no place of its own.
    let calling = format!("{transport}://");
    let calling = if name == "sim" { address } else { &calling };
    let result = message_between(address, calling, options);
    Report::new(transport, plugin, plugin.map_or(address, |plugin| plugin.summary()), result)
}

/// Sends a message from an endpoint to another, which listens. Answers how bulk data moves.
fn message_between(
    listening: &str,
    calling: &str,
    options: &OpenOptions,
) -> Result<String, String> {
    let address = listening;
    let (mut listens, mut calls) = (options.clone(), options.clone());
    (listens.listen, calls.listen) = (true, false);
    let listening = na::open(address, &listens).map_err(text)?;
    let calling = na::open(calling, &calls).map_err(text)?;
    let result = message(&listening, &calling);
    let path = calling.bulk_path();
    let is_sm = calling.transport() == "sm";
    calling.close();
    listening.close();
    drop((calling, listening));
    result?;
    // A process may always attach to itself.
    if is_sm { second::bulk_path_to(address, &calls, PATIENCE) } else { Ok(path) }
}

fn message(listening: &Arc<dyn Endpoint>, calling: &Arc<dyn Endpoint>) -> Result<(), String> {
    listening.recv_unexpected(OpId(1), listening.alloc_msg()).map_err(text)?;
    let peer = calling.lookup(listening.self_addr().uri()).map_err(text)?;
    calling.send_unexpected(OpId(2), &peer, Tag(3), second::message(calling)?).map_err(text)?;

    let deadline = Instant::now() + PATIENCE;
    loop {
        // Both are polled in turn; the first message or the first failure decides.
        for endpoint in [listening, calling] {
            let mut outcome = None;
            let mut sink = |completion| match completion {
                Completion::Recv { buf, result: Ok(_), .. } => {
                    outcome = Some(if buf.as_slice() == TEXT {
                        Ok(())
                    } else {
                        Err("a message arrived with other contents".to_owned())
                    });
                }
                Completion::Recv { result: Err(error), .. }
                | Completion::Send { result: Err(error), .. } => {
                    outcome = Some(Err(error.to_string()));
                }
                _ => {}
            };
            endpoint.poll(16, &mut sink).map_err(text)?;
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        if Instant::now() > deadline {
            return Err(format!("a message to itself did not arrive within {PATIENCE:?}"));
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_address_does_not_run_into_what_comes_behind_it() {
        let device = |name: &str, address: &str| DeviceReport {
            protocol: "ofi+tcp;ofi_rxm".to_owned(),
            name: name.to_owned(),
            address: address.to_owned(),
            summary: "TCP",
            moves_device_memory: name == "lo",
        };
        let lines = device_lines(&[
            device("lo", "::1"),
            device("a_long_name", "fe80:0123:4567:89ab:cdef:0123:4567:89ab"),
        ]);
        assert!(lines[0].ends_with("  TCP; FI_HMEM"), "{lines:#?}");
        assert!(lines[1].ends_with(":89ab)  TCP"), "{lines:#?}");
        let places: Vec<_> = lines.iter().map(|line| line.rfind("TCP")).collect();
        assert_eq!(places[0], places[1], "{lines:#?}");
        assert_eq!(device_lines(&[]), [""; 0]);
    }
}
