//! Requests that lie in the transport, before a target that is busy, until their deadline is over.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, bounded, builder, on_each_with_extensions, one_shard_alone};
use margo::hg::header::{Format, ResponseHeader};
use margo::hg::proc::{WriterLimits, Written};
use margo::hg::{Writer, margo as prefix, proc, wire};
use margo::{ForwardError, ProviderHandle, ReturnCode, Rpc};
use na::{Completion, Endpoint, OpId};
use ult::Eventual;

const WORK: Rpc<u32, u32> = Rpc::new("work");
/// The argument that makes `WORK` hold its execution stream.
const HOLD: u32 = 0;

/// Short beside `PATIENCE`.
const SOON: Duration = Duration::from_millis(50);
const LATE: u64 = 3;

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

#[test]
fn what_expires_before_its_target_takes_it_in_is_not_started() {
    if one_shard_alone("other shards take it in while a handler holds one") {
        return;
    }
    on_each_with_extensions(|pair| {
        let (held, go) = (Arc::new(Eventual::<()>::new()), Arc::new(Eventual::<()>::new()));
        let ran = Arc::new(AtomicU64::new(0));
        let (is_held, may_go, counted) = (held.clone(), go.clone(), ran.clone());
        let work = move |n| {
            if n == HOLD {
                is_held.set(()).unwrap();
                // Not a wait that margo knows of: progress stands still with the execution stream.
                until("it may go on", || may_go.is_ready());
            } else {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            n
        };
        pair.service.serve(WORK).function(work).unwrap();
        let target = pair.target();
        let work = |n, limit| pair.client.forward_timed(WORK, &target, &n, limit);
        let began = Instant::now();
        work(1, PATIENCE).unwrap();
        // What the service takes for the least time of a request is no more than that.
        let round = began.elapsed();
        let (caller, to) = (pair.client.clone(), target.clone());
        let holds = std::thread::spawn(move || caller.forward(WORK, &to, &HOLD));
        held.wait();
        for n in 1..=LATE {
            let error = work(n as u32, SOON).unwrap_err();
            let is_late = matches!(error, ForwardError::TimedOut { never_ran: false, .. });
            assert!(is_late, "{error}");
        }
        let last = Instant::now();
        until("they are late by more than any mistake about them", || {
            last.elapsed() > SOON + round + began.elapsed() / 1000
        });
        assert_eq!(
            pair.service.monitoring().stats().requests_received,
            2,
            "they wait in the transport"
        );
        go.set(()).unwrap();
        holds.join().unwrap().unwrap();
        let abandoned = || pair.service.monitoring().stats().requests_abandoned;
        let begun = || ran.load(Ordering::SeqCst) - 1;
        until("all are dropped or handled", || abandoned() + begun() == LATE);
        assert_eq!((abandoned(), begun()), (LATE, 0));
        // Who comes in time is served.
        work(1, PATIENCE).unwrap();
        assert_eq!((abandoned(), begun()), (LATE, 1));
        pair.end();
    });
}

/// Takes one request in, and answers it with `code`. Returns the name of its sender's clock.
fn answer_one(endpoint: &dyn Endpoint, code: ReturnCode) -> u32 {
    let format = Format::default();
    endpoint.recv_unexpected(OpId(1), endpoint.alloc_msg()).unwrap();
    let (arrived, sent) = (RefCell::new(None), Cell::new(false));
    let poll = || {
        let mut note = |completion| match completion {
            Completion::Recv { buf, result, .. } => {
                arrived.replace(Some((buf, result.unwrap())));
            }
            Completion::Send { result, .. } => sent.set(result.is_ok()),
            other => panic!("{other:?}"),
        };
        endpoint.poll(1, &mut note).unwrap();
    };
    until("a request comes", || {
        poll();
        arrived.borrow().is_some()
    });
    let (request, arrival) = arrived.take().unwrap();
    let (header, _) = wire::decode_request(format, request.as_slice()).unwrap();
    let said = header.read_extension(request.as_slice()).unwrap();
    let response = ResponseHeader::answering(&header, ReturnCode::Success);
    let limits = WriterLimits::default();
    let encode = |writer: &mut Writer| {
        if code != ReturnCode::Success {
            return prefix::write_failure(writer, code, None);
        }
        prefix::write_response_prefix(writer, code)?;
        proc::to_writer(writer, &1u32)
    };
    let written = wire::encode_response(response, endpoint.alloc_msg(), 256, limits, encode);
    let Ok(Written::Fits(answer)) = written else { panic!("does not fit") };
    endpoint.send_expected(OpId(2), &arrival.from, arrival.tag, answer).unwrap();
    until("the answer is sent", || {
        poll();
        sent.get()
    });
    said.sent.unwrap().clock
}

#[test]
fn a_clock_that_a_target_is_mistaken_about_gets_another_name() {
    bounded("calls to an endpoint", || {
        let endpoint = na::open("na+sm://", &na::OpenOptions::listening(true)).unwrap();
        let client = builder("na+sm://").listen(false).start().unwrap();
        let addr = client.lookup(endpoint.self_addr().uri()).unwrap();
        let call = |code| {
            let (caller, to) = (client.clone(), ProviderHandle::from(addr.clone()));
            let calls = move || caller.forward_timed(WORK, &to, &1, PATIENCE);
            let call = std::thread::spawn(calls);
            (answer_one(&*endpoint, code), call.join().unwrap())
        };
        let (first, result) = call(ReturnCode::Success);
        assert_eq!(result.unwrap(), 1);
        let (second, result) = call(ReturnCode::Busy);
        assert!(matches!(result, Err(ForwardError::Busy { .. })), "{result:?}");
        // Of a minute not much is over.
        let (third, result) = call(ReturnCode::Timeout);
        assert!(matches!(result, Err(ForwardError::TimedOut { never_ran: true, .. })));
        assert_eq!([second, third], [first; 2], "there was no reason");
        let (renamed, result) = call(ReturnCode::Success);
        assert_eq!(result.unwrap(), 1);
        assert_ne!(renamed, first);
        let (after, _) = call(ReturnCode::Success);
        assert_eq!(after, renamed);
        client.finalize_and_wait().unwrap();
    });
}
