//! Runs every example as a user would and looks at what it prints.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// `cargo test` builds the examples beside the test programs.
fn example(name: &str) -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    let path: PathBuf = path.join("examples").join(name);
    assert!(path.exists(), "{} is not built; run `cargo build --examples`", path.display());
    Command::new(path)
}

fn run(name: &str, args: &[&str]) -> Output {
    example(name).args(args).output().unwrap()
}

fn stdout_of(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A child that does not outlive the test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sum_over(address: &str, document: &[&str]) {
    let mut server =
        Guard(example("sum_server").arg(address).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let address = line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}"));
    assert_eq!(stdout_of(&run("sum_client", &[&[address], document].concat())), "40 + 2 = 42\n");
    assert!(server.0.wait().unwrap().success(), "the server was asked to stop");
}

#[test]
fn sum_over_shared_memory() {
    sum_over("na+sm://", &[]);
}

#[test]
fn sum_over_tcp() {
    sum_over("na+tcp://127.0.0.1:0", &[]);
}

/// Calls with the header layout for a C server whose Mercury has checksums; our server learns it
/// from the request.
#[test]
fn sum_with_the_headers_of_checksums() {
    sum_over("na+sm://", &[r#"{ "margo": { "mercury_build": "checksums" } }"#]);
}

#[test]
fn sum_with_a_wrong_document_fails_with_a_message() {
    for name in ["sum_client", "sum_server"] {
        let output = run(name, &["na+sm://", r#"{ "margo": { "mercury_build": "maybe" } }"#]);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with(&format!("{name}: ")) && said.contains("maybe"), "{output:?}");
    }
}

#[test]
fn sum_client_without_an_address_says_what_is_missing() {
    let many = &["a", "b", "c"][..];
    for (name, args) in [("sum_client", &[][..]), ("sum_client", many), ("sum_server", many)] {
        let output = run(name, args);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with(&format!("usage: {name}")), "{output:?}");
    }
}

#[test]
fn sum_client_to_nobody_fails_with_a_message() {
    let output = run("sum_client", &["na+sm://nobody-is-here"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("sum_client: call of `sum` at na+sm://nobody-is-here"), "{output:?}");
}

#[test]
fn sum_server_with_a_wrong_address_fails_with_a_message() {
    let output = run("sum_server", &["na+smm://"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("sum_server: "), "{output:?}");
    let told = "margo.address: cannot use address `na+smm://`: there is no transport `na+smm`";
    assert!(said.contains(told), "{output:?}");
}

#[test]
fn bulk() {
    assert_eq!(stdout_of(&run("bulk", &[])), "reversed 1048576 bytes\n");
}

/// From one device to another, of two processes; a driver for tests stands for both.
#[test]
fn tensors() {
    let out = stdout_of(&run("tensors", &["4194304", "fake"]));
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].starts_with("put 4194304 bytes at "), "{out}");
    assert!(lines[1].starts_with("got 4194304 bytes at "), "{out}");
    assert_eq!(lines[2..], ["8388608 bytes were copied by GPUs alone"], "{out}");
}

#[test]
fn service() {
    let out = stdout_of(&run("service", &[]));
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[..3], ["put: 5", "take: 2", "the service: 2 left"], "{out}");
    assert!(lines[3].starts_with("the runtime: ") && lines.len() == 4, "{out}");
}

#[test]
fn kv_service() {
    let out = stdout_of(&run("kv_service", &[]));
    let expected = "apple: red\nkeys: [\"fruit/apple\", \"fruit/pear\"]\npear: green\n\
                    fig: there is no key `fruit/fig`\n";
    assert_eq!(out, expected);
}

#[test]
fn tokio_in_handler() {
    let expected = "the value of a\nthe value of b\n";
    assert_eq!(stdout_of(&run("tokio_in_handler", &[])), expected);
}

#[test]
fn rayon_in_handler() {
    let expected = "sum: 333833500\ntoo many: the handler panicked\n";
    assert_eq!(stdout_of(&run("rayon_in_handler", &[])), expected);
}

#[test]
fn database_in_handler() {
    let expected = "apples: Some(5)\npears: Some(7)\nplums: None\n";
    assert_eq!(stdout_of(&run("database_in_handler", &[])), expected);
}

#[test]
fn layout() {
    let out = stdout_of(&run("layout", &[]));
    assert!(out.starts_with("quick\nslow, after quick\npool net:"), "{out}");
}

#[test]
fn pinned() {
    let out = stdout_of(&run("pinned", &[]));
    let lines: Vec<_> = out.lines().collect();
    for (line, pool) in lines.iter().zip(["left", "right"]) {
        assert!(line.starts_with(&format!("{pool}, pinned to ")), "{out}");
        assert!(line.contains(": 1000 handlers ran on CPUs "), "{out}");
    }
    assert_eq!(lines.len(), 2, "{out}");
}

#[test]
fn elastic() {
    let expected = "at first: __primary__\n\
                    with more: extra\n\
                    progress: net\n\
                    not yet: pool `work` is in use by xstream `extra`\n\
                    at last: __primary__\n\
                    pools: __primary__, net\n\
                    xstreams: __primary__, network\n";
    assert_eq!(stdout_of(&run("elastic", &[])), expected);
}
