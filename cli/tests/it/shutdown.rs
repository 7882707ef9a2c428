//! `margo shutdown`: the services that it ends, its messages about the others, and `--wait`.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{self, Ended, Running, Service, margo, run, until};
use margo::{Instance, na, ult};
use rustix::process::Signal;

/// `margo serve`, which lets itself be ended or not; its address is also in the file of that name.
fn serve(temp: &Path, name: &str, address: &str, allowed: bool) -> (Running, String) {
    let document = format!(
        r#"{{ "margo": {{ "address": "{address}", "address_file": "{name}",
                "remote_shutdown": {allowed} }} }}"#
    );
    let conf = format!("{name}.json");
    std::fs::write(temp.join(&conf), document).unwrap();
    let child = margo(temp).args(["serve", &conf]).stdout(Stdio::piped()).spawn().unwrap();
    let Service { running, address, .. } = Service::of(child);
    (running, address)
}

fn shutdown(temp: &Path, args: &[&str]) -> Ended {
    run(margo(temp).arg("shutdown").args(args), "")
}

#[test]
fn services_of_several_transports_end_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let (mut one, first) = serve(temp, "one", "na+sm://", true);
    let (mut two, second) = serve(temp, "two", "na+tcp://127.0.0.1:0", true);
    let (mut three, third) = serve(temp, "three", "na+tcp://127.0.0.1:0", true);
    let ended = shutdown(temp, &[&first, &second, &third, &first]).expect(0);
    assert_eq!(
        ended.stdout,
        format!("{first} shuts down\n{second} shuts down\n{third} shuts down\n")
    );
    assert_eq!(ended.stderr, "");
    for service in [&mut one, &mut two, &mut three] {
        assert!(service.wait().success());
    }
}

#[test]
fn an_address_may_stand_in_the_file_that_a_service_has_written() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let (mut one, first) = serve(temp, "one", "na+sm://", true);
    let (mut two, second) = serve(temp, "two", "na+tcp://127.0.0.1:0", true);
    let ended = shutdown(temp, &["--address-file", "two", "--wait", "--address-file", "one"]);
    let ended = ended.expect(0);
    assert_eq!(ended.stdout, format!("{second} is gone\n{first} is gone\n"));
    assert!(one.wait().success() && two.wait().success());
    // The files are gone, too.
    let missing = shutdown(temp, &["--address-file", "one"]).expect(1);
    assert!(
        missing.stderr.contains("cannot read an address from one: No such file"),
        "{missing:?}"
    );
    std::fs::write(temp.join("one"), "127.0.0.1:7000\n").unwrap();
    let wrong = shutdown(temp, &["--address-file", "one"]).expect(1);
    assert!(wrong.stderr.contains("one does not hold the address of a service"), "{wrong:?}");
}

#[test]
fn who_cannot_be_ended_is_told_and_the_others_end() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let (mut willing, first) = serve(temp, "willing", "na+sm://", true);
    let (unwilling, second) = serve(temp, "unwilling", "na+tcp://127.0.0.1:0", false);
    let nobody = "na+tcp://127.0.0.1:1";
    let ended = shutdown(temp, &[nobody, &second, &first, "--wait"]).expect(1);
    assert_eq!(ended.stdout, format!("{first} is gone\n"));
    assert!(willing.wait().success());
    let lines: Vec<_> = ended.stderr.lines().collect();
    let [of_nobody, of_unwilling] = lines[..] else { panic!("{ended:#?}") };
    assert!(of_nobody.contains("cannot reach na+tcp://127.0.0.1:1"), "{ended:#?}");
    let told = format!("{second} does not let others shut it down");
    assert!(of_unwilling.contains(&told), "{ended:#?}");
    assert!(of_unwilling.contains(r#""margo": { "remote_shutdown": true }"#), "{ended:#?}");
    drop(unwilling);
    // What is no address is wrong usage, and then nobody is asked.
    let (_willing, first) = serve(temp, "willing", "na+sm://", true);
    for nonsense in ["127.0.0.1:7000", "na+tcp://"] {
        let wrong = shutdown(temp, &[&first, nonsense]).expect(2);
        assert!(wrong.stderr.contains(nonsense) && wrong.stdout.is_empty(), "{wrong:?}");
    }
    let unknown = shutdown(temp, &[&first, "na+nonsense://x"]).expect(1);
    assert!(unknown.stderr.contains("na+nonsense") && unknown.stdout.is_empty(), "{unknown:?}");
    let none = shutdown(temp, &["--wait"]).expect(2);
    assert!(none.stderr.contains("<ADDRESS"), "{none:?}");
    shutdown(temp, &[&first]).expect(0);
}

#[test]
fn a_service_that_is_stopped_is_given_up_at_the_limit() {
    let temp = tempfile::tempdir().unwrap();
    let temp = temp.path();
    let (service, address) = serve(temp, "one", "na+tcp://127.0.0.1:0", true);
    service.signal(Signal::STOP);
    let stat = format!("/proc/{}/stat", service.pid().as_raw_nonzero());
    until("a service that is stopped", || {
        std::fs::read_to_string(&stat).unwrap().contains(") T ").then_some(())
    });
    let late = shutdown(temp, &[&address, "--limit", "0.2"]).expect(1);
    assert!(late.stderr.contains("within 200ms; it is stopped"), "{late:?}");
    assert!(late.stdout.is_empty(), "{late:?}");
    service.signal(Signal::CONT);
}

/// A service here, whose shutdown stands still until it may go on.
fn held(address: &str) -> (Instance, Arc<ult::Eventual<()>>) {
    let service = Instance::builder(address).grace(Duration::from_secs(600)).start().unwrap();
    service.network().enable_remote_shutdown();
    let go = Arc::new(ult::Eventual::new());
    let may_go = go.clone();
    service.on_prefinalize(move |_| *may_go.wait()).unwrap().keep();
    (service, go)
}

#[test]
fn it_waits_until_a_service_is_gone() {
    for transport in ["na+sm://", "na+tcp://127.0.0.1:0"] {
        let temp = tempfile::tempdir().unwrap();
        let (service, go) = held(transport);
        let address = service.self_addr().uri().to_owned();
        let asks = |wait: &[&str]| {
            let mut command = margo(temp.path());
            command.args(["shutdown", &address]).args(wait);
            let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
            Running::new(command.spawn().unwrap())
        };
        let mut waits = asks(&["--wait", "--limit", "600"]);
        // It has agreed, and is looked at again and again.
        until("it is asked whether it is there", || {
            (service.monitoring().stats().requests_received > 3).then_some(())
        });
        assert!(waits.child.try_wait().unwrap().is_none());
        // Who comes later has nothing to ask for; who has no patience is told.
        common::ended(asks(&[])).expect(0);
        let late = common::ended(asks(&["--wait", "--limit", "0.2"])).expect(1);
        // On a machine that is very busy it does not even agree in that time.
        let told = ["is still there after 200ms", "within 200ms"];
        assert!(told.iter().any(|told| late.stderr.contains(told)), "{late:?}");
        go.set(()).unwrap();
        service.wait_for_finalize().unwrap();
        let ended = common::ended(waits).expect(0);
        assert_eq!(ended.stdout, format!("{address} is gone\n"));
    }
}

/// The RPC is C Margo's, and so are the transports.
#[test]
fn services_over_libfabric_end() {
    let addresses = ["ofi+tcp;ofi_rxm://127.0.0.1", "ofi+tcp://127.0.0.1"];
    let opens = |address: &&str| na::open(address, &na::OpenOptions::listening(true)).is_ok();
    let Some(address) = addresses.into_iter().find(opens) else {
        return eprintln!("SKIPPED: libfabric has no provider over TCP here, or is not installed");
    };
    let temp = tempfile::tempdir().unwrap();
    let (mut service, address) = serve(temp.path(), "one", address, true);
    let ended = shutdown(temp.path(), &[&address, "--wait", "--limit", "50"]).expect(0);
    assert_eq!(ended.stdout, format!("{address} is gone\n"));
    assert!(service.wait().success());
}
