//! Which receiver gets which item, and where items come from.

use margo_stream::{ReceiveSpec, Receiver, Route, SendError, SendSpec, Sender};

use crate::common::{NUMBERS, client, end, instance};

/// Sends numbers by a route to three receivers, over two transports; returns what each got.
fn sent(route: Route<u64>, send: impl FnOnce(&mut Sender<u64>) + Send + 'static) -> Vec<Vec<u64>> {
    let services = [instance("na+sm://"), instance("na+tcp://127.0.0.1"), instance("na+sm://")];
    let clients = [client("na+sm://"), client("na+tcp://")];
    let mut receivers: Vec<Receiver<u64>> = services
        .iter()
        .map(|service| Receiver::serve(&[service], NUMBERS, &ReceiveSpec::new()).unwrap())
        .collect();
    let addresses: Vec<_> = receivers.iter().map(|it| it.addresses()[0].clone()).collect();
    let [sm, tcp] = &clients;
    let spec = SendSpec::new().batch_bytes(800);
    let mut sender = Sender::connect(&[sm, tcp], NUMBERS, &addresses, &spec, route).unwrap();
    let sending = std::thread::spawn(move || {
        send(&mut sender);
        sender.finish().unwrap();
    });
    let taking = receivers.drain(..).map(|mut receiver| {
        std::thread::spawn(move || {
            let mut numbers = Vec::new();
            while let Some(number) = receiver.recv().unwrap() {
                numbers.push(number);
            }
            numbers
        })
    });
    let taking: Vec<_> = taking.collect();
    let taken = taking.into_iter().map(|taking| taking.join().unwrap()).collect();
    sending.join().unwrap();
    end(clients);
    end(services);
    taken
}

#[test]
fn in_turn_and_on_demand_each_item_goes_to_one() {
    for route in [Route::RoundRobin, Route::OnDemand] {
        let all = sent(route, |sender| sender.send_all(0..100_000).unwrap());
        for one in &all {
            assert!(!one.is_empty() && one.is_sorted(), "each gets some, in order");
        }
        let mut numbers = all.concat();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100_000).collect::<Vec<_>>());
    }
}

#[test]
fn items_with_the_same_key_go_to_the_same_receiver() {
    let route = Route::by_key(|number: &u64| number % 10);
    let all = sent(route, |sender| sender.send_all(0..10_000).unwrap());
    for key in 0..10 {
        let of_key = |numbers: &Vec<u64>| numbers.iter().filter(|n| *n % 10 == key).count();
        let counts: Vec<_> = all.iter().map(of_key).filter(|count| *count > 0).collect();
        assert_eq!(counts, [1000], "key {key}");
    }
    assert!(all.iter().all(|numbers| numbers.is_sorted()));
}

#[test]
fn all_get_what_is_for_all() {
    let all = sent(Route::Broadcast, |sender| sender.send_all(0..10_000).unwrap());
    assert!(all.iter().all(|numbers| *numbers == (0..10_000).collect::<Vec<_>>()));
}

#[test]
fn the_program_chooses_the_receiver() {
    let all = sent(Route::Direct, |sender| {
        (0..999).for_each(|n| sender.send_to(n as usize % 3, &n).unwrap());
        assert!(matches!(sender.send_to(3, &0), Err(SendError::NoReceiver { count: 3, .. })));
        assert!(matches!(sender.send(&0), Err(SendError::NoReceiver { .. })));
    });
    for (at, numbers) in all.iter().enumerate() {
        assert_eq!(*numbers, (at as u64..999).step_by(3).collect::<Vec<_>>());
    }
}

#[test]
fn a_receiver_says_where_items_come_from() {
    let (tcp, sm) = (instance("na+tcp://127.0.0.1"), instance("na+sm://"));
    let spec = ReceiveSpec::new().senders_at(0, 1).senders_at(1, 1);
    let mut receiver = Receiver::serve(&[&tcp, &sm], NUMBERS, &spec).unwrap();
    let clients = [client("na+tcp://"), client("na+sm://")];
    for (at, client) in clients.iter().enumerate() {
        let (spec, address) = (SendSpec::new().name(format!("of {at}")), &receiver.addresses()[at]);
        let connect = |name: &str| {
            let spec = spec.clone().name(name);
            Sender::connect(&[client], NUMBERS, &[address], &spec, Route::RoundRobin)
        };
        let mut sender = connect(&format!("of {at}")).unwrap();
        let refused = connect("another").unwrap_err().to_string();
        assert!(refused.contains("has its"), "{refused}");
        sender.send(&(at as u64)).unwrap();
        sender.finish_without_waiting().unwrap();
    }
    let mut from = Vec::new();
    while let Some(batch) = receiver.recv_batch().unwrap() {
        from.push((batch.endpoint(), batch.sender().to_owned(), batch.collect::<Vec<_>>()));
    }
    from.sort();
    assert_eq!(from, [(0, "of 0".to_owned(), vec![0]), (1, "of 1".to_owned(), vec![1])]);
    drop(receiver);
    end(clients);
    end([tcp, sm]);
}
