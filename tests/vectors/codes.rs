//! Error codes: the layer that sent one, and whether a handler may have run.
//!
//! Mercury's RPC layer itself sends only `HG_NOENTRY` in its header, for an RPC that is not
//! registered. Other codes there come from handlers of its core layer. A code in the prefix that
//! Margo puts before a result comes from Margo's runtime or from a handler, and nothing tells the
//! two apart.

use margo::ForwardError;

use super::origin::{NOT_REGISTERED, TCP, World};
use super::*;

const CODES: [i32; 30] = [
    -1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
    26, 27, 99, 127,
];

/// The recorded refusal with another code: what C sends when a handler of its core layer returns
/// one.
fn refusal_of_c(capture: &Capture, code: ReturnCode) -> Vec<u8> {
    let mut message = capture.call(4, "not_registered").response.clone();
    let request = RequestHeader::in_format(RpcId(0), capture.format);
    let mut headers = vec![0; capture.format.header_bytes()];
    ResponseHeader::answering(&request, code).write(&mut headers);
    let core = capture.format.core_bytes();
    message[..core].copy_from_slice(&headers[..core]);
    message
}

/// The response that `__margo_respond_with_error` sends, or a handler of Mercury alone that answers
/// with a number and more.
fn answer(capture: &Capture, encode: impl FnOnce(&mut Writer) -> Result<(), ProcError>) -> Vec<u8> {
    let request = RequestHeader::in_format(RpcId(0), capture.format);
    let header = ResponseHeader::answering(&request, ReturnCode::Success);
    let limits = WriterLimits::default();
    match wire::encode_response(header, dirty(), MESSAGE_MAX, limits, encode).unwrap() {
        Written::Fits(buf) => buf.as_slice().to_vec(),
        Written::Overflow(..) => panic!("the answer overflows"),
    }
}

fn ask(world: &World, response: &[u8]) -> ForwardError {
    world.call(NOT_REGISTERED, DEFAULT, &(1, 2), response).1.unwrap_err()
}

fn may_have_run(error: &ForwardError, expected: ReturnCode) {
    let is_it = matches!(error, ForwardError::Failed { code, .. } if *code == expected);
    assert!(is_it && !error.never_ran(), "{expected}: {error:?}");
}

#[test]
fn a_code_of_c_says_that_no_handler_ran_where_its_rpc_layer_alone_can_have_sent_it() {
    for capture in all() {
        let world = World::new(TCP, capture.format);
        for code in CODES.map(ReturnCode::from_number) {
            let error = ask(&world, &refusal_of_c(&capture, code));
            if code == ReturnCode::NoEntry {
                assert!(matches!(error, ForwardError::NotRegistered { .. }), "{error:?}");
                assert!(error.never_ran());
            } else {
                may_have_run(&error, code);
            }
            let alone = answer(&capture, |writer| prefix::write_response_prefix(writer, code));
            may_have_run(&ask(&world, &alone), code);
            // A result of a handler that knows no Margo; it begins with a number, and goes on as
            // the texts of our own peers do.
            let with_text = answer(&capture, |writer| {
                prefix::write_response_prefix(writer, code)?;
                proc::to_writer(writer, "busy")
            });
            may_have_run(&ask(&world, &with_text), code);
        }
        world.end();
    }
}

#[test]
fn a_code_of_one_of_our_own_peers_says_what_its_runtime_knows() {
    type Check = fn(&ForwardError) -> bool;
    let told: [(ReturnCode, bool, Check); 6] = [
        (ReturnCode::NoEntry, true, |error| matches!(error, ForwardError::NotRegistered { .. })),
        (ReturnCode::Permission, true, |error| matches!(error, ForwardError::PeerClosing { .. })),
        (ReturnCode::ProtocolError, true, |error| {
            matches!(error, ForwardError::BadArguments { .. })
        }),
        (ReturnCode::Busy, true, |error| matches!(error, ForwardError::Busy { .. })),
        (ReturnCode::Again, true, |error| matches!(error, ForwardError::Busy { .. })),
        (ReturnCode::Fault, false, |error| matches!(error, ForwardError::Panicked { .. })),
    ];
    for capture in all() {
        let world = World::new(TCP, capture.format);
        for (code, never_ran, is_it) in told {
            let request = RequestHeader::in_format(RpcId(0), capture.format);
            let mut buf = dirty();
            wire::encode_refusal(&request, code, &mut buf);
            let in_header = buf.as_slice().to_vec();
            let alone = answer(&capture, |writer| prefix::write_failure(writer, code, None));
            let with_text =
                answer(&capture, |writer| prefix::write_failure(writer, code, Some("why")));
            for (response, has_text) in [(in_header, false), (alone, false), (with_text, true)] {
                let error = ask(&world, &response);
                let is_it = match code {
                    // That of rules has a text.
                    ReturnCode::Permission if has_text => {
                        matches!(error, ForwardError::Permission { .. })
                    }
                    _ => is_it(&error),
                };
                assert!(is_it && error.never_ran() == never_ran, "{code}: {error:?}");
            }
        }
        world.end();
    }
}
