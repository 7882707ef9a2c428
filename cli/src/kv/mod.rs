//! `margo kv`: a key-value store from the command line.
//!
//! Imports `args`, `support` and `services`. Read this file, then `lines.rs` (the format of dumps),
//! `dump.rs`, `members.rs` and `bench.rs`.

mod bench;
mod dump;
mod lines;
mod members;
mod progress;

use std::ffi::OsStr;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use margo::daemon::Failure;
use margo::{Addr, Instance, ProviderHandle, ProviderId};
use margo_provider_kv::{ClientError, IDENTITY, KvClient, Selection};

use crate::args::{KvArgs, KvCommand};
use crate::services;
use crate::support::output;
use crate::support::peer::{Callers, transport};

/// `margo kv …`.
pub(crate) fn run(command: &KvCommand) -> Result<(), Failure> {
    match command {
        KvCommand::Put { of, key, value } => {
            let value = value_of(of, value)?;
            on(of, |kv, limit| kv.put(key.as_bytes(), &value, limit).map(drop).map_err(failed))
        }
        KvCommand::Get { of, key } => {
            on(of, |kv, limit| print(&kv.get(key.as_bytes(), limit).map_err(failed)?.value))
        }
        KvCommand::Erase { of, key } => {
            on(of, |kv, limit| match kv.erase(key.as_bytes(), limit).map_err(failed)? {
                true => Ok(()),
                false => Err(failed(margo_provider_kv::KvError::NotFound.into())),
            })
        }
        KvCommand::List { of, prefix } => on(of, |kv, limit| {
            kv.keys(beginning(prefix), limit).try_for_each(|entry| {
                let key = entry.map_err(failed)?.key;
                output::line(output::printable(&String::from_utf8_lossy(&key)))
            })
        }),
        KvCommand::Dump { of, prefix } => on(of, |kv, limit| dump::dump(kv, prefix, limit)),
        KvCommand::Load { of, file } => {
            one_of_standard_input(of, file)?;
            on(of, |kv, limit| dump::load(kv, file, limit))
        }
        KvCommand::Members { of, add, remove, finish, take_back } => {
            let wanted =
                members::WantedMembers { add, remove, finish: *finish, take_back: *take_back };
            members::run(of, &wanted)
        }
        KvCommand::Bench { of, keys, value_bytes, in_flight } => {
            let load = bench::Load { keys: *keys, value_bytes: *value_bytes, window: *in_flight };
            on(of, |kv, limit| load.run(kv, limit))
        }
    }
}

/// Does something with the store that is meant.
fn on(
    args: &KvArgs,
    work: impl FnOnce(&KvClient, Duration) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let limit = Duration::from_secs_f64(args.timeout);
    let mut callers = Callers::with(args.client.config.as_deref())?;
    let done = client(args, &mut callers, limit).and_then(|kv| work(&kv, limit));
    done.and(callers.end())
}

/// A client of the servers that are meant.
fn client(args: &KvArgs, callers: &mut Callers, limit: Duration) -> Result<KvClient, Failure> {
    let addresses: Vec<_> = args.address.split(',').collect();
    let (instance, _) = callers.reach(addresses[0])?;
    if addresses.iter().any(|address| transport(address) != transport(addresses[0])) {
        return Err(Failure::Usage("the addresses are of several transports".to_owned()));
    }
    let target = |address: &&str| {
        let (instance, peer) = callers.reach(address)?;
        store(args, &instance, &peer, limit)
    };
    let targets = addresses.iter().map(target).collect::<Result<Vec<_>, _>>()?;
    KvClient::cluster(&instance, targets, limit).map_err(failed)
}

/// The provider that is meant, which is asked whether it is a key-value store.
fn store(
    args: &KvArgs,
    instance: &Instance,
    peer: &Addr,
    limit: Duration,
) -> Result<ProviderHandle, Failure> {
    if let Some(id) = args.provider_id {
        let target = ProviderHandle::new(peer.clone(), ProviderId::new(id));
        let checked = instance.network().check_identity_timed(&target, IDENTITY, limit);
        return match checked {
            Ok(()) => Ok(target),
            Err(error) => Err(Failure::Failed(output::printable(&error.to_string()))),
        };
    }
    let services = services::ask(instance, peer, limit)?;
    let found: Vec<_> = services.iter().filter(|service| service.name == IDENTITY).collect();
    match *found {
        [only] => Ok(ProviderHandle::new(peer.clone(), ProviderId::new(only.provider))),
        [] => Err(Failure::Failed(format!("there is no key-value store at {peer}"))),
        ref several => {
            let ids: Vec<_> = several.iter().map(|service| service.provider.to_string()).collect();
            Err(Failure::Usage(format!(
                "there are several key-value stores at {peer}; say which one by --provider-id: {}",
                ids.join(", ")
            )))
        }
    }
}

/// A failed call, in words; the service has chosen some of them.
fn failed(error: ClientError) -> Failure {
    Failure::Failed(output::printable(&error.to_string()))
}

fn beginning(prefix: &OsStr) -> Selection {
    Selection::prefix(prefix.as_bytes())
}

/// The value that was typed, or comes on standard input.
fn value_of(args: &KvArgs, value: &OsStr) -> Result<Vec<u8>, Failure> {
    if value != "-" {
        return Ok(value.as_bytes().to_owned());
    }
    one_of_standard_input(args, Path::new("-"))?;
    let mut read = Vec::new();
    let done = std::io::stdin().read_to_end(&mut read);
    done.map_err(|error| Failure::new("cannot read standard input", error))?;
    Ok(read)
}

/// Refuses standard input for two things.
fn one_of_standard_input(args: &KvArgs, file: &Path) -> Result<(), Failure> {
    let dash = Path::new("-");
    if file == dash && args.client.config.as_deref() == Some(dash) {
        let text = "standard input is either the data or the document: name a file for one";
        return Err(Failure::Usage(text.to_owned()));
    }
    Ok(())
}

/// Writes a value to standard output, for terminals with a line end.
fn print(value: &[u8]) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let end: &[u8] = if stdout.is_terminal() { b"\n" } else { b"" };
    let written = stdout.write_all(value).and_then(|()| stdout.write_all(end));
    written.and_then(|()| stdout.flush()).map_err(unwritten)
}

/// An error of standard output.
fn unwritten(error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::new("cannot write to standard output", output::why(&error)),
    }
}
