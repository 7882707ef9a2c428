//! See `na::fuzzing::tcp::greeting`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::tcp::greeting(data));
