//! Peers that do not keep to the protocol.

use na::{Access, MsgBuf, OpId, RemoteMem, Tag};
use proptest::prelude::*;

use super::net::MESSAGE_MAX;
use super::*;
use crate::bulk::desc::{BulkDesc, flags};
use crate::header::{Build, RequestHeader, ResponseHeader};
use crate::proc::{WriterLimits, Written};
use crate::wire;

/// A target, and a peer that writes its messages by hand.
fn target_and_peer() -> (Side, Arc<NodeEndpoint>, Addr) {
    target_and_peer_with(HgOptions::default())
}

pub(super) fn target_and_peer_with(options: HgOptions) -> (Side, Arc<NodeEndpoint>, Addr) {
    let net = Net::default();
    let target = Side::new(&net, options);
    let peer = net.node();
    let to = peer.lookup(target.core.self_addr().uri()).unwrap();
    (target, peer, to)
}

pub(super) fn message(bytes: &[u8]) -> MsgBuf {
    let mut buf = MsgBuf::with_capacity(MESSAGE_MAX);
    assert!(buf.try_extend(bytes));
    buf
}

fn request(payload: &[u8], header: RequestHeader) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    header.write(&mut bytes);
    bytes.extend(payload);
    bytes
}

/// Returns the code with which the target answers `bytes`; `None`: it does not answer.
fn answer_to(bytes: &[u8]) -> Option<ReturnCode> {
    answer_with(HgOptions::default(), bytes)
}

fn answer_with(options: HgOptions, bytes: &[u8]) -> Option<ReturnCode> {
    let (mut target, peer, to) = target_and_peer_with(options);
    peer.send_unexpected(OpId(1), &to, Tag(5), message(bytes)).unwrap();
    while target.step() > 0 {}
    assert!(target.notes.requests.is_empty());
    assert_eq!(target.core.counters().malformed, 1);
    assert_eq!(target.receives(), 256, "the receive is posted again, or will be");
    assert_eq!(target.endpoint.registered(), 0);
    let (_, tag, response) = target.endpoint.sent().pop()?;
    assert_eq!(tag, Tag(5));
    Some(ResponseHeader::read(Build::Plain, &response).unwrap().0.code)
}

#[test]
fn malformed_requests_are_dropped_or_answered() {
    let header = RequestHeader::new(SUM);
    let good = request(b"", header);
    assert_eq!(answer_to(b""), None);
    assert_eq!(answer_to(&[0; 40]), None, "no Mercury request");
    assert_eq!(answer_to(&good[..11]), None);
    // The header can be read, so the origin can be told.
    assert_eq!(answer_to(&good[..14]), Some(ReturnCode::ProtocolError));
    let more = RequestHeader { more_data: true, ..header };
    assert_eq!(answer_to(&request(b"", more)), Some(ReturnCode::ProtocolError));
    assert_eq!(answer_to(&request(&[0xff; 40], more)), Some(ReturnCode::ProtocolError));
    let silent = RequestHeader { no_response: true, ..header };
    assert_eq!(answer_to(&request(b"", silent)[..14]), None);
}

#[test]
fn a_claim_of_endless_arguments_costs_nothing() {
    let header = RequestHeader { more_data: true, ..RequestHeader::new(SUM) };
    for (len, access, code) in [
        (u64::MAX, flags::READ, ReturnCode::MsgSize),
        (1000, flags::WRITE, ReturnCode::ProtocolError),
        (1000, flags::READ, ReturnCode::NaError),
    ] {
        let desc = BulkDesc::opaque(len, access, &[7; 24]).to_bytes();
        let mut payload = (desc.len() as u64).to_le_bytes().to_vec();
        payload.extend(desc);
        assert_eq!(answer_to(&request(&payload, header)), Some(code));
    }
}

/// The limit may be more than the system has.
#[test]
fn arguments_for_which_there_is_no_memory_are_refused_and_the_process_goes_on() {
    let options = HgOptions { overflow_bytes_max: usize::MAX, ..HgOptions::default() };
    let header = RequestHeader { more_data: true, ..RequestHeader::new(SUM) };
    for len in [1 << 50, 1 << 62, u64::MAX] {
        let remote = RemoteMem { key: 7, len, access: Access::ReadOnly, native: None };
        let desc = BulkDesc::opaque(len, flags::READ, &remote.to_bytes()).to_bytes();
        let mut payload = (desc.len() as u64).to_le_bytes().to_vec();
        payload.extend(desc);
        let answer = answer_with(options.clone(), &request(&payload, header));
        assert_eq!(answer, Some(ReturnCode::NoMem), "{len}");
    }
}

#[test]
fn malformed_responses_end_the_call_with_an_error() {
    let responses: [&[u8]; 4] = [b"", &[0; 11], &[0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0, 1]];
    for bytes in responses {
        let net = Net::default();
        let mut origin = Side::new(&net, HgOptions::default());
        let peer = net.node();
        let to = origin.core.lookup(peer.self_addr().uri()).unwrap();
        origin.core.forward(&to, SUM, ForwardOptions::default(), |_| Ok(()), 1).unwrap();
        let (_, tag, _) = origin.endpoint.sent().remove(0);
        let back = peer.lookup(origin.core.self_addr().uri()).unwrap();
        peer.send_expected(OpId(1), &back, tag, message(bytes)).unwrap();
        while origin.step() > 0 {}
        let error = ended(&mut origin, 1).unwrap_err();
        assert!(matches!(error, HgError::Wire(_)), "{error}");
        assert_eq!((origin.core.counters().malformed, origin.core.in_flight()), (1, 0));
    }
}

#[test]
fn a_response_to_nobody_is_ignored() {
    let (mut target, peer, to) = target_and_peer();
    peer.send_expected(OpId(1), &to, Tag(77), message(&[0; 16])).unwrap();
    while target.step() > 0 {}
    assert!(target.notes.responses.is_empty());
}

proptest! {
    #[test]
    fn any_request_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..MESSAGE_MAX)) {
        let (mut target, peer, to) = target_and_peer();
        // With and without a good beginning.
        let mut good = request(b"", RequestHeader::new(SUM));
        good[10] = bytes.first().copied().unwrap_or(0) & 3;
        good.extend(&bytes[..bytes.len().min(MESSAGE_MAX - 16)]);
        for (op, bytes) in [(1, &bytes), (2, &good)] {
            peer.send_unexpected(OpId(op), &to, Tag(1), message(bytes)).unwrap();
        }
        while target.step() > 0 {}
        target.notes.requests.clear();
        while target.step() > 0 {}
        prop_assert_eq!(target.core.in_flight(), 0);
        prop_assert_eq!(target.endpoint.registered(), 0);
    }

    #[test]
    fn any_message_is_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        checksum in any::<bool>(),
    ) {
        let build = if checksum { Build::Checksum } else { Build::Plain };
        let _ = wire::decode_request(build, &bytes);
        let _ = wire::decode_response(build, &bytes);
    }

    #[test]
    fn whole_messages_come_back(
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        id in any::<u64>(),
        cookie in any::<u8>(),
        no_response in any::<bool>(),
    ) {
        let header = RequestHeader { no_response, cookie, ..RequestHeader::new(RpcId(id)) };
        let limits = WriterLimits::default();
        let put = |writer: &mut crate::Writer| writer.put(&payload);
        let buf = MsgBuf::with_capacity(MESSAGE_MAX);
        let written = wire::encode_request(header, buf, MESSAGE_MAX, limits, put);
        let Ok(Written::Fits(buf)) = written else { panic!("does not fit") };
        let read = wire::decode_request(Build::Plain, buf.as_slice()).unwrap();
        prop_assert_eq!(read, (header, wire::Body::Inline(&payload[..])));
    }
}
