//! `margo config`: checks documents, prints samples.

use std::io::Read;
use std::path::Path;

use margo_config::{Config, process_env};

use crate::failure::Failure;
use crate::output;

/// Reads a document; `-` is standard input.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    text.map_err(|error| Failure::Usage(format!("{}: {error}", called(file))))
}

/// What to call the document in messages.
pub(crate) fn called(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}

/// `margo config check`.
pub(crate) fn check(file: &Path) -> Result<(), Failure> {
    let text = read(file)?;
    let (effective, warnings) = Config::check(&text, &process_env).map_err(|errors| {
        let lines: Vec<_> = errors.iter().map(|error| format!("\n  {error}")).collect();
        Failure::Usage(format!("{} is not valid:{}", called(file), lines.concat()))
    })?;
    for warning in warnings {
        output::note(format_args!("{}: warning: {warning}", called(file)));
    }
    output::line(effective.to_json_pretty())
}

/// `margo config samples`.
pub(crate) fn samples(name: Option<&str>) -> Result<(), Failure> {
    let samples = margo_config::samples();
    let Some(name) = name else {
        for (name, text) in samples {
            output::line(format_args!("// ---- {name} ----\n\n{}\n", text.trim_end()))?;
        }
        return Ok(());
    };
    let stem = name.strip_suffix(".json").unwrap_or(name);
    match samples.iter().find(|(sample, _)| sample.strip_suffix(".json") == Some(stem)) {
        Some((_, text)) => output::line(text.trim_end()),
        None => {
            let names: Vec<_> =
                samples.iter().map(|(name, _)| name.trim_end_matches(".json")).collect();
            let known = names.join(", ");
            Err(Failure::Usage(format!("there is no sample `{name}`; there are {known}")))
        }
    }
}
