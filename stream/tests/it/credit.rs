//! A receiver holds no more than it has granted, and senders wait meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use margo_stream::{ReceiveSpec, SendError, SendSpec};

use crate::common::{client, end, instance, receiver, sender};

#[test]
fn a_sender_waits_for_credit() {
    for address in ["na+sm://", "na+tcp://127.0.0.1"] {
        let (service, client) = (instance(address), client(address));
        let credit = 10_000;
        let mut receiver = receiver(&service, &ReceiveSpec::new().credit_bytes(credit));
        let mut sender = sender(&client, &receiver, &SendSpec::new().batch_bytes(1000));
        let sent = Arc::new(AtomicU64::new(0));
        let count = sent.clone();
        let sending = std::thread::spawn(move || {
            for number in 0..100_000_u64 {
                sender.send(&number).unwrap();
                count.store(number + 1, Ordering::SeqCst);
            }
            sender.finish().unwrap();
        });
        let mut taken = 0;
        while let Some(batch) = receiver.recv_batch().unwrap() {
            // This batch at least has no answer yet.
            let held = receiver.stats().held;
            assert!((1..=credit).contains(&held), "{held} bytes are in use");
            taken += batch.count() as u64;
            // What is not acknowledged, a batch that is open, and an item that is about to go.
            let ahead = sent.load(Ordering::SeqCst).saturating_sub(taken) * 8;
            assert!(ahead <= credit + 2 * 1000, "{ahead} bytes are on their way");
        }
        assert_eq!(taken, 100_000);
        sending.join().unwrap();
        drop(receiver);
        end([client, service]);
    }
}

#[test]
fn a_batch_is_never_longer_than_the_credit() {
    for credit in [8, 100, 1000] {
        let (service, client) = (instance("na+sm://"), client("na+sm://"));
        let mut receiver = receiver(&service, &ReceiveSpec::new().credit_bytes(credit));
        let mut sender = sender(&client, &receiver, &SendSpec::new());
        let sending = std::thread::spawn(move || {
            let numbers: Vec<u64> = (0..3000).collect();
            sender.send_slice(&numbers).unwrap();
            sender.send_all(3000..4000).unwrap();
            sender.finish().unwrap();
        });
        for number in 0..4000 {
            assert_eq!(receiver.recv().unwrap(), Some(number), "credit {credit}");
        }
        assert_eq!(receiver.recv().unwrap(), None);
        sending.join().unwrap();
        drop(receiver);
        end([client, service]);
    }
}

#[test]
fn an_item_beyond_all_credit_is_refused_where_it_is_sent() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new().credit_bytes(100));
    let mut sender = sender(&client, &receiver, &SendSpec::new());
    let error = sender.send_with(&1, vec![0; 93]).unwrap_err();
    assert!(matches!(error, SendError::TooLarge { bytes: 101, max: 100, .. }), "{error}");
    assert!(error.to_string().contains("credit_bytes"));
    // The sender goes on.
    sender.send_with(&2, vec![0; 92]).unwrap();
    assert_eq!(receiver.recv().unwrap(), Some(2));
    drop((sender, receiver));
    end([client, service]);
}
