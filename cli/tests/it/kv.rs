//! `margo kv`: a key-value store from the command line.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Ended, Service, margo, run};

/// A service with a key-value store on disk, and one in memory.
fn service(temp: &Path, address: &str) -> Service {
    let document = serde_json::json!({ "margo": { "address": address, "providers": [
        { "type": "kv", "provider_id": 1, "config": { "store": { "path": temp.join("db") } } },
        { "type": "kv", "provider_id": 2, "config": {
            "shards": 3, "store": { "kind": "memory" }
        } },
        { "type": "echo", "provider_id": 3 },
    ] } });
    std::fs::write(temp.join("conf"), document.to_string()).unwrap();
    let parent = std::process::id().to_string();
    let serve = ["serve", "conf", "--die-with", &parent];
    Service::of(margo(temp).args(serve).stdout(Stdio::piped()).spawn().unwrap())
}

fn kv(temp: &Path, words: &[&str]) -> Command {
    let mut command = margo(temp);
    command.arg("kv").args(words);
    command
}

#[test]
fn values_are_put_printed_and_erased() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let service = service(temp, transport);
        let of = |words: &[&str], input: &str| -> Ended {
            let (command, rest) = words.split_first().unwrap();
            let words = [&[*command, &service.address], rest, &["--provider-id", "1"]].concat();
            run(&mut kv(temp, &words), input)
        };
        for (words, input) in [
            (&["put", "a/1", "one"][..], ""),
            (&["put", "a/2", "-"], "two\n"),
            (&["put", "b", ""], ""),
        ] {
            let ended = of(words, input).expect(0);
            assert_eq!((&*ended.stdout, &*ended.stderr), ("", ""));
        }
        assert_eq!(of(&["get", "a/1"], "").expect(0).stdout, "one");
        assert_eq!(of(&["get", "a/2"], "").expect(0).stdout, "two\n");
        assert_eq!(of(&["get", "b"], "").expect(0).stdout, "");
        assert_eq!(of(&["list"], "").expect(0).stdout, "a/1\na/2\nb\n");
        assert_eq!(of(&["list", "--prefix", "a/"], "").expect(0).stdout, "a/1\na/2\n");
        of(&["erase", "b"], "").expect(0);
        for command in ["get", "erase"] {
            let ended = of(&[command, "b"], "").expect(1);
            assert_eq!((&*ended.stdout, &*ended.stderr), ("", "margo: there is no such key\n"));
        }
    }
}

#[test]
fn what_is_dumped_is_loaded_elsewhere() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let service = service(temp, "na+sm://");
    let address = &*service.address;
    let lines: Vec<_> =
        (0..2500).map(|n| format!("{{\"key\":\"k{n:04}\",\"value\":\"{n}\"}}\n")).collect();
    let other = "{\"key\":{\"base64\":\"/w==\"},\"value\":{\"base64\":\"wyg=\"}}\n";
    let dump = lines.concat() + other;
    std::fs::write(temp.join("dump"), &dump).unwrap();
    let loaded = run(&mut kv(temp, &["load", address, "dump", "--provider-id", "1"]), "");
    assert_eq!(loaded.expect(0).stdout, "2,501 keys stored\n");
    let dumped = run(&mut kv(temp, &["dump", address, "--provider-id", "1"]), "").expect(0);
    assert!(dumped.stdout == dump && dumped.stderr.is_empty());
    let loaded = run(&mut kv(temp, &["load", address, "--provider-id", "2"]), &dumped.stdout);
    loaded.expect(0);
    let words = ["dump", address, "--provider-id", "2", "--prefix", "k00"];
    assert_eq!(run(&mut kv(temp, &words), "").expect(0).stdout, lines[..100].concat());
    let list = run(&mut kv(temp, &["list", address, "--provider-id", "2"]), "").expect(0);
    assert!(list.stdout.ends_with("k2499\n\u{FFFD}\n"), "{}", list.stdout);

    let wrong = "{\"key\":\"a\",\"value\":\"b\"}\n\n{\"key\":1}\n";
    let ended = run(&mut kv(temp, &["load", address, "--provider-id", "2"]), wrong).expect(1);
    assert!(ended.stderr.contains("standard input, line 3: "), "{ended:?}");
    let ended = run(&mut kv(temp, &["load", address, "none", "--provider-id", "2"]), "").expect(1);
    assert!(ended.stderr.contains("cannot read none: No such file"), "{ended:?}");
}

#[test]
fn a_bench_says_how_many_each_second_and_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let service = service(temp, "na+sm://");
    let words = ["--provider-id", "2", "--keys", "500", "--value-bytes", "10", "--in-flight", "8"];
    let words = [&["bench", &service.address][..], &words].concat();
    let ended = run(&mut kv(temp, &words), "").expect(0);
    for (line, verb) in ended.stdout.lines().zip(["put", "get"]) {
        let start = format!("{verb}: 500 keys of 10 bytes in ");
        assert!(line.starts_with(&start) && line.ends_with(" with 8 under way"), "{ended:?}");
    }
    let list = run(&mut kv(temp, &["list", &service.address, "--provider-id", "2"]), "").expect(0);
    assert_eq!(list.stdout, "");
}

#[test]
fn wrong_calls_are_told_what_would_be_right() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let service = service(temp, "na+sm://");
    let address = &*service.address;
    for (words, status, text) in [
        (&["get", address, "k"][..], 2, "say which one by --provider-id: 1, 2"),
        (&["get", address, "k", "--provider-id", "3"], 1, "is `echo`, not `kv`"),
        (&["get", address, "k", "--provider-id", "9"], 1, "provider 9"),
        (&["get", "nowhere", "k"], 2, "is no address"),
        (&["get", "na+sm://nobody-1", "k", "--timeout", "0"], 2, "--timeout"),
        (&["get", address], 2, "<KEY>"),
        (&["put", address, "k", "-", "--config", "-"], 2, "either the data or the document"),
        (&["bench", address, "--keys", "0"], 2, "--keys"),
    ] {
        let ended = run(&mut kv(temp, words), "").expect(status);
        assert!(ended.stderr.contains(text), "{words:?}: {ended:?}");
    }

    // One store is the one that is meant; none is told.
    for (kind, status) in [("kv", 0), ("echo", 1)] {
        let config = match kind {
            "kv" => serde_json::json!({ "store": { "kind": "memory" } }),
            _ => serde_json::json!({}),
        };
        let document = serde_json::json!({ "margo": { "address": "na+sm://", "providers": [
            { "type": kind, "provider_id": 7, "config": config },
        ] } });
        std::fs::write(temp.join("conf"), document.to_string()).unwrap();
        let child = margo(temp).args(["serve", "conf"]).stdout(Stdio::piped()).spawn();
        let service = Service::of(child.unwrap());
        let ended = run(&mut kv(temp, &["list", &service.address]), "").expect(status);
        assert_eq!(ended.stderr.contains("there is no key-value store at"), status == 1);
    }
}

#[test]
fn documents_of_key_value_stores_are_checked() {
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "margo": { "providers": [
        { "type": "kv", "provider_id": 1, "config": { "stroe": {} } } ] } }"#;
    let ended = run(margo(temp.path()).args(["config", "check", "-"]), document).expect(2);
    assert!(ended.stderr.contains("config.stroe: unknown key"), "{ended:?}");
    let ended = run(margo(temp.path()).args(["config", "schema"]), "").expect(0);
    assert!(ended.stdout.contains("view_idle_ms"));
}

#[test]
fn several_servers_have_the_keys_together() {
    let temp = tempfile::tempdir().unwrap();
    for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let start = |n| {
            let place = temp.path().join(format!("{}{n}", &transport[3..6]));
            std::fs::create_dir(&place).unwrap();
            service(&place, transport)
        };
        let services: Vec<_> = (0..3).map(start).collect();
        let all: Vec<_> = services.iter().map(|service| &*service.address).collect();
        let all = all.join(",");
        let of = |words: &[&str], input: &str| -> Ended {
            let (command, rest) = words.split_first().unwrap();
            let words = [&[*command, &all], rest, &["--provider-id", "1"]].concat();
            run(&mut kv(temp.path(), &words), input)
        };
        let lines: Vec<_> =
            (0..200).map(|n| format!("{{\"key\":\"k{n:04}\",\"value\":\"{n}\"}}\n")).collect();
        assert_eq!(of(&["load"], &lines.concat()).expect(0).stdout, "200 keys stored\n");
        of(&["put", "a", "one"], "").expect(0);
        assert_eq!(of(&["get", "a"], "").expect(0).stdout, "one");
        assert_eq!(of(&["list", "--prefix", "a"], "").expect(0).stdout, "a\n");
        of(&["erase", "a"], "").expect(0);
        assert_eq!(of(&["dump"], "").expect(0).stdout, lines.concat());
        let bench = of(&["bench", "--keys", "100"], "").expect(0);
        assert!(bench.stdout.starts_with("put: 100 keys"), "{bench:?}");
        // Each has some of them.
        for service in &services {
            let words = ["list", &service.address, "--provider-id", "1"];
            let own = run(&mut kv(temp.path(), &words), "").expect(0).stdout;
            assert!((20..120).contains(&own.lines().count()), "{own}");
        }
        let twice = format!("{all},{}", services[0].address);
        let ended = run(&mut kv(temp.path(), &["list", &twice, "--provider-id", "1"]), "");
        assert!(ended.expect(1).stderr.contains("have the same database"));
    }
    let words = ["list", "na+sm://nobody-1,na+tcp://127.0.0.1:1", "--provider-id", "1"];
    let ended = run(&mut kv(temp.path(), &words), "").expect(2);
    assert!(ended.stderr.contains("of several transports"), "{ended:?}");
}

#[test]
fn servers_join_and_leave_by_a_command_that_may_be_given_again() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let serve = |name: &str| {
        let folder = temp.join(name);
        std::fs::create_dir(&folder).unwrap();
        let document = serde_json::json!({ "margo": { "address": "na+sm://", "providers": [
            { "type": "kv", "provider_id": 1, "config": {
                "store": { "path": folder.join("db") }
            } },
        ] } });
        std::fs::write(folder.join("conf"), document.to_string()).unwrap();
        let parent = std::process::id().to_string();
        let words = ["serve", "conf", "--die-with", &parent];
        Service::of(margo(&folder).args(words).stdout(Stdio::piped()).spawn().unwrap())
    };
    let (one, two) = (serve("one"), serve("two"));
    let of = |words: &[&str], input: &str| run(&mut kv(temp, words), input);
    let lines: Vec<_> =
        (0..300).map(|n| format!("{{\"key\":\"k{n:03}\",\"value\":\"{n}\"}}\n")).collect();
    of(&["load", &one.address], &lines.concat()).expect(0);
    let alone = of(&["members", &one.address], "").expect(0);
    assert_eq!(alone.stdout, "no server knows of others\n");
    for _ in 0..2 {
        let both = of(&["members", &one.address, "--add", &two.address], "").expect(0);
        assert!(both.stdout.starts_with("epoch 2\n"), "{both:?}");
        for address in [&one.address, &two.address] {
            assert!(both.stdout.contains(&**address), "{both:?}");
            let dumped = of(&["dump", address], "").expect(0);
            assert!(dumped.stdout == lines.concat(), "each finds all of them");
        }
    }
    let shown = of(&["members", &two.address], "").expect(0).stdout;
    assert!(shown.starts_with("epoch 2\n") && shown.lines().count() == 5, "{shown}");
    let left = of(&["members", &two.address, "--remove", &one.address], "").expect(0).stdout;
    assert!(left.starts_with("epoch 3\n") && !left.contains(&*one.address), "{left}");
    assert_eq!(of(&["get", &one.address, "k007"], "").expect(0).stdout, "7", "it is followed");
    let finished = of(&["members", &two.address, "--finish"], "").expect(0).stdout;
    assert_eq!(finished, left);
    let refused = of(&["members", &two.address, "--finish", "--take-back"], "").expect(2);
    assert!(refused.stderr.contains("cannot be used with"), "{refused:?}");
}
