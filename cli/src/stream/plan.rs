//! `margo stream plan`.

use std::io::{Read, Write};
use std::process::Stdio;

use margo::daemon::Failure;
use margo_stream::graph::GroupNews;

use super::command;
use crate::args::StreamPlanArgs;

pub(crate) fn plan(args: &StreamPlanArgs) -> Result<(), Failure> {
    let file = &args.graph.file;
    let document = super::read(file)?;
    let of_group = document.groups.values().map(|group| &group.program[..]);
    let program = command::program(&document, &args.graph.program)
        .or(of_group.into_iter().find(|program| !program.is_empty()))
        .ok_or_else(|| command::no_program(file))?;
    let mut words = program.to_vec();
    words.extend(["--plan".to_owned(), file.display().to_string()]);
    words.extend(args.svg.iter().flat_map(|out| ["--svg".to_owned(), out.clone()]));

    let mut child = super::child(&words);
    child.env(GroupNews::VARIABLE, "1000").stdin(Stdio::null()).stderr(Stdio::piped());
    let failed = |error| Failure::new("cannot start the program", error);
    let mut child = child.spawn().map_err(failed)?;
    let mut said = Vec::new();
    // The rest of a program that says more than anybody reads is lost, and with it its pipe.
    let stderr = child.stderr.take().map(|stderr| stderr.take(1 << 20).read_to_end(&mut said));
    stderr.transpose().map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    let lines = said.split(|byte| *byte == b'\n');
    match lines.clone().find_map(GroupNews::parse) {
        Some(GroupNews::Failed { why, .. }) => Err(Failure::Usage(why)),
        _ if status.success() => {
            // Lost if nobody reads it.
            let _ = std::io::stderr().write_all(&said);
            Ok(())
        }
        _ => {
            let said = String::from_utf8_lossy(&said);
            let what = format!("{} --plan {}", program[0], file.display());
            Err(Failure::Failed(format!("{what}: {status}\n{}", said.trim_end())))
        }
    }
}
