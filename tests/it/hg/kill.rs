//! Case 32: a side that dies, in every phase of an RPC. The other side is told in bounded time, its
//! buffers come back, and what it has in hand returns to zero. In the simulated network by seed and
//! after every event; over sm and tcp, and over libfabric and UCX where they are asked for
//! (`MARGO_TEST_OFI=1`, `MARGO_TEST_UCX=1`), by killing a process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::support::*;
use crate::common::process::{self, say};
use margo::hg::{Core, ForwardOptions, HgError, HgOptions, OpRef, Registration, RpcId, Sent};
use na::sim::{Drive, LinkOptions, Network};
use na::{Addr, OpenOptions};

/// Returns whether nothing but posted receives is left in hand.
fn is_idle(core: &Node) -> bool {
    let hand = core.in_hand();
    (hand.operations, hand.tokens, hand.requests_held) == (0, 0, 0)
}

fn start(core: &Node, to: &Addr, id: RpcId, options: ForwardOptions, bytes: &[u8]) -> Token {
    begin(core, to, id, options, bytes).0
}

/// Starts a call and returns, beside its token, the reference that cancels it.
fn begin(
    core: &Node,
    to: &Addr,
    id: RpcId,
    options: ForwardOptions,
    bytes: &[u8],
) -> (Token, OpRef) {
    let token = Token::default();
    let put = |writer: &mut margo::hg::Writer| writer.put(bytes);
    match core.forward(to, id, options, put, token.clone()) {
        Ok(op) => (token, op),
        Err(refused) => panic!("{}", refused.0),
    }
}

/// The calls of one run: short and long in both directions, one-way, and one that is held.
fn calls(core: &Node, to: &Addr) -> Vec<Token> {
    let long = pattern(20_000);
    let two_way = ForwardOptions::default();
    vec![
        start(core, to, ECHO, two_way, b"short"),
        start(core, to, ECHO, two_way, &long),
        start(core, to, SIZE, two_way, &long),
        start(core, to, MAKE, two_way, &20_000u64.to_le_bytes()),
        start(core, to, NEWS, ForwardOptions::one_way(), &long),
        start(core, to, STUCK, two_way, b"held"),
    ]
}

struct Simulated {
    network: Network,
    nodes: [Node; 2],
    services: [Service; 2],
}

impl Simulated {
    fn new(seed: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("kill-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let link = LinkOptions::unreliable(if seed == 0 { 0.0 } else { 0.1 });
        let network =
            Network::builder(name).seed(seed).link(link).drive(Drive::Manual).build().unwrap();
        let nodes = ["origin", "target"].map(|name| {
            // One shard, or three.
            let shards = 1 + 2 * (seed as usize % 2);
            let options = OpenOptions::listening(true);
            let endpoints = network.open_group(name, &options, shards).unwrap();
            let core = Node::from(Core::group(endpoints, HgOptions::default()).unwrap());
            register(&core, true);
            core
        });
        Self { network, nodes, services: Default::default() }
    }

    /// Acts on all that can be acted on at this time.
    fn act(&self) {
        loop {
            let mut done = 0;
            for (core, service) in self.nodes.iter().zip(&self.services) {
                // The one that crashed says so once.
                let polled = core.shards().map(|shard| shard.poll(64, &mut Handlers(service)));
                done += polled.map(|done| done.unwrap_or(0)).sum::<usize>();
            }
            if done == 0 {
                return;
            }
        }
    }

    /// Runs at most so many events; returns how many there were.
    fn run(&self, events: u64) -> u64 {
        for event in 0..events {
            self.act();
            if !self.network.step() {
                return event;
            }
        }
        events
    }
}

/// Runs the calls with `victim` crashed after every possible number of events.
fn crash_in_every_phase(victim: &str) {
    const ENOUGH: u64 = 1_000_000;
    for seed in 0..4 {
        let quiet = Simulated::new(seed);
        let to = quiet.nodes[0].lookup(quiet.nodes[1].self_addr().uri()).unwrap();
        let tokens = calls(&quiet.nodes[0], &to);
        let events = quiet.run(ENOUGH);
        assert!(events > 20, "{events} events");
        assert_eq!(tokens.iter().filter(|token| token.is_over()).count(), 5, "all but the held");
        for after in 0..=events {
            let world = Simulated::new(seed);
            let _explain = world.network.trace_on_panic(60);
            let to = world.nodes[0].lookup(world.nodes[1].self_addr().uri()).unwrap();
            let tokens = calls(&world.nodes[0], &to);
            world.run(after);
            world.network.crash(victim);
            world.run(ENOUGH);
            // Requests in the hands of handlers are answered, or dropped, when they like.
            for service in &world.services {
                let held = std::mem::take(&mut *service.held.lock().unwrap());
                held.into_iter().for_each(|request| answer(request, |writer| writer.put(b"late")));
            }
            world.run(ENOUGH);
            for (n, token) in tokens.iter().enumerate() {
                assert!(token.is_over(), "call {n} hangs: seed {seed}, after {after}");
                let end = token.take();
                let told = matches!(end, Ok(_) | Err(HgError::Na(_) | HgError::Closed));
                assert!(told, "call {n}: {end:?}");
            }
            for core in &world.nodes {
                assert!(is_idle(core), "{:?}: seed {seed}, after {after}", core.in_hand());
            }
        }
    }
}

#[test]
fn the_target_crashes_in_every_phase() {
    crash_in_every_phase("target");
}

#[test]
fn the_origin_crashes_in_every_phase() {
    crash_in_every_phase("origin");
}

const ROLE: &str = "MARGO_TEST_HG_KILL";

/// Not a test of its own: the process that the others kill.
#[test]
fn service_process() {
    let Some(role) = process::asked(ROLE) else { return };
    match role.split_once(' ') {
        None => serve(&role),
        Some((what, address)) => call(what, address),
    }
}

/// The target: `STUCK` is held, and said; news stop it from doing anything.
fn serve(transport: &str) {
    let core = open(&uri(transport, true), true, HgOptions::default());
    register(&core, true);
    let service = Service::default();
    say(&format!("listening on {}", core.self_addr().uri()));
    let mut said = 0;
    loop {
        step(&core, Wait::Poll, &service);
        let held = service.held.lock().unwrap().len();
        if held > said {
            said = held;
            say("held");
        }
        if service.news.load(Ordering::Relaxed) > 0 {
            say("hangs");
            loop {
                std::thread::park();
            }
        }
    }
}

/// The origin: calls, says so, and hangs.
fn call(what: &str, address: &str) {
    let own = address.split("://").next().unwrap();
    let transport = own.strip_prefix("na+").unwrap_or(own);
    let core = open(&uri(transport, false), false, HgOptions::default());
    register(&core, true);
    let to = core.lookup(address).unwrap();
    let service = Service::default();
    let first = start(&core, &to, NULL, ForwardOptions::default(), b"");
    while !first.is_over() {
        step(&core, Wait::Poll, &service);
    }
    let long = pattern(1 << 20);
    let bytes = if what == "long" { &long[..] } else { b"short" };
    let _token = start(&core, &to, STUCK, ForwardOptions::default(), bytes);
    let sent = core.endpoint().clone();
    // Until the transport has taken it: one more poll than there can be steps before that.
    for _ in 0..1000 {
        sent.poll(0, &mut |_| {}).unwrap();
    }
    say("called");
    loop {
        std::thread::park();
    }
}

/// Returns whether a party that waits for a process is told of its end. libfabric does not tell a
/// party that sends nothing more; there, and in C, calls and answers are given up.
fn tells_of_ends(transport: &str) -> bool {
    !transport.starts_with("ofi+")
}

fn until(core: &Node, service: &Service, what: &str, done: impl Fn() -> bool) {
    until_with(Wait::Poll, core, service, what, done);
}

fn until_with(wait: Wait, core: &Node, service: &Service, what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        step(core, wait, service);
        assert!(begin.elapsed() < PATIENCE, "{what}: does not happen; {:?}", core.in_hand());
    }
}

/// Kills a target in each phase of a call; every call ends with an error, now and afterwards, also
/// at an origin that sleeps.
fn kill_the_target(transport: &str, wait: Wait) {
    let phases = ["held", "not taken", "arguments not fetched", "result not fetched"];
    // In the others the target polls, and may die with a lock of libfabric's `shm`, for which those
    // who send to it wait for ever (docs/transports/ofi.md).
    let while_hanging = &phases[1..2];
    for &phase in if transport == "ofi+shm" { while_hanging } else { &phases[..] } {
        let mut other = process::Service::start_with(module_path!(), ROLE, transport);
        let core = open(&uri(transport, false), false, HgOptions::default());
        register(&core, true);
        let (to, service) = (core.lookup(&other.address).unwrap(), Service::default());
        let warm = start(&core, &to, NULL, ForwardOptions::default(), b"");
        until(&core, &service, "the first call", || warm.is_over());
        let (long, two_way) = (pattern(1 << 20), ForwardOptions::default());
        let (token, op) = match phase {
            "held" => {
                let call = begin(&core, &to, STUCK, two_way, b"");
                // The connection may have to be pushed; nothing is answered.
                let (heard, words) = std::sync::mpsc::channel();
                std::thread::scope(|scope| {
                    let other = &mut other;
                    scope.spawn(move || {
                        other.line_after("held");
                        heard.send(()).unwrap();
                    });
                    until(&core, &service, "held", || words.try_recv().is_ok());
                });
                call
            }
            "not taken" => {
                let news = start(&core, &to, NEWS, ForwardOptions::one_way(), b"");
                until(&core, &service, "news", || news.is_over());
                other.line_after("hangs");
                begin(&core, &to, ECHO, two_way, b"x")
            }
            // Nobody polls here before the end of the target.
            "arguments not fetched" => begin(&core, &to, STUCK, two_way, &long),
            _ => begin(&core, &to, MAKE, two_way, &(1u64 << 20).to_le_bytes()),
        };
        other.kill();
        let is_told = tells_of_ends(transport);
        if !is_told {
            core.cancel(op);
        }
        until_with(wait, &core, &service, phase, || token.is_over());
        let end = token.take();
        let told = match &end {
            Err(HgError::Na(na::Error::PeerGone { .. })) => true,
            Err(HgError::Canceled) => !is_told,
            _ => false,
        };
        // What was on its way may have arrived as a whole.
        assert!(told || phase == "result not fetched", "{transport}, {phase}: {end:?}");
        let (again, op) = begin(&core, &to, ECHO, two_way, b"x");
        if !is_told {
            step(&core, Wait::Poll, &service);
            core.cancel(op);
        }
        until_with(wait, &core, &service, "a second attempt", || again.is_over());
        let end = again.take();
        let failed = matches!(end, Err(HgError::Na(_)));
        assert!(failed || !is_told && matches!(end, Err(HgError::Canceled)), "dead is dead");
        // Elsewhere receives stay for late answers.
        if is_told {
            until_with(wait, &core, &service, "the end of everything", || is_idle(&core));
        }
        core.close();
        drain(&core, &service);
    }
}

#[test]
fn a_target_is_killed_over_sm() {
    kill_the_target("sm", Wait::Poll);
    kill_the_target("sm", Wait::Sleep);
}

#[test]
fn a_target_is_killed_over_tcp() {
    kill_the_target("tcp", Wait::Poll);
    kill_the_target("tcp", Wait::Sleep);
}

#[test]
fn a_target_is_killed_over_fabrics() {
    on_fabrics(kill_the_target);
}

/// Kills an origin in each phase of its call, also of a target that sleeps.
fn kill_the_origin(transport: &str, wait: Wait) {
    for (what, payload) in [("short", 10), ("short", 1 << 20), ("long", 10)] {
        let core = open(&uri(transport, true), true, HgOptions::default());
        register(&core, true);
        let service = Service::default();
        let mut other = process::Service::spawn(
            module_path!(),
            ROLE,
            &format!("{what} {}", core.self_addr().uri()),
        );
        let (heard, words) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let other = &mut other;
            scope.spawn(move || {
                other.line_after("called");
                heard.send(()).unwrap();
            });
            until(&core, &service, "a call", || words.try_recv().is_ok());
        });
        let has_request = || !service.held.lock().unwrap().is_empty();
        if what == "short" {
            until(&core, &service, "its arrival", has_request);
        }
        let in_time = service.held.lock().unwrap().pop();
        let token = Token::default();
        let mut waits = None;
        if let (Some(request), true) = (in_time, payload > 10) {
            // Its result is to be fetched by who is about to die.
            let bytes = pattern(payload);
            let sent = request.respond(|writer| writer.put(&bytes), token.clone()).unwrap();
            let Sent::InFlight(op) = sent else { panic!("nobody can have fetched it") };
            waits = Some(op);
            other.kill();
        } else {
            other.kill();
        }
        let is_told = tells_of_ends(transport);
        if let Some(op) = waits {
            if !is_told {
                core.cancel(op);
            }
            until_with(wait, &core, &service, "the end of the answer", || token.is_over());
            let end = token.take();
            let failed = matches!(end, Err(HgError::Na(_)));
            assert!(failed || !is_told && matches!(end, Err(HgError::Canceled)), "{end:?}");
        }
        // A request whose arguments cannot be fetched never comes; others are dropped here.
        let is_over = || {
            service.held.lock().unwrap().clear();
            is_idle(&core)
        };
        if is_told {
            until_with(wait, &core, &service, "the end of everything", is_over);
        }
        // Somebody else is served as before.
        let client = open(&uri(transport, false), false, HgOptions::default());
        client.register(Registration::mercury("echo")).unwrap();
        let to = client.lookup(core.self_addr().uri()).unwrap();
        let token = start(&client, &to, ECHO, ForwardOptions::default(), b"next");
        until(&core, &service, "the next one", || {
            step(&client, Wait::Poll, &Service::default());
            token.is_over()
        });
        assert_eq!(token.take().unwrap(), b"next");
        core.close();
        service.held.lock().unwrap().clear();
        drain(&core, &service);
        client.close();
    }
}

#[test]
fn an_origin_is_killed_over_sm() {
    kill_the_origin("sm", Wait::Poll);
    kill_the_origin("sm", Wait::Sleep);
}

#[test]
fn an_origin_is_killed_over_tcp() {
    kill_the_origin("tcp", Wait::Poll);
    kill_the_origin("tcp", Wait::Sleep);
}

#[test]
fn an_origin_is_killed_over_fabrics() {
    on_fabrics(kill_the_origin);
}

fn on_fabrics(kill: impl Fn(&str, Wait)) {
    if fabrics().next().is_none() {
        println!("SKIPPED: set MARGO_TEST_OFI=1 or MARGO_TEST_UCX=1");
    }
    for fabric in fabrics() {
        kill(fabric, Wait::Poll);
        kill(fabric, Wait::Sleep);
    }
}
