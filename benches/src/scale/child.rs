//! The processes of a step: what they are ordered, and that they do it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::client;
use super::layout::Layout;
#[cfg(feature = "peers")]
use super::peers;
use super::server::{Calls, Place, Server, Stack};
use super::units::{self, Units};
use crate::base::{Deadline, Doing, Result, pin};
use crate::process::ChildProcess;
use crate::process::child::{Role, send};

/// The job of a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Serves calls.
    Serve(Calls),
    /// Makes calls.
    Call(Calls, Place),
    /// Serves calls, and makes them.
    ServeAndCall(Calls, Layout),
    /// Runs units.
    Units(Units),
}

/// An order for a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) job: Job,
    /// All of its threads run on these.
    pub(crate) cores: Vec<usize>,
    /// For how long it measures.
    pub(crate) window: Duration,
    /// When it is to be done.
    pub(crate) deadline: Deadline,
}

impl Order {
    /// Starts a process that carries it out. Main thread only.
    ///
    /// # Errors
    ///
    /// When the system starts none.
    pub(crate) fn start(&self) -> Result<ChildProcess> {
        ChildProcess::start(Role::Scale, self, self.deadline)
    }
}

/// Carries out an order, in its process.
///
/// # Errors
///
/// The reason that kept it from that.
pub(crate) fn child(order: &str) -> Result<()> {
    let order: Order = serde_json::from_str(order).doing("reading an order")?;
    let Order { job, cores, window, deadline } = order;
    pin(&cores)?;
    match job {
        Job::Units(units) => send(&units::measure(units, &cores, window, deadline)?),
        Job::Serve(calls) => match calls.stack {
            Stack::Margo(layout) => Server::start(layout, calls, &cores)?.serve(),
            #[cfg(feature = "peers")]
            other => peers::serve(other, &cores),
        },
        Job::Call(calls, place) => match calls.stack {
            Stack::Margo(_) => client::apart(&place, calls, window, deadline),
            #[cfg(feature = "peers")]
            other => peers::call(other, &place, window),
        },
        Job::ServeAndCall(calls, layout) => {
            client::beside(Server::start(layout, calls, &cores)?, calls, window, deadline)
        }
    }
}
