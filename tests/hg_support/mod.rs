//! Nodes of the RPC core for the acceptance cases: a target that serves, an origin that calls, over
//! any transport, polling or sleeping, remote or themselves.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    missing_docs,
    unreachable_pub,
    reason = "a test"
)]
#![allow(dead_code, reason = "each test program uses a part")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use margo::hg::{
    Core, ForwardOptions, HgError, HgOptions, OpRef, ProcError, Registration, RequestHandle,
    Response, ReturnCode, RpcId, Sink, Writer, proc,
};
use na::{Addr, OpenOptions};

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
pub const FINISH: RpcId = RpcId::mercury("finish");

/// Where the end of an operation is noted.
#[derive(Debug, Default)]
pub struct Slot(Mutex<Option<Result<Vec<u8>, HgError>>>);

pub type Token = Arc<Slot>;
pub type Node = Arc<Core<Token>>;

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

/// What a target does with requests, and what it remembers.
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
                let id = request.context_id();
                answer(request, |writer| writer.put(&[id]));
            }
            SIZE => {
                let size = request.payload_bytes() as u64;
                answer(request, |writer| writer.put(&size.to_le_bytes()));
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

/// Answers; who asked may be gone.
pub fn answer(
    request: RequestHandle<Token>,
    encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>,
) {
    let _ = request.respond(encode, Token::default());
}

/// Registers what both sides know.
pub fn register(core: &Node, serves: bool) {
    let two_way = ["null", "open", "echo", "make", "stuck", "where", "size", "finish"];
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
    let done = core.poll(64, &mut Handlers(service)).unwrap();
    if done > 0 {
        return;
    }
    let Some(fd) = core.wait_fd().filter(|_| wait == Wait::Sleep) else {
        std::thread::yield_now();
        return;
    };
    if core.prepare_wait() {
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let woken = rustix::event::poll(&mut fds, Some(&limit)).unwrap();
        assert!(woken > 0, "slept through everything");
    }
}

pub fn open(uri: &str, listen: bool, options: HgOptions) -> Node {
    let endpoint = na::open(uri, &OpenOptions::listening(listen)).unwrap();
    Core::new(endpoint, options).unwrap()
}

/// A new URI of that transport.
pub fn uri(transport: &str, listen: bool) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    match (transport, listen) {
        ("tcp", true) => "na+tcp://127.0.0.1:0".into(),
        // All in one network, so that they can meet.
        ("sim", _) => format!("na+sim://cases/n{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        (transport, _) => format!("na+{transport}://"),
    }
}

/// Origin, target and how to reach it. The target of a remote pair runs in threads of its own.
pub struct World {
    pub transport: &'static str,
    pub wait: Wait,
    pub origin: Node,
    pub to: Addr,
    pub service: Arc<Service>,
    threads: Vec<JoinHandle<()>>,
    target: Option<Node>,
}

pub const TRANSPORTS: [&str; 3] = ["sm", "tcp", "sim"];

impl World {
    /// The target of a remote pair.
    pub fn target(&self) -> Node {
        self.target.clone().unwrap()
    }

    pub fn is_remote(&self) -> bool {
        self.target.is_some()
    }

    pub fn remote(transport: &'static str, wait: Wait, options: &HgOptions) -> Self {
        let service = Arc::new(Service::default());
        let target = open(&uri(transport, true), true, options.clone());
        register(&target, true);
        let mut contexts = vec![target.clone()];
        for _ in 1..options.max_contexts {
            contexts.push(target.context().unwrap());
        }
        let threads = contexts
            .into_iter()
            .map(|context| {
                let service = service.clone();
                std::thread::spawn(move || {
                    while !service.finished.load(Ordering::Relaxed) || context.in_hand().tokens > 0
                    {
                        step(&context, wait, &service);
                    }
                })
            })
            .collect();
        let mut options = options.clone();
        options.listen = false;
        let origin = open(&uri(transport, false), false, options);
        register(&origin, false);
        let to = origin.lookup(target.self_addr().uri()).unwrap();
        Self { transport, wait, origin, to, service, threads, target: Some(target) }
    }

    pub fn own(transport: &'static str, wait: Wait, options: &HgOptions) -> Self {
        let origin = open(&uri(transport, true), true, options.clone());
        register(&origin, true);
        let to = origin.self_addr();
        let service = Arc::default();
        Self { transport, wait, origin, to, service, threads: Vec::new(), target: None }
    }

    pub fn start(&self, id: RpcId, options: ForwardOptions, bytes: &[u8]) -> (Token, OpRef) {
        let token = Token::default();
        let started =
            self.origin.forward(&self.to, id, options, |writer| writer.put(bytes), token.clone());
        let op = started.map_err(|(error, _)| error).unwrap();
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

    /// Ends the target, and finds that nothing is left at either side.
    pub fn finish(mut self) {
        self.call(FINISH, &[]).unwrap();
        for core in self.target.iter().chain([&self.origin]) {
            core.close();
        }
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        for core in self.target.iter().chain([&self.origin]) {
            let start = Instant::now();
            loop {
                let hand = core.in_hand();
                if (hand.operations, hand.tokens, hand.requests_held) == (0, 0, 0) {
                    break;
                }
                core.poll(64, &mut Handlers(&self.service)).unwrap();
                assert!(start.elapsed() < PATIENCE, "left over: {hand:?}");
            }
        }
    }
}

/// Runs a case over every transport, remote and themselves, polling and sleeping.
pub fn everywhere(body: impl Fn(&World)) {
    everywhere_with(&HgOptions::default(), body);
}

/// As [`everywhere`], with such options.
pub fn everywhere_with(options: &HgOptions, body: impl Fn(&World)) {
    for transport in TRANSPORTS {
        for wait in [Wait::Poll, Wait::Sleep] {
            for make in [World::remote, World::own] {
                let world = make(transport, wait, options);
                body(&world);
                world.finish();
            }
        }
    }
}

/// As [`everywhere`], between two nodes only.
pub fn everywhere_remote(options: &HgOptions, body: impl Fn(&World)) {
    for transport in TRANSPORTS {
        for wait in [Wait::Poll, Wait::Sleep] {
            let world = World::remote(transport, wait, options);
            body(&world);
            world.finish();
        }
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

pub fn is_remote_code(result: &Result<Vec<u8>, HgError>, code: ReturnCode) -> bool {
    matches!(result, Err(HgError::Remote(found)) if *found == code)
}
