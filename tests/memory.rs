//! Memory does not grow with calls. The only test here, because it looks at the whole process.
#![allow(clippy::unwrap_used, reason = "a test says by panicking what went wrong")]

mod common;

use margo::{Bulk, Rpc};

const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
const TRANSFER: Rpc<Bulk, u64> = Rpc::new("transfer");
const BYTES: usize = 512;

#[test]
fn memory_does_not_grow_with_calls() {
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
        pages * rustix::param::page_size()
    }
    for transport in common::TRANSPORTS {
        let pair = common::Pair::new(transport);
        pair.service.serve(SUM).function(|(a, b)| a + b).unwrap();
        pair.service
            .serve(TRANSFER)
            .returning(|handle| {
                let mut local = handle.instance().bulk_buffer(BYTES).unwrap();
                handle.pull(handle.args(), 0, &mut local, 0..BYTES).unwrap();
                local.iter().map(|byte| u64::from(*byte)).sum()
            })
            .unwrap();
        let target = pair.target();
        let data = [1; BYTES];
        let round = |calls: i64| {
            for n in 0..calls {
                let requests: Vec<_> =
                    (0..8).map(|m| pair.client.iforward(SUM, &target, &(n, m)).unwrap()).collect();
                margo::wait_all(requests).into_iter().for_each(|sum| assert!(sum.is_ok()));
                let call = |bulk: &Bulk| pair.client.forward(TRANSFER, &target, bulk);
                pair.client.expose_ref(&data, call).unwrap().unwrap();
            }
        };
        round(500);
        let before = resident();
        round(2_000);
        let grown = resident().saturating_sub(before);
        // 18,000 calls: a hundred bytes of each would be 1.8 MB.
        assert!(grown < 3 << 19, "{transport}: {grown} bytes more");
        pair.end();
    }
}
