//! Runs the gateway and asks it.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A child that does not outlive the test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(args: &[&str]) -> (Guard, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_axum_gateway"));
    let mut child = Guard(command.args(args).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://");
    (child, address.unwrap_or_else(|| panic!("{line}")).to_owned())
}

/// Status and body.
fn ask(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn http_becomes_a_call_and_its_result_an_answer() {
    let (_gateway, address) = start(&[]);
    assert_eq!(ask(&address, "PUT", "/kv/apple", "red"), (200, String::new()));
    assert_eq!(ask(&address, "GET", "/kv/apple", ""), (200, "red".to_owned()));
    let missing = ask(&address, "GET", "/kv/fig", "");
    assert_eq!(missing, (404, "there is no key `fig`\n".to_owned()));
}

#[test]
fn a_service_that_is_not_there_is_a_bad_gateway() {
    let (_gateway, address) = start(&["na+sm://nobody-is-here"]);
    let (status, body) = ask(&address, "GET", "/kv/apple", "");
    assert_eq!(status, 502);
    assert!(body.contains("call of `kv.get` at na+sm://nobody-is-here"), "{body}");
}
