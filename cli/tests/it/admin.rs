//! `margo admin`: what it prints, and what it says when it may not.

use std::path::Path;
use std::process::Stdio;

use crate::common::{Ended, Running, Service, margo, run};

fn serve(temp: &Path, more: &str) -> (Running, String) {
    let document = format!(
        r#"{{ "margo": {{ "address": "na+sm://", "remote_shutdown": true,
            "providers": [{{ "type": "echo", "provider_id": 1 }}] {more} }} }}"#
    );
    std::fs::write(temp.join("service.json"), document).unwrap();
    let child = margo(temp).args(["serve", "service.json"]).stdout(Stdio::piped()).spawn().unwrap();
    let Service { running, address, .. } = Service::of(child);
    (running, address)
}

fn admin(temp: &Path, args: &[&str], input: &str) -> Ended {
    run(margo(temp).arg("admin").args(args), input)
}

#[test]
fn a_service_is_changed_while_it_runs() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let (mut running, address) = serve(temp, r#", "remote_admin": true"#);
    let act = |args: &[&str], input: &str| {
        let args: Vec<_> = [&*address].into_iter().chain(args.iter().copied()).collect();
        admin(temp, &args, input)
    };
    assert_eq!(act(&["add-pool", r#"{ "name": "blobs" }"#], "").expect(0).stdout, "blobs\n");
    std::fs::write(temp.join("xstream.json"), r#"{ "scheduler": { "pools": ["blobs"] } }"#)
        .unwrap();
    let name = act(&["add-xstream", "xstream.json"], "").expect(0).stdout;
    let blob =
        r#"{ "type": "blob", "provider_id": 2, "pool": "blobs", "config": { "path": "." } }"#;
    assert_eq!(act(&["start", "-"], blob).expect(0).stdout, "blob_2\n");

    let listed = act(&["list"], "").expect(0).stdout;
    let lines: Vec<Vec<_>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let line_of = |name: &str| lines.iter().find(|line| line.first() == Some(&name)).unwrap();
    assert_eq!(lines[0], [&format!("{address},"), "shards:", "1"]);
    assert_eq!(line_of("PROVIDER")[1..], ["type", "provider_id", "pool", "dependencies"]);
    assert_eq!(line_of("blob_2")[1..], ["blob", "2", "blobs", "-"]);
    assert_eq!(line_of(name.trim())[1..], ["blobs"]);
    let json = act(&["list", "--json"], "").expect(0).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["providers"][1]["name"], "blob_2");
    // It can be served again.
    std::fs::write(temp.join("now.json"), act(&["config"], "").expect(0).stdout).unwrap();
    run(margo(temp).args(["config", "check", "now.json"]), "").expect(0);

    let used = act(&["remove-pool", "blobs"], "").expect(1).stderr;
    assert!(used.contains("is in use by provider 2"), "{used}");
    assert_eq!(act(&["stop", "blob_2"], "").expect(0).stdout, "");
    act(&["remove-xstream", name.trim()], "").expect(0);
    act(&["remove-pool", "blobs"], "").expect(0);
    let wrong = act(&["start", "{ type: 1 }"], "").expect(2).stderr;
    assert!(wrong.contains("the argument is no JSON object"), "{wrong}");
    let unknown = act(&["start", r#"{ "type": "kiosk", "provider_id": 3 }"#], "").expect(1).stderr;
    assert!(unknown.contains("no component of type `kiosk`"), "{unknown}");
    run(margo(temp).args(["shutdown", &address]), "").expect(0);
    assert!(running.wait().success());
}

#[test]
fn a_service_that_does_not_allow_it_says_what_it_needs() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let (mut running, address) = serve(temp, "");
    let refused = admin(temp, &[&address, "stop", "echo_1"], "").expect(1).stderr;
    assert!(refused.contains(r#""margo": { "remote_admin": true }"#), "{refused}");
    run(margo(temp).args(["shutdown", &address]), "").expect(0);
    assert!(running.wait().success());
}
