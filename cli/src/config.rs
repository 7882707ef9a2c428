//! `margo config`: checks documents, prints samples.

use std::path::Path;

use margo::daemon::Failure;
use margo::elasticity::Layout;
use margo_config::{Config, process_env};

use crate::args::ConfigCheckArgs;
use crate::serve;
use crate::support::{document, output};
use crate::svg;

/// `margo config check`.
pub(crate) fn check(args: &ConfigCheckArgs) -> Result<(), Failure> {
    serve::daemon().check_for_others(&args.check, &args.types)
}

/// `margo config layout`.
pub(crate) fn layout(file: &Path, as_svg: bool) -> Result<(), Failure> {
    let (effective, warnings) = Config::check(&document::read(file)?, &process_env)
        .map_err(|errors| document::invalid(file, errors))?;
    for warning in warnings {
        output::note(format_args!("{}: warning: {warning}", document::called(file)));
    }
    let layout = Layout::of(&effective).map_err(|error| document::invalid(file, error))?;
    if as_svg { output::write(svg::drawing(&layout)) } else { output::line(layout) }
}

/// `margo config schema`.
pub(crate) fn schema() -> Result<(), Failure> {
    output::line(format_args!("{:#}", serve::daemon().schema()))
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
