//! Processes that are killed and stopped: the others are told, and nothing hangs.

use std::path::Path;
use std::time::Duration;

use margo::Instance;
use margo_stream::{
    Acknowledge, Delivery, OnLoss, Position, ReceiveSpec, Receiver, Route, SendError, SendSpec,
    Sender, StreamError,
};
use rustix::process::Signal;

use crate::common::{NUMBERS, SOON, client, end, instance, receiver};
use crate::process::{Process, role, say};

const ADDRESSES: [&str; 2] = ["na+sm://", "na+tcp://127.0.0.1"];

/// The process that another test has started.
#[test]
fn process() {
    let Some(role) = role() else { return };
    let words: Vec<&str> = role.iter().map(String::as_str).collect();
    match words[..] {
        ["sends", own, to, name, from, count] => sends(own, to, name, from, count),
        ["takes", own] => takes(own),
        ["sums", own, folder] => sums(own, Path::new(folder)),
        _ => panic!("{role:?}"),
    }
}

/// Sends numbers from where its receiver wants them on.
fn sends(own: &str, to: &str, name: &str, from: &str, count: &str) {
    let client = client(own);
    let mut sender = connect(&client, to, SendSpec::new().name(name).resumes(true));
    let (from, count): (u64, u64) = (from.parse().unwrap(), count.parse().unwrap());
    for number in from.max(sender.position())..count {
        sender.send(&number).unwrap();
        if number == from + 1000 {
            sender.flush().unwrap();
            say("1000");
        }
    }
    sender.finish().unwrap();
    say("finished");
    end([client]);
}

/// Takes numbers for ever.
fn takes(own: &str) {
    let service = instance(own);
    let mut receiver = receiver(&service, &ReceiveSpec::new().credit_bytes(4000));
    say(&receiver.addresses()[0]);
    let mut count = 0;
    while receiver.recv().unwrap().is_some() {
        count += 1;
        if count == 1000 {
            say("1000");
        }
    }
    say(&format!("took {count}"));
}

/// Adds up, with a checkpoint in a file: the sum, and how far the senders were.
fn sums(own: &str, folder: &Path) {
    let (state, address) = (folder.join("state"), folder.join("address"));
    let text = std::fs::read_to_string(&state).unwrap_or_default();
    let mut words = text.split_whitespace();
    let mut sum: u64 = words.next().map_or(0, |sum| sum.parse().unwrap());
    let mut spec = ReceiveSpec::new().acknowledge(Acknowledge::OnCommit).credit_bytes(8000);
    spec = spec.on_loss(OnLoss::Wait(SOON));
    while let (Some(sender), Some(item), Some(end)) = (words.next(), words.next(), words.next()) {
        let (item, has_ended) = (item.parse().unwrap(), end == "true");
        spec = spec.resume_at(sender, Position { item, has_ended });
    }
    let service = instance(own);
    let mut receiver = receiver(&service, &spec);
    write(&address, &receiver.addresses()[0]);
    let mut since = 0;
    let save = |sum: u64, receiver: &Receiver<u64>| {
        let positions = receiver.positions();
        let mut text = sum.to_string();
        for (sender, Position { item, has_ended }) in &positions {
            text += &format!(" {sender} {item} {has_ended}");
        }
        write(&state, &text);
        receiver.commit(&positions);
        say("saved");
    };
    while let Some(number) = receiver.recv().unwrap() {
        sum += number;
        since += 1;
        if since % 300 == 0 {
            save(sum, &receiver);
        }
    }
    save(sum, &receiver);
    say(&format!("sum {sum}"));
    drop(receiver);
    end([service]);
}

/// Replaces a file, so that whoever reads it sees the old text or the new one.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// A sender of small batches.
fn connect(from: &Instance, to: &str, spec: SendSpec) -> Sender<u64> {
    let spec = spec.batch_bytes(800);
    Sender::connect(&[from], NUMBERS, &[to], &spec, Route::RoundRobin).unwrap()
}

/// A process that takes numbers for ever, and a sender that it has.
fn taker(address: &str) -> (Process, Instance, Sender<u64>) {
    let mut taker = Process::start(module_path!(), &format!("takes {address}"));
    let to = taker.hear().unwrap();
    let client = client(address);
    let sender = connect(&client, &to, SendSpec::new());
    (taker, client, sender)
}

#[test]
fn a_sender_that_is_killed_is_lost() {
    for address in ADDRESSES {
        let service = instance(address);
        let mut receiver = receiver(&service, &ReceiveSpec::new());
        let to = receiver.addresses()[0].clone();
        let sender =
            Process::start(module_path!(), &format!("sends {address} {to} one 0 1000000000"));
        for number in 0..1000 {
            assert_eq!(receiver.recv().unwrap(), Some(number));
        }
        sender.kill();
        let mut next = 1000;
        let error = loop {
            match receiver.recv() {
                Ok(number) => assert_eq!(number, Some(next)),
                Err(error) => break error,
            }
            next += 1;
        };
        let StreamError::Lost { sender, items, .. } = error else { panic!("{error}") };
        assert_eq!((sender.as_str(), items), ("one", next), "all that came was handed out");
        drop(receiver);
        end([service]);
    }
}

#[test]
fn a_receiver_that_is_killed_is_an_error() {
    for address in ADDRESSES {
        let (mut taker, client, mut sender) = taker(address);
        let sending = std::thread::spawn(move || sender.send_all(0..).unwrap_err());
        assert_eq!(taker.hear().as_deref(), Some("1000"));
        taker.kill();
        let error = sending.join().unwrap();
        assert!(matches!(error, SendError::Lost { .. }), "{error}");
        end([client]);
    }
}

#[test]
fn a_sender_that_is_killed_and_started_again_goes_on() {
    for address in ADDRESSES {
        let service = instance(address);
        let mut receiver = receiver(&service, &ReceiveSpec::new().on_loss(OnLoss::Wait(SOON)));
        let to = receiver.addresses()[0].clone();
        let start = |from: u64| {
            let role = format!("sends {address} {to} one {from} 20000");
            Process::start(module_path!(), &role)
        };
        let mut first = start(0);
        assert_eq!(first.hear().as_deref(), Some("1000"));
        first.kill();
        let second = start(0);
        for number in 0..20_000 {
            assert_eq!(receiver.recv().unwrap(), Some(number));
        }
        assert_eq!(receiver.recv().unwrap(), None);
        drop(second);
        drop(receiver);
        end([service]);
    }
}

/// The receiver dies at any time, and is started again at another address.
#[test]
fn with_checkpoints_no_item_is_lost_or_doubled_by_a_kill() {
    for address in ADDRESSES {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let client = client(address);
        let to = format!("@{path}/address");
        let count = 40_000_u64;
        let sending = {
            let client = client.clone();
            std::thread::spawn(move || {
                let patient = Delivery::Replay { patience: SOON };
                let spec = SendSpec::new().name("one").delivery(patient);
                let mut sender = connect(&client, &to, spec);
                sender.send_all(0..count).unwrap();
                sender.finish()
            })
        };
        let start = || Process::start(module_path!(), &format!("sums {address} {path}"));
        for life in 0..4 {
            let mut sums = start();
            for _ in 0..10 + 7 * life {
                assert_eq!(sums.hear().as_deref(), Some("saved"));
            }
            sums.kill();
        }
        let mut last = start();
        let sum = loop {
            let said = last.hear().expect("it ended before it said the sum");
            if let Some(sum) = said.strip_prefix("sum ") {
                break sum.parse::<u64>().unwrap();
            }
        };
        assert_eq!(sum, (0..count).sum::<u64>());
        // The last answer may be lost with its process, which has all.
        let _ = sending.join().unwrap();
        end([client]);
    }
}

#[test]
fn a_receiver_that_is_stopped_holds_its_sender_up_and_no_more() {
    for address in ADDRESSES {
        let (mut taker, client, mut sender) = taker(address);
        sender.send_all(0..2000).unwrap();
        assert_eq!(taker.hear().as_deref(), Some("1000"));
        taker.signal(Signal::STOP);
        let (done, is_done) = ult::channel::unbounded();
        let sending = std::thread::spawn(move || {
            sender.send_all(2000..20_000).unwrap();
            let _ = done.send(());
            sender.finish().unwrap();
        });
        // It has credit for 500 numbers, and waits.
        assert!(is_done.recv_timeout(Duration::from_millis(200)).is_err());
        taker.signal(Signal::CONT);
        assert_eq!(taker.hear().as_deref(), Some("took 20000"));
        sending.join().unwrap();
        end([client]);
    }
}
