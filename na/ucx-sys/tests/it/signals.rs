//! A program's signal handlers stay its own. UCX reads its settings for them when it is loaded,
//! which is once in a process: so the test runs in a process of its own, which has UCX's variable.

use std::process::Command;

use kept_signals::Saved;

const CHILD: &str = "UCX_SYS_SIGNALS_CHILD";

#[test]
fn the_library_changes_no_handler_and_no_stack() {
    if std::env::var_os(CHILD).is_some() {
        return load();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["signals::the_library_changes_no_handler_and_no_stack", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .env("UCX_HANDLE_ERRORS", "bt")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    let skipped = said.lines().filter_map(|line| Some(&line[line.find("SKIPPED: ")?..]));
    skipped.for_each(|line| println!("{line}"));
}

fn load() {
    let before = Saved::now();
    if let Err(error) = ucx_sys::library() {
        return println!("SKIPPED: {error}");
    }
    assert!(before.is_now());
}
