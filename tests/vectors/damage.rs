//! Captured responses, damaged, and sent to a caller of this library: it gets an error or, where
//! nothing protects the bytes, another value. The sender of an unreadable response is told so.
//! Nothing hangs.
//!
//! Over na+tcp alone: all transports handle a message alike once it has arrived.

use std::fmt::Debug;

use margo::hg::HgError;
use margo::{ForwardError, Rpc};
use serde::de::DeserializeOwned;

use super::live::{NULL, SUM};
use super::origin::{
    ALL_TYPES, Asked, BIG_OUT, NOT_REGISTERED, SHUTDOWN, TCP, World, all_types, big_result,
    elsewhere,
};
use super::*;

/// Returns the error of the RPC layer if it could not read the response.
fn unreadable<R>(result: &Result<R, ForwardError>) -> Option<&margo::hg::WireError> {
    match result {
        Err(ForwardError::Network { source: HgError::Wire(error), .. }) => Some(error),
        _ => None,
    }
}

/// A peer of ours is told when its response could not be read; C has no words for that.
fn hears_of_it(world: &World, asked: &Asked) {
    let notice = world.server.next_request();
    assert_eq!(notice.arrival, asked.arrival, "with the tag of the call");
    let (header, _) = RequestHeader::read(world.format, &notice.bytes).unwrap();
    assert!(header.no_response && header.read_extension(&notice.bytes).unwrap().unread);
}

/// A call that gets `response`.
fn call<A, R>(
    world: &World,
    (rpc, args): (Rpc<A, R>, &A),
    response: &[u8],
) -> Result<R, ForwardError>
where
    A: Serialize,
    R: DeserializeOwned,
{
    let (asked, result) = world.call(rpc, DEFAULT, args, response);
    if unreadable(&result).is_some() {
        hears_of_it(world, &asked);
    }
    result
}

fn flipped(message: &[u8], bit: usize) -> Vec<u8> {
    let mut message = message.to_vec();
    message[bit / 8] ^= 1 << (bit % 8);
    message
}

fn sums_headers(format: Format) -> bool {
    format.level() != ChecksumLevel::None
}

/// Returns whether checksums cover that byte of a response which says success, in all its message.
fn is_covered(format: Format, byte: usize) -> bool {
    sums_headers(format) && byte < 6
        || format.level() == ChecksumLevel::Payload && byte >= format.core_bytes()
}

/// Returns whether that is told of a code of which one bit is set: that of C's RPC layer alone is
/// believed, where an RPC is not registered.
fn is_told<R: Debug>(in_header: bool, bit: usize, result: &Result<R, ForwardError>) -> bool {
    match (in_header && bit == 1, result) {
        (true, Err(ForwardError::NotRegistered { .. })) => true,
        (false, Err(ForwardError::Failed { code, .. })) => code.number() != 0,
        _ => false,
    }
}

/// A response with a result inside.
fn check_damage<A, R>(world: &World, rpc: (Rpc<A, R>, &A), response: &[u8], whole: &R)
where
    A: Serialize,
    R: DeserializeOwned + PartialEq + Debug,
{
    let format = world.format;
    for cut in 0..response.len() {
        let result = call(world, rpc, &response[..cut]);
        // A payload of no bytes has no checksum in C.
        let headers = format.header_bytes();
        let found = cut < headers || cut > headers && format.level() == ChecksumLevel::Payload;
        assert!(result.is_err(), "cut at {cut}: {result:?}");
        assert_eq!(unreadable(&result).is_some(), found, "cut at {cut}: {result:?}");
    }
    for bit in 0..response.len() * 8 {
        let damaged = flipped(response, bit);
        let result = call(world, rpc, &damaged);
        let what = format!("bit {bit}: {result:?}");
        let (headers, byte, of_byte) = (format.header_bytes(), bit / 8, bit % 8);
        let is_checksum = unreadable(&result).is_some_and(|error| error.is_checksum());
        assert_eq!(is_checksum, is_covered(format, byte), "{what}");
        if is_checksum {
            continue;
        }
        match byte {
            0 => assert!(is_told(true, of_byte, &result), "{what}"),
            // Not ours to mind, or as older builds of C have it.
            1 if of_byte == 1 || of_byte == 2 => assert_eq!(result.unwrap(), *whole),
            1 if of_byte == 7 && format.build() == Build::Checksum => {
                assert_eq!(result.unwrap(), *whole);
            }
            1 => assert!(unreadable(&result).is_some(), "{what}"),
            // The cookie, and what is left unwritten.
            _ if byte < headers => assert_eq!(result.unwrap(), *whole),
            _ if byte < headers + 4 => {
                assert!(is_told(false, bit - 8 * headers, &result), "{what}");
            }
            _ => match proc::from_slice::<R>(&damaged[headers + 4..]) {
                Ok(other) => assert!(result.is_ok_and(|value| value == other), "{what}"),
                Err(_) => assert!(matches!(result, Err(ForwardError::Decode { .. })), "{what}"),
            },
        }
    }
    assert_eq!(call(world, rpc, response).unwrap(), *whole, "after all that");
}

// Slow: a call for each bit of the answers.
#[test]
fn a_damaged_response_is_an_error_or_another_value() {
    for capture in all() {
        let world = World::new(TCP, capture.format);
        let response = |number, title| &capture.call(number, title).response[..];
        check_damage(&world, (SUM, &(40, 2)), response(0, "sum"), &42);
        let pong = (-7, "pong".to_owned());
        check_damage(&world, (ALL_TYPES, &all_types()), response(2, "all_types"), &pong);
        check_damage(&world, (NULL, &()), response(3, "null_rpc"), &());
        check_damage(&world, (SHUTDOWN, &()), response(8, "shutdown"), &0);
        world.end();
    }
}

#[test]
fn a_damaged_refusal_is_an_error() {
    for capture in all() {
        let world = World::new(TCP, capture.format);
        let response = &capture.call(4, "not_registered").response;
        let core = capture.format.core_bytes();
        let not_registered = |result: &Result<u64, ForwardError>| {
            matches!(result, Err(ForwardError::NotRegistered { .. }))
        };
        for cut in 0..response.len() {
            let result = call(&world, (NOT_REGISTERED, &(1, 2)), &response[..cut]);
            // What C sends behind the core header means nothing.
            assert_eq!(not_registered(&result), cut >= core, "cut at {cut}: {result:?}");
            assert_eq!(unreadable(&result).is_some(), cut < core, "cut at {cut}: {result:?}");
        }
        for bit in 0..response.len() * 8 {
            let result = call(&world, (NOT_REGISTERED, &(1, 2)), &flipped(response, bit));
            // The bit that makes a success of it, where nothing covers it.
            let may_pass = bit == 1 && !sums_headers(capture.format);
            assert!(result.is_err() || may_pass, "bit {bit}: {result:?}");
            let covers = sums_headers(capture.format) && bit / 8 < 6;
            let is_checksum = unreadable(&result).is_some_and(|error| error.is_checksum());
            assert_eq!(is_checksum, covers, "bit {bit}: {result:?}");
            assert!(bit / 8 < 2 || covers || not_registered(&result), "bit {bit}: {result:?}");
        }
        world.end();
    }
}

/// A long result, from a server that listens for the acknowledgement as C does.
fn call_long(world: &World, response: &[u8]) -> Result<ConstStr, ForwardError> {
    let (request, asked) = world.start(BIG_OUT, DEFAULT, &10_000);
    let acknowledged = world.server.await_ack(&asked.arrival);
    world.server.respond(&asked.arrival, response);
    let result = world.result(request);
    // Whoever finds memory described says that it is done with it, whether or not it could read it.
    let body = wire::decode_response(world.format, response);
    let describes = matches!(body, Ok((_, Body::Overflow(_))));
    if unreadable(&result).is_some() {
        hears_of_it(world, &asked);
    }
    if describes {
        let ack = world.server.end("the acknowledgement", acknowledged).unwrap();
        assert_eq!(ack.bytes.len(), 1, "as C's");
    } else {
        assert!(result.is_err(), "{result:?}");
        world.server.give_up(acknowledged);
    }
    result
}

// Slow: a call, with a fetch, for each bit of the descriptions.
#[test]
fn a_damaged_description_of_a_long_result_is_an_error() {
    for capture in more::all() {
        let world = World::new(TCP, capture.format);
        let [_, as_c, _] = capture.messages(0, "big_out", 2)[..] else { unreachable!() };
        let (memory, desc) = world.server.expose(&big_result(world.format, as_c));
        let whole = "y".repeat(10_000);
        let response = elsewhere(world.format, as_c, &desc);
        for cut in 0..response.len() {
            let result = call_long(&world, &response[..cut]);
            assert!(result.is_err(), "cut at {cut}: {result:?}");
        }
        for bit in 0..response.len() * 8 {
            match call_long(&world, &flipped(&response, bit)) {
                Ok(text) => assert!(text.0 == whole, "bit {bit}: another text"),
                Err(error) => {
                    let told = !matches!(error, ForwardError::TimedOut { .. });
                    assert!(told, "bit {bit}: {error}");
                }
            }
        }
        // Where C's memory was: nobody of this network has such.
        assert!(matches!(call_long(&world, as_c), Err(ForwardError::Network { .. })));
        assert!(call_long(&world, &response).unwrap().0 == whole, "after all that");
        drop(memory);
        world.end();
    }
}

#[test]
fn a_long_result_that_is_not_what_was_summed_is_an_error() {
    for capture in more::all() {
        let world = World::new(TCP, capture.format);
        let [_, as_c, _] = capture.messages(0, "big_out", 2)[..] else { unreachable!() };
        let mut stream = big_result(world.format, as_c);
        stream[5000] ^= 1;
        let (memory, desc) = world.server.expose(&stream);
        let result = call_long(&world, &elsewhere(world.format, as_c, &desc));
        let found = unreadable(&result).is_some_and(|error| error.is_checksum());
        assert_eq!(found, world.format.level() == ChecksumLevel::Payload, "{result:?}");
        assert_eq!(result.is_ok(), !found);
        drop(memory);
        world.end();
    }
}

#[test]
fn a_response_of_another_build_or_level_is_never_taken_for_a_value() {
    let captures = shared_memory();
    for asking in &captures {
        let world = World::new(TCP, asking.format);
        for answering in &captures {
            let response = &answering.call(0, "sum").response;
            let result = call(&world, (SUM, &(40, 2)), response);
            let (ours, theirs) = (asking.format, answering.format);
            // Sums that are there and not asked for do no harm.
            let has_all = match ours.level() {
                ChecksumLevel::None => true,
                ChecksumLevel::Headers => sums_headers(theirs),
                _ => ours == theirs,
            };
            match result {
                Ok(value) => assert_eq!((value, ours.build(), has_all), (42, theirs.build(), true)),
                Err(_) => {
                    assert!(ours.build() != theirs.build() || !has_all, "{ours:?} {theirs:?}")
                }
            }
        }
        world.end();
    }
}
