//! Memory of a device.

use std::any::Any;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::driver::Entered;
use crate::raw::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOC_GRANULARITY_MINIMUM,
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    CU_MEM_LOCATION_TYPE_DEVICE, CU_MEMORYTYPE_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CUdeviceptr,
    CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
};
use crate::{Device, DeviceError, Driver};

/// Memory of a device, which the host cannot read: an address and a length, never a slice. A clone
/// is the same memory, which goes when the last clone is gone.
///
/// The driver runs copies by other streams than those of the program's kernels: finish what writes
/// the memory (`cudaStreamSynchronize`, `torch.cuda.synchronize`) before it is copied from, and
/// what reads it before it is copied to.
///
/// ```
/// # fn main() -> Result<(), device::DeviceError> {
/// # let Ok(driver) = device::Driver::cuda() else { return Ok(()) };
/// let memory = driver.device(0)?.alloc(4096)?;
/// memory.write_at(0, &[7; 4096])?;
/// let mut last = [0];
/// memory.read_at(4095, &mut last)?;
/// assert_eq!(last, [7]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DeviceMemory(Arc<Allocation>);

struct Allocation {
    device: Device,
    at: CUdeviceptr,
    bytes: usize,
    origin: Origin,
}

/// Where the memory comes from, and so how it goes.
enum Origin {
    Plain,
    /// Mapped memory of a handle, of so many bytes.
    Mapped(CUmemGenericAllocationHandle, usize),
    /// Somebody else's.
    Borrowed {
        _owner: Box<dyn Any + Send + Sync>,
    },
}

fn location(device: &Device) -> CUmemLocation {
    CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: device.number() }
}

impl Device {
    /// Allocates `bytes` bytes, whose contents are not defined. None need no memory.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Call`], with what to do where there is no memory; [`DeviceError::Forked`].
    pub fn alloc(&self, bytes: usize) -> Result<DeviceMemory, DeviceError> {
        let entered = self.enter()?;
        let mut at = 0;
        // SAFETY: a place for the address; the driver refuses no bytes, so one is asked for.
        let told = unsafe { entered.functions().cuMemAlloc(&raw mut at, bytes.max(1)) };
        entered.check("cuMemAlloc", told)?;
        Ok(DeviceMemory::new(self, at, bytes, Origin::Plain))
    }

    /// Allocates memory that another process of this host can map
    /// ([`DeviceMemory::export`], [`import`](Self::import)). It takes whole pages of the device,
    /// 2 MiB as a rule.
    ///
    /// # Errors
    ///
    /// As of [`alloc`](Self::alloc).
    pub fn alloc_exportable(&self, bytes: usize) -> Result<DeviceMemory, DeviceError> {
        let entered = self.enter()?;
        let functions = entered.functions();
        let prop = CUmemAllocationProp {
            r#type: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            location: location(self),
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: [0; 8],
        };
        let (mut page, option) = (0, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        // SAFETY: a place for a number, and properties that are filled in.
        let told = unsafe {
            functions.cuMemGetAllocationGranularity(&raw mut page, &raw const prop, option)
        };
        entered.check("cuMemGetAllocationGranularity", told)?;
        let size = bytes.max(1).checked_next_multiple_of(page.max(1)).unwrap_or(usize::MAX);
        let mut handle = 0;
        // SAFETY: a place for the handle, and properties that are filled in.
        let told = unsafe { functions.cuMemCreate(&raw mut handle, size, &raw const prop, 0) };
        entered.check("cuMemCreate", told)?;
        self.map(&entered, handle, size, bytes)
    }

    /// Maps memory that another process has [exported](DeviceMemory::export), of which `bytes`
    /// bytes are used. It is one memory for both.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Call`], above all where the descriptor is none of this driver's or the memory
    /// is shorter; [`DeviceError::Forked`].
    pub fn import(&self, fd: &OwnedFd, bytes: usize) -> Result<DeviceMemory, DeviceError> {
        let entered = self.enter()?;
        let mut handle = 0;
        let number = std::ptr::without_provenance_mut::<c_void>(fd.as_raw_fd() as usize);
        let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: a place for the handle; a descriptor goes in place of a pointer, as a number.
        let told = unsafe {
            entered.functions().cuMemImportFromShareableHandle(&raw mut handle, number, kind)
        };
        entered.check("cuMemImportFromShareableHandle", told)?;
        // A page of a device is of 2 MiB, or of a fraction of it: the owner rounds up to it.
        let size = bytes.max(1).checked_next_multiple_of(2 << 20).unwrap_or(usize::MAX);
        self.map(&entered, handle, size, bytes)
    }

    /// Maps all of a handle, which goes with the memory, or if this fails.
    fn map(
        &self,
        entered: &Entered<'_>,
        handle: CUmemGenericAllocationHandle,
        size: usize,
        bytes: usize,
    ) -> Result<DeviceMemory, DeviceError> {
        let functions = entered.functions();
        let mut at = 0;
        // SAFETY: a place for the address.
        let told = unsafe { functions.cuMemAddressReserve(&raw mut at, size, 0, 0, 0) };
        let mut result = entered.check("cuMemAddressReserve", told);
        if result.is_ok() {
            // SAFETY: addresses that were reserved for just this, and a handle that is ours.
            let told = unsafe { functions.cuMemMap(at, size, 0, handle, 0) };
            result = entered.check("cuMemMap", told);
            if result.is_ok() {
                let flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                let access = CUmemAccessDesc { location: location(self), flags };
                // SAFETY: mapped memory, and one description.
                let told = unsafe { functions.cuMemSetAccess(at, size, &raw const access, 1) };
                result = entered.check("cuMemSetAccess", told);
                if result.is_err() {
                    // SAFETY: it was just mapped, and nobody knows the address.
                    let _ = unsafe { functions.cuMemUnmap(at, size) };
                }
            }
            if result.is_err() {
                // SAFETY: reserved, and not mapped (any more).
                let _ = unsafe { functions.cuMemAddressFree(at, size) };
            }
        }
        if let Err(error) = result {
            // SAFETY: the handle is ours, and nothing is mapped of it.
            let _ = unsafe { functions.cuMemRelease(handle) };
            return Err(error);
        }
        Ok(DeviceMemory::new(self, at, bytes, Origin::Mapped(handle, size)))
    }

    /// Takes `bytes` bytes at `at` that others have allocated on this device, such as those of a
    /// tensor, for as long as the result and its clones are there; then `owner` is dropped. Where
    /// the device is not known, use [`Driver::memory_at`].
    ///
    /// # Safety
    ///
    /// The bytes are memory of this device, of a context or mapping that its primary context can
    /// access, until `owner` is dropped; or, of no owner, until the last clone is gone.
    pub unsafe fn borrow(
        &self,
        at: u64,
        bytes: usize,
        owner: impl Any + Send + Sync,
    ) -> DeviceMemory {
        DeviceMemory::new(self, at, bytes, Origin::Borrowed { _owner: Box::new(owner) })
    }
}

impl Driver {
    /// As [`Device::borrow`], of the device that the driver says the memory is of, with the checks
    /// that the driver can make.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotDeviceMemory`] for memory of the host, managed memory, and what is shorter
    /// than that; [`DeviceError::Call`], [`DeviceError::Forked`].
    ///
    /// # Safety
    ///
    /// As of [`Device::borrow`].
    pub unsafe fn memory_at(
        &self,
        at: u64,
        bytes: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<DeviceMemory, DeviceError> {
        let not = |found: &str| {
            let found = found.to_owned();
            DeviceError::NotDeviceMemory { address: at, bytes, found }
        };
        // Any device will do to ask.
        let any = self.device(0)?;
        let entered = any.enter()?;
        let (mut kind, mut managed, mut index): (c_uint, c_uint, c_int) = (0, 0, -1);
        let (mut start, mut size): (CUdeviceptr, usize) = (0, 0);
        let which = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        let mut values: [*mut c_void; 5] = [
            (&raw mut kind).cast(),
            (&raw mut managed).cast(),
            (&raw mut index).cast(),
            (&raw mut start).cast(),
            (&raw mut size).cast(),
        ];
        // SAFETY: as many places as attributes, each of the size that its attribute has.
        let told = unsafe {
            entered.functions().cuPointerGetAttributes(5, which.as_ptr(), values.as_mut_ptr(), at)
        };
        entered.check("cuPointerGetAttributes", told)?;
        drop(entered);
        if kind != CU_MEMORYTYPE_DEVICE {
            return Err(not("the driver knows it as memory of the host, or not at all"));
        }
        if managed != 0 {
            return Err(not("it is managed memory"));
        }
        let end = at.checked_add(bytes as u64);
        let is_within = end.is_some_and(|end| end <= start.saturating_add(size as u64));
        if !is_within {
            return Err(not(&format!("the allocation has {size} bytes from {start:#x}")));
        }
        let index = u32::try_from(index).map_err(|_| not("of no device that there is"))?;
        let device = if index == 0 { any } else { self.device(index)? };
        // SAFETY: the caller's.
        Ok(unsafe { device.borrow(at, bytes, owner) })
    }
}

impl DeviceMemory {
    fn new(device: &Device, at: CUdeviceptr, bytes: usize, origin: Origin) -> Self {
        Self(Arc::new(Allocation { device: device.clone(), at, bytes, origin }))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The address on the device, for kernels and other libraries.
    pub fn address(&self) -> u64 {
        self.0.at
    }

    /// The address of `offset`, if `len` bytes from there are inside.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Result<CUdeviceptr, DeviceError> {
        let bytes = self.len();
        match offset.checked_add(len) {
            Some(end) if end <= bytes => Ok(self.0.at + offset as u64),
            _ => Err(DeviceError::Range { offset, len, bytes }),
        }
    }

    /// Returns whether [`export`](Self::export) has a descriptor of it to give.
    pub fn is_exportable(&self) -> bool {
        matches!(self.0.origin, Origin::Mapped(..))
    }

    /// Returns a descriptor of the memory, for another process of this host, which maps it with
    /// [`Device::import`]. Sent over a Unix socket. The memory exists as long as either process has
    /// it.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotExportable`] for all memory but that of
    /// [`alloc_exportable`](Device::alloc_exportable) and `import`; [`DeviceError::Call`].
    pub fn export(&self) -> Result<OwnedFd, DeviceError> {
        let Origin::Mapped(handle, _) = self.0.origin else {
            return Err(DeviceError::NotExportable);
        };
        let entered = self.0.device.enter()?;
        let (mut fd, kind): (c_int, _) = (-1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        // SAFETY: a place for a descriptor, and a handle that lives as long as `self`.
        let told = unsafe {
            let to = (&raw mut fd).cast();
            entered.functions().cuMemExportToShareableHandle(to, handle, kind, 0)
        };
        entered.check("cuMemExportToShareableHandle", told)?;
        // SAFETY: the driver has made the descriptor for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.0.device.info().index;
        write!(f, "DeviceMemory({} bytes of device {device})", self.len())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // In a process that was forked off nothing is done.
        let Ok(entered) = self.device.enter() else { return };
        let functions = entered.functions();
        match self.origin {
            Origin::Plain => {
                // SAFETY: allocated by `alloc`; copies in flight hold the memory, so there is none.
                let _ = unsafe { functions.cuMemFree(self.at) };
            }
            Origin::Mapped(handle, size) => {
                // SAFETY: mapped by `map`, as one piece of this size; no copy is in flight.
                let told = unsafe { functions.cuMemUnmap(self.at, size) };
                if self.device.check("cuMemUnmap", told).is_err() {
                    // The rest would go under what is still mapped.
                    return;
                }
                // SAFETY: reserved by `map`, and no longer mapped.
                let _ = unsafe { functions.cuMemAddressFree(self.at, size) };
                // SAFETY: the handle is ours, and this was its mapping.
                let _ = unsafe { functions.cuMemRelease(handle) };
            }
            Origin::Borrowed { .. } => {}
        }
    }
}
