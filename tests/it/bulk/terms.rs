//! Memory on terms: who may use it, until when, how often.

use std::time::{Duration, Instant};

use crate::bulk_support::is_filled;
use crate::common::{PATIENCE, TRANSPORTS};
use margo::bulk_memory::{AllocOptions, Exposable, Terms};
use margo::{Access, Bulk, BulkError, Instance, Principal, ProviderHandle, Rpc};

/// Pulls so often; returns how many times it was let.
const PULL: Rpc<(Bulk, u32), u32> = Rpc::new("pull");

/// Sizes of which the bytes may go along with a handle, and of which peers may copy by themselves.
const SIZES: [usize; 3] = [8, 4096, 4 << 20];

/// A service that pulls what its callers expose.
struct Pulling {
    service: Instance,
    client: Instance,
}

impl Pulling {
    fn new(transport: &str) -> Self {
        let service = Instance::builder(transport).start().unwrap();
        let pull = |request: margo::Handle<(Bulk, u32), u32>| {
            let (bulk, times) = request.args();
            let bytes = usize::try_from(bulk.len()).unwrap();
            let mut buffer = request.instance().memory().bulk_buffer(bytes).unwrap();
            let may_pull = (0..*times).filter(|_| {
                assert!(bulk.eager_data().is_none(), "its bytes did not come along");
                match request.pull(bulk, 0, &mut buffer, 0..bytes) {
                    Ok(_) => {
                        assert!(is_filled(&buffer, 7));
                        true
                    }
                    Err(_) => false,
                }
            });
            let count = may_pull.count() as u32;
            request.respond(&count).unwrap();
        };
        service.register(PULL, pull).unwrap();
        let scheme = transport.split("://").next().unwrap();
        let client = Instance::builder(format!("{scheme}://")).listen(false).start().unwrap();
        Self { service, client }
    }

    /// Has the service pull that memory so often; returns how many times it was let.
    fn pulls<B: Exposable>(&self, data: B, terms: Terms, times: u32) -> u32 {
        let exposed = self.client.memory().expose_on(data, Access::ReadOnly, terms).unwrap();
        let target = self.client.lookup(self.service.self_addr().uri()).unwrap();
        let target = ProviderHandle::from(target);
        let args = (exposed.bulk().clone(), times);
        let count = self.client.forward_timed(PULL, &target, &args, PATIENCE).unwrap();
        drop(exposed.release_timed(PATIENCE).unwrap());
        count
    }

    fn end(self) {
        self.client.finalize_and_wait().unwrap();
        self.service.finalize_and_wait().unwrap();
    }
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

#[test]
fn memory_is_used_as_often_as_its_terms_say() {
    for transport in TRANSPORTS {
        let pulling = Pulling::new(transport);
        for bytes in SIZES {
            let data = || vec![7; bytes];
            for uses in [1, 3] {
                let terms = Terms::new().uses(uses).until(later());
                assert_eq!(u64::from(pulling.pulls(data(), terms, 5)), uses, "{bytes} bytes");
                let mut block = pulling.client.alloc(bytes, &AllocOptions::default()).unwrap();
                block.as_mut_slice().unwrap().fill(7);
                assert_eq!(u64::from(pulling.pulls(block, terms, 5)), uses, "{bytes} bytes");
            }
            assert_eq!(pulling.pulls(data(), Terms::new(), 5), 5, "over {transport}");
        }
        pulling.end();
    }
}

#[test]
fn memory_is_used_until_its_time() {
    for transport in TRANSPORTS {
        let pulling = Pulling::new(transport);
        for bytes in SIZES {
            let terms = Terms::new().until(Instant::now());
            assert_eq!(pulling.pulls(vec![7; bytes], terms, 2), 0, "over {transport}");
        }
        pulling.end();
    }
}

#[test]
fn memory_is_for_a_user_where_the_owner_knows_who_asks() {
    let own = rustix::process::geteuid().as_raw();
    let for_user = |id| Terms::new().only_for(Principal::User(id));
    let pulling = Pulling::new(TRANSPORTS[0]);
    for bytes in SIZES {
        assert_eq!(pulling.pulls(vec![7; bytes], for_user(own), 3), 3);
        assert_eq!(pulling.pulls(vec![7; bytes], for_user(own + 1), 3), 0);
    }
    pulling.end();
    let pulling = Pulling::new("na+tcp://127.0.0.1:0");
    for (host, may) in [("127.0.0.1", true), ("10.0.0.1", false)] {
        let terms = Terms::new().only_for(Principal::of_host(host.parse().unwrap()));
        for bytes in SIZES {
            assert_eq!(pulling.pulls(vec![7; bytes], terms, 3), if may { 3 } else { 0 }, "{host}");
        }
    }
    pulling.end();
    let other = Instance::builder("na+sim://").start().unwrap();
    let expose = |terms| other.memory().expose_on(vec![7; 8], Access::ReadOnly, terms);
    let error = expose(for_user(own)).unwrap_err();
    assert!(matches!(error, BulkError::Register(_)), "{error}");
    drop(expose(Terms::new().uses(1)).unwrap());
    other.finalize_and_wait().unwrap();
}
