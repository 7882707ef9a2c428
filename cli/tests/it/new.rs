//! `margo new`: the crate that it writes is built, tested and served; and what it refuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{self, Ended, Service, entries, margo, run};
use rustix::process::Signal;

const NAME: &str = "generated-kv";

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The folder to which cargo builds the workspace.
fn build_folder() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_margo")).ancestors().nth(2).unwrap()
}

fn cargo(arguments: &[&str], folder: &Path) -> Ended {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).arg("--offline").env("CARGO_TARGET_DIR", build_folder());
    Ended::from(command.current_dir(folder).output().unwrap())
}

/// The workspace's profiles, so that what it has built of others' crates is used; not those of its
/// own crates, which are built without optimisation, in less time.
fn profiles() -> String {
    let manifest = std::fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let tables = manifest.split("\n[").filter(|table| {
        table.starts_with("profile.") && !table.starts_with("profile.test.package.")
    });
    tables.map(|table| format!("[{table}\n")).collect()
}

/// The names of the dependencies that a manifest has, and its features.
fn needs(manifest: &str) -> Vec<String> {
    let table = |name: &str| {
        let (_, from) = manifest.split_once(&format!("\n[{name}]\n")).unwrap();
        from.split("\n[")
            .next()
            .unwrap()
            .lines()
            .filter(|line| line.contains(" = ") && !line.starts_with('#'))
    };
    let dependencies = table("dependencies").map(|line| line.split([' ', '.']).next().unwrap());
    dependencies.chain(table("features")).map(str::to_owned).collect()
}

/// The generated crate as its author has it. Its code is that of the member `template-name` of this
/// workspace, whose tests are its tests; with `MARGO_TEST_NEW=1` it is built where it was written.
#[test]
fn the_crate_is_whole_and_its_dependencies_are_found() {
    let temp = tempfile::tempdir().unwrap();
    let ended = run(margo(temp.path()).args(["new", NAME]), "").expect(0);
    assert_eq!(ended.stdout, format!("{NAME}/ is there; `cd {NAME} && cargo test` tries it\n"));
    assert_eq!(entries(temp.path()), [NAME], "nothing else is left");
    let own = temp.path().join(NAME);
    assert_eq!(entries(&own), ["Cargo.toml", "README.md", "generated-kv.json", "src", "tests"]);
    for file in common::files(&own) {
        let text = std::fs::read_to_string(&file).unwrap().to_lowercase();
        assert!(!text.contains("template"), "{}", file.display());
    }
    let manifest = std::fs::read_to_string(own.join("Cargo.toml")).unwrap();
    let member = workspace().join("cli/template-name/Cargo.toml");
    assert_eq!(needs(&manifest), needs(&std::fs::read_to_string(member).unwrap()));

    std::fs::copy(workspace().join("Cargo.lock"), own.join("Cargo.lock")).unwrap();
    let programs = cargo(&["metadata", "--format-version=1", "--no-deps"], &own).expect(0);
    assert!(programs.stdout.contains("generated-kv-daemon"), "{programs:#?}");
    // Of this platform: what others need may never have been downloaded.
    let found = cargo(&["tree"], &own).expect(0);
    assert!(found.stdout.contains("margo-macros"), "{found:#?}");
    if std::env::var_os("MARGO_TEST_NEW").is_none() {
        println!("SKIPPED in part: MARGO_TEST_NEW is not set (builds margo once more, outside)");
        return;
    }
    std::fs::create_dir(own.join(".cargo")).unwrap();
    std::fs::write(own.join(".cargo/config.toml"), profiles()).unwrap();
    let tested = cargo(&["test"], &own).expect(0);
    assert!(tested.stdout.contains("3 passed; 0 failed"), "{tested:#?}");
    assert!(!tested.stderr.contains("warning"), "{tested:#?}");
}

/// The program of the member `template-name`, which is built with the workspace; here, if only this
/// crate is.
fn template_daemon() -> PathBuf {
    let program = build_folder().join("debug/template-name-daemon");
    if !program.exists() {
        cargo(&["build", "--package=template-name"], workspace()).expect(0);
    }
    program
}

/// The command line that the generated `main` has.
#[test]
fn the_daemon_of_the_crate_serves() {
    let (temp, program) = (tempfile::tempdir().unwrap(), template_daemon());
    let own = temp.path();
    std::fs::copy(workspace().join("cli/templates/template-name.json"), own.join("kv.json"))
        .unwrap();
    let daemon = |args: &[&str], input: &str| {
        common::ignore_nothing();
        run(Command::new(&program).args(args).current_dir(own), input)
    };
    let version = daemon(&["--version"], "").expect(0).stdout;
    assert_eq!(version, concat!("template-name-daemon (margo ", env!("CARGO_PKG_VERSION"), ")\n"));
    let help = daemon(&["--help"], "").expect(0).stdout;
    assert!(help.starts_with("Runs the providers of a document: template_name."), "{help}");
    daemon(&["serve"], "").expect(2);

    let checked = daemon(&["check", "kv.json", "--strict"], "").expect(0);
    assert_eq!(checked.stderr, "");
    for (document, said) in [
        (
            "{ \"margo\": { \"providers\": [\n{ \"type\": \"echo\", \"provider_id\": 1 }] } }",
            "margo.providers[0].type: `template-name-daemon` has no providers of type `echo` (it \
             has template_name) at line 2 column 11",
        ),
        (
            r#"{ "margo": { "providers": [{ "type": "template_nmae", "provider_id": 1 }] } }"#,
            "did you mean `template_name`? at line 1",
        ),
        (
            "{ \"margo\": { \"providers\": [{ \"type\": \"template_name\", \"provider_id\": 1,\n\
             \"config\": { \"value_bytes_max\": 0 } }] } }",
            "margo.providers[0].config.value_bytes_max: 0 bytes leave no value at line 2 column 32",
        ),
    ] {
        let ended = daemon(&["check", "-"], document).expect(2);
        let said = format!("template-name-daemon: standard input is not valid:\n  {said}");
        let (start, end) = said.split_once("\n  ").unwrap();
        assert!(ended.stderr.starts_with(start) && ended.stderr.contains(end), "{ended:#?}");
        daemon(&["serve", "-"], document).status.success().then(|| panic!("it is served"));
    }
    let schema: serde_json::Value =
        serde_json::from_str(&daemon(&["schema"], "").expect(0).stdout).unwrap();
    let provider = &schema["$defs"]["Provider"];
    assert_eq!(provider["properties"]["type"]["examples"][0], "template_name");
    let config = &provider["allOf"][0]["then"]["properties"]["config"]["anyOf"][0];
    assert_eq!(config["properties"]["value_bytes_max"]["default"], 1 << 20);

    let child = Command::new(&program)
        .args(["serve", "kv.json", "--address-file", "address"])
        .args(["--die-with", &std::process::id().to_string()])
        .current_dir(own)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut service = Service::of(child);
    let call = |method: &str, args: &str| {
        run(margo(own).args(["call", &service.address, method, "--json", args]), "")
    };
    call("template_name.put", r#"{"key": "a", "value": "1"}"#).expect(0);
    assert_eq!(call("template_name.get", r#"{"key": "a"}"#).expect(0).stdout, "\"1\"\n");
    let ended = call("template_name.get", r#"{"key": "b"}"#).expect(1);
    assert!(ended.stderr.contains("NoKey"), "{ended:#?}");
    let file = own.join("address");
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim_end(), service.address);
    service.running.signal(Signal::TERM);
    assert!(service.running.wait().success());
    assert!(!file.exists(), "the address file is removed");
}

#[test]
fn what_is_there_stays_and_wrong_names_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let new = |args: &[&str]| run(margo(temp.path()).arg("new").args(args), "");
    std::fs::create_dir(temp.path().join("kv")).unwrap();
    std::fs::write(temp.path().join("file"), "x").unwrap();
    for (args, code, said) in [
        (&["kv"][..], 1, "cannot write kv: entity already exists"),
        (&["file"], 1, "cannot write file: entity already exists"),
        (&["../kv2"], 2, "`../kv2` cannot be the name of the crate: it has a lower-case letter"),
        (&["struct"], 2, "`struct` cannot be the name of the crate: it means something else"),
        (&["store", "--margo", "kv"], 2, "kv is not the folder of the crate margo"),
    ] {
        let ended = new(args).expect(code);
        assert!(ended.stderr.contains(said) && ended.stdout.is_empty(), "{said}: {ended:#?}");
    }
    assert_eq!(entries(temp.path()), ["file", "kv"]);
    assert_eq!(entries(temp.path().join("kv")), [""; 0]);
    // Where nothing can be written nothing is left.
    let ended = run(margo(temp.path()).args(["new", "store"]).current_dir("/proc"), "").expect(1);
    assert!(ended.stderr.contains("cannot write store: "), "{ended:#?}");

    let dir = workspace().to_str().unwrap();
    new(&["store", "--margo", dir]).expect(0);
    let manifest = std::fs::read_to_string(temp.path().join("store/Cargo.toml")).unwrap();
    assert!(manifest.contains(&format!("margo = {{ path = {dir:?} }}")), "{manifest}");
}
