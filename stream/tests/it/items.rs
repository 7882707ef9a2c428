//! Items arrive as they were sent, in order, whatever their size and the transport.

use margo::encoding::Bytes;
use margo_stream::{ReceiveSpec, Receiver, Route, SendSpec, Sender, Stream, StreamError};
use serde::{Deserialize, Serialize};

use crate::common::{NUMBERS, client, end, instance, receiver, sender};

const ADDRESSES: [&str; 2] = ["na+sm://", "na+tcp://127.0.0.1"];

#[test]
fn numbers_arrive_in_order() {
    for address in ADDRESSES {
        for batch_bytes in [8, 1000, 65_536, 1 << 20] {
            let (service, client) = (instance(address), client(address));
            let mut receiver = receiver(&service, &ReceiveSpec::new());
            let spec = SendSpec::new().batch_bytes(batch_bytes);
            let mut sender = sender(&client, &receiver, &spec);
            let count = 20_000 + batch_bytes as u64;
            let sending = std::thread::spawn(move || {
                let half: Vec<u64> = (0..count / 2).collect();
                sender.send_slice(&half).unwrap();
                (count / 2..count).for_each(|number| sender.send(&number).unwrap());
                sender.finish().unwrap();
            });
            for number in 0..count {
                assert_eq!(receiver.recv().unwrap(), Some(number), "{address} {batch_bytes}");
            }
            assert_eq!(receiver.recv().unwrap(), None);
            assert_eq!(receiver.stats().items, count);
            sending.join().unwrap();
            drop(receiver);
            end([client, service]);
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Event {
    Begin { name: String, at: f64 },
    Data(Bytes),
    End,
}

const EVENTS: Stream<Event> = Stream::new("events");

#[test]
fn items_of_any_length_are_in_one_stream() {
    for address in ADDRESSES {
        let (service, client) = (instance(address), client(address));
        let mut receiver = Receiver::serve(&[&service], EVENTS, &ReceiveSpec::new()).unwrap();
        let events: Vec<_> = (0..300_usize)
            .map(|n| match n % 3 {
                0 => Event::Begin { name: "x".repeat(n), at: n as f64 },
                1 => Event::Data(Bytes(vec![n as u8; n * n * 5])),
                _ => Event::End,
            })
            .collect();
        let expected = events.clone();
        let addresses = receiver.addresses().to_vec();
        let sending = std::thread::spawn(move || {
            let spec = SendSpec::new();
            let mut sender =
                Sender::connect(&[&client], EVENTS, &addresses, &spec, Route::RoundRobin).unwrap();
            events.iter().for_each(|event| sender.send(event).unwrap());
            sender.finish().unwrap();
            client
        });
        for event in expected {
            assert_eq!(receiver.recv().unwrap(), Some(event));
        }
        assert_eq!(receiver.recv().unwrap(), None);
        let client = sending.join().unwrap();
        drop(receiver);
        end([client, service]);
    }
}

#[test]
fn data_comes_with_its_item_and_goes_back() {
    for address in ADDRESSES {
        let (service, client) = (instance(address), client(address));
        let mut receiver = receiver(&service, &ReceiveSpec::new());
        let mut sender = sender(&client, &receiver, &SendSpec::new());
        let sending = std::thread::spawn(move || {
            for n in 0..50_u64 {
                sender.send(&n).unwrap();
                let data = vec![n as u8; 1000 * n as usize];
                let lent = sender.send_with(&n, data.clone()).unwrap();
                if n % 7 == 0 {
                    assert_eq!(lent.wait().as_ref(), Some(&data), "it comes back");
                }
            }
            sender.finish().unwrap();
        });
        let mut numbers = Vec::new();
        while let Some(batch) = receiver.recv_batch().unwrap() {
            match batch.into_data() {
                Ok((n, data)) => {
                    assert_eq!(&*data, vec![n as u8; 1000 * n as usize]);
                    numbers.push(n);
                }
                Err(batch) => numbers.extend(batch),
            }
        }
        assert_eq!(numbers, (0..50).flat_map(|n| [n, n]).collect::<Vec<_>>());
        sending.join().unwrap();
        drop(receiver);
        end([client, service]);
    }
}

/// Numbers of which peers may send others than this side takes.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
struct Digit(u64);

impl From<Digit> for u64 {
    fn from(digit: Digit) -> Self {
        digit.0
    }
}

impl TryFrom<u64> for Digit {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        if number < 10 { Ok(Self(number)) } else { Err(format!("{number} is no digit")) }
    }
}

#[test]
fn an_item_that_cannot_be_decoded_ends_its_batch_and_the_stream() {
    const DIGITS: Stream<Digit> = Stream::new("digits");
    for folds in [false, true] {
        let (service, client) = (instance("na+sm://"), client("na+sm://"));
        let mut receiver = Receiver::serve(&[&service], DIGITS, &ReceiveSpec::new()).unwrap();
        let to = receiver.addresses();
        let spec = SendSpec::new().batch_items(4);
        let mut sender = Sender::connect(&[&client], DIGITS, to, &spec, Route::Direct).unwrap();
        for number in [1, 2, 10, 3] {
            sender.send_to(0, &Digit(number)).unwrap();
        }
        sender.flush().unwrap();
        let mut digits = Vec::new();
        let error = loop {
            match receiver.recv_batch() {
                Ok(batch) if folds => batch.unwrap().for_each(|digit| digits.push(digit.0)),
                Ok(batch) => {
                    for digit in batch.unwrap() {
                        digits.push(digit.0);
                    }
                }
                Err(error) => break error,
            }
        };
        assert_eq!(digits, [1, 2]);
        assert!(matches!(error, StreamError::Decode { item: 2, .. }), "{error}");
        drop((receiver, sender));
        end([client, service]);
    }
}

#[test]
fn items_without_bytes_are_counted() {
    const TICKS: Stream<()> = Stream::new("ticks");
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = Receiver::serve(&[&service], TICKS, &ReceiveSpec::new()).unwrap();
    let addresses = receiver.addresses();
    let spec = SendSpec::new();
    let mut sender =
        Sender::connect(&[&client], TICKS, addresses, &spec, Route::RoundRobin).unwrap();
    let sending = std::thread::spawn(move || {
        sender.send_all(std::iter::repeat_n((), 200_000)).unwrap();
        sender.finish().unwrap();
    });
    let mut count = 0;
    while receiver.recv().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 200_000);
    sending.join().unwrap();
    drop(receiver);
    end([client, service]);
}

#[test]
fn what_waits_for_further_items_goes_by_itself() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new());
    let mut sender = sender(&client, &receiver, &SendSpec::new());
    // The first goes at once. The others wait while it is not acknowledged, and no call follows.
    (0..3).for_each(|number| sender.send(&number).unwrap());
    for number in 0..3 {
        assert_eq!(receiver.recv().unwrap(), Some(number));
    }
    drop((sender, receiver));
    end([client, service]);
}

#[test]
fn items_do_not_wait_for_an_iterator_that_waits() {
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new());
    let mut sender = sender(&client, &receiver, &SendSpec::new());
    let (feed, fed) = ult::channel::unbounded();
    let sending = std::thread::spawn(move || {
        sender.send_all(&fed).unwrap();
        sender.finish().unwrap();
    });
    // Each arrives although the next one is not there, also while the one before is not taken.
    (0..3).for_each(|number| feed.send(number).unwrap());
    for number in 0..3 {
        assert_eq!(receiver.recv().unwrap(), Some(number));
    }
    drop(feed);
    assert_eq!(receiver.recv().unwrap(), None);
    sending.join().unwrap();
    drop(receiver);
    end([client, service]);
}

#[test]
fn types_of_another_shape_are_refused() {
    const SIGNED: Stream<i64> = Stream::new("numbers");
    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let receiver = Receiver::serve(&[&service], NUMBERS, &ReceiveSpec::new()).unwrap();
    let addresses = receiver.addresses();
    let spec = SendSpec::new();
    let refused = Sender::connect(&[&client], SIGNED, addresses, &spec, Route::RoundRobin);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("another shape"), "{error}");
    drop(receiver);
    end([client, service]);
}

#[test]
fn async_code_takes_batches() {
    use futures_lite::StreamExt;

    let (service, client) = (instance("na+sm://"), client("na+sm://"));
    let mut receiver = receiver(&service, &ReceiveSpec::new());
    let mut sender = sender(&client, &receiver, &SendSpec::new().batch_bytes(80));
    let sending = std::thread::spawn(move || {
        sender.send_all(0..10_000).unwrap();
        sender.finish().unwrap();
    });
    let sum = futures_lite::future::block_on(async {
        let mut sum = 0;
        while let Some(batch) = receiver.next().await {
            sum += batch.unwrap().sum::<u64>();
        }
        sum
    });
    assert_eq!(sum, (0..10_000).sum::<u64>());
    sending.join().unwrap();
    drop(receiver);
    end([client, service]);
}
