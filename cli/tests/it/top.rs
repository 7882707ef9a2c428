//! `margo top`: its display, its errors, and its wait for a service.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Running, ignore_nothing, margo, run, until};
use margo::Metrics;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A service that lets everybody look, or nobody.
fn serve(temp: &Path, address: &str, allowed: bool) -> (Running, String) {
    let file = temp.join("address");
    let _ = std::fs::remove_file(&file);
    let document = format!(
        r#"{{ "margo": {{ "address": "{address}", "address_file": "address",
                "metrics": {{ "remote": {allowed}, "listen": "127.0.0.1:0" }} }} }}"#
    );
    std::fs::write(temp.join("conf.json"), document).unwrap();
    let child = margo(temp).args(["serve", "conf.json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut running = Running::new(child);
    let mut stdout = BufReader::new(running.child.stdout.take().unwrap());
    let mut lines = [String::new(), String::new()];
    for line in &mut lines {
        stdout.read_line(line).unwrap();
    }
    assert!(lines[1].starts_with("metrics at http://127.0.0.1:"), "{lines:?}");
    let address = until("the address file", || std::fs::read_to_string(&file).ok());
    (running, address.trim_end().to_owned())
}

#[test]
fn shows_a_service_once_or_as_json() {
    for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let temp = tempfile::tempdir().unwrap();
        let (_running, address) = serve(temp.path(), transport, true);
        let shown = run(margo(temp.path()).args(["top", &address, "--once"]), "").expect(0);
        let off = "statistics are off";
        for word in
            [&*address, "running", off, "POOL", "XSTREAM", "__primary__", "PROGRESS", "PEER"]
        {
            assert!(shown.stdout.contains(word), "no {word} in\n{}", shown.stdout);
        }
        let json = run(margo(temp.path()).args(["top", &address, "--once", "--json"]), "");
        let seen: Metrics = serde_json::from_str(&json.expect(0).stdout).unwrap();
        assert_eq!(seen.address, address);
        assert!(seen.network.requests_received >= 1);
    }
}

#[test]
fn several_services_are_shown_below_each_other() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let transports = ["na+sm://", "na+tcp://127.0.0.1:0"];
    let services = [0, 1].map(|at| serve(dirs[at].path(), transports[at], true));
    let addresses = [&*services[0].1, &*services[1].1];
    let temp = dirs[0].path();
    let shown = run(margo(temp).arg("top").args(addresses).arg("--once"), "").expect(0);
    let places = addresses.map(|address| shown.stdout.find(address).expect(address));
    assert!(places[0] < places[1], "{}", shown.stdout);
    let json = run(margo(temp).arg("top").args(addresses).args(["--once", "--json"]), "");
    let json = json.expect(0).stdout;
    let seen = json.lines().map(|line| serde_json::from_str::<Metrics>(line).unwrap().address);
    assert_eq!(seen.collect::<Vec<_>>(), addresses);
}

#[test]
fn a_terminal_is_drawn_on_and_put_back() {
    let temp = tempfile::tempdir().unwrap();
    let (_running, address) = serve(temp.path(), "na+sm://", true);
    for end in ["q", "Ctrl-C", "Ctrl-\\"] {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        let before = rustix::termios::tcgetattr(&slave).unwrap();
        // Without a core file, which the last one would leave.
        let child = in_shell(temp.path(), "ulimit -c 0")
            .args(["top", &address, "--interval", "0.1"])
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .spawn()
            .unwrap();
        let mut top = Running::new(child);
        let mut master = File::from(master);
        let mut shown = String::new();
        // Two pages: the second one is drawn over the first one.
        while shown.matches("XSTREAM").count() < 2 {
            let mut some = [0; 4096];
            let count = master.read(&mut some).unwrap();
            shown.push_str(&String::from_utf8_lossy(&some[..count]));
        }
        assert!(shown.starts_with("\x1b[?1049h") && shown.contains(&address), "{shown:?}");
        // On so few rows that some of it is out of sight, which is said, and keys go there.
        let size = rustix::termios::Winsize { ws_row: 6, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&slave, size).unwrap();
        top.signal(Signal::WINCH);
        for (key, expected) in [("", "more lines   ("), ("\x1b[B", "more lines, 1 above")] {
            master.write_all(key.as_bytes()).unwrap();
            shown.clear();
            while !shown.contains(expected) {
                let mut some = [0; 4096];
                let count = master.read(&mut some).unwrap();
                shown.push_str(&String::from_utf8_lossy(&some[..count]));
            }
        }
        match end {
            "q" => master.write_all(b"q").unwrap(),
            "Ctrl-C" => top.signal(Signal::INT),
            _ => top.signal(Signal::QUIT),
        }
        let rest = std::thread::spawn(move || {
            let mut rest = Vec::new();
            // It ends with an error when nobody has the other side any more.
            let _ = master.read_to_end(&mut rest);
            String::from_utf8_lossy(&rest).into_owned()
        });
        let status = top.wait();
        match end {
            "q" | "Ctrl-C" => assert!(status.success(), "{status}"),
            _ => assert_eq!(status.signal(), Some(Signal::QUIT.as_raw()), "{status}"),
        }
        let after = rustix::termios::tcgetattr(&slave).unwrap();
        assert_eq!(after.local_modes, before.local_modes);
        drop(slave);
        assert!(rest.join().unwrap().ends_with("\x1b[?25h\x1b[?1049l"), "{end}");
    }
}

#[test]
fn says_why_it_cannot() {
    let temp = tempfile::tempdir().unwrap();
    let (_running, address) = serve(temp.path(), "na+tcp://127.0.0.1:0", false);
    let refused = run(margo(temp.path()).args(["top", &address]), "").expect(1);
    assert!(
        refused.stderr.contains(r#""margo": { "metrics": { "remote": true } }"#),
        "{refused:?}"
    );
    let nobody = run(margo(temp.path()).args(["top", "na+tcp://127.0.0.1:1"]), "").expect(1);
    assert!(nobody.stderr.contains("127.0.0.1:1"), "{nobody:?}");
    for nonsense in ["127.0.0.1:7000", "na+nonsense://x", "na+tcp://"] {
        let wrong = run(margo(temp.path()).args(["top", nonsense]), "");
        assert!(matches!(wrong.status.code(), Some(1 | 2)), "{wrong:?}");
        assert!(!wrong.stderr.contains("panicked") && wrong.stdout.is_empty(), "{wrong:?}");
    }
}

#[test]
fn goes_on_when_the_service_comes_back_and_ends_when_it_is_told() {
    let temp = tempfile::tempdir().unwrap();
    // A name that nobody else takes in between, as it may happen to a port.
    let address = format!("na+sm://comes-back-{}", std::process::id());
    let (mut service, address) = serve(temp.path(), &address, true);
    let mut child = margo(temp.path())
        .args(["top", &address, "--interval", "0.1", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = serde_json::Deserializer::from_reader(child.stdout.take().unwrap())
        .into_iter::<Metrics>()
        .map(|metrics| metrics.unwrap());
    let mut troubles = BufReader::new(child.stderr.take().unwrap());
    let mut top = Running::new(child);
    let (first, second) = (seen.next().unwrap(), seen.next().unwrap());
    assert_eq!(first.process.id, second.process.id);
    assert!(second.uptime_sec > first.uptime_sec);

    service.signal(Signal::TERM);
    assert!(service.wait().success());
    let mut trouble = String::new();
    troubles.read_line(&mut trouble).unwrap();
    assert!(trouble.contains("still trying"), "{trouble}");
    let (_service, again) = serve(temp.path(), &address, true);
    assert_eq!(again, address);
    let other = seen.find(|metrics| metrics.process.id != first.process.id).unwrap();
    assert!(other.uptime_sec < 60.0);

    // Nobody reads what it still says.
    let rest = std::thread::spawn(move || {
        let mut rest = String::new();
        troubles.read_to_string(&mut rest).map(|_| rest)
    });
    top.signal(Signal::INT);
    let drained = std::thread::spawn(move || seen.count());
    assert!(top.wait().success());
    let rest = trouble + &rest.join().unwrap().unwrap();
    assert!(!rest.contains("panicked"));
    let said: Vec<_> = rest.lines().filter(|line| line.contains("still trying")).collect();
    assert!(said.windows(2).all(|pair| pair[0] != pair[1]), "again and again: {rest}");
    drained.join().unwrap();
}

#[test]
fn ends_at_once_while_the_service_does_not_answer() {
    let temp = tempfile::tempdir().unwrap();
    let (service, address) = serve(temp.path(), "na+sm://", true);
    let mut child = margo(temp.path())
        .args(["top", &address, "--interval", "0.05", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = BufReader::new(child.stdout.take().unwrap());
    let mut stderr = child.stderr.take().unwrap();
    let mut top = Running::new(child);
    seen.read_line(&mut String::new()).unwrap();
    service.signal(Signal::STOP);
    let stat = format!("/proc/{}/stat", service.pid().as_raw_nonzero());
    until("a service that is stopped", || {
        std::fs::read_to_string(&stat).unwrap().contains(") T ").then_some(())
    });
    // Whatever it still prints was asked before.
    let drained = std::thread::spawn(move || seen.read_to_end(&mut Vec::new()).unwrap());
    until("somebody who waits for the answer", || asks(&top).then_some(()));
    top.signal(Signal::INT);
    assert!(top.wait().success());
    drained.join().unwrap();
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(said, "", "it has waited until the answer was overdue");
    service.signal(Signal::CONT);
}

#[test]
fn outlives_its_terminal_if_it_was_told_to() {
    let temp = tempfile::tempdir().unwrap();
    let (_running, address) = serve(temp.path(), "na+sm://", true);
    for outlives in [false, true] {
        let child = in_shell(temp.path(), if outlives { "trap '' HUP" } else { ":" })
            .args(["top", &address, "--interval", "0.05", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut top = Running::new(child);
        let mut seen = BufReader::new(top.child.stdout.take().unwrap());
        seen.read_line(&mut String::new()).unwrap();
        // It has begun, so it has said what it wants to hear of.
        let status = format!("/proc/{}/status", top.pid().as_raw_nonzero());
        let status = std::fs::read_to_string(status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        assert_eq!(caught >> (Signal::HUP.as_raw() - 1) & 1 == 0, outlives);
        top.signal(if outlives { Signal::INT } else { Signal::HUP });
        let drained = std::thread::spawn(move || seen.read_to_end(&mut Vec::new()).unwrap());
        assert!(top.wait().success());
        drained.join().unwrap();
    }
}

/// The command as a shell starts it that has done something before; arguments follow.
fn in_shell(temp: &Path, before: &str) -> Command {
    ignore_nothing();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}; exec \"$0\" \"$@\"")]);
    shell.arg(env!("CARGO_BIN_EXE_margo")).current_dir(temp).stdin(Stdio::null());
    shell
}

/// Returns whether a thread of `top` waits for an answer.
fn asks(top: &Running) -> bool {
    let threads = format!("/proc/{}/task", top.pid().as_raw_nonzero());
    std::fs::read_dir(threads).unwrap().flatten().any(|thread| {
        // One that has ended meanwhile has no name.
        let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        name.trim_end() == "margo-top-asks"
    })
}
