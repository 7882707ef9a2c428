//! The ucx transport passes the conformance suite, over TCP and over shared memory.
#![cfg(feature = "ucx")]

use std::sync::Arc;

use na::conformance::Optional;
use na::{Endpoint, Error, OpenOptions};

fn lacks(uri: &str) -> Option<String> {
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
