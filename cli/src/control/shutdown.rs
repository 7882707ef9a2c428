//! `margo shutdown`: ends remote services that allow it.
//!
//! The RPC is C Margo's
//! ([`InstanceNetwork::shutdown_remote`](margo::groups::InstanceNetwork::shutdown_remote)), and is
//! sent to each service once. With `--wait` the command then asks each service again and again for
//! the identity of its default provider, a harmless call that every service answers: only a call
//! that fails tells that a peer is gone.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use margo::{
    Addr, ForwardError, HgError, Instance, ProviderHandle, errors::ShutdownRemoteError, na, ult,
};

use crate::args::ShutdownArgs;
use crate::support::output;
use crate::support::peer::{Callers, transport};
use margo::daemon::Failure;

/// Between two questions to a service that is to be gone.
const PAUSE: Duration = Duration::from_millis(20);

/// Time for the answer to one of them.
const ANSWER: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &ShutdownArgs) -> Result<(), Failure> {
    let addresses = addresses(args)?;
    let mut callers = Callers::with(args.client.config.as_deref())?;
    // What can be wrong with any of them is said before one is asked.
    let reached = addresses.iter().map(|address| callers.reach(address));
    let peers = reached.collect::<Result<Vec<_>, _>>()?;
    let ended = end_all(args, peers);
    callers.end().and(ended)
}

/// The addresses that were given, once each.
fn addresses(args: &ShutdownArgs) -> Result<Vec<String>, Failure> {
    let mut all: Vec<String> = Vec::new();
    let files = args.address_file.iter().map(|file| address_in(file));
    for address in args.addresses.iter().cloned().map(Ok).chain(files) {
        let address = address?;
        if !all.contains(&address) {
            all.push(address);
        }
    }
    Ok(all)
}

fn address_in(file: &Path) -> Result<String, Failure> {
    let name = file.display();
    let text = fs::read_to_string(file).map_err(|error| {
        Failure::Failed(format!(
            "cannot read an address from {name}: {error}; a service writes it when it is up, and \
             removes it when it ends"
        ))
    })?;
    let address = text.trim();
    match transport(address) {
        Some(_) => Ok(address.to_owned()),
        None => Err(Failure::Failed(format!("{name} does not hold the address of a service"))),
    }
}

/// Asks all at once. A service that does not end does not keep the others from ending.
fn end_all(args: &ShutdownArgs, peers: Vec<(Instance, Addr)>) -> Result<(), Failure> {
    let (wait, limit) = (args.wait, Duration::from_secs_f64(args.limit));
    let mut asked = Vec::with_capacity(peers.len());
    for (instance, peer) in peers {
        let (own, whom) = (instance.clone(), peer.clone());
        let ask = move || end(&own, &whom, wait, limit);
        let ult = instance.layout().rpc_pool().spawn(ask);
        asked.push((peer, ult.map_err(|error| Failure::new("cannot ask", error))?));
    }
    let (mut told, mut failed) = (Ok(()), Vec::new());
    for (peer, ult) in asked {
        let end = ult.join().map_err(|error| Failure::new("cannot ask", error))?;
        match end {
            Ok(()) => {
                let what = if wait { "is gone" } else { "shuts down" };
                // They end whether or not anybody reads it.
                told = told.and_then(|()| output::line(format_args!("{peer} {what}")));
            }
            Err(why) => failed.push(why),
        }
    }
    match failed.is_empty() {
        true => told,
        false => Err(Failure::Failed(failed.join("\n"))),
    }
}

/// Has one service shut down, and waits for its end; or why not.
fn end(own: &Instance, peer: &Addr, wait: bool, limit: Duration) -> Result<(), String> {
    let begun = Instant::now();
    match own.network().shutdown_remote_timed(peer, limit) {
        Ok(()) => {}
        // Somebody else has asked for it.
        Err(ShutdownRemoteError::Forward(ForwardError::PeerClosing { .. })) => {}
        Err(error) => return Err(explained(&error)),
    }
    let left = || limit.saturating_sub(begun.elapsed());
    while wait && !is_gone(own, peer, left())? {
        if left().is_zero() {
            return Err(format!(
                "{peer} has agreed to shut down, and is still there after {limit:?}"
            ));
        }
        ult::sleep(PAUSE.min(left()));
    }
    Ok(())
}

/// Returns true if nobody is at that address any more, as far as can be told within `left`.
fn is_gone(own: &Instance, peer: &Addr, left: Duration) -> Result<bool, String> {
    let asked =
        own.network().identity_of_timed(&ProviderHandle::from(peer.clone()), left.min(ANSWER));
    match asked {
        Err(ForwardError::Network { source: HgError::Na(error), .. }) => match error {
            na::Error::PeerGone { .. } | na::Error::Unreachable { .. } => Ok(true),
            error => Err(format!("cannot tell whether {peer} is gone: {error}")),
        },
        // Elsewhere it may have been stopped, or not find the time.
        Err(ForwardError::TimedOut { .. }) => Ok(peer.uri().starts_with("ofi") && left >= ANSWER),
        _ => Ok(false),
    }
}

/// An error with what to do about it.
fn explained(error: &ShutdownRemoteError) -> String {
    let help = match error {
        ShutdownRemoteError::NotEnabled { .. } => {
            "; write \"margo\": { \"remote_shutdown\": true } into its configuration, or have the \
             program allow it (enable_remote_shutdown, in C margo_enable_remote_shutdown)"
        }
        ShutdownRemoteError::Forward(ForwardError::NotRegistered { .. }) => {
            "; it is no program of margo's"
        }
        ShutdownRemoteError::Forward(ForwardError::TimedOut { .. }) => {
            "; it is stopped, or has too much to do, or nobody is there, which not every transport \
             tells. It may shut down all the same; --limit gives it more time"
        }
        _ => "",
    };
    // It may repeat what the service has sent.
    output::printable(&format!("{error}{help}"))
}
