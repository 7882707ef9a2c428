//! Calls that call back.

use std::time::Duration;

use crate::call_support::{HOLD, Held, NOBODY, SUM, echo_provider};
use crate::common::{Pair, bounded, on_each};
use margo::{ForwardError, ProviderHandle, ProviderId};
use ult::channel;

type Results = (channel::Sender<Result<u32, ForwardError>>, Receiver);
type Receiver = channel::Receiver<Result<u32, ForwardError>>;

fn results() -> Results {
    channel::unbounded()
}

fn with_held(body: impl Fn(&Pair, &ProviderHandle, &Held) + Send + Sync + 'static) {
    bounded("calls with callbacks", move || {
        on_each(|pair| {
            let held = Held::serve(&pair.service);
            let target = pair.target();
            body(&pair, &target, &held);
            held.go(1000);
            assert_eq!(pair.client.forward(SUM, &target, &(40, 2)).unwrap(), 42, "it still works");
            pair.end();
        });
    });
}

#[test]
fn the_callback_gets_the_result_once() {
    with_held(|pair, target, held| {
        let (sender, receiver) = results();
        let other = ProviderHandle::new(target.addr().clone(), ProviderId::new(42));
        let provider = echo_provider(&pair.service, 42);
        for (to, n) in [(target, 1), (&other, 2)] {
            let sender = sender.clone();
            let callback = move |result| sender.send(result).unwrap();
            pair.client.rpc(HOLD, to, &n).call_back(callback).unwrap();
        }
        assert_eq!(receiver.recv().unwrap().unwrap(), 2);
        held.go(1);
        assert_eq!(receiver.recv().unwrap().unwrap(), 1);
        // The callbacks, and what they held, are gone.
        drop((sender, provider));
        assert!(receiver.recv().is_err());
    });
}

#[test]
fn the_callback_gets_errors() {
    with_held(|pair, target, held| {
        let (sender, receiver) = results();
        let callback = || {
            let sender = sender.clone();
            move |result| sender.send(result).unwrap()
        };
        pair.client.rpc(NOBODY, target, &1).call_back(callback()).unwrap();
        let result = receiver.recv().unwrap();
        assert!(matches!(result, Err(ForwardError::NotRegistered { .. })), "{result:?}");

        held.begun_in_time(&pair.service, |limit| {
            pair.client.rpc(HOLD, target, &1).timeout(limit).call_back(callback()).unwrap();
            match receiver.recv().unwrap() {
                Err(ForwardError::TimedOut { limit: given, .. }) => assert_eq!(given, limit),
                other => panic!("{other:?}"),
            }
        });

        let canceler = pair.client.rpc(HOLD, target, &1).call_back(callback()).unwrap();
        held.begun(1);
        canceler.cancel();
        let result = receiver.recv().unwrap();
        assert!(matches!(result, Err(ForwardError::Canceled { .. })), "{result:?}");
        canceler.cancel();
    });
}

#[test]
fn a_deadline_that_does_not_pass_changes_nothing() {
    with_held(|pair, target, held| {
        let (sender, receiver) = results();
        held.go(2);
        for limit in [Duration::from_secs(3600), Duration::MAX] {
            let sender = sender.clone();
            let callback = move |result| sender.send(result).unwrap();
            pair.client.rpc(HOLD, target, &3).timeout(limit).call_back(callback).unwrap();
            assert_eq!(receiver.recv().unwrap().unwrap(), 3);
        }
    });
}

#[test]
fn a_callback_may_wait_and_call() {
    with_held(|pair, target, held| {
        let (sender, receiver) = results();
        let (client, to) = (pair.client.clone(), target.clone());
        let callback = move |result: Result<i64, ForwardError>| {
            let n = u32::try_from(result.unwrap()).unwrap();
            sender.send(client.forward(HOLD, &to, &n)).unwrap();
        };
        pair.client.rpc(SUM, target, &(1, 2)).call_back(callback).unwrap();
        // The callback waits, and nothing else is held up.
        held.begun(1);
        assert_eq!(pair.client.forward(SUM, target, &(1, 1)).unwrap(), 2);
        held.go(1);
        assert_eq!(receiver.recv().unwrap().unwrap(), 3);
    });
}

#[test]
fn a_callback_that_panics_hurts_nobody() {
    with_held(|pair, target, _| {
        let (sender, receiver) = channel::unbounded::<()>();
        let callback = move |result: Result<i64, ForwardError>| {
            let _sender = sender;
            panic!("as the test wants, with {result:?}");
        };
        pair.client.rpc(SUM, target, &(1, 2)).call_back(callback).unwrap();
        assert!(receiver.recv().is_err(), "it was unwound");
        assert_eq!(pair.client.forward(SUM, target, &(1, 1)).unwrap(), 2);
    });
}

#[test]
fn a_call_that_cannot_start_drops_its_callback() {
    bounded("a call of an ended instance", || {
        on_each(|pair| {
            let target = pair.target();
            let (sender, receiver) = channel::unbounded();
            pair.client.finalize_and_wait().unwrap();
            let callback = move |result| sender.send(result).unwrap();
            let started = pair.client.rpc(HOLD, &target, &1).call_back(callback);
            assert!(matches!(started, Err(ForwardError::Closing { .. })), "{started:?}");
            assert!(receiver.recv().is_err(), "it was not called");
            pair.service.finalize_and_wait().unwrap();
        });
    });
}

#[test]
fn the_end_of_the_instance_calls_back() {
    bounded("the end of an instance", || {
        on_each(|pair| {
            let held = Held::serve(&pair.service);
            let (sender, receiver) = results();
            let callback = move |result| sender.send(result).unwrap();
            let limit = Duration::from_secs(3600);
            pair.client.rpc(HOLD, &pair.target(), &1).timeout(limit).call_back(callback).unwrap();
            held.begun(1);
            pair.client.finalize_and_wait().unwrap();
            let result = receiver.recv().unwrap();
            assert!(matches!(result, Err(ForwardError::Closing { .. })), "{result:?}");
            held.go(1);
            pair.service.finalize_and_wait().unwrap();
        });
    });
}
