//! Runs every example as a user would and looks at what it prints.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use std::process::Command;

/// `cargo test` builds the examples beside the test programs.
fn stdout_of(name: &str) -> String {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    let path = path.join("examples").join(name);
    assert!(path.exists(), "{} is not built; run `cargo build --examples`", path.display());
    let output = Command::new(path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn pipeline() {
    assert_eq!(stdout_of("pipeline"), "10000 words, 78890 letters\n");
}

#[test]
fn primary() {
    assert_eq!(stdout_of("primary"), "sum 4950\n3 ticks while main slept\n");
}

#[test]
fn tasklets() {
    assert_eq!(stdout_of("tasklets"), "9592 primes below 100000\n");
}
