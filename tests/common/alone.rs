//! The test program run again, for one test.

use std::process::Command;

/// Returns the value of that variable if this process was started with it. The process then ends
/// with its parent.
pub(crate) fn asked(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok()?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    Some(value)
}

/// The test program, to be run again for that test of the module whose `module_path!()` this is.
pub(crate) fn again(module: &str, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &path_of(module, test), "--nocapture"]);
    command
}

/// The name by which the test program knows a test of that module.
fn path_of(module: &str, test: &str) -> String {
    // The name of the program comes first, and is no part of it.
    let inside = module.split_once("::").map(|(_program, inside)| inside);
    inside.map_or_else(|| test.to_owned(), |inside| format!("{inside}::{test}"))
}

/// Runs the body of a test in a process of its own, where no other test runs beside it.
///
/// The test calls this with its `module_path!()` and its name; in that process, `body` runs.
pub(crate) fn alone(module: &str, test: &str, body: impl FnOnce()) {
    const ALONE: &str = "MARGO_TEST_ALONE";
    let path = path_of(module, test);
    if asked(ALONE).is_some_and(|alone| alone == path) {
        return body();
    }
    let output = again(module, test).env(ALONE, &path).output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{path}: {}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{path} did not run");
}
