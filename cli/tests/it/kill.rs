//! Processes that are killed in the middle of their work: the others are told, and nothing is left
//! over.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    self, PATIENCE, Running, Service, children, entries, files, margo, until, wait_for_end,
};
use margo::{Instance, ProviderHandle, ProviderId};
use margo_provider_blob::BlobClient;
use rustix::process::{Pid, Signal};

/// How soon a peer's death must be noticed. It takes milliseconds; this is for loaded machines.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);

/// How much data a target has written, by the kernel's count.
fn written_by(pid: Pid) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", pid.as_raw_pid())).unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    line.parse().unwrap()
}

#[test]
fn a_target_killed_in_mid_write_leaves_whole_blobs_only() {
    const LEN: usize = 8 << 20;
    for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let temp = tempfile::tempdir().unwrap();
        let blobs = temp.path().join("blobs");
        let service = Service::start(temp.path(), transport, &blobs, &[]);
        let pid = service.running.pid();
        let name = transport.split(':').next().unwrap();
        let client = Instance::builder(format!("{name}://")).listen(false).start().unwrap();
        let target = client.lookup(&service.address).unwrap();
        let store = BlobClient::new(&client, ProviderHandle::new(target, ProviderId::new(1)));

        // Writes without a pause, so that the kill is in the middle of one.
        let rounds = AtomicUsize::new(0);
        let (error, noticed, killed) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..=u8::MAX {
                    if let Err(error) = store.put("f/blob", &vec![round; LEN], PATIENCE) {
                        return (error, Instant::now());
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                panic!("{LEN} bytes were written 256 times before the kill");
            });
            until("some of the second blob", || {
                let enough = LEN as u64 + (1 << 20);
                (written_by(pid) > enough || writer.is_finished()).then_some(())
            });
            service.running.signal(Signal::KILL);
            let killed = Instant::now();
            let (error, noticed) = writer.join().unwrap();
            (error, noticed, killed)
        });
        assert!(noticed.saturating_duration_since(killed) < NOTICED_WITHIN, "{error}");
        client.finalize_and_wait().unwrap();
        drop(service); // waits for it

        assert_eq!(files(&blobs), [blobs.join("f/blob")]);
        // The next target over the same directory serves it.
        let service = Service::start(temp.path(), transport, &blobs, &[]);
        let client = Instance::builder(format!("{name}://")).listen(false).start().unwrap();
        let target = client.lookup(&service.address).unwrap();
        let store = BlobClient::new(&client, ProviderHandle::new(target, ProviderId::new(1)));
        // Nothing but a whole blob: the last that was answered, or the next one.
        let data = store.get("f/blob", PATIENCE).unwrap();
        let rounds = rounds.load(Ordering::Relaxed);
        assert_eq!(data.len(), LEN);
        assert!(data.iter().all(|&byte| byte == data[0]), "a mixture of versions");
        assert!([rounds - 1, rounds].contains(&usize::from(data[0])), "{rounds} {}", data[0]);
        store.put("f/blob", b"new", PATIENCE).unwrap();
        client.finalize_and_wait().unwrap();
    }
}

/// Files that take a while: sparse, so that they cost no disk.
fn large_files(dir: &Path, count: usize) {
    fs::create_dir_all(dir).unwrap();
    for number in 0..count {
        fs::File::create(dir.join(format!("{number}"))).unwrap().set_len(16 << 20).unwrap();
    }
}

struct Demo {
    running: Running,
    target: Pid,
}

/// Starts the demo and waits until its target has stored something.
fn demo_in_mid_transfer(temp: &Path, files_dir: &Path) -> Option<Demo> {
    let child = margo(temp)
        .arg("demo")
        .arg(files_dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut running = Running::new(child);
    until("the first blob", || {
        let stored = entries(temp).iter().any(|entry| {
            entry.starts_with("margo-demo-") && !files(&temp.join(entry).join("blobs")).is_empty()
        });
        (stored || running.child.try_wait().unwrap().is_some()).then_some(())
    });
    // None: it came to its end before we looked.
    let target = *children(running.pid()).first()?;
    Some(Demo { running, target })
}

/// Runs `body` on a demo that is in the middle of it and `true` when that hit.
fn in_mid_transfer(mut body: impl FnMut(Demo, &Path) -> bool) {
    // A machine that is fast, or that lets us wait for long, gets more to do.
    for count in [8, 32, 128] {
        let temp = tempfile::tempdir().unwrap();
        let data = tempfile::tempdir().unwrap();
        large_files(data.path(), count);
        let shared_memory = margo_entries_of_shared_memory();
        let hit = demo_in_mid_transfer(temp.path(), data.path())
            .is_some_and(|demo| body(demo, temp.path()));
        if hit {
            assert_eq!(entries(temp.path()), Vec::<String>::new(), "the directory is removed");
            let after = margo_entries_of_shared_memory();
            assert!(after.iter().all(|entry| shared_memory.contains(entry)), "{after:?}");
            return;
        }
    }
    panic!("the demo always ended before it could be disturbed");
}

/// Margo uses no names in shared memory; this is to see that it stays so.
fn margo_entries_of_shared_memory() -> Vec<String> {
    let mut names = entries("/dev/shm");
    names.retain(|name| name.contains("margo") || name.contains("na_sm"));
    names
}

#[test]
fn a_demo_whose_target_is_killed_fails_at_once() {
    in_mid_transfer(|demo, _| {
        if rustix::process::kill_process(demo.target, Signal::KILL).is_err() {
            return false;
        }
        let killed = Instant::now();
        let ended = common::ended(demo.running);
        if ended.status.success() {
            return false;
        }
        assert!(killed.elapsed() < NOTICED_WITHIN, "{ended:#?}");
        let ended = ended.expect(1);
        assert!(ended.stderr.contains("the target process ended with signal: 9"), "{ended:#?}");
        true
    });
}

#[test]
fn an_interrupted_demo_cleans_up() {
    in_mid_transfer(|demo, _| {
        demo.running.signal(Signal::INT);
        let target = demo.target;
        let ended = common::ended(demo.running);
        if ended.status.success() {
            return false;
        }
        let ended = ended.expect(130);
        assert!(ended.stderr.contains("interrupted"), "{ended:#?}");
        wait_for_end(target);
        true
    });
}

#[test]
fn a_killed_demo_takes_its_target_with_it() {
    in_mid_transfer(|mut demo, temp| {
        demo.running.signal(Signal::KILL);
        let status = demo.running.wait();
        wait_for_end(demo.target);
        // Nobody is left to remove it.
        for entry in entries(temp) {
            fs::remove_dir_all(temp.join(entry)).unwrap();
        }
        !status.success()
    });
}
