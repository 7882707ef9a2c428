//! Several contexts of one core, of which some do not poll, or end.

use super::*;

/// A context whose execution stream is busy takes no receives from the others.
#[test]
fn requests_that_wait_for_a_context_do_not_keep_others_out() {
    const POSTED: usize = 4;
    let net = Net::default();
    let options = HgOptions {
        max_contexts: 2,
        request_post_init: POSTED,
        request_post_incr: POSTED,
        ..HgOptions::default()
    };
    let mut target = Side::new(&net, options);
    let mut origin = Side::new(&net, HgOptions::default());
    let core = target.core.context().expect("a second context");
    let mut busy = Side { core, endpoint: target.endpoint.clone(), notes: Notes::default() };
    // Long ones and notices are handed over by another way than plain ones.
    for token in 0..5 * POSTED as u32 {
        let payload = if token.is_multiple_of(3) { pattern(5000) } else { Vec::new() };
        origin.call_with(&target, ForwardOptions::to_context(1), &payload, token);
    }
    origin.call(&target, b"to the other", 1000);
    let request = arrive(&mut origin, &mut target);
    assert_eq!(request.payload(), b"to the other");
    answer(request, b"answer", 1);
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 1000).unwrap(), b"answer");
    let held = target.core.state().receives.held;
    assert_eq!(held, 5 * POSTED, "each once");
    // They are not counted again.
    let deadline = Instant::now() + PATIENCE;
    while busy.notes.requests.len() < 5 * POSTED {
        busy.step();
        target.step();
        origin.step();
        assert!(Instant::now() < deadline, "{} requests", busy.notes.requests.len());
    }
    assert_eq!(target.core.state().receives.held, 5 * POSTED);
    assert_eq!(target.core.counters().rpc_req_recv as usize, 5 * POSTED + 1);
    for (number, request) in busy.notes.requests.drain(..).enumerate() {
        answer(request, b"", 10 + number as u32);
    }
    for token in 0..5 * POSTED as u32 {
        while !origin.notes.responses.contains_key(&token) {
            busy.step();
            target.step();
            origin.step();
            assert!(Instant::now() < deadline, "call {token}");
        }
    }
    assert_eq!(target.core.state().receives.held, 0);
}

/// Context 0 serves what waits for a context that ends, and what comes for it later.
#[test]
fn nothing_is_lost_with_a_context() {
    let net = Net::default();
    let options = HgOptions { max_contexts: 2, ..HgOptions::default() };
    let mut target = Side::new(&net, options);
    let mut origin = Side::new(&net, HgOptions::default());
    let core = target.core.context().expect("a second context");
    let mut second = Side { core, endpoint: target.endpoint.clone(), notes: Notes::default() };
    let to_second = ForwardOptions::to_context(1);
    // One whose arguments are being fetched,
    target.endpoint.stall_moves(true);
    origin.call_with(&target, to_second, &pattern(5000), 1);
    while second.step() + origin.step() > 0 {}
    // requests of which it was not told, of others and of our own,
    origin.call_with(&target, to_second, b"plain", 2);
    origin.call_with(&target, to_second, &pattern(5000), 3);
    settle(&mut origin, &mut target);
    target.call_with(&target, to_second, b"own", 4);
    assert!(target.notes.requests.is_empty() && second.notes.requests.is_empty());
    assert_eq!(target.core.state().receives.held, 3);
    drop(second);
    target.endpoint.stall_moves(false);
    // and one that comes later.
    origin.call_with(&target, to_second, b"late", 5);
    drive(&mut origin, &mut target, "the arrival", |_, target| target.notes.requests.len() == 4);
    settle(&mut origin, &mut target);
    let requests: Vec<_> = target.notes.requests.drain(..).collect();
    assert_eq!(requests.len(), 4);
    for (number, request) in (10..).zip(requests) {
        let payload = request.payload().to_vec();
        let local = *request.origin() == target.core.self_addr();
        assert!([&b"plain"[..], &pattern(5000), b"own", b"late"].contains(&&*payload));
        assert_eq!(local, payload == b"own");
        let _ = request.respond(|writer| writer.put(&payload), number).map_err(|failed| failed.0);
    }
    settle(&mut origin, &mut target);
    let again = ended(&mut origin, 1).unwrap_err();
    assert!(matches!(again, HgError::Remote(ReturnCode::Again)), "{again:?}");
    assert_eq!(ended(&mut origin, 2).unwrap(), b"plain");
    assert_eq!(ended(&mut origin, 3).unwrap(), pattern(5000));
    assert_eq!(ended(&mut target, 4).unwrap(), b"own");
    assert_eq!(ended(&mut origin, 5).unwrap(), b"late");
    let receives = &target.core.state().receives;
    assert_eq!((receives.held, receives.fetching, receives.bytes), (0, 0, 0));
}
