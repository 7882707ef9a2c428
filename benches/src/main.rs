//! `margo-bench`: floors and figures, measured in one run.
//!
//! A figure alone drifts with the machine; its ratio to the floor of the same run does not. So each
//! row measures both, alternating where that is cheap, and the report shows the ratio, what share
//! of the samples is how slow, and in which state the machine was.
//!
//! # Reading order
//!
//! `catalog.rs` (all rows) · `base/` (how time is taken) · `process/` (children, and that none is
//! left behind) · `floors/` · `rows/` · `report/` (one process for each row, and the table).
//! `scale/` is the subcommand of that name: rates over the number of cores; `plot/` draws results.
//!
//! # A new row
//!
//! Write a function from [`Context`] to [`Figure`](base::Figure) in
//! `rows/`, and one for its peer if it has one, and name them in `catalog.rs`. It runs in a fresh
//! process whose main thread is pinned to the origin's core. Every wait takes a
//! [`Deadline`](base::Deadline).

mod base;
mod catalog;
mod cli;
mod floors;
mod plot;
mod process;
mod report;
mod rows;
mod scale;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::base::{Cores, Doing, Result, Row, UNREAD, say};
use crate::catalog::Case;
use crate::cli::{Arguments, Command};
use crate::process::Context;
use crate::process::child::{self, Role};
use crate::process::signals;
use crate::report::{machine, supervise, table};

/// The exit code that shells report for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    if let Some(role) = words.next().as_deref().and_then(Role::of) {
        let Err(failure) = supervise::child(role, &words.collect::<Vec<_>>()) else {
            return ExitCode::SUCCESS;
        };
        // If nobody reads it, the parent is gone, and so is the reader of anything else.
        let _ = child::send_failure(&failure);
        return ExitCode::FAILURE;
    }
    let arguments = Arguments::parse();
    let ended = match &arguments.command {
        Some(Command::Scale(arguments)) => scale(arguments),
        Some(Command::Plot(arguments)) => plot::run(arguments),
        None => report(&arguments),
    };
    match ended {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("margo-bench: {failure}");
            ExitCode::from(if signals::interrupted() { INTERRUPTED } else { 2 })
        }
    }
}

/// The subcommand `scale`.
fn scale(arguments: &scale::Arguments) -> Result<ExitCode> {
    scale::run(arguments, &machine::header(Cores::first_allowed()?))
}

/// The whole run: header, rows, JSON.
fn report(arguments: &Arguments) -> Result<ExitCode> {
    let cases = arguments.selected()?;
    if arguments.list {
        let read = say(cases.iter().map(|case| &case.id))?;
        return Ok(if read { ExitCode::SUCCESS } else { ExitCode::from(UNREAD) });
    }
    let context = arguments.context()?;
    signals::catch_interrupts();
    signals::adopt_orphans()?;
    // Whether it can be written is to be known before anything is measured.
    let file = arguments
        .json
        .as_deref()
        .map(|path| std::fs::File::create(path).doing(&format!("making {}", path.display())));
    let mut file = file.transpose()?;
    let mut rows: Vec<Row> = Vec::with_capacity(cases.len());
    let ended = measure(arguments, &context, &cases, &mut rows);
    // Also those before an interrupt.
    if let (Some(file), Some(path)) = (&mut file, &arguments.json) {
        let mut text = serde_json::to_string_pretty(&rows).doing("writing the rows as JSON")?;
        text.push('\n');
        file.write_all(text.as_bytes()).doing(&format!("writing {}", path.display()))?;
    }
    if !ended? {
        return Ok(ExitCode::from(UNREAD));
    }
    let failed = rows.iter().any(|row| row.error.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Measures the rows, and prints them. `false`: nobody reads them, and there is no file.
fn measure(
    arguments: &Arguments,
    context: &Context,
    cases: &[Case],
    rows: &mut Vec<Row>,
) -> Result<bool> {
    let header = machine::header(context.cores);
    let width = table::id_width(cases.iter().map(|case| case.id.as_str()));
    let mut read = say(header.iter().map(|line| format!("# {line}")))?;
    read &= say([table::head(width)])?;
    for case in cases {
        // Without a reader and a file there is nobody to measure for.
        if !read && arguments.json.is_none() {
            return Ok(false);
        }
        let row = supervise::run(case, context)?;
        read = say([table::row(width, &row)])?;
        rows.push(row);
    }
    Ok(true)
}
