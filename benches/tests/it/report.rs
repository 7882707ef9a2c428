//! The program as its users run it: what it prints and writes, and that nothing stays behind.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Bench, cores, programs, within};

const BENCH: &str = env!("CARGO_BIN_EXE_margo-bench");
const KEYS: [&str; 16] = [
    "error", "floor", "id", "lacks", "line_ns", "met", "n", "others", "overhead", "p50", "p99",
    "p999", "ratio", "target", "unit", "value",
];

fn listed(words: &[&str]) -> Vec<String> {
    let output = Command::new(BENCH).args(words).arg("--list").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Runs the quick variant of these rows and gives their JSON and the exit code.
fn quick(words: &[&str]) -> (Vec<Value>, Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.json");
    let output =
        Command::new(BENCH).args(words).arg("--quick").arg("--json").arg(&path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    (rows, output.status.code(), text)
}

/// Checks the properties that every row has on any machine.
fn check_shape(row: &Value) {
    let mut keys: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, KEYS, "{row}");
    assert!(["ns", "1/s", "bytes/s", "bytes", "%"].contains(&row["unit"].as_str().unwrap()));
    if row["error"].is_null() && row["lacks"].is_null() {
        let value = row["value"].as_f64().unwrap();
        assert!(value.is_finite() && value >= 0.0, "{row}");
        assert!(row["n"].as_u64().unwrap() > 0, "{row}");
    } else {
        assert!(row["value"].is_null(), "{row}");
    }
    if let (Some(value), Some(floor)) = (row["value"].as_f64(), row["floor"].as_f64()) {
        let ratio = row["ratio"].as_f64().unwrap();
        assert!((ratio - value / floor).abs() <= 1e-9 * ratio, "{row}");
    }
}

#[test]
fn every_floor_has_its_row_in_order_and_with_all_keys() {
    let ids = listed(&["floor"]);
    let (rows, code, text) = quick(&["floor"]);
    let got: Vec<&str> = rows.iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(got, ids);
    rows.iter().for_each(check_shape);
    for header in ["# cpu", "# kernel", "# rustc", "# cores", "# clock"] {
        assert!(text.contains(header), "{header} missing:\n{text}");
    }
    assert!(ids.iter().all(|id| text.lines().any(|line| line.starts_with(id.as_str()))));
    if cores() > 1 {
        assert_eq!(code, Some(0), "{text}");
        let two = rows.iter().find(|row| row["id"] == "floor.sm.rtt").unwrap();
        assert!(two["line_ns"][0].as_f64().unwrap() > 0.0, "{two}");
    } else {
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("failed: needs two cores"), "{text}");
    }
}

#[test]
fn a_sweep_measures_each_size_with_each_number_of_calls() {
    // Within a message, and beyond it.
    let words = ["sweep", "--sizes", "8,64k", "--in-flight", "1,3"];
    let ids = listed(&words);
    assert_eq!(ids.len(), (5 + 3) * 4, "{ids:?}");
    let (rows, code, text) = quick(&words);
    rows.iter().for_each(check_shape);
    assert_eq!(rows.len(), ids.len());
    assert_eq!(code, Some(i32::from(cores() == 1)), "{text}");
}

/// Programs with the names of Mercury's, which do what those do as far as we see it.
fn mercury(figure: &str) -> tempfile::TempDir {
    let server = "while [ $1 != -f ]; do shift; done\necho some://address > $2\nexec sleep 1000";
    let client = format!("echo '# Size  Rate  Time'\necho '{figure}'");
    programs(&[
        ("hg_perf_server", server),
        ("hg_rate", &client),
        ("hg_bw_read", &client),
        ("hg_bw_write", "exit 3"),
    ])
}

#[test]
fn a_sweep_stands_beside_programs_of_c_mercury() {
    if cores() == 1 {
        return println!("SKIPPED: needs two cores");
    }
    let folder = mercury("8   2000000   0.5");
    let directory = folder.path().to_str().unwrap();
    let words = ["sweep", "--over", "tcp", "--sizes", "8", "--in-flight", "2", "--mercury"];
    let (rows, code, text) = quick(&[&words[..], &[directory]].concat());
    rows.iter().for_each(check_shape);
    assert_eq!(code, Some(0), "{text}");
    let beside = |id: &str| {
        let row = rows.iter().find(|row| row["id"] == id).unwrap();
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
        row["others"]["Mercury"].as_f64()
    };
    assert_eq!(beside("sweep.tcp.rate.x2.8"), Some(2e6));
    assert_eq!(beside("sweep.tcp.read.x2.8"), Some(2e12), "{text}");
    // What fails there leaves our figure.
    assert_eq!(beside("sweep.tcp.write.x2.8"), None);
    assert!(text.contains("beside: Mercury 2.00 M/s"), "{text}");
    let nowhere = [&words[..], &["/no/such/place"]].concat();
    let output = Command::new(BENCH).args(nowhere).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("no `hg_perf_server` in /no/such/place"), "{error}");
}

#[test]
fn a_machine_without_a_library_gets_rows_that_say_so() {
    if cores() == 1 {
        return println!("SKIPPED: needs two cores");
    }
    let output = Command::new(BENCH)
        .args(["fabric", "--filter", "fabric.ofi_", "--quick"])
        .env("MARGO_LIBFABRIC", "libno-such-fabric.so.9")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("fabric.")).collect();
    assert_eq!(rows.len(), listed(&["fabric", "--filter", "fabric.ofi_"]).len(), "{text}");
    for row in rows {
        assert!(row.contains("not on this machine: "), "{row}");
        assert!(row.contains("libno-such-fabric.so.9"), "{row}");
    }
}

#[test]
fn a_row_that_cannot_be_measured_fails_alone() {
    // More rows than one, the first of which is stopped for good.
    let bench = Bench::start(&["floor", "--filter", ".16m", "--limit", "1"]);
    let stopped = bench.stop_first_row();
    let (text, code) = bench.finish(Duration::from_secs(120));
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("floor.memcpy.16m      failed: the row's process: nothing within"),
        "{text}"
    );
    for id in ["floor.attach.16m", "floor.tcp_get.16m", "floor.tcp_stream.16m"] {
        assert!(text.contains(id), "{id} was not run:\n{text}");
    }
    within(Duration::from_secs(30), "the stopped row is gone", || {
        !crate::support::is_alive(stopped)
    });
}

#[test]
fn an_interrupt_ends_all_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.json");
    let bench = Bench::start(&["floor", "--json", path.to_str().unwrap()]);
    bench.wait_for_output("----");
    bench.signal(libc::SIGINT);
    let group = bench.group();
    let (text, code) = bench.finish(Duration::from_secs(60));
    assert_eq!(code, Some(130), "{text}");
    assert!(!crate::support::group_is_alive(group), "a child outlived the interrupt");
    // What there is until then is not lost.
    let rows: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let ids = listed(&["floor"]);
    assert!(rows.iter().zip(&ids).all(|(row, id)| row["id"] == **id), "{rows:?}");
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_is_measured() {
    let words = ["floor", "--json", "/dev/null/rows.json"];
    let output = Command::new(BENCH).args(words).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{text}");
    assert!(text.contains("/dev/null/rows.json"), "{text}");
}

#[test]
fn the_death_of_the_supervisor_ends_all_processes() {
    let bench = Bench::start(&["floor", "--filter", "floor.tcp.rtt"]);
    bench.wait_for_output("----");
    bench.signal(libc::SIGKILL);
    let group = bench.group();
    let (_, code) = bench.finish(Duration::from_secs(60));
    assert_eq!(code, None, "it was killed");
    within(Duration::from_secs(60), "the children are gone", || {
        !crate::support::group_is_alive(group)
    });
}

#[test]
fn mistakes_on_the_command_line_are_told() {
    for (words, told) in [
        (&["--cores", "0,0"][..], "two different cores"),
        (&["--cores", "0,1023"], "core 1023 cannot be used"),
        (&["--filter", "nothing like it"], "no row is selected"),
        (&["nothing"], "possible values"),
    ] {
        let output = Command::new(BENCH).args(words).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text.contains(told), "{words:?}: {text}");
    }
}

#[test]
fn output_that_nobody_reads_ends_it_quietly() {
    for words in [&["--list"][..], &["floor", "--quick"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(BENCH).args(words).stdout(writer).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.as_str()), (Some(141), ""), "{words:?}");
    }
}

#[test]
fn a_child_that_is_started_by_hand_does_nothing() {
    let output = Command::new(BENCH).args(["__row", "1", "{}"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("the parent 1 is gone"));
}

/// The rows of `device` of 1 MiB, as a machine shows them whose library of the driver is that.
fn device_rows(library: &str, fake: bool) -> (Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.json");
    let mut command = Command::new(BENCH);
    command.args(["device", "--filter", "1m", "--quick", "--json"]).arg(&path);
    command.env("MARGO_LIBCUDA", library);
    if fake {
        command.env("MARGO_BENCH_FAKE_DEVICE", "1");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    (serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap(), text)
}

#[test]
fn memory_of_devices_is_measured_or_its_rows_say_what_is_missing() {
    if cores() == 1 {
        return println!("SKIPPED: needs two cores");
    }
    let (rows, text) = device_rows("libno-such-driver.so.9", true);
    // Copies of the device alone, three ways over each of two transports, and, over shared memory,
    // from device to device by one of them alone.
    assert_eq!(rows.len(), 5 + 2 * 3 + 1, "{text}");
    rows.iter().for_each(check_shape);
    assert!(
        rows.iter().all(|row| row["value"].as_f64().is_some_and(|value| value > 0.0)),
        "{text}"
    );
    let beside = rows.iter().filter(|row| row["floor"].as_f64().is_some());
    assert_eq!(beside.count(), 2 * 3 + 1, "{text}");
    let (rows, text) = device_rows("libno-such-driver.so.9", false);
    rows.iter().for_each(check_shape);
    let lacks = |row: &Value| row["lacks"].as_str().is_some_and(|lacks| lacks.contains("install"));
    assert!(rows.len() == 12 && rows.iter().all(lacks), "{text}");
}
