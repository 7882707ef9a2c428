//! Does every record of the shared-memory ring arrive once, whole and in order, also across the
//! wrap and when the ring is full? Does a producer that dies leave half a record visible?
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a model")]

use std::sync::atomic::Ordering::Relaxed;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use margo_loom_tests::check;
use na_sm::link::ring::{COMMIT_BYTES, Consumer, LINE, Producer, RingMemory};

const LINES: usize = 8;

/// The bytes of one line as two observers see them: the commit word as an atomic, and all bytes as
/// a cell, so that an access that the protocol does not order is reported.
struct Line {
    word: AtomicU64,
    bytes: UnsafeCell<[u8; LINE]>,
}

#[derive(Clone)]
struct Memory(Arc<(Vec<Line>, AtomicU64)>);

impl Memory {
    fn new() -> Self {
        let line = || Line { word: AtomicU64::new(0), bytes: UnsafeCell::new([0; LINE]) };
        Self(Arc::new(((0..LINES).map(|_| line()).collect(), AtomicU64::new(0))))
    }

    fn each(&self, offset: usize, len: usize, mut act: impl FnMut(usize, usize, usize)) {
        for at in offset..offset + len {
            act(at / LINE, at % LINE, at - offset);
        }
    }
}

impl RingMemory for Memory {
    fn capacity(&self) -> usize {
        LINES * LINE
    }

    fn commit_word(&self, offset: usize) -> &AtomicU64 {
        assert_eq!(offset % LINE, 0);
        &self.0.0[offset / LINE].word
    }

    fn head(&self) -> &AtomicU64 {
        &self.0.1
    }

    fn own(&self, offset: usize) {
        assert!(offset < LINES * LINE);
    }

    unsafe fn write(&self, offset: usize, from: *const u8, len: usize) {
        self.each(offset, len, |line, at, index| {
            // Payload over a place where a commit word can stand: whoever looks there sees junk.
            if at == 0 {
                self.0.0[line].word.store(u64::MAX, Relaxed);
            }
            // SAFETY: the caller's source; the model reports any other access to the line.
            self.0.0[line].bytes.with_mut(|bytes| unsafe { (*bytes)[at] = *from.add(index) });
        });
    }

    unsafe fn read(&self, offset: usize, to: *mut u8, len: usize) {
        self.each(offset, len, |line, at, index| {
            // SAFETY: the caller's destination; the model reports a write to the line meanwhile.
            self.0.0[line].bytes.with(|bytes| unsafe { *to.add(index) = (*bytes)[at] });
        });
    }
}

fn push(producer: &mut Producer<Memory>, tag: u32, len: usize) -> bool {
    let Some(slot) = producer.reserve(len).unwrap() else { return false };
    // The first and the last byte tell whether the record is whole; more only costs time.
    producer.write(&slot, 0, &[tag as u8]);
    producer.write(&slot, len - 1, &[tag as u8 ^ 0xff]);
    producer.publish(slot, 1, tag);
    true
}

fn pop(consumer: &mut Consumer<Memory>, tag: u32, len: usize) -> bool {
    let Some(record) = consumer.peek().unwrap() else { return false };
    assert_eq!((record.kind, record.tag, record.len), (1, tag, len));
    let mut bytes = [0; 2];
    consumer.read(&record, 0, &mut bytes[..1]);
    consumer.read(&record, len - 1, &mut bytes[1..]);
    assert_eq!(bytes, [tag as u8, tag as u8 ^ 0xff], "a torn record");
    consumer.advance(record);
    true
}

/// Moves `before` records of `len` bytes in one thread, so that the next ones meet the wrap.
fn rings(before: u32, len: usize) -> (Producer<Memory>, Consumer<Memory>) {
    rings_of(Memory::new(), before, len)
}

fn rings_of(memory: Memory, before: u32, len: usize) -> (Producer<Memory>, Consumer<Memory>) {
    let mut producer = Producer::new(memory.clone());
    let mut consumer = Consumer::new(memory);
    for tag in 0..before {
        assert!(push(&mut producer, tag, len));
        assert!(pop(&mut consumer, tag, len));
    }
    (producer, consumer)
}

fn race(before: u32, len: usize, count: u32) {
    let (mut producer, mut consumer) = rings(before, len);
    let sender = thread::spawn(move || {
        for tag in 0..count {
            while !push(&mut producer, tag, len) {
                thread::yield_now();
            }
        }
    });
    for tag in 0..count {
        while !pop(&mut consumer, tag, len) {
            thread::yield_now();
        }
    }
    sender.join().unwrap();
    assert!(consumer.is_empty());
}

const SHORT: usize = LINE - COMMIT_BYTES;
const LONG: usize = SHORT + 1;

#[test]
fn short_records_arrive_in_order() {
    check(|| race(0, SHORT, 3));
}

#[test]
fn records_arrive_across_the_wrap() {
    // Lines 6 and 7, then 0 and 1.
    check(|| race(3, LONG, 3));
    // Seven short ones, one line left: the long record leaves padding behind.
    check(|| {
        let (mut producer, mut consumer) = rings(7, SHORT);
        let sender = thread::spawn(move || {
            for tag in 0..2 {
                assert!(push(&mut producer, tag, LONG));
            }
        });
        for tag in 0..2 {
            while !pop(&mut consumer, tag, LONG) {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
    });
}

/// A quarter of this ring is two lines: each third short record goes back to the start if what was
/// before it is read by then, and stays in line if not.
#[test]
fn records_go_back_to_the_start_only_when_all_is_read() {
    for before in 0..4 {
        check(move || race(before, SHORT, 4));
    }
    // All is read before the third is sent; then two lines are known to be free, until it is read.
    loom::model(|| {
        let memory = Memory::new();
        let (mut producer, mut consumer) = rings_of(memory.clone(), 2, SHORT);
        assert!(push(&mut producer, 2, SHORT));
        assert_eq!(memory.commit_word(0).load(Relaxed) >> 32, 2, "at the start");
        assert!(!push(&mut producer, 3, SHORT), "the consumer may be anywhere");
        assert!(pop(&mut consumer, 2, SHORT));
        for tag in 3..6 {
            assert!(push(&mut producer, tag, SHORT), "{tag}");
        }
        assert_eq!(memory.commit_word(3 * LINE).load(Relaxed) >> 32, 5, "in line");
        assert_eq!(producer.written(), 6 * LINE as u64, "without padding");
        assert!((3..6).all(|tag| pop(&mut consumer, tag, SHORT)));
    });
}

#[test]
fn a_full_ring_stops_the_producer_and_no_record_is_overrun() {
    // Room for three long ones and the word behind them; five, so that lines are used again.
    check(|| race(0, LONG, 5));
    // Filled to the last line, and read only then.
    for (len, fit) in [(SHORT, LINES as u32 - 1), (LONG, 3)] {
        loom::model(move || {
            let (mut producer, mut consumer) = rings(0, len);
            assert_eq!((0..).find(|tag| !push(&mut producer, *tag, len)), Some(fit));
            assert!((0..fit).all(|tag| pop(&mut consumer, tag, len)));
            assert!(consumer.is_empty());
        });
    }
}

#[test]
fn an_empty_ring_has_room_for_any_record_at_any_position() {
    // One thread: the consumer's unpublished part and the padding never add up to a stuck ring.
    for before in 0..2 * LINES as u32 {
        loom::model(move || {
            let (mut producer, mut consumer) = rings(before, SHORT);
            for len in [SHORT, LONG, 2 * LINE - COMMIT_BYTES] {
                assert!(push(&mut producer, 1, len), "{before} {len}");
                assert!(pop(&mut consumer, 1, len));
            }
        });
    }
}

#[test]
fn a_producer_that_dies_leaves_nothing_visible() {
    check(|| {
        let (mut producer, mut consumer) = rings(5, LONG);
        let sender = thread::spawn(move || {
            assert!(push(&mut producer, 0, LONG));
            let slot = producer.reserve(LONG).unwrap().unwrap();
            producer.write(&slot, 0, &[1; LONG]);
            // Never published.
        });
        while !pop(&mut consumer, 0, LONG) {
            thread::yield_now();
        }
        assert!(consumer.is_empty());
        sender.join().unwrap();
        assert!(consumer.peek().unwrap().is_none());
    });
}
