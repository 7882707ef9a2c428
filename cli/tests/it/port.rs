//! The metrics port of `margo serve`: its contents, and the live page in a browser.

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use margo::Instance;
use margo::metrics::{Column, TableSpec};

use crate::common::{Ended, Running, Service, margo, run, until};

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
    let port = of(&mut service);
    (service, port)
}

/// The address of a service's metrics port, which is the second line that it prints.
pub(crate) fn of(service: &mut Service) -> String {
    let mut line = String::new();
    service.stdout.read_line(&mut line).unwrap();
    let port = line.trim_end().strip_prefix("metrics at http://").unwrap();
    port.strip_suffix("/metrics").unwrap().to_owned()
}

/// The head and the body of an answer.
pub(crate) fn get(port: &str, path: &str) -> (String, String) {
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

/// Chromium with a profile of its own. It finds no host but this one, or it would call others by
/// itself.
fn browser(name: &str, temp: &Path) -> Command {
    let mut command = Command::new(name);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update"]);
    command.args(["--disable-sync", "--enable-logging=stderr", "--hide-scrollbars"]);
    command.arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1");
    command.arg(format!("--user-data-dir={}", temp.join("profile").display()));
    command.env("HOME", temp).env("TMPDIR", temp).current_dir(temp);
    command
}

/// The lines that a page has written to the console, also refusals by its security policy.
fn console(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| line.contains("CONSOLE")).collect()
}

/// Slow: starts a browser six times.
#[test]
fn the_live_page_shows_the_service_in_a_browser() {
    let names = ["chromium", "chromium-browser", "google-chrome", "headless_shell"];
    let is_here = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let Some(name) = names.into_iter().find(is_here) else {
        println!("SKIPPED: there is no Chromium here ({})", names.join(", "));
        return;
    };
    let temp = tempfile::tempdir().unwrap();
    // What it complains of is seen.
    let bad = "<meta http-equiv=Content-Security-Policy content=\"img-src 'none'\">\
               <img src=http://127.0.0.2/x>";
    std::fs::write(temp.path().join("bad.html"), bad).unwrap();
    let url = format!("file://{}", temp.path().join("bad.html").display());
    let bad = run(browser(name, temp.path()).args(["--dump-dom", &url]), "").expect(0);
    assert!(console(&bad).iter().any(|line| line.contains("127.0.0.2")), "{bad:#?}");

    let (service, port) = serve(temp.path());
    let ping = margo(temp.path())
        .args(["ping", &service.address, "-i", "0.001"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let ping = Running::new(ping);
    for (width, height) in [(1280_u32, 800_u32), (390, 844)] {
        let look = |option: &str| {
            let mut command = browser(name, temp.path());
            command.args([option, "--virtual-time-budget=8000"]);
            command.arg(format!("--window-size={width},{height}"));
            let ended = run(command.arg(format!("http://{port}/")), "").expect(0);
            // Nothing has failed, and nothing was asked for that the policy forbids: what is
            // elsewhere.
            assert!(console(&ended).is_empty(), "{ended:#?}");
            ended.stdout
        };
        let shown = look("--dump-dom");
        let latencies = "Latencies of requests of the runtime";
        let words = ["__primary__", "requests in", latencies, "<polyline", "<rect"];
        for expected in words.into_iter().chain([&*service.address]) {
            assert!(shown.contains(expected), "no {expected} in {shown}");
        }
        look("--screenshot=page.png");
        // Width and height stand behind the signature and the name of the first chunk.
        let picture = std::fs::read(temp.path().join("page.png")).unwrap();
        let number = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap());
        assert_eq!((number(16), number(20)), (width, height));
        // More than one color.
        assert!(picture.len() > 5000, "{}", picture.len());
    }
    drop(ping);
    let instance = Instance::builder("na+sm://").metrics_listen("127.0.0.1:0").start().unwrap();
    let columns = [Column::counter("hits_total", "Hits."), Column::gauge("used_bytes", "Bytes.")];
    let caches = TableSpec { name: "cache_part", labels: ["cache"], columns };
    let seen = AtomicU32::new(0);
    let rows = move || {
        let seen = f64::from(seen.fetch_add(1, Relaxed));
        vec![(["<b>users".to_owned()], [1e9 * seen, 3072.0])]
    };
    let _published = instance.monitoring().publish(&caches, rows).unwrap();
    let mut command = browser(name, temp.path());
    command.args(["--dump-dom", "--virtual-time-budget=8000"]);
    let port = instance.monitoring().metrics_addr().unwrap();
    let ended = run(command.arg(format!("http://{port}/")), "").expect(0);
    assert!(console(&ended).is_empty(), "{ended:#?}");
    for expected in ["<h2>cache part</h2>", "hits/s", "&lt;b&gt;users", "3.0 KiB"] {
        assert!(ended.stdout.contains(expected), "no {expected} in {}", ended.stdout);
    }
    instance.finalize_and_wait().unwrap();
}
