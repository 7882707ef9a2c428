//! `margo security`, and services that its files keep private: the steps of the guide.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;

use crate::common::{Service, margo, run, until};

fn document(dir: &Path, name: &str, security: &str) {
    let text = format!(
        r#"{{ "margo": {{ "address": "na+tcp://0.0.0.0:0", "security": {security},
            "providers": [{{ "type": "echo", "provider_id": 3 }}] }} }}"#
    );
    std::fs::write(dir.join(name), text).unwrap();
}

fn serve(dir: &Path, file: &str) -> Service {
    let parent = std::process::id().to_string();
    let child = margo(dir)
        .args(["serve", file, "--die-with", &parent])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Service::of(child.unwrap())
}

/// The address with loopback for the host: who asks there need not be able to reach the other one.
fn here(service: &Service) -> String {
    format!("na+tcp://127.0.0.1:{}", service.address.rsplit(':').next().unwrap())
}

fn ping(dir: &Path, address: &str, config: &[&str], status: i32) -> String {
    let args = ["ping", address, "-c", "1"];
    let ended = run(margo(dir).args(args).args(config), "").expect(status);
    format!("{}{}", ended.stdout, ended.stderr)
}

#[test]
fn a_service_with_a_secret_answers_those_that_know_it() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    run(margo(dir).args(["security", "new-secret", "secret"]), "").expect(0);
    let mode = std::fs::metadata(dir.join("secret")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = run(margo(dir).args(["security", "new-secret", "secret"]), "").expect(1);
    assert!(again.stderr.contains("secret: File exists"), "{again:#?}");
    run(margo(dir).args(["security", "new-secret", "other"]), "").expect(0);
    let with = |secret: &str| {
        format!(r#"{{ "tcp": {{ "mode": "cluster_secret", "secret": "{secret}" }} }}"#)
    };
    document(dir, "service.json", &with("secret"));
    document(dir, "other.json", &with("other"));

    let service = serve(dir, "service.json");
    let address = here(&service);
    ping(dir, &address, &["--config", "service.json"], 0);
    for config in [&[][..], &["--config", "other.json"]] {
        let said = ping(dir, &address, config, 1);
        assert!(said.contains("TLS"), "{said}");
    }
    let checked = run(margo(dir).args(["config", "check", "service.json"]), "").expect(0);
    assert!(checked.stdout.contains("All who are let in may call everything"), "{checked:#?}");
    // Whatever is shown, the secret is not.
    let secret = std::fs::read_to_string(dir.join("secret")).unwrap();
    for args in [&["config", "check", "service.json"][..], &["security", "show", "secret"]] {
        let ended = run(margo(dir).args(args), "").expect(0);
        assert!(!ended.stdout.contains(secret.trim()), "{ended:#?}");
    }

    // It is changed step by step, and the service notices.
    for step in ["--add", "--promote", "--retire"] {
        run(margo(dir).args(["security", "new-secret", "secret", step]), "").expect(0);
        ping(dir, &address, &["--config", "service.json"], 0);
    }
    std::fs::write(dir.join("other"), &secret).unwrap();
    let said = ping(dir, &address, &["--config", "other.json"], 1);
    assert!(said.contains("TLS"), "{said}");
    let step = ["security", "new-secret", "secret", "--promote"];
    let ended = run(margo(dir).args(step), "").expect(2);
    assert!(ended.stderr.contains("secret has 1 secret: this step needs two"), "{ended:#?}");
}

#[test]
fn a_service_with_a_certificate_knows_callers_by_name() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    run(margo(dir).args(["security", "new-ca", "authority"]), "").expect(0);
    for name in ["store.example", "client7.example", "guest.example"] {
        let args = ["security", "issue", name, "--ca", "authority"];
        run(margo(dir).args(args), "").expect(0);
    }
    let with = |name: &str| {
        format!(
            r#"{{ "tcp": {{ "mode": "mutual_tls", "certificate": "authority/{name}.pem",
                "key": "authority/{name}.key", "trust": "authority/ca.pem",
                "names": ["*.example"] }}, "allow": [{{ "who": "name:client*.example" }}] }}"#
        )
    };
    for name in ["store", "client7", "guest"] {
        document(dir, &format!("{name}.json"), &with(&format!("{name}.example")));
    }
    let shown = ["security", "show", "authority/ca.pem", "authority/store.example.pem"];
    let shown = run(margo(dir).args(shown), "").expect(0).stdout;
    assert!(shown.contains("the certificate of store.example, good for 364 more days"), "{shown}");
    assert!(shown.contains("ca.pem: a certificate without names, good for 3,649"), "{shown}");

    let service = serve(dir, "store.json");
    let address = here(&service);
    ping(dir, &address, &["--config", "client7.json"], 0);
    let said = ping(dir, &address, &["--config", "guest.json"], 1);
    assert!(said.contains("does not let this caller call"), "{said}");

    for name in ["", "a/b", "../up", ".hidden", "two words"] {
        let args = ["security", "issue", name, "--ca", "authority"];
        run(margo(dir).args(args), "").expect(2);
    }
    let nowhere = ["security", "issue", "x", "--ca", "nowhere"];
    let ended = run(margo(dir).args(nowhere), "").expect(1);
    assert!(ended.stderr.contains("cannot read nowhere/ca.key"), "{ended:#?}");
}

#[test]
fn an_instance_that_other_hosts_reach_says_who_may_come() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    document(dir, "open.json", "{}");
    let ended = run(margo(dir).args(["serve", "open.json"]), "").expect(2);
    assert!(ended.stderr.contains("nothing says who may connect"), "{ended:#?}");
    assert!(ended.stderr.contains("margo security new-secret"), "{ended:#?}");
    let by_others = r#"{ "tcp": { "mode": "cluster_secret", "secret": "secret" } }"#;
    document(dir, "readable.json", by_others);
    std::fs::write(dir.join("secret"), "0123456789012345678901234567890123456789").unwrap();
    std::fs::set_permissions(dir.join("secret"), PermissionsExt::from_mode(0o644)).unwrap();
    let ended = run(margo(dir).args(["serve", "readable.json"]), "").expect(1);
    let said = "secret has mode 644: others must not be able to read it (chmod 600)";
    assert!(ended.stderr.contains(said), "{ended:#?}");
}

/// Returns whether these bytes stand in the memory of a process that a core file would have.
fn is_in_core(pid: i32, bytes: &[u8]) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let (mut range, mut kept) = (None, false);
    for line in maps.lines() {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        if let Some((from, to)) = words[0].split_once('-') {
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            // A file that is mapped and cannot be written to is on the disk as it is.
            kept = words[1].starts_with("rw");
            range = Some((number(from), number(to)));
        } else if words[0] == "Rss:" {
            kept &= words[1] != "0";
        } else if words[0] == "VmFlags:" && kept && !words.contains(&"dd") {
            let (from, to) = range.expect("a line before says it");
            let mut found = vec![0; (to - from) as usize];
            // What has gone meanwhile is in no core file either.
            if memory.read_exact_at(&mut found, from).is_ok()
                && found.windows(bytes.len()).any(|window| window == bytes)
            {
                return true;
            }
        }
    }
    false
}

#[test]
fn a_secret_is_in_no_log_no_dump_and_no_core_file() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    run(margo(dir).args(["security", "new-secret", "secret"]), "").expect(0);
    let secret = std::fs::read_to_string(dir.join("secret")).unwrap();
    let text = r#"{ "margo": { "address": "na+tcp://0.0.0.0:0", "dump_on_signal": "usr1",
        "security": { "tcp": { "mode": "cluster_secret", "secret": "secret" } } } }"#;
    std::fs::write(dir.join("service.json"), text).unwrap();
    let parent = std::process::id().to_string();
    let child = margo(dir)
        .env("MARGO_LOG", "trace")
        .args(["serve", "service.json", "--die-with", &parent])
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(dir.join("log")).unwrap())
        .spawn();
    let mut service = Service::of(child.unwrap());
    let address = here(&service);
    for step in ["--add", "--promote"] {
        ping(dir, &address, &["--config", "service.json"], 0);
        ping(dir, &address, &[], 1);
        run(margo(dir).args(["security", "new-secret", "secret", step]), "").expect(0);
    }
    ping(dir, &address, &["--config", "service.json"], 0);
    let both = std::fs::read_to_string(dir.join("secret")).unwrap();
    let secrets: Vec<_> = both.split_ascii_whitespace().collect();
    assert_eq!((secrets.len(), secrets[1]), (2, secret.trim()));
    let pid = service.running.pid().as_raw_pid();
    // As a check of the look: the document is there, which names the file.
    assert!(is_in_core(pid, b"cluster_secret"));
    for secret in &secrets {
        assert!(!is_in_core(pid, secret.as_bytes()));
    }
    service.running.signal(Signal::USR1);
    let log = || std::fs::read_to_string(dir.join("log")).unwrap();
    until("the state is written", || log().contains("busy_xstreams").then_some(()));
    service.running.signal(Signal::TERM);
    service.running.wait();
    let mut said = log();
    assert!(said.contains("DEBUG"), "{said}");
    service.stdout.read_to_string(&mut said).unwrap();
    assert!(secrets.iter().all(|secret| !said.contains(secret)));
}
