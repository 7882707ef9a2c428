//! A peer that is known under two names over tcp: each has a connection of its own, and neither
//! ends the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use na::conformance::PATIENCE;
use na::{Addr, Completion, Endpoint, MsgBuf, OpId, OpenOptions, Tag};

type Done = HashMap<(usize, u64), Completion>;

/// The target, then the origin.
struct Ends([Arc<dyn Endpoint>; 2], Done);

const TARGET: usize = 0;
const ORIGIN: usize = 1;

impl Ends {
    /// Polls both until an operation has ended.
    fn end_of(&mut self, end: usize, op: u64) -> Completion {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(ended) = self.1.remove(&(end, op)) {
                return ended;
            }
            assert!(Instant::now() < deadline, "{op} does not end; others: {:?}", self.1);
            for (number, endpoint) in self.0.iter().enumerate() {
                let mut take = |completion: Completion| {
                    let op = match &completion {
                        Completion::Send { op, .. } => op,
                        Completion::Recv { op, .. } => op,
                        Completion::Transfer { op, .. } => op,
                    };
                    self.1.insert((number, op.0), completion);
                };
                endpoint.poll(16, &mut take).unwrap();
            }
        }
    }

    fn message(&self, end: usize, text: &str) -> MsgBuf {
        let mut buf = self.0[end].alloc_msg();
        assert!(buf.try_extend(text.as_bytes()));
        buf
    }

    /// Sends a request, and posts the receive of its answer, which is `op`. Returns the sender that
    /// the target sees.
    fn ask(&mut self, to: &Addr, op: u64) -> Addr {
        let [target, origin] = &self.0;
        let tag = Tag(op as u32);
        target.recv_unexpected(OpId(op), target.alloc_msg()).unwrap();
        origin.recv_expected(OpId(op), to, tag, origin.alloc_msg()).unwrap();
        origin.send_unexpected(OpId(op + 100), to, tag, self.message(ORIGIN, "?")).unwrap();
        match self.end_of(TARGET, op) {
            Completion::Recv { result, .. } => result.unwrap().from,
            other => panic!("{other:?}"),
        }
    }

    /// Answers the request; the answer must reach the node that waits for it.
    fn answer(&mut self, from: &Addr, op: u64) {
        let (tag, buf) = (Tag(op as u32), self.message(TARGET, "!"));
        self.0[TARGET].send_expected(OpId(op + 100), from, tag, buf).unwrap();
        match self.end_of(ORIGIN, op) {
            Completion::Recv { buf, result: Ok(_), .. } => assert_eq!(buf.as_slice(), b"!"),
            other => panic!("answer {op}: {other:?}"),
        }
    }
}

/// The target listens at all addresses of the host, of which the origin uses two.
#[test]
fn calls_by_two_names_do_not_end_each_other() {
    let head = "na+tcp";
    let open =
        |rest: &str| na::open(&format!("{head}://{rest}"), &OpenOptions::listening(true)).unwrap();
    let (target, origin) = (open("0.0.0.0:0"), open("127.0.0.1:0"));
    let uri = target.self_addr().uri().to_owned();
    let port = uri.rsplit(':').next().unwrap();
    let name = |ip: &str| origin.lookup(&format!("{head}://{ip}:{port}")).unwrap();
    let (first, second) = (name("127.0.0.1"), name("127.0.0.2"));
    assert_ne!(first, second);
    let caller = origin.self_addr().uri().to_owned();
    let mut ends = Ends([target, origin], HashMap::new());
    // While the answer to the first name is awaited, the second is used.
    let by_first = ends.ask(&first, 1);
    let by_second = ends.ask(&second, 2);
    assert_eq!(by_first.uri(), caller);
    assert_eq!(by_second.uri(), caller);
    ends.answer(&by_second, 2);
    ends.answer(&by_first, 1);
    // And in turns from now on.
    for op in (3..9).step_by(2) {
        let by_first = ends.ask(&first, op);
        let by_second = ends.ask(&second, op + 1);
        ends.answer(&by_first, op);
        ends.answer(&by_second, op + 1);
    }
    // The caller's own name means one of them, which is there.
    let Ends([target, _], _) = &ends;
    let called = target.lookup(&caller).unwrap();
    assert_eq!(called.uri(), caller);
}
