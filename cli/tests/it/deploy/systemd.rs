//! The unit for systemd: what systemd says of it, and its commands.

use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::{output, program, script, text};
use crate::common::{Running, entries, margo, run, until};

const UNIT: &str = "contrib/systemd/margo@.service";

/// The value of a setting that is there once.
fn setting(unit: &str, name: &str) -> String {
    let with = format!("{name}=");
    let mut lines = unit.lines().filter_map(|line| line.strip_prefix(&with));
    let (value, more) = (lines.next(), lines.next());
    assert!(more.is_none(), "{name} is there twice");
    value.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

#[test]
fn the_unit_is_valid_for_systemd() {
    let Some(analyze) = program("systemd-analyze") else {
        return println!("SKIPPED: there is no systemd-analyze here");
    };
    let temp = tempfile::tempdir().unwrap();
    let unit = text(UNIT).replace("/usr/local/bin/margo", env!("CARGO_BIN_EXE_margo"));
    std::fs::write(temp.path().join("margo@kv.service"), unit).unwrap();
    let mut command = Command::new(analyze);
    command.args(["verify", "--man=no", "--recursive-errors=no", "./margo@kv.service"]);
    let (ok, said) = output(command.current_dir(temp.path()));
    let of_unit: Vec<_> = said.lines().filter(|line| line.contains("margo@kv")).collect();
    assert!(ok && of_unit.is_empty(), "{said}");
}

#[test]
fn the_commands_of_the_unit_check_serve_and_stop() {
    let unit = text(UNIT);
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    for folder in ["etc/margo", "run/margo/kv", "state/margo/kv"] {
        std::fs::create_dir_all(at(folder)).unwrap();
    }
    let command = |name: &str| {
        let line = setting(&unit, name);
        let line = line.replace("%E", at("etc").to_str().unwrap());
        let line = line.replace("%t", at("run").to_str().unwrap()).replace("%i", "kv");
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        assert_eq!(words[0], "/usr/local/bin/margo", "{line}");
        let folder = setting(&unit, "WorkingDirectory");
        let folder = folder.replace("%S", at("state").to_str().unwrap()).replace("%i", "kv");
        let mut command = margo(folder.as_ref());
        command.args(&words[1..]);
        command
    };
    let file = at("etc/margo/kv.json");
    // As the unit says, such a status is not started again.
    std::fs::write(&file, r#"{ "margo": { "adress": "na+sm://" } }"#).unwrap();
    let status = setting(&unit, "RestartPreventExitStatus").parse().unwrap();
    for name in ["ExecStartPre", "ExecStart"] {
        let ended = run(&mut command(name), "").expect(status);
        assert!(ended.stderr.contains("adress"), "{ended:#?}");
    }

    let document = r#"{ "margo": { "address": "na+sm://", "providers": [
        { "type": "blob", "provider_id": 1, "config": { "path": "blobs" } }] } }"#;
    std::fs::write(&file, document).unwrap();
    run(&mut command("ExecStartPre"), "").expect(0);
    let mut serve = command("ExecStart");
    let parent = std::process::id().to_string();
    let child = serve.args(["--die-with", &parent]).stdout(Stdio::null()).spawn().unwrap();
    let mut service = Running::new(child);
    let address = at("run/margo/kv/address");
    until("the address file", || address.exists().then_some(()));
    assert_eq!(entries(at("state/margo/kv")), ["blobs"]);
    assert_eq!(setting(&unit, "KillSignal"), "SIGTERM");
    service.signal(Signal::TERM);
    assert!(service.wait().success());
    assert!(!address.exists());
}

/// The filter of the unit forbids nothing that a service does: each system call of one is allowed.
#[test]
fn a_service_makes_no_system_call_that_the_unit_forbids() {
    let (Some(analyze), Some(strace)) = (program("systemd-analyze"), program("strace")) else {
        return println!("SKIPPED: there is no systemd-analyze or no strace here");
    };
    let mut allowed = std::collections::BTreeSet::new();
    let mut sets = vec![setting(&text(UNIT), "SystemCallFilter"), "@default".to_owned()];
    while let Some(set) = sets.pop() {
        let (ok, said) = output(Command::new(&analyze).args(["syscall-filter", &set]));
        assert!(ok, "{said}");
        for word in said.split_whitespace().skip(1).map(str::to_owned) {
            match word.strip_prefix('@') {
                Some(_) => sets.push(word),
                None => _ = allowed.insert(word),
            }
        }
    }
    assert!(allowed.contains("process_vm_readv") && !allowed.contains("ptrace"), "{allowed:?}");
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "margo": { "address": "na+sm://", "address_file": "address",
        "metrics": { "listen": "127.0.0.1:0" },
        "providers": [{ "type": "blob", "provider_id": 1, "config": { "path": "blobs" } }] } }"#;
    std::fs::write(temp.path().join("conf.json"), document).unwrap();
    // A child of strace, which a signal to strace does not reach: it ends by itself.
    let traced = temp.path().join("serve.sh");
    let line = format!(
        "#!/bin/sh\n\"{0}\" serve conf.json >/dev/null &\nuntil [ -e address ]; do :; done\n\
         \"{0}\" ping \"$(cat address)\" --count 3 --size 65536 >/dev/null && kill $! && wait $!\n",
        env!("CARGO_BIN_EXE_margo")
    );
    script(&traced, &line);
    let mut command = Command::new(strace);
    command.args(["-f", "-qq", "-o", "calls", "./serve.sh"]).current_dir(temp.path());
    let (ok, said) = output(&mut command);
    if said.contains("PTRACE") {
        return println!("SKIPPED: nothing may be traced here: {said}");
    }
    assert!(ok, "{said}");
    let calls = std::fs::read_to_string(temp.path().join("calls")).unwrap();
    let name = |line: &str| {
        let name = line.split_once(' ')?.1.trim_start().split_once('(')?.0.to_owned();
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then_some(name)
    };
    let made: std::collections::BTreeSet<_> = calls.lines().filter_map(name).collect();
    assert!(made.contains("recvmsg"), "{made:?}");
    let forbidden: Vec<_> = made.difference(&allowed).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
}
