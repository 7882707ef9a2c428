//! Items come once, at least once, or at most once when something breaks down.

use std::time::Duration;

use margo_stream::{
    Acknowledge, ConnectError, Delivery, OnLoss, Position, Positions, ReceiveSpec, Route, SendSpec,
    Sender,
};

use crate::common::{NUMBERS, SOON, client, end, instance, receiver, sender};

const PATIENT: Delivery = Delivery::Replay { patience: SOON };

fn waits() -> ReceiveSpec {
    ReceiveSpec::new().on_loss(OnLoss::Wait(SOON))
}

#[test]
fn a_restarted_sender_goes_on_where_it_was() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &waits());
    let spec = SendSpec::new().name("one");
    let mut first = sender(&client, &receiver, &spec);
    assert_eq!(first.position(), 0);
    first.send_all(0..100).unwrap();
    first.flush().unwrap();
    for number in 0..100 {
        assert_eq!(receiver.recv().unwrap(), Some(number));
    }
    drop(first);
    // One that does not know of the other would say all of it again.
    let connect = |spec: &SendSpec| {
        Sender::connect(&[&client], NUMBERS, receiver.addresses(), spec, Route::RoundRobin)
    };
    let refused = connect(&spec).unwrap_err();
    assert!(matches!(&refused, ConnectError::Refused { why, .. } if why.contains("resumes")));
    let mut second = connect(&spec.resumes(true)).unwrap();
    assert_eq!(second.position(), 100);
    second.send_all(100..200).unwrap();
    second.finish_without_waiting().unwrap();
    for number in 100..200 {
        assert_eq!(receiver.recv().unwrap(), Some(number));
    }
    assert_eq!(receiver.recv().unwrap(), None);
    drop(receiver);
    end([client, service]);
}

#[test]
fn a_loss_that_lasts_is_told() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let spec = ReceiveSpec::new().on_loss(OnLoss::Wait(Duration::from_millis(20)));
    let mut receiver = receiver(&service, &spec);
    drop(sender(&client, &receiver, &SendSpec::new()));
    assert!(receiver.recv().is_err());
    drop(receiver);
    end([client, service]);
}

/// A receiver that keeps a checkpoint, and is started again with it, at the same address file.
#[test]
fn with_a_checkpoint_each_item_comes_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("address");
    let client = client("na+sm://");
    let address = format!("@{}", file.display());
    let sending = {
        let client = client.clone();
        std::thread::spawn(move || {
            let spec = SendSpec::new().name("one").batch_bytes(800).delivery(PATIENT);
            let mut sender =
                Sender::connect(&[&client], NUMBERS, &[address], &spec, Route::RoundRobin).unwrap();
            sender.send_all(0..5_000).unwrap();
            sender.finish().unwrap();
        })
    };
    let (mut checkpoint, mut sum) = (Positions::new(), 0);
    let mut lives = 0;
    'lives: loop {
        lives += 1;
        let service = instance("na+sm://");
        let mut spec = ReceiveSpec::new().acknowledge(Acknowledge::OnCommit).credit_bytes(4_000);
        for (sender, position) in &checkpoint {
            spec = spec.resume_at(sender, *position);
        }
        let mut receiver = receiver(&service, &spec);
        std::fs::write(&file, &receiver.addresses()[0]).unwrap();
        let mut since = 0;
        // What this life knows, and loses, of what came behind its last checkpoint.
        let mut own_sum = sum;
        loop {
            match receiver.recv().unwrap() {
                Some(number) => own_sum += number,
                None => {
                    sum = own_sum;
                    receiver.commit(&receiver.positions());
                    drop(receiver);
                    // The sender is told of its last commit before the instance ends.
                    sending.join().unwrap();
                    end([service]);
                    break 'lives;
                }
            }
            since += 1;
            if since % 150 == 0 {
                checkpoint = receiver.positions();
                sum = own_sum;
                receiver.commit(&checkpoint);
            }
            if since == 1_000 {
                // As after a crash: nobody is told anything more but that it is gone.
                drop(receiver);
                end([service]);
                break;
            }
        }
    }
    assert_eq!(sum, (0..5_000).sum::<u64>());
    assert!(lives >= 5, "{lives}");
    end([client]);
}

#[test]
fn a_checkpoint_keeps_senders_that_have_not_come_back() {
    let service = instance("na+sm://");
    let (one, two) =
        (Position { item: 7, has_ended: false }, Position { item: 9, has_ended: true });
    let spec = ReceiveSpec::new().senders(3).acknowledge(Acknowledge::OnCommit);
    let receiver = receiver(&service, &spec.resume_at("one", one).resume_at("two", two));
    let expected = Positions::from([("one".to_owned(), one), ("two".to_owned(), two)]);
    assert_eq!(receiver.positions(), expected);
    drop(receiver);
    end([service]);
}

#[test]
fn a_stream_whose_senders_have_all_ended_is_over() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let ended = Position { item: 9, has_ended: true };
    let spec = ReceiveSpec::new().acknowledge(Acknowledge::OnCommit).resume_at("one", ended);
    let mut receiver = receiver(&service, &spec);
    assert_eq!(receiver.recv().unwrap(), None);
    // One whose last answer was lost is told that it may go.
    let spec = SendSpec::new().name("one").resumes(true);
    let mut sender = sender(&client, &receiver, &spec);
    assert_eq!(sender.position(), 9);
    sender.flush().unwrap();
    sender.finish().unwrap();
    drop(receiver);
    end([client, service]);
}
