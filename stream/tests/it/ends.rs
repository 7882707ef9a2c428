//! Ends: of a sender, of a stream, and those that nobody wanted.

use std::time::Duration;

use margo_stream::{
    ConnectError, OnLoss, ReceiveSpec, Receiver, Route, SendError, SendSpec, Sender, StreamError,
};

use crate::common::{NUMBERS, client, end, instance, receiver, sender};

#[test]
fn a_stream_ends_when_all_senders_have() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new().senders(3));
    let mut senders: Vec<_> =
        (0..3).map(|_| sender(&client, &receiver, &SendSpec::new())).collect();
    let mut numbers = Vec::new();
    while let Some(mut sender) = senders.pop() {
        sender.send(&(senders.len() as u64)).unwrap();
        sender.finish_without_waiting().unwrap();
        numbers.extend(receiver.recv().unwrap());
    }
    assert_eq!(numbers, [2, 1, 0]);
    assert_eq!(receiver.recv().unwrap(), None);
    assert_eq!(receiver.recv().unwrap(), None, "an end is an end");
    let late = Sender::connect(
        &[&client],
        NUMBERS,
        receiver.addresses(),
        &SendSpec::new(),
        Route::RoundRobin,
    );
    assert!(matches!(late, Err(ConnectError::Refused { .. })));
    drop(receiver);
    end([client, service]);
}

#[test]
fn a_sender_that_never_comes_is_an_error() {
    let (service, others) = (instance("na+sm://"), instance("na+sm://"));
    let client = client("na+sm://");
    let limit = Duration::from_millis(100);
    let mut all_there = receiver(&others, &ReceiveSpec::new().connect_within(limit));
    let mut only = sender(&client, &all_there, &SendSpec::new());

    let spec = ReceiveSpec::new().senders(3).connect_within(limit);
    let mut receiver = receiver(&service, &spec);
    let mut first = sender(&client, &receiver, &SendSpec::new());
    first.send(&3).unwrap();
    first.flush().unwrap();
    assert_eq!(receiver.recv().unwrap(), Some(3), "what has come is handed out");
    let error = receiver.recv().unwrap_err();
    let StreamError::Missing { there, declared, .. } = &error else { panic!("{error}") };
    assert_eq!((*there, *declared), (1, 3), "{error}");
    let told = first.finish().unwrap_err();
    assert!(told.to_string().contains("1 of 3 senders have connected within 100ms"), "{told}");

    // The limit of the other one is over as well.
    only.send(&1).unwrap();
    assert_eq!(all_there.recv().unwrap(), Some(1));
    only.finish_without_waiting().unwrap();
    assert_eq!(all_there.recv().unwrap(), None);
    drop((receiver, all_there));
    end([client, service, others]);
}

#[test]
fn a_sender_that_is_dropped_is_a_loss() {
    for address in ["na+sm://", "na+tcp://127.0.0.1"] {
        let (service, client) = (instance(address), client(address));
        let mut receiver = receiver(&service, &ReceiveSpec::new());
        let mut sender = sender(&client, &receiver, &SendSpec::new().name("short"));
        sender.send_all(0..10).unwrap();
        sender.flush().unwrap();
        // All that has arrived comes before.
        for number in 0..10 {
            assert_eq!(receiver.recv().unwrap(), Some(number));
        }
        drop(sender);
        let error = receiver.recv().unwrap_err();
        let StreamError::Lost { sender, items, .. } = &error else { panic!("{error}") };
        assert_eq!((sender.as_str(), *items), ("short", 10));
        assert_eq!(receiver.recv().unwrap_err(), error, "it stays so");
        drop(receiver);
        end([client, service]);
    }
}

#[test]
fn a_loss_may_be_gone_over() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let spec = ReceiveSpec::new().senders(2).on_loss(OnLoss::GoOn);
    let mut receiver = receiver(&service, &spec);
    let lost = sender(&client, &receiver, &SendSpec::new());
    let mut other = sender(&client, &receiver, &SendSpec::new());
    drop(lost);
    other.send(&7).unwrap();
    other.finish_without_waiting().unwrap();
    assert_eq!(receiver.recv().unwrap(), Some(7));
    assert_eq!(receiver.recv().unwrap(), None);
    assert_eq!(receiver.stats().lost, 1);
    drop(receiver);
    end([client, service]);
}

#[test]
fn a_receiver_that_ends_early_tells_its_senders() {
    for address in ["na+sm://", "na+tcp://127.0.0.1"] {
        let (service, client) = (instance(address), client(address));
        let mut receiver = receiver(&service, &ReceiveSpec::new().credit_bytes(1000));
        let mut sender = sender(&client, &receiver, &SendSpec::new().batch_bytes(100));
        let sending = std::thread::spawn(move || sender.send_all(0..).unwrap_err());
        assert_eq!(receiver.recv().unwrap(), Some(0));
        drop(receiver);
        let error = sending.join().unwrap();
        assert!(matches!(error, SendError::Refused { .. } | SendError::Lost { .. }), "{error}");
        end([client, service]);
    }
}

#[test]
fn an_end_that_cannot_be_said_is_an_error() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new());
    let mut sender = sender(&client, &receiver, &SendSpec::new());
    sender.send(&1).unwrap();
    assert_eq!(receiver.recv().unwrap(), Some(1));
    // Its acknowledgement comes, and nothing is under way when the receiver ends.
    let taken = std::thread::spawn(move || {
        sender.wait_until_taken().unwrap();
        sender
    });
    assert!(receiver.recv_batch_deadline(std::time::Instant::now()).is_err());
    let sender = taken.join().unwrap();
    drop(receiver);
    assert!(sender.finish().is_err());
    end([client, service]);
}

#[test]
fn a_program_that_fails_says_why() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new());
    let mut sender = sender(&client, &receiver, &SendSpec::new());
    sender.send(&1).unwrap();
    assert_eq!(receiver.recv().unwrap(), Some(1));
    receiver.fail("the disk is full");
    let error = sender.finish().unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
    let error = receiver.recv().unwrap_err();
    assert!(matches!(&error, StreamError::Failed { why, .. } if why == "the disk is full"));
    drop(receiver);
    end([client, service]);
}

#[test]
fn a_panic_in_a_batch_ends_the_stream() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new());
    let mut sender = sender(&client, &receiver, &SendSpec::new());
    sender.send(&1).unwrap();
    let taking = std::thread::spawn(move || {
        for number in receiver.recv_batch().unwrap().unwrap() {
            assert_eq!(number, 0, "this fails");
        }
    });
    assert!(taking.join().is_err());
    let error = sender.finish().unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    end([client, service]);
}

#[test]
fn an_instance_that_is_finalized_ends_its_streams() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new());
    let mut sender = sender(&client, &receiver, &SendSpec::new());
    sender.send(&1).unwrap();
    assert_eq!(receiver.recv().unwrap(), Some(1));
    service.finalize_and_wait().unwrap();
    assert_eq!(receiver.recv().unwrap_err(), StreamError::Closed { stream: "numbers" });
    assert!(sender.finish().is_err());
    drop(receiver);
    end([client]);
}

#[test]
fn both_sides_start_in_any_order() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let address = service.self_addr().uri().to_owned();
    let sending = std::thread::spawn(move || {
        let mut sender =
            Sender::connect(&[&client], NUMBERS, &[address], &SendSpec::new(), Route::RoundRobin)
                .unwrap();
        sender.send(&1).unwrap();
        sender.finish().unwrap();
        client
    });
    // The sender has been refused at least once when this has been asked.
    while service.monitoring().stats().requests_received == 0 {
        std::thread::yield_now();
    }
    let mut receiver = receiver(&service, &ReceiveSpec::new());
    assert_eq!(receiver.recv().unwrap(), Some(1));
    assert_eq!(receiver.recv().unwrap(), None);
    let client = sending.join().unwrap();
    drop(receiver);
    end([client, service]);
}

#[test]
fn misuse_is_told() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let serve = |instances: &[&margo::Instance], spec| {
        Receiver::serve(instances, NUMBERS, &spec).unwrap_err().to_string()
    };
    assert!(serve(&[], ReceiveSpec::new()).contains("no instance"));
    assert!(serve(&[&client], ReceiveSpec::new()).contains("does not listen"));
    assert!(serve(&[&service], ReceiveSpec::new().credit_bytes(0)).contains("credit_bytes"));
    assert!(serve(&[&service], ReceiveSpec::new().senders_at(1, 1)).contains("endpoint 1"));
    let receiver = receiver(&service, &ReceiveSpec::new());
    assert!(serve(&[&service], ReceiveSpec::new()).contains("endpoint 0"));
    let connect = |addresses: &[&str], spec: SendSpec| {
        Sender::connect(&[&client], NUMBERS, addresses, &spec, Route::RoundRobin)
            .unwrap_err()
            .to_string()
    };
    assert!(connect(&[], SendSpec::new()).contains("no address"));
    let own = receiver.addresses()[0].as_str();
    assert!(connect(&[own], SendSpec::new().name("x".repeat(257))).contains("256"));
    let now = SendSpec::new().connect_within(Duration::ZERO);
    assert!(connect(&["na+tcp://127.0.0.1:1"], now).contains("no instance takes"));
    drop(receiver);
    end([client, service]);
}
