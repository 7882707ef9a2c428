//! Metrics of a process that lacks descriptors.

use super::metrics_support::{scrape, value};
use crate::common::process;
use margo::Instance;

const WITHOUT_DESCRIPTORS: &str = "MARGO_TEST_WITHOUT_DESCRIPTORS";

#[test]
fn service_process() {
    if process::asked(WITHOUT_DESCRIPTORS).is_none() {
        return;
    }
    let service = Instance::builder("na+tcp://127.0.0.1:0").metrics_listen("127.0.0.1:0").start();
    let service = service.unwrap();
    use rustix::process::{Resource::Nofile, Rlimit, getrlimit, setrlimit};
    setrlimit(Nofile, Rlimit { current: Some(64), ..getrlimit(Nofile) }).unwrap();
    let _fillers: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    process::say(&format!("listening on {}", service.monitoring().metrics_addr().unwrap()));
    service.wait_for_finalize().unwrap();
}

#[test]
fn a_process_without_descriptors_can_still_be_looked_at() {
    let service = process::Service::start_with(module_path!(), WITHOUT_DESCRIPTORS, "");
    for _ in 0..3 {
        let families = scrape(service.address.parse().unwrap());
        assert_eq!(value(&families, "process_max_fds", &[]), 64.0);
    }
}
