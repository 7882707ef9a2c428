//! Declarations of CUDA's driver interface: types, values, and the table of functions.
//!
//! They are those of `cuda.h` 12 (`tests/it/layout.rs` compares them where that header is), and
//! have been the same since CUDA 11.2: a function whose meaning changed got a new symbol, so the
//! suffix `_v2` is a part of the name. Nothing of the toolkit is needed to build this.
//!
//! HIP 6 has the same functions with the same values, under the second names (feature `hip`).

#![allow(
    non_snake_case,
    non_camel_case_types,
    clippy::upper_case_acronyms,
    reason = "the names of the C interface"
)]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

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
#[cfg(feature = "level-zero")]
pub(crate) use values;

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
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: c_int = 118;
    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: c_int = 100;
}

/// The function that a symbol is missing for.
#[derive(Debug, Clone)]
pub(crate) struct MissingSymbol {
    pub(crate) symbol: &'static str,
    pub(crate) reason: String,
}

/// Declares the functions of a driver as a trait, a table of those that a library has, and the list
/// of their symbols; with a second symbol, also those of a driver that has the same functions under
/// other names.
macro_rules! functions {
    (
        $(#[$docs:meta])*
        $trait:ident, $library:ident, $symbols:ident;
        $($name:ident = $symbol:literal $(| $other_symbol:literal)? (
            $($arg:ident: $type:ty),* $(,)?
        );)*
    ) => {
        $(#[$docs])*
        ///
        /// # Safety
        ///
        /// Each function is the C function of that name, with the contract that its documentation
        /// has. One that a driver lacks is not supported.
        #[allow(
            clippy::missing_safety_doc,
            clippy::too_many_arguments,
            missing_docs,
            reason = "they are those of C, and documented there"
        )]
        pub trait $trait: Send + Sync + ::std::fmt::Debug {
            $(unsafe fn $name(&self, $($arg: $type),*) -> $crate::raw::CUresult {
                $(let _ = $arg;)*
                $crate::raw::CUDA_ERROR_NOT_SUPPORTED
            })*
        }

        /// The functions of an opened library, which is never closed: it leaves threads behind.
        #[derive(Debug)]
        pub(crate) struct $library {
            $($name: unsafe extern "C" fn($($type),*) -> $crate::raw::CUresult,)*
        }

        impl $library {
            /// Looks all symbols up; `others`: by their second names.
            ///
            /// # Safety
            ///
            /// Each symbol of `library` that has one of these names is the function that is meant.
            pub(crate) unsafe fn of(
                library: &'static libloading::os::unix::Library,
                others: bool,
            ) -> Result<Self, $crate::raw::MissingSymbol> {
                Ok(Self { $($name: {
                    let symbol = match others {
                        false => concat!($symbol, "\0"),
                        true => concat!($($other_symbol,)? "\0"),
                    };
                    // SAFETY: the caller's; the library stays open, so the function stays there.
                    let found = unsafe { library.get(symbol.as_bytes()) };
                    *found.map_err(|error| {
                        let symbol = symbol.trim_end_matches('\0');
                        $crate::raw::MissingSymbol { symbol, reason: error.to_string() }
                    })?
                },)* })
            }
        }

        impl $trait for $library {
            $(unsafe fn $name(&self, $($arg: $type),*) -> $crate::raw::CUresult {
                // SAFETY: the caller's.
                unsafe { (self.$name)($($arg),*) }
            })*
        }

        /// The symbols, for the comparison with the header.
        #[doc(hidden)]
        pub const $symbols: &[(&str, &str)] = &[$((stringify!($name), $symbol)),*];

        /// The second symbols, of those that have one.
        #[doc(hidden)]
        pub const OTHER_SYMBOLS: &[&str] = &[$($($other_symbol,)?)*];
    };
}
#[cfg(feature = "level-zero")]
pub(crate) use functions;

functions! {
    /// The table of functions: those of the library, or of what stands in for it.
    Functions, Library, SYMBOLS;
    cuInit = "cuInit" | "hipInit"(flags: c_uint);
    cuDriverGetVersion = "cuDriverGetVersion" | "hipDriverGetVersion"(version: *mut c_int);
    cuGetErrorName = "cuGetErrorName" | "hipDrvGetErrorName"(
        error: CUresult, name: *mut *const c_char,
    );
    cuGetErrorString = "cuGetErrorString" | "hipDrvGetErrorString"(
        error: CUresult, text: *mut *const c_char,
    );
    cuDeviceGetCount = "cuDeviceGetCount" | "hipGetDeviceCount"(count: *mut c_int);
    cuDeviceGet = "cuDeviceGet" | "hipDeviceGet"(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName = "cuDeviceGetName" | "hipDeviceGetName"(
        name: *mut c_char, len: c_int, device: CUdevice,
    );
    cuDeviceGetPCIBusId = "cuDeviceGetPCIBusId" | "hipDeviceGetPCIBusId"(
        id: *mut c_char, len: c_int, device: CUdevice,
    );
    cuDeviceTotalMem = "cuDeviceTotalMem_v2" | "hipDeviceTotalMem"(
        bytes: *mut usize, device: CUdevice,
    );
    cuDeviceGetAttribute = "cuDeviceGetAttribute" | "hipDeviceGetAttribute"(
        value: *mut c_int, attribute: c_int, device: CUdevice,
    );
    cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain" | "hipDevicePrimaryCtxRetain"(
        context: *mut CUcontext, device: CUdevice,
    );
    cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease_v2" | "hipDevicePrimaryCtxRelease"(
        device: CUdevice,
    );
    cuCtxPushCurrent = "cuCtxPushCurrent_v2" | "hipCtxPushCurrent"(context: CUcontext);
    cuCtxPopCurrent = "cuCtxPopCurrent_v2" | "hipCtxPopCurrent"(context: *mut CUcontext);
    cuMemAlloc = "cuMemAlloc_v2" | "hipMalloc"(at: *mut CUdeviceptr, bytes: usize);
    cuMemFree = "cuMemFree_v2" | "hipFree"(at: CUdeviceptr);
    cuMemHostRegister = "cuMemHostRegister_v2" | "hipHostRegister"(
        at: *mut c_void, bytes: usize, flags: c_uint,
    );
    cuMemHostUnregister = "cuMemHostUnregister" | "hipHostUnregister"(at: *mut c_void);
    cuMemcpyHtoDAsync = "cuMemcpyHtoDAsync_v2" | "hipMemcpyHtoDAsync"(
        to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream,
    );
    cuMemcpyDtoHAsync = "cuMemcpyDtoHAsync_v2" | "hipMemcpyDtoHAsync"(
        to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream,
    );
    cuMemcpyDtoDAsync = "cuMemcpyDtoDAsync_v2" | "hipMemcpyDtoDAsync"(
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream,
    );
    // HIP's takes numbers of devices in place of contexts, and is not called: there the one above
    // copies between devices, too.
    cuMemcpyPeerAsync = "cuMemcpyPeerAsync" | "hipMemcpyPeerAsync"(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext,
        bytes: usize, stream: CUstream,
    );
    cuStreamCreate = "cuStreamCreate" | "hipStreamCreateWithFlags"(
        stream: *mut CUstream, flags: c_uint,
    );
    cuStreamSynchronize = "cuStreamSynchronize" | "hipStreamSynchronize"(stream: CUstream);
    cuStreamDestroy = "cuStreamDestroy_v2" | "hipStreamDestroy"(stream: CUstream);
    cuEventCreate = "cuEventCreate" | "hipEventCreateWithFlags"(event: *mut CUevent, flags: c_uint);
    cuEventRecord = "cuEventRecord" | "hipEventRecord"(event: CUevent, stream: CUstream);
    cuEventQuery = "cuEventQuery" | "hipEventQuery"(event: CUevent);
    cuEventDestroy = "cuEventDestroy_v2" | "hipEventDestroy"(event: CUevent);
    cuPointerGetAttributes = "cuPointerGetAttributes" | "hipDrvPointerGetAttributes"(
        count: c_uint, which: *const c_int, values: *mut *mut c_void, at: CUdeviceptr,
    );
    cuMemGetAllocationGranularity = "cuMemGetAllocationGranularity"
        | "hipMemGetAllocationGranularity"(
        bytes: *mut usize, prop: *const CUmemAllocationProp, option: c_int,
    );
    cuMemCreate = "cuMemCreate" | "hipMemCreate"(
        handle: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp,
        flags: c_ulonglong,
    );
    cuMemRelease = "cuMemRelease" | "hipMemRelease"(handle: CUmemGenericAllocationHandle);
    cuMemAddressReserve = "cuMemAddressReserve" | "hipMemAddressReserve"(
        at: *mut CUdeviceptr, bytes: usize, align: usize, wanted: CUdeviceptr, flags: c_ulonglong,
    );
    cuMemAddressFree = "cuMemAddressFree" | "hipMemAddressFree"(at: CUdeviceptr, bytes: usize);
    cuMemMap = "cuMemMap" | "hipMemMap"(
        at: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    );
    cuMemUnmap = "cuMemUnmap" | "hipMemUnmap"(at: CUdeviceptr, bytes: usize);
    cuMemSetAccess = "cuMemSetAccess" | "hipMemSetAccess"(
        at: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize,
    );
    cuMemExportToShareableHandle = "cuMemExportToShareableHandle" | "hipMemExportToShareableHandle"(
        to: *mut c_void, handle: CUmemGenericAllocationHandle, kind: c_int, flags: c_ulonglong,
    );
    cuMemImportFromShareableHandle = "cuMemImportFromShareableHandle"
        | "hipMemImportFromShareableHandle"(
        handle: *mut CUmemGenericAllocationHandle, from: *mut c_void, kind: c_int,
    );
}
