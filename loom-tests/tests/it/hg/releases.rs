//! Is a request that is done with ever forgotten while no receive is left?
#![allow(dead_code, unreachable_pub, reason = "what only the RPC core needs of the file below")]

use loom::sync::{Arc, Mutex};
use loom::thread;
use margo_loom_tests::check;

#[path = "../../../../hg/src/core/releases.rs"]
mod releases;

use releases::{Counted, Releases};

/// Two handlers are done while the last receive is taken: one of the three sides sees both.
#[test]
fn who_is_done_while_receives_run_short_is_collected() {
    check(|| {
        let releases = Arc::new(Releases::new().unwrap());
        // What was collected, under the lock of the core.
        let core = Arc::new(Mutex::new(0));
        let done = |(releases, core): (Arc<Releases>, Arc<Mutex<u64>>)| {
            thread::spawn(move || match releases.count(true, true) {
                Counted::Not => panic!("there are cells"),
                Counted::Apart => {}
                Counted::Short => {
                    let mut collected = core.lock().unwrap();
                    *collected = releases.released();
                }
            })
        };
        let handlers = [(); 2].map(|()| done((releases.clone(), core.clone())));
        {
            let mut collected = core.lock().unwrap();
            assert!(releases.run_short());
            *collected = releases.released();
        }
        handlers.into_iter().for_each(|handler| handler.join().unwrap());
        assert_eq!(*core.lock().unwrap(), 2);
        assert_eq!((releases.released(), releases.answered()), (2, 2));
        assert!(!releases.run_short(), "so it is already");
        releases.has_plenty();
        assert!(releases.run_short());
    });
}
