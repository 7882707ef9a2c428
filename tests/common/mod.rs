//! Helpers that the test programs share.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod alone;
pub(crate) mod log;
pub(crate) mod process;

use std::io::ErrorKind;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use margo::config::Shards;
use margo::{InitError, Instance, InstanceBuilder, ProviderHandle, config::Config, na};

/// Far beyond what a loaded machine needs; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The addresses that tests open.
pub(crate) const TRANSPORTS: [&str; 2] = ["na+sm://", "na+tcp://127.0.0.1:0"];

/// Fabrics that are opened as well where a variable asks for their library.
const FABRICS: [(&str, &str); 3] = [
    ("MARGO_TEST_OFI", "ofi+tcp;ofi_rxm://127.0.0.1:0"),
    ("MARGO_TEST_UCX", "ucx+tcp://127.0.0.1:0"),
    ("MARGO_TEST_UCX", "ucx+sm://127.0.0.1:0"),
];

/// The variable that says how many shards the instances of the tests have; without it they have
/// one. The suites pass with any number, but for the tests that say why not ([`one_shard_alone`]).
const SHARDS: &str = "MARGO_TEST_SHARDS";

/// How many shards the instances of the tests have.
pub(crate) fn shards() -> u32 {
    std::env::var(SHARDS).map_or(1, |shards| shards.parse().unwrap())
}

/// Returns whether instances have several shards, and the test is about what one shard has.
pub(crate) fn one_shard_alone(reason: &str) -> bool {
    let is_skipped = shards() > 1;
    if is_skipped {
        println!("SKIPPED: {reason}");
    }
    is_skipped
}

/// As [`Instance::builder`], for instances that have as many shards as the tests are to have. Not
/// for those in the pools of others, which would have to name the pools of their shards.
pub(crate) fn builder(address: impl Into<String>) -> InstanceBuilder {
    builder_of_shards(address, shards())
}

/// Starts an instance at addresses that were in use before, once they are free: a child that
/// another test has forked holds what was closed until it runs its program.
pub(crate) fn start_again(start: impl Fn() -> Result<Instance, InitError>) -> Instance {
    once_free(start).unwrap()
}

/// As [`start_again`], for starts that may fail for another reason.
pub(crate) fn once_free(
    start: impl Fn() -> Result<Instance, InitError>,
) -> Result<Instance, InitError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match start() {
            Err(error) if is_address_in_use(&error) && Instant::now() < deadline => {
                std::thread::yield_now();
            }
            started => return started,
        }
    }
}

fn is_address_in_use(error: &InitError) -> bool {
    let source = match error {
        InitError::Network { source: na::Error::Io { source, .. }, .. } => source,
        InitError::Metrics { source, .. } => source,
        _ => return false,
    };
    source.kind() == ErrorKind::AddrInUse
}

fn builder_of_shards(address: impl Into<String>, shards: u32) -> InstanceBuilder {
    let mut config = Config::default();
    config.margo.address = address.into();
    if shards > 1 {
        config.margo.shards = Some(Shards::Count(shards));
    }
    InstanceBuilder::from_config(config)
}

/// A service and a client over one transport, ended with the value.
pub(crate) struct Pair {
    pub(crate) service: Instance,
    pub(crate) client: Instance,
}

impl Pair {
    pub(crate) fn new(transport: &str) -> Self {
        Self::of_shards(transport, shards())
    }

    /// A service and a client of so many shards each.
    pub(crate) fn of_shards(transport: &str, shards: u32) -> Self {
        let service = builder_of_shards(transport, shards).start().unwrap();
        let own = transport.split("://").next().unwrap();
        let client = builder_of_shards(format!("{own}://"), shards).listen(false).start().unwrap();
        Self { service, client }
    }

    /// The service's default provider, as the client sees it.
    pub(crate) fn target(&self) -> ProviderHandle {
        ProviderHandle::from(self.client.lookup(self.service.self_addr().uri()).unwrap())
    }

    pub(crate) fn end(self) {
        self.client.finalize_and_wait().unwrap();
        self.service.finalize_and_wait().unwrap();
    }
}

/// Yields both transports, and the fabrics that are asked for.
pub(crate) fn all_asked_for() -> impl Iterator<Item = &'static str> {
    let asked = |(variable, _): &(&str, &str)| std::env::var_os(variable).is_some();
    let fabrics = FABRICS.into_iter().filter(asked).map(|(_, transport)| transport);
    TRANSPORTS.into_iter().chain(fabrics)
}

/// Runs `body` for the fabrics that are asked for and whose addresses begin with one of these.
pub(crate) fn on_fabrics(classes: &[&str], body: impl Fn(&'static str)) {
    let of_class = |uri: &str| classes.iter().any(|class| uri.starts_with(class));
    for variable in ["MARGO_TEST_OFI", "MARGO_TEST_UCX"] {
        let own = FABRICS.into_iter().filter(|(of, uri)| *of == variable && of_class(uri));
        let own: Vec<_> = own.collect();
        if !own.is_empty() && std::env::var_os(variable).is_none() {
            println!("SKIPPED in part: set {variable}=1");
            continue;
        }
        own.into_iter().for_each(|(_, uri)| body(uri));
    }
}

/// Runs `body` for both transports, and for the fabrics that are asked for.
pub(crate) fn on_each(body: impl Fn(Pair)) {
    all_asked_for().for_each(|transport| body(Pair::new(transport)));
}

/// Runs `body` as [`on_each`] does, without ofi. Requests over ofi are C Mercury's to the byte:
/// they carry none of our extensions, so that handlers hear of no deadline and no cancel.
pub(crate) fn on_each_with_extensions(body: impl Fn(Pair)) {
    let ours = all_asked_for().filter(|transport| !transport.starts_with("ofi+"));
    ours.for_each(|transport| body(Pair::new(transport)));
}

/// Runs `body` on another thread and panics if it takes longer than [`PATIENCE`].
pub(crate) fn bounded<T: Send + 'static>(
    what: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (put, value) = mpsc::channel();
    run_bounded(what, Box::new(move || put.send(body()).unwrap()));
    value.recv().unwrap()
}

/// Without the types of [`bounded`], of which a program would have hundreds of copies.
fn run_bounded(what: &str, body: Box<dyn FnOnce() + Send>) {
    let (done, end) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _done = done;
        body();
    });
    if end.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("{what}: hangs");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
