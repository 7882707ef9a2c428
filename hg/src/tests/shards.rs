//! Several shards of one group.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Steps all sides until `done`.
fn drive_all(sides: &mut [Side], what: &str, done: impl Fn(&[Side]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done(sides) {
        sides.iter_mut().for_each(|side| _ = side.step());
        assert!(Instant::now() < deadline, "{what} does not happen");
    }
}

/// Counts how often a shard is woken.
fn count_wakes(side: &Side) -> Arc<AtomicUsize> {
    let wakes = Arc::new(AtomicUsize::new(0));
    let count = wakes.clone();
    side.core.set_waker(move || _ = count.fetch_add(1, Ordering::Relaxed));
    wakes
}

/// A request goes up where it arrives, and its answer where it was called from.
#[test]
fn each_shard_serves_its_own_connections() {
    let net = Net::default();
    let mut sides = Side::group(&net, 2, HgOptions::default());
    sides.extend(Side::group(&net, 2, HgOptions::default()));
    for (token, (from, to)) in [(0, 2), (0, 3), (1, 3)].into_iter().enumerate() {
        let token = token as u32;
        sides[from].call(&sides[to], b"", token);
        drive_all(&mut sides, "a request", |sides| !sides[to].notes.requests.is_empty());
        let request = sides[to].notes.requests.remove(0);
        assert_eq!((usize::from(request.cookie()), request.target()), (from, None));
        assert_eq!(usize::from(request.shard()), to - 2);
        assert_eq!(*request.origin(), sides[to].addr_of(&sides[0]), "one peer");
        answer(request, &[from as u8], token);
        drive_all(&mut sides, "its answer", |sides| !sides[from].notes.responses.is_empty());
        assert_eq!(ended(&mut sides[from], token).unwrap(), [from as u8]);
    }
    let counters = |side: &Side| side.core.counters();
    assert_eq!(counters(&sides[0]).rpc_req_sent, 3, "of all shards");
    assert_eq!((counters(&sides[3]), counters(&sides[2]).rpc_req_recv), (counters(&sides[2]), 3));
    assert_eq!(sides[0].core.in_hand().operations, 0);
}

#[test]
fn a_call_to_ourselves_stays_on_its_shard_unless_it_names_another() {
    let net = Net::default();
    let mut sides = Side::group(&net, 2, HgOptions::default());
    let wakes = [count_wakes(&sides[0]), count_wakes(&sides[1])];
    let me = sides[0].core.self_addr();
    let forward = |side: &Side, options, token| {
        side.core.forward(&me, SUM, options, |_| Ok(()), token).expect("forward")
    };
    forward(&sides[1], ForwardOptions::default(), 1);
    sides[1].step();
    let request = sides[1].notes.requests.remove(0);
    answer_oneself(request, b"here");
    sides[1].step();
    assert_eq!(ended(&mut sides[1], 1).unwrap(), b"here");
    let woken = || wakes.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!(woken(), [0, 0]);
    // One that is not there is no other.
    forward(&sides[0], ForwardOptions::to_context(9), 2);
    sides[0].step();
    answer_oneself(sides[0].notes.requests.remove(0), b"");
    forward(&sides[0], ForwardOptions::to_context(1), 3);
    assert_eq!(woken(), [0, 1], "it may sleep");
    sides[1].step();
    let request = sides[1].notes.requests.remove(0);
    assert_eq!((request.cookie(), request.shard()), (0, 1));
    answer_oneself(request, b"there");
    assert_eq!(woken(), [1, 1]);
    sides[0].step();
    assert_eq!(ended(&mut sides[0], 3).unwrap(), b"there");
}

/// Any shard may be asked to give an operation up, and to close.
#[test]
fn operations_of_another_shard_can_be_ended() {
    let net = Net::default();
    let mut sides = Side::group(&net, 2, HgOptions::default());
    sides.push(Side::new(&net, HgOptions::default()));
    let wakes = count_wakes(&sides[0]);
    let op = sides[0].call(&sides[2], b"", 1);
    assert_eq!(op.shard(), 0);
    let target = sides[1].addr_of(&sides[2]);
    sides[1].core.cancel_call(op, &target);
    assert_eq!(wakes.load(Ordering::Relaxed), 1);
    sides[0].step();
    assert!(matches!(ended(&mut sides[0], 1), Err(HgError::Canceled)));
    sides[0].call(&sides[2], b"", 2);
    sides[1].core.close();
    assert!(sides[0].core.is_closed() && wakes.load(Ordering::Relaxed) == 2);
    drive_all(&mut sides[..2], "the end", |sides| sides[0].core.in_flight() == 0);
    assert!(ended(&mut sides[0], 2).is_err());
}

/// Requests have a bound together, and each shard has its part; bytes are counted for all.
#[test]
fn shards_share_the_bounds() {
    let net = Net::default();
    let options = HgOptions {
        request_post_init: 4,
        request_post_incr: 0,
        requests_max: 4,
        overflow_held_max: 8000,
        ..HgOptions::default()
    };
    let mut sides = Side::group(&net, 2, options);
    sides.push(Side::new(&net, HgOptions::default()));
    assert_eq!([sides[0].receives(), sides[1].receives()], [2, 2]);
    for token in 0..3 {
        sides[2].call(&sides[0], b"", token);
    }
    sides[2].call(&sides[1], b"", 3);
    while sides.iter_mut().map(Side::step).sum::<usize>() > 0 {}
    let arrived = |side: &Side| side.notes.requests.len();
    assert_eq!([arrived(&sides[0]), arrived(&sides[1])], [2, 1], "the third is held back");
    sides[..2].iter_mut().for_each(|shard| shard.notes.requests.clear());
    while sides.iter_mut().map(Side::step).sum::<usize>() > 0 {}
    sides[0].notes.requests.clear();
    while sides.iter_mut().map(Side::step).sum::<usize>() > 0 {}
    sides[2].notes.responses.clear();
    // Long arguments at one shard leave no room for those at another.
    sides[2].call(&sides[0], &pattern(5000), 4);
    drive_all(&mut sides, "long arguments", |sides| !sides[0].notes.requests.is_empty());
    sides[2].call(&sides[1], &pattern(5000), 5);
    drive_all(&mut sides, "a refusal", |sides| !sides[2].notes.responses.is_empty());
    let refused = ended(&mut sides[2], 5).unwrap_err();
    assert!(matches!(refused, HgError::Remote(ReturnCode::Again)), "{refused:?}");
    sides[0].notes.requests.clear();
    sides[2].call(&sides[1], &pattern(5000), 6);
    drive_all(&mut sides, "long arguments", |sides| !sides[1].notes.requests.is_empty());
    assert_eq!(sides[1].notes.requests[0].payload(), pattern(5000));
    sides[1].notes.requests.clear();
    assert_eq!(sides[0].core.class.held.bytes(), 0);
}

#[test]
fn a_group_has_bounds() {
    let net = Net::default();
    for count in [0, 129] {
        let endpoints = net.group(count).into_iter().map(|one| one as Arc<dyn Endpoint>);
        let refused = Core::<u32>::group(endpoints.collect(), HgOptions::default()).unwrap_err();
        assert!(refused.to_string().contains("1 to 128"), "{refused}");
    }
}
