//! See `na::fuzzing::ofi::bytes`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| na::fuzzing::ofi::bytes(data));
