//! `margo call`: one call of a method, with arguments and result as JSON.
//!
//! The types are those of the service's own description, by which arguments are encoded. A method
//! that is not described cannot be called: its arguments could only be guessed.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use margo::service::{MethodDescription, ServiceDescription};
use margo::{Addr, Instance, OneWay, ProviderHandle, ProviderId, Rpc, encoding::Raw};
use serde_json::Value;

use crate::args::CallArgs;
use crate::support::output;
use crate::support::peer::Callers;
use margo::daemon::Failure;

/// The time for a call whose method has no deadline, as for the question before it.
const LIMIT: Duration = Duration::from_secs(10);

/// Longest limit that is taken from a description.
const TOLD_MAX: Duration = Duration::from_secs(3600);

pub(crate) fn run(args: &CallArgs) -> Result<(), Failure> {
    if args.json == "-" && args.client.config.as_deref() == Some(Path::new("-")) {
        let text = "standard input is either the arguments or the document: name a file for one";
        return Err(Failure::Usage(text.to_owned()));
    }
    let arguments = arguments(&args.json)?;
    let mut callers = Callers::with(args.client.config.as_deref())?;
    let (instance, peer) = callers.reach(&args.address)?;
    let called = call(args, &arguments, &instance, &peer);
    drop((instance, peer));
    callers.end()?;
    called?.map_or(Ok(()), output::line)
}

/// The arguments that were typed, or come on standard input.
fn arguments(text: &str) -> Result<Value, Failure> {
    let mut read = String::new();
    let text = match text {
        "-" => {
            let done = std::io::stdin().read_to_string(&mut read);
            done.map_err(|error| Failure::new("cannot read standard input", error))?;
            &*read
        }
        text => text,
    };
    serde_json::from_str(text)
        .map_err(|error| Failure::Usage(format!("the arguments are no JSON: {error}")))
}

/// Calls, and returns the result if there is one.
fn call(
    args: &CallArgs,
    arguments: &Value,
    instance: &Instance,
    peer: &Addr,
) -> Result<Option<Value>, Failure> {
    let limit = args.limit.map(Duration::from_secs_f64);
    let services = super::ask(instance, peer, limit.unwrap_or(LIMIT))?;
    let (provider, method) = find(args, &services)?;
    let encoded = method.encode(arguments).map_err(|error| {
        Failure::Usage(output::printable(&format!("{error}; the method is {method}")))
    })?;
    let (target, encoded) = (ProviderHandle::new(peer.clone(), provider), Raw(encoded));
    // The service says it, and could say for ever.
    let told = method.deadline_ms.map(|millis| Duration::from_millis(millis).min(TOLD_MAX));
    let limit = limit.or(told).unwrap_or(LIMIT);
    // One call, so one name that stays.
    let name: &'static str = method.rpc.clone().leak();
    let failed = |error| Failure::Failed(output::printable(&format!("{error}")));
    let Some(of) = &method.result else {
        let sent = instance.rpc(OneWay::new(name), &target, &encoded).timeout(limit).send();
        return sent.map(|()| None).map_err(failed);
    };
    let rpc: Rpc<Raw, Raw> = Rpc::new(name);
    let answer = instance.forward_timed(rpc, &target, &encoded, limit).map_err(failed)?;
    let value = method.decode(&answer).map_err(|error| {
        let text = format!("the answer is no {of}: {error}");
        Failure::Failed(output::printable(&text))
    })?;
    if of.is_result() { value_of(value).map(Some) } else { Ok(Some(value)) }
}

/// The value of a `Result` of the service, or the failure that its error is.
fn value_of(result: Value) -> Result<Value, Failure> {
    let (name, value) = match result {
        Value::Object(answer) => answer.into_iter().next().unwrap_or_default(),
        Value::String(name) => (name, Value::Null),
        other => return Ok(other),
    };
    if name == "Ok" {
        return Ok(value);
    }
    Err(Failure::Failed(output::printable(&format!("the service answers with an error: {value}"))))
}

/// The method that is meant, and its provider.
fn find<'s>(
    args: &CallArgs,
    services: &'s [ServiceDescription],
) -> Result<(ProviderId, &'s MethodDescription), Failure> {
    let all =
        || services.iter().flat_map(|of| of.methods.iter().map(|method| (of.provider, method)));
    let found: Vec<_> = all()
        .filter(|(provider, method)| {
            method.rpc == args.method && args.provider.is_none_or(|own| own == *provider)
        })
        .collect();
    match *found {
        [(provider, method)] => Ok((ProviderId::new(provider), method)),
        [] => {
            let names: Vec<_> =
                all().map(|(provider, method)| format!("{} ({provider})", method.rpc)).collect();
            let there = match names.is_empty() {
                true => "it describes none".to_owned(),
                false => format!("there are, with their providers: {}", names.join(", ")),
            };
            let text = format!("there is no method `{}`; {there}", args.method);
            Err(Failure::Failed(output::printable(&text)))
        }
        ref several => {
            let ids: Vec<_> = several.iter().map(|(id, _)| id.to_string()).collect();
            Err(Failure::Usage(format!(
                "several providers have `{}`; say which one by --provider: {}",
                args.method,
                ids.join(", ")
            )))
        }
    }
}
