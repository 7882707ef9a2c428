//! Calls that wait for keys.

use std::time::Duration;

use margo::ForwardError;
use margo_provider_kv::{ClientError, KvError};

use crate::common::{
    PATIENCE, Pair, TRANSPORTS, in_memory, on_each, on_each_with, pattern, refusal, until,
};

fn waiting(pair: &Pair, count: u64) {
    until(|| pair.kv.stat(PATIENCE).unwrap()[0].waiters == count);
}

#[test]
fn all_who_wait_for_a_key_are_woken_and_no_others() {
    on_each(|pair| {
        let kv = &pair.kv;
        std::thread::scope(|scope| {
            let wait = |key: &'static [u8]| scope.spawn(move || kv.wait(key, 0, PATIENCE));
            let waits: Vec<_> = (0..10).map(|_| wait(b"k")).collect();
            let (appended, in_batch) = (wait(b"a"), wait(b"b"));
            waiting(pair, 12);
            kv.put(b"other", b"", PATIENCE).unwrap();
            kv.erase(b"k", PATIENCE).unwrap();
            assert_eq!(kv.stat(PATIENCE).unwrap()[0].waiters, 12);
            kv.put(b"k", b"there", PATIENCE).unwrap();
            for wait in waits {
                assert_eq!(wait.join().unwrap().unwrap().value.0, b"there");
            }
            kv.append(b"a", b"1", PATIENCE).unwrap();
            assert_eq!(appended.join().unwrap().unwrap().value.0, b"1");
            kv.batch().put(b"x", b"").put(b"b", b"2").run(PATIENCE).unwrap();
            assert_eq!(in_batch.join().unwrap().unwrap().value.0, b"2");
        });
        // At once for what is there.
        assert_eq!(kv.wait(b"k", 0, PATIENCE).unwrap().value.0, b"there");
        let error = refusal(kv.wait(&[0; 33 << 10], 0, PATIENCE));
        assert!(matches!(error, KvError::TooLong { len, .. } if len == 33 << 10), "{error}");
    });
}

#[test]
fn a_change_after_a_version_is_waited_for() {
    on_each(|pair| {
        let kv = &pair.kv;
        let version = kv.put(b"k", b"1", PATIENCE).unwrap();
        let long = pattern(1 << 20, 1);
        std::thread::scope(|scope| {
            let wait = scope.spawn(|| kv.wait(b"k", version, PATIENCE));
            waiting(pair, 1);
            kv.put(b"k", &long, PATIENCE).unwrap();
            let found = wait.join().unwrap().unwrap();
            assert!(found.version > version && found.value.0 == long);
        });
    });
}

#[test]
fn no_change_is_missed_by_those_who_come_and_go() {
    on_each(|pair| {
        let kv = &pair.kv;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut seen = 0;
                    while seen < 100 {
                        let found = kv.wait(b"k", 0, PATIENCE).unwrap();
                        let number = u64::from_be_bytes((*found.value.0).try_into().unwrap());
                        assert!(number >= seen);
                        if number == 100 {
                            break;
                        }
                        let next = kv.wait(b"k", found.version, PATIENCE).unwrap();
                        assert!(next.version > found.version);
                        seen = u64::from_be_bytes((*next.value.0).try_into().unwrap());
                    }
                });
            }
            for number in 1..=100_u64 {
                kv.put(b"k", &number.to_be_bytes(), PATIENCE).unwrap();
            }
        });
    });
}

#[test]
fn a_wait_ends_with_its_deadline() {
    on_each(|pair| {
        let error = pair.kv.wait(b"k", 0, Duration::from_millis(50)).unwrap_err();
        let expected = matches!(
            error,
            ClientError::Forward(ForwardError::TimedOut { .. })
                | ClientError::Kv(KvError::Deadline)
        );
        assert!(expected, "{error}");
        waiting(pair, 0);
    });
}

#[test]
fn a_caller_that_ends_waits_no_longer() {
    on_each(|pair| {
        let (client, kv) = crate::common::client_of(&pair.service);
        let target = kv.owner(b"");
        let key = margo::encoding::Bytes(b"k".to_vec());
        let args = margo_provider_kv::WaitArgs { key, above: 0, most: 0 };
        let call = client.rpc(margo_provider_kv::WAIT, &target, &args).start().unwrap();
        waiting(pair, 1);
        client.finalize_and_wait().unwrap();
        assert!(call.wait().is_err());
        waiting(pair, 0);
    });
}

#[test]
fn half_of_those_that_may_wait_are_of_one_user_or_host() {
    on_each_with(
        |config| config.waiters = 4,
        |pair| {
            let kv = &pair.kv;
            let (client, other) = crate::common::client_of(&pair.service);
            std::thread::scope(|scope| {
                let wait = |kv: &margo_provider_kv::KvClient| {
                    let kv = kv.clone();
                    scope.spawn(move || kv.wait(b"k", 0, PATIENCE))
                };
                let own = [wait(kv), wait(kv)];
                waiting(pair, 2);
                assert_eq!(refusal(kv.wait(b"k", 0, PATIENCE)), KvError::Busy);
                assert_eq!(refusal(other.wait(b"k", 0, PATIENCE)), KvError::Busy);
                kv.put(b"k", b"", PATIENCE).unwrap();
                for wait in own {
                    wait.join().unwrap().unwrap();
                }
            });
            client.finalize_and_wait().unwrap();
        },
    );
}

#[test]
fn those_who_wait_are_told_when_the_provider_ends() {
    for transport in TRANSPORTS {
        for ends in ["closes", "drains", "is dropped", "shuts down"] {
            let pair = Pair::new(transport, &in_memory());
            let kv = pair.kv.clone();
            let wait = std::thread::spawn(move || kv.wait(b"k", 0, PATIENCE));
            waiting(&pair, 1);
            let Pair { service, client, provider, .. } = pair;
            match ends {
                "closes" => provider.close(PATIENCE).unwrap(),
                "drains" => {
                    use margo::component::RunningProvider;
                    provider.drain(PATIENCE).unwrap();
                }
                "is dropped" => drop(provider),
                _ => {
                    service.finalize_and_wait().unwrap();
                    drop(provider);
                }
            }
            let error = refusal(wait.join().unwrap());
            assert_eq!(error, KvError::Closing, "{ends}");
            client.finalize_and_wait().unwrap();
            service.finalize_and_wait().unwrap();
        }
    }
}
