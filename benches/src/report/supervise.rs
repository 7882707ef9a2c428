//! Each row runs in a process of its own, under a deadline.
//!
//! So a row that hangs, aborts or leaks spoils neither the others nor their memory figures: the
//! supervisor kills its process and notes why. Two limits: the measurement's own, which tells what
//! it waited for, and a somewhat later one here, for a row that cannot tell any more.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde_json::Value;

use crate::base::{Doing, Failure, Figure, OrFail, Result, Row, ensure, pin};
use crate::catalog::{Case, case};
use crate::floors::lines::probe_ns;
use crate::process::Context;
use crate::process::child::{ChildProcess, Role, die_with_parent, send};
use crate::process::signals::{interrupted, reap_orphans};
use crate::scale;

/// How much longer than its own limit a row's process may live.
const GRACE: Duration = Duration::from_secs(3);

/// A row process's answer: the figure, and the round trip of a line before and after it.
type Measured = (Figure, Option<[f64; 2]>);

/// Runs one row in a process of its own. Main thread only.
///
/// # Errors
///
/// Only when the user interrupts; a row that fails is a row that says so.
pub(crate) fn run(case: &Case, context: &Context) -> Result<Row> {
    let context = context.for_row(&case.id);
    let child = ChildProcess::start(Role::Row, &(&context, ()), context.deadline.again(GRACE));
    let measured: Result<Measured> = child.and_then(|mut child| child.receive("the row's process"));
    reap_orphans();
    ensure!(!interrupted(), "interrupted");
    Ok(match measured {
        Ok((figure, line_ns)) => Row::measured(&case.id, case.unit, case.target, figure, line_ns),
        Err(failure) => Row::failed(&case.id, case.unit, case.target, failure),
    })
}

/// Runs a child process: a row's, which measures, answers and ends, or a peer's.
///
/// # Errors
///
/// The reason that kept it from measuring.
pub(crate) fn child(role: Role, words: &[String]) -> Result<()> {
    let [parent, order] = words else { return Err(Failure::new("started without an order")) };
    die_with_parent(parent)?;
    if role == Role::Scale {
        return scale::child(order);
    }
    let (context, order): (Context, Value) =
        serde_json::from_str(order).doing("reading an order")?;
    let case = case(&context.id).or_fail("no such row")?;
    if role == Role::Row {
        return send(&measured(&case, &context)?);
    }
    pin(&[context.cores.target()?])?;
    (case.answer)(&context, order)
}

fn measured(case: &Case, context: &Context) -> Result<Measured> {
    pin(&[context.cores.origin])?;
    let probe = || case.two_cores.then(|| probe_ns(context.cores)).transpose();
    let before = probe()?;
    // The panic message is on standard error already; here it ends the row, after its guards ran.
    let figure = catch_unwind(AssertUnwindSafe(|| (case.measure)(context)))
        .unwrap_or_else(|panic| Err(Failure::new(format!("panicked: {}", text_of(&*panic)))))?;
    Ok((figure, before.zip(probe()?).map(|(before, after)| [before, after])))
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
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
