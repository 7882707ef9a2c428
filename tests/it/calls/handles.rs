//! Handlers that own the arguments of a request, and that answer with a code.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::bulk_support::Node;
use crate::common::{PATIENCE, builder, on_each};
use margo::hg::{ForwardOptions, HgOptions, margo as prefix, proc};
use margo::monitor::{Monitor, RequestOutcome, TargetSpan};
use margo::{ForwardError, Handle, Instance, ProviderId, RespondError, ReturnCode, Rpc};

/// No copy of it can be made.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Text(String);

const KEEP: Rpc<Text, u64> = Rpc::new("keep");
const FAIL: Rpc<i32, u64> = Rpc::new("fail");

/// Codes that only the runtime may send.
const RESERVED: [ReturnCode; 6] = [
    ReturnCode::Success,
    ReturnCode::NoEntry,
    ReturnCode::Permission,
    ReturnCode::ProtocolError,
    ReturnCode::Fault,
    ReturnCode::Timeout,
];
const COME_AGAIN: [ReturnCode; 2] = [ReturnCode::Busy, ReturnCode::Again];

#[test]
fn arguments_are_owned_and_the_rest_answers_elsewhere() {
    on_each(|pair| {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keeps = kept.clone();
        let keep = move |handle: Handle<Text, u64>| {
            let (text, rest) = handle.take_args();
            assert_eq!((rest.args(), rest.rpc_name()), (&(), "keep"));
            let answer = text.0.len() as u64;
            keeps.lock().unwrap().push(text);
            let pool = rest.instance().layout().rpc_pool();
            // One that is dropped unanswered is answered, as ever.
            pool.spawn(move || {
                if answer > 0 {
                    rest.respond(&answer).unwrap()
                }
            })
            .unwrap();
        };
        pair.service.register(KEEP, keep).unwrap();
        let ask = |text: &str| {
            pair.client.forward_timed(KEEP, &pair.target(), &Text(text.to_owned()), PATIENCE)
        };
        assert_eq!(ask("some text").unwrap(), 9);
        let error = ask("").unwrap_err();
        let is_it =
            matches!(&error, ForwardError::Failed { detail, .. } if detail.contains("ended"));
        assert!(is_it, "{error}");
        let kept: Vec<_> = kept.lock().unwrap().drain(..).map(|text| text.0).collect();
        assert_eq!(kept, ["some text", ""]);
        pair.end();
    });
}

#[derive(Default)]
struct Outcomes(Mutex<Vec<RequestOutcome>>);

impl Monitor for Outcomes {
    fn on_target_call(&self, span: &TargetSpan) {
        self.0.lock().unwrap().push(span.outcome);
    }
}

/// Answers with the code of that number, and with 1 if it may not.
fn serve_fail(service: &Instance) {
    service
        .register(FAIL, |handle| {
            let code = ReturnCode::Unknown(*handle.args());
            match handle.fail_with(code, "as it was told to") {
                Ok(()) => {
                    let twice = handle.fail_with(ReturnCode::Access, "").unwrap_err();
                    assert!(matches!(twice, RespondError::Answered { .. }), "{twice}");
                }
                Err(RespondError::Reserved { rpc: "fail", code: refused }) => {
                    assert_eq!(refused.number(), code.number());
                    handle.respond(&1).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        })
        .unwrap();
}

#[test]
fn a_handler_answers_with_a_code_of_its_own() {
    on_each(|pair| {
        serve_fail(&pair.service);
        let outcomes = Arc::new(Outcomes::default());
        pair.service.monitoring().add_monitor(outcomes.clone()).keep();
        let numbers = (-1..30).chain([i32::MIN, i32::MAX]);
        for number in numbers.clone() {
            let code = ReturnCode::from_number(number);
            let answer = pair.client.forward_timed(FAIL, &pair.target(), &number, PATIENCE);
            if RESERVED.contains(&code) {
                assert_eq!(answer.unwrap(), 1, "{code}");
                continue;
            }
            let error = answer.unwrap_err();
            assert_eq!(error.never_ran(), COME_AGAIN.contains(&code), "{error}");
            let detail = match error {
                ForwardError::Busy { detail, .. } => detail,
                ForwardError::Failed { code: found, detail, .. } => {
                    assert_eq!(found, code);
                    detail
                }
                other => panic!("{code}: {other}"),
            };
            assert_eq!(detail, "as it was told to", "{code}");
        }
        assert_eq!(pair.service.monitoring().stats().requests_busy, 0, "none was refused");
        pair.end();
        let outcomes = outcomes.0.lock().unwrap();
        let of = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
        let ok = RESERVED.len();
        assert_eq!(
            (of(RequestOutcome::Ok), of(RequestOutcome::Failed)),
            (ok, numbers.count() - ok)
        );
    });
}

#[test]
fn come_again_needs_no_words_and_is_not_taken_for_a_bound() {
    on_each(|pair| {
        pair.service
            .register(FAIL, |handle| handle.fail_with(ReturnCode::Busy, "").unwrap())
            .unwrap();
        let error = pair.client.forward_timed(FAIL, &pair.target(), &0, PATIENCE).unwrap_err();
        assert!(error.never_ran());
        let text = error.to_string();
        assert!(
            text.ends_with("did not take `fail`: its handler asks to come again later"),
            "{text}"
        );
        pair.end();
    });
}

/// As a C program does: the response begins with the `hg_return_t`.
#[test]
fn the_code_is_what_a_c_origin_reads() {
    let service = builder("na+sm://").start().unwrap();
    serve_fail(&service);
    let mut origin = Node::open("na+sm://", false, HgOptions::default());
    let target = origin.core.lookup(service.self_addr().uri()).unwrap();
    let mut options = ForwardOptions::default();
    options.undeclared = true;
    for (token, number) in [11, 8, 26, 4711].into_iter().enumerate() {
        let encode = |writer: &mut margo::hg::Writer| {
            prefix::write_request_prefix(writer, prefix::NO_PARENT)?;
            proc::to_writer(writer, &number)
        };
        let (id, token) = (FAIL.id(ProviderId::DEFAULT), u32::try_from(token).unwrap());
        // HG_INVALID_ARG is 11 and HG_BUSY is 8: by number, as they stand in C's header.
        origin.core.forward(&target, id, options, encode, token).unwrap();
        let begun = Instant::now();
        while origin.log.responses.is_empty() {
            origin.turn();
            assert!(begun.elapsed() < PATIENCE, "no response");
        }
        let (_, response) = origin.log.responses.pop().unwrap();
        let payload = response.unwrap().payload().to_vec();
        assert_eq!(payload[..4], i32::to_le_bytes(number));
    }
    origin.core.close();
    service.finalize_and_wait().unwrap();
}
