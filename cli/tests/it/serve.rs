//! `margo serve`: its address file, how it ends, and what it refuses.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;

use crate::common::{self, PATIENCE, Service, entries, margo, run};
use margo::{Handle, Instance, ProviderHandle, ProviderId, Rpc, config::Config, na, ult};
use margo_provider_blob::BlobClient;
use margo_provider_echo::EchoClient;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

const TRANSPORTS: [&str; 2] = ["na+sm://", "na+tcp://127.0.0.1:0"];

fn client(address: &str) -> (Instance, ProviderHandle) {
    // Of the last part, if there are several.
    let transport = address.rsplit('#').next().and_then(|part| part.split("://").next()).unwrap();
    let client = Instance::builder(format!("{transport}://")).listen(false).start().unwrap();
    let target = ProviderHandle::new(client.lookup(address).unwrap(), ProviderId::new(1));
    (client, target)
}

#[test]
fn serves_until_it_is_told_to_stop() {
    for transport in TRANSPORTS {
        for signal in [Signal::TERM, Signal::INT] {
            let temp = tempfile::tempdir().unwrap();
            let file = temp.path().join("address");
            let more = ["--address-file", "address"];
            let blobs = temp.path().join("blobs");
            let mut service = Service::start(temp.path(), transport, &blobs, &more);
            assert_eq!(std::fs::read_to_string(&file).unwrap().trim_end(), service.address);

            let (client, target) = client(&service.address);
            let target = ProviderHandle::new(target.addr().clone(), ProviderId::new(2));
            let echo = EchoClient::new(&client, target.clone());
            assert_eq!(echo.echo("hello", PATIENCE).unwrap(), "hello");
            let target = ProviderHandle::new(target.addr().clone(), ProviderId::new(1));
            BlobClient::new(&client, target).put("x", b"y", PATIENCE).unwrap();
            client.finalize_and_wait().unwrap();

            service.running.signal(signal);
            let status = service.running.wait();
            assert!(status.success(), "{status}");
            assert_eq!(entries(temp.path()), ["blobs"], "the address file is removed");
            let mut rest = String::new();
            service.stdout.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "", "one line is all it prints");
        }
    }
}

/// A sample on this machine, which may have fewer NUMA nodes than it is written for, and may lend
/// other CPUs.
fn fitted(name: &str, text: &str) -> String {
    let topology = ult::Topology::get().unwrap();
    let cpu = topology.allowed().iter().next().unwrap();
    match name {
        "numa-pinned.json" if topology.numa_nodes().len() < 2 => text.replace("numa:1", "numa:0"),
        "one-core.json" => text.replace("\"cpubind\": 0", &format!("\"cpubind\": {cpu}")),
        _ => text.to_owned(),
    }
}

#[test]
fn every_sample_is_served_and_each_of_its_providers_answers() {
    for (name, text) in margo_config::samples() {
        let temp = tempfile::tempdir().unwrap();
        let text = fitted(name, text);
        std::fs::write(temp.path().join("conf.json"), &text).unwrap();
        let check = ["config", "check", "--strict", "conf.json"];
        let checked = run(margo(temp.path()).args(check), "").expect(0);
        assert_eq!(checked.stderr, "", "{name}");
        let document = Config::from_json(&text).unwrap();
        if !document.margo.listen {
            // It is for programs that call; `tests/it/layout/samples.rs` of margo starts one.
            let ended = run(margo(temp.path()).args(["serve", "conf.json"]), "").expect(2);
            assert!(ended.stderr.contains("`margo.listen` is false"), "{name}: {ended:#?}");
            continue;
        }
        let child = margo(temp.path())
            .args(["serve", "conf.json", "--die-with", &std::process::id().to_string()])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut service = Service::of(child);
        let (client, target) = client(&service.address);
        let providers = document.resolve(&|_| None).unwrap().providers;
        assert!(!providers.is_empty(), "{name}");
        for provider in providers {
            let id = ProviderId::new(provider.provider_id);
            let target = ProviderHandle::new(target.addr().clone(), id);
            match provider.type_name.as_str() {
                "blob" => {
                    let blobs = BlobClient::connect(&client, target, PATIENCE).expect(name);
                    blobs.put("x", b"y", PATIENCE).expect(name);
                    assert_eq!(blobs.get("x", PATIENCE).expect(name), b"y");
                }
                "echo" => {
                    let echo = EchoClient::connect(&client, target, PATIENCE).expect(name);
                    assert_eq!(echo.echo("hello", PATIENCE).expect(name), "hello");
                }
                other => panic!("{name}: nobody knows how to call a provider of type {other}"),
            }
        }
        client.finalize_and_wait().unwrap();
        service.running.signal(Signal::TERM);
        assert!(service.running.wait().success(), "{name}");
    }
}

#[test]
fn a_service_outlives_the_limit_on_file_sizes() {
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "margo": { "address": "na+tcp://127.0.0.1:0", "providers": [
        { "type": "blob", "provider_id": 1, "config": { "path": "blobs" } }],
        "trace": { "enable": true, "filename_prefix": "calls" } }, "monitoring": {} }"#;
    std::fs::write(temp.path().join("conf.json"), document).unwrap();
    common::ignore_nothing();
    // Of 4.5 KiB, in units of 512 bytes: a page of checksums, and 512 bytes.
    let child = std::process::Command::new("sh")
        .args(["-c", "ulimit -c 0; ulimit -f 9; exec \"$0\" serve conf.json"])
        .arg(env!("CARGO_BIN_EXE_margo"))
        .current_dir(temp.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let service = Service::of(child);
    let (client, target) = client(&service.address);
    let blobs = BlobClient::new(&client, target);
    for round in 0..50 {
        blobs.put(&format!("small/{round}"), &[7; 512], PATIENCE).unwrap();
    }
    let error = blobs.put("large", &[7; 513], PATIENCE).unwrap_err().to_string();
    assert!(error.contains("4609 bytes") && error.contains("`ulimit -f`"), "{error}");
    assert_eq!(blobs.list("", PATIENCE).unwrap().len(), 50);
    client.finalize_and_wait().unwrap();
    service.running.signal(Signal::TERM);
    // Its files were longer than that, too, which is no reason not to end in order.
    let ended = common::ended(service.running).expect(0);
    for file in ["trace.json", "stats.json"] {
        let line = ended.stderr.lines().find(|line| line.contains(file));
        assert!(line.is_some_and(|line| line.contains("ulimit -f")), "{file}: {ended:#?}");
    }
}

/// The first address of libfabric that can be opened here, if any.
fn libfabric() -> Option<&'static str> {
    let addresses = ["ofi+tcp;ofi_rxm://127.0.0.1", "ofi+tcp://127.0.0.1"];
    let opens = |address: &&str| na::open(address, &na::OpenOptions::listening(true)).is_ok();
    addresses.into_iter().find(opens)
}

/// Libraries that libfabric may be linked with take SIGINT and SIGTERM for themselves.
#[test]
fn libfabric_leaves_the_end_to_the_service() {
    let Some(address) = libfabric() else {
        return eprintln!("SKIPPED: libfabric has no provider over TCP here, or is not installed");
    };
    for signal in [Signal::TERM, Signal::INT] {
        let temp = tempfile::tempdir().unwrap();
        let blobs = temp.path().join("blobs");
        let more = ["--address-file", "address"];
        let mut service = Service::start(temp.path(), address, &blobs, &more);
        assert!(temp.path().join("address").exists());
        service.running.signal(signal);
        let status = service.running.wait();
        assert!(status.success(), "{status}");
        assert_eq!(entries(temp.path()), ["blobs"], "the address file is removed");
    }
}

/// Returns whether the process has a handler for the signal.
fn catches(pid: rustix::process::Pid, signal: Signal) -> bool {
    let file = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(file).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn a_service_that_is_not_up_ends_at_once() {
    let temp = tempfile::tempdir().unwrap();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        // Its document never comes.
        let child = margo(temp.path())
            .args(["serve", "-"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut running = common::Running::new(child);
        let never_written = running.child.stdin.take();
        let pid = running.pid();
        common::until("a handler", || catches(pid, signal).then_some(()));
        running.signal(signal);
        assert_eq!(running.wait().code(), Some(code));
        drop(never_written);
    }
}

/// Serves `conf.json`, whose address file is `address`: the process, what it says, and that file
/// with what is in it.
fn serving(
    dir: &std::path::Path,
) -> (common::Running, std::process::ChildStderr, std::path::PathBuf, String) {
    let mut child = margo(dir)
        .args(["serve", "conf.json"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = child.stderr.take().unwrap();
    let running = common::Running::new(child);
    let file = dir.join("address");
    let address = common::until("the address file", || std::fs::read_to_string(&file).ok());
    (running, stderr, file, address)
}

#[test]
fn sigusr1_asks_for_the_state() {
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "margo": { "address_file": "address" } }"#;
    std::fs::write(temp.path().join("conf.json"), document).unwrap();
    let (mut running, stderr, _, address) = serving(temp.path());
    let mut dumps = serde_json::Deserializer::from_reader(stderr).into_iter();
    // It goes on, and answers as often as it is asked.
    for _ in 0..2 {
        running.signal(Signal::USR1);
        let dump: serde_json::Value = dumps.next().unwrap().unwrap();
        assert_eq!(dump["address"], address.trim_end());
        assert_eq!(dump["phase"], "running");
        assert_eq!(dump["process"]["id"], running.pid().as_raw_nonzero().get());
        assert_eq!(dump["pools"][0]["name"], "__primary__");
        assert!(dump["config"]["margo"].is_object());
    }
    running.signal(Signal::TERM);
    assert!(running.wait().success());
}

/// Waits until it may answer, and keeps progress from being made meanwhile.
const BLOCK: Rpc<(), ()> = Rpc::new("block");

#[test]
fn nobody_finds_a_service_that_waits_for_its_handlers() {
    let temp = tempfile::tempdir().unwrap();
    let document = serde_json::json!({ "margo": {
        "address": "na+tcp://127.0.0.1:0", "address_file": "address", "grace_msec": 600_000,
        "providers": [{ "type": "blob", "provider_id": 1, "config": { "path": "blobs" } }],
    } });
    std::fs::write(temp.path().join("conf.json"), document.to_string()).unwrap();
    let (mut running, stderr, file, address) = serving(temp.path());

    // Who stores something, and does not give it.
    let client = Instance::builder("na+tcp://127.0.0.1:0").start().unwrap();
    let (entered, enters) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let block = move |handle: Handle<(), ()>| {
        entered.send(()).unwrap();
        let _ = released.lock().unwrap().recv();
        handle.respond(&()).unwrap();
    };
    client.register(BLOCK, block).unwrap();
    let target = client.lookup(address.trim_end()).unwrap();
    let target = ProviderHandle::new(target, ProviderId::new(1));
    let store = BlobClient::new(&client, target);
    store.put("x", b"to be connected", PATIENCE).unwrap();
    let own = ProviderHandle::from(client.self_addr());
    let blocked = client.rpc(BLOCK, &own, &()).start().unwrap();
    enters.recv().unwrap();
    let puts = std::thread::spawn(move || store.put("y", &vec![0; 1 << 20], PATIENCE));
    let mut dumps = serde_json::Deserializer::from_reader(stderr).into_iter();
    common::until("a handler", || {
        running.signal(Signal::USR1);
        let dump: serde_json::Value = dumps.next().unwrap().unwrap();
        (dump["handlers_running"] == 1).then_some(())
    });

    running.signal(Signal::TERM);
    common::until("the end of the address file", || (!file.exists()).then_some(()));
    assert!(running.child.try_wait().unwrap().is_none(), "it waits for its handler");
    drop(release);
    puts.join().unwrap().unwrap();
    blocked.wait().unwrap();
    assert!(running.wait().success());
    client.finalize_and_wait().unwrap();
}

#[test]
fn the_end_of_its_terminal_ends_it_in_order_unless_it_was_told_to_outlive_that() {
    for outlives in [false, true] {
        let temp = tempfile::tempdir().unwrap();
        let document = r#"{ "margo": { "address_file": "address" } }"#;
        std::fs::write(temp.path().join("conf.json"), document).unwrap();
        let ignore = if outlives { "trap '' HUP; " } else { "" };
        let (_terminal, slave) = terminal();
        let mut command = in_session(temp.path(), &["--ctty"], ignore);
        let child = command.stdin(slave).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let mut running = common::Running::new(child);
        let stderr = running.child.stderr.take().unwrap();
        let file = temp.path().join("address");
        common::until("the address file", || file.exists().then_some(()));
        running.signal(Signal::HUP);
        if outlives {
            running.signal(Signal::USR1);
            let mut dumps = serde_json::Deserializer::from_reader(stderr).into_iter();
            let dump: serde_json::Value = dumps.next().unwrap().unwrap();
            assert_eq!(dump["phase"], "running");
            running.signal(Signal::TERM);
        }
        assert!(running.wait().success(), "{outlives}");
        assert!(!file.exists());
    }
}

/// `margo serve conf.json` in a session of its own, where the shell has done something before.
fn in_session(folder: &std::path::Path, options: &[&str], before: &str) -> std::process::Command {
    // Whoever runs the tests may ignore the signal, which would be inherited.
    let mut command = std::process::Command::new("env");
    command.args(["--default-signal=HUP", "setsid"]).args(options);
    command.args(["sh", "-c", &format!("{before}exec \"$0\" serve conf.json")]);
    command.arg(env!("CARGO_BIN_EXE_margo")).current_dir(folder);
    command.stdout(std::process::Stdio::null());
    command
}

/// Both ends of a terminal.
fn terminal() -> (std::os::fd::OwnedFd, std::fs::File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (master, std::fs::File::options().read(true).write(true).open(name).unwrap())
}

/// A line of a log that is read as it comes.
fn heard(lines: &mut impl Iterator<Item = std::io::Result<String>>, what: &str) -> String {
    lines.map(Result::unwrap).find(|line| line.contains(what)).expect(what)
}

#[test]
fn without_a_terminal_a_hangup_has_secrets_read_again() {
    let temp = tempfile::tempdir().unwrap();
    let secrets = ["tcp", "fabrics"];
    for of in secrets {
        let path = temp.path().join(of);
        std::fs::write(&path, "a secret, which is long enough to be one").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    for (of, address) in secrets.into_iter().zip(["na+tcp://127.0.0.1:0", "na+sim://hangup/a"]) {
        let security = serde_json::json!({ of: { "mode": "cluster_secret", "secret": of } });
        let margo = serde_json::json!({ "address": address, "security": security,
            "address_file": "address" });
        let document = serde_json::json!({ "margo": margo }).to_string();
        std::fs::write(temp.path().join("conf.json"), document).unwrap();
        let mut command = in_session(temp.path(), &[], "");
        let child = command.env("MARGO_LOG", "info").stdin(std::process::Stdio::null());
        let child = child.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let mut running = common::Running::new(child);
        let mut lines = BufReader::new(running.child.stderr.take().unwrap()).lines();
        let file = temp.path().join("address");
        common::until("the address file", || file.exists().then_some(()));
        std::fs::write(temp.path().join(of), "another secret, which is long enough as well")
            .unwrap();
        running.signal(Signal::HUP);
        heard(&mut lines, "SIGHUP: secrets and certificates");
        heard(&mut lines, "read again");
        std::fs::write(temp.path().join(of), "short").unwrap();
        running.signal(Signal::HUP);
        let line = heard(&mut lines, "cannot be used");
        assert!(line.contains("a secret has 5 characters"), "{line}");
        running.signal(Signal::TERM);
        let rest = std::thread::spawn(move || lines.map_while(Result::ok).count());
        assert!(running.wait().success());
        rest.join().unwrap();
        assert!(!file.exists());
    }
}

#[test]
fn the_address_can_be_given_twice_and_the_argument_wins() {
    let temp = tempfile::tempdir().unwrap();
    let blobs = temp.path().join("blobs");
    let more = ["--address", "na+tcp://127.0.0.1:0"];
    let service = Service::start(temp.path(), "na+sm://", &blobs, &more);
    assert!(service.address.starts_with("na+tcp://127.0.0.1:"), "{}", service.address);
}

#[test]
fn the_configuration_can_name_the_address_file() {
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "margo": { "address_file": "from config", "providers": [] } }"#;
    std::fs::write(temp.path().join("conf.json"), document).unwrap();
    let child = margo(temp.path())
        .args(["serve", "conf.json"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut running = common::Running::new(child);
    let file = temp.path().join("from config");
    let address = common::until("the address file", || std::fs::read_to_string(&file).ok());
    assert!(address.starts_with("na+sm://") && address.ends_with('\n'), "{address:?}");
    running.signal(Signal::TERM);
    assert!(running.wait().success());
    assert!(!file.exists());
}

#[test]
fn what_it_cannot_serve_is_said() {
    let temp = tempfile::tempdir().unwrap();
    for (document, args, code, expected) in [
        ("{", &["-"][..], 2, "standard input is not valid"),
        (r#"{ "margo": { "listen": false } }"#, &["-"], 2, "`margo.listen` is false"),
        ("{}", &["missing.json"], 2, "missing.json: No such file"),
        ("{}", &["-", "--address", "na+pigeon://"], 1, "na+pigeon"),
        ("{}", &["-", "--address", "na+tcp://127.0.0.1:99999"], 1, "99999"),
        ("{}", &["-", "--address-file", "no/where"], 1, "the address file: no/where"),
        (
            r#"{ "margo": { "providers": [{ "type": "kiosk", "provider_id": 1 }] } }"#,
            &["-"],
            1,
            "no component of type `kiosk` (this program has: blob, echo, kv)",
        ),
        (
            r#"{ "margo": { "providers": [{ "type": "blob", "provider_id": 1 }] } }"#,
            &["-"],
            2,
            "margo.providers[0].config.path: missing",
        ),
    ] {
        let ended = run(margo(temp.path()).arg("serve").args(args), document).expect(code);
        assert!(ended.stderr.contains(expected), "{expected}: {ended:#?}");
        assert_eq!(ended.stdout, "");
    }
    assert_eq!(entries(temp.path()), Vec::<String>::new());
}

#[test]
fn a_service_goes_on_from_the_snapshot_of_another() {
    let temp = tempfile::tempdir().unwrap();
    let (first, second) = (temp.path().join("first"), temp.path().join("second"));
    let mut service = Service::start(temp.path(), "na+sm://", &first, &["--snapshot", "kept"]);
    let (instance, target) = client(&service.address);
    BlobClient::new(&instance, target).put("a/b", b"1", PATIENCE).unwrap();
    instance.finalize_and_wait().unwrap();
    service.running.signal(Signal::TERM);
    let ended = common::ended(service.running).expect(0);
    let note = "provider `echo_2` has no snapshot: providers of this type do not support it";
    assert!(ended.stderr.contains(note), "{ended:#?}");
    assert_eq!(entries(temp.path().join("kept")), ["blob_1"]);

    service = Service::start(temp.path(), "na+sm://", &second, &["--restore", "kept"]);
    let (instance, target) = client(&service.address);
    assert_eq!(BlobClient::new(&instance, target).get("a/b", PATIENCE).unwrap(), b"1");
    instance.finalize_and_wait().unwrap();
    drop(service);
    assert_eq!(entries(temp.path().join("kept")), ["blob_1"], "it stays");

    let ended = run(margo(temp.path()).args(["serve", "-", "--snapshot", "kept"]), "{}").expect(2);
    assert!(ended.stderr.contains("kept is there already"), "{ended:#?}");

    // Onto what is there, and for nobody.
    let document = serde_json::json!({ "margo": { "providers": [
        { "type": "blob", "provider_id": 1, "config": { "path": second } },
    ] } });
    let restore = |from: &str| {
        run(margo(temp.path()).args(["serve", "-", "--restore", from]), &document.to_string())
    };
    let ended = restore("kept").expect(1);
    assert!(
        ended.stderr.contains("blob_1` of type `blob`: restore: the provider has"),
        "{ended:#?}"
    );
    std::fs::create_dir_all(temp.path().join("other/blob_7")).unwrap();
    let ended = restore("other").expect(1);
    assert!(ended.stderr.contains("no provider `blob_7` was started (there are: blob_1)"));
    let ended = restore("nowhere").expect(1);
    assert!(ended.stderr.contains("cannot restore nowhere: No such file"), "{ended:#?}");
}

#[test]
fn a_service_without_its_parent_does_not_start() {
    let temp = tempfile::tempdir().unwrap();
    let ended = run(margo(temp.path()).args(["serve", "-", "--die-with", "1"]), "{}").expect(1);
    assert!(ended.stderr.contains("the parent process 1 is gone"), "{ended:#?}");
}

#[test]
fn two_services_do_not_share_a_directory() {
    let temp = tempfile::tempdir().unwrap();
    let blobs = temp.path().join("blobs");
    let first = Service::start(temp.path(), "na+sm://", &blobs, &[]);
    let document = serde_json::json!({ "margo": { "providers": [
        { "type": "blob", "provider_id": 1, "config": { "path": blobs } },
    ] } });
    let ended = run(margo(temp.path()).args(["serve", "-"]), &document.to_string()).expect(1);
    assert!(ended.stderr.contains("in use by another blob provider"), "{ended:#?}");
    drop(first);
}
