//! Memory of `Instance::alloc` as bulk memory, between two processes, over both transports.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::bulk_support::{is_filled, pattern};
use crate::common::process::{Service, client_for, serve_if_asked};
use crate::common::{PATIENCE, TRANSPORTS, bounded, on_each};
use margo::{
    Access, Bulk, BulkError, Exposed, Instance, ProviderHandle, Rpc, bulk_memory::AllocOptions,
    bulk_memory::SharedBuffer,
};

type Told<T> = Result<T, String>;

/// Pulls the memory and tells the sum of its bytes.
const SUM: Rpc<Bulk, Told<u64>> = Rpc::new("sum");
/// Pushes the pattern of that seed into the memory.
const FILL: Rpc<(Bulk, u8), Told<()>> = Rpc::new("fill");
/// Allocates and exposes so many bytes of the service itself.
const LEND: Rpc<usize, Told<Bulk>> = Rpc::new("lend");
/// Takes them back; tells the sum of what is in there.
const TAKE: Rpc<(), Told<u64>> = Rpc::new("take");
/// Pulls the memory into memory of `alloc`, and pushes its second half over the first.
const ECHO: Rpc<Bulk, Told<u64>> = Rpc::new("echo");
/// How many buffers of `alloc` the service's process has mapped.
const MAPPED: Rpc<(), usize> = Rpc::new("mapped");

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// Mappings of this process that are memory of `alloc`, of whichever process.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:margo-alloc")).count()
}

fn serve(service: &Instance) {
    service
        .register(SUM, |request| {
            let run = || -> Result<u64, BulkError> {
                let len = request.args().len() as usize;
                let mut buffer = request.instance().memory().bulk_buffer(len)?;
                request.pull(request.args(), 0, &mut buffer, 0..len)?;
                Ok(sum(&buffer))
            };
            request.respond(&run().map_err(|error| error.to_string())).unwrap();
        })
        .unwrap();
    service
        .register(FILL, |request| {
            let (bulk, seed) = request.args();
            let run = || -> Result<(), BulkError> {
                let len = bulk.len() as usize;
                let mut buffer = request.instance().memory().bulk_buffer(len)?;
                buffer.copy_from_slice(&pattern(len, (*seed).into()));
                request.push(bulk, 0, &mut buffer, 0..len)
            };
            request.respond(&run().map_err(|error| error.to_string())).unwrap();
        })
        .unwrap();
    static LENT: Mutex<Option<Exposed<SharedBuffer>>> = Mutex::new(None);
    service
        .register(ECHO, |request| {
            let run = || -> Result<u64, BulkError> {
                let len = request.args().len() as usize;
                let buffer = request.instance().alloc(len, &AllocOptions::default())?;
                let exposed = request.instance().expose(buffer, Access::ReadOnly)?;
                // By a shared reference, as who keeps it elsewhere would.
                request.pull(request.args(), 0, &mut &exposed, 0..len)?;
                let mut bytes = vec![0; len];
                exposed.read_at(0, &mut bytes)?;
                let half = len / 2;
                exposed.write_at(0, &bytes[half..])?;
                let mut exposed = exposed;
                request.push(request.args(), 0, &mut exposed, 0..half)?;
                Ok(sum(&bytes))
            };
            request.respond(&run().map_err(|error| error.to_string())).unwrap();
        })
        .unwrap();
    service
        .register(LEND, |request| {
            let run = || -> Result<Bulk, BulkError> {
                let options = AllocOptions::default();
                let buffer = request.instance().alloc(*request.args(), &options)?;
                let lent = request.instance().expose(buffer, Access::ReadWrite)?;
                let bulk = lent.bulk().clone();
                *LENT.lock().unwrap() = Some(lent);
                Ok(bulk)
            };
            request.respond(&run().map_err(|error| error.to_string())).unwrap();
        })
        .unwrap();
    service
        .register(TAKE, |request| {
            let lent = LENT.lock().unwrap().take();
            let mut buffer = lent.unwrap().release().unwrap();
            let told = buffer.as_mut_slice().map(|bytes| sum(bytes));
            request.respond(&told.map_err(|error| error.to_string())).unwrap();
        })
        .unwrap();
    service.register(MAPPED, |request| request.respond(&mapped()).unwrap()).unwrap();
}

/// Not a test of its own: the service process of the others, which run this program again.
#[test]
fn service_process() {
    serve_if_asked(serve);
}

/// A service in another process, for each transport, and a client of it.
fn with_service(body: impl Fn(&Instance, &ProviderHandle, bool) + Send + Clone + 'static) {
    for transport in TRANSPORTS {
        let body = body.clone();
        bounded("bulk transfers", move || {
            let service = Service::start(module_path!(), transport);
            let client = client_for(&service.address);
            let target = ProviderHandle::from(client.lookup(&service.address).unwrap());
            body(&client, &target, transport.starts_with("na+sm"));
            client.finalize_and_wait().unwrap();
        });
    }
}

fn allocated(instance: &Instance, bytes: &[u8]) -> SharedBuffer {
    let mut buffer = instance.alloc(bytes.len(), &AllocOptions::default()).unwrap();
    buffer.as_mut_slice().unwrap().copy_from_slice(bytes);
    buffer
}

#[test]
fn peers_pull_from_it_and_over_sm_they_have_it_mapped() {
    with_service(|client, target, sm| {
        let forward = |bulk: &Bulk| client.forward_timed(SUM, target, bulk, PATIENCE).unwrap();
        for len in [1usize, 4096, 65_537, 1 << 20, 9 << 20] {
            let data = pattern(len, 3);
            let exposed = client.expose(allocated(client, &data), Access::ReadOnly).unwrap();
            assert_eq!(forward(exposed.bulk()), Ok(sum(&data)), "{len} bytes");
            // Long data is copied by the peer itself, which needs a mapping.
            let maps = client.forward_timed(MAPPED, target, &(), PATIENCE).unwrap();
            assert!(maps == 0 || sm, "mapped over tcp");
            assert!(maps > 0 || !sm || len < 16 << 10, "{len} bytes of sm are not mapped");
            // Read only.
            let error = client.forward_timed(FILL, target, &(exposed.bulk().clone(), 1), PATIENCE);
            assert!(error.unwrap().is_err());
            let handle = exposed.bulk().clone();
            assert!(*exposed.release().unwrap().as_mut_slice().unwrap() == *data);
            assert!(forward(&handle).is_err(), "the handle works after the memory is taken back");
        }
    });
}

#[test]
fn peers_push_into_it() {
    with_service(|client, target, _| {
        for (access, len) in [(Access::WriteOnly, 100_000), (Access::ReadWrite, 3 << 20)] {
            let exposed = client.expose(allocated(client, &vec![9; len]), access).unwrap();
            for seed in [7, 8] {
                let argument = (exposed.bulk().clone(), seed);
                client.forward_timed(FILL, target, &argument, PATIENCE).unwrap().unwrap();
                // While it is exposed, and after.
                let mut part = [0; 1000];
                exposed.read_at(len - 1000, &mut part).unwrap();
                assert!(part == pattern(len, seed.into())[len - 1000..]);
            }
            let mut buffer = exposed.release().unwrap();
            assert!(*buffer.as_mut_slice().unwrap() == pattern(len, 8));
        }
    });
}

#[test]
fn a_service_lends_it_to_its_clients() {
    with_service(|client, target, _| {
        const LEN: usize = 1 << 20;
        let bulk = client.forward_timed(LEND, target, &LEN, PATIENCE).unwrap().unwrap();
        let mut buffer = client.memory().bulk_buffer(LEN).unwrap();
        buffer.fill(1);
        client.pull(target.addr(), &bulk, 0, &mut buffer, 0..LEN).unwrap();
        assert!(is_filled(&buffer, 0), "fresh memory is zero");
        buffer.copy_from_slice(&pattern(LEN, 5));
        // The second half first, to see that offsets count.
        client.push(target.addr(), &bulk, LEN as u64 / 2, &mut buffer, LEN / 2..LEN).unwrap();
        client.push(target.addr(), &bulk, 0, &mut buffer, 0..LEN / 2).unwrap();
        let told = client.forward_timed(TAKE, target, &(), PATIENCE).unwrap();
        assert_eq!(told, Ok(sum(&pattern(LEN, 5))));
    });
}

#[test]
fn it_is_the_local_side_of_transfers_too() {
    with_service(|client, target, _| {
        for len in [2usize, 10_000, 1 << 20, 9 << 20] {
            let data = pattern(len, 6);
            let mut expected = data.clone();
            expected.copy_within(len / 2.., 0);
            let forward = |bulk: &Bulk| client.forward_timed(ECHO, target, bulk, PATIENCE).unwrap();
            let plain = client.expose(data.clone(), Access::ReadWrite).unwrap();
            assert_eq!(forward(plain.bulk()), Ok(sum(&data)), "plain, {len} bytes");
            assert!(plain.release().unwrap() == expected, "plain, {len} bytes");
            let shared = client.expose(allocated(client, &data), Access::ReadWrite).unwrap();
            assert_eq!(forward(shared.bulk()), Ok(sum(&data)), "shared, {len} bytes");
            assert!(
                *shared.release().unwrap().as_mut_slice().unwrap() == *expected,
                "shared, {len} bytes"
            );
        }
    });
}

#[test]
fn a_part_of_it_is_moved_to_another_part() {
    on_each(|pair| {
        let mut exposed = pair.client.expose(pattern(10_000, 1), Access::ReadWrite).unwrap();
        let (own, bulk) = (pair.client.self_addr(), exposed.bulk().clone());
        // The parts overlap.
        pair.client.pull(&own, &bulk, 1000, &mut exposed, 0..9000).unwrap();
        let error = pair.client.pull(&own, &bulk, 0, &mut exposed, 1..10_001).unwrap_err();
        assert!(matches!(error, BulkError::LocalRange { .. }), "{error}");
        let bytes = exposed.release().unwrap();
        assert!(bytes[..9000] == pattern(10_000, 1)[1000..]);
        pair.end();
    });
}

#[test]
fn it_is_read_and_written_while_it_is_exposed() {
    on_each(|pair| {
        serve(&pair.service);
        let buffer = pair.client.alloc(10_000, &AllocOptions::default()).unwrap();
        let exposed = pair.client.expose(buffer, Access::ReadOnly).unwrap();
        let forward = || pair.client.forward(SUM, &pair.target(), exposed.bulk()).unwrap();
        assert_eq!(forward(), Ok(0));
        exposed.write_at(9_990, &[1; 10]).unwrap();
        assert_eq!(forward(), Ok(10));
        let mut out = [7; 4];
        exposed.read_at(9_988, &mut out).unwrap();
        assert_eq!(out, [0, 0, 1, 1]);
        for offset in [9_997, 10_000, usize::MAX] {
            let error = exposed.read_at(offset, &mut out).unwrap_err();
            assert!(matches!(error, BulkError::LocalRange { len: 10_000, .. }), "{error}");
            let error = exposed.write_at(offset, &out).unwrap_err();
            assert!(matches!(error, BulkError::LocalRange { len: 10_000, .. }), "{error}");
        }
        assert_eq!(forward(), Ok(10), "what is refused changes nothing");
        drop(exposed);
        pair.end();
    });
}

#[test]
fn memory_that_cannot_be_had_is_an_error_that_says_why() {
    on_each(|pair| {
        let default = AllocOptions::default();
        for (bytes, options, why) in [
            (0, default.clone(), "zero bytes"),
            (4096, AllocOptions::on_node(1023), "there is no NUMA node 1023"),
            (1 << 60, default, "shared memory"),
        ] {
            let error = pair.client.alloc(bytes, &options).unwrap_err();
            assert!(matches!(error, BulkError::Alloc(_)), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        pair.end();
    });
}

/// The pages are on the node that was asked for: on each node that has memory, where they were
/// made, and where they are after peers could write to them.
#[test]
fn it_lies_on_the_numa_node_that_was_asked_for() {
    use margo::ult::topology::{CpuSet, Topology, node_of_page};
    const LEN: usize = 64 << 10;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    let allowed: CpuSet = allowed.map_or("0", str::trim).parse().unwrap();
    let machine = Topology::get().unwrap().numa_nodes();
    let nodes = machine.iter().filter(|node| node.memory_bytes > 0).map(|node| node.id);
    let nodes: Vec<_> = nodes.filter(|node| allowed.contains(*node as usize)).collect();
    let lies_on = |bytes: &[u8]| -> Option<BTreeSet<u32>> {
        let pages = bytes.iter().step_by(rustix::param::page_size());
        // An error: a sandbox forbids to ask.
        pages.map(|page| node_of_page(page).ok().map(|node| node.unwrap())).collect()
    };
    on_each(|pair| {
        serve(&pair.service);
        for node in &nodes {
            let mut buffer = pair.client.alloc(LEN, &AllocOptions::on_node(*node)).unwrap();
            let Some(found) = lies_on(buffer.as_mut_slice().unwrap()) else { continue };
            assert_eq!(found, BTreeSet::from([*node]));
            let exposed = pair.client.expose(buffer, Access::ReadWrite).unwrap();
            let argument = (exposed.bulk().clone(), 7);
            pair.client.forward(FILL, &pair.target(), &argument).unwrap().unwrap();
            let mut buffer = exposed.release().unwrap();
            let bytes = buffer.as_mut_slice().unwrap();
            assert!(*bytes == pattern(LEN, 7));
            assert_eq!(lies_on(bytes), Some(BTreeSet::from([*node])));
        }
        pair.end();
    });
}
