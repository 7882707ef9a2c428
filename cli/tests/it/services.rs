//! `margo describe` and `margo call`: services that describe themselves, and their answers.

use std::path::Path;

use crate::common::{Ended, Service, margo, run};
use serde_json::Value;

fn call(temp: &Path, args: &[&str], input: &str) -> Ended {
    run(margo(temp).arg("call").args(args), input)
}

#[test]
fn services_are_described_and_their_methods_called() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    for address in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let blobs = temp.join(address.split(':').next().unwrap());
        let service = Service::start(temp, address, &blobs, &[]);
        let address = &*service.address;
        let ended = run(margo(temp).args(["describe", address]), "").expect(0);
        for line in [
            "blob (provider 1): A store of blobs.",
            "  blob_stat(name: String, checksum: bool) -> Result<BlobStat, BlobError>",
            "      Removes a blob.",
            "  struct BlobEntry { name: String, len: u64 }",
            "echo (provider 2)",
            "  echo_echo(text: String) -> String",
        ] {
            assert!(ended.stdout.lines().any(|own| own == line), "{line}: {}", ended.stdout);
        }
        let ended = run(margo(temp).args(["describe", address, "--json"]), "").expect(0);
        let json: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(json[1]["methods"][0]["arguments"][0]["type"], "string");

        let ended =
            call(temp, &[address, "echo_echo", "--json", r#"{"text": "hi"}"#], "").expect(0);
        assert_eq!((&*ended.stdout, &*ended.stderr), ("\"hi\"\n", ""));
        // A `Result` of the service: its value, or a failure.
        let create = [address, "blob_create", "--json", "-", "--provider", "1"];
        let ended = call(temp, &create, r#"{"name": "a", "len": 0}"#).expect(0);
        assert_eq!(ended.stdout, "null\n");
        let ended = call(temp, &create, r#"{"name": "a", "len": 0}"#).expect(1);
        assert!(ended.stderr.contains(r#"an error: {"AlreadyExists":{"name":"a"}}"#), "{ended:?}");
        let list = [address, "blob_list", "--json", r#"{"prefix":"","after":"","max":9}"#];
        let ended = call(temp, &list, "").expect(0);
        assert_eq!(ended.stdout, "{\"blobs\":[{\"len\":0,\"name\":\"a\"}],\"more\":false}\n");
    }
}

#[test]
fn wrong_calls_are_told_what_would_be_right() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let service = Service::start(temp, "na+sm://", &temp.join("blobs"), &[]);
    let address = &*service.address;
    for (args, status, text) in [
        (&[address, "echo"][..], 1, "there are, with their providers: blob_create (1)"),
        (&[address, "echo_echo", "--provider", "1"], 1, "there is no method `echo_echo`"),
        (&[address, "echo_echo"], 2, "`text: String` is missing; the method is echo_echo(text:"),
        (&[address, "echo_echo", "--json", "{"], 2, "the arguments are no JSON"),
        (&[address, "echo_echo", "--json", r#"{"text": 1}"#], 2, "text: 1 is no String"),
        (&["na+sm://nobody-1", "echo_echo"], 1, "cannot ask a peer for its services"),
        (&["nowhere", "echo_echo"], 2, "is no address"),
    ] {
        let ended = call(temp, args, "").expect(status);
        assert!(ended.stderr.contains(text), "{args:?}: {ended:?}");
    }
    // With a document of the caller's own.
    for (command, more) in
        [("describe", &[][..]), ("call", &["echo_echo", "--json", r#"{"text": "hi"}"#])]
    {
        let called = |document: &str| {
            let args = [command, address].into_iter().chain(more.iter().copied());
            run(margo(temp).args(args).args(["--config", "-"]), document)
        };
        called(r#"{ "margo": { "eager_size": 1048576 } }"#).expect(0);
        let ended = called(r#"{ "margo": { "eager_size": 1 } }"#).expect(2);
        assert!(ended.stderr.contains("margo.eager_size"), "{ended:?}");
    }
    let ended = call(temp, &[address, "echo_echo", "--json", "-", "--config", "-"], "{}").expect(2);
    assert!(ended.stderr.contains("either the arguments or the document"), "{ended:?}");
    let write = r#"{"name": "a", "extents": [], "bulk": 1, "persist": false}"#;
    let ended = call(temp, &[address, "blob_write", "--json", write], "").expect(2);
    assert!(ended.stderr.contains("bulk: a bulk handle is of memory"), "{ended:?}");
}

#[test]
fn a_process_without_described_services_says_so() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let document = r#"{ "margo": { "address": "na+sm://" } }"#;
    std::fs::write(temp.join("conf"), document).unwrap();
    let child = margo(temp).args(["serve", "conf"]).stdout(std::process::Stdio::piped()).spawn();
    let service = Service::of(child.unwrap());
    let ended = run(margo(temp).args(["describe", &service.address]), "").expect(1);
    assert!(ended.stderr.contains("describes no services"), "{ended:?}");
}
