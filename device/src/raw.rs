//! Declarations of CUDA's driver interface: types, values, and the table of functions.
//!
//! They are those of `cuda.h` 12 (`tests/it/layout.rs` compares them where that header is), and
//! have been the same since CUDA 11.2: a function whose meaning changed got a new symbol, so the
//! suffix `_v2` is a part of the name. Nothing of the toolkit is needed to build this.

#![allow(
    non_snake_case,
    non_camel_case_types,
    clippy::upper_case_acronyms,
    reason = "the names of the C interface"
)]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;

/// Result of each function; zero is success.
pub type CUresult = c_int;
/// Number of a device.
pub type CUdevice = c_int;
/// Address in the memory of a device.
pub type CUdeviceptr = c_ulonglong;
/// Context: what belongs to this process on a device.
pub type CUcontext = *mut c_void;
/// Stream: copies and kernels that run one after the other.
pub type CUstream = *mut c_void;
/// Event: a place in a stream.
pub type CUevent = *mut c_void;
/// Memory without an address.
pub type CUmemGenericAllocationHandle = c_ulonglong;

/// Place of memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUmemLocation {
    /// [`CU_MEM_LOCATION_TYPE_DEVICE`].
    pub r#type: c_int,
    /// Number of the device.
    pub id: c_int,
}

/// Properties of memory without an address.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUmemAllocationProp {
    /// [`CU_MEM_ALLOCATION_TYPE_PINNED`].
    pub r#type: c_int,
    /// How it can be handed to other processes.
    pub requestedHandleTypes: c_int,
    /// Where it is.
    pub location: CUmemLocation,
    /// Null.
    pub win32HandleMetaData: *mut c_void,
    /// Zeros: compression, RDMA, usage.
    pub allocFlags: [u8; 8],
}

/// Access to mapped memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUmemAccessDesc {
    /// The device that gets access.
    pub location: CUmemLocation,
    /// [`CU_MEM_ACCESS_FLAGS_PROT_READWRITE`].
    pub flags: c_int,
}

macro_rules! values {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(#[doc = concat!("`", stringify!($name), "`.")] pub const $name: $type = $value;)*

        /// Names and values, for the comparison with the header.
        #[doc(hidden)]
        pub const VALUES: &[(&str, i64)] = &[$((stringify!($name), $value as i64)),*];
    };
}

values! {
    CUDA_SUCCESS: CUresult = 0;
    CUDA_ERROR_INVALID_VALUE: CUresult = 1;
    CUDA_ERROR_OUT_OF_MEMORY: CUresult = 2;
    CUDA_ERROR_NOT_INITIALIZED: CUresult = 3;
    CUDA_ERROR_NO_DEVICE: CUresult = 100;
    CUDA_ERROR_INVALID_DEVICE: CUresult = 101;
    CUDA_ERROR_INVALID_CONTEXT: CUresult = 201;
    CUDA_ERROR_ECC_UNCORRECTABLE: CUresult = 214;
    CUDA_ERROR_INVALID_HANDLE: CUresult = 400;
    CUDA_ERROR_NOT_READY: CUresult = 600;
    CUDA_ERROR_ILLEGAL_ADDRESS: CUresult = 700;
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: CUresult = 712;
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: CUresult = 713;
    CUDA_ERROR_NOT_SUPPORTED: CUresult = 801;
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: CUresult = 803;
    CUDA_ERROR_UNKNOWN: CUresult = 999;
    CU_STREAM_NON_BLOCKING: c_uint = 1;
    CU_EVENT_DISABLE_TIMING: c_uint = 2;
    CU_MEMHOSTREGISTER_PORTABLE: c_uint = 1;
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE: c_int = 2;
    CU_POINTER_ATTRIBUTE_IS_MANAGED: c_int = 8;
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: c_int = 11;
    CU_POINTER_ATTRIBUTE_RANGE_SIZE: c_int = 12;
    CU_MEMORYTYPE_DEVICE: c_uint = 2;
    CU_MEM_LOCATION_TYPE_DEVICE: c_int = 1;
    CU_MEM_ALLOCATION_TYPE_PINNED: c_int = 1;
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_int = 1;
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_int = 3;
    CU_MEM_ALLOC_GRANULARITY_MINIMUM: c_int = 0;
}

/// The function that a symbol is missing for.
#[derive(Debug, Clone)]
pub(crate) struct MissingSymbol {
    pub(crate) symbol: &'static str,
    pub(crate) reason: String,
}

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ident: $type:ty),* $(,)?);)*) => {
        /// The table of functions: those of the library, or of what stands in for it.
        ///
        /// # Safety
        ///
        /// Each function is the C function of that name, with the contract that CUDA documents.
        #[allow(clippy::missing_safety_doc, missing_docs, reason = "CUDA documents them")]
        pub trait Functions: Send + Sync + fmt::Debug {
            $(unsafe fn $name(&self, $($arg: $type),*) -> CUresult;)*
        }

        /// The functions of an opened library, which is never closed: it leaves threads behind.
        #[derive(Debug)]
        pub(crate) struct Library {
            $($name: unsafe extern "C" fn($($type),*) -> CUresult,)*
        }

        impl Library {
            /// Looks all symbols up.
            ///
            /// # Safety
            ///
            /// Each symbol of `library` that has one of these names is the function that is meant.
            pub(crate) unsafe fn of(
                library: &'static libloading::os::unix::Library,
            ) -> Result<Self, MissingSymbol> {
                Ok(Self { $($name: {
                    // SAFETY: the caller's; the library stays open, so the function stays there.
                    let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                    *found.map_err(|error| {
                        MissingSymbol { symbol: $symbol, reason: error.to_string() }
                    })?
                },)* })
            }
        }

        impl Functions for Library {
            $(unsafe fn $name(&self, $($arg: $type),*) -> CUresult {
                // SAFETY: the caller's.
                unsafe { (self.$name)($($arg),*) }
            })*
        }

        /// The symbols, for the comparison with the header.
        #[doc(hidden)]
        pub const SYMBOLS: &[(&str, &str)] = &[$((stringify!($name), $symbol)),*];
    };
}

functions! {
    cuInit = "cuInit"(flags: c_uint);
    cuDriverGetVersion = "cuDriverGetVersion"(version: *mut c_int);
    cuGetErrorName = "cuGetErrorName"(error: CUresult, name: *mut *const c_char);
    cuGetErrorString = "cuGetErrorString"(error: CUresult, text: *mut *const c_char);
    cuDeviceGetCount = "cuDeviceGetCount"(count: *mut c_int);
    cuDeviceGet = "cuDeviceGet"(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName = "cuDeviceGetName"(name: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceGetPCIBusId = "cuDeviceGetPCIBusId"(id: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceTotalMem = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: CUdevice);
    cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain"(
        context: *mut CUcontext, device: CUdevice,
    );
    cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease_v2"(device: CUdevice);
    cuCtxPushCurrent = "cuCtxPushCurrent_v2"(context: CUcontext);
    cuCtxPopCurrent = "cuCtxPopCurrent_v2"(context: *mut CUcontext);
    cuMemAlloc = "cuMemAlloc_v2"(at: *mut CUdeviceptr, bytes: usize);
    cuMemFree = "cuMemFree_v2"(at: CUdeviceptr);
    cuMemHostRegister = "cuMemHostRegister_v2"(at: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostUnregister = "cuMemHostUnregister"(at: *mut c_void);
    cuMemcpyHtoDAsync = "cuMemcpyHtoDAsync_v2"(
        to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream,
    );
    cuMemcpyDtoHAsync = "cuMemcpyDtoHAsync_v2"(
        to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream,
    );
    cuMemcpyDtoDAsync = "cuMemcpyDtoDAsync_v2"(
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream,
    );
    cuStreamCreate = "cuStreamCreate"(stream: *mut CUstream, flags: c_uint);
    cuStreamSynchronize = "cuStreamSynchronize"(stream: CUstream);
    cuStreamDestroy = "cuStreamDestroy_v2"(stream: CUstream);
    cuEventCreate = "cuEventCreate"(event: *mut CUevent, flags: c_uint);
    cuEventRecord = "cuEventRecord"(event: CUevent, stream: CUstream);
    cuEventQuery = "cuEventQuery"(event: CUevent);
    cuEventDestroy = "cuEventDestroy_v2"(event: CUevent);
    cuPointerGetAttributes = "cuPointerGetAttributes"(
        count: c_uint, which: *const c_int, values: *mut *mut c_void, at: CUdeviceptr,
    );
    cuMemGetAllocationGranularity = "cuMemGetAllocationGranularity"(
        bytes: *mut usize, prop: *const CUmemAllocationProp, option: c_int,
    );
    cuMemCreate = "cuMemCreate"(
        handle: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp,
        flags: c_ulonglong,
    );
    cuMemRelease = "cuMemRelease"(handle: CUmemGenericAllocationHandle);
    cuMemAddressReserve = "cuMemAddressReserve"(
        at: *mut CUdeviceptr, bytes: usize, align: usize, wanted: CUdeviceptr, flags: c_ulonglong,
    );
    cuMemAddressFree = "cuMemAddressFree"(at: CUdeviceptr, bytes: usize);
    cuMemMap = "cuMemMap"(
        at: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    );
    cuMemUnmap = "cuMemUnmap"(at: CUdeviceptr, bytes: usize);
    cuMemSetAccess = "cuMemSetAccess"(
        at: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize,
    );
    cuMemExportToShareableHandle = "cuMemExportToShareableHandle"(
        to: *mut c_void, handle: CUmemGenericAllocationHandle, kind: c_int, flags: c_ulonglong,
    );
    cuMemImportFromShareableHandle = "cuMemImportFromShareableHandle"(
        handle: *mut CUmemGenericAllocationHandle, from: *mut c_void, kind: c_int,
    );
}
