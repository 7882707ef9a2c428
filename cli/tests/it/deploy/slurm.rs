//! The script for Slurm, with an `srun` and a `scancel` that do as Slurm's do on one node.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

use super::{program, root, script};
use crate::common::{Ended, Running, ended, entries, until};

/// Starts a task for each number. The first to fail ends the others.
const SRUN: &str = r#"#!/usr/bin/env bash
[ "$1" = --ntasks=3 ] && [ "$2" = --kill-on-bad-exit=1 ] || exit 9
shift 2
echo $$ >"$FAKE/step"
for SLURM_PROCID in 0 1 2; do export SLURM_PROCID; "$@" & tasks+=($!); done
trap 'kill "${tasks[@]}" 2>/dev/null' USR1
status=0
for task in "${tasks[@]}" "${tasks[@]}"; do
    wait "$task" || { status=$?; [ $status -gt 128 ] || kill "${tasks[@]}" 2>/dev/null; }
done
wait
exit $status
"#;

/// Signals the tasks of the step.
const SCANCEL: &str = r#"#!/usr/bin/env bash
[ "$*" = "--signal=TERM 77.0" ] || exit 9
kill -USR1 "$(cat "$FAKE/step")"
"#;

/// The script as Slurm runs it, with all that it starts in a process group of its own, which ends
/// with this.
struct Batch {
    running: Option<Running>,
    group: Pid,
}

impl Batch {
    fn end(mut self) -> Ended {
        ended(self.running.take().unwrap())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // It has ended where the test has passed.
        let _ = rustix::process::kill_process_group(self.group, Signal::KILL);
    }
}

/// The script with its configuration, and a program for it. `None`: there is no shell for it.
fn batch(temp: &Path, config: &str, program: &[&str]) -> Option<Batch> {
    super::program("bash")?;
    std::fs::write(temp.join("conf.json"), config).unwrap();
    let bin = temp.join("bin");
    std::fs::create_dir(&bin).unwrap();
    script(&bin.join("srun"), SRUN);
    script(&bin.join("scancel"), SCANCEL);
    let mut path = bin.into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    crate::common::ignore_nothing();
    let child = Command::new("bash")
        .arg(root().join("contrib/slurm/margo.sbatch").canonicalize().unwrap())
        .arg("conf.json")
        .args(program)
        .env("PATH", path)
        .env("FAKE", temp)
        .env("MARGO", env!("CARGO_BIN_EXE_margo"))
        .envs([("SLURM_NTASKS", "3"), ("SLURM_JOB_ID", "77")])
        .env("SLURM_SUBMIT_DIR", temp)
        .env_remove("MARGO_ADDRESSES")
        .current_dir(temp)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let running = Running::new(child);
    Some(Batch { group: running.pid(), running: Some(running) })
}

const DOCUMENT: &str = r#"{ "margo": { "address": "na+tcp://127.0.0.1:0", "providers": [
    { "type": "echo", "provider_id": 1 }] } }"#;

fn leaves_nothing(temp: &Path, ended: &Ended) {
    assert_eq!(entries(temp), ["bin", "conf.json", "step"], "{ended:#?}");
}

#[test]
fn the_program_finds_all_services_and_they_end_after_it() {
    let temp = tempfile::tempdir().unwrap();
    let call = "for at in $(cat \"$MARGO_ADDRESSES/all\"); do \"$MARGO\" ping $at -c 1 || exit 4; \
                done; exit 3";
    let Some(batch) = batch(temp.path(), DOCUMENT, &["bash", "-c", call]) else {
        return println!("SKIPPED: there is no bash here");
    };
    let ended = batch.end().expect(3);
    assert_eq!(ended.stdout.matches("listening on na+tcp://").count(), 3, "{ended:#?}");
    assert_eq!(ended.stdout.matches("0 lost").count(), 3, "{ended:#?}");
    leaves_nothing(temp.path(), &ended);
}

#[test]
fn without_a_program_they_run_until_the_time_of_the_job_ends() {
    let temp = tempfile::tempdir().unwrap();
    let Some(batch) = batch(temp.path(), DOCUMENT, &[]) else {
        return println!("SKIPPED: there is no bash here");
    };
    let all = temp.path().join("margo-77/all");
    let addresses = || std::fs::read_to_string(&all).is_ok_and(|all| all.lines().count() == 3);
    until("the addresses", || addresses().then_some(()));
    batch.running.as_ref().unwrap().signal(Signal::TERM);
    let ended = batch.end().expect(143);
    leaves_nothing(temp.path(), &ended);
}

#[test]
fn a_service_that_does_not_start_ends_the_job() {
    let temp = tempfile::tempdir().unwrap();
    // All want the same address.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let document = DOCUMENT.replace("127.0.0.1:0", &taken.local_addr().unwrap().to_string());
    let Some(batch) = batch(temp.path(), &document, &["true"]) else {
        return println!("SKIPPED: there is no bash here");
    };
    let ended = batch.end().expect(1);
    assert!(ended.stderr.contains("has ended before all 3 of them listened"), "{ended:#?}");
    leaves_nothing(temp.path(), &ended);
}

#[test]
fn shells_find_no_fault_with_the_script() {
    let path = root().join("contrib/slurm/margo.sbatch");
    match program("shellcheck") {
        Some(shellcheck) => {
            let (ok, said) = super::output(Command::new(shellcheck).arg(path));
            assert!(ok, "{said}");
        }
        None => println!("SKIPPED: there is no shellcheck here"),
    }
}
