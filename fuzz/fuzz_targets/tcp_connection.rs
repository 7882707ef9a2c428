//! See `na::fuzzing::tcp::connection`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::tcp::connection(data));
