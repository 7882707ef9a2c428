//! The driver of this machine, where there is one with a device.

use device::{Copies, Device, DeviceError, Driver, Pinned};

fn gpu() -> Option<Device> {
    match Driver::cuda().and_then(|driver| driver.device(0)) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_real_device_copies_in_each_direction() {
    const BYTES: usize = (8 << 20) + 13;
    let Some(gpu) = gpu() else { return };
    println!("{:?}: {}", gpu.driver(), gpu.info());
    let (copies, bytes) = (Copies::new(&gpu, 4).unwrap(), pattern(BYTES));
    let (plain, mapped) = (gpu.alloc(BYTES).unwrap(), gpu.alloc_exportable(BYTES).unwrap());
    plain.write_at(0, &bytes).unwrap();
    copies.start_within((&plain, 0), (&mapped, 0), BYTES).unwrap().wait().unwrap();
    // In parts, to pinned memory, by several streams.
    let mut back = vec![0_u8; BYTES];
    // SAFETY: the bytes are there until it is dropped, below.
    let pinned = unsafe { Pinned::new(&gpu, back.as_mut_ptr(), BYTES) }.unwrap();
    let parts: Vec<_> = (0..BYTES).step_by(1 << 20).collect();
    let start = |at: &usize| {
        let (to, len) = (back.as_ptr().cast_mut().wrapping_add(*at), (1 << 20).min(BYTES - at));
        // SAFETY: a part of the bytes that no other copy has; they are read when all are over.
        unsafe { copies.start_to_host(&mapped, *at, to, len) }.unwrap()
    };
    let flying: Vec<_> = parts.iter().map(start).collect();
    flying.into_iter().for_each(|copy| copy.wait().unwrap());
    drop(pinned);
    assert!(back == bytes);
}

#[test]
fn a_real_driver_knows_its_memory_and_exports_it() {
    let Some(gpu) = gpu() else { return };
    let memory = gpu.alloc(4096).unwrap();
    // SAFETY: the owner goes along.
    let part = unsafe { gpu.driver().memory_at(memory.address() + 96, 4000, memory.clone()) };
    assert_eq!(part.unwrap().device(), &gpu);
    let host = [0_u8; 16];
    // SAFETY: it is refused.
    let error = unsafe { gpu.driver().memory_at(host.as_ptr() as u64, 16, ()) }.unwrap_err();
    println!("{error}");
    let exportable = gpu.alloc_exportable(5 << 20).unwrap();
    exportable.write_at(0, b"the same").unwrap();
    let again = gpu.import(&exportable.export().unwrap(), 5 << 20).unwrap();
    let mut bytes = [0; 8];
    again.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"the same");
    assert!(matches!(memory.export(), Err(DeviceError::NotExportable)));
}

#[test]
fn a_real_driver_names_its_errors() {
    let Some(gpu) = gpu() else { return };
    let error = gpu.alloc(1 << 50).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
}
