//! Nothing is said in a normal life: neither to standard output and error, nor, at the levels that
//! say so, to the log.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::common::alone::alone;
use crate::common::{self, PATIENCE, process};
use margo::{Access, Bulk, Instance, InstanceBuilder, ProviderHandle, Rpc, config::LogLevel};
use tracing::Level;

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const TRANSFER: Rpc<Bulk, u8> = Rpc::new("transfer");

/// Everything that was logged: level and target.
static SEEN: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());

fn seen() -> MutexGuard<'static, Vec<(Level, String)>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Without the stall detector: on a machine that has too much to do it has something to say.
fn builder(address: &str, level: Option<LogLevel>) -> InstanceBuilder {
    let mut config = margo::config::Config::default();
    config.margo.address = address.to_owned();
    config.margo.stall_limit_msec = 0;
    config.margo.log_level = level;
    // An address is told at the level `info`.
    config.margo.metrics.listen = Some("127.0.0.1:0".to_owned());
    InstanceBuilder::from_config(config)
}

/// Runs an instance through its everyday work.
fn live(address: &str, level: Option<LogLevel>) {
    let service = builder(address, level).start().unwrap();
    service.serve(SUM).function(|(a, b)| a + b).unwrap();
    service
        .serve(TRANSFER)
        .returning(|handle| {
            let mut local = handle.instance().memory().bulk_buffer(1000).unwrap();
            handle.pull(handle.args(), 0, &mut local, 0..1000).unwrap();
            local[999]
        })
        .unwrap();
    let scheme = address.split("://").next().unwrap();
    let client = builder(&format!("{scheme}://"), level).listen(false).start().unwrap();
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    assert_eq!(client.forward(SUM, &target, &(1, 2)).unwrap(), 3);
    assert_eq!(client.forward_timed(SUM, &target, &(1, 2), PATIENCE).unwrap(), 3);
    assert_eq!(client.rpc(SUM, &target, &(1, 2)).start().unwrap().wait().unwrap(), 3);
    let exposed = client.expose(vec![7; 1000], Access::ReadOnly).unwrap();
    assert_eq!(client.forward(TRANSFER, &target, exposed.bulk()).unwrap(), 7);
    drop(exposed);
    let timer = client.timer(|_| ());
    timer.start(Duration::from_millis(1)).unwrap();
    while timer.is_armed() {
        std::thread::yield_now();
    }
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}

#[test]
fn a_normal_life_is_silent_at_the_levels_that_say_so() {
    let test = "a_normal_life_is_silent_at_the_levels_that_say_so";
    alone(module_path!(), test, lives_are_silent);
}

fn lives_are_silent() {
    common::log::listen(Level::TRACE, |event| {
        seen().push((*event.metadata().level(), event.metadata().target().to_owned()));
    });
    for address in common::TRANSPORTS {
        seen().clear();
        live(address, None);
        let all = std::mem::take(&mut *seen());
        // As C's default level has it: an error or a warning is no part of a normal life.
        assert!(!all.iter().any(|(level, _)| *level <= Level::WARN), "{address}: {all:?}");
        assert!(all.iter().any(|(_, target)| target.starts_with("margo")), "{address}: {all:?}");

        for level in [LogLevel::Off, LogLevel::Error, LogLevel::Warning] {
            live(address, Some(level));
            let mut said = std::mem::take(&mut *seen());
            // Those of execution streams and transports are the subscriber's.
            said.retain(|(_, target)| target.starts_with("margo"));
            assert_eq!(said, [], "{address}, {level:?}");
        }
    }
}

/// Not a test of its own: the process that the next one starts.
#[test]
fn quiet_process() {
    let Ok(address) = std::env::var("MARGO_TEST_QUIET") else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    live(&address, None);
    // Also one that fails.
    Instance::builder("na+nothing://").start().unwrap_err();
}

/// `logging/init_quiet_log`.
#[test]
fn without_a_subscriber_nothing_is_printed() {
    for address in common::TRANSPORTS {
        let output = process::again(module_path!(), "quiet_process")
            .arg("--quiet")
            .env("MARGO_TEST_QUIET", address)
            .output()
            .unwrap();
        let (out, err) = (output.stdout, output.stderr);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&err));
        assert_eq!(String::from_utf8_lossy(&err), "", "{address}");
        // What the test program says of itself.
        let out = String::from_utf8(out).unwrap();
        let own = ["running 1 test", ".", "test result: ok."];
        let other = |line: &&str| !own.iter().any(|own| line.starts_with(own)) && !line.is_empty();
        assert_eq!(out.lines().filter(other).collect::<Vec<_>>(), Vec::<&str>::new(), "{address}");
    }
}
