//! RPC cores over each transport, driven by one thread.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod exchange;
pub(crate) mod idle;
pub(crate) mod roles;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use margo::hg::{
    Bulk, BulkOp, Core, ForwardOptions, HgError, HgOptions, Registration, RequestHandle, Response,
    RpcId, Sent, Sink, proc,
};
use na::sim::Network;
use na::{Access, Addr, LocalMem, Memory, OpenOptions};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Far beyond what a loaded machine needs; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The RPC that carries handles.
pub(crate) const MOVE: RpcId = RpcId::mercury("move");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Sm,
    Tcp,
    Sim,
}

/// The events that a core has reported; tokens are unique in a node.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) requests: Vec<RequestHandle<u32>>,
    pub(crate) responses: Vec<(u32, Result<Response, HgError>)>,
    pub(crate) responded: Vec<(u32, Result<(), HgError>)>,
    pub(crate) bulks: Vec<(u32, Result<u64, HgError>)>,
}

impl Sink<u32> for Log {
    fn request(&mut self, request: RequestHandle<u32>) {
        self.requests.push(request);
    }
    fn response(&mut self, token: u32, result: Result<Response, HgError>) {
        self.responses.push((token, result));
    }
    fn responded(&mut self, token: u32, result: Result<(), HgError>) {
        self.responded.push((token, result));
    }
    fn bulk(&mut self, token: u32, result: Result<u64, HgError>) {
        self.bulks.push((token, result));
    }
}

pub(crate) struct Node {
    pub(crate) core: Arc<Core<u32>>,
    pub(crate) log: Log,
}

impl Node {
    pub(crate) fn open(uri: &str, listen: bool, mut options: HgOptions) -> Self {
        let endpoint = na::open(uri, &OpenOptions::listening(listen)).unwrap();
        options.listen = listen;
        Self::on(endpoint, options)
    }

    pub(crate) fn on(endpoint: Arc<dyn na::Endpoint>, options: HgOptions) -> Self {
        let core = Core::new(endpoint, options).unwrap();
        core.register(Registration::with_id(MOVE, "move")).unwrap();
        Self { core, log: Log::default() }
    }

    /// Takes one turn. Returns whether there was something to do.
    pub(crate) fn turn(&mut self) -> bool {
        let collected = self.core.progress(64).unwrap();
        collected + self.core.trigger(&mut self.log) > 0
    }

    pub(crate) fn addr_of(&self, other: &Node) -> Addr {
        self.core.lookup(other.core.self_addr().uri()).unwrap()
    }

    pub(crate) fn expose(&self, pieces: Vec<Vec<u8>>, access: Access) -> LocalMem {
        self.core.endpoint().register(Memory::from_vecs(pieces), access).unwrap()
    }

    pub(crate) fn call<A: serde::Serialize>(&self, to: &Addr, args: &A, token: u32) {
        let encode = |writer: &mut margo::hg::Writer| proc::to_writer(writer, args);
        self.core.forward(to, MOVE, ForwardOptions::default(), encode, token).unwrap();
    }

    /// Takes the result of a transfer that has ended.
    pub(crate) fn bulk_end(&mut self, token: u32) -> Option<Result<u64, HgError>> {
        let at = self.log.bulks.iter().position(|(ended, _)| *ended == token)?;
        Some(self.log.bulks.remove(at).1)
    }
}

/// Where a test runs.
pub(crate) struct Bed {
    pub(crate) transport: Transport,
    /// Sleep on the wait descriptors when there is nothing to do.
    pub(crate) blocking: bool,
    /// How long something that must happen may take.
    pub(crate) patience: Duration,
    /// Origin, and target unless it is the same; then others.
    pub(crate) nodes: Vec<Node>,
    oneself: bool,
    options: HgOptions,
    network: Option<Network>,
}

impl Bed {
    pub(crate) fn new(transport: Transport, oneself: bool, options: HgOptions) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let network = (transport == Transport::Sim).then(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            Network::builder(format!("bulk-{number}")).seed(number).build().unwrap()
        });
        let (blocking, patience, nodes) = (false, PATIENCE, Vec::new());
        let mut bed = Self { transport, blocking, patience, nodes, oneself, options, network };
        bed.add();
        if !oneself {
            bed.add();
        }
        bed
    }

    /// Opens one more node; returns its number.
    pub(crate) fn add(&mut self) -> usize {
        let uri = match (self.transport, &self.network) {
            (Transport::Sm, _) => "na+sm://".to_owned(),
            (Transport::Tcp, _) => "na+tcp://127.0.0.1:0".to_owned(),
            (Transport::Sim, Some(network)) => format!("na+sim://{}/", network.name()),
            (Transport::Sim, None) => unreachable!("made in `new`"),
        };
        self.nodes.push(Node::open(&uri, true, self.options.clone()));
        self.nodes.len() - 1
    }

    /// The number of the target.
    pub(crate) fn target(&self) -> usize {
        usize::from(!self.oneself)
    }

    /// Turns until `done`, which is asked after each.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut [Node]) -> bool) {
        let deadline = Instant::now() + self.patience;
        while !done(&mut self.nodes) {
            let busy =
                self.nodes.iter_mut().filter_map(|node| node.turn().then_some(())).count() > 0;
            assert!(Instant::now() < deadline, "{what} does not happen");
            if self.blocking && !busy && self.nodes.iter().all(|node| node.core.prepare_wait()) {
                let fds: Vec<BorrowedFd<'_>> =
                    self.nodes.iter().map(|node| node.core.wait_fd().unwrap()).collect();
                let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
                let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
                let woken = rustix::event::poll(&mut fds, Some(&limit)).unwrap();
                assert!(woken > 0, "nobody is woken before {what}");
            }
        }
    }

    /// Calls node `to` with `args`; the request there.
    pub(crate) fn deliver<A: serde::Serialize>(
        &mut self,
        from: usize,
        to: usize,
        args: &A,
        token: u32,
    ) -> RequestHandle<u32> {
        let peer = self.nodes[from].addr_of(&self.nodes[to]);
        self.nodes[from].call(&peer, args, token);
        self.until("the arrival of a request", |nodes| !nodes[to].log.requests.is_empty());
        self.nodes[to].log.requests.remove(0)
    }

    /// Runs a transfer of node `at` to its end.
    pub(crate) fn transfer(&mut self, at: usize, mover: &Mover<'_>) -> Result<u64, HgError> {
        let Mover { op, bulk, remote_offset, local, local_offset, len, owner } = *mover;
        let core = &self.nodes[at].core;
        let started = core.transfer(op, owner, bulk, remote_offset, local, local_offset, len, 77);
        started.map_err(|refused| refused.0)?;
        let mut end = None;
        self.until("the end of a transfer", |nodes| {
            end = nodes[at].bulk_end(77);
            end.is_some()
        });
        end.unwrap()
    }

    /// Answers, and waits until the caller knows.
    pub(crate) fn answer(&mut self, request: RequestHandle<u32>, caller: usize) {
        let sent = request.respond(|_writer| Ok(()), 99).unwrap();
        self.until("a response", |nodes| !nodes[caller].log.responses.is_empty());
        self.nodes[caller].log.responses.remove(0).1.unwrap();
        if matches!(sent, Sent::Done(_)) {
            return;
        }
        self.until("the end of an answer", |nodes| {
            nodes.iter().any(|node| !node.log.responded.is_empty())
        });
        for (_, result) in self.nodes.iter_mut().flat_map(|node| node.log.responded.drain(..)) {
            result.unwrap();
        }
    }

    /// Takes memory back, and waits until nobody holds it.
    pub(crate) fn release(&mut self, memory: LocalMem) -> Vec<Vec<u8>> {
        let (sender, receiver) = mpsc::channel();
        memory.revoke(move |memory| sender.send(memory).unwrap());
        let mut back = None;
        self.until("the return of memory", |_| {
            back = back.take().or(receiver.try_recv().ok());
            back.is_some()
        });
        back.unwrap().into_owner().unwrap()
    }

    /// Ends the nodes and checks that nothing is left over.
    pub(crate) fn end(mut self) {
        self.until("the end of all operations", |nodes| {
            nodes.iter().all(|node| node.core.in_flight() == 0)
        });
        for node in &self.nodes {
            assert_eq!(node.core.counters().malformed, 0);
            node.core.close();
        }
    }
}

/// A transfer.
#[derive(Clone, Copy)]
pub(crate) struct Mover<'a> {
    pub(crate) op: BulkOp,
    pub(crate) bulk: &'a Bulk,
    pub(crate) remote_offset: u64,
    pub(crate) local: &'a LocalMem,
    pub(crate) local_offset: u64,
    pub(crate) len: u64,
    /// `None`: as the handle says.
    pub(crate) owner: Option<&'a Addr>,
}

pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    // It repeats; to make each byte by itself takes seconds where nothing is optimised.
    let period: Vec<_> = (0..251).map(|at| ((at + seed) * 7 % 251) as u8).collect();
    let mut bytes = period.repeat(len.div_ceil(251));
    bytes.truncate(len);
    bytes
}

/// Returns whether all bytes are this one.
pub(crate) fn is_filled(bytes: &[u8], with: u8) -> bool {
    bytes == vec![with; bytes.len()]
}

/// `bytes` in `pieces` of about the same length.
pub(crate) fn cut(bytes: &[u8], pieces: usize) -> Vec<Vec<u8>> {
    let ends: Vec<_> = (0..=pieces).map(|piece| bytes.len() * piece / pieces).collect();
    ends.windows(2).map(|ends| bytes[ends[0]..ends[1]].to_vec()).collect()
}

pub(crate) fn contents(memory: &LocalMem) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    assert!(memory.read_at(0, &mut bytes));
    bytes
}
