//! Runs every example as a user would and looks at what it prints.

use std::process::Command;

/// `cargo test` builds the examples beside the test programs.
fn stdout_of(name: &str, args: &[&str]) -> String {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    let path = path.join("examples").join(name);
    assert!(path.exists(), "{} is not built; run `cargo build --examples`", path.display());
    let output = Command::new(path).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn pipeline() {
    assert_eq!(stdout_of("pipeline", &[]), "10000 words, 78890 letters\n");
}

#[test]
fn primary() {
    assert_eq!(stdout_of("primary", &[]), "sum 4950\n3 ticks while main slept\n");
}

#[test]
fn tasklets() {
    assert_eq!(stdout_of("tasklets", &[]), "9592 primes below 100000\n");
}

#[test]
fn trace() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let printed = stdout_of("trace", &[file.to_str().unwrap()]);
    assert!(printed.contains("events"), "{printed}");
    let json: serde_json::Value =
        serde_json::from_reader(std::fs::File::open(&file).unwrap()).unwrap();
    assert!(json["traceEvents"].as_array().unwrap().len() > 20);
}
