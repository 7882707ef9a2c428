//! See `na::fuzzing::tcp::frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::tcp::frames(data));
