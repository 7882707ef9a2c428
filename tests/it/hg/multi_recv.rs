//! Requests that share large buffers (multi-recv), over each transport: the memory that they take,
//! for how long, and that nothing else is different.

use std::time::Instant;

use crate::bulk_support::{Log, MOVE as ID, Node, PATIENCE};
use margo::hg::{Core, ForwardOptions, HgError, HgOptions, RequestHandle};
use na::OpenOptions;

/// One block of a large buffer, see `LargeBuffers`.
const BLOCK: usize = 64 << 10;

/// A target, and an origin that does not listen.
struct Pair {
    name: &'static str,
    target: Node,
    origin: Node,
    to: na::Addr,
}

impl Pair {
    fn call(&self, options: ForwardOptions, bytes: &[u8], token: u32) {
        let put = |writer: &mut margo::hg::Writer| writer.put(bytes);
        self.origin.core.forward(&self.to, ID, options, put, token).unwrap();
    }

    /// Sends `count` requests that nobody answers, each with its number and `len` bytes more.
    fn tell(&self, count: usize, len: usize) {
        for number in 0..count {
            self.call(ForwardOptions::one_way(), &numbered(number, len), number as u32);
        }
    }

    fn turn(&mut self) -> bool {
        self.origin.log.responses.clear();
        self.origin.turn() | self.target.turn()
    }

    fn until(&mut self, what: &str, done: impl Fn(&Log, &Log) -> bool) {
        let start = Instant::now();
        while !done(&self.origin.log, &self.target.log) {
            self.origin.turn();
            self.target.turn();
            assert!(start.elapsed() < PATIENCE, "{}: {what}: does not happen", self.name);
        }
    }

    fn until_held(&mut self, count: usize) {
        self.until("requests", |_, target| target.requests.len() == count);
    }

    fn held(&self) -> usize {
        self.target.core.in_hand().requests_held
    }

    fn copied(&self) -> u64 {
        self.target.core.counters().multi_recv_copy
    }

    fn taken(&self) -> usize {
        self.target.core.in_hand().large_buffer_bytes
    }
}

fn numbered(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = (number as u32).to_le_bytes().to_vec();
    bytes.resize(4 + len, number as u8);
    bytes
}

/// The number in a request, whose other bytes are as they were sent.
fn number_in(request: &RequestHandle<u32>, len: usize) -> usize {
    let payload = request.payload();
    let number = u32::from_le_bytes(payload[..4].try_into().unwrap()) as usize;
    assert!(payload == numbered(number, len), "request {number} has changed");
    number
}

/// Asserts that each number up to `count` is in one of the requests; they come in any order.
fn check_all(requests: &[RequestHandle<u32>], count: usize, len: usize) {
    let mut numbers: Vec<usize> = requests.iter().map(|one| number_in(one, len)).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..count), "each one once");
}

/// A reproducible order.
fn shuffled<T>(mut items: Vec<T>) -> Vec<T> {
    let mut random = na::conformance::Random::new(5);
    let mut out = Vec::with_capacity(items.len());
    while !items.is_empty() {
        out.push(items.swap_remove(random.below(items.len())));
    }
    out
}

fn open(uri: &str, auto_sm: bool, listen: bool, options: &HgOptions) -> Node {
    let mut opened = OpenOptions::listening(listen);
    opened.auto_sm = auto_sm.then(|| "na+sm://".to_owned());
    let mut options = options.clone();
    options.listen = listen;
    Node::on(na::open(uri, &opened).unwrap(), options)
}

/// Runs a case over each transport.
fn everywhere(options: &HgOptions, body: impl Fn(&mut Pair)) {
    for (name, at, from, auto_sm) in [
        ("sm", "na+sm://", "na+sm://", false),
        ("tcp", "na+tcp://127.0.0.1:0", "na+tcp://", false),
        ("sim", "na+sim://multi-recv/", "na+sim://multi-recv/", false),
        ("auto_sm", "na+tcp://127.0.0.1:0", "na+tcp://127.0.0.1:0", true),
    ] {
        let target = open(at, auto_sm, true, options);
        let origin = open(from, auto_sm, false, options);
        let to = origin.core.lookup(target.core.self_addr().uri()).unwrap();
        let mut pair = Pair { name, target, origin, to };
        body(&mut pair);
        pair.target.log.requests.clear();
        pair.origin.core.close();
        pair.target.core.close();
        let start = Instant::now();
        let idle = |node: &Node| {
            let hand = node.core.in_hand();
            (hand.operations, hand.tokens, hand.requests_held) == (0, 0, 0)
        };
        while !idle(&pair.origin) || !idle(&pair.target) || pair.taken() > 0 {
            pair.turn();
            assert!(start.elapsed() < PATIENCE, "{name}: left over: {:?}", pair.target.core);
        }
    }
}

/// One buffer of one block, so that few requests fill it.
fn one_block() -> HgOptions {
    let mut options = HgOptions::default();
    (options.request_post_init, options.multi_recv_op_max) = (16, 1);
    options
}

/// Options with three such buffers, of which `count` are kept free of requests.
fn sparing(count: usize) -> HgOptions {
    let mut options = one_block();
    (options.multi_recv_op_max, options.multi_recv_copy_threshold) = (3, count);
    options
}

#[test]
fn ten_thousand_small_requests_take_what_they_are_long() {
    const COUNT: usize = 10_000;
    everywhere(&HgOptions::default(), |pair| {
        for _ in 0..2 {
            pair.tell(COUNT, 96);
            pair.until_held(COUNT);
            assert_eq!(pair.held(), COUNT);
            let requests = std::mem::take(&mut pair.target.log.requests);
            check_all(&requests, COUNT, 96);
            // 192 bytes each, with all that goes before the arguments; 4 KiB would be 40 MB.
            assert!(pair.taken() <= COUNT * 192 + BLOCK, "{}: {}", pair.name, pair.taken());
            assert!(pair.taken() >= COUNT * 100, "{}: {}", pair.name, pair.taken());
            assert_eq!(pair.copied(), 0);
            shuffled(requests).into_iter().for_each(drop);
            assert_eq!(pair.held(), 0);
        }
    });
}

#[test]
fn requests_held_beyond_the_buffers_do_not_end_receiving() {
    everywhere(&one_block(), |pair| {
        let mut held = Vec::new();
        for round in 0..4 {
            pair.tell(100, 1000);
            pair.until_held(100);
            held.append(&mut pair.target.log.requests);
            assert_eq!(pair.held(), 100 * (round + 1));
        }
        assert_eq!(pair.taken(), BLOCK, "{}", pair.name);
        let first = pair.copied();
        assert!((300..400).contains(&first), "{}: {first} got their own", pair.name);
        held.chunks(100).for_each(|round| check_all(round, 100, 1000));
        shuffled(held).into_iter().for_each(drop);
        // The block is found again, though not at once.
        pair.tell(200, 16);
        pair.until_held(200);
        assert!(pair.copied() - first < 100, "{}: {}", pair.name, pair.copied());
    });
}

#[test]
fn a_request_held_for_ever_keeps_one_block() {
    const COUNT: usize = 3000;
    everywhere(&HgOptions::default(), |pair| {
        pair.tell(1, 96);
        pair.until_held(1);
        let kept = pair.target.log.requests.pop().unwrap();
        for _ in 0..5 {
            pair.tell(COUNT, 500);
            let start = Instant::now();
            let mut seen = vec![false; COUNT];
            while seen.contains(&false) {
                pair.turn();
                for request in std::mem::take(&mut pair.target.log.requests) {
                    assert!(!std::mem::replace(&mut seen[number_in(&request, 500)], true));
                }
                assert!(start.elapsed() < PATIENCE, "{}: requests are lost", pair.name);
            }
        }
        assert_eq!((pair.copied(), pair.held()), (0, 1));
        assert_eq!(number_in(&kept, 96), 0);
        drop(kept);
    });
}

#[test]
fn buffers_that_are_spared_are_not_for_requests() {
    everywhere(&sparing(3), |pair| {
        pair.tell(50, 100);
        pair.until_held(50);
        assert_eq!((pair.copied(), pair.taken()), (50, 0), "{}", pair.name);
    });
    everywhere(&sparing(1), |pair| {
        pair.tell(400, 1000);
        pair.until_held(400);
        assert_eq!(pair.taken(), 2 * BLOCK, "{}", pair.name);
        assert!(pair.copied() > 200, "{}: {}", pair.name, pair.copied());
    });
    let endpoint = na::open("na+sm://", &OpenOptions::listening(true)).unwrap();
    let error = Core::<u32>::new(endpoint, sparing(4)).unwrap_err();
    assert!(error.to_string().contains("multi_recv_copy_threshold is 4"), "{error}");
}

#[test]
fn the_bounds_of_requests_hold_either_way() {
    for multi_recv in [true, false] {
        for (request_post_incr, requests_max, most) in [(4, 20, 20), (0, 100, 16), (500, 33, 33)] {
            let mut options = HgOptions::default();
            options.request_post_init = 16;
            options.request_post_incr = request_post_incr;
            options.requests_max = requests_max;
            options.multi_recv = multi_recv;
            everywhere(&options, |pair| {
                pair.tell(200, 100);
                pair.until_held(most);
                let (mut seen, start) = (0, Instant::now());
                while seen < 200 {
                    assert!(start.elapsed() < PATIENCE, "{}: requests are lost", pair.name);
                    pair.turn();
                    let hand = pair.target.core.in_hand();
                    assert!(hand.requests_held + hand.receives_posted <= most, "{}", pair.name);
                    assert_eq!(hand.requests_held, pair.target.log.requests.len());
                    if !pair.target.log.requests.is_empty() {
                        number_in(&pair.target.log.requests.remove(0), 100);
                        seen += 1;
                    }
                }
            });
        }
    }
}

#[test]
fn results_are_the_same_without() {
    let lens = [0, 1, 100, 4000, 4079, 4080, 4081, 20_000, 300_000];
    for multi_recv in [true, false] {
        let mut options = one_block();
        options.multi_recv = multi_recv;
        everywhere(&options, |pair| {
            for round in 0..20 {
                for (token, len) in lens.iter().enumerate() {
                    let bytes = vec![round; *len];
                    pair.call(ForwardOptions::default(), &bytes, token as u32);
                }
                pair.until_held(lens.len());
                for mut request in shuffled(std::mem::take(&mut pair.target.log.requests)) {
                    let len = request.payload_bytes();
                    assert!(request.payload().iter().all(|byte| *byte == round));
                    if len % 2 == 0 {
                        // Its place in the buffer is free before it is answered.
                        request.release_payload();
                        assert!(request.payload().is_empty());
                    }
                    let _ = request.respond(|writer| writer.put(&vec![round; len]), 0).unwrap();
                }
                pair.until("answers", |origin, _| origin.responses.len() == lens.len());
                for (token, response) in std::mem::take(&mut pair.origin.log.responses) {
                    let response = response.unwrap();
                    assert!(response.payload() == vec![round; lens[token as usize]]);
                }
                pair.target.log.responded.clear();
            }
            let counters = pair.target.core.counters();
            assert_eq!((counters.rpc_req_recv, counters.req_extra), (180, 60), "{}", pair.name);
            assert_eq!((pair.taken() > 0, pair.copied()), (multi_recv, 0), "{}", pair.name);
        });
    }
}

#[test]
fn requests_outlive_the_close() {
    everywhere(&one_block(), |pair| {
        pair.tell(150, 1000);
        pair.until_held(150);
        pair.target.core.close();
        let start = Instant::now();
        while pair.taken() > 0 || pair.target.core.in_hand().receives_posted > 0 {
            pair.turn();
            assert!(start.elapsed() < PATIENCE, "{}: memory is kept", pair.name);
        }
        assert_eq!(pair.held(), 150, "{}", pair.name);
        let requests = std::mem::take(&mut pair.target.log.requests);
        check_all(&requests, 150, 1000);
        shuffled(requests).into_iter().for_each(drop);
        assert_eq!(pair.held(), 0, "{}", pair.name);
    });
}

#[test]
fn who_does_not_listen_takes_no_buffers() {
    everywhere(&HgOptions::default(), |pair| {
        pair.call(ForwardOptions::default(), b"to and fro", 1);
        pair.until_held(1);
        let request = pair.target.log.requests.pop().unwrap();
        let _ = request.respond(|writer| writer.put(b"answer"), 2).unwrap();
        pair.until("the answer", |origin, _| !origin.responses.is_empty());
        let own = pair.origin.core.self_addr();
        pair.origin.core.forward(&own, ID, ForwardOptions::default(), |_| Ok(()), 3).unwrap();
        pair.until("a call to itself", |origin, _| !origin.requests.is_empty());
        let hand = pair.origin.core.in_hand();
        assert_eq!((hand.large_buffer_bytes, hand.receives_posted), (0, 0), "{}", pair.name);
        let request = pair.origin.log.requests.pop().unwrap();
        let _ = request.respond(|writer| writer.put(b"own"), 4).unwrap();
        pair.until("its answer", |origin, _| {
            let own = |(token, result): &(u32, Result<_, HgError>)| *token == 3 && result.is_ok();
            origin.responses.iter().any(own)
        });
    });
}
