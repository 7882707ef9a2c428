//! `margo describe` and `margo call`: services that describe themselves.
//!
//! Imports `args` and `support`. Read `describe.rs` first.

mod call;
mod describe;

use std::time::Duration;

use margo::service::{ServiceDescription, services_of};
use margo::{Addr, Instance, errors::DescribeError};

use crate::support::output;
use margo::daemon::Failure;

pub(crate) use self::call::run as call;
pub(crate) use self::describe::run as describe;

/// The services of a peer.
pub(crate) fn ask(
    instance: &Instance,
    peer: &Addr,
    limit: Duration,
) -> Result<Vec<ServiceDescription>, Failure> {
    services_of(instance, peer, limit).map_err(|error| {
        let help = match &error {
            DescribeError::Unknown { .. } => {
                "; `#[margo::service]` describes what it makes, and so does `Provider::describe`"
            }
            _ => "",
        };
        // It may repeat what the service has sent.
        Failure::Failed(output::printable(&format!("{error}{help}")))
    })
}
