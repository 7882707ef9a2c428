//! Helpers that the test programs of this crate share.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test program uses some of them")]

use std::cell::Cell;
use std::sync::Arc;

use na::{Addr, Endpoint, OpenOptions};

#[cfg(feature = "sm")]
pub(crate) mod sm;

/// Endpoints of a group, where a test is about one.
const SHARDS: usize = 4;

thread_local! {
    static IN_GROUPS: Cell<bool> = const { Cell::new(false) };
}

/// The number of the endpoint that peers by hand are to wish for, if the test runs
/// [in a group](in_group).
pub(crate) fn wanted() -> Option<usize> {
    IN_GROUPS.get().then_some(SHARDS - 1)
}

/// Opens the endpoint under test: one alone, or the last one of a group.
pub(crate) fn open(uri: &str, options: &OpenOptions) -> Arc<dyn Endpoint> {
    match wanted() {
        None => na::open(uri, options).expect("open"),
        Some(_) => na::conformance::last_of_group(
            na::open_group(uri, options, SHARDS).expect("open a group"),
        ),
    }
}

/// Looks the endpoint under test up.
pub(crate) fn lookup(from: &Arc<dyn Endpoint>, uri: &str) -> Addr {
    match wanted() {
        None => from.lookup(uri).expect("lookup"),
        Some(shard) => from.lookup_shard(uri, shard).expect("lookup"),
    }
}

/// Runs a test with the last endpoint of a group, to which others hand its connections over, in
/// place of each endpoint under test.
pub(crate) fn in_group(test: fn()) {
    IN_GROUPS.set(true);
    test();
}

/// Tests once more, with [`in_group`].
macro_rules! in_groups {
    ($($test:ident),+ $(,)?) => {
        mod in_groups {
            $(
                #[test]
                fn $test() {
                    $crate::common::in_group(super::$test);
                }
            )+
        }
    };
}
pub(crate) use in_groups;

/// The name by which libtest knows a test of the calling module, for a child process that is to
/// run this test alone (`--exact`).
macro_rules! test_path {
    ($test:literal) => {
        $crate::common::within_program(concat!(module_path!(), "::", $test))
    };
}
pub(crate) use test_path;

/// `path` without the name of the program, with which `module_path!` begins and libtest does not.
pub(crate) fn within_program(path: &'static str) -> &'static str {
    path.split_once("::").map_or(path, |(_, inside)| inside)
}
