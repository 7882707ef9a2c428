//! `margo ping`: its lines, its summary, and its exit status.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rustix::process::Signal;

use crate::common::{Running, Service, margo, run, until};

#[test]
fn calls_are_counted_and_timed_whatever_their_size() {
    for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let temp = tempfile::tempdir().unwrap();
        let service = Service::start(temp.path(), transport, temp.path(), &[]);
        for size in ["0", "56", "65536"] {
            let args = ["ping", &service.address, "-c", "3", "-i", "0.001", "--size", size];
            let ended = run(margo(temp.path()).args(args), "").expect(0);
            let lines: Vec<_> = ended.stdout.lines().collect();
            assert_eq!(lines.len(), 7, "{ended:#?}");
            for (seq, line) in lines[1..4].iter().enumerate() {
                let start = format!("from {}: seq={} time=", service.address, seq + 1);
                assert!(line.starts_with(&start), "{ended:#?}");
            }
            assert_eq!(lines[4], format!("--- {} ---", service.address));
            let summary = run_summary(&ended.stdout);
            assert!(summary.contains("3 sent, 3 answered, 0 lost (0 %)"), "{ended:#?}");
            for figure in ["min ", "avg ", "max ", "p50 ", "p99 "] {
                assert!(summary.contains(figure), "{ended:#?}");
            }
        }
    }
}

/// The lines from the one with dashes on.
fn run_summary(stdout: &str) -> &str {
    &stdout[stdout.find("--- ").unwrap()..]
}

#[test]
fn a_peer_that_does_not_answer_is_lost_calls_and_no_end() {
    let temp = tempfile::tempdir().unwrap();
    let nobody = "na+tcp://127.0.0.1:1";
    let ended = run(margo(temp.path()).args(["ping", nobody, "-c", "2", "-i", "0.001"]), "");
    let ended = ended.expect(1);
    assert_eq!(ended.stdout.matches("lost: seq=").count(), 2, "{ended:#?}");
    assert!(ended.stdout.contains("2 sent, 0 answered, 2 lost (100 %)"), "{ended:#?}");
    assert!(ended.stderr.contains("has not answered"), "{ended:#?}");

    // One that is stopped, and goes on.
    let service = Service::start(temp.path(), "na+tcp://127.0.0.1:0", temp.path(), &[]);
    service.running.signal(Signal::STOP);
    let mut child = margo(temp.path())
        .args(["ping", &service.address, "-i", "0.001", "-W", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut ping = Running::new(child);
    assert!(lines.any(|line| line.starts_with("lost: seq=1 ")));
    service.running.signal(Signal::CONT);
    assert!(lines.any(|line| line.starts_with("from ")));
    // The other thing that ends it, in a summary.
    ping.signal(Signal::INT);
    assert!(lines.any(|line| line.contains(" answered, ")));
    assert!(ping.wait().success());
}

#[test]
fn a_signal_ends_it_with_the_summary_while_it_waits_for_an_answer() {
    let temp = tempfile::tempdir().unwrap();
    let service = Service::start(temp.path(), "na+sm://", temp.path(), &[]);
    let mut child = margo(temp.path())
        .args(["ping", &service.address, "-i", "0.001", "-W", "3600"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut ping = Running::new(child);
    for _ in 0..2 {
        stdout.read_line(&mut String::new()).unwrap();
    }
    service.running.signal(Signal::STOP);
    let stat = format!("/proc/{}/stat", service.running.pid().as_raw_nonzero());
    until("a service that is stopped", || {
        std::fs::read_to_string(&stat).unwrap().contains(") T ").then_some(())
    });
    ping.signal(Signal::TERM);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert!(run_summary(&rest).contains(", 0 lost (0 %)\nmin "), "{rest}");
    assert!(ping.wait().success());
    service.running.signal(Signal::CONT);
}

#[test]
fn commands_that_call_take_a_document_of_their_own() {
    let temp = tempfile::tempdir().unwrap();
    let service = Service::start(temp.path(), "na+tcp://127.0.0.1:0", temp.path(), &[]);
    let address = &*service.address;
    // What it says of serving has no effect, nor has the address of another transport.
    let document = r#"{ "margo": { "address": "na+sm://", "address_file": "mine",
        "providers": [{ "type": "echo", "provider_id": 1 }], "listen": true },
        "rpc_thread_count": 1 }"#;
    std::fs::write(temp.path().join("client.json"), document).unwrap();
    let args = ["ping", address, "-c", "1", "--config", "client.json"];
    let ended = run(margo(temp.path()).args(args), "").expect(0);
    assert!(ended.stdout.contains("1 answered"), "{ended:#?}");
    assert!(!temp.path().join("mine").exists());
    // The setting of a transport arrives: an interface that is not there.
    let nowhere = r#"{ "margo": { "address": "na+tcp://nosuchinterface0", "listen": false } }"#;
    for command in ["ping", "top", "shutdown"] {
        let args = [command, address, "--config", "-"];
        let ended = run(margo(temp.path()).args(args), nowhere).expect(1);
        assert!(ended.stderr.contains("nosuchinterface0"), "{ended:#?}");
        let ended = run(margo(temp.path()).args(args), r#"{ "margo": 7 }"#).expect(2);
        assert!(ended.stderr.contains("standard input is not valid"), "{ended:#?}");
        let args = [command, address, "--config", "nowhere.json"];
        let ended = run(margo(temp.path()).args(args), "").expect(2);
        assert!(ended.stderr.contains("nowhere.json"), "{ended:#?}");
    }
}

#[test]
fn wrong_arguments_are_told() {
    let temp = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["ping"][..], "<ADDRESS>"),
        (&["ping", "127.0.0.1:7000"], "is no address"),
        (&["ping", "na+sm://x", "--size", "65537"], "65537"),
        (&["ping", "na+sm://x", "--count", "0"], "0"),
        (&["ping", "na+sm://x", "--interval", "0"], "from 0.001 to 86400 seconds"),
    ] {
        let ended = run(margo(temp.path()).args(args), "").expect(2);
        assert!(ended.stderr.contains(expected), "{args:?}: {ended:#?}");
        assert_eq!(ended.stdout, "");
    }
}
