//! The RPC core without ULTs: two cores in one thread, progressed by hand.

use std::time::Instant;

use crate::bulk_support::{Log, MOVE as ID, Node, PATIENCE};
use margo::hg::{BulkOp, ForwardOptions, HgError, HgOptions, RequestHandle, ReturnCode, Sent};
use na::{Access, Memory};

fn call(from: &Node, to: &na::Addr, options: ForwardOptions, bytes: &[u8], token: u32) {
    from.core.forward(to, ID, options, |writer| writer.put(bytes), token).unwrap();
}

struct Pair {
    origin: Node,
    target: Node,
    to: na::Addr,
}

impl Pair {
    fn until(&mut self, what: &str, done: impl Fn(&Log, &Log) -> bool) {
        let start = Instant::now();
        while !done(&self.origin.log, &self.target.log) {
            self.origin.turn();
            self.target.turn();
            assert!(start.elapsed() < PATIENCE, "{what}: does not happen");
        }
    }

    /// An answer that is over at once is noted as if the sink had been told.
    fn answer(&mut self, request: RequestHandle<u32>, bytes: &[u8], token: u32) {
        if let Sent::Done(token) = request.respond(|writer| writer.put(bytes), token).unwrap() {
            self.target.log.responded.push((token, Ok(())));
        }
    }

    /// Turns both sides until no operation is in flight, which must not take long.
    fn until_idle(&mut self) {
        let start = Instant::now();
        while self.origin.core.in_flight() + self.target.core.in_flight() > 0 {
            self.origin.turn();
            self.target.turn();
            assert!(start.elapsed() < PATIENCE, "operations are left over");
        }
    }
}

fn on_each(body: impl Fn(&mut Pair)) {
    for (listening, origin) in [("na+sm://", "na+sm://"), ("na+tcp://127.0.0.1:0", "na+tcp://")] {
        let target = Node::open(listening, true, HgOptions::default());
        let origin = Node::open(origin, false, HgOptions::default());
        let to = origin.core.lookup(target.core.self_addr().uri()).unwrap();
        let mut pair = Pair { origin, target, to };
        body(&mut pair);
        drop(std::mem::take(&mut pair.target.log));
        pair.until_idle();
        for node in [&mut pair.origin, &mut pair.target] {
            node.core.close();
        }
        pair.until_idle();
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 241) as u8).collect()
}

#[test]
fn requests_and_responses_of_every_size() {
    on_each(|pair| {
        for len in [0, 1, 4079, 4080, 4081, 100_000] {
            let bytes = pattern(len);
            call(&pair.origin, &pair.to, ForwardOptions::default(), &bytes, 1);
            pair.until("the request", |_, target| !target.requests.is_empty());
            let request = pair.target.log.requests.pop().unwrap();
            assert_eq!(request.id(), ID);
            assert!(request.payload() == bytes, "{len} bytes arrived changed");
            pair.answer(request, &bytes, 2);
            pair.until("the response", |origin, target| {
                !origin.responses.is_empty() && !target.responded.is_empty()
            });
            let (token, response) = pair.origin.log.responses.pop().unwrap();
            assert_eq!(token, 1);
            assert!(response.unwrap().payload() == bytes, "{len} bytes came back changed");
            let (token, result) = pair.target.log.responded.pop().unwrap();
            assert_eq!(token, 2);
            result.unwrap();
        }
        let counters = pair.origin.core.counters();
        assert_eq!((counters.rpc_req_sent, counters.rpc_resp_recv), (6, 6));
        assert_eq!((counters.req_extra, counters.resp_extra), (2, 2), "4081 and 100000 overflow");
    });
}

#[test]
fn long_payloads_again_and_again_stay_apart() {
    on_each(|pair| {
        let bytes = |token: u32, len: usize| -> Vec<u8> {
            (0..len).map(|at| (at as u32 * 7 + token) as u8).collect()
        };
        // Often enough that memory is kept for them where that helps, and with several in flight.
        for round in 0..40 {
            let tokens = 4 * round..4 * round + 4;
            let len = 4081 + 1000 * (round as usize % 40);
            for token in tokens.clone() {
                call(&pair.origin, &pair.to, ForwardOptions::default(), &bytes(token, len), token);
            }
            pair.until("the requests", |_, target| target.requests.len() == 4);
            let mut seen: Vec<u32> = Vec::new();
            for request in std::mem::take(&mut pair.target.log.requests) {
                // A payload that had to be asked for may come after a later one that had not.
                let token = u32::from(request.payload()[0]);
                seen.push(token);
                assert!(request.payload() == bytes(token, len), "call {token} arrived changed");
                pair.answer(request, &bytes(token + 1, len), token);
            }
            seen.sort_unstable();
            assert!(seen.into_iter().eq(tokens), "each came once");
            pair.until("the responses", |origin, target| {
                origin.responses.len() == 4 && target.responded.len() == 4
            });
            for (token, response) in pair.origin.log.responses.drain(..) {
                let response = response.unwrap();
                assert!(
                    response.payload() == bytes(token + 1, len),
                    "call {token} came back changed"
                );
            }
            pair.target.log.responded.drain(..).for_each(|(_, result)| result.unwrap());
        }
    });
}

#[test]
fn one_way_calls() {
    on_each(|pair| {
        for len in [10, 100_000] {
            let bytes = pattern(len);
            call(&pair.origin, &pair.to, ForwardOptions::one_way(), &bytes, 1);
            pair.until("both ends", |origin, target| {
                !origin.responses.is_empty() && !target.requests.is_empty()
            });
            let request = pair.target.log.requests.pop().unwrap();
            assert!(request.is_one_way() && request.payload() == bytes);
            let error = request.respond(|_| Ok(()), 2).unwrap_err();
            assert!(matches!(error.0, HgError::NoResponse));
            assert!(pair.origin.log.responses.pop().unwrap().1.is_ok());
        }
    });
}

#[test]
fn a_rejection_is_in_the_core_header() {
    on_each(|pair| {
        call(&pair.origin, &pair.to, ForwardOptions::default(), &[1, 2, 3], 1);
        pair.until("the request", |_, target| !target.requests.is_empty());
        pair.target.log.requests.pop().unwrap().reject(ReturnCode::NoEntry);
        pair.until("the response", |origin, _| !origin.responses.is_empty());
        let (_, result) = pair.origin.log.responses.pop().unwrap();
        assert!(matches!(result, Err(HgError::Remote(ReturnCode::NoEntry))), "{result:?}");
    });
}

#[test]
fn a_call_given_up_ends_once_and_a_late_response_finds_nobody() {
    on_each(|pair| {
        for late_bytes in [5, 50_000] {
            let to = pair.to.clone();
            let forward = pair.origin.core.forward(
                &to,
                ID,
                ForwardOptions::default(),
                |writer| writer.put(&[9]),
                1,
            );
            let op = forward.unwrap();
            pair.until("the request", |_, target| !target.requests.is_empty());
            pair.origin.core.cancel(op);
            pair.origin.core.cancel(op);
            pair.until("the end", |origin, _| !origin.responses.is_empty());
            let (_, result) = pair.origin.log.responses.pop().unwrap();
            assert!(matches!(result, Err(HgError::Canceled)), "{result:?}");

            let late = pattern(late_bytes);
            let request = pair.target.log.requests.pop().unwrap();
            pair.answer(request, &late, 2);
            // Another call, over the same connection, gets its own response.
            call(&pair.origin, &to, ForwardOptions::default(), &[8], 3);
            pair.until("the next request", |_, target| !target.requests.is_empty());
            let request = pair.target.log.requests.pop().unwrap();
            pair.answer(request, &[42], 4);
            pair.until("its response", |origin, _| !origin.responses.is_empty());
            let (token, response) = pair.origin.log.responses.pop().unwrap();
            assert_eq!((token, response.unwrap().payload()), (3, &[42][..]));
            // The sender of the late response may forget it; if it was to be fetched, it hears that
            // nobody does.
            pair.until("the sender's end", |_, target| {
                let mut ends = target.responded.iter().filter(|(token, _)| *token == 2);
                ends.any(|(_, result)| match late_bytes {
                    5 => result.is_ok(),
                    _ => matches!(result, Err(HgError::GivenUp)),
                })
            });
            pair.target.log.responded.clear();
        }
    });
}

#[test]
fn closing_gives_every_token_back() {
    on_each(|pair| {
        for token in 0..50 {
            let options =
                if token % 2 == 0 { ForwardOptions::default() } else { ForwardOptions::one_way() };
            call(&pair.origin, &pair.to, options, &pattern(token as usize * 200), token);
        }
        pair.origin.core.close();
        pair.until("all ends", |origin, _| origin.responses.len() == 50);
        let mut tokens: Vec<_> = pair.origin.log.responses.drain(..).map(|(t, _)| t).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..50).collect::<Vec<_>>());
        let refused =
            pair.origin.core.forward(&pair.to, ID, ForwardOptions::default(), |_| Ok(()), 99);
        assert!(matches!(*refused.unwrap_err(), (HgError::Closed, 99)));
    });
}

#[test]
fn bulk_transfers_between_segmentations() {
    on_each(|pair| {
        let lens = [1usize, 0, 4095, 10_000, 3];
        let total: usize = lens.iter().sum();
        let data = pattern(total);
        let mut rest = &data[..];
        let pieces = lens
            .iter()
            .map(|&len| {
                let (piece, after) = rest.split_at(len);
                rest = after;
                piece.to_vec()
            })
            .collect();
        let exposed = pair
            .origin
            .core
            .endpoint()
            .register(Memory::from_vecs(pieces), Access::ReadWrite)
            .unwrap();
        let handle = pair.origin.core.bulk_handle(&exposed);
        let sent = margo::hg::proc::to_vec(&handle).unwrap();
        call(&pair.origin, &pair.to, ForwardOptions::default(), &sent, 1);
        pair.until("the request", |_, target| !target.requests.is_empty());
        let request = pair.target.log.requests.pop().unwrap();
        let remote: margo::Bulk = margo::hg::proc::from_slice(request.payload()).unwrap();
        assert_eq!(remote.len(), total as u64);

        let local = pair
            .target
            .core
            .endpoint()
            .register(Memory::from_vec(vec![0; total]), Access::ReadWrite)
            .unwrap();
        for (offset, len) in [(0, total), (1, 4095), (4000, 9000), (total, 0)] {
            let (offset, len) = (offset as u64, len as u64);
            for op in [BulkOp::Pull, BulkOp::Push] {
                pair.target
                    .core
                    .transfer(op, request.origin(), &remote, offset, &local, offset, len, 5)
                    .unwrap();
                pair.until("the transfer", |_, target| !target.bulks.is_empty());
                let (token, result) = pair.target.log.bulks.pop().unwrap();
                assert_eq!((token, result.unwrap()), (5, len));
            }
        }
        let mut copy = vec![0; total];
        assert!(local.read_at(0, &mut copy) && copy == data);
        let mut copy = vec![0; total];
        assert!(exposed.read_at(0, &mut copy) && copy == data);
        let beyond = pair.target.core.transfer(
            BulkOp::Pull,
            request.origin(),
            &remote,
            1,
            &local,
            0,
            total as u64,
            6,
        );
        if beyond.is_ok() {
            pair.until("the refusal", |_, target| !target.bulks.is_empty());
            pair.target.log.bulks.pop().unwrap().1.unwrap_err();
        }
        request.reject(ReturnCode::Success);
        pair.until("the response", |origin, _| !origin.responses.is_empty());
    });
}

#[test]
fn garbage_is_answered_and_counted() {
    on_each(|pair| {
        // A peer that speaks the transport's protocol but not Mercury's.
        let endpoint = pair.origin.core.endpoint().clone();
        let mut buf = endpoint.alloc_msg();
        assert!(buf.try_extend(b"GET / HTTP/1.1\r\n\r\n"));
        let (op, tag) = (na::OpId(4 << 56), na::Tag(77));
        endpoint.send_unexpected(op, &pair.to, tag, buf).unwrap();
        let start = Instant::now();
        while pair.target.core.counters().malformed == 0 {
            pair.origin.turn();
            pair.target.turn();
            assert!(start.elapsed() < PATIENCE, "the garbage does not arrive");
        }
        assert!(pair.target.log.requests.is_empty());
        call(&pair.origin, &pair.to, ForwardOptions::default(), &[1], 1);
        pair.until("a good request after it", |_, target| !target.requests.is_empty());
        pair.target.log.requests.pop().unwrap().reject(ReturnCode::Busy);
        pair.until("the response", |origin, _| !origin.responses.is_empty());
    });
}
