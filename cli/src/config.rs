//! `margo config`: checks documents, prints samples.

use std::path::Path;

use margo::elasticity::Layout;
use margo_config::{Config, ConfigFlags, Errors, process_env};

use crate::args::CheckArgs;
use crate::serve;
use crate::support::failure::Failure;
use crate::support::{document, output};
use crate::svg;

/// `margo config check`.
pub(crate) fn check(args: &CheckArgs) -> Result<(), Failure> {
    let called = document::called(&args.file);
    let text = document::read(&args.file)?;
    let flags = ConfigFlags { use_names: args.names, ..ConfigFlags::default() };
    let mut at_start = Vec::new();
    let checked = Config::check_with(&text, &process_env, flags, |resolved| {
        at_start = margo::elasticity::start_warnings(resolved);
        let found = [margo::elasticity::check_network(resolved), serve::check_providers(resolved)];
        Errors::none_of(found.into_iter().filter_map(Result::err).flatten())
    });
    let (effective, warnings) = checked.map_err(|errors| {
        let lines: Vec<_> = errors.iter().map(|error| format!("  {error}")).collect();
        document::invalid(&args.file, lines.join("\n"))
    })?;
    let explained = Layout::explain(&effective);
    let mut remarks: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    remarks.extend(at_start.iter().cloned());
    if let Err(error) = &explained {
        remarks.push(format!("it does not start on this machine: {error}"));
    }
    let serve::NotServed { foreign, misspelt } = serve::not_served(&effective, &args.provider_type);
    remarks.extend(misspelt.iter().cloned());
    for remark in &remarks {
        output::note(format_args!("{called}: warning: {remark}"));
    }
    for remark in &foreign {
        output::note(format_args!("{called}: note: {remark}"));
    }
    if !args.json {
        let mut lines = explained.unwrap_or_default();
        if warnings.is_empty() {
            lines.push(
                "No pool that is in use can be kept waiting by the order of pools.".to_owned(),
            );
        }
        let warnings = warnings.iter().map(ToString::to_string).chain(at_start).chain(misspelt);
        lines.extend(warnings.map(|warning| format!("Warning: {warning}")));
        lines.extend(foreign);
        for line in lines.iter().flat_map(|text| text.lines()) {
            output::line(format_args!("// {line}"))?;
        }
    }
    output::line(effective.to_json_pretty())?;
    if args.strict && !remarks.is_empty() {
        let warnings = output::count(remarks.len() as u64, "warning");
        return Err(Failure::Failed(format!("{called}: {warnings}, and --strict is given")));
    }
    Ok(())
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
    output::line(margo_config::json_schema().trim_end())
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
