//! The subcommand `scale` as its users run it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Bench, cores, group_is_alive, programs};

fn scale(words: &[&str]) -> (String, String, Option<i32>) {
    run("scale", words)
}

fn run(subcommand: &str, words: &[impl AsRef<OsStr>]) -> (String, String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_margo-bench"));
    let output = command.arg(subcommand).args(words).output().unwrap();
    let [text, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (text, error, output.status.code())
}

/// The lines of the JSON of a short run of these steps, which succeeds.
fn lines(words: &[&str]) -> (Vec<Value>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("lines");
    let (text, error, code) = scale(&[words, &["--json", json.to_str().unwrap()]].concat());
    assert_eq!(code, Some(0), "{text}{error}");
    let lines = std::fs::read_to_string(json).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["test"], "machine");
    (lines[1..].to_vec(), folder)
}

#[test]
fn a_server_is_measured_in_each_layout_over_each_transport() {
    let one = "0";
    for (filter, count) in [("rpc.sm.null.", 1), ("rpc.tcp.push-plain.", 1)] {
        // One core is enough for clients beside the server.
        let (lines, _folder) = lines(&["--cores", one, "--filter", filter, "--window", "0.05"]);
        assert_eq!(lines.len(), count, "{lines:?}");
        assert_eq!(lines[0]["clients_beside"], true);
        assert!(lines[0]["value"].as_f64().unwrap() > 0.0, "{}", lines[0]);
    }
    if cores() == 1 {
        return println!("SKIPPED: needs two cores");
    }
    let words = ["--cores", "0,1", "--filter", "rpc.sm.burn2us.", "--window", "0.05"];
    let (lines, folder) = lines(&words);
    let all: Vec<_> = lines.iter().map(|line| (&line["impl"], &line["cores"])).collect();
    // One client on a core of its own, then with clients beside.
    assert_eq!(all.len(), 1 + 6, "{all:?}");
    for line in &lines {
        for field in ["value", "p50_us", "p999_us"] {
            assert!(line[field].as_f64().unwrap() > 0.0, "{field}: {line}");
        }
        let fair = line["slowest_client_of_fastest"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&fair), "{line}");
        assert!(line["server_cores_used"].as_f64().unwrap() >= 0.0, "{line}");
        assert_eq!((&line["unit"], &line["in_flight"]), (&"RPC/s".into(), &32.into()), "{line}");
    }
    let (json, plots) = (folder.path().join("lines"), folder.path().join("plots"));
    let (plotted, error, code) = run("plot", &[&json, Path::new("--to"), &plots]);
    let plot = plots.join("rpc-sm-burn2us-beside.svg");
    assert_eq!((code, plotted), (Some(0), format!("{}\n", plot.display())), "{error}");
    let plot = std::fs::read_to_string(plot).unwrap();
    for layout in ["shared", "all", "shards", "instances", "skewed"] {
        assert!(plot.contains(&format!(">margo-{layout}</text>")), "{plot}");
    }
}

#[test]
fn units_are_measured_on_each_number_of_cores() {
    let list = if cores() > 1 { "0,1" } else { "0" };
    for (filter, unit) in
        [("fib.", "ms"), ("parfor.", "Munits/s"), ("pingpong.", "ns one way"), ("ult-many.", "s")]
    {
        if filter == "pingpong." && cores() == 1 {
            continue;
        }
        let words = ["--cores", list, "--filter", filter, "--window", "0.05"];
        let (lines, _folder) = lines(&words);
        for line in &lines {
            assert_eq!(line["unit"], unit, "{line}");
            assert!(line["value"].as_f64().unwrap() > 0.0, "{line}");
        }
        assert!(!lines.is_empty(), "{filter}");
    }
}

#[test]
fn programs_that_are_handed_in_are_measured_too() {
    let figure = r#"{"value": 5000000, "unit": "RPC/s", "reps": [5000000]}"#;
    let calls = format!("echo '{figure}'\n[ $6 = null ] || exit 3");
    let folder = programs(&[("scale-calls", &calls), ("scale-units", "echo nonsense")]);
    let directory = folder.path().to_str().unwrap();
    let words = ["--c-programs", directory, "--window", "0.05", "--filter"];
    if cores() > 1 {
        let (lines, _folder) = lines(&[&words[..], &["c-rpc.sm.null.margo-shared.1"]].concat());
        assert_eq!((&lines[0]["impl"], &lines[0]["cores"]), (&"c-margo-shared".into(), &1.into()));
        assert_eq!(lines[0]["value"], 5_000_000);
        let (text, _, code) =
            scale(&[&words[..], &["c-rpc.sm.push-plain.margo-shared.1"]].concat());
        assert!(code == Some(1) && text.contains("failed: it ended with"), "{text}");
    }
    let (text, _, code) = scale(&[&words[..], &["c-fib.abt.1"]].concat());
    assert!(code == Some(1) && text.contains("failed: a program's line"), "{text}");
}

#[test]
fn mistakes_of_the_subcommand_are_told() {
    for (words, told) in [
        (&["--cores", "0,0"][..], "core 0 is named twice"),
        (&["--cores", "1-0"], "no list of cores"),
        (&["--cores", "x"], "no list of cores"),
        (&["--cores", "1023"], "core 1023 cannot be used"),
        (&["--window", "3"], "no time from 0.01 to 2"),
        (&["--seconds", "481"], "481 is not in 1..=480"),
        (&["--filter", "nothing like it"], "no step is selected"),
        (&["--c-programs", "/no/such/place"], "neither `scale-calls` nor `scale-units`"),
        (&["--json", "/dev/null/lines"], "making /dev/null/lines"),
    ] {
        let (text, error, code) = scale(words);
        assert_eq!((code, text.as_str()), (Some(2), ""), "{words:?}: {error}");
        assert!(error.contains(told), "{words:?}: {error}");
    }
}

#[test]
fn a_run_ends_when_its_time_is_over() {
    let begun = std::time::Instant::now();
    let (text, _, _) = scale(&["--seconds", "1"]);
    assert!(text.contains("steps left out: the time is over"), "{text}");
    // A step under way ends by the same deadline; the rest is what the machine does beside.
    assert!(begun.elapsed() < Duration::from_secs(30), "{text}");
}

#[test]
fn an_interrupt_ends_servers_and_clients() {
    let bench = Bench::start(&["scale", "--filter", "rpc.", "--window", "0.2"]);
    bench.wait_for_output("p99 us");
    let group = bench.group();
    crate::support::within(Duration::from_secs(60), "a child", || {
        crate::support::children_of(group) > 0
    });
    bench.signal(libc::SIGINT);
    let (text, code) = bench.finish(Duration::from_secs(60));
    assert_eq!(code, Some(130), "{text}");
    assert!(!group_is_alive(group), "a child outlived the interrupt");
}

#[test]
fn mistakes_of_the_plot_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let line = r#"{"test":"fib","impl":"rayon","cores":1,"value":4.8,"unit":"ms"}"#;
    for (path, told) in [
        (folder.path().join("none"), "No such file"),
        (file("words", "words"), "line 1: no result of margo-bench"),
        (file("one", line), "nothing to draw"),
    ] {
        let (text, error, code) = run("plot", &[&path]);
        assert_eq!((code, text.as_str()), (Some(2), ""), "{error}");
        assert!(error.contains(told), "{error}");
    }
}
