//! A disk that is full: a file system of 256 KiB, mounted where only a child process sees it; and
//! a limit on the sizes of files, in a child process as well.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{PATIENCE, Pair, TRANSPORTS, pattern, refusal};
use margo_provider_blob::{BlobConfig, BlobError};

/// Tells the child where its small file system is.
const MOUNTED: &str = "MARGO_TEST_SMALL_DISK";

/// A command that runs `script` where it may mount; as root, or as a user where that is allowed.
fn with_own_mounts(script: &str) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--kill-child", "--fork", "sh", "-ec", script]);
    command
}

#[test]
fn a_full_disk_is_reported_and_leaves_nothing_behind() {
    if let Some(dir) = std::env::var_os(MOUNTED) {
        return on_the_small_disk(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=256k,nr_inodes=64 tmpfs \"$MARGO_TEST_SMALL_DISK\"";
    let can = with_own_mounts(mount)
        .env(MOUNTED, dir.path())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !can {
        eprintln!("SKIPPED: mounting is not permitted here (needs root or user namespaces)");
        return;
    }
    let output = with_own_mounts(&format!("{mount}\nexec \"$@\""))
        .arg("sh")
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "full_disk::a_full_disk_is_reported_and_leaves_nothing_behind",
            "--nocapture",
        ])
        .env(MOUNTED, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

fn on_the_small_disk(dir: &Path) {
    let free = || {
        let stat = rustix::fs::statvfs(dir).unwrap();
        (stat.f_bfree * stat.f_frsize, stat.f_ffree)
    };
    for transport in TRANSPORTS {
        for sync in [false, true] {
            let mut config = BlobConfig::new(dir);
            config.chunk_bytes = 64 << 10;
            config.sync = sync;
            let pair = Pair::new(transport, &config);
            let blobs = &pair.blobs;
            let small = pattern(10_000, 1);
            blobs.put("f/small", &small, PATIENCE).unwrap();
            let before = free();
            let large = pattern(1 << 20, 2);
            for name in ["f/large", "f/small", "new/folder/large"] {
                let full = BlobError::NoSpace { name: name.into() };
                assert_eq!(refusal(blobs.put(name, &large, PATIENCE)), full);
                assert_eq!(free(), before, "space is left occupied");
            }
            assert!(blobs.get("f/small", PATIENCE).unwrap() == small);
            assert_eq!(blobs.list("", PATIENCE).unwrap().len(), 1);

            // In place: nothing else is touched, and an append has happened or not.
            let piece = pattern(64 << 10, 3);
            let mut appended = 0;
            let error = loop {
                match blobs.append("f/small", &piece, PATIENCE) {
                    Ok(_) => appended += 1,
                    error => break refusal(error),
                }
                assert!(appended < 4, "the file system has no room for that");
            };
            let full = BlobError::NoSpace { name: "f/small".into() };
            assert_eq!(error, full);
            let whole = [small.clone(), piece.repeat(appended)].concat();
            assert!(blobs.get("f/small", PATIENCE).unwrap() == whole);
            assert_eq!(refusal(blobs.write("f/small", 0, &large, PATIENCE)), full);
            let after = blobs.get("f/small", PATIENCE).unwrap();
            assert_eq!(after[..10_000], large[..10_000], "the first piece has room");
            blobs.truncate("f/small", 0, PATIENCE).unwrap();
            blobs.put("f/small", &small, PATIENCE).unwrap();
            assert_eq!(free(), before, "space is left occupied");

            // No room for another file, however small.
            let mut created = 0;
            let error = loop {
                match blobs.create(&format!("many/{created}"), PATIENCE) {
                    Ok(()) => created += 1,
                    error => break refusal(error),
                }
                assert!(created < 64, "the file system has room for 64");
            };
            assert_eq!(error, BlobError::NoSpace { name: format!("many/{created}") });
            for number in 0..created {
                blobs.remove(&format!("many/{number}"), PATIENCE).unwrap();
            }
            blobs.put("f/other", &small, PATIENCE).unwrap();
            blobs.remove("f/other", PATIENCE).unwrap();
            blobs.remove("f/small", PATIENCE).unwrap();
            pair.end();
        }
    }
}

/// Tells the child that its files are to be limited.
const LIMITED: &str = "MARGO_TEST_LIMITED_FILES";

#[test]
fn a_limit_on_file_sizes_is_reported_and_the_provider_goes_on() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const LIMIT: u64 = 1 << 20;
    if std::env::var_os(LIMITED).is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "full_disk::a_limit_on_file_sizes_is_reported_and_the_provider_goes_on",
            ])
            .env(LIMITED, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        return;
    }
    let limit = Rlimit { current: Some(LIMIT), ..getrlimit(Resource::Fsize) };
    setrlimit(Resource::Fsize, limit).unwrap();
    for transport in TRANSPORTS {
        for chunk_bytes in [64 << 10, 1 << 20] {
            let dir = tempfile::tempdir().unwrap();
            let mut config = BlobConfig::new(dir.path());
            config.chunk_bytes = chunk_bytes;
            let pair = Pair::new(transport, &config);
            let blobs = &pair.blobs;
            // Of the file, a page is not the blob's.
            let largest = pattern(LIMIT as usize - 4096, 1);
            blobs.put("largest", &largest, PATIENCE).unwrap();
            let larger = pattern(LIMIT as usize - 4095, 2);
            for name in ["larger", "largest"] {
                let error = refusal(blobs.put(name, &larger, PATIENCE)).to_string();
                for part in [name, "1048577 bytes", "1048576 bytes", "`ulimit -f`"] {
                    assert!(error.contains(part), "{part}: {error}");
                }
            }
            let end = largest.len() as u64;
            for longer in [
                blobs.append("largest", b"x", PATIENCE).map(drop),
                blobs.write("largest", end, b"x", PATIENCE),
                blobs.truncate("largest", end + 1, PATIENCE),
                blobs.create_sparse("sparse", end + 1, PATIENCE),
            ] {
                assert!(refusal(longer).to_string().contains("`ulimit -f`"));
            }
            assert!(blobs.get("largest", PATIENCE).unwrap() == largest);
            assert_eq!(blobs.list("", PATIENCE).unwrap().len(), 1);
            pair.end();
        }
    }
}
