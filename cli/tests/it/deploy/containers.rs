//! The Dockerfile and the manifest for Kubernetes: what they name exists, and what they run works.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::{rust_version, text};
use crate::common::{Service, margo, run};
use crate::port;

const DOCKERFILE: &str = "contrib/docker/Dockerfile";
const PROGRAM: &str = "/usr/local/bin/margo";

/// The instructions of the Dockerfile, one in a string, without comments.
fn instructions() -> Vec<String> {
    let text = text(DOCKERFILE);
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    joined.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_dockerfile_names_what_there_is() {
    let all = instructions();
    let of = |name: &str| {
        let found = all.iter().filter_map(|line| line.strip_prefix(name)).map(str::trim);
        found.collect::<Vec<_>>()
    };
    // Both stages are of the same release of Debian, which bookworm is the 12th of.
    let (from, rust) = (of("FROM"), rust_version());
    assert_eq!(from[0], format!("rust:{rust}-bookworm AS build"));
    assert!(from[1].contains("-debian12:"), "{from:?}");
    assert!(text("cli/Cargo.toml").contains("name = \"margo-cli\""));
    assert!(of("RUN")[0].contains("cargo build --release --locked -p margo-cli"), "{all:?}");
    assert_eq!(of("COPY")[1], format!("--from=build {PROGRAM} {PROGRAM}"));
    // What it runs is a command line.
    assert_eq!(of("ENTRYPOINT"), [format!("[\"{PROGRAM}\"]")]);
    let words: Vec<String> = serde_json::from_str(of("CMD")[0]).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let ended = run(margo(temp.path()).args(&words), "").expect(2);
    assert!(ended.stderr.contains(&words[1]), "{ended:#?}");
    // Nothing that was built outside goes into it.
    assert!(text(&format!("{DOCKERFILE}.dockerignore")).contains("**/target\n"));
}

fn manifest() -> Vec<Value> {
    let options = serde_saphyr::options! {};
    serde_saphyr::from_multiple_with_options(&text("contrib/kubernetes/margo.yaml"), options)
        .unwrap()
}

fn of_kind<'a>(all: &'a [Value], kind: &str) -> &'a Value {
    all.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn the_manifest_fits_together() {
    let all = manifest();
    let (service, set) = (of_kind(&all, "Service"), of_kind(&all, "StatefulSet"));
    let pod = &set["spec"]["template"];
    let container = &pod["spec"]["containers"][0];
    assert_eq!(service["spec"]["selector"], pod["metadata"]["labels"]);
    assert_eq!(set["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]);
    assert_eq!(set["spec"]["serviceName"], service["metadata"]["name"]);
    let ports: Vec<_> = container["ports"].as_array().unwrap().iter().collect();
    for port in service["spec"]["ports"].as_array().unwrap() {
        let same = |own: &&&Value| own["name"] == port["name"];
        let own = ports.iter().find(same).unwrap();
        assert_eq!(own["containerPort"], port["port"]);
        // They are those of the configuration, and of the image.
        let number = port["port"].to_string();
        let document = of_kind(&all, "ConfigMap")["data"]["config.json"].as_str().unwrap();
        assert!(document.contains(&format!("0.0.0.0:{number}\"")), "{number}");
        assert!(instructions().iter().any(|line| {
            line.strip_prefix("EXPOSE").is_some_and(|ports| ports.contains(&number))
        }));
    }
    for probe in ["startupProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], "metrics", "{probe}");
    }
    let mounts = container["volumeMounts"].as_array().unwrap();
    for mount in mounts {
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let claims = set["spec"]["volumeClaimTemplates"].as_array().unwrap();
        let is_there = volumes.iter().any(|volume| volume["name"] == mount["name"])
            || claims.iter().any(|claim| claim["metadata"]["name"] == mount["name"]);
        assert!(is_there, "{mount}");
    }
    // The same paths and words as in the image.
    let words = container["args"].to_string();
    assert!(instructions().iter().any(|line| line.replace(", ", ",").ends_with(&words)), "{words}");
}

#[test]
fn the_configuration_of_the_manifest_is_served_and_its_probes_pass() {
    let all = manifest();
    let document = of_kind(&all, "ConfigMap")["data"]["config.json"].as_str().unwrap();
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("config.json"), document).unwrap();
    let check = ["config", "check", "--strict", "config.json"];
    run(margo(temp.path()).args(check), "").expect(0);

    run(margo(temp.path()).args(["security", "new-secret", "secret"]), "").expect(0);
    // Here on ports and in a folder of this test's.
    let blobs = temp.path().join("blobs");
    let document = document
        .replace("0.0.0.0:7000", "127.0.0.1:0")
        .replace("0.0.0.0:9100", "127.0.0.1:0")
        .replace("/etc/margo-secret/secret", "secret")
        .replace("/var/lib/margo/blobs", blobs.to_str().unwrap());
    std::fs::write(temp.path().join("config.json"), document).unwrap();
    let parent = std::process::id().to_string();
    let child = margo(temp.path())
        .args(["serve", "config.json", "--die-with", &parent])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut service = Service::of(child);
    let metrics = port::of(&mut service);

    let set = of_kind(&all, "StatefulSet");
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    for probe in ["startupProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        let (head, _) = port::get(&metrics, path);
        assert!(head.starts_with("HTTP/1.1 200 "), "{probe}: {head}");
    }
    let alive: Vec<String> =
        serde_json::from_value(container["livenessProbe"]["exec"]["command"].clone()).unwrap();
    assert_eq!(alive[0], PROGRAM);
    assert!(alive.iter().any(|word| word == "na+tcp://127.0.0.1:7000"), "{alive:?}");
    let words = alive[1..].iter().map(|word| match word.as_str() {
        "/etc/margo/config.json" => "config.json".to_owned(),
        word if word.starts_with("na+") => service.address.clone(),
        word => word.to_owned(),
    });
    run(margo(temp.path()).args(words), "").expect(0);

    // It has ended before Kubernetes kills it: one grace for handlers, and as much for the rest.
    let seconds = |value: &Value| value.as_u64().unwrap();
    let config = std::fs::read_to_string(temp.path().join("config.json")).unwrap();
    let config = margo::config::Config::from_json(&config).unwrap();
    let sleep = seconds(&container["lifecycle"]["preStop"]["sleep"]["seconds"]);
    let ends = sleep + u64::from(2 * config.margo.grace_msec / 1000);
    assert!(ends < seconds(&pod["terminationGracePeriodSeconds"]), "{ends}");
}

/// The service runs in namespaces of its own, as in a container, and is called from outside.
#[test]
fn shared_memory_crosses_all_namespaces_but_that_of_the_network() {
    // Who is not root needs a user namespace for it, in which the user stays the same.
    let ways = [&[][..], &["--user", "--map-current-user"]];
    let kinds = ["--net", "--ipc", "--mount", "--uts", "--pid"];
    let unshare = |way: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(way);
        command
    };
    let may = |way: &&&[&str]| {
        let tried = unshare(way).args(kinds).args(["--fork", "true"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.iter().find(may) else {
        return println!("SKIPPED: namespaces are not permitted here");
    };
    for kind in kinds {
        let temp = tempfile::tempdir().unwrap();
        let document = r#"{ "margo": { "address": "na+sm://", "providers": [
            { "type": "echo", "provider_id": 1 }] } }"#;
        std::fs::write(temp.path().join("config.json"), document).unwrap();
        let own = margo(temp.path());
        let mut command = unshare(way);
        command.arg(kind).args(["--fork", "--kill-child"]).arg(own.get_program());
        command.args(["serve", "config.json"]).current_dir(temp.path());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let service = Service::of(child);
        let mut ping = margo(temp.path());
        ping.args(["ping", &service.address, "--count", "3", "--size", "65536"]);
        ping.args(["--interval", "0.01"]);
        match kind {
            "--net" => {
                let ended = run(&mut ping, "").expect(1);
                let said = format!("{}{}", ended.stdout, ended.stderr);
                assert!(said.contains("exist per network namespace"), "{ended:#?}");
            }
            _ => _ = run(&mut ping, "").expect(0),
        }
    }
}
