//! See `cli/src/top/fuzzing.rs`: the program has no library, so the part of it stands here as well.
#![no_main]
#![allow(dead_code, reason = "the rest of it is not needed")]

#[path = "../../cli/src/support/failure.rs"]
mod failure;
#[path = "../../cli/src/top/fuzzing.rs"]
mod fuzzing;
#[path = "../../cli/src/support/output.rs"]
mod output;
#[path = "../../cli/src/top/view.rs"]
mod view;
#[path = "../../cli/src/top/window.rs"]
mod window;

mod support {
    pub(crate) use crate::output;
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::snapshots(data));
