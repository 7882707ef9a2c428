//! Groups over UCX and their callers, where `MARGO_TEST_UCX=1` is set.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::Ucx;
use crate::endpoint::UcxEndpoint;
use crate::operations::inbox::Link;
use na_core::conformance::{Optional, PATIENCE};
use na_core::{Addr, Completion, Endpoint, Error, OpId, OpenOptions, Plugin, Tag, Uri};

const OPEN: Optional = Optional {
    variable: "MARGO_TEST_UCX",
    uri: "ucx+tcp://127.0.0.1:0",
    open: |uri, options| Ucx.open(&Uri::parse(uri)?, options),
};

fn open_with(options: &OpenOptions, shards: usize) -> Vec<UcxEndpoint> {
    let mut options = options.clone();
    // No connection is given up because of the time that it takes.
    options.connect_timeout = Duration::from_secs(3600);
    UcxEndpoint::open_group(&Uri::parse(OPEN.uri).unwrap(), &options, shards).unwrap()
}

fn open(listen: bool, shards: usize) -> Vec<UcxEndpoint> {
    open_with(&OpenOptions::listening(listen), shards)
}

/// How many messages came to each endpoint, and how their sends ended.
#[derive(Debug, Default)]
struct Seen {
    came: Vec<usize>,
    sent: Vec<Result<(), Error>>,
}

/// Polls the endpoints until `is_done`.
fn until(ends: &[&UcxEndpoint], mut is_done: impl FnMut(&Seen) -> bool) -> Seen {
    let began = Instant::now();
    let mut seen = Seen { came: vec![0; ends.len()], sent: Vec::new() };
    while !is_done(&seen) {
        assert!(began.elapsed() < PATIENCE, "nothing happens: {seen:?}");
        for (at, end) in ends.iter().enumerate() {
            let mut sink = |completion| match completion {
                Completion::Recv { result, .. } => seen.came[at] += usize::from(result.is_ok()),
                Completion::Send { result, .. } => seen.sent.push(result),
                other @ Completion::Transfer { .. } => panic!("{other:?}"),
            };
            end.poll(16, &mut sink).unwrap();
        }
    }
    seen
}

fn receive(ends: &[UcxEndpoint]) {
    for end in ends {
        (0..8).for_each(|op| end.recv_unexpected(OpId(op), end.alloc_msg()).unwrap());
    }
}

fn send(from: &UcxEndpoint, to: &Addr) {
    let mut buf = from.alloc_msg();
    assert!(buf.try_extend(b"hello"));
    from.send_unexpected(OpId(100), to, Tag(7), buf).unwrap();
}

fn refs(ends: &[UcxEndpoint]) -> Vec<&UcxEndpoint> {
    ends.iter().collect()
}

fn counts(of: &UcxEndpoint) -> (usize, Vec<usize>) {
    of.with(|driver| driver.facts.group.counts()).unwrap()
}

/// How often the call to `to` was sent on.
fn detours(from: &UcxEndpoint, to: &Addr) -> u32 {
    let detours = |driver: &mut Driver| {
        let index = driver.index_of(to).unwrap();
        driver.peer(index).unwrap().detours
    };
    from.with(detours).unwrap()
}

#[test]
fn who_knows_nothing_of_groups_stays_where_it_called() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let (group, callers) = (open(true, 3), open(false, 3));
    let there: SocketAddr = group[0].self_addr().uri().rsplit('/').next().unwrap().parse().unwrap();
    receive(&group);
    for caller in &callers {
        let to = caller.lookup(group[0].self_addr().uri()).unwrap();
        let connect = |driver: &mut Driver| {
            let index = driver.index_of(&to).unwrap();
            let link = driver.worker.as_ref().unwrap().connect(there).unwrap();
            driver.state().links.insert(link as usize, Link::default());
            let peer = driver.peer(index).unwrap();
            (peer.link, peer.phase) = (Some(link), Phase::Connecting);
            driver.connecting += 1;
            let hello = Hello {
                queues: 0,
                message_bytes_max: 4096,
                window: 64,
                alive_every_ms: 0,
                endpoint: 5,
                shards: None,
                remote_keys: false,
                uri: String::new(),
            };
            driver.tell_as(link, &Control::Hello(hello), Work::Elsewhere);
        };
        caller.with(connect).unwrap();
        send(caller, &to);
    }
    let ends = [refs(&group), refs(&callers)].concat();
    let seen = until(&ends, |seen| seen.came[0] == 3);
    assert_eq!(seen.came[1..], [0; 5]);
    assert_eq!(counts(&group[0]).0, 3);
}

#[test]
fn who_is_on_its_way_to_an_endpoint_that_closes_gets_another_one() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let (mut group, caller) = (open(true, 3), open(false, 1));
    receive(&group);
    let to = caller[0].lookup_shard(group[0].self_addr().uri(), 1).unwrap();
    send(&caller[0], &to);
    until(&[&group[0], &caller[0]], |_| detours(&caller[0], &to) == 1);
    // Its receives end with it.
    let closed = group.remove(1);
    closed.close();
    let ends = [refs(&group), refs(&caller)].concat();
    let seen = until(&ends, |seen| seen.came.iter().sum::<usize>() == 1);
    assert!(seen.sent.iter().all(Result::is_ok), "{seen:?}");
    assert_eq!(detours(&caller[0], &to), 0, "it is connected");
}

#[test]
fn a_group_that_calls_has_a_bound_of_connections_over_ucx() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let (group, callers) = (open(true, 2), open(false, 2));
    receive(&group);
    let ends = [refs(&group), refs(&callers)].concat();
    let uri = group[0].self_addr().uri().to_owned();
    let wishes = [None, Some(0), Some(1), Some(2)];
    let calls = [0, 1].map(|caller| wishes.map(|wanted| (caller, wanted)));
    for (before, (caller, wanted)) in calls.into_iter().flatten().enumerate() {
        let caller: &UcxEndpoint = &callers[caller];
        let to = match wanted {
            Some(shard) => caller.lookup_shard(&uri, shard).unwrap(),
            None => caller.lookup(&uri).unwrap(),
        };
        send(caller, &to);
        let is_over = |seen: &Seen| {
            let has_come = seen.came.iter().sum::<usize>() == 1;
            !seen.sent.is_empty() && (has_come || seen.sent[0].is_err())
        };
        let seen = until(&ends, is_over);
        // From each of theirs one for each of ours, and one more.
        let refused = matches!(seen.sent[0], Err(Error::Unreachable { .. }));
        assert_eq!(refused, before >= 6, "{before}: {seen:?}");
    }
    assert_eq!(counts(&group[0]).0, 6);
    drop(callers);
    until(&refs(&group), |_| counts(&group[0]) == (0, vec![0; 2]));
}

#[test]
fn the_bound_of_connections_is_one_for_the_whole_group() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let mut options = OpenOptions::listening(true);
    options.ucx.connections_max = 3;
    let group = open_with(&options, 2);
    receive(&group);
    let mut callers: Vec<_> = (0..4).flat_map(|_| open(false, 1)).collect();
    let uri = group[0].self_addr().uri().to_owned();
    for (before, caller) in callers.iter().enumerate() {
        send(caller, &caller.lookup(&uri).unwrap());
        let ends = [refs(&group), vec![caller]].concat();
        let seen = until(&ends, |seen| !seen.sent.is_empty());
        let refused = matches!(seen.sent[0], Err(Error::Unreachable { .. }));
        assert_eq!(refused, before >= 3, "{before}: {seen:?}");
    }
    callers.truncate(2);
    until(&refs(&group), |_| counts(&group[0]).0 == 2);
}

#[test]
fn who_is_sent_on_for_ever_gives_up() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    // Nobody polls it.
    let (target, caller) = (open(true, 1), open(false, 1));
    let caller = &caller[0];
    let to = caller.lookup(target[0].self_addr().uri()).unwrap();
    send(caller, &to);
    let port = target[0].self_addr().uri().rsplit(':').next().unwrap().parse().unwrap();
    let sent_on = |port| {
        let sent_on = |driver: &mut Driver| {
            let index = driver.index_of(&to).unwrap();
            let link = driver.peer(index).unwrap().link.unwrap();
            driver.sent_on(link, port, 1)
        };
        caller.with(sent_on).unwrap()
    };
    assert!(sent_on(0).is_err(), "no port");
    assert!((0..DETOURS_MAX).all(|_| sent_on(port).is_ok()));
    assert_eq!(detours(caller, &to), DETOURS_MAX);
    assert_eq!(sent_on(port), Ok(()));
    let seen = until(&[caller], |seen| !seen.sent.is_empty());
    let error = seen.sent[0].clone().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }) && error.to_string().contains("circles"));
    // And who is connected is not sent on.
    receive(&target);
    send(caller, &to);
    until(&[&target[0], caller], |seen| seen.came[0] == 1);
    assert_eq!(sent_on(port), Err("it sends on who is connected"));
}

#[test]
fn a_group_whose_address_is_taken_listens_there_as_soon_as_it_is_free() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    let (group, caller) = (open(true, 2), open(false, 1));
    let uri = group[0].self_addr().uri().to_owned();
    let address: SocketAddr = uri.rsplit('/').next().unwrap().parse().unwrap();
    group[0].close();
    let other = TcpListener::bind(address).unwrap();
    let tries_again = || group[1].with(|driver| driver.door_at).flatten();
    until(&[&group[1]], |_| tries_again().is_some());
    let wakes_at = group[1].with(|driver| driver.next_deadline()).flatten();
    assert!(wakes_at <= tries_again(), "it does not sleep longer");
    drop(other);
    until(&[&group[1]], |_| tries_again().is_none());
    receive(&group[1..]);
    send(&caller[0], &caller[0].lookup(&uri).unwrap());
    until(&[&group[1], &caller[0]], |seen| seen.came[0] == 1);
}

/// Polls an endpoint, and answers each message by its text, until `is_over`.
fn serve(shard: &UcxEndpoint, is_over: impl Fn() -> bool) {
    receive(std::slice::from_ref(shard));
    let mut done = Vec::new();
    while !is_over() {
        shard.poll(16, &mut |completion| done.push(completion)).unwrap();
        for completion in done.drain(..) {
            let Completion::Recv { op, buf, result: Ok(arrival) } = completion else { continue };
            shard.send_expected(OpId(100), &arrival.from, arrival.tag, buf).unwrap();
            shard.recv_unexpected(op, shard.alloc_msg()).unwrap();
        }
    }
}

/// Calls whoever is behind `uri` once; whether it was answered.
fn call(uri: &str, wanted: usize) -> bool {
    let caller = &open(false, 1)[0];
    let to = caller.lookup_shard(uri, wanted).unwrap();
    caller.recv_expected(OpId(1), &to, Tag(7), caller.alloc_msg()).unwrap();
    send(caller, &to);
    let began = Instant::now();
    let mut answered = None;
    while answered.is_none() {
        assert!(began.elapsed() < PATIENCE, "neither an answer nor an error");
        let mut sink = |completion| match completion {
            Completion::Recv { result, .. } => answered = Some(result.is_ok()),
            Completion::Send { result, .. } if result.is_err() => answered = Some(false),
            _ => {}
        };
        caller.poll(16, &mut sink).unwrap();
    }
    answered == Some(true)
}

/// Sets the flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each shard has a thread, each caller too. Two shards are closed while they call, at first the
/// one that has the door.
#[test]
fn shards_on_threads_of_their_own_serve_whoever_calls() {
    if let Some(lacks) = OPEN.lacks() {
        return println!("SKIPPED: {lacks}");
    }
    const CALLERS: usize = 4;
    const CALLS: usize = 5;
    let group = open(true, 4);
    let uri = group[0].self_addr().uri().to_owned();
    let (answered, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let count = || answered.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        // Also when a caller fails, so that its panic ends the test.
        let _over = Over(&over);
        for (at, shard) in group.iter().enumerate() {
            let (count, over) = (&count, &over);
            scope.spawn(move || {
                // The first two leave after one and two thirds of the calls.
                let last = if at < 2 { (at + 1) * CALLERS * CALLS / 3 } else { usize::MAX };
                serve(shard, || count() >= last || over.load(Ordering::Relaxed));
                shard.close();
            });
        }
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (uri, answered) = (&uri, &answered);
                scope.spawn(move || {
                    for at in 0..CALLS {
                        let began = Instant::now();
                        // Those that meet a shard which is just closed call again.
                        while !call(uri, if at % 2 == 0 { usize::MAX } else { caller }) {
                            assert!(began.elapsed() < PATIENCE, "nobody answers at {uri}");
                        }
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
    assert_eq!(count(), CALLERS * CALLS);
}
