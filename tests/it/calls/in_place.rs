//! Handlers that look at the arguments where they have arrived.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use margo::encoding::Bytes;
use margo::{DecodeInPlace, ForwardError, ProviderHandle, Rpc};
use serde::{Deserialize, Serialize};
use ult::Eventual;

use crate::common::{builder, on_each};

/// Arguments whose keys and values may be borrowed.
#[derive(Serialize, Deserialize)]
struct Put<B = Bytes> {
    key: B,
    values: Vec<B>,
    text: Option<String>,
}

impl DecodeInPlace for Put {
    type InPlace<'a> = Put<Bytes<&'a [u8]>>;
}

const PUT: Rpc<Put, u64> = Rpc::new("put");
const GET: Rpc<Bytes, Option<Bytes>> = Rpc::new("get");
const ECHO: Rpc<(String, u8), String> = Rpc::new("echo");

fn put(key: &[u8], value: &[u8]) -> Put {
    Put { key: Bytes(key.to_vec()), values: vec![Bytes(value.to_vec())], text: None }
}

#[test]
fn arguments_are_seen_in_place_and_answers_lent() {
    on_each(|pair| {
        let map = Arc::new(Mutex::new(HashMap::new()));
        let own = map.clone();
        let put_in = move |_: &(), put: Put<Bytes<&[u8]>>, handle: margo::Handle<(), u64>| {
            let len: usize = put.values.iter().map(|value| value.len()).sum();
            own.lock().unwrap().insert(put.key.to_vec(), put.values[0].to_vec());
            handle.respond(&(len as u64)).unwrap();
        };
        pair.service.serve(PUT).in_place(put_in).unwrap();
        let get = move |_: &(), key: Bytes<&[u8]>, handle: margo::Handle<(), Option<Bytes>>| {
            let map = map.lock().unwrap();
            handle.respond_as(&map.get(&*key).map(|value| Bytes(value.as_slice()))).unwrap();
        };
        pair.service.serve(GET).in_place(get).unwrap();
        let target = pair.target();
        // As they fit into a message, and longer ones, which are fetched.
        for (key, len) in [("none", 0), ("short", 100), ("long", 100_000)] {
            let value = vec![7; len];
            let put = put(key.as_bytes(), &value);
            assert_eq!(pair.client.forward(PUT, &target, &put).unwrap(), len as u64);
            let got = pair.client.forward(GET, &target, &put.key).unwrap();
            assert_eq!(got, Some(Bytes(value)));
        }
        assert_eq!(pair.client.forward(GET, &target, &Bytes(b"other".to_vec())).unwrap(), None);
        pair.end();
    });
}

#[test]
fn arguments_outlive_the_answer_until_the_handler_returns() {
    on_each(|pair| {
        let (go, seen) = (Arc::new(Eventual::<()>::new()), Arc::new(Eventual::<String>::new()));
        let (may_go, has_seen) = (go.clone(), seen.clone());
        let echo = move |_: &(), (text, _): (&str, u8), handle: margo::Handle<(), String>| {
            handle.respond_as(text).unwrap();
            if handle.origin().uri().is_empty() || text != "first" {
                return;
            }
            may_go.wait();
            has_seen.set(text.to_owned()).unwrap();
        };
        pair.service.serve(ECHO).in_place(echo).unwrap();
        let target = pair.target();
        let call = |text: &str| pair.client.forward(ECHO, &target, &(text.to_owned(), 1)).unwrap();
        assert_eq!(call("first"), "first");
        // Buffers of answered requests are used again; that of the first one is not.
        (0..1000).for_each(|number| assert_eq!(call(&format!("{number:05}")).len(), 5));
        go.set(()).unwrap();
        assert_eq!(seen.wait(), "first");
        pair.end();
    });
}

#[test]
fn undecodable_arguments_and_panics_are_told() {
    const WRONG: Rpc<Bytes, Option<Bytes>> = Rpc::new("echo");
    on_each(|pair| {
        let echo = |_: &(), (text, number): (&str, u8), handle: margo::Handle<(), String>| {
            assert_ne!(number, 13, "unlucky");
            handle.respond_as(text).unwrap();
        };
        pair.service.serve(ECHO).in_place(echo).unwrap();
        let target = pair.target();
        let error = pair.client.forward(WRONG, &target, &Bytes(vec![255; 9])).unwrap_err();
        assert!(matches!(error, ForwardError::BadArguments { .. }), "{error}");
        for text in ["short".to_owned(), "long".repeat(50_000)] {
            let error = pair.client.forward(ECHO, &target, &(text.clone(), 13)).unwrap_err();
            assert!(matches!(error, ForwardError::Panicked { .. }), "{error}");
            assert_eq!(pair.client.forward(ECHO, &target, &(text.clone(), 1)).unwrap(), text);
        }
        pair.end();
    });
}

#[test]
fn long_arguments_in_place_leave_their_part_of_the_bound() {
    let limits = r#""address": "na+sm://", "eager_size": 512, "overflow_held_max": 150000"#;
    let service = margo::init(&format!(r#"{{ "margo": {{ {limits} }} }}"#)).unwrap();
    let client = builder("na+sm://").listen(false).start().unwrap();
    let len = |_: &(), text: &str, handle: margo::Handle<(), u64>| {
        handle.respond(&(text.len() as u64)).unwrap();
    };
    const LEN: Rpc<String, u64> = Rpc::new("len");
    service.serve(LEN).in_place(len).unwrap();
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri()).unwrap());
    let text = "x".repeat(100_000);
    // Each one fits alone; two that were counted would not.
    for _ in 0..10 {
        assert_eq!(client.forward(LEN, &target, &text).unwrap(), 100_000);
    }
    client.finalize_and_wait().unwrap();
    service.finalize_and_wait().unwrap();
}
