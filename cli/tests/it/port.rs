//! The metrics port of `margo serve`: its contents, and the live page in a browser.

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Running, Service, margo, run, until};

/// A service with the port; its address and that of the port.
fn serve(temp: &Path) -> (Service, String) {
    let document = r#"{ "margo": { "address": "na+sm://", "metrics": { "listen": "127.0.0.1:0" },
        "providers": [{ "type": "echo", "provider_id": 2 }] }, "monitoring": {} }"#;
    std::fs::write(temp.join("conf.json"), document).unwrap();
    let child = margo(temp)
        .args(["serve", "conf.json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut service = Service::of(child);
    let mut line = String::new();
    service.stdout.read_line(&mut line).unwrap();
    let port = line.trim_end().strip_prefix("metrics at http://").unwrap();
    let port = port.strip_suffix("/metrics").unwrap().to_owned();
    (service, port)
}

fn get(port: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(port).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {port}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn each_path_has_its_content() {
    let temp = tempfile::tempdir().unwrap();
    let (service, port) = serve(temp.path());
    let ping = margo(temp.path())
        .args(["ping", &service.address, "-i", "0.001"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // A peer whose bytes are seen before it goes.
    let ping = Running::new(ping);
    until("bytes for a peer", || {
        let (_, text) = get(&port, "/metrics");
        let sent = text
            .lines()
            .find_map(|line| line.strip_prefix("margo_network_bytes_total{direction=\"sent\"} "));
        (sent.unwrap().parse::<f64>().unwrap() > 0.0).then_some(())
    });
    drop(ping);

    let (head, health) = get(&port, "/healthz");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && health == "running\n", "{head} {health}");
    let (_, text) = get(&port, "/metrics");
    assert!(text.contains("margo_bulk_bytes_total 0\n"), "{text}");
    let (head, json) = get(&port, "/metrics.json");
    assert!(head.contains("Content-Type: application/json"), "{head}");
    let seen: margo::Metrics = serde_json::from_str(&json).unwrap();
    assert_eq!(seen.address, service.address);
    let (head, page) = get(&port, "/");
    assert!(head.contains("Content-Type: text/html; charset=utf-8"), "{head}");
    assert!(head.contains("Content-Security-Policy: default-src 'none';"), "{head}");
    assert!(page.starts_with("<!doctype html>") && page.contains("metrics.json"));
    let (head, _) = get(&port, "/../etc/passwd");
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
}

#[test]
fn the_live_page_shows_the_service_in_a_browser() {
    let names = ["chromium", "chromium-browser", "google-chrome", "headless_shell"];
    let is_here = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let Some(browser) = names.into_iter().find(is_here) else {
        println!("SKIPPED: there is no Chromium here ({})", names.join(", "));
        return;
    };
    let temp = tempfile::tempdir().unwrap();
    let (service, port) = serve(temp.path());
    for (width, height) in [(1280, 900), (420, 900)] {
        let mut command = Command::new(browser);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
        command.args(["--virtual-time-budget=4000", &format!("--window-size={width},{height}")]);
        let ended = run(command.arg(format!("http://{port}/")), "").expect(0);
        for shown in [&*service.address, "__primary__", "requests in"] {
            assert!(ended.stdout.contains(shown), "no {shown} in {}", ended.stdout);
        }
    }
}
