//! Messages in pages that both sides write in turn.

use std::sync::atomic::Ordering;

use crate::common::sm::*;
use na::{Addr, Error};

/// Kinds of records.
const PAGED: u8 = 20;
const UNPAGED: u8 = 1;

const PAGES_AT: usize = 4096 + 2 * RING;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

/// Sends all, then receives all in order.
fn burst(from: &mut Node, to: &mut Node, addr: &Addr, lens: &[usize]) -> Addr {
    let asked: Vec<_> = lens.iter().map(|_| to.recv()).collect();
    let sent: Vec<_> =
        (0..).zip(lens).map(|(n, len)| from.send(addr, n, &bytes(*len, n as usize))).collect();
    let mut sender = None;
    for ((n, len), op) in (0..).zip(lens).zip(asked) {
        // Both poll: the sender may wait for room.
        to.until("a message", |to| {
            from.poll();
            to.is_done(op)
        });
        let (arrival, came) = to.received(op);
        assert_eq!((arrival.tag.0, came == bytes(*len, n as usize)), (n, true), "{len} bytes");
        sender = Some(arrival.from);
    }
    for op in sent {
        from.finish(op);
    }
    sender.unwrap()
}

#[test]
fn messages_of_all_lengths_arrive_in_order_to_and_fro() {
    let (mut a, mut b) = (with_attach(true, false), listening());
    let to = a.endpoint.lookup(b.endpoint.self_addr().uri()).unwrap();
    let lens = [0, 1, 255, 256, 257, 4095, 4096, 300, 56, 2048, 4096, 4096, 512, 511];
    let mut back = burst(&mut a, &mut b, &to, &lens);
    for round in 0..40 {
        // Of one length and of all, one way only for a while, and one at a time.
        let lens = match round % 4 {
            0 => vec![4096; 1 + round % 9],
            1 => vec![[256, 4096, 64][round % 3]],
            2 => lens[..round % lens.len() + 1].to_vec(),
            _ => vec![1000; 30],
        };
        back = burst(&mut a, &mut b, &to, &lens);
        if round % 5 != 4 {
            burst(&mut b, &mut a, &back, &lens);
        }
    }
    burst(&mut b, &mut a, &back, &lens);
}

/// Returns the page of the endpoint's next message, or `None` if the message is in the ring.
fn next(node: &mut Node, hostile: &mut Hostile, len: usize) -> Option<u64> {
    let mut came = None;
    node.until("a record", |_| {
        came = hostile.read();
        came.is_some()
    });
    let (kind, payload) = came.unwrap();
    match kind {
        PAGED => {
            let word = |at: usize| u64::from_ne_bytes(payload[at..at + 8].try_into().unwrap());
            assert_eq!((word(8), payload.len()), (len as u64, 16));
            Some(word(0))
        }
        kind => {
            assert_eq!((kind, payload), (UNPAGED, bytes(len, len)));
            None
        }
    }
}

#[test]
fn a_page_is_passed_back_with_the_answer_and_without_pages_there_is_the_ring() {
    let mut node = listening();
    let (mut peer, addr) = Hostile::attach(&mut node);
    let asked = node.recv();
    // The peer made the segment, and has pages 0 and 1.
    peer.word(PAGES_AT + 4096).store(u64::from_le_bytes(*b"question"), Ordering::Relaxed);
    peer.write(PAGED, 5, &[1u64.to_le_bytes(), 8u64.to_le_bytes()].concat());
    let (arrival, came) = node.received(asked);
    assert_eq!((arrival.tag.0, &came[..]), (5, &b"question"[..]));
    // Now pages 1, 2 and 3 are the endpoint's; short and long messages need none.
    let mut pages = Vec::new();
    for len in [300, 255, 4096, 256, 4096, 300] {
        let op = node.send(&addr, 6, &bytes(len, len));
        let page = next(&mut node, &mut peer, len);
        node.finish(op);
        if let Some(page) = page {
            let at = PAGES_AT + 4096 * page as usize;
            let first = peer.word(at).load(Ordering::Acquire).to_ne_bytes();
            assert_eq!(first, bytes(8, len)[..], "page {page}");
        }
        pages.push(page);
    }
    assert_eq!(pages, [Some(1), None, Some(2), Some(3), None, None]);
}

#[test]
fn who_announces_a_page_that_it_does_not_have_is_left() {
    let words = |page: u64, len: u64| [page.to_le_bytes(), len.to_le_bytes()].concat();
    for (what, payload) in [
        ("a page of ours", words(2, 300)),
        ("no page", words(4, 300)),
        ("far beyond", words(u64::MAX, 300)),
        ("longer than a page", words(0, 4097)),
        ("as long as can be", words(0, u64::MAX)),
        ("no length", words(0, 0)[..8].to_vec()),
        ("more words", [words(0, 8), words(0, 0)].concat()),
        ("nothing", Vec::new()),
    ] {
        for kind in [PAGED, PAGED + 1] {
            let mut node = listening();
            let (mut peer, addr) = Hostile::attach(&mut node);
            let waiting = node.recv_expected(&addr, 9);
            peer.write(kind, 0, &payload);
            let error = node.error(waiting);
            assert!(matches!(error, Error::Protocol { .. }), "{what}: {error}");
            node.until("the end of the connection", |_| peer.is_closed());
            node.still_serves();
        }
    }
    // Once it is taken it is not theirs.
    let mut node = listening();
    let (mut peer, addr) = Hostile::attach(&mut node);
    let (asked, waiting) = (node.recv(), node.recv_expected(&addr, 9));
    peer.write(PAGED, 0, &words(0, 300));
    assert_eq!(node.received(asked).1, [0; 300]);
    peer.write(PAGED, 0, &words(0, 300));
    let error = node.error(waiting);
    assert!(error.to_string().contains("a page that it does not have"), "{error}");
}
