//! `margo-bench plot`: pictures (SVG) of results that `--json` has written.
//!
//! `lines.rs` draws what `margo-bench scale` has measured, a picture for each test; `bars.rs` draws
//! the rows of a report in one picture. `picture.rs` has the colors, for light and dark pages.

mod bars;
mod lines;
mod picture;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use crate::base::{Doing, Failure, Result, ensure, say};
use crate::scale::Line;

/// Draws results that `--json` has written, as SVG files.
///
/// Results of `scale` make a picture for each test that was measured with several numbers of cores,
/// named like the test; the rows of a report make one, `rows.svg`: what each costs beside its
/// floor. Prints the names of the files.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Files that `--json` has written; a result in a later one takes the place of the same in an
    /// earlier one
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Folder of the pictures, which is made if it is not there
    #[arg(long, value_name = "DIR", default_value = ".")]
    to: PathBuf,
}

/// A row of a report, as far as a picture has it.
#[derive(Debug, Deserialize)]
struct Bar {
    id: String,
    unit: String,
    ratio: Option<f64>,
}

/// The results of all files.
#[derive(Default)]
struct Results {
    lines: Vec<Line>,
    bars: Vec<Bar>,
}

/// Reads all files and writes the pictures.
///
/// # Errors
///
/// When a file cannot be read or written or is no result, and when there is nothing to draw.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut results = Results::default();
    for path in &arguments.files {
        let text = std::fs::read_to_string(path).doing(&format!("reading {}", path.display()))?;
        results.read(&text).map_err(|why| Failure::new(format!("{}: {why}", path.display())))?;
    }
    let mut pictures = lines::draw(&results.lines).doing("drawing")?;
    pictures.extend(bars::draw(&results.bars).doing("drawing")?);
    ensure!(
        !pictures.is_empty(),
        "nothing to draw: no test was measured with two numbers of cores, and no row has a floor"
    );
    let to = &arguments.to;
    std::fs::create_dir_all(to).doing(&format!("making {}", to.display()))?;
    for (name, picture) in pictures {
        let path = to.join(format!("{name}.svg"));
        std::fs::write(&path, picture).doing(&format!("writing {}", path.display()))?;
        say([path.display()])?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Results {
    /// Adds what a file says: an array of rows, or a result a line.
    fn read(&mut self, text: &str) -> Result<(), String> {
        if text.trim_start().starts_with('[') {
            let rows = serde_json::from_str::<Vec<Bar>>(text);
            for row in rows.map_err(|error| format!("no rows of margo-bench: {error}"))? {
                self.bars.retain(|known| known.id != row.id);
                self.bars.push(row);
            }
            return Ok(());
        }
        for (number, line) in text.lines().enumerate() {
            let wrong = |error| format!("line {}: no result of margo-bench: {error}", number + 1);
            let value: Value = serde_json::from_str(line).map_err(wrong)?;
            if value["test"] != "machine" {
                let line: Line = serde_json::from_value(value).map_err(wrong)?;
                let same =
                    |a: &Line| (a.topic(), &a.by, a.cores) == (line.topic(), &line.by, line.cores);
                self.lines.retain(|known| !same(known));
                self.lines.push(line);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_result_is_refused_with_its_line() {
        let mut results = Results::default();
        let line = r#"{"test":"fib","impl":"rayon","cores":1,"value":4.8,"unit":"ms"}"#;
        let error = results.read(&format!("{line}\n{{}}")).unwrap_err();
        assert!(error.starts_with("line 2: no result of margo-bench: missing field"), "{error}");
        let error = results.read("[{}]").unwrap_err();
        assert!(error.starts_with("no rows of margo-bench: missing field"), "{error}");
    }

    #[test]
    fn a_later_result_takes_the_place_of_the_same() {
        let mut results = Results::default();
        for value in [1.0, 2.0] {
            let line = format!(r#"{{"test":"fib","impl":"rayon","cores":1,"value":{value}}}"#);
            results.read(&line).unwrap();
            let row = format!(r#"[{{"id":"rpc.sm.rtt","unit":"ns","ratio":{value}}}]"#);
            results.read(&row).unwrap();
        }
        assert_eq!((results.lines.len(), results.bars.len()), (1, 1));
        assert_eq!(results.lines[0].number("value"), Some(2.0));
        assert_eq!(results.bars[0].ratio, Some(2.0));
    }
}
