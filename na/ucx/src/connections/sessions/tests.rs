//! Connections between endpoints over UCX, where `MARGO_TEST_UCX=1` is set.

use std::net::SocketAddr;
use std::time::Duration;

use super::*;
use crate::Ucx;
use crate::endpoint::UcxEndpoint;
use crate::operations::inbox::{ConnEvent, Event};
use na_core::conformance::{Optional, PATIENCE};
use na_core::hosts::host_port::PeerKey;
use na_core::{
    Access, Addr, Completion, Endpoint, LocalMem, Memory, MsgBuf, OpId, OpenOptions, Plugin, Tag,
    Transfer, Uri,
};

pub(super) const OPEN: Optional = Optional {
    variable: "MARGO_TEST_UCX",
    uri: "ucx+tcp://127.0.0.1:0",
    open: |uri, options| Ucx.open(&Uri::parse(uri)?, options),
};

/// One that gives up no connection because of the time that it takes.
pub(super) fn open(listen: bool) -> UcxEndpoint {
    let mut options = OpenOptions::listening(listen);
    options.connect_timeout = Duration::from_secs(3600);
    UcxEndpoint::open(&Uri::parse(OPEN.uri).unwrap(), &options).unwrap()
}

/// Polls both until one of them reports something that `wanted` takes.
pub(super) fn until<T>(
    ends: [&UcxEndpoint; 2],
    mut wanted: impl FnMut(Completion) -> Option<T>,
) -> T {
    let began = Instant::now();
    let mut found = None;
    while began.elapsed() < PATIENCE {
        for end in ends {
            end.poll(16, &mut |completion| found = found.take().or(wanted(completion))).unwrap();
        }
        if let Some(found) = found {
            return found;
        }
    }
    panic!("nothing happens");
}

pub(super) fn send(from: &UcxEndpoint, to: &Addr) {
    let mut buf = MsgBuf::with_capacity(8);
    assert!(buf.try_extend(b"hello"));
    from.send_unexpected(OpId(1), to, Tag(7), buf).unwrap();
}

/// A name with several addresses, of which the first ones are in vain.
#[test]
fn who_is_not_at_the_first_addresses_is_found_at_the_next() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let (target, origin) = (open(true), open(false));
    let uri = target.self_addr().uri().to_owned();
    let there: SocketAddr = uri.rsplit('/').next().unwrap().parse().unwrap();
    // Other addresses of this host, at which nobody listens.
    let not_there = |ip: &str| SocketAddr::new(ip.parse().unwrap(), there.port());
    let all = vec![not_there("127.0.0.2"), not_there("127.0.0.3"), there];
    let name = PeerKey::Name("several".into(), there.port());
    let to = origin.with(|driver| driver.lookup(name, all, None)).unwrap();
    let room = MsgBuf::with_capacity(target.limits().unexpected_bytes_max);
    target.recv_unexpected(OpId(2), room).unwrap();
    send(&origin, &to);
    let mut sent = false;
    let came = until([&target, &origin], |completion| match completion {
        Completion::Recv { op: OpId(2), buf, result } => {
            result.unwrap();
            Some(buf.as_slice().to_vec())
        }
        Completion::Send { result, .. } => {
            result.unwrap();
            sent = true;
            None
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(came, b"hello");
    // The third one is the one that is tried first from now on, no longer than the connection.
    let tried = origin.with(|driver| {
        let index = driver.index_of(&to).unwrap();
        let peer = driver.peer(index).unwrap();
        (peer.phase, peer.trying)
    });
    assert_eq!(tried, Some((Phase::Connected, 0)));
    if !sent {
        until([&target, &origin], |completion| match completion {
            Completion::Send { result, .. } => {
                result.unwrap();
                Some(())
            }
            _ => None,
        });
    }
}

/// The stranger announces the address of the peer, before that is called or afterwards.
#[test]
fn what_is_sent_to_an_address_reaches_who_listens_there() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    for stranger_first in [true, false] {
        let (own, peer, stranger) = (open(true), open(true), open(true));
        let there = own.lookup(peer.self_addr().uri()).unwrap();
        stranger.with(|driver| driver.facts.own = peer.self_addr()).unwrap();
        let room = |of: &UcxEndpoint| MsgBuf::with_capacity(of.limits().unexpected_bytes_max);
        let written = |of: &UcxEndpoint, text| {
            let mut buf = room(of);
            assert!(buf.try_extend(text));
            buf
        };
        // What is received by operation `op`, and from whom.
        let received = |ends: [&UcxEndpoint; 2], wanted| {
            until(ends, |completion| match completion {
                Completion::Recv { op, buf, result } => {
                    let text = buf.as_slice().to_vec();
                    assert_eq!(op, wanted, "{text:?}");
                    Some((text, result.unwrap().from))
                }
                Completion::Send { result, .. } => {
                    result.unwrap();
                    None
                }
                other => panic!("{other:?}"),
            })
        };
        let claim = || {
            own.recv_unexpected(OpId(2), room(&own)).unwrap();
            send(&stranger, &stranger.lookup(own.self_addr().uri()).unwrap());
            received([&own, &stranger], OpId(2)).1
        };
        let early = stranger_first.then(claim);
        // A call.
        peer.recv_unexpected(OpId(2), room(&peer)).unwrap();
        own.recv_expected(OpId(3), &there, Tag(7), room(&own)).unwrap();
        send(&own, &there);
        let (_, caller_of_peer) = received([&peer, &own], OpId(2));
        let caller = early.unwrap_or_else(claim);
        assert_eq!(caller.uri(), peer.self_addr().uri(), "what it calls itself");
        assert_ne!(caller, there);
        // An answer of the stranger's, and something after it which shows that it has come.
        let to_own = stranger.lookup(own.self_addr().uri()).unwrap();
        let fake = written(&stranger, b"fake");
        stranger.send_expected(OpId(4), &to_own, Tag(7), fake).unwrap();
        assert_eq!(claim(), caller);
        // What is sent to the caller reaches the caller.
        stranger.recv_unexpected(OpId(5), room(&stranger)).unwrap();
        send(&own, &caller);
        received([&stranger, &own], OpId(5));
        stranger.close();
        all_until(&[&own], |_| own.is_gone(&caller));
        let real = written(&peer, b"real");
        peer.send_expected(OpId(6), &caller_of_peer, Tag(7), real).unwrap();
        let (text, from) = received([&own, &peer], OpId(3));
        assert_eq!((&text[..], &from), (&b"real"[..], &there));
    }
}

/// A host name and an address, say: each has a connection, and neither ends the other.
#[test]
fn calls_by_two_names_do_not_end_each_other() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let (target, origin) = (open(true), open(true));
    let uri = target.self_addr().uri().to_owned();
    let there: SocketAddr = uri.rsplit('/').next().unwrap().parse().unwrap();
    let name = PeerKey::Name("several".into(), there.port());
    let first = origin.with(|driver| driver.lookup(name, vec![there], None)).unwrap();
    let second = origin.lookup(&uri).unwrap();
    assert_ne!(first, second);
    let room = |of: &UcxEndpoint| MsgBuf::with_capacity(of.limits().unexpected_bytes_max);
    // A call by each, the second while the answer to the first is awaited.
    let mut callers = Vec::new();
    for (to, answer) in [(&first, OpId(3)), (&second, OpId(4))] {
        target.recv_unexpected(OpId(2), room(&target)).unwrap();
        origin.recv_expected(answer, to, Tag(7), room(&origin)).unwrap();
        send(&origin, to);
        callers.push(until([&target, &origin], |completion| match completion {
            Completion::Recv { op: OpId(2), result, .. } => Some(result.unwrap().from),
            Completion::Send { result, .. } => {
                result.unwrap();
                None
            }
            other => panic!("{other:?}"),
        }));
    }
    assert!(callers.iter().all(|caller| caller.uri() == origin.self_addr().uri()));
    for (caller, (to, answer)) in callers.iter().zip([(first, OpId(3)), (second, OpId(4))]) {
        target.send_expected(OpId(5), caller, Tag(7), room(&target)).unwrap();
        let from = until([&target, &origin], |completion| match completion {
            Completion::Recv { op, result, .. } if op == answer => Some(result.unwrap().from),
            Completion::Send { result, .. } => {
                result.unwrap();
                None
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(from, to);
    }
}

#[test]
fn who_calls_while_there_is_no_room_waits_for_it() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    const CLIENTS: usize = 8;
    let target = open(true);
    target.with(|driver| driver.strangers_max = 1).unwrap();
    let origins: Vec<_> = (0..CLIENTS).map(|_| open(false)).collect();
    for origin in &origins {
        let room = MsgBuf::with_capacity(target.limits().unexpected_bytes_max);
        target.recv_unexpected(OpId(2), room).unwrap();
        send(origin, &origin.lookup(target.self_addr().uri()).unwrap());
    }
    let (mut came, mut most) = (0, 0);
    let began = Instant::now();
    while came < CLIENTS {
        assert!(began.elapsed() < PATIENCE, "{came} have come");
        for end in origins.iter().chain([&target]) {
            let mut sink = |completion| match completion {
                Completion::Recv { result, .. } => came += usize::from(result.is_ok()),
                Completion::Send { result, .. } => result.unwrap(),
                other @ Completion::Transfer { .. } => panic!("{other:?}"),
            };
            end.poll(16, &mut sink).unwrap();
        }
        most = most.max(target.with(|driver| driver.strangers.len()).unwrap());
    }
    assert_eq!(most, 1);
}

#[test]
fn who_waits_for_a_connection_is_turned_away_at_the_end() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let (target, origin) = (open(true), open(false));
    target.with(|driver| driver.strangers_max = 0).unwrap();
    send(&origin, &origin.lookup(target.self_addr().uri()).unwrap());
    let began = Instant::now();
    while target.with(|driver| driver.callers.len()) == Some(0) {
        assert!(began.elapsed() < PATIENCE, "nobody calls");
        for end in [&target, &origin] {
            end.poll(16, &mut |completion| panic!("{completion:?}")).unwrap();
        }
    }
    assert_eq!(target.with(|driver| driver.is_busy()), Some(false), "nothing can be done");
    target.close();
    let error = until([&target, &origin], |completion| match completion {
        Completion::Send { result, .. } => result.err(),
        _ => None,
    });
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[test]
fn who_says_hello_twice_loses_its_connection() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let (target, origin) = (open(true), open(false));
    let to = origin.lookup(target.self_addr().uri()).unwrap();
    let room = |of: &UcxEndpoint| MsgBuf::with_capacity(of.limits().unexpected_bytes_max);
    target.recv_unexpected(OpId(2), room(&target)).unwrap();
    send(&origin, &to);
    let caller = until([&target, &origin], |completion| match completion {
        Completion::Recv { result, .. } => Some(result.unwrap().from),
        Completion::Send { result, .. } => {
            result.unwrap();
            None
        }
        other => panic!("{other:?}"),
    });
    target.recv_expected(OpId(3), &caller, Tag(7), room(&target)).unwrap();
    // Of the same session.
    origin.with(|driver| {
        let index = driver.index_of(&to).unwrap();
        let link = driver.peer(index).unwrap().link.unwrap();
        driver.greet(index, link);
    });
    let error = until([&target, &origin], |completion| match completion {
        Completion::Recv { op: OpId(3), result, .. } => result.err(),
        Completion::Send { result, .. } => {
            result.unwrap();
            None
        }
        other => panic!("{other:?}"),
    });
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

#[test]
fn who_is_at_no_address_is_unreachable() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let (target, origin) = (open(true), open(false));
    let uri = target.self_addr().uri().to_owned();
    let port = uri.rsplit(':').next().unwrap().parse().unwrap();
    let all = ["127.0.0.2", "127.0.0.3"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
    let name = PeerKey::Name("nowhere".into(), port);
    let to = origin.with(|driver| driver.lookup(name, all.to_vec(), None)).unwrap();
    send(&origin, &to);
    let error = until([&target, &origin], |completion| match completion {
        Completion::Send { result, .. } => result.err(),
        _ => None,
    });
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

/// They would pile up, as long as nobody looks at the peer.
#[test]
fn a_peer_that_takes_nothing_has_one_sign_of_life_on_the_way() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let mut options = OpenOptions::listening(true);
    options.message_bytes_max = 1 << 20;
    let origin = UcxEndpoint::open(&Uri::parse(OPEN.uri).unwrap(), &options).unwrap();
    // It wants to hear something ever so often.
    options.liveness_limit = Duration::from_secs(1);
    let target = UcxEndpoint::open(&Uri::parse(OPEN.uri).unwrap(), &options).unwrap();
    let to = origin.lookup(target.self_addr().uri()).unwrap();
    target.recv_unexpected(OpId(2), MsgBuf::with_capacity(1 << 20)).unwrap();
    send(&origin, &to);
    let mut left = 2;
    until([&target, &origin], |_| {
        left -= 1;
        (left == 0).then_some(())
    });
    // More than sockets hold; the target is not polled any more.
    for kind in 0..8 {
        let mut buf = MsgBuf::with_capacity(1 << 20);
        buf.set_len(1 << 20);
        match kind % 2 {
            0 => origin.send_unexpected(OpId(3), &to, Tag(7), buf).unwrap(),
            _ => origin.send_expected(OpId(3), &to, Tag(7), buf).unwrap(),
        }
    }
    let (mut most, mut began) = (0, Instant::now());
    let start = began;
    while began.elapsed() < Duration::from_secs(1) {
        assert!(start.elapsed() < PATIENCE, "no sign of life has to wait");
        origin.poll(16, &mut |_| {}).unwrap();
        let in_hand = |driver: &mut Driver| {
            let signs = driver.slots.iter().filter(|(_, work)| matches!(work, Work::Alive(..)));
            signs.count()
        };
        most = most.max(origin.with(in_hand).unwrap());
        // From the first one on.
        if most == 0 {
            began = Instant::now();
        }
    }
    assert_eq!(most, 1);
}

/// A listener that takes connections and says nothing, and what an endpoint calls it.
fn silent(origin: &UcxEndpoint) -> (std::net::TcpListener, Addr) {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("ucx+tcp://{}", silent.local_addr().unwrap());
    let to = origin.lookup(&uri).unwrap();
    (silent, to)
}

#[test]
fn not_every_poll_looks_at_all_peers_while_one_is_connecting() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let origin = open(false);
    let known: Vec<_> = (1..100)
        .map(|port| origin.lookup(&format!("ucx+tcp://127.0.0.1:{port}")).unwrap())
        .collect();
    let (_silent, to) = silent(&origin);
    let began = Instant::now();
    send(&origin, &to);
    for _ in 0..1000 {
        origin.poll(16, &mut |completion| panic!("{completion:?}")).unwrap();
    }
    // A quarter of its time at the latest, which has not passed.
    let next = origin.with(|driver| driver.next_deadline()).flatten().unwrap();
    let quarter = Duration::from_secs(900);
    assert!(next >= began + quarter && next <= Instant::now() + quarter);
    assert_eq!(origin.with(|driver| (driver.connecting, driver.walks)), Some((1, 0)));
    // When it is due, once, and then not before the next time.
    origin.with(|driver| driver.deadline_at = Some(began)).unwrap();
    for _ in 0..1000 {
        origin.poll(16, &mut |completion| panic!("{completion:?}")).unwrap();
    }
    assert_eq!(origin.with(|driver| driver.walks), Some(1));
    assert!(origin.with(|driver| driver.next_deadline()).flatten().unwrap() >= next);
    drop(known);
}

fn memory(of: &UcxEndpoint, bytes: Vec<u8>) -> LocalMem {
    of.register(Memory::from_vec(bytes), Access::ReadWrite).unwrap()
}

fn whole(local: &LocalMem, remote: &LocalMem) -> Transfer {
    let (len, remote) = (remote.len(), remote.region().describe());
    Transfer { local: local.clone(), local_offset: 0, remote, remote_offset: 0, len }
}

/// Messages that the driver counts, and those that there are: in queues, and in UCX's hands.
fn counted(driver: &Driver) -> ([usize; 2], [usize; 2]) {
    let queues = driver.peers.iter().flatten().flat_map(|peer| &peer.queues);
    let sends = driver.slots.iter().filter(|(_, work)| matches!(work, Work::Send { .. }));
    let are = [queues.map(VecDeque::len).sum(), sends.count()];
    ([driver.queued, driver.slots.sends()], are)
}

#[test]
fn a_cancel_looks_only_at_what_it_may_concern() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let origin = open(false);
    let (_silent, to) = silent(&origin);
    let mem = memory(&origin, vec![0; 100]);
    for op in 0..10 {
        origin.send_unexpected(OpId(op), &to, Tag(7), MsgBuf::with_capacity(8)).unwrap();
        origin.get(OpId(100 + op), &to, whole(&mem, &mem)).unwrap();
    }
    let mut ended = Vec::new();
    let mut cancel = |ops: std::ops::Range<u64>| {
        ops.clone().for_each(|op| origin.cancel(OpId(op)));
        let mut sink = |completion: Completion| match completion {
            Completion::Send { op, result: Err(Error::Canceled), .. }
            | Completion::Transfer { op, result: Err(Error::Canceled) } => ended.push(op.0),
            other => panic!("{other:?}"),
        };
        origin.poll(64, &mut sink).unwrap();
        ended.sort_unstable();
        assert_eq!(std::mem::take(&mut ended), ops.collect::<Vec<_>>());
        origin.with(|driver| (counted(driver), driver.walks)).unwrap()
    };
    assert_eq!(cancel(100..110), (([10, 0], [10, 0]), 0), "of transfers");
    assert_eq!(cancel(2..5), (([7, 0], [7, 0]), 3), "of messages, one look each");
    let index = origin.with(|driver| driver.index_of(&to)).flatten().unwrap();
    origin.with(|driver| driver.end_session_for(index, "a test".into())).unwrap();
    let (counts, walks) = origin.with(|driver| (counted(driver), driver.walks)).unwrap();
    assert_eq!(counts, ([0; 2], [0; 2]));
    origin.cancel(OpId(999));
    assert_eq!(origin.with(|driver| driver.walks), Some(walks), "nothing is sent");
}

#[test]
fn messages_that_are_under_way_are_counted_until_they_have_left() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let mut options = OpenOptions::listening(true);
    options.message_bytes_max = 1 << 20;
    let open = || UcxEndpoint::open(&Uri::parse(OPEN.uri).unwrap(), &options).unwrap();
    let (target, origin) = (open(), open());
    let to = origin.lookup(target.self_addr().uri()).unwrap();
    for op in 0..4 {
        target.recv_unexpected(OpId(100 + op), MsgBuf::with_capacity(1 << 20)).unwrap();
        let mut buf = MsgBuf::with_capacity(1 << 20);
        buf.set_len(1 << 20);
        origin.send_unexpected(OpId(op), &to, Tag(7), buf).unwrap();
    }
    let (mut left, mut most) = (8, [0; 2]);
    let began = Instant::now();
    while left > 0 {
        assert!(began.elapsed() < PATIENCE, "{left} are left");
        for end in [&target, &origin] {
            end.poll(1, &mut |_| left -= 1).unwrap();
        }
        let (counted, are) = origin.with(|driver| counted(driver)).unwrap();
        assert_eq!(counted, are);
        most = [most[0].max(are[0]), most[1].max(are[1])];
    }
    assert!(most[0] > 0 && most[1] > 0, "{most:?}");
    assert_eq!(origin.with(|driver| counted(driver)), Some(([0; 2], [0; 2])));
}

/// An offer of memory that nobody has looked at stays the parent's.
#[test]
fn a_child_that_drops_its_copy_refuses_no_offer() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let mut options = OpenOptions::listening(true);
    options.ucx.rendezvous_bytes_min = Some(1);
    let open = || UcxEndpoint::open(&Uri::parse(OPEN.uri).unwrap(), &options).unwrap();
    let (target, origin) = (open(), open());
    let to = origin.lookup(target.self_addr().uri()).unwrap();
    let bytes: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
    let (theirs, own) = (memory(&target, vec![0; bytes.len()]), memory(&origin, bytes.clone()));
    origin.put(OpId(1), &to, whole(&own, &theirs)).unwrap();
    let quietly = |end: &UcxEndpoint| {
        end.poll(16, &mut |completion| panic!("{completion:?}")).unwrap();
    };
    let began = Instant::now();
    let wait = |what: &str| assert!(began.elapsed() < PATIENCE, "no {what}");
    let is_asked =
        |driver: &mut Driver| driver.peers.iter().flatten().any(|p| !p.leases.is_empty());
    while target.with(is_asked) == Some(false) {
        wait("transfer");
        quietly(&origin);
        quietly(&target);
    }
    // From now on what comes is not looked at.
    let is_offered = |driver: &mut Driver| {
        driver.worker.as_ref().unwrap().progress();
        let state = driver.state();
        state.events.iter().any(|event| matches!(event, Event::Conn(_, ConnEvent::Piece(..))))
    };
    while target.with(is_offered) == Some(false) {
        wait("offer");
        quietly(&origin);
    }
    na_core::conformance::hear_of_children();
    // SAFETY: the child runs this thread alone; it drops values and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no second process");
    if child == 0 {
        drop(target);
        // SAFETY: ends the child without its parent's destructors and output.
        unsafe { libc::_exit(0) };
    }
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    let ended = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    assert_eq!(ended.unwrap().unwrap().1.exit_status(), Some(0));
    until([&target, &origin], |completion| match completion {
        Completion::Transfer { op: OpId(1), result } => {
            result.unwrap();
            Some(())
        }
        other => panic!("{other:?}"),
    });
    let mut written = Vec::new();
    assert!(theirs.region().append_to(0, bytes.len(), &mut written));
    assert!(written == bytes);
}

/// Polls all until something holds; what is received is counted, and sends end well.
fn all_until(ends: &[&UcxEndpoint], mut is_done: impl FnMut(usize) -> bool) {
    let began = Instant::now();
    let mut came = 0;
    while !is_done(came) {
        assert!(began.elapsed() < PATIENCE, "nothing happens; {came} have come");
        for end in ends {
            let mut sink = |completion| match completion {
                Completion::Recv { result, .. } => came += usize::from(result.is_ok()),
                Completion::Send { result, .. } => result.unwrap(),
                other @ Completion::Transfer { .. } => panic!("{other:?}"),
            };
            end.poll(16, &mut sink).unwrap();
        }
    }
}

#[test]
fn connections_beyond_the_bound_are_refused_until_one_ends() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let mut options = OpenOptions::listening(true);
    options.ucx.connections_max = 2;
    let target = UcxEndpoint::open(&Uri::parse(OPEN.uri).unwrap(), &options).unwrap();
    let mut origins: Vec<_> = (0..3).map(|_| open(false)).collect();
    for _ in 0..3 {
        let room = MsgBuf::with_capacity(target.limits().unexpected_bytes_max);
        target.recv_unexpected(OpId(2), room).unwrap();
    }
    let call = |origin: &UcxEndpoint| {
        send(origin, &origin.lookup(target.self_addr().uri()).unwrap());
    };
    for origin in &origins[..2] {
        call(origin);
        all_until(&[&target, origin], |came| came == 1);
    }
    assert_eq!(target.with(|driver| driver.accepted), Some(2));
    call(&origins[2]);
    let error = until([&target, &origins[2]], |completion| match completion {
        Completion::Send { result, .. } => result.err(),
        other => panic!("{other:?}"),
    });
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    drop(origins.remove(0));
    all_until(&[&target], |_| target.with(|driver| driver.accepted) == Some(1));
    call(&origins[1]);
    all_until(&[&target, &origins[1]], |came| came == 1);
    assert_eq!(target.with(|driver| driver.accepted), Some(2));
}

#[test]
fn a_bound_that_lets_nobody_in_is_refused() {
    type Set = fn(&mut OpenOptions);
    let nobody: Set = |options| options.ucx.connections_max = 0;
    let no_answers: Set = |options| options.unread_answers_max = Some(0);
    for (set, named) in [(nobody, "ucx.connections_max"), (no_answers, "unread_answers_max")] {
        let mut options = OpenOptions::listening(true);
        set(&mut options);
        let error = Ucx.check(&Uri::parse(OPEN.uri).unwrap(), &options).unwrap_err();
        assert!(matches!(error, Error::BadOption { option, .. } if option == named), "{error}");
    }
}

/// Connects once more, and says hello if `greets`.
fn connect_again(origin: &UcxEndpoint, to: &Addr, target: &UcxEndpoint, greets: bool) {
    let there: SocketAddr = target.self_addr().uri().rsplit('/').next().unwrap().parse().unwrap();
    let connect = |driver: &mut Driver| {
        let index = driver.index_of(to).unwrap();
        let link = driver.worker.as_ref().unwrap().connect(there).unwrap();
        driver.state().links.insert(link as usize, Link::default());
        driver.peer(index).unwrap().link = Some(link);
        if greets {
            driver.greet(index, link);
        }
    };
    origin.with(connect).unwrap();
}

#[test]
fn the_oldest_that_says_no_hello_gives_its_place_to_who_waits() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let (target, origin) = (open(true), open(false));
    let crowd = [open(false), open(false)];
    target.with(|driver| driver.strangers_max = 2).unwrap();
    let came = || {
        let came = |driver: &mut Driver| {
            let mut came: Vec<_> = driver.strangers.values().map(|own| own.came).collect();
            came.sort_unstable();
            came
        };
        target.with(came).unwrap()
    };
    for (count, silent) in (1..).zip(&crowd) {
        let to = silent.lookup(target.self_addr().uri()).unwrap();
        connect_again(silent, &to, &target, false);
        all_until(&[&target, silent], |_| came().len() == count);
    }
    let all = [&target, &crowd[0], &crowd[1], &origin];
    let crowd_came = came();
    let room = MsgBuf::with_capacity(target.limits().unexpected_bytes_max);
    target.recv_unexpected(OpId(2), room).unwrap();
    send(&origin, &origin.lookup(target.self_addr().uri()).unwrap());
    all_until(&all, |_| {
        let waits = target.with(|driver| !driver.callers.is_empty()).unwrap();
        // Whoever sleeps now wakes for it.
        let wakes = target.with(|driver| driver.next_deadline()).flatten();
        assert!(!waits || wakes.is_some_and(|at| at <= Instant::now() + ROOM_PATIENCE));
        waits
    });
    assert!(came() == crowd_came, "as long as it has not had its time");
    all_until(&all, |came| came == 1);
    assert_eq!(came(), crowd_came[1..]);
}

#[test]
fn of_what_others_can_do_without_end_ever_less_is_logged() {
    let mut count = 0;
    let logged: Vec<_> = (0..100).filter_map(|_| next_notice(&mut count)).collect();
    assert_eq!(logged, [1, 2, 4, 8, 16, 32, 64]);
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    // Of this kind, of which there are many, and of no other.
    let target = open(true);
    for _ in 0..3 {
        let origin = open(false);
        let to = origin.lookup(target.self_addr().uri()).unwrap();
        connect_again(&origin, &to, &target, false);
        let mut link = std::ptr::null_mut();
        all_until(&[&target, &origin], |_| {
            let first = |driver: &mut Driver| driver.strangers.keys().next().copied();
            link = target.with(first).flatten().unwrap_or_default() as ucp_ep_h;
            !link.is_null()
        });
        target.with(|driver| driver.broke(link, "a test".into())).unwrap();
    }
    let counted = target.with(|driver| (driver.notices.strange, driver.notices.broke));
    assert_eq!(counted, Some((3, 0)));
}
