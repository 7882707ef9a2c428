//! Memory for values under way, and changes that wait to be written.

use margo_provider_kv::{ClientError, KvError};

use crate::common::{PATIENCE, client_of, on_each_disk, on_each_with, pattern, refusal, until};

#[test]
fn more_than_all_memory_is_refused_and_what_fits_waits_for_its_turn() {
    on_each_with(
        |config| config.bulk_bytes = 200_000,
        |pair| {
            let value = pattern(120_000, 1);
            let clients: Vec<_> = (0..3).map(|_| client_of(&pair.service)).collect();
            std::thread::scope(|scope| {
                for (at, (_, kv)) in clients.iter().chain(&clients).enumerate() {
                    let value = &value;
                    scope.spawn(move || {
                        for _ in 0..10 {
                            let key = [at as u8];
                            kv.put(&key, value, PATIENCE).unwrap();
                            let mut read = vec![0; value.len()];
                            kv.get_into(&key, &mut read, PATIENCE).unwrap();
                            assert!(read == *value);
                        }
                    });
                }
            });
            clients.into_iter().for_each(|(client, _)| client.finalize_and_wait().unwrap());

            let kv = &pair.kv;
            let long = pattern(200_001, 2);
            let too_long = |what: &str| {
                let (what, most) = (what.to_owned(), 200_000);
                KvError::TooLong { what, len: most + 1, most }
            };
            assert_eq!(refusal(kv.put(b"k", &long, PATIENCE)), too_long("a batch"));
            assert!(!kv.exists(b"k", PATIENCE).unwrap());
            kv.put(b"k", &long[..200_000], PATIENCE).unwrap();
            kv.append(b"k", b"x", PATIENCE).unwrap();
            let error = refusal(kv.get_into(b"k", &mut vec![0; 300_000], PATIENCE));
            assert_eq!(error, too_long("a value"));
        },
    );
}

#[test]
fn what_a_full_queue_refuses_is_not_stored_and_all_else_is() {
    on_each_disk(
        |config| {
            config.store.max_queued_requests = 1;
            config.store.sync = margo_provider_kv::SyncPolicy::Always;
        },
        |pair| {
            let (kv, round) = (&pair.kv, std::cell::Cell::new(0_u8));
            until(|| {
                round.set(round.get().wrapping_add(1));
                let puts = (0..64).map(|n| kv.start_put(&[n], &[round.get()], PATIENCE).unwrap());
                let mut has_refused = false;
                let puts: Vec<_> = puts.collect();
                for (n, put) in (0..).zip(puts) {
                    let put = put.wait();
                    let stored = kv.get(&[n], PATIENCE).map(|found| found.value.0 == [round.get()]);
                    match put {
                        Ok(_) => assert!(stored.unwrap()),
                        Err(error) => {
                            assert!(matches!(error, ClientError::Kv(KvError::Busy)), "{error}");
                            assert!(!stored.unwrap_or(false));
                            has_refused = true;
                        }
                    }
                }
                has_refused
            });
            kv.put(b"k", b"", PATIENCE).unwrap();
        },
    );
}
