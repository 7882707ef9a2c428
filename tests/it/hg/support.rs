//! Nodes of the RPC core for the acceptance cases: a target that serves, an origin that calls, over
//! any transport (libfabric and UCX where they are asked for), polling or sleeping, to another node
//! of the process, to one of another process, or to themselves; and between nodes of four shards.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    missing_docs,
    unreachable_pub,
    reason = "a test"
)]

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use margo::hg::{
    Core, ForwardOptions, HgError, HgOptions, OpRef, ProcError, Registration, RequestHandle,
    Response, ReturnCode, RpcId, Sink, Writer, proc,
};
use na::{Addr, OpenOptions};

use crate::common::process;

/// Generous: a loaded machine must not fail a test.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub const NULL: RpcId = RpcId::mercury("null");
pub const OPEN: RpcId = RpcId::mercury("open");
pub const ECHO: RpcId = RpcId::mercury("echo");
pub const MAKE: RpcId = RpcId::mercury("make");
pub const NEWS: RpcId = RpcId::mercury("news");
pub const STUCK: RpcId = RpcId::mercury("stuck");
pub const WHERE: RpcId = RpcId::mercury("where");
pub const SIZE: RpcId = RpcId::mercury("size");
pub const CLIENT_ONLY: RpcId = RpcId::mercury("client only");
/// Answers with the counts of the target: see [`World::seen`].
pub const SEEN: RpcId = RpcId::mercury("seen");
/// Drops the requests that the target holds.
pub const DROP_HELD: RpcId = RpcId::mercury("drop held");
pub const FINISH: RpcId = RpcId::mercury("finish");

/// Where the end of an operation is noted.
#[derive(Debug, Default)]
pub struct Slot(Mutex<Option<Result<Vec<u8>, HgError>>>);

pub type Token = Arc<Slot>;

/// A core, or the last shard of a group, with the other shards in tow.
#[derive(Debug, Clone)]
pub struct Node {
    core: Arc<Core<Token>>,
    others: Vec<Arc<Core<Token>>>,
}

impl From<Vec<Arc<Core<Token>>>> for Node {
    fn from(mut others: Vec<Arc<Core<Token>>>) -> Self {
        Self { core: others.pop().unwrap(), others }
    }
}

impl Deref for Node {
    type Target = Arc<Core<Token>>;

    fn deref(&self) -> &Self::Target {
        &self.core
    }
}

impl Node {
    /// All of its shards.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<Core<Token>>> {
        self.others.iter().chain([&self.core])
    }

    fn poll_all(&self, sink: &mut Handlers<'_>) -> usize {
        self.shards().map(|shard| shard.poll(64, sink).unwrap()).sum()
    }
}

impl Slot {
    pub fn is_over(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    pub fn take(&self) -> Result<Vec<u8>, HgError> {
        self.0.lock().unwrap().take().expect("the operation has ended")
    }

    fn set(&self, result: Result<Vec<u8>, HgError>) {
        let before = self.0.lock().unwrap().replace(result);
        assert!(before.is_none(), "an operation ended twice");
    }
}

/// The service of a target: the requests that it holds, and what it has counted.
#[derive(Debug, Default)]
pub struct Service {
    pub news: AtomicU64,
    pub held: Mutex<Vec<RequestHandle<Token>>>,
    pub finished: AtomicBool,
}

pub struct Handlers<'a>(pub &'a Service);

impl Sink<Token> for Handlers<'_> {
    fn request(&mut self, mut request: RequestHandle<Token>) {
        let input = request.input(<[u8]>::to_vec);
        assert_eq!(request.payload_bytes(), input.len());
        match request.id() {
            NULL => answer(request, |_| Ok(())),
            OPEN => {
                let (cookie, path): (u64, String) = proc::from_slice(&input).unwrap();
                let out = (path.len() as i32, cookie as i32);
                answer(request, |writer| proc::to_writer(writer, &out));
            }
            ECHO => answer(request, |writer| writer.put(&input)),
            MAKE => {
                let text = "x".repeat(u64::from_le_bytes(input[..].try_into().unwrap()) as usize);
                answer(request, |writer| proc::to_writer(writer, &(text, 7u64)));
            }
            NEWS => {
                assert!(request.is_one_way());
                self.0.news.fetch_add(1 + input.len() as u64, Ordering::Relaxed);
            }
            STUCK => self.0.held.lock().unwrap().push(request),
            WHERE => {
                let id = request.shard();
                answer(request, |writer| writer.put(&[id]));
            }
            SIZE => {
                let size = request.payload_bytes() as u64;
                answer(request, |writer| writer.put(&size.to_le_bytes()));
            }
            SEEN => {
                let held = self.0.held.lock().unwrap().len() as u64;
                let seen = (self.0.news.load(Ordering::Relaxed), held);
                answer(request, |writer| proc::to_writer(writer, &seen));
            }
            DROP_HELD => {
                let held = std::mem::take(&mut *self.0.held.lock().unwrap());
                drop(held);
                answer(request, |_| Ok(()));
            }
            FINISH => {
                self.0.held.lock().unwrap().clear();
                self.0.finished.store(true, Ordering::Relaxed);
                answer(request, |_| Ok(()));
            }
            id => panic!("{id} is not registered"),
        }
    }

    fn response(&mut self, token: Token, result: Result<Response, HgError>) {
        token.set(result.map(|response| response.payload().to_vec()));
    }

    fn responded(&mut self, token: Token, result: Result<(), HgError>) {
        token.set(result.map(|()| Vec::new()));
    }

    fn bulk(&mut self, token: Token, result: Result<u64, HgError>) {
        token.set(result.map(|_| Vec::new()));
    }
}

/// Answers; the origin may be gone.
pub fn answer(
    request: RequestHandle<Token>,
    encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
) {
    let _ = request.respond(encode, Token::default());
}

/// Registers what both sides know.
pub fn register(core: &Node, serves: bool) {
    let two_way = ["null", "open", "echo", "make", "stuck", "where", "size"];
    let two_way = two_way.into_iter().chain(["seen", "drop held", "finish"]);
    for name in two_way {
        core.register(Registration::mercury(name)).unwrap();
    }
    core.register(Registration::mercury("news").no_response()).unwrap();
    if !serves {
        core.register(Registration::mercury("client only").client_only()).unwrap();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Poll,
    Sleep,
}

/// One step of a node; sleeps if there is nothing to do and it may.
pub fn step(core: &Node, wait: Wait, service: &Service) {
    if core.poll_all(&mut Handlers(service)) > 0 {
        return;
    }
    let fds: Option<Vec<_>> = core.shards().map(|shard| shard.wait_fd()).collect();
    let Some(fds) = fds.filter(|_| wait == Wait::Sleep) else {
        std::thread::yield_now();
        return;
    };
    if core.shards().all(|shard| shard.prepare_wait()) {
        let in_fd = |fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN);
        let mut fds: Vec<_> = fds.iter().map(in_fd).collect();
        let limit = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let woken = rustix::event::poll(&mut fds, Some(&limit)).unwrap();
        assert!(woken > 0, "slept through everything");
    }
}

pub fn open(uri: &str, listen: bool, options: HgOptions) -> Node {
    let (uri, shards) = uri.strip_suffix(SHARDED).map_or((uri, 1), |uri| (uri, 4));
    let open = || na::open_group(uri, &OpenOptions::listening(listen), shards);
    let endpoints = na::conformance::open_again(open);
    Core::group(endpoints, options).unwrap().into()
}

/// A new URI of that transport.
pub fn uri(transport: &str, listen: bool) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if let Some(transport) = transport.strip_suffix(SHARDED) {
        return uri(transport, listen) + SHARDED;
    }
    match (transport, listen) {
        ("tcp", true) => "na+tcp://127.0.0.1:0".into(),
        // All in one network, so that they can meet.
        ("sim", _) => format!("na+sim://cases/n{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        ("ofi+shm", _) => "ofi+shm://".into(),
        // Both on loopback: of several devices the first need not reach it.
        (fabric, _) if fabric.contains('+') => format!("{fabric}://127.0.0.1:0"),
        (transport, _) => format!("na+{transport}://"),
    }
}

/// Origin, target and how to reach it. The target of a remote pair runs in a thread of its own, or
/// in another process.
pub struct World {
    pub wait: Wait,
    pub origin: Node,
    pub to: Addr,
    pub service: Arc<Service>,
    target: Target,
}

enum Target {
    Own,
    Thread(Node, JoinHandle<()>),
    Process(process::Service),
}

pub const TRANSPORTS: [&str; 3] = ["sm", "tcp", "sim"];

/// The end of a transport, and of its URIs, whose nodes have several shards.
const SHARDED: &str = " of shards";

/// Tried within this process, asleep.
const OF_SHARDS: [&str; 3] = ["sm of shards", "tcp of shards", "sim of shards"];

/// Transports between processes.
pub const BETWEEN_PROCESSES: [&str; 2] = ["sm", "tcp"];

/// Fabrics that are tried as well, in one process and between two, where a variable asks for their
/// library.
const FABRICS: [(&str, &str); 4] = [
    ("MARGO_TEST_OFI", "ofi+tcp;ofi_rxm"),
    ("MARGO_TEST_OFI", "ofi+shm"),
    ("MARGO_TEST_UCX", "ucx+tcp"),
    ("MARGO_TEST_UCX", "ucx+sm"),
];

/// Yields the fabrics that are asked for.
pub fn fabrics() -> impl Iterator<Item = &'static str> {
    let asked = |(variable, _): &(&str, &str)| std::env::var_os(variable).is_some();
    FABRICS.into_iter().filter(asked).map(|(_, fabric)| fabric)
}

/// The target of a remote pair, and the thread that serves it until it is told to finish.
fn serve(
    transport: &str,
    wait: Wait,
    options: &HgOptions,
    service: &Arc<Service>,
) -> (Node, JoinHandle<()>) {
    let target = open(&uri(transport, true), true, options.clone());
    register(&target, true);
    let (service, served) = (service.clone(), target.clone());
    let thread = std::thread::spawn(move || {
        while !service.finished.load(Ordering::Relaxed) || served.in_hand().tokens > 0 {
            step(&served, wait, &service);
        }
    });
    (target, thread)
}

/// Waits until nothing is left at a node that was closed.
pub fn drain(core: &Node, service: &Service) {
    let start = Instant::now();
    loop {
        let hand = core.in_hand();
        if (hand.operations, hand.tokens, hand.requests_held) == (0, 0, 0) {
            break;
        }
        core.poll_all(&mut Handlers(service));
        assert!(start.elapsed() < PATIENCE, "left over: {hand:?}");
    }
}

/// Tells a target in another process its transport, whether it sleeps, and the options that the
/// cases set.
const TARGET: &str = "MARGO_TEST_HG_TARGET";

fn told(transport: &str, wait: Wait, options: &HgOptions) -> String {
    let HgOptions { overflow, overflow_bytes_max, .. } = options;
    let sleeps = wait == Wait::Sleep;
    format!("{transport} {sleeps} {overflow} {overflow_bytes_max}")
}

/// Not a test of its own: the target of the cases, in a process of its own.
#[test]
fn service_process() {
    let Some(asked) = process::asked(TARGET) else { return };
    let words: Vec<_> = asked.split(' ').collect();
    let [transport, sleeps, overflow, overflow_bytes_max] = words[..] else { panic!("{asked}") };
    let wait = if sleeps == "true" { Wait::Sleep } else { Wait::Poll };
    let mut options = HgOptions::default();
    options.overflow = overflow.parse().unwrap();
    options.overflow_bytes_max = overflow_bytes_max.parse().unwrap();
    let service = Arc::default();
    let (target, thread) = serve(transport, wait, &options, &service);
    process::say(&format!("listening on {}", target.self_addr().uri()));
    thread.join().unwrap();
    target.close();
    drain(&target, &service);
}

impl World {
    /// The target of a remote pair within this process.
    pub fn target(&self) -> Node {
        match &self.target {
            Target::Thread(target, _) => target.clone(),
            Target::Own => self.origin.clone(),
            Target::Process(_) => panic!("it is in another process"),
        }
    }

    pub fn is_remote(&self) -> bool {
        !matches!(self.target, Target::Own)
    }

    fn towards(
        transport: &'static str,
        wait: Wait,
        options: &HgOptions,
        service: Arc<Service>,
        (target, address): (Target, &str),
    ) -> Self {
        let mut options = options.clone();
        options.listen = false;
        let origin = open(&uri(transport, false), false, options);
        register(&origin, false);
        let to = origin.lookup(address).unwrap();
        Self { wait, origin, to, service, target }
    }

    pub fn remote(transport: &'static str, wait: Wait, options: &HgOptions) -> Self {
        let service = Arc::default();
        let (target, thread) = serve(transport, wait, options, &service);
        let own = target.self_addr();
        let target = (Target::Thread(target, thread), own.uri());
        Self::towards(transport, wait, options, service, target)
    }

    /// Makes a world with the target in another process.
    pub fn two_processes(transport: &'static str, wait: Wait, options: &HgOptions) -> Self {
        let other =
            process::Service::start_with(module_path!(), TARGET, &told(transport, wait, options));
        let address = other.address.clone();
        let target = (Target::Process(other), &address[..]);
        Self::towards(transport, wait, options, Arc::default(), target)
    }

    pub fn own(transport: &'static str, wait: Wait, options: &HgOptions) -> Self {
        let origin = open(&uri(transport, true), true, options.clone());
        register(&origin, true);
        let to = origin.self_addr();
        let service = Arc::default();
        Self { wait, origin, to, service, target: Target::Own }
    }

    pub fn start(&self, id: RpcId, options: ForwardOptions, bytes: &[u8]) -> (Token, OpRef) {
        let token = Token::default();
        let started =
            self.origin.forward(&self.to, id, options, |writer| writer.put(bytes), token.clone());
        let op = started.map_err(|refused| refused.0).unwrap();
        (token, op)
    }

    pub fn until(&self, what: &str, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            step(&self.origin, self.wait, &self.service);
            assert!(start.elapsed() < PATIENCE, "{what}: does not happen");
        }
    }

    pub fn call(&self, id: RpcId, bytes: &[u8]) -> Result<Vec<u8>, HgError> {
        let (token, _) = self.start(id, ForwardOptions::default(), bytes);
        self.until("a response", || token.is_over());
        token.take()
    }

    /// News that the target has seen, and requests that it holds.
    pub fn seen(&self) -> (u64, u64) {
        proc::from_slice(&self.call(SEEN, &[]).unwrap()).unwrap()
    }

    /// Ends the target, and finds that nothing is left at either side.
    pub fn finish(self) {
        self.call(FINISH, &[]).unwrap();
        self.origin.close();
        match self.target {
            Target::Own => {}
            Target::Thread(target, thread) => {
                target.close();
                thread.join().unwrap();
                drain(&target, &self.service);
            }
            Target::Process(mut other) => assert!(other.wait(), "the target has failed"),
        }
        drain(&self.origin, &self.service);
    }
}

type Make = fn(&'static str, Wait, &HgOptions) -> World;

/// Every pair: transport, and how the target is there.
pub fn remote_pairs() -> impl Iterator<Item = (&'static str, Make)> {
    let within = TRANSPORTS.into_iter().chain(OF_SHARDS).chain(fabrics());
    let between = BETWEEN_PROCESSES.into_iter().chain(fabrics());
    within
        .map(|transport| (transport, World::remote as Make))
        .chain(between.map(|transport| (transport, World::two_processes as Make)))
}

/// Every remote pair, and each node with itself.
pub fn pairs() -> impl Iterator<Item = (&'static str, Make)> {
    let own = TRANSPORTS.into_iter().chain(fabrics());
    let own = own.map(|transport| (transport, World::own as Make));
    remote_pairs().chain(own)
}

fn on(
    pairs: impl Iterator<Item = (&'static str, Make)>,
    options: &HgOptions,
    body: impl Fn(&World),
) {
    for (transport, make) in pairs {
        let waits = [Wait::Poll, Wait::Sleep].into_iter();
        for wait in waits.skip(usize::from(transport.ends_with(SHARDED))) {
            let world = make(transport, wait, options);
            body(&world);
            world.finish();
        }
    }
}

/// Runs a case over every transport: with a target in this process and in another, and with
/// themselves, polling and sleeping.
pub fn everywhere(body: impl Fn(&World)) {
    everywhere_with(&HgOptions::default(), body);
}

/// As [`everywhere`], with such options.
pub fn everywhere_with(options: &HgOptions, body: impl Fn(&World)) {
    on(pairs(), options, body);
}

/// As [`everywhere`], between two nodes only.
pub fn everywhere_remote(options: &HgOptions, body: impl Fn(&World)) {
    on(remote_pairs(), options, body);
}

/// As [`everywhere`], in this process only: the body looks into the target.
pub fn in_this_process(body: impl Fn(&World)) {
    let makes = [World::remote as Make, World::own];
    let transports = TRANSPORTS.into_iter().chain(fabrics());
    let pairs = transports.flat_map(|transport| makes.map(|make| (transport, make)));
    on(pairs, &HgOptions::default(), body);
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

pub fn is_remote_code(result: &Result<Vec<u8>, HgError>, code: ReturnCode) -> bool {
    matches!(result, Err(HgError::Remote(found)) if *found == code)
}
