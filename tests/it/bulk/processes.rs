//! The bulk cases of Mercury's own tests between processes: this one is the origin, whose memory it
//! is, and the targets, which pull, compare and push, are processes of their own; over shared
//! memory and TCP, polling and sleeping, and over ofi where it is asked for (`MARGO_TEST_OFI=1`).
//! `tests/it/bulk/cases.rs` runs the cases within one process.

use crate::bulk_support::exchange::{BUF, Exchange};
use crate::bulk_support::{MOVE, Node, PATIENCE, contents, cut, pattern};
use crate::common::process::{self, Service, client_for, say, serve_if_asked};
use crate::common::{all_asked_for, bounded};
use margo::hg::{Bulk, BulkOp, ForwardOptions, HgOptions, RequestHandle, proc};
use margo::{ProviderHandle, Rpc};
use na::{Access, Addr, LocalMem, Memory, RawSegment};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// A transfer that the target is asked to make with the origin's memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    bulk: Bulk,
    bytes: u64,
    /// Pieces of the target's own memory.
    pieces: u32,
    origin_offset: u64,
    target_offset: u64,
    len: u64,
    /// The target to which the receiver passes the job on.
    pass_on_to: Option<String>,
}

/// Bytes that the target pushes.
const OTHER: usize = 100;

const ROLE: &str = "MARGO_TEST_BULK_TARGET";

/// Hands out memory of the service.
const GIVE: Rpc<(), Bulk> = Rpc::new("give");

/// Bytes of it.
const GIVEN: usize = 1 << 20;

/// Not a test of its own: the target of the others, in a process of its own.
#[test]
fn service_process() {
    serve_if_asked(|service| {
        let given = service.expose(pattern(GIVEN, 0), margo::Access::ReadWrite).unwrap();
        let give = move |request: margo::Handle<(), Bulk>| request.respond(given.bulk()).unwrap();
        service.register(GIVE, give).unwrap();
    });
    let Some(asked) = process::asked(ROLE) else { return };
    let (address, sleeps) = asked.split_once(' ').unwrap();
    let mut target =
        Side { node: Node::open(address, true, options(true)), sleeps: sleeps == "true" };
    say(&format!("listening on {}", target.node.core.self_addr()));
    loop {
        target.until(|node| !node.log.requests.is_empty());
        let request = target.node.log.requests.remove(0);
        target.serve(request);
    }
}

fn options(bulk_eager: bool) -> HgOptions {
    let mut options = HgOptions::default();
    options.bulk_eager = bulk_eager;
    options.request_post_init = 16;
    options
}

/// A node that is driven alone.
struct Side {
    node: Node,
    sleeps: bool,
}

impl Side {
    /// Turns until `done`, which is asked after each; a target waits for its parent for ever.
    fn until(&mut self, mut done: impl FnMut(&mut Node) -> bool) {
        let began = Instant::now();
        while !done(&mut self.node) {
            if self.node.turn() {
                continue;
            }
            assert!(began.elapsed() < 2 * PATIENCE, "nothing happens");
            if self.sleeps && self.node.core.prepare_wait() {
                let fd = self.node.core.wait_fd().unwrap();
                let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
                let woken =
                    rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
                assert!(woken.unwrap() > 0, "nobody is woken");
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn transfer(&mut self, op: BulkOp, owner: Option<&Addr>, job: &Job, local: &LocalMem) {
        let Job { bulk, origin_offset, target_offset, len, .. } = job;
        let core = &self.node.core;
        let started =
            core.transfer(op, owner, bulk, *origin_offset, local, *target_offset, *len, 7);
        started.map_err(|refused| refused.0).unwrap();
        let mut end = None;
        self.until(|node| {
            end = node.bulk_end(7);
            end.is_some()
        });
        assert_eq!(end.unwrap().unwrap(), *len);
    }

    /// Pulls, compares, pushes other bytes, and answers.
    fn serve(&mut self, request: RequestHandle<u32>) {
        let job: Job = proc::from_slice(request.payload()).unwrap();
        if let Some(next) = job.pass_on_to.clone() {
            let to = self.node.core.lookup(&next).unwrap();
            self.call(&to, &Job { pass_on_to: None, ..job });
            return self.answer(request);
        }
        let owner = (!job.bulk.is_bound()).then(|| request.origin().clone());
        let zeros = vec![0; job.bytes.max(1) as usize];
        let local = self.node.expose(cut(&zeros, job.pieces as usize), Access::ReadOnly);
        self.transfer(BulkOp::Pull, owner.as_ref(), &job, &local);
        let (from, to, len) =
            (job.origin_offset as usize, job.target_offset as usize, job.len as usize);
        let mut expected = zeros;
        expected[to..to + len].copy_from_slice(&pattern(job.bytes as usize, 0)[from..from + len]);
        assert!(contents(&local) == expected, "pulled bytes differ: {job:?}");
        assert!(local.write_at(to as u64, &pattern(len, OTHER)));
        self.transfer(BulkOp::Push, owner.as_ref(), &job, &local);
        self.answer(request);
    }

    fn answer(&mut self, request: RequestHandle<u32>) {
        let _sent = request.respond(|_writer| Ok(()), 9).unwrap();
        self.until(|node| node.core.in_flight() == 0);
        self.node.log.responded.clear();
    }

    /// Calls, and waits for the answer.
    fn call(&mut self, to: &Addr, job: &Job) {
        let encode = |writer: &mut margo::hg::Writer| proc::to_writer(writer, job);
        self.node.core.forward(to, MOVE, ForwardOptions::default(), encode, 1).unwrap();
        self.until(|node| !node.log.responses.is_empty());
        self.node.log.responses.remove(0).1.unwrap();
    }

    /// One exchange with `to`.
    fn exchange(&mut self, to: &Addr, exchange: Exchange, pass_on_to: Option<&str>) {
        let Exchange { bytes, cuts, origin_offset, target_offset, len, bind } = exchange;
        let data = pattern(bytes, 0);
        let lent = self.node.expose(cut(&data, cuts.0), Access::ReadWrite);
        let mut bulk = self.node.core.bulk_handle(&lent);
        if bind {
            bulk = self.node.core.bulk_bind(&bulk, 0).unwrap();
        }
        let job = Job {
            bulk,
            bytes: bytes as u64,
            pieces: cuts.1 as u32,
            origin_offset: origin_offset as u64,
            target_offset: target_offset as u64,
            len: len as u64,
            pass_on_to: pass_on_to.map(str::to_owned),
        };
        self.call(to, &job);
        let mut expected = data;
        expected[origin_offset..origin_offset + len].copy_from_slice(&pattern(len, OTHER));
        assert!(contents(&lent) == expected, "pushed bytes differ: {exchange:?}");
    }
}

/// Two segments of no bytes, at no address.
fn null_bulk(origin: &mut Side, to: &Addr) {
    let nothing = RawSegment { ptr: std::ptr::null_mut(), len: 0 };
    // SAFETY: no bytes, so there is nothing that must be valid.
    let memory = unsafe { Memory::from_raw(vec![nothing; 2], Vec::<Vec<u8>>::new()) };
    let lent = origin.node.core.endpoint().register(memory, Access::ReadWrite).unwrap();
    let bulk = origin.node.core.bulk_handle(&lent);
    let (bytes, pieces, origin_offset, target_offset, len) = (0, 1, 0, 0, 0);
    let job = Job { bulk, bytes, pieces, origin_offset, target_offset, len, pass_on_to: None };
    origin.call(to, &job);
}

/// All cases with one target, the forwarded one with a second.
fn cases(address: &str, sleeps: bool) {
    let role = format!("{address} {sleeps}");
    let (target, third) = (
        Service::start_with(module_path!(), ROLE, &role),
        Service::start_with(module_path!(), ROLE, &role),
    );
    for bulk_eager in [true, false] {
        let mut origin = Side { node: Node::open(address, true, options(bulk_eager)), sleeps };
        let to = origin.node.core.lookup(&target.address).unwrap();
        null_bulk(&mut origin, &to);
        for (name, exchange) in Exchange::cases() {
            eprintln!("{address}, sleeps: {sleeps}, eager: {bulk_eager}: {name}");
            origin.exchange(&to, exchange, None);
        }
        // The handle is passed on to a third process, which moves the data with the origin itself.
        let bound = Exchange { bind: true, cuts: (3, 1), ..Exchange::whole(BUF, 1) };
        origin.exchange(&to, bound, Some(&third.address));
        let moved = origin.node.core.in_flight();
        assert_eq!((moved, origin.node.core.counters().malformed), (0, 0));
        origin.node.core.close();
    }
}

#[test]
fn over_sm() {
    cases("na+sm://", false);
}

#[test]
fn over_sm_sleeping() {
    cases("na+sm://", true);
}

#[test]
fn over_tcp() {
    cases("na+tcp://127.0.0.1:0", false);
}

#[test]
fn over_tcp_sleeping() {
    cases("na+tcp://127.0.0.1:0", true);
}

/// The cases over a provider of libfabric, if they are asked for.
fn over_ofi(address: &'static str, sleeps: bool) {
    let asked =
        na::conformance::Optional { variable: "MARGO_TEST_OFI", uri: address, open: na::open };
    match asked.lacks() {
        None => cases(address, sleeps),
        Some(lacks) => println!("SKIPPED: {lacks}"),
    }
}

#[test]
fn over_ofi_tcp() {
    over_ofi("ofi+tcp://127.0.0.1:0", false);
}

#[test]
fn over_ofi_tcp_rxm() {
    over_ofi("ofi+tcp;ofi_rxm://127.0.0.1:0", false);
}

#[test]
fn over_ofi_tcp_rxm_sleeping() {
    over_ofi("ofi+tcp;ofi_rxm://127.0.0.1:0", true);
}

#[test]
fn over_ofi_shm() {
    over_ofi("ofi+shm://", false);
}

/// An owner that does nothing but wait for its end serves the transfers of others, whose progress
/// over most fabrics is its own matter.
#[test]
fn an_owner_that_waits_for_its_end_serves_transfers() {
    for transport in all_asked_for() {
        bounded(transport, move || {
            let service = Service::start(module_path!(), transport);
            let client = client_for(&service.address);
            let owner = client.lookup(&service.address).unwrap();
            let bulk = client.forward(GIVE, &ProviderHandle::from(owner.clone()), &()).unwrap();
            let mut buffer = client.memory().bulk_buffer(GIVEN).unwrap();
            for round in 0..8 {
                let from = round * OTHER;
                let expected = pattern(GIVEN, from);
                buffer.fill(0);
                client.pull(&owner, &bulk, 0, &mut buffer, 0..GIVEN).unwrap();
                assert!(*buffer == *expected, "{transport}: pulled bytes differ");
                buffer.copy_from_slice(&pattern(GIVEN, from + OTHER));
                service.rest();
                client.push(&owner, &bulk, 0, &mut buffer, 0..GIVEN).unwrap();
            }
            client.finalize_and_wait().unwrap();
        });
    }
}
