//! The conformance suite over UCX, by TCP and by shared memory, where libucp is installed and
//! `MARGO_TEST_UCX=1` is set; else each test says SKIPPED. It has to be asked for, because it tests
//! that library as much as ours.
#![cfg(feature = "ucx")]

use std::sync::Arc;

use na::conformance::Optional;
use na::{Endpoint, Error, OpenOptions};

fn lacks(uri: &str) -> Option<String> {
    if std::env::var_os("MARGO_TEST_UCX").is_none() {
        return Some("set MARGO_TEST_UCX=1".to_owned());
    }
    match na::open(uri, &OpenOptions::default()) {
        Err(Error::Unavailable { reason, .. }) => Some(reason),
        _ => None,
    }
}

fn open(uri: &str, options: &OpenOptions) -> Arc<dyn Endpoint> {
    na::open(uri, options).unwrap_or_else(|error| panic!("{uri}: {error}"))
}

mod tcp {
    use super::*;

    const URI: &str = "ucx+tcp://127.0.0.1:0";
    const OPEN: Optional = Optional { lacks: || lacks(URI), open: |options| open(URI, options) };

    na::conformance! { OPEN; all }
}

mod sm {
    use super::*;

    const URI: &str = "ucx+sm://127.0.0.1:0";
    const OPEN: Optional = Optional { lacks: || lacks(URI), open: |options| open(URI, options) };

    na::conformance! { OPEN; all }
}
