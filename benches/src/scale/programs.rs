//! Programs of the user's that measure the same with other software, for example C Margo and C
//! Argobots. `docs/performance.md` has the contract.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

use super::layout::Layout;
use super::rpc::Setting;
use super::server::Calls;
use crate::base::{Doing, OrFail, Result, ensure};
use crate::process::ChildProcess;

/// The program that measures calls, and the one that measures units.
pub(crate) const NAMES: [&str; 2] = ["scale-calls", "scale-units"];

/// The one of [`NAMES`] in `directory`, if it is there.
pub(crate) fn program(directory: &Path, name: &str) -> Option<PathBuf> {
    let path = std::path::absolute(directory.join(name)).ok()?;
    path.is_file().then_some(path)
}

fn list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Has it measure calls.
///
/// # Errors
///
/// When it fails, is late, or prints something else than results.
pub(crate) fn calls(
    program: &Path,
    layout: Layout,
    calls: Calls,
    setting: Setting<'_>,
) -> Result<Vec<(String, Map<String, Value>)>> {
    let (server, clients) = setting.split(calls.work);
    let mut command = Command::new(program);
    command.args(["--layout", layout.word(), "--net", calls.over.word()]);
    command.args(["--kind", calls.work.word(), "--in-flight"]);
    command.arg(calls.work.in_flight().to_string());
    command.args(["--server-cores", &list(server), "--client-cores", &list(clients)]);
    let known = json!({ "net": calls.over.word(), "kind": calls.work.word(),
        "clients": clients.len(), "in_flight": calls.work.in_flight() });
    run(command, &format!("margo-{}", layout.word()), known, setting)
}

/// Has it measure units.
///
/// # Errors
///
/// As [`calls`].
pub(crate) fn units(
    program: &Path,
    test: &str,
    setting: Setting<'_>,
) -> Result<Vec<(String, Map<String, Value>)>> {
    let mut command = Command::new(program);
    command.args(["--test", test, "--cores", &list(&setting.cores[..setting.count])]);
    run(command, "abt", json!({}), setting)
}

/// Runs it; each line that it prints is a result.
fn run(
    mut command: Command,
    by: &str,
    known: Value,
    setting: Setting<'_>,
) -> Result<Vec<(String, Map<String, Value>)>> {
    command.arg("--seconds").arg(setting.window.as_secs_f64().to_string());
    let output = ChildProcess::program(&mut command, setting.deadline)?.output()?;
    let result = |line: &str| {
        let mut fields = known.as_object().cloned().unwrap_or_default();
        let told: Map<String, Value> = serde_json::from_str(line).doing("a program's line")?;
        fields.extend(told);
        let has_value = fields.get("value").is_some_and(Value::is_number);
        ensure!(has_value && fields.contains_key("unit"), "a line without `value` and `unit`");
        let told = fields.remove("impl");
        let by = told.as_ref().and_then(Value::as_str).unwrap_or(by);
        Ok((format!("c-{by}"), fields))
    };
    let results: Vec<_> = output.lines().map(result).collect::<Result<_>>()?;
    results.first().or_fail("it printed nothing")?;
    Ok(results)
}
