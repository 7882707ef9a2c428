//! See `cli/src/top/fuzzing.rs`: the program has no library, so the part of it stands here as well.
#![no_main]
#![allow(dead_code, reason = "the rest of it is not needed")]

#[path = "../../cli/src/failure.rs"]
mod failure;
#[path = "../../cli/src/top/fuzzing.rs"]
mod fuzzing;
#[path = "../../cli/src/output.rs"]
mod output;
#[path = "../../cli/src/top/view.rs"]
mod view;

/// As in `cli/src/top/screen.rs`.
mod screen {
    pub(super) type Size = (usize, usize);
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::snapshots(data));
