//! Arguments, exit statuses, `margo config`, `margo info`, and output that nobody reads.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use crate::common::{self, Running, margo, run};
use ::margo::na;

#[test]
fn wrong_arguments_are_usage_errors() {
    let temp = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&[][..], "Usage: margo"),
        (&["dmeo"], "demo"),
        (&["demo"], "<PATH>"),
        (&["config", "check"], "<FILE>"),
        (&["config", "chekc"], "'check'"),
        (&["config", "check", "x", "--stirct"], "--strict"),
        (&["config", "schema", "x"], "unexpected argument 'x'"),
        (&["info", "x", "y"], "unexpected argument 'y'"),
        (&["serve", "x", "--adress", "y"], "--address"),
        (&["info", "--jso"], "--json"),
        (&["shutdown"], "<ADDRESS"),
        (&["shutdown", "x", "--wiat"], "--wait"),
        (&["stream", "run"], "<FILE>"),
        (&["stream", "run", "x", "./program"], "unexpected argument './program'"),
        (&["stream", "plan", "x", "--table"], "--table"),
        (&["trace", "join", "out"], "<IN>"),
        (&["trace", "show"], "<FILE>"),
        (&["trace", "show", "x", "nothing"], "no trace id"),
    ] {
        let ended = run(margo(temp.path()).args(args), "").expect(2);
        assert!(ended.stderr.contains(expected), "{args:?}: {ended:#?}");
        assert_eq!(ended.stdout, "");
    }
    let ended = run(margo(temp.path()).arg("--help"), "").expect(0);
    for word in ["demo", "info", "config", "serve", "shutdown", "MARGO_LOG"] {
        assert!(ended.stdout.contains(word), "{ended:#?}");
    }
    run(margo(temp.path()).arg("--version"), "").expect(0);
}

#[test]
fn completions_and_man_pages_know_the_commands() {
    let temp = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run(margo(temp.path()).args(["completions", shell]), "").expect(0);
        for word in ["ping", "shutdown", "samples", "interval"] {
            assert!(ended.stdout.contains(word), "{shell}: no {word}");
        }
    }
    let ended = run(margo(temp.path()).args(["completions", "tcl"]), "").expect(2);
    assert!(ended.stderr.contains("bash"), "{ended:#?}");

    run(margo(temp.path()).args(["man", "new/man1"]), "").expect(0);
    let pages = common::entries(temp.path().join("new/man1"));
    for page in ["margo.1", "margo-ping.1", "margo-config-check.1"] {
        assert!(pages.iter().any(|name| name == page), "{pages:?}");
    }
    assert!(!pages.iter().any(|name| name.contains("answer")), "{pages:?}");
    let page = std::fs::read_to_string(temp.path().join("new/man1/margo-ping.1")).unwrap();
    assert!(page.contains(".TH") && page.contains("ADDRESS"), "{page}");
    std::fs::write(temp.path().join("file"), "").unwrap();
    let ended = run(margo(temp.path()).args(["man", "file"]), "").expect(1);
    assert!(ended.stderr.contains("cannot write man pages to file"), "{ended:#?}");
}

#[test]
fn a_wrong_log_filter_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let ended = run(margo(temp.path()).arg("info").env("MARGO_LOG", "margo=loud"), "").expect(2);
    assert!(ended.stderr.contains("MARGO_LOG=margo=loud"), "{ended:#?}");
    run(margo(temp.path()).arg("info").env("MARGO_LOG", "margo=debug"), "").expect(0);
}

#[test]
fn config_check_prints_the_effective_configuration() {
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "rpc_thread_count": 1, } // short"#;
    let check = |args: &[&str], document: &str| {
        run(margo(temp.path()).args(["config", "check", "-"]).args(args), document).expect(0)
    };
    let ended = check(&["--json"], document);
    assert_eq!(ended.stderr, "");
    let complete: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(complete["argobots"]["pools"].as_array().unwrap().len(), 2);
    // What it prints is valid, and comes to itself.
    assert_eq!(check(&["--json"], &ended.stdout).stdout, ended.stdout);
    assert_eq!(complete["rpc_pool"], 1);
    let named = check(&["--json", "--names"], document);
    let named: serde_json::Value = serde_json::from_str(&named.stdout).unwrap();
    assert_eq!(named["rpc_pool"], "__pool_1__");

    // The explanation is a comment, so what has one is a document, too.
    let explained = check(&[], document);
    assert!(explained.stdout.ends_with(&ended.stdout));
    for part in [
        "// xstream __primary__: any CPU, scheduler basic_wait, pools __primary__\n",
        "// pool __pool_1__: fifo_wait, mpmc, run by __xstream_1__, stacks of 2048 KiB, handlers\n",
        "// cores: 2 xstreams",
        "// polling: after the last message __primary__ polls for up to 10ms",
        "// memory: idle, 16 stacks are kept for reuse (32 MiB of address space)",
        "// No pool that is in use can be kept waiting by the order of pools.\n{",
    ] {
        assert!(explained.stdout.contains(part), "{part}: {}", explained.stdout);
    }
    assert_eq!(check(&[], &explained.stdout).stdout, explained.stdout);
}

#[test]
fn config_layout_draws_who_runs_what() {
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "rpc_thread_count": 2 }"#;
    let layout = |args: &[&str], document: &str| {
        run(margo(temp.path()).args(["config", "layout", "-"]).args(args), document)
    };
    let lines = layout(&[], document).expect(0).stdout;
    assert!(lines.contains("xstream __xstream_1__: any CPU"), "{lines}");
    let svg = layout(&["--svg"], document).expect(0).stdout;
    assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"), "{svg}");
    for name in ["__primary__", "__xstream_2__", "__pool_1__", "fifo_wait, handlers", "progress"] {
        assert!(svg.contains(name), "no {name} in\n{svg}");
    }
    let wrong = layout(&["--svg"], r#"{ "rpc_thread_count": "x" }"#).expect(2);
    assert!(wrong.stderr.contains("standard input is not valid"), "{wrong:#?}");
    assert_eq!(wrong.stdout, "");
}

#[test]
fn config_check_warns_on_standard_error() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("conf.json");
    let document = r#"{ "margo": { "listen": false,
        "providers": [{ "type": "echo", "provider_id": 1 }] } }"#;
    std::fs::write(&file, document).unwrap();
    let ended = run(margo(temp.path()).args(["config", "check", "conf.json"]), "").expect(0);
    assert!(ended.stderr.contains("conf.json: warning: margo.providers: nobody"), "{ended:#?}");
    assert!(ended.stdout.contains("\n// Warning: margo.providers: nobody"), "{ended:#?}");
    let strict = ["config", "check", "--strict", "conf.json"];
    let ended = run(margo(temp.path()).args(strict), "").expect(1);
    assert!(ended.stderr.contains("conf.json: 1 warning, and --strict is given"), "{ended:#?}");
    run(margo(temp.path()).args(["config", "check", "--strict", "-"]), "{}").expect(0);
}

#[test]
fn config_check_tells_what_an_instance_would_say_at_its_start() {
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "mercury": { "auth_key": "0:0:1", "sm_info_string": "x",
        "na_no_retry": true, "log_level": "debug" },
        "progress_timeout_ub_msec": 7, "handle_cache_size": 4 }"#;
    let strict = ["config", "check", "--strict", "-"];
    let ended = run(margo(temp.path()).args(strict), document).expect(1);
    for path in [
        "mercury.auth_key",
        "mercury.sm_info_string",
        "mercury.na_no_retry",
        "mercury.log_level",
        "progress_timeout_ub_msec",
        "handle_cache_size",
    ] {
        let said = format!("arning: {path}: has no effect in this version");
        assert!(ended.stderr.contains(&said) && ended.stdout.contains(&said), "{ended:#?}");
    }
    assert!(ended.stderr.contains("6 warnings, and --strict is given"), "{ended:#?}");
    let document = r#"{ "margo": { "address": "ofi+tcp://" },
        "mercury": { "na_max_unexpected_size": 700, "na_max_expected_size": 800 } }"#;
    let ended = run(margo(temp.path()).args(strict), document).expect(1);
    assert!(ended.stderr.contains("mercury.na_max_unexpected_size comes to 700"), "{ended:#?}");
}

#[test]
fn config_check_tells_who_may_call_what() {
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "margo": {
        "address": "na+tcp://0.0.0.0:7000", "providers": [{ "type": "echo", "provider_id": 3 }],
        "security": {
            "tcp": { "mode": "none", "beyond_loopback": true },
            "roles": { "admin": ["host:10.0.0.1", "host:10.0.0.2"] },
            "allow": [{ "who": "role:admin" },
                { "name": "all", "who": "anyone", "provider": "echo", "rpc": "echo*" },
                { "who": "anyone", "rpc": "__ping__" }],
            "deny": [{ "who": "host:10.1.0.0/16" }],
            "limits": [{ "who": "role:admin" },
                { "name": "few", "who": "anyone", "calls_per_sec": 5, "handlers_max": 2 }]
        } } }"#;
    let ended = run(margo(temp.path()).args(["config", "check", "-"]), document).expect(0);
    for line in [
        "// These may call (margo.security), and nobody else:",
        "//   role:admin (host:10.0.0.1, host:10.0.0.2): * of every provider, by allow[0]",
        "//   anyone: echo* of provider echo (id 3), by all",
        "// Of these calls, the following are refused:",
        "//   host:10.1.0.0/16: * of every provider, by deny[0]",
        "//   __shutdown__: by allow[0]",
        "//   __ping__: by allow[0], allow[2]",
        "//   role:admin (host:10.0.0.1, host:10.0.0.2): as much as they like, by limits[0]",
        "//   anyone: 5 calls in a second, 5 of them at once, 2 requests in hand, by few",
    ] {
        assert!(ended.stdout.lines().any(|said| said == line), "{line}: {}", ended.stdout);
    }
    let hole = "margo.security.allow[1].who: lets everybody call";
    assert!(ended.stderr.contains(hole), "{}", ended.stderr);
    let open = run(margo(temp.path()).args(["config", "check", "-"]), "{}").expect(0);
    assert!(!open.stdout.contains("may call"), "{}", open.stdout);
}

#[test]
fn config_check_tells_who_may_call_over_a_fabric_and_for_whom() {
    let temp = tempfile::tempdir().unwrap();
    let check = |fabrics: &str, rules: &str| {
        let document = format!(
            r#"{{ "margo": {{ "address": "ucx+tcp://eth0", "security": {{
                "fabrics": {{ "mode": "cluster_secret", "secret": "s" {fabrics} }} {rules}
            }} }} }}"#
        );
        run(margo(temp.path()).args(["config", "check", "-"]), &document).expect(0)
    };
    let allow = r#", "roles": { "people": ["name:*.people"] }, "allow": [{ "who": "member",
        "on_behalf_of": "role:people" }]"#;
    let strict = "//   who proves nothing: * of every provider, by fabrics";
    let all = |who| format!("//   {who}: * of every provider, by fabrics");
    for (fabrics, rules, said, is_strict) in [
        ("", "", Some(all("who has proven something")), true),
        (
            "",
            allow,
            Some(
                "//   member, on behalf of role:people (name:*.people): * of every provider, by \
                 allow[0]"
                    .to_owned(),
            ),
            true,
        ),
        (r#", "strangers": true"#, "", None, false),
        (
            r#", "strangers": true"#,
            r#", "deny": [{ "who": "host:10.0.0.0/8" }]"#,
            Some(all("anyone")),
            false,
        ),
    ] {
        let ended = check(fabrics, rules);
        let says = |line: &str| ended.stdout.lines().any(|said| said == line);
        assert!(said.is_none_or(|line| says(&line)), "{fabrics} {rules}: {}", ended.stdout);
        assert_eq!(says(strict), is_strict, "{}", ended.stdout);
    }
}

#[test]
fn config_check_tells_what_this_machine_lacks() {
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "argobots": { "pools": [ { "name": "h" } ], "xstreams": [
        { "name": "x", "affinity": "numa:4095", "scheduler": { "pools": ["h"] } } ] } }"#;
    let ended = run(margo(temp.path()).args(["config", "check", "-"]), document).expect(0);
    for part in ["warning: it does not start on this machine", "argobots.xstreams[0].affinity"] {
        assert!(ended.stderr.contains(part), "{part}: {ended:#?}");
    }
    assert!(ended.stdout.contains("\"affinity\": \"numa:4095\""), "{ended:#?}");
    run(margo(temp.path()).args(["config", "check", "--strict", "-"]), document).expect(1);
}

#[test]
fn config_check_tells_what_would_not_start() {
    let temp = tempfile::tempdir().unwrap();
    let check = |args: &[&str], document: &str, code| {
        run(margo(temp.path()).args(["config", "check", "-"]).args(args), document).expect(code)
    };
    // Another program may have these.
    for (foreign, said) in [
        (
            r#"{ "margo": { "providers": [{ "type": "yokan", "provider_id": 1 }] } }"#,
            "margo.providers[0].type: `margo serve` has no providers of type `yokan` (it has blob, \
             echo, kv)",
        ),
        (
            r#"{ "monitoring": { "name": "mine" } }"#,
            "monitoring.name: `margo serve` has no monitor \"mine\" (it has \"default\")",
        ),
    ] {
        for args in [&[][..], &["--strict"]] {
            let ended = check(args, foreign, 0);
            assert!(ended.stdout.contains(&format!("// {said}")), "{ended:#?}");
            assert!(ended.stderr.contains(&format!("note: {said}")), "{ended:#?}");
        }
    }
    let named = r#"{ "margo": { "providers": [{ "type": "yokan", "provider_id": 1 }] } }"#;
    assert_eq!(check(&["--strict", "--types", "warabi,yokan"], named, 0).stderr, "");
    // One of these is most likely meant.
    let misspelt = r#"{ "margo": { "providers": [{ "type": "ehco", "provider_id": 1 }] } }"#;
    for (args, code) in [(&[][..], 0), (&["--strict"], 1)] {
        let ended = check(args, misspelt, code);
        let said = "margo.providers[0].type: did you mean `echo`? `margo serve` has no providers";
        assert!(ended.stdout.contains(&format!("// Warning: {said}")), "{ended:#?}");
        assert!(ended.stderr.contains(&format!("warning: {said}")), "{ended:#?}");
    }
    let ended = check(&["--strict", "--types", "yokna"], named, 1);
    assert!(ended.stderr.contains("did you mean `yokna`?"), "{ended:#?}");
    assert_eq!(check(&["--strict", "--types", "ehco"], misspelt, 0).stderr, "");
    // Two of one id, which clients cannot tell apart.
    let two = r#"{ "margo": { "providers": [
        { "type": "echo", "provider_id": 1 },
        { "type": "blob", "provider_id": 1, "config": { "path": "x" } }] } }"#;
    let ended = check(&["--strict"], two, 1);
    let said = "margo.providers[1].provider_id: provider 1 is `margo.providers[0]`, too";
    assert!(ended.stderr.contains(said) && ended.stderr.contains("at line 3"), "{ended:#?}");
    let known = r#"{ "margo": { "providers": [{ "type": "echo", "provider_id": 1 }] },
                     "monitoring": { "name": "default" } }"#;
    check(&["--strict"], known, 0);
}

#[test]
fn config_check_refuses_what_no_machine_could_start() {
    let temp = tempfile::tempdir().unwrap();
    for (document, said) in [
        (
            "{ \"margo\": {\n\"address\": \"na+tcp://127.0.0.1:99999\" } }",
            "the port must be a number from 0 to 65535 at line 2 column 12",
        ),
        (
            r#"{ "margo": { "address": "na+pigeon://x" } }"#,
            "margo.address: cannot use address `na+pigeon://x`: there is no transport `na+pigeon`; \
             this build has na+sm, na+tcp,",
        ),
        (
            r#"{ "mercury": { "na_max_expected_size": 2000000 } }"#,
            "mercury.na_max_expected_size: 2000000 bytes; transport sm takes 1 to 1048576",
        ),
        (
            r#"{ "mercury": { "na_addr_format": "ipv6" },
                 "margo": { "address": "na+tcp://127.0.0.1:0" } }"#,
            "mercury.na_addr_format: `127.0.0.1` of `na+tcp://127.0.0.1:0` has no IPv6 address",
        ),
        (
            "{ \"margo\": { \"providers\": [\n{ \"type\": \"blob\", \"provider_id\": 1 }] } }",
            "margo.providers[0].config.path: missing; it says where to keep the blobs at line 2",
        ),
        (
            r#"{ "margo": { "providers": [{ "type": "echo", "provider_id": 1 },
                 { "type": "blob", "provider_id": 2,
                   "config": { "paht": "x" } }] } }"#,
            "margo.providers[1].config.paht: unknown key (allowed: store, path, sync, \
             chunk_bytes, buffers, max_blob_bytes, max_bytes, max_blobs); did \
             you mean \"path\"? at line 3 column 40",
        ),
        (
            r#"{ "margo": { "providers": [{ "type": "blob", "provider_id": 1,
                 "config": { "path": "x", "chunk_bytes": 1 } }] } }"#,
            "margo.providers[0].config.chunk_bytes: 1 is not a multiple of 65536 up to 1073741824 \
             at line 2",
        ),
        (
            r#"{ "margo": { "providers": [{ "type": "echo", "provider_id": 1,
                 "config": { "x": 1 } }] } }"#,
            "margo.providers[0].config.x: unknown key (allowed: none)",
        ),
        (
            r#"{ "margo": { "providers": [{ "type": "echo", "provider_id": 1 },
                 { "type": "echo", "provider_id": 2, "dependencies": { "log": "echo_1" } }] } }"#,
            "margo.providers[1].dependencies: `log` is no dependency of this type (it has: none)",
        ),
    ] {
        let check = run(margo(temp.path()).args(["config", "check", "-"]), document).expect(2);
        assert!(check.stderr.contains("standard input is not valid:\n"), "{check:#?}");
        assert!(check.stderr.contains(said) && check.stdout.is_empty(), "{said}: {check:#?}");
        // An instance says the same, without knowing where in the text it stands.
        let started = run(margo(temp.path()).args(["serve", "-"]), document);
        let said = said.split(" at line ").next().unwrap();
        assert!(!started.status.success() && started.stderr.contains(said), "{said}: {started:#?}");
    }
}

#[test]
fn config_schema_prints_the_schema() {
    let temp = tempfile::tempdir().unwrap();
    let ended = run(margo(temp.path()).args(["config", "schema"]), "").expect(0);
    let schema: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(schema["properties"]["argobots"].is_object());
    // With the settings of its own providers.
    let provider = &schema["$defs"]["Provider"];
    assert_eq!(
        provider["properties"]["type"]["examples"],
        serde_json::json!(["blob", "echo", "kv"])
    );
    let blob = &provider["allOf"][0];
    assert_eq!(blob["if"]["properties"]["type"]["const"], "blob");
    assert_eq!(blob["then"]["required"][0], "config");
    let path = &blob["then"]["properties"]["config"]["properties"]["path"];
    assert!(path["description"].as_str().unwrap().contains("directory of the blobs"), "{path}");
}

#[test]
fn config_check_prints_all_errors() {
    let temp = tempfile::tempdir().unwrap();
    let document = "{\n  \"progres_pool\": 1,\n  \"argobots\": { \"pools\": 7 }\n}";
    let ended = run(margo(temp.path()).args(["config", "check", "-"]), document).expect(2);
    assert_eq!(ended.stdout, "");
    for expected in ["standard input is not valid", "line 2", "progress_pool", "line 3", "pools"] {
        assert!(ended.stderr.contains(expected), "{expected}: {ended:#?}");
    }
    // Of the document, of the address, and of the settings of a provider.
    let document = r#"{ "margo": { "address": "na+pigeon://", "requests_max": 0, "providers": [
        { "type": "blob", "provider_id": 70000, "config": { "path": 1, "sync": 2 } },
        { "type": "blob", "provider_id": 2, "config": { "path": 1, "sync": 2 } }] } }"#;
    let ended = run(margo(temp.path()).args(["config", "check", "-"]), document).expect(2);
    for expected in [
        "margo.address: cannot use address",
        "margo.requests_max: 0 is not allowed",
        "margo.providers[0].provider_id: expected an integer from 0 to 65534, found the number \
         70000 at line 2 column 42",
        "margo.providers[1].config.path: expected a string, found the number 1 at line 3 column 65",
        "margo.providers[1].config.sync: expected true or false, found the number 2 at line 3",
    ] {
        assert!(ended.stderr.contains(expected), "{expected}: {ended:#?}");
    }
    let ended = run(margo(temp.path()).args(["config", "check", "no such file"]), "").expect(2);
    assert!(ended.stderr.contains("no such file: No such file"), "{ended:#?}");
}

#[test]
fn every_sample_is_printed_and_valid() {
    let temp = tempfile::tempdir().unwrap();
    let all = run(margo(temp.path()).args(["config", "samples"]), "").expect(0);
    for (name, text) in margo_config::samples() {
        assert!(all.stdout.contains(text.trim_end()), "{name}");
        let one = run(margo(temp.path()).args(["config", "samples", name]), "").expect(0);
        assert_eq!(one.stdout.trim_end(), text.trim_end());
        run(margo(temp.path()).args(["config", "check", "-"]), &one.stdout).expect(0);
    }
    let ended = run(margo(temp.path()).args(["config", "samples", "slowstart"]), "").expect(2);
    assert!(ended.stderr.contains("slowstart") && ended.stderr.contains("quickstart"), "{ended:?}");
}

#[test]
fn info_tries_every_transport() {
    let temp = tempfile::tempdir().unwrap();
    let ended = run(margo(temp.path()).arg("info"), "").expect(0);
    assert!(ended.stdout.matches("works; bulk data: ").count() >= 3, "{ended:#?}");
    for word in ["na+sm", "na+tcp", "na+sim", "ofi+tcp", "kernel", "CPUs", "NUMA nodes", "pages"] {
        assert!(ended.stdout.contains(word), "{word}: {ended:#?}");
    }
    let ended = run(margo(temp.path()).args(["info", "--json"]), "").expect(0);
    let info: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let transports = info["transports"].as_array().unwrap();
    for name in ["na+sm", "na+tcp", "na+sim", "ofi+tcp"] {
        let transport = transports.iter().find(|transport| transport["transport"] == name);
        let transport = transport.unwrap_or_else(|| panic!("{name} is not in {info}"));
        match transport["works"].as_bool().unwrap() {
            true => assert!(!transport["bulk_path"].as_str().unwrap().is_empty()),
            // Not every machine has the library.
            false => {
                assert!(name.starts_with("ofi"), "{transport}");
                assert!(transport["reason"].as_str().unwrap().contains("libfabric"), "{transport}");
            }
        }
    }
    let ucx = transports.iter().find(|transport| transport["transport"] == "ucx+tcp").unwrap();
    if ucx["works"] == true {
        let devices = ucx["devices"].as_array().unwrap();
        assert!(devices.iter().any(|device| device["protocol"] == "ucx+tcp"), "{ucx}");
    }
    assert!(info["machine"]["cpus"].as_u64().unwrap() > 0);
}

#[test]
fn info_tries_an_address() {
    let temp = tempfile::tempdir().unwrap();
    for address in ["na+tcp://127.0.0.1:0", "na+sm://"] {
        let ended = run(margo(temp.path()).args(["info", address]), "").expect(0);
        assert_eq!(ended.stdout.matches("works; bulk data: ").count(), 1, "{ended:#?}");
    }
    for (address, reason) in [
        ("na+tcp://192.0.2.1:7000", "192.0.2.1:7000"),
        ("na+tpc://", "na+tpc"),
        ("na+tcp://127.0.0.1:port", "port"),
        ("ofi+carrier-pigeon://", "protocol"),
    ] {
        let ended = run(margo(temp.path()).args(["info", address]), "").expect(1);
        let why = ended.stdout.split("does not work here: ").nth(1).unwrap_or_default();
        assert!(why.contains(reason), "{address}: {ended:#?}");
        assert!(ended.stderr.contains(&format!("{address} does not work here")), "{ended:#?}");
    }
    // With settings of a document, of which some are none for that address.
    let info = |args: &[&str], document| run(margo(temp.path()).arg("info").args(args), document);
    let small = r#"{ "margo": { "eager_size": 1048576 } }"#;
    let args = &["na+tcp://127.0.0.1:0", "--config", "-"];
    assert!(info(args, small).expect(0).stdout.contains("works; bulk data: "));
    let subnet = r#"{ "mercury": { "ip_subnet": "198.51.100.0/24" },
        "margo": { "security": { "tcp": { "beyond_loopback": true } } } }"#;
    let ended = info(&["na+tcp://", "--config", "-"], subnet).expect(1);
    assert!(ended.stdout.contains("198.51.100.0/24"), "{ended:#?}");
    let ended = info(args, r#"{ "margo": { "eager_size": 1 } }"#).expect(2);
    assert!(ended.stderr.contains("margo.eager_size"), "{ended:#?}");
    let ended = info(&["--config", "-"], "{}").expect(2);
    assert!(ended.stderr.contains("--config goes with an address"), "{ended:#?}");
    // With nobody to answer, or for nobody, it does not stay.
    let ended = run(margo(temp.path()).args(["answer", "na+sm://", "--parent", "1"]), "").expect(1);
    assert!(ended.stderr.contains("the parent process 1 is gone"), "{ended:#?}");
    let ended = run(margo(temp.path()).args(["info", "--json", "na+sm://"]), "").expect(0);
    let info: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(info["transports"].as_array().unwrap().len(), 1);
}

#[test]
fn info_says_what_was_tried_to_find_a_library() {
    let temp = tempfile::tempdir().unwrap();
    let mut info = margo(temp.path());
    info.arg("info").env("MARGO_LIBFABRIC", "/nowhere/libfabric.so.1");
    info.env("MARGO_LIBUCP", "/nowhere/libucp.so.0");
    let ended = run(&mut info, "").expect(0);
    for part in ["/nowhere/libfabric.so.1: ", "/nowhere/libucp.so.0: ", "libucx0", "libfabric1"] {
        assert!(ended.stdout.contains(part), "{part}: {ended:#?}");
    }
    let others = ended.stdout.split("\nofi+tcp").next().unwrap();
    assert_eq!(others.matches("works; bulk data: ").count(), 3, "{ended:#?}");
}

/// Over TCP every libfabric that can be used here finds a device.
#[test]
fn info_lists_what_libfabric_finds() {
    let found = na::plugins().iter().find(|plugin| plugin.name() == "ofi").unwrap().devices();
    let devices = match found {
        Ok(devices) => devices,
        Err(lacks) => return println!("SKIPPED: {lacks}"),
    };
    assert!(devices.iter().any(|device| device.protocol.starts_with("ofi+tcp")), "{devices:?}");
    let temp = tempfile::tempdir().unwrap();
    let ended = run(margo(temp.path()).arg("info"), "").expect(0);
    let json = run(margo(temp.path()).args(["info", "--json"]), "").expect(0);
    let info: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let transports = info["transports"].as_array().unwrap();
    let ofi = transports.iter().find(|transport| transport["transport"] == "ofi+tcp").unwrap();
    let listed = ofi["devices"].as_array().unwrap();
    assert_eq!(listed.len(), devices.len(), "{ofi}");
    for na::Device { protocol, name, address, summary, moves_device_memory } in devices {
        let line = format!("{protocol}://  {name} ({address})");
        assert!(ended.stdout.contains(&line), "{line}: {ended:#?}");
        let is_it = |device: &serde_json::Value| {
            device["protocol"] == protocol.as_str()
                && device["name"] == name.as_str()
                && device["address"] == address.as_str()
                && device["summary"] == summary
                && device["moves_device_memory"] == moves_device_memory
        };
        assert!(listed.iter().any(is_it), "{line}: {ofi}");
    }
}

#[test]
fn info_prints_the_topology_and_what_a_document_comes_to() {
    let temp = tempfile::tempdir().unwrap();
    let document = r#"{ "argobots": { "pools": [ { "name": "h", "kind": "earliest_first" } ],
        "xstreams": [ { "name": "x", "affinity": "all",
                        "scheduler": { "type": "randws", "pools": ["h"] } } ] },
        "rpc_pool": "h" }"#;
    let ended = run(margo(temp.path()).args(["info", "-"]), document).expect(0);
    for part in [
        "topology    ",
        "package 0: cpus ",
        "standard input comes to\n",
        "xstream x: CPU",
        "scheduler randws, pools h\n",
        "pool h: earliest_first, mpmc, run by x, stacks of 2048 KiB",
        "pool __primary__: fifo_wait, mpmc, run by __primary__",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {ended:#?}");
    }
    let ended = run(margo(temp.path()).args(["info", "-", "--json"]), document).expect(0);
    let info: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(info["layout"]["pools"][0]["kind"], "earliest_first", "{info:#}");
    assert_eq!(info["layout"]["pools"][0]["handlers"], true);
    assert!(!info["layout"]["xstreams"][0]["cpus"].as_array().unwrap().is_empty());
    assert!(!info["topology"]["numa_nodes"].as_array().unwrap().is_empty());

    let wrong = document.replace("\"all\"", "\"numa:99\"");
    let ended = run(margo(temp.path()).args(["info", "-"]), &wrong).expect(2);
    assert_eq!(ended.stdout, "");
    let expected = "argobots.xstreams[0].affinity: place `numa:99`: this machine has no numa 99";
    assert!(ended.stderr.contains(expected), "{ended:#?}");
}

/// The command with a limit of so many KiB on the files that it writes.
fn limited(temp: &std::path::Path, kib: u32) -> std::process::Command {
    let margo = margo(temp);
    let mut limited = std::process::Command::new("sh");
    // In units of 512 bytes.
    let script = format!("ulimit -c 0; ulimit -f {}; exec \"$0\" \"$@\"", 2 * kib);
    limited.args(["-c", &script]).arg(margo.get_program()).current_dir(temp);
    for (name, value) in margo.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

#[test]
fn a_limit_on_file_sizes_is_named() {
    let temp = tempfile::tempdir().unwrap();
    for (kib, said) in [
        (64, "does not work here: cannot make 151552 bytes of shared memory for a connection"),
        (1, "does not work here: cannot make 4096 bytes of shared memory for the endpoint's"),
        (512, "works; bulk data: memory of alloc mapped"),
    ] {
        let ended = run(limited(temp.path(), kib).args(["info", "na+sm://"]), "");
        let ended = ended.expect(i32::from(kib < 512));
        assert!(ended.stdout.contains(said), "{kib}: {ended:#?}");
        let is_named = ended.stdout.contains("raise it with `ulimit -f`");
        assert_eq!(is_named, kib < 512, "{kib}: {ended:#?}");
        // The others do not mind, nor does what is looked up in libraries.
        run(limited(temp.path(), kib).arg("info"), "").expect(0);
    }
    // Its own output, to a file.
    let file = File::create(temp.path().join("out")).unwrap();
    let mut child = limited(temp.path(), 1)
        .args(["config", "schema"])
        .stdout(file)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(Running::new(child).wait().code(), Some(1), "{said}");
    assert!(said.contains("standard output") && said.contains("`ulimit -f`"), "{said}");
}

#[test]
fn what_steers_a_terminal_is_printed_as_escapes() {
    let temp = tempfile::tempdir().unwrap();
    let name = "a\u{1b}[2J\u{202e}b";
    let ended = run(margo(temp.path()).args(["demo", name]), "").expect(1);
    assert!(ended.stderr.contains("cannot read a\\u{1b}[2J\\u{202e}b: "), "{ended:#?}");
    std::os::unix::fs::symlink("nowhere", temp.path().join(name)).unwrap();
    let ended = run(margo(temp.path()).args(["demo", "."]), "").expect(1);
    assert!(ended.stderr.contains("symbolic link ./a\\u{1b}[2J\\u{202e}b"), "{ended:#?}");
}

#[test]
fn output_that_nobody_reads_is_no_panic() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("file"), b"data").unwrap();
    for args in [&["config", "samples"][..], &["info"], &["info", "--json"], &["demo", "file"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child =
            margo(temp.path()).args(args).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let ended = common::ended(Running::new(child)).expect(141);
        assert_eq!(ended.stderr, "", "{args:?}");
    }
    // A disk that is full is an error.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let child = margo(temp.path()).arg("info").stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let ended = common::ended(Running::new(child)).expect(1);
    assert!(ended.stderr.contains("cannot write to standard output"), "{ended:?}");
    // Both closed: the status still tells.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = margo(temp.path())
        .args(["demo", "no such file"])
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .unwrap();
    assert_eq!(Running::new(child).wait().code(), Some(1));
}

#[test]
fn output_is_complete_when_it_is_read_slowly() {
    let temp = tempfile::tempdir().unwrap();
    let mut child =
        margo(temp.path()).args(["config", "samples"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut running = Running::new(child);
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert!(running.wait().success());
    let (_, last) = margo_config::samples().last().unwrap();
    assert!(rest.trim_end().ends_with(last.trim_end()));
}
