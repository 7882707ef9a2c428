//! `margo trace export`: what a collector gets, and what it may answer.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::common::{Ended, margo, run};
use crate::trace::{SLACK_NS, chain, join};

/// A collector that gives the same answer to each request. Its URL, and the requests, each with its
/// head.
fn collector(answer: &'static str) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let (requests, received) = channel();
    // Ends with the test program, or when the test does not want more.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(&stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if lines.read_line(&mut head).unwrap() == 0 {
                    return;
                }
            }
            let lower = head.to_ascii_lowercase();
            let length = lower.split_once("content-length: ").unwrap().1;
            let length = length.lines().next().unwrap().parse().unwrap();
            let mut body = vec![0; length];
            lines.read_exact(&mut body).unwrap();
            // Before the answer: who has got that looks whether this is there.
            let request = (head, serde_json::from_slice(&body).unwrap());
            let is_wanted = requests.send(request).is_ok();
            stream.write_all(answer.as_bytes()).unwrap();
            if !is_wanted {
                return;
            }
        }
    });
    (url, received)
}

const TAKEN: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\
                     Connection: close\r\n\r\n{\"partialSuccess\":{}}";

fn export(dir: &Path, to: &str, files: &[PathBuf], status: i32) -> Ended {
    run(margo(dir).args(["trace", "export", to]).args(files), "").expect(status)
}

/// The value of an attribute of a span or of a resource.
fn attribute<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    let all = object["attributes"].as_array().unwrap();
    let value = &all.iter().find(|attribute| attribute["key"] == key)?["value"];
    value.as_object()?.values().next()?.as_str()
}

/// All spans of requests, with the service that each is of.
fn spans(requests: &[Value]) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for request in requests {
        for resource in request["resourceSpans"].as_array().unwrap() {
            let service = attribute(&resource["resource"], "service.name").unwrap();
            for scope in resource["scopeSpans"].as_array().unwrap() {
                let own = scope["spans"].as_array().unwrap();
                all.extend(own.iter().map(|span| (service.to_owned(), span.clone())));
            }
        }
    }
    all
}

fn nanos(span: &Value, key: &str) -> i64 {
    span[key].as_str().unwrap().parse().unwrap()
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

/// A relays to B, which calls C.
fn check_chain(spans: &[(String, Value)], calls: usize, (begun, ended): (i64, i64)) {
    assert_eq!(spans.len(), 4 * calls, "{spans:#?}");
    let by_id: BTreeMap<&str, &(String, Value)> =
        spans.iter().map(|own| (own.1["spanId"].as_str().unwrap(), own)).collect();
    assert_eq!(by_id.len(), spans.len());
    let mut roots = 0;
    for (service, span) in spans {
        let (name, kind) = (span["name"].as_str().unwrap(), span["kind"].as_u64().unwrap());
        let (trace, id) = (span["traceId"].as_str().unwrap(), span["spanId"].as_str().unwrap());
        assert_eq!((trace.len(), id.len()), (32, 16), "{span}");
        assert_eq!(attribute(span, "rpc.method"), Some(name));
        assert_eq!(span["status"]["code"], 1);
        let (first, last) = (nanos(span, "startTimeUnixNano"), nanos(span, "endTimeUnixNano"));
        assert!(begun <= first && first <= last && last <= ended, "{span}");
        for event in span["events"].as_array().unwrap() {
            let at = nanos(event, "timeUnixNano");
            assert!((first - SLACK_NS..=last + SLACK_NS).contains(&at), "{span}");
        }
        // Which process it is of, and below what it is.
        let above = match (name, kind) {
            ("relay", 3) => None,
            ("relay", 2) => Some(("a", "relay", 3)),
            ("double", 3) => Some(("b", "relay", 2)),
            ("double", 2) => Some(("b", "double", 3)),
            other => panic!("{other:?}"),
        };
        let own = match (name, kind) {
            ("relay", 3) => "a",
            ("double", 2) => "c",
            _ => "b",
        };
        assert_eq!(service, own, "{span}");
        let Some((of, outer_name, outer_kind)) = above else {
            assert_eq!(span["parentSpanId"], "");
            roots += 1;
            continue;
        };
        let (outer_service, outer) = by_id[span["parentSpanId"].as_str().unwrap()];
        assert_eq!((&**outer_service, &outer["traceId"]), (of, &span["traceId"]));
        assert_eq!((&outer["name"], &outer["kind"]), (&outer_name.into(), &outer_kind.into()));
        assert!(nanos(outer, "startTimeUnixNano") <= first + SLACK_NS, "{span} in {outer}");
        // A handler may go on when it has answered.
        let answer = span["events"].as_array().unwrap();
        let answer = answer.iter().find(|event| event["name"] == "responded");
        let end = answer.map_or(last, |event| nanos(event, "timeUnixNano"));
        assert!(end <= nanos(outer, "endTimeUnixNano") + SLACK_NS, "{span} in {outer}");
    }
    assert_eq!(roots, calls);
}

#[test]
fn a_collector_gets_the_calls_of_several_processes() {
    const CALLS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let begun = now();
    let files = chain("na+sm://", dir.path(), CALLS as u64);
    let times = (begun, now());
    let (url, received) = collector(TAKEN);
    let ended = export(dir.path(), &url, &files, 0);
    assert_eq!(ended.stdout, format!("{url}: 1,200 spans\n"));
    let requests: Vec<_> = received.try_iter().collect();
    // The process in the middle has more spans than a request takes.
    assert_eq!(requests.len(), 4);
    for (head, _) in &requests {
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{head}");
    }
    let requests: Vec<_> = requests.into_iter().map(|(_, body)| body).collect();
    check_chain(&spans(&requests), CALLS, times);

    // The same as a file.
    let ended = export(dir.path(), "spans.jsonl", &files, 0);
    assert_eq!(ended.stdout, "spans.jsonl: 1,200 spans\n");
    let lines = std::fs::read_to_string(dir.path().join("spans.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, requests);
}

#[test]
fn what_a_collector_has_not_taken_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let files = chain("na+sm://", dir.path(), 1);
    let (refuses, _kept) = collector(
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 9\r\nConnection: close\r\n\r\nno spans\n",
    );
    let (rejects, _kept2) = collector(
        "HTTP/1.1 200 OK\r\nContent-Length: 62\r\nConnection: close\r\n\r\n\
         {\"partialSuccess\":{\"rejectedSpans\":\"1\",\"errorMessage\":\"full\"}}",
    );
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{nobody}/v1/traces");
    for (to, status, why) in [
        (&*refuses, 1, "answers with status 400: no spans (0 spans taken before)"),
        (&*rejects, 1, "has rejected 1 span: full"),
        (&*nobody, 1, "refused"),
        ("https://127.0.0.1:1/", 2, "or by http, such as http://localhost:4318/v1/traces"),
        ("missing/spans.jsonl", 1, "missing/spans.jsonl"),
    ] {
        let ended = export(dir.path(), to, &files, status);
        assert!(ended.stderr.contains(why), "{to}: {ended:#?}");
        assert_eq!(ended.stdout, "", "{to}");
    }
    join(dir.path(), &files, 0);
    let joined = [dir.path().join("all.json")];
    let ended = export(dir.path(), "spans.jsonl", &joined, 1);
    assert!(ended.stderr.contains("joined already"), "{ended:#?}");
    assert!(!dir.path().join("spans.jsonl").exists());
}
