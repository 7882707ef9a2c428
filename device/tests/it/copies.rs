//! Copies: they end late, in any order, and never after their memory.

use device::Copies;
use device::fake::Fake;
use device::raw::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_UNKNOWN};

use super::memory::assert_clean;

#[test]
fn copies_of_several_streams_end_in_any_order_and_each_has_its_bytes() {
    let mut overtaken = false;
    for seed in 0..20 {
        let fake = Fake::new(1, seed);
        let gpu = fake.driver().unwrap().device(0).unwrap();
        let (copies, memory) = (Copies::new(&gpu, 4).unwrap(), gpu.alloc(8000).unwrap());
        for part in 0..8 {
            memory.write_at(part * 1000, &[part as u8 + 1; 1000]).unwrap();
        }
        let mut parts = vec![vec![0_u8; 1000]; 8];
        let mut flying: Vec<_> = parts
            .iter_mut()
            .enumerate()
            .map(|(at, part)| {
                // SAFETY: the vectors stay where they are, and are read when the copies are over.
                let started =
                    unsafe { copies.start_to_host(&memory, at * 1000, part.as_mut_ptr(), 1000) };
                (at, started.unwrap())
            })
            .collect();
        assert!(!flying[7].1.is_over().unwrap(), "it ends at once");
        let mut order = Vec::new();
        while !flying.is_empty() {
            flying.retain_mut(|(at, copy)| match copy.is_over().unwrap() {
                true => {
                    order.push(*at);
                    false
                }
                false => true,
            });
        }
        overtaken |= !order.is_sorted();
        for (at, part) in parts.iter().enumerate() {
            assert_eq!(*part, [at as u8 + 1; 1000]);
        }
        drop((copies, memory, gpu));
        assert_clean(&fake);
    }
    assert!(overtaken);
}

#[test]
fn a_copy_that_is_dropped_is_over_before_its_memory_goes() {
    let fake = Fake::new(1, 5);
    let gpu = fake.driver().unwrap().device(0).unwrap();
    let (copies, memory) = (Copies::new(&gpu, 1).unwrap(), gpu.alloc(4096).unwrap());
    memory.write_at(0, &[7; 4096]).unwrap();
    let mut bytes = vec![0_u8; 4096];
    // SAFETY: the bytes are there until the copy is dropped.
    let copy = unsafe { copies.start_to_host(&memory, 0, bytes.as_mut_ptr(), 4096) }.unwrap();
    drop((copies, memory, gpu));
    assert_eq!(fake.pending(), 1);
    drop(copy);
    assert_eq!((fake.pending(), bytes), (0, vec![7; 4096]));
    assert_clean(&fake);
}

#[test]
fn a_copy_that_fails_is_over_and_tells() {
    let fake = Fake::new(1, 5);
    let gpu = fake.driver().unwrap().device(0).unwrap();
    let (copies, memory) = (Copies::new(&gpu, 1).unwrap(), gpu.alloc(4096).unwrap());
    let mut bytes = vec![0_u8; 4096];
    let mut start = || {
        // SAFETY: the bytes are there until the copies are over.
        unsafe { copies.start_to_host(&memory, 0, bytes.as_mut_ptr(), 4096) }
    };
    fake.fail("cuMemcpyDtoHAsync", 0, CUDA_ERROR_UNKNOWN);
    assert!(start().is_err());
    // The copy has begun when this fails: it is over before the error is told.
    fake.fail("cuEventRecord", 0, CUDA_ERROR_UNKNOWN);
    assert!(start().is_err());
    assert_eq!(fake.pending(), 0);
    let copy = start().unwrap();
    fake.fail("cuEventQuery", 0, CUDA_ERROR_ILLEGAL_ADDRESS);
    let error = copy.wait().unwrap_err().to_string();
    assert!(error.contains("start it anew"), "{error}");
}
