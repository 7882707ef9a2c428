//! A run: one step after the other, until the time is over.

use std::fs::File;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::arguments::Arguments;
use super::child::Job;
use super::line::Line;
use super::plan::{Plan, Step, What};
use super::rpc::Setting;
use super::server::{Calls, Work};
use super::units::Told;
use super::{programs, rpc};
use crate::base::{Deadline, Doing, Failure, Result, UNREAD, ensure, say};
use crate::process::signals::{self, interrupted};

/// How long a step may take beside its windows, if that much of the time is left.
const STEP_MAX: Duration = Duration::from_secs(20);

/// The whole run; `header` is printed first.
///
/// # Errors
///
/// When nothing can be measured or written, and when the user interrupts. A step that fails is a
/// line that says so.
pub(crate) fn run(arguments: &Arguments, header: &[String]) -> Result<ExitCode> {
    let cores = arguments.cores()?;
    let plan = Plan::new(arguments, cores.len())?;
    if arguments.list {
        let read = say(plan.steps.iter().map(|step| &step.id))?;
        return Ok(if read { ExitCode::SUCCESS } else { ExitCode::from(UNREAD) });
    }
    signals::catch_interrupts();
    signals::adopt_orphans()?;
    let path = arguments.json.as_deref();
    let file = path.map(|path| File::create(path).doing(&format!("making {}", path.display())));
    let mut output = Output { file: file.transpose()?, lines: Vec::new(), is_read: true };
    output.begin(header, &plan, &cores)?;
    let end = Deadline::after(arguments.time());
    output.measure(&plan, &cores, end)?;
    let failed = output.lines.iter().any(|line| line.number("value").is_none());
    Ok(match (output.is_read || output.file.is_some(), failed) {
        (false, _) => ExitCode::from(UNREAD),
        (true, true) => ExitCode::FAILURE,
        (true, false) => ExitCode::SUCCESS,
    })
}

/// Where results go.
struct Output {
    file: Option<File>,
    lines: Vec<Line>,
    /// Somebody reads the table.
    is_read: bool,
}

impl Output {
    fn begin(&mut self, header: &[String], plan: &Plan, cores: &[usize]) -> Result<()> {
        let mut head: Vec<String> = header.iter().map(|line| format!("# {line}")).collect();
        let (steps, window) = (plan.steps.len(), plan.window.as_secs_f64());
        head.push(format!("# cores    {cores:?}, of which the server has the first"));
        head.push(format!("# steps    {steps}, each measures for {window:.2} s"));
        if plan.steps.iter().any(|step| matches!(step.what, What::Beside(..))) {
            head.push(
                "# beside   too few cores to share out: the clients run on the server's xstreams, \
                 `busy` is of both"
                    .into(),
            );
        }
        head.push(Line::head());
        self.is_read = say(&head)?;
        let value = json!({ "header": header, "allowed_cpus": cores, "window_s": window });
        self.write(&json!({ "test": "machine", "value": value }))
    }

    fn write(&mut self, value: &impl serde::Serialize) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let text = serde_json::to_string(value).doing("writing a line of JSON")?;
        writeln!(file, "{text}").doing("writing the file of results")
    }

    /// Takes the steps for which there is time.
    fn measure(&mut self, plan: &Plan, cores: &[usize], end: Deadline) -> Result<()> {
        let mut left_out = 0;
        for step in &plan.steps {
            if end.left() < plan.window * 2 {
                left_out += 1;
                continue;
            }
            // Without a reader and a file there is nobody to measure for.
            if !self.is_read && self.file.is_none() {
                return Ok(());
            }
            let limit = (plan.window * 4 + STEP_MAX).min(end.left());
            let (window, deadline) = (plan.window, Deadline::after(limit));
            let lines = step.measure(Setting { cores, count: step.count, window, deadline });
            ensure!(!interrupted(), "interrupted");
            for line in lines {
                self.write(&line)?;
                self.is_read = say([line.row()])?;
                self.lines.push(line);
            }
        }
        if left_out > 0 {
            self.is_read = say([format!("# {left_out} steps left out: the time is over")])?;
        }
        Ok(())
    }
}

/// The test to which the results of calls belong.
fn test_of(calls: &Calls) -> &'static str {
    if calls.work == Work::Bulk { "bulk" } else { "rpc" }
}

impl Step {
    /// The lines of this step: one, or as many as a program prints.
    fn measure(&self, setting: Setting<'_>) -> Vec<Line> {
        let one = |by: String, fields: Result<Map<String, Value>>| Ok(vec![(by, fields?)]);
        let (test, told): (&str, Result<Vec<Told>>) = match &self.what {
            What::Calls(calls) => {
                (test_of(calls), one(calls.stack.word(), rpc::apart(*calls, setting)))
            }
            What::Beside(calls, layout) => {
                (test_of(calls), one(calls.stack.word(), rpc::beside(*calls, *layout, setting)))
            }
            What::CallsOf(program, calls, layout) => {
                (test_of(calls), programs::calls(program, *layout, *calls, setting))
            }
            What::UnitsOf(program, test) => (test, programs::units(program, test, setting)),
            What::Units(units) => {
                let order = setting.order(Job::Units(*units), &setting.cores[..self.count]);
                let told = order.start().and_then(|mut child| child.receive("the step's process"));
                (units.words()[0], told)
            }
        };
        let line = |(by, fields)| Line { test: test.into(), by, cores: self.count, fields };
        match told {
            Ok(told) => told.into_iter().map(line).collect(),
            Err(failure) => vec![self.failed(test, &failure)],
        }
    }

    fn failed(&self, test: &str, failure: &Failure) -> Line {
        let by = match &self.what {
            What::Calls(calls) | What::Beside(calls, _) => calls.stack.word(),
            What::CallsOf(_, calls, _) => format!("c-{}", calls.stack.word()),
            What::Units(units) => units.words()[1].into(),
            What::UnitsOf(..) => "c-abt".into(),
        };
        let (id, error) = (json!(self.id), json!(failure.to_string()));
        let fields = [("id".into(), id), ("error".into(), error)].into_iter().collect();
        Line { test: test.into(), by, cores: self.count, fields }
    }
}
