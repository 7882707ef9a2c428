//! A ULT that waits in a destructor and blocks its xstream is reported.

use std::sync::Arc;

use crate::common::{private, wait_until, within};
use crate::listen::{LOG, listen};
use ult::{Eventual, JoinError, Mutex};

/// Takes the lock when it is dropped.
struct Locks(Arc<Mutex<u32>>);

impl Drop for Locks {
    fn drop(&mut self) {
        *self.0.lock() += 1;
    }
}

#[test]
fn a_destructor_that_waits_during_a_cancel_is_reported_once() {
    listen();
    within(|| {
        let (runtime, pools) = private(2);
        let mutex = Arc::new(Mutex::new(0));
        let (held, release) = (Arc::new(Eventual::new()), Arc::new(Eventual::new()));
        let (inner, told, go) = (mutex.clone(), held.clone(), release.clone());
        // On another xstream, so that the wait ends.
        let holder = pools[1].spawn(move || {
            let guard = inner.lock();
            told.set(()).unwrap();
            go.wait_ready();
            drop(guard);
        });
        held.wait_ready();
        let (inner, started) = (mutex.clone(), Arc::new(Eventual::new()));
        let told = started.clone();
        let cancelled = pools[0].ult().name("victim").spawn(move || {
            let _locks = Locks(inner);
            told.set(()).unwrap();
            Eventual::<()>::new().wait_ready();
        });
        let cancelled = cancelled.unwrap();
        started.wait_ready();
        cancelled.cancel();
        let told = || {
            let log = LOG.lock().unwrap();
            log.iter().filter(|line| line.contains("victim")).cloned().collect::<Vec<_>>()
        };
        wait_until("it is reported", || !told().is_empty());
        release.set(()).unwrap();
        assert!(matches!(cancelled.join(), Err(JoinError::Cancelled)));
        holder.unwrap().join().unwrap();
        assert_eq!(*mutex.lock(), 1);
        runtime.shutdown().unwrap();
        let log = told();
        assert_eq!(log.len(), 1, "{log:?}");
        for part in ["holds up its xstream", "\"p0\"", "\"mutex\""] {
            assert!(log[0].contains(part), "{part}: {}", log[0]);
        }
    });
}
