//! Each row runs in a process of its own, under a deadline.
//!
//! So a row that hangs, aborts or leaks spoils neither the others nor their memory figures: the
//! supervisor kills its process and notes why. Two limits: the measurement's own, which tells what
//! it waited for, and a somewhat later one here, for a row that cannot tell any more.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::failure::{Doing, Failure, Result};
use crate::base::row::{Figure, Row};
use crate::base::wait::Deadline;
use crate::catalog::{Case, case};
use crate::process::child::{ChildProcess, Role, interrupted, reap_orphans, send};
use crate::process::context::Context;
use crate::report::machine::{Cores, pin, probe_ns};

/// The settings of all rows of a run.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Where to measure.
    pub(crate) cores: Cores,
    /// As little as shows that the rows work.
    pub(crate) quick: bool,
    /// Longest time that a row may take.
    pub(crate) limit: Duration,
    /// Where programs of C Mercury are that shall be measured beside.
    pub(crate) mercury: Option<PathBuf>,
}

/// How much longer than its own limit a row's process may live.
const GRACE: Duration = Duration::from_secs(3);

/// A row process's command line.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    id: String,
    cores: Cores,
    quick: bool,
    limit: Duration,
    mercury: Option<PathBuf>,
}

/// A row process's answer.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    figure: Figure,
    line_ns: Option<[f64; 2]>,
}

/// Runs one row in a process of its own. Main thread only.
///
/// # Errors
///
/// Only when the user interrupts; a row that fails is a row that says so.
pub(crate) fn run(case: &Case, settings: &Settings) -> Result<Row> {
    let measured = measured_elsewhere(case, settings);
    reap_orphans();
    if interrupted() {
        return Err(Failure::new("interrupted"));
    }
    Ok(match measured {
        Ok(Measured { figure, line_ns }) => {
            Row::measured(&case.id, case.unit, case.target, figure, line_ns)
        }
        Err(failure) => Row::failed(&case.id, case.unit, case.target, failure),
    })
}

fn measured_elsewhere(case: &Case, settings: &Settings) -> Result<Measured> {
    let Settings { cores, quick, limit, mercury } = settings.clone();
    let order = Order { id: case.id.clone(), cores, quick, limit, mercury };
    let mut child = ChildProcess::start(Role::Row, &order)?;
    child.receive("the row's process", Deadline::after(limit + GRACE))
}

/// Runs a row process: measures, answers, ends.
///
/// # Errors
///
/// The reason that kept it from measuring.
pub(crate) fn row_process(order: &str) -> Result<()> {
    let Order { id, cores, quick, limit, mercury } =
        serde_json::from_str(order).doing("reading an order")?;
    let case = case(&id).ok_or_else(|| Failure::new(format!("no row {id}")))?;
    pin(cores.origin)?;
    let context = Context { cores, quick, deadline: Deadline::after(limit), mercury };
    let before = if case.two_cores { Some(probe_ns(cores)?) } else { None };
    // The panic message is on standard error already; here it ends the row, after its guards ran.
    let figure = catch_unwind(AssertUnwindSafe(|| (case.measure)(&context)))
        .unwrap_or_else(|panic| Err(Failure::new(format!("panicked: {}", text_of(&*panic)))))?;
    let line_ns = match before {
        Some(before) => Some([before, probe_ns(cores)?]),
        None => None,
    };
    send(&Measured { figure, line_ns })
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_panic() {
        assert_eq!(text_of(&"plain"), "plain");
        assert_eq!(text_of(&String::from("formatted")), "formatted");
        assert_eq!(text_of(&7), "no text");
    }
}
