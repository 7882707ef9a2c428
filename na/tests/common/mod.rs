//! Helpers that the test programs of this crate share.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test program uses some of them")]

#[cfg(feature = "sm")]
pub(crate) mod sm;

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
