//! Many more execution streams than processors: C has hung with 64 of them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::common::bounded;
use margo::{ProviderHandle, Rpc};

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");

#[test]
fn sixty_four_execution_streams_serve_and_end() {
    bounded("64 execution streams", || {
        let document = r#"{ "use_progress_thread": true, "rpc_thread_count": 64 }"#;
        let instance = margo::init(document).unwrap();
        assert_eq!(
            instance.layout().xstreams().len(),
            66,
            "one for progress and the first one, too"
        );
        let ran_on = Arc::new(Mutex::new(HashSet::new()));
        let seen = ran_on.clone();
        let sum = move |(a, b)| {
            seen.lock().unwrap().insert(std::thread::current().id());
            ult::yield_now();
            a + b
        };
        instance.serve(SUM).function(sum).unwrap();
        let own = ProviderHandle::from(instance.self_addr());
        for n in 0..100 {
            let calls: Vec<_> =
                (0..100).map(|m| instance.rpc(SUM, &own, &(n, m)).start().unwrap()).collect();
            for (m, result) in margo::wait_all(calls).into_iter().enumerate() {
                assert_eq!(result.unwrap(), n + m as i64);
            }
        }
        assert!(ran_on.lock().unwrap().len() > 1, "they share the work");
        instance.finalize_and_wait().unwrap();
    });
}
