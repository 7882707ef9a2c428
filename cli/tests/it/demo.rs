//! `margo demo` on small folders, as a user runs it.

use std::fs;

use crate::common::{entries, margo, run};

#[test]
fn stores_and_reads_back_over_both_transports() {
    let temp = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    let root = data.path().join("root");
    fs::create_dir_all(root.join("sub/folder")).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join("small"), b"hello").unwrap();
    fs::write(root.join("sub/folder/larger"), vec![7; 3_000_000]).unwrap();
    fs::write(root.join("back\\slash"), b"odd").unwrap();
    std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
    let single = root.join("small");
    let ended = run(margo(temp.path()).arg("demo").arg(&root).arg(single), "").expect(0);

    let lines: Vec<_> = ended.stdout.lines().collect();
    assert!(lines[0].starts_with("storing 5 files, 2.9 MiB (1 skipped)"), "{ended:#?}");
    assert_eq!(lines.len(), 13, "{ended:#?}");
    for (transport, report) in [("na+sm", &lines[1..7]), ("na+tcp", &lines[7..13])] {
        let expected = "5 files, 2.9 MiB: stored and read back, all checksums equal";
        assert_eq!(report[0], format!("{transport:<8}{expected}"));
        for (line, words) in [
            (report[1], ["write ", " MiB/s"]),
            (report[2], ["read ", " MiB/s"]),
            (report[3], ["keys    5 put durably in ", " ms, get p50 "]),
            (report[4], ["RPC     p50 ", "us (2,000 echo calls)"]),
            (report[5], ["target  pool __primary__ ran 2,", " switch-ins"]),
        ] {
            assert!(words.iter().all(|word| line.contains(word)), "{line}");
        }
    }
    assert!(ended.stderr.contains("skipping the symbolic link"), "{ended:#?}");
    // A machine that has much to do may make the log tell of stalls.
    let remarks = ended.stderr.lines().filter(|line| !line.contains(" ult::observe::monitor: "));
    assert_eq!(remarks.count(), 1, "{ended:#?}");
    assert_eq!(entries(temp.path()), Vec::<String>::new(), "temporary files are left");
}

#[test]
fn files_that_are_all_empty() {
    let temp = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("empty"), b"").unwrap();
    let ended = run(margo(temp.path()).arg("demo").arg(data.path()), "").expect(0);
    assert_eq!(ended.stdout.matches("nothing to move").count(), 4, "{ended:#?}");
}

#[test]
fn the_end_of_the_target_is_heard_of_where_that_is_ignored() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("file"), b"x").unwrap();
    let ended = run(
        std::process::Command::new("env")
            .args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_margo"), "demo"])
            .arg(temp.path().join("file"))
            .env("TMPDIR", temp.path()),
        "",
    );
    assert_eq!(ended.expect(0).stdout.matches("all checksums equal").count(), 2);
    assert_eq!(entries(temp.path()), ["file"]);
}

#[test]
fn what_is_missing_is_named_and_nothing_is_started() {
    let temp = tempfile::tempdir().unwrap();
    let ended = run(margo(temp.path()).args(["demo", "no/such/file"]), "").expect(1);
    assert!(ended.stderr.contains("cannot read no/such/file: No such file"), "{ended:#?}");
    assert_eq!(ended.stdout, "");
    let folder = tempfile::tempdir().unwrap();
    let ended = run(margo(temp.path()).arg("demo").arg(folder.path()), "").expect(1);
    assert!(ended.stderr.contains("no regular files"), "{ended:#?}");
}

#[test]
fn a_target_that_does_not_start_is_explained() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("file"), b"x").unwrap();
    // No space for the directory of the target: its parent is no directory.
    let ended =
        run(margo(temp.path()).args(["demo", "file"]).env("TMPDIR", "/dev/null"), "").expect(1);
    assert!(ended.stderr.contains("temporary directory"), "{ended:#?}");
    // The target is killed by a limit on its files before it listens. Whatever starts the tests may
    // have left files open, which would count.
    let limited =
        "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd>&-\"; done; ulimit -n 6; exec \"$@\"";
    let ended = run(
        std::process::Command::new("sh")
            .args(["-c", limited, "sh", env!("CARGO_BIN_EXE_margo")])
            .arg("demo")
            .arg(temp.path().join("file"))
            .env("TMPDIR", temp.path()),
        "",
    )
    .expect(1);
    assert!(ended.stderr.starts_with("margo: "), "{ended:#?}");
    assert_eq!(entries(temp.path()), ["file"]);
}
