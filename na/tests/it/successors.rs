//! A process that comes back under the address of a predecessor is in a new session. It is the same
//! peer where the transport knows that it listens there.

use std::sync::Arc;
use std::time::Instant;

use na::conformance::{Optional, open_again};
use na::sim::Network;
use na::{Addr, Completion, Endpoint, Error, MsgBuf, OpId, OpenOptions, Tag};

fn open(uri: &str) -> Arc<dyn Endpoint> {
    open_again(|| na::open(uri, &OpenOptions::listening(true)))
}

fn message(endpoint: &Arc<dyn Endpoint>, bytes: &[u8]) -> MsgBuf {
    let mut buf = endpoint.alloc_msg();
    assert!(buf.try_extend(bytes));
    buf
}

/// Polls all endpoints until the first has completed the operation.
fn end_of(op: u64, endpoints: &[&Arc<dyn Endpoint>]) -> Completion {
    let deadline = Instant::now() + na::conformance::PATIENCE;
    let mut end = None;
    while end.is_none() {
        assert!(Instant::now() < deadline, "operation {op} does not end");
        for (at, endpoint) in endpoints.iter().enumerate() {
            let mut sink = |completion: Completion| match &completion {
                Completion::Send { op: own, .. } | Completion::Recv { op: own, .. }
                    if at == 0 && own.0 == op =>
                {
                    end = Some(completion);
                }
                _ => {}
            };
            endpoint.poll(64, &mut sink).unwrap();
        }
    }
    end.unwrap()
}

/// One message from `from` to `to`: what it calls its sender.
fn deliver(from: &Arc<dyn Endpoint>, to: &Arc<dyn Endpoint>) -> Addr {
    to.recv_unexpected(OpId(900), to.alloc_msg()).unwrap();
    let to_addr = from.lookup(to.self_addr().uri()).unwrap();
    from.send_unexpected(OpId(901), &to_addr, Tag(1), message(from, b"x")).unwrap();
    match end_of(900, &[to, from]) {
        Completion::Recv { result: Ok(arrival), .. } => arrival.from,
        other => panic!("not received: {other:?}"),
    }
}

/// An address whose port the system gives to nobody who asks for any: that of a predecessor stays
/// free for its successor. Another one for each `test`.
fn own_tcp(test: u32) -> String {
    let mut ports = (0..).map(|n| 10_000 * test + (std::process::id() + n * 7) % 10_000);
    let is_free = |port: &u32| std::net::TcpListener::bind(("127.0.0.1", *port as u16)).is_ok();
    format!("na+tcp://127.0.0.1:{}", ports.find(is_free).unwrap())
}

const UCX: &str = "ucx+tcp://127.0.0.1:0";
const UCX_SM: &str = "ucx+sm://127.0.0.1:0";

/// Returns whether that can be tried here.
fn has_ucx(uri: &'static str) -> bool {
    let lacks = Optional { variable: "MARGO_TEST_UCX", uri, open: na::open }.lacks();
    if let Some(lacks) = &lacks {
        println!("SKIPPED: {lacks}");
    }
    lacks.is_none()
}

#[test]
fn an_answer_to_a_predecessor_does_not_reach_its_successor_tcp() {
    answers_end(&own_tcp(1), drop);
}

#[test]
fn an_answer_to_a_predecessor_does_not_reach_its_successor_sm() {
    answers_end(&format!("na+sm://successor-{}", std::process::id()), drop);
}

#[test]
fn an_answer_to_a_predecessor_does_not_reach_its_successor_ucx_tcp() {
    if has_ucx(UCX) {
        answers_end(UCX, drop);
    }
}

#[test]
fn an_answer_to_a_predecessor_does_not_reach_its_successor_ucx_sm() {
    if has_ucx(UCX_SM) {
        answers_end(UCX_SM, drop);
    }
}

#[test]
fn an_answer_to_a_predecessor_does_not_reach_its_successor_sim() {
    answers_end("na+sim://closed/successor", drop);
    let network = Network::named("crashed").unwrap();
    let crash = |_predecessor: Arc<dyn Endpoint>| network.crash("successor");
    answers_end("na+sim://crashed/successor", crash);
}

#[test]
fn late_answers_to_a_predecessor_leave_its_successor_answers_tcp() {
    late_answers_end(&own_tcp(2));
}

#[test]
fn late_answers_to_a_predecessor_leave_its_successor_answers_sm() {
    late_answers_end(&format!("na+sm://late-successor-{}", std::process::id()));
}

#[test]
fn late_answers_to_a_predecessor_leave_its_successor_answers_ucx_tcp() {
    if has_ucx(UCX) {
        late_answers_end(UCX);
    }
}

#[test]
fn late_answers_to_a_predecessor_leave_its_successor_answers_ucx_sm() {
    if has_ucx(UCX_SM) {
        late_answers_end(UCX_SM);
    }
}

#[test]
fn late_answers_to_a_predecessor_leave_its_successor_answers_sim() {
    late_answers_end("na+sim://late/successor");
}

/// A target, an origin that has called it, and what it calls that; then its end, which is seen.
fn predecessor(
    uri: &str,
    end: impl FnOnce(Arc<dyn Endpoint>),
) -> (Arc<dyn Endpoint>, String, Addr) {
    let target = match uri.starts_with("na+tcp:") {
        true => open("na+tcp://127.0.0.1:0"),
        false => open(&uri.replace("successor", "target")),
    };
    let predecessor = open(uri);
    let uri = predecessor.self_addr().uri().to_owned();
    let old = deliver(&predecessor, &target);
    assert!(!target.is_gone(&old));
    end(predecessor);
    let deadline = Instant::now() + na::conformance::PATIENCE;
    while !target.is_gone(&old) {
        assert!(Instant::now() < deadline, "its end is not seen");
        target.poll(64, &mut drop).unwrap();
    }
    (target, uri, old)
}

/// Answers to a predecessor, as many as are taken ahead of their receives and more, do not keep
/// those to its successor from arriving.
fn late_answers_end(uri: &str) {
    let (target, uri, old) = predecessor(uri, drop);
    let origin = open(&uri);
    let new = deliver(&origin, &target);
    // More than what is kept of a peer, in whichever terms.
    let long = vec![7; target.limits().expected_bytes_max];
    for op in 0..150 {
        target.send_expected(OpId(op), &old, Tag(5), message(&target, &long)).unwrap();
    }
    let to_target = origin.lookup(target.self_addr().uri()).unwrap();
    origin.recv_expected(OpId(301), &to_target, Tag(6), origin.alloc_msg()).unwrap();
    target.send_expected(OpId(300), &new, Tag(6), message(&target, b"new")).unwrap();
    match end_of(301, &[&origin, &target]) {
        Completion::Recv { buf, result: Ok(_), .. } => assert_eq!(buf.as_slice(), b"new"),
        other => panic!("not received: {other:?}"),
    }
}

fn answers_end(uri: &str, end: impl FnOnce(Arc<dyn Endpoint>)) {
    let (target, uri, old) = predecessor(uri, end);
    let refused = |others: &[&Arc<dyn Endpoint>]| {
        assert!(!target.send_expected_now(&old, Tag(5), b"old"));
        target.send_expected(OpId(2), &old, Tag(5), message(&target, b"old")).unwrap();
        match end_of(2, &[&[&target], others].concat()) {
            Completion::Send { result: Err(Error::PeerGone { .. }), .. } => {}
            other => panic!("not refused: {other:?}"),
        }
    };
    refused(&[]);
    let origin = open(&uri);
    let new = deliver(&origin, &target);
    // Over tcp and UCX a caller is known by its connection only.
    let by_connection = uri.starts_with("na+tcp:") || uri.starts_with("ucx+");
    assert_eq!(old == new, !by_connection, "one peer, known by its address");
    assert_eq!(old.uri(), new.uri());
    assert!(target.is_gone(&old) && !target.is_gone(&new));
    let to_target = origin.lookup(target.self_addr().uri()).unwrap();
    origin.recv_expected(OpId(1), &to_target, Tag(5), origin.alloc_msg()).unwrap();
    refused(&[&origin]);
    target.send_expected(OpId(3), &new, Tag(5), message(&target, b"new")).unwrap();
    match end_of(1, &[&origin, &target]) {
        Completion::Recv { buf, result: Ok(_), .. } => assert_eq!(buf.as_slice(), b"new"),
        other => panic!("not received: {other:?}"),
    }
    // What answers nothing reaches whoever is there, also by the old address.
    origin.recv_unexpected(OpId(4), origin.alloc_msg()).unwrap();
    target.send_unexpected(OpId(5), &old, Tag(1), message(&target, b"called")).unwrap();
    assert!(matches!(end_of(4, &[&origin, &target]), Completion::Recv { result: Ok(_), .. }));
}
