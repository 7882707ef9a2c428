//! The core over endpoints within one thread: every step is taken by the test.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use na::{Access, Addr, Endpoint, LocalMem, Memory};

use self::net::{Net, NodeEndpoint};
use super::{
    CallKey, Core, ForwardOptions, HgError, HgOptions, OpRef, Registration, RequestHandle,
    Response, ReturnCode, RpcId, Sent, Sink,
};

mod at_once;
mod bulk;
mod bulk_safety;
mod calls;
mod checksums;
mod contact;
mod endings;
mod extension;
mod headers;
mod hostile;
mod membership;
mod net;
mod options;
mod overflow;
mod releases;
mod shards;
mod slots;
mod too_long;

/// Generous: a loaded machine must not fail a test.
const PATIENCE: Duration = Duration::from_secs(60);

const SUM: RpcId = RpcId::mercury("sum");

/// Remembers what it is told; a token that comes back twice fails the test.
#[derive(Debug, Default)]
struct Notes {
    requests: Vec<RequestHandle<u32>>,
    responses: HashMap<u32, Result<Vec<u8>, HgError>>,
    responded: HashMap<u32, Result<(), HgError>>,
    bulks: HashMap<u32, Result<u64, HgError>>,
    canceled: Vec<(Addr, CallKey)>,
    unread: Vec<(Addr, CallKey)>,
    gone: Vec<Addr>,
}

impl Sink<u32> for Notes {
    fn request(&mut self, request: RequestHandle<u32>) {
        self.requests.push(request);
    }

    fn response(&mut self, token: u32, result: Result<Response, HgError>) {
        let result = result.map(|response| response.payload().to_vec());
        assert!(self.responses.insert(token, result).is_none(), "call {token} ended twice");
    }

    fn responded(&mut self, token: u32, result: Result<(), HgError>) {
        assert!(self.responded.insert(token, result).is_none(), "answer {token} ended twice");
    }

    fn canceled(&mut self, origin: &Addr, call: CallKey) {
        self.canceled.push((origin.clone(), call));
    }

    fn answer_unread(&mut self, origin: &Addr, call: CallKey) {
        self.unread.push((origin.clone(), call));
    }

    fn peer_gone(&mut self, peer: &Addr) {
        self.gone.push(peer.clone());
    }

    fn bulk(&mut self, token: u32, result: Result<u64, HgError>) {
        assert!(self.bulks.insert(token, result).is_none(), "transfer {token} ended twice");
    }
}

/// A core, its endpoint, and what it told.
struct Side {
    core: Arc<Core<u32>>,
    endpoint: Arc<NodeEndpoint>,
    notes: Notes,
}

impl Side {
    fn new(net: &Net, options: HgOptions) -> Self {
        let endpoint = net.node();
        let core = Core::new(endpoint.clone(), options).expect("a core");
        core.register(Registration::mercury("sum")).expect("a new RPC");
        Self { core, endpoint, notes: Notes::default() }
    }

    /// The shards of a group.
    fn group(net: &Net, shards: usize, options: HgOptions) -> Vec<Self> {
        let endpoints = net.group(shards);
        let of_core = endpoints.iter().map(|one| one.clone() as Arc<dyn Endpoint>).collect();
        let cores = Core::group(of_core, options).expect("cores");
        cores[0].register(Registration::mercury("sum")).expect("a new RPC");
        let side = |(core, endpoint)| Self { core, endpoint, notes: Notes::default() };
        cores.into_iter().zip(endpoints).map(side).collect()
    }

    fn step(&mut self) -> usize {
        let collected = self.core.progress(16).expect("progress");
        collected + self.core.trigger(&mut self.notes)
    }

    /// Receives for requests: those posted in the network, and those to be posted with others.
    fn receives(&self) -> usize {
        let receives = &self.core.collected_state().receives;
        assert_eq!(receives.posted, self.endpoint.posted().0);
        receives.posted + receives.owed
    }

    fn addr_of(&self, other: &Side) -> Addr {
        self.core.lookup(other.core.self_addr().uri()).expect("a node of the test")
    }

    fn call(&self, to: &Side, payload: &[u8], token: u32) -> OpRef {
        self.call_with(to, ForwardOptions::default(), payload, token)
    }

    fn call_with(&self, to: &Side, options: ForwardOptions, payload: &[u8], token: u32) -> OpRef {
        let to = self.addr_of(to);
        let started = self.core.forward(&to, SUM, options, |writer| writer.put(payload), token);
        started.map_err(|refused| refused.0).expect("forward")
    }

    fn expose(&self, bytes: Vec<u8>, access: Access) -> LocalMem {
        self.endpoint.register(Memory::from_vec(bytes), access).expect("register")
    }

    fn expose_all(&self, pieces: Vec<Vec<u8>>, access: Access) -> LocalMem {
        self.endpoint.register(Memory::from_vecs(pieces), access).expect("register")
    }
}

/// Two cores that know each other: origin and target.
fn pair() -> (Side, Side) {
    pair_with(HgOptions::default())
}

fn pair_with(options: HgOptions) -> (Side, Side) {
    let net = Net::default();
    (Side::new(&net, options.clone()), Side::new(&net, options))
}

/// Steps both sides until `done`.
fn drive(origin: &mut Side, target: &mut Side, what: &str, done: impl Fn(&Side, &Side) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done(origin, target) {
        origin.step();
        target.step();
        assert!(Instant::now() < deadline, "{what} does not happen");
    }
}

/// Steps both sides until nothing happens any more.
fn settle(origin: &mut Side, target: &mut Side) {
    while origin.step() + target.step() > 0 {}
}

/// Waits for a request at `target`.
fn arrive(origin: &mut Side, target: &mut Side) -> RequestHandle<u32> {
    drive(origin, target, "the arrival of a request", |_, target| {
        !target.notes.requests.is_empty()
    });
    target.notes.requests.remove(0)
}

/// Answers over the network of these tests, which never takes an answer at once.
fn answer(request: RequestHandle<u32>, payload: &[u8], token: u32) -> OpRef {
    match request.respond(|writer| writer.put(payload), token).map_err(|failed| failed.0) {
        Ok(Sent::InFlight(op)) => op,
        other => panic!("{other:?}"),
    }
}

/// Answers a call to ourselves.
fn answer_oneself(request: RequestHandle<u32>, payload: &[u8]) {
    let sent = request.respond(|writer| writer.put(payload), 0).map_err(|failed| failed.0);
    assert!(matches!(sent, Ok(Sent::Done(0))), "{sent:?}");
}

fn ended(side: &mut Side, token: u32) -> Result<Vec<u8>, HgError> {
    side.notes.responses.remove(&token).expect("the call has ended")
}

fn read(memory: &LocalMem) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    assert!(memory.read_at(0, &mut bytes));
    bytes
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}
