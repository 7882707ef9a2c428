//! Effects of options and of registrations; answers that are given up.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[test]
fn an_answer_that_is_not_fetched_can_be_given_up() {
    let (mut origin, mut target) = pair();
    origin.call(&target, b"", 1);
    let request = arrive(&mut origin, &mut target);
    let op = answer(request, &pattern(2000), 2);
    target.step();
    assert_eq!(target.endpoint.registered(), 1);
    target.core.cancel(op);
    target.core.cancel(op);
    assert_eq!(target.endpoint.registered(), 0, "the result is ours again");
    settle(&mut origin, &mut target);
    assert!(matches!(target.notes.responded[&2], Err(HgError::Canceled)));
    // The origin learns it when it comes to fetch the result.
    assert!(ended(&mut origin, 1).is_err());
    assert_eq!((origin.core.in_flight(), target.core.in_flight()), (0, 0));
    assert_eq!((origin.endpoint.posted().1, target.endpoint.posted().1), (0, 0));
    assert_eq!(target.core.counters().canceled, 1);
    assert_eq!((origin.core.in_hand().operations, target.core.in_hand().operations), (0, 0));
}

#[test]
fn an_answer_that_is_being_sent_ends_when_the_network_lets_go_of_it() {
    let (mut origin, mut target) = pair();
    origin.call(&target, b"", 1);
    let request = arrive(&mut origin, &mut target);
    target.endpoint.hold_sends(true);
    let op = answer(request, b"result", 2);
    target.core.cancel(op);
    settle(&mut origin, &mut target);
    assert!(target.notes.responded.is_empty(), "its buffer is in the network");
    target.endpoint.hold_sends(false);
    settle(&mut origin, &mut target);
    assert!(matches!(target.notes.responded[&2], Err(HgError::Canceled)));
    assert_eq!(ended(&mut origin, 1).unwrap(), b"result", "it was half sent");
}

#[test]
fn a_sink_that_panics_does_not_stop_the_core() {
    struct Panics;
    impl Sink<u32> for Panics {
        fn request(&mut self, _: RequestHandle<u32>) {
            panic!("on purpose")
        }
        fn response(&mut self, _: u32, _: Result<Response, HgError>) {}
        fn responded(&mut self, _: u32, _: Result<(), HgError>) {}
        fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
    }
    let (mut origin, mut target) = pair();
    origin.call(&target, b"", 1);
    let deadline = Instant::now() + PATIENCE;
    while catch_unwind(AssertUnwindSafe(|| target.core.poll(16, &mut Panics))).is_ok() {
        origin.step();
        assert!(Instant::now() < deadline, "no request");
    }
    origin.call(&target, b"", 2);
    answer(arrive(&mut origin, &mut target), b"", 3);
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 2).unwrap(), b"");
}

#[test]
fn what_had_arrived_when_a_sink_panics_is_acted_on_next() {
    struct Panics;
    impl Sink<u32> for Panics {
        fn request(&mut self, _: RequestHandle<u32>) {
            panic!("on purpose")
        }
        fn response(&mut self, _: u32, _: Result<Response, HgError>) {}
        fn responded(&mut self, _: u32, _: Result<(), HgError>) {}
        fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
    }
    let (mut origin, mut target) = pair();
    for token in 1..=3 {
        origin.call(&target, &[token as u8], token);
    }
    let deadline = Instant::now() + PATIENCE;
    let mut arrived = 0;
    while arrived < 3 {
        origin.step();
        arrived += target.core.progress(16).expect("progress");
        assert!(Instant::now() < deadline, "no requests");
    }
    catch_unwind(AssertUnwindSafe(|| target.core.trigger(&mut Panics))).unwrap_err();
    for token in [2, 3] {
        let request = arrive(&mut origin, &mut target);
        assert_eq!(request.payload(), [token as u8], "in order, and but for the first");
        answer(request, b"", token);
    }
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 2).unwrap(), b"");
    assert_eq!(ended(&mut origin, 3).unwrap(), b"");
}

/// Replaces what is registered under the number and name of `new`.
fn replace(side: &Side, new: Registration) {
    let old = side.core.registered(new.id()).expect("an RPC");
    side.core.replace(&old, new).expect("nobody else does");
}

#[test]
fn both_sides_have_to_agree_that_there_is_no_response() {
    let (mut origin, mut target) = pair();
    replace(&target, Registration::mercury("sum").no_response());
    origin.call(&target, b"", 1);
    settle(&mut origin, &mut target);
    let error = ended(&mut origin, 1).unwrap_err();
    assert!(matches!(error, HgError::Remote(ReturnCode::OpNotSupported)), "{error}");
    replace(&origin, Registration::mercury("sum").no_response());
    origin.call(&target, b"", 2);
    assert!(arrive(&mut origin, &mut target).is_one_way());
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 2).unwrap(), b"");
}

#[test]
fn data_and_requests_outlive_their_registration() {
    let (mut origin, mut target) = pair();
    let data = Arc::new(41u32);
    let with_data = |data| Registration::mercury("sum").data(data);
    replace(&target, with_data(data.clone()));
    origin.call(&target, b"", 1);
    let request = arrive(&mut origin, &mut target);
    replace(&target, with_data(Arc::new(42u32)));
    assert_eq!((request.data(), request.data::<u64>()), (Some(&41u32), None));
    assert_eq!(request.registration().map(|there| there.name()), Some("sum"));
    assert!(target.core.deregister(SUM).is_some());
    answer(request, b"", 2);
    settle(&mut origin, &mut target);
    assert_eq!(ended(&mut origin, 1).unwrap(), b"");
    assert_eq!(Arc::strong_count(&data), 1, "nobody keeps it");
    origin.call(&target, b"", 3);
    settle(&mut origin, &mut target);
    assert!(matches!(ended(&mut origin, 3), Err(HgError::Remote(ReturnCode::NoEntry))));
    assert_eq!(target.core.counters().not_registered, 1);
}

#[test]
fn without_growth_requests_wait_for_a_receive() {
    let options = HgOptions { request_post_init: 2, request_post_incr: 0, ..HgOptions::default() };
    let (mut origin, mut target) = pair_with(options);
    for n in 0..5 {
        origin.call(&target, b"", n);
    }
    settle(&mut origin, &mut target);
    assert_eq!(target.notes.requests.len(), 2);
    assert_eq!(target.core.in_hand().requests_held, 2);
    for n in 0..5 {
        let request = arrive(&mut origin, &mut target);
        answer(request, b"", 10 + n);
    }
    settle(&mut origin, &mut target);
    assert_eq!(origin.notes.responses.len(), 5);
    let hand = target.core.in_hand();
    assert_eq!((hand.requests_held, hand.receives_posted), (0, 2));
}

#[test]
fn input_is_released_when_it_was_read_if_so_asked() {
    for early in [false, true] {
        let options = HgOptions {
            request_post_init: 1,
            request_post_incr: 0,
            release_input_early: early,
            ..HgOptions::default()
        };
        let (mut origin, mut target) = pair_with(options);
        origin.call(&target, b"arguments", 1);
        let mut request = arrive(&mut origin, &mut target);
        assert_eq!(request.input(|payload| payload.len()), 9);
        assert_eq!(request.payload().is_empty(), early);
        assert_eq!(request.payload_bytes(), 9);
        assert_eq!(target.core.in_hand().requests_held, usize::from(!early));
        answer(request, b"", 2);
        settle(&mut origin, &mut target);
        assert_eq!(target.core.in_hand().requests_held, 0);
    }
}

#[test]
fn arguments_that_panic_while_they_are_encoded_leave_nothing_behind() {
    let (origin, target) = pair();
    let to = origin.addr_of(&target);
    for to in [&to, &origin.core.self_addr()] {
        let call = || {
            let options = ForwardOptions::default();
            origin.core.forward(to, SUM, options, |_| panic!("of the test"), 1)
        };
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
        let hand = origin.core.in_hand();
        assert_eq!((hand.operations, hand.tokens), (0, 0));
        assert_eq!(origin.core.counters().rpc_req_sent, 0);
    }
}

#[test]
fn collisions_are_told_at_registration() {
    let (origin, _target) = pair();
    let again = origin.core.register(Registration::mercury("sum")).unwrap_err();
    assert!(matches!(again, HgError::Registered { .. }), "{again}");
    let other = origin.core.register(Registration::with_id(SUM, "other")).unwrap_err();
    assert!(matches!(other, HgError::Collision { .. }), "{other}");
    assert_eq!(origin.core.registered(SUM).unwrap().name(), "sum");
}

#[test]
fn a_shard_that_cannot_be_is_refused() {
    let (origin, target) = pair();
    let to = origin.addr_of(&target);
    let refused =
        origin.core.forward(&to, SUM, ForwardOptions::to_context(128), |_| Ok(()), 1).unwrap_err();
    assert!(matches!(*refused, (HgError::Na(na::Error::InvalidArgument(_)), 1)));
}

/// Log lines of this thread, as text.
#[derive(Debug, Default)]
struct Log(Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line.push_str(&format!("{field}={value:?} "));
        });
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn counters_are_logged_at_the_end_if_so_asked() {
    for stats in [true, false] {
        let (mut origin, mut target) = pair_with(HgOptions { stats, ..HgOptions::default() });
        origin.call(&target, b"arguments", 1);
        answer(arrive(&mut origin, &mut target), b"result", 2);
        settle(&mut origin, &mut target);
        assert_eq!(ended(&mut origin, 1).unwrap(), b"result");
        let log = Log::default();
        let lines = log.0.clone();
        tracing::subscriber::with_default(log, || drop((origin, target)));
        let mut lines = lines.lock().unwrap();
        lines.retain(|line| line.contains("rpc_req_sent"));
        assert_eq!(lines.len(), if stats { 2 } else { 0 }, "{lines:?}");
        let sent = lines.iter().filter(|line| line.contains("rpc_req_sent: 1, rpc_req_recv: 0"));
        assert_eq!(sent.count(), usize::from(stats), "{lines:?}");
    }
}
