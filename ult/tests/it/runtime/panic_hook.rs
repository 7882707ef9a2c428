//! Panic messages name the ULT. Looked at from outside, in a child process.

use std::process::Command;

use crate::common::{shared, test_path, within};

const CHILD: &str = "ULT_TEST_PANIC_CHILD";

struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        let caught = std::panic::catch_unwind(|| panic!("during unwinding"));
        assert!(caught.is_err());
    }
}

/// Prints to standard error what the parent looks at.
fn child() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        eprintln!("<previous>");
        previous(info);
    }));
    ult::install_panic_hook();
    ult::install_panic_hook();
    within(|| {
        let (runtime, pool) = shared(1);
        let named = pool.ult().name("thrower").stack_bytes(16 * 1024);
        let named = named.spawn(|| panic!("in a ULT")).unwrap();
        let id = named.id();
        assert!(named.join().is_err());
        eprintln!("id {id}");
        // A panic during a panic prints a backtrace, for which the smallest stack is too small.
        let unnamed = pool.spawn(|| {
            let _drops = PanicsInDrop;
            panic!("with a destructor");
        });
        assert!(unnamed.unwrap().join().is_err());
        assert!(std::thread::spawn(|| panic!("in a thread")).join().is_err());
        runtime.shutdown().unwrap();
    });
}

#[test]
fn a_panic_names_its_ult_once_and_keeps_the_previous_hook() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let name = test_path!("a_panic_names_its_ult_once_and_keeps_the_previous_hook");
    crate::common::hear_of_children();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let id = text.lines().find_map(|line| line.strip_prefix("id ")).expect("printed above");
    let where_line = format!("in ULT `thrower` (id {id}) of pool `p` on xstream `x0`:");
    assert_eq!(text.matches(&where_line).count(), 1, "{text}");
    assert_eq!(text.matches("in ULT `(unnamed)` (id ").count(), 2, "{text}");
    assert_eq!(text.matches("in ULT ").count(), 3, "a plain thread is not named: {text}");
    assert_eq!(text.matches("<previous>").count(), 4, "{text}");
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is missing: {text}"));
    assert!(at(&where_line) < at("<previous>"));
    assert!(at("with a destructor") < at("during unwinding"));
    assert!(at("during unwinding") < at("in a thread"));
}
