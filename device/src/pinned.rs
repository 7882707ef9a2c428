//! Memory of the host that devices copy at full speed.

use std::fmt;

use crate::raw::CU_MEMHOSTREGISTER_PORTABLE;
use crate::{Device, DeviceError};

/// Memory of the host whose pages stay where they are, and that all devices of the driver copy
/// without a detour (`cuMemHostRegister`). Dropping it ends that; the memory stays its owner's.
///
/// ```
/// # fn main() -> Result<(), device::DeviceError> {
/// # let Ok(driver) = device::Driver::cuda() else { return Ok(()) };
/// let gpu = driver.device(0)?;
/// let mut bytes = vec![0_u8; 1 << 20];
/// // SAFETY: `bytes` outlives `pinned`, which is dropped first.
/// let pinned = unsafe { device::Pinned::new(&gpu, bytes.as_mut_ptr(), bytes.len())? };
/// drop(pinned);
/// # Ok(())
/// # }
/// ```
pub struct Pinned {
    device: Device,
    at: *mut u8,
    bytes: usize,
}

// SAFETY: the pointer is only handed to the driver, which may be called by any thread.
unsafe impl Send for Pinned {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Pins `bytes` bytes at `at`. Takes the longer the more pages there are: some 70 us for each
    /// MiB.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Call`], as for memory that is pinned already; [`DeviceError::Forked`].
    ///
    /// # Safety
    ///
    /// The memory stays mapped where it is until this is dropped.
    pub unsafe fn new(device: &Device, at: *mut u8, bytes: usize) -> Result<Self, DeviceError> {
        let entered = device.enter()?;
        let functions = entered.functions();
        // SAFETY: the memory is there, by the caller's word; the flag is one that there is.
        let told =
            unsafe { functions.cuMemHostRegister(at.cast(), bytes, CU_MEMHOSTREGISTER_PORTABLE) };
        entered.check("cuMemHostRegister", told)?;
        Ok(Self { device: device.clone(), at, bytes })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(entered) = self.device.enter() {
            // SAFETY: it was registered at this address, and is still mapped (contract of `new`).
            let _ = unsafe { entered.functions().cuMemHostUnregister(self.at.cast()) };
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes)", self.bytes)
    }
}
