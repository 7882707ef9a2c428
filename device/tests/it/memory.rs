//! Memory of devices: where it comes from, what is refused, and that it goes.

use device::fake::{Fake, InUse};
use device::raw::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN};
use device::{DeviceError, Driver, Pinned};

/// Asserts that nothing was done wrong, and that all was given back.
#[track_caller]
pub(crate) fn assert_clean(fake: &Fake) {
    assert_eq!(fake.faults(), Vec::<String>::new());
    assert_eq!(fake.in_use(), InUse::default());
}

#[test]
fn bytes_go_to_a_device_and_back() {
    let fake = Fake::new(2, 1);
    let driver = fake.driver().unwrap();
    for index in 0..2 {
        let gpu = driver.device(index).unwrap();
        for memory in [gpu.alloc(100_000).unwrap(), gpu.alloc_exportable(100_000).unwrap()] {
            let bytes: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
            memory.write_at(0, &bytes).unwrap();
            memory.write_at(7, b"margo").unwrap();
            let mut back = vec![0; 99_990];
            memory.read_at(5, &mut back).unwrap();
            assert_eq!(&back[2..7], b"margo");
            assert_eq!(&back[7..], &bytes[12..99_995]);
            assert_eq!(memory.device().info().index, index);
        }
    }
    drop(driver);
    assert_clean(&fake);
}

#[test]
fn the_host_cannot_read_memory_of_a_device() {
    let fake = Fake::new(1, 1);
    let memory = fake.driver().unwrap().device(0).unwrap().alloc(4096).unwrap();
    // By the kernel, which says so in place of a signal.
    let (mut byte, own) = (0_u8, std::process::id().cast_signed());
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: memory.address() as *mut _, iov_len: 1 };
    // SAFETY: one place each; the kernel checks the other.
    let read = unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
    assert_eq!(read, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
}

#[test]
fn what_leaves_the_memory_is_refused() {
    let fake = Fake::new(1, 1);
    let memory = fake.driver().unwrap().device(0).unwrap().alloc(100).unwrap();
    for (offset, len) in [(0, 101), (100, 1), (usize::MAX, 1)] {
        let error = memory.read_at(offset, &mut vec![0; len]).unwrap_err();
        assert!(matches!(error, DeviceError::Range { bytes: 100, .. }), "{error}");
    }
    memory.read_at(100, &mut []).unwrap();
    drop(memory);
    assert_clean(&fake);
}

#[test]
fn addresses_of_others_are_checked_as_far_as_the_driver_knows_them() {
    let fake = Fake::new(2, 1);
    let driver = fake.driver().unwrap();
    let theirs = driver.device(1).unwrap().alloc(4096).unwrap();
    let at = theirs.address();
    // SAFETY: the memory stays as long as its owner, which goes along.
    let part = unsafe { driver.memory_at(at + 96, 4000, theirs.clone()) }.unwrap();
    assert_eq!((part.len(), part.device().info().index), (4000, 1));
    part.write_at(0, b"x").unwrap();
    let mut byte = [0];
    theirs.read_at(96, &mut byte).unwrap();
    assert_eq!(&byte, b"x");
    let host = [0_u8; 16];
    for (at, bytes) in [(at, 4097), (at + 4095, 2), (host.as_ptr() as u64, 16), (u64::MAX, 2)] {
        // SAFETY: it is refused.
        let error = unsafe { driver.memory_at(at, bytes, ()) }.unwrap_err();
        assert!(matches!(error, DeviceError::NotDeviceMemory { .. }), "{error}");
    }
    let error = part.export().unwrap_err();
    assert!(error.to_string().contains("alloc_exportable"), "{error}");
    drop((part, theirs, driver));
    assert_clean(&fake);
}

#[test]
fn errors_name_the_driver_the_device_and_what_to_do() {
    let fake = Fake::new(1, 1);
    let gpu = fake.driver().unwrap().device(0).unwrap();
    let error = gpu.alloc(2 << 30).unwrap_err();
    assert_eq!(error.code(), Some(CUDA_ERROR_OUT_OF_MEMORY));
    let text = error.to_string();
    for part in [
        "cuMemAlloc",
        "device 0",
        "Fake",
        "0000:f0:00.0",
        "the fake driver",
        "CUDA 12.4",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "ask for less",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let driver = gpu.driver().clone();
    assert_eq!(driver.device_named("0000:F0:00.0").unwrap(), gpu);
    assert_eq!(driver.device_named("0").unwrap(), gpu);
    for name in ["1", "0000:f1:00.0", "gpu"] {
        let error = driver.device_named(name).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("0 (00000000:f0:00.0)"), "{error}");
    }
    let none = Fake::new(0, 1).driver().unwrap_err().to_string();
    assert!(none.contains("CUDA_ERROR_NO_DEVICE") && none.contains("nvidia-smi"), "{none}");
}

/// Whichever call fails, it is told, and nothing is left behind.
#[test]
fn every_call_may_fail() {
    let work = |fake: &Fake| -> Result<(), DeviceError> {
        let driver = fake.driver()?;
        let gpu = driver.device(0)?;
        let (one, two) = (gpu.alloc(4096)?, gpu.alloc_exportable(4096)?);
        let mut bytes = vec![7; 4096];
        // SAFETY: the bytes are there until it is dropped, below.
        let pinned = unsafe { Pinned::new(&gpu, bytes.as_mut_ptr(), 4096)? };
        one.write_at(0, &bytes)?;
        let copies = device::Copies::new(&gpu, 3)?;
        copies.start_within((&one, 0), (&two, 0), 4096)?.wait()?;
        let other = driver.device(1)?.alloc(4096)?;
        copies.start_within((&one, 0), (&other, 0), 4096)?.wait()?;
        let again = gpu.import(&two.export()?, 4096)?;
        drop(pinned);
        again.read_at(0, &mut bytes)?;
        // SAFETY: the owner goes along.
        unsafe { driver.memory_at(one.address(), 4096, one.clone())? };
        Ok(())
    };
    let clean = Fake::new(2, 3);
    work(&clean).unwrap();
    assert_clean(&clean);
    for (function, _) in device::raw::SYMBOLS {
        for nth in 0..4 {
            let fake = Fake::new(2, 3);
            fake.fail(function, nth, CUDA_ERROR_UNKNOWN);
            match work(&fake) {
                Err(error) => assert!(error.to_string().contains(function), "{error}"),
                // It was called less often, or what undoes something fails.
                Ok(()) => assert!(
                    nth > 0
                        || [
                            "Free",
                            "Release",
                            "Destroy",
                            "Unregister",
                            "Unmap",
                            "Pop",
                            "GetError",
                            "StreamSync",
                            // A device is taken for one that cannot do it.
                            "DeviceGetAttribute"
                        ]
                        .iter()
                        .any(|undo| function.contains(undo)),
                    "{function} failed, and nobody was told"
                ),
            }
            assert_eq!(fake.faults(), Vec::<String>::new(), "{function} {nth}");
            let is_undone = fake.in_use() == InUse::default();
            let undoes = ["Free", "Release", "Destroy", "Unregister", "Unmap", "Pop", "Push"];
            let may_stay = undoes.iter().any(|undo| function.contains(undo));
            assert!(is_undone || may_stay, "{function} {nth}: {:?}", fake.in_use());
        }
    }
}

#[test]
fn a_machine_without_a_driver_is_told_what_to_install() {
    match Driver::cuda() {
        Ok(driver) => println!("SKIPPED: there is {driver:?}"),
        Err(error) => assert!(error.to_string().contains("libcuda.so.1"), "{error}"),
    }
}
