//! `margo describe`: which methods services have, with the types of arguments and results.

use std::fmt::Write;
use std::time::Duration;

use margo::service::{MethodDescription, ServiceDescription, TypeDescription};

use crate::args::DescribeArgs;
use crate::support::output;
use crate::support::peer::Callers;
use margo::daemon::Failure;

pub(crate) fn run(args: &DescribeArgs) -> Result<(), Failure> {
    let mut callers = Callers::with(args.client.config.as_deref())?;
    let (instance, peer) = callers.reach(&args.address)?;
    let asked = super::ask(&instance, &peer, Duration::from_secs_f64(args.limit));
    drop((instance, peer));
    callers.end()?;
    let services = asked?;
    if args.json {
        let json = serde_json::to_string_pretty(&services);
        return output::line(json.map_err(|error| Failure::new("cannot print it", error))?);
    }
    // Some of it is text of others.
    output::write(output::lines_printable(&services.iter().map(text).collect::<String>()))
}

/// A service as text: its methods, and the types that these name.
fn text(service: &ServiceDescription) -> String {
    let about = match &*service.about {
        "" => String::new(),
        about => format!(": {about}"),
    };
    let mut text = format!("{} (provider {}){about}\n", service.name, service.provider);
    let mut types: Vec<&TypeDescription> = Vec::new();
    for method in &service.methods {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {method}{}", notes(method));
        if !method.about.is_empty() {
            let _ = writeln!(text, "      {}", method.about);
        }
        let all = method.arguments.iter().map(|argument| &argument.of).chain(&method.result);
        for of in all.flat_map(TypeDescription::named) {
            if !types.contains(&of) {
                types.push(of);
            }
        }
    }
    for of in types {
        let _ = writeln!(text, "  {}", of.definition());
    }
    text
}

fn notes(method: &MethodDescription) -> String {
    let one_way = method.result.is_none().then(|| "one-way".to_owned());
    let limit =
        method.deadline_ms.map(|limit| format!("within {:?}", Duration::from_millis(limit)));
    let all: Vec<_> = one_way.into_iter().chain(limit).collect();
    if all.is_empty() { String::new() } else { format!("  // {}", all.join(", ")) }
}
