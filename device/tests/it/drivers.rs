//! Drivers of other kinds than CUDA's, over fakes: what works the same, and what they lack.

use device::fake::Fake;
use device::raw::{CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY};
use device::{Copies, DeviceError, DriverKind, Pinned};

use super::memory::assert_clean;

const KINDS: [DriverKind; 3] = [DriverKind::Cuda, DriverKind::Hip, DriverKind::LevelZero];

#[test]
fn each_kind_of_driver_copies_in_each_direction() {
    for kind in KINDS {
        let fake = Fake::new(2, 7);
        let driver = fake.driver_of(kind).unwrap();
        assert_eq!(driver.kind(), kind);
        for index in 0..2 {
            let gpu = driver.device(index).unwrap();
            assert_eq!((&*gpu.info().name, gpu.info().bytes), ("Fake", 1 << 30));
            assert!(gpu.info().pci.ends_with(&format!("f{index}:00.0")), "{}", gpu.info().pci);
            let (one, two) = (gpu.alloc(100_000).unwrap(), gpu.alloc(100_000).unwrap());
            let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 253) as u8).collect();
            one.write_at(0, &bytes).unwrap();
            let copies = Copies::new(&gpu, 3).unwrap();
            let parts: Vec<_> = (0..10).map(|part| part * 10_000).collect();
            let start = |at: &usize| copies.start_within((&one, *at), (&two, *at), 10_000).unwrap();
            let flying: Vec<_> = parts.iter().map(start).collect();
            flying.into_iter().for_each(|copy| copy.wait().unwrap());
            let mut back = vec![0; 99_990];
            // SAFETY: the bytes stay until it is dropped, below.
            let pinned = unsafe { Pinned::new(&gpu, back.as_mut_ptr(), back.len()) }.unwrap();
            drop(pinned);
            two.read_at(10, &mut back).unwrap();
            assert!(back == bytes[10..], "{kind:?}");
            // SAFETY: the owner goes along.
            let part = unsafe { driver.memory_at(two.address() + 5, 1000, two.clone()) }.unwrap();
            assert_eq!(part.device(), &gpu);
            // SAFETY: it is refused.
            let error = unsafe { driver.memory_at(back.as_ptr() as u64, 16, ()) }.unwrap_err();
            assert!(matches!(error, DeviceError::NotDeviceMemory { .. }), "{error}");
        }
        assert!(driver.device(2).is_err());
        drop(driver);
        assert_clean(&fake);
    }
}

#[test]
fn each_kind_of_driver_names_itself_in_errors() {
    for (kind, interface) in KINDS.into_iter().zip(["(CUDA 12.4)", "(HIP 0.0)", "(Level Zero 1.9)"])
    {
        let fake = Fake::new(1, 1);
        let gpu = fake.driver_of(kind).unwrap().device(0).unwrap();
        let error = gpu.alloc(2 << 30).unwrap_err();
        assert_eq!(error.code(), Some(CUDA_ERROR_OUT_OF_MEMORY));
        let text = error.to_string();
        assert!(text.contains(interface) && text.contains("OUT_OF"), "{text}");
        drop(gpu);
        assert_clean(&fake);
        let none = Fake::new(0, 1).driver_of(kind).unwrap_err().to_string();
        assert!(none.contains("cuInit"), "{none}");
    }
}

#[test]
fn a_driver_without_handles_of_memory_says_so() {
    let fake = Fake::new(1, 1);
    let gpu = fake.driver_of(DriverKind::LevelZero).unwrap().device(0).unwrap();
    let error = gpu.alloc_exportable(4096).unwrap_err();
    assert_eq!(error.code(), Some(CUDA_ERROR_NOT_SUPPORTED));
    drop(gpu);
    assert_clean(&fake);
}

/// Whichever call fails, it is told, and nothing is left behind.
#[test]
fn every_call_of_level_zero_may_fail() {
    let work = |fake: &Fake| -> Result<(), DeviceError> {
        let gpu = fake.driver_of(DriverKind::LevelZero)?.device(0)?;
        let (one, two) = (gpu.alloc(4096)?, gpu.alloc(4096)?);
        one.write_at(0, &[7; 4096])?;
        Copies::new(&gpu, 2)?.start_within((&one, 0), (&two, 0), 4096)?.wait()?;
        two.read_at(0, &mut [0; 4096])
    };
    for function in ["cuMemAlloc", "cuStreamCreate", "cuEventCreate", "cuEventRecord"] {
        for nth in 0..2 {
            let fake = Fake::new(1, 3);
            fake.fail(function, nth, 999);
            let error = work(&fake).unwrap_err();
            assert!(error.to_string().contains(function), "{error}");
            assert_clean(&fake);
        }
    }
}
