//! Cases about many peers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Case;
use super::Random;
use super::node::{Node, drive, finish};
use crate::{Addr, OpenOptions, Tag};

/// How many peers a transport has to bear at one endpoint.
fn crowd(transport: &str) -> usize {
    match transport {
        "tcp" => 1000,
        _ => 256,
    }
}

/// Lets this process open as many descriptors as it may. Returns how many.
fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Refused at most where it is not needed: the soft limit may always be raised to the hard one.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The turn of a test with hundreds of endpoints: the descriptors of a process are enough for one
/// such crowd at a time.
pub fn one_crowd() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 256 peers, or 1,000 over tcp, are served side by side, leave in any order, and leave the others
/// alone.
pub fn many_peers(case: &Case<'_>) {
    let _turn = one_crowd();
    // All share what processors others leave, and those that are late are tried again.
    let mut patient = OpenOptions::listening(false);
    patient.connect_timeout = Duration::from_secs(60);
    patient.tcp.connect_retry = patient.connect_timeout;
    let pair = Node::pair_with(case, &OpenOptions::listening(true), &patient);
    let (target, first) = pair.unwrap_or_else(|| Node::pair(case));
    let wanted = crowd(target.endpoint.transport());
    // An endpoint and its connection take up to 12 descriptors (where handshakes are made; 8
    // elsewhere); two thirds are for other tests, of which one may be this for another transport,
    // and for what is kept from connections.
    let possible = (raise_descriptor_limit() / 36) as usize;
    let count = wanted.min(possible);
    if count < wanted {
        println!("only {count} of {wanted} peers: too few file descriptors are allowed");
    }
    let mut origins = vec![first];
    origins.extend((1..count).map(|_| match case.open_with(&patient) {
        Some(origin) => Node::new(case, origin),
        None => Node::open(case, false),
    }));
    let to_target: Vec<Addr> = origins.iter().map(|origin| origin.addr_of(&target)).collect();

    // All connect at once.
    let receives: Vec<_> = origins.iter().map(|_| target.recv_unexpected()).collect();
    let mut sends = Vec::new();
    for (number, (origin, to)) in origins.iter().zip(&to_target).enumerate() {
        sends.push(origin.send_unexpected(to, number as u32, &(number as u64).to_le_bytes()));
    }
    let mut nodes = vec![&target];
    nodes.extend(&origins);
    drive(&nodes, "the first send of each peer", || {
        origins.iter().zip(&sends).all(|(origin, op)| origin.is_done(*op))
    });
    origins.iter().zip(sends).for_each(|(origin, op)| origin.succeeded(op));
    finish(&nodes, "the first message of each peer", &receives);
    let mut to_origin: Vec<Option<Addr>> = vec![None; count];
    for op in receives {
        let (arrival, bytes) = target.received(op);
        let number = arrival.tag.0 as usize;
        assert_eq!(bytes, (number as u64).to_le_bytes());
        assert!(to_origin[number].replace(arrival.from).is_none(), "one message of each");
    }
    let to_origin: Vec<Addr> = to_origin.into_iter().map(|addr| addr.expect("all")).collect();

    // A few of them speak, the others are idle.
    let mut random = Random::new(8);
    for tag in 0..200 {
        let at = random.below(count);
        let answered = origins[at].recv_expected(&to_target[at], tag);
        let asked = target.recv_expected(&to_origin[at], tag);
        origins[at].send_expected(&to_target[at], tag, b"are you there?");
        finish(&[&target, &origins[at]], "a message of one of many", &[asked]);
        target.send_expected(&to_origin[at], tag, b"yes");
        finish(&[&origins[at], &target], "its answer", &[answered]);
        assert_eq!(origins[at].received(answered).1, b"yes");
    }

    // Every other one leaves; the target learns of each, and the rest is still served.
    let waiting: Vec<_> = to_origin.iter().map(|from| target.recv_expected(from, 7)).collect();
    for origin in origins.iter().step_by(2) {
        origin.endpoint.close();
    }
    let gone: Vec<_> = waiting.iter().step_by(2).copied().collect();
    finish(&nodes, "news of those who left", &gone);
    gone.into_iter().for_each(|op| drop(target.error(op)));
    let staying: Vec<_> = waiting.iter().skip(1).step_by(2).copied().collect();
    assert_eq!(target.count_done(&staying), 0, "the others are not affected");
    for (origin, to) in origins.iter().zip(&to_target).skip(1).step_by(2) {
        origin.send_expected(to, 7, b"still here");
    }
    drive(&nodes, "a message of each who stayed", || target.all_done(&staying));
    for op in staying {
        let (arrival, bytes) = target.received(op);
        assert_eq!((arrival.tag, bytes.as_slice()), (Tag(7), &b"still here"[..]));
    }
}
