//! The captured requests, sent as they are to a service of ours by an endpoint that knows nothing
//! of the RPC layer: it answers what C answered, with the tag that C used.
//!
//! Over na+tcp, whatever transport C used: the content of the messages is the same. Calls for which
//! the service has to fetch something are left out, as that process is long gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use margo::{Handle, Instance, Provider, Rpc};
use na::{Completion, Endpoint, OpId, OpenOptions, Tag};

use super::*;

pub(super) const SUM: Rpc<(u32, u32), u64> = Rpc::new("sum");
type AllOfThem = (u8, i16, u32, i64, String, bool);

const ALL_TYPES: Rpc<AllOfThem, (i32, String)> = Rpc::new("all_types");
pub(super) const NULL: Rpc<(), ()> = Rpc::new("null_rpc");
pub(super) const BULK_SUM: Rpc<(u64, Bulk), u64> = Rpc::new("bulk_sum");

const PATIENCE: Duration = Duration::from_secs(60);

/// The name of the level in documents.
pub(super) fn level_name(level: ChecksumLevel) -> &'static str {
    match level {
        ChecksumLevel::None => "none",
        ChecksumLevel::Headers => "rpc_headers",
        ChecksumLevel::Payload => "rpc_payload",
        level => panic!("{level:?} was not recorded"),
    }
}

/// Serves what C's server did, at the checksum level that it had.
fn service(level: ChecksumLevel) -> (Instance, Provider) {
    let level = level_name(level);
    let service = margo::init(&format!(
        r#"{{ "mercury": {{ "checksum_level": "{level}" }},
              "margo": {{ "address": "na+tcp://127.0.0.1:0" }} }}"#
    ))
    .unwrap();
    service.network().enable_remote_shutdown();
    let sum = |handle: Handle<(u32, u32), u64>| {
        let (x, y) = *handle.args();
        handle.respond(&(u64::from(x) + u64::from(y))).unwrap();
    };
    service.register(SUM, sum).unwrap();
    let other = service.provider(ProviderId::new(42), &service.layout().rpc_pool());
    other.register(SUM, sum).unwrap();
    service
        .register(ALL_TYPES, |handle| handle.respond(&(-7, "pong".to_owned())).unwrap())
        .unwrap();
    service.register(NULL, |handle| handle.respond(&()).unwrap()).unwrap();
    service
        .register(BULK_SUM, |handle| {
            let (n, bulk) = handle.args();
            let mut buffer = handle.instance().memory().bulk_buffer(*n as usize).unwrap();
            handle.pull(bulk, 0, &mut buffer, 0..*n as usize).unwrap();
            handle.respond(&buffer.iter().map(|byte| u64::from(*byte)).sum()).unwrap();
        })
        .unwrap();
    (service, other)
}

/// The answer to a request, received with its tag.
fn answer(endpoint: &Arc<dyn Endpoint>, to: &na::Addr, call: &Call) -> Vec<u8> {
    let mut request = endpoint.alloc_msg();
    assert!(request.try_extend(&call.request));
    endpoint.recv_expected(OpId(1), to, Tag(call.tag), endpoint.alloc_msg()).unwrap();
    endpoint.send_unexpected(OpId(2), to, Tag(call.tag), request).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut response = None;
    while response.is_none() {
        assert!(Instant::now() < deadline, "{}: no answer", call.title);
        let mut sink = |done| match done {
            Completion::Recv { result, buf, .. } => {
                result.unwrap();
                response = Some(buf.as_slice().to_vec());
            }
            Completion::Send { result, .. } => result.unwrap(),
            other => panic!("{other:?}"),
        };
        endpoint.poll(8, &mut sink).unwrap();
    }
    response.unwrap()
}

#[test]
fn a_service_answers_as_c_does() {
    for capture in all() {
        let (service, other) = service(capture.level);
        let endpoint = na::open("na+tcp://127.0.0.1:0", &OpenOptions::listening(false)).unwrap();
        let to = endpoint.lookup(service.self_addr().uri()).unwrap();
        for (number, title) in [
            (0, "sum"),
            (1, "sum"),
            (2, "all_types"),
            (3, "null_rpc"),
            (4, "not_registered"),
            (5, "bulk_sum"),
            (8, "shutdown"),
        ] {
            let call = capture.call(number, title);
            let response = answer(&endpoint, &to, call);
            // Behind the header of a refusal C sends what was in its buffer, and ours has a mark,
            // which C does not look at.
            let (compared, len) = match title {
                "not_registered" => (capture.format.core_bytes(), call.response.len() + 8),
                _ => (call.response.len(), call.response.len()),
            };
            assert_eq!(response.len(), len, "{}", call.title);
            assert_eq!(response[..compared], call.response[..compared], "{}", call.title);
        }
        // The last call has ended it.
        service.wait_for_finalize().unwrap();
        drop(other);
        endpoint.close();
    }
}
