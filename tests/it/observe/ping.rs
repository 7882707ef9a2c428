//! Pings: every instance that listens answers them.

use crate::common::{PATIENCE, on_each};
use margo::ForwardError;

#[test]
fn pings_come_back_up_to_their_bound() {
    on_each(|pair| {
        let network = pair.client.network();
        let service = pair.client.lookup(pair.service.self_addr().uri()).unwrap();
        for bytes in [0, 1, 64 << 10] {
            network.ping(&service, &vec![7; bytes], PATIENCE).unwrap();
        }
        let error = network.ping(&service, &vec![7; (64 << 10) + 1], PATIENCE).unwrap_err();
        let is_said = |detail: &str| detail.contains("65536 bytes at most");
        assert!(
            matches!(&error, ForwardError::Failed { detail, .. } if is_said(detail)),
            "{error}"
        );
    });
}
