//! Intel's driver, oneAPI Level Zero, behind the table of functions that all drivers have here. It
//! was never run on hardware.
//!
//! | in the table | here |
//! |---|---|
//! | primary context | the number of the device; which one is current is noted for each thread |
//! | stream | an immediate command list |
//! | event | an event in a pool of its own; recording it appends a barrier, which ends after all copies before it |
//! | pinned memory of the host | nothing is done: the driver copies from and to any memory |
//! | memory with a handle | not supported |
//!
//! The declarations are those of `ze_api.h` 1.6 (`tests/it/layout.rs` compares them where that
//! header is).
#![allow(
    non_snake_case,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the table has the names of C; places for results are given together"
)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use crate::raw::{
    CU_MEMORYTYPE_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_NOT_READY, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUcontext, CUdevice, CUdeviceptr,
    CUevent, CUresult, CUstream, Functions,
};

/// Driver, device, context, command list, event or pool of events.
pub type ZeHandle = *mut c_void;

/// The head of each structure: its type, and nothing that follows it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ZeHead {
    pub stype: u32,
    pub next: *mut c_void,
}

/// Descriptions whose fields after the head are numbers that are zero but for a few.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ZeDesc {
    pub head: ZeHead,
    /// The fields of a context: flags; of device memory: flags, ordinal; of a queue: ordinal,
    /// index, flags, mode, priority; of a pool: flags, count; of an event: index, signal, wait.
    pub fields: [u32; 6],
}

/// `ze_device_properties_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ZeDeviceProperties {
    pub head: ZeHead,
    pub kind: u32,
    pub before: [u32; 5],
    pub max_alloc: u64,
    pub middle: [u32; 7],
    pub timer: u64,
    pub bits: [u32; 2],
    pub uuid: [u8; 16],
    pub name: [c_char; 256],
}

/// `ze_device_memory_properties_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ZeMemoryProperties {
    pub head: ZeHead,
    pub before: [u32; 3],
    pub bytes: u64,
    pub name: [c_char; 256],
}

/// `ze_pci_ext_properties_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ZePciProperties {
    pub head: ZeHead,
    /// Domain, bus, device, function.
    pub address: [u32; 4],
    pub speed: [u64; 2],
}

/// `ze_memory_allocation_properties_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ZeAllocProperties {
    pub head: ZeHead,
    pub kind: u32,
    pub id: u64,
    pub page: u64,
}

/// Names of further results.
const RESULTS: [(CUresult, &CStr); 7] = [
    (0x7000_0001, c"ZE_RESULT_ERROR_DEVICE_LOST"),
    (0x7001_0000, c"ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS"),
    (0x7002_0000, c"ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE"),
    (0x7800_0001, c"ZE_RESULT_ERROR_UNINITIALIZED"),
    (0x7800_0003, c"ZE_RESULT_ERROR_UNSUPPORTED_FEATURE"),
    (0x7800_0004, c"ZE_RESULT_ERROR_INVALID_ARGUMENT"),
    (0x7fff_fffe, c"ZE_RESULT_ERROR_UNKNOWN"),
];

crate::raw::values! {
    ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES: u32 = 0x3;
    ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES: u32 = 0x7;
    ZE_STRUCTURE_TYPE_CONTEXT_DESC: u32 = 0xd;
    ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC: u32 = 0xe;
    ZE_STRUCTURE_TYPE_EVENT_POOL_DESC: u32 = 0x10;
    ZE_STRUCTURE_TYPE_EVENT_DESC: u32 = 0x11;
    ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC: u32 = 0x15;
    ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES: u32 = 0x17;
    ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES: u32 = 0x1_0008;
    ZE_INIT_FLAG_GPU_ONLY: u32 = 1;
    ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS: u32 = 2;
    ZE_EVENT_POOL_FLAG_HOST_VISIBLE: u32 = 1;
    ZE_EVENT_SCOPE_FLAG_HOST: u32 = 4;
    ZE_MEMORY_TYPE_DEVICE: u32 = 2;
    ZE_MEMORY_TYPE_SHARED: u32 = 3;
    ZE_DEVICE_TYPE_GPU: u32 = 1;
    ZE_RESULT_NOT_READY: CUresult = 1;
    ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY: CUresult = 0x7000_0002;
    ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY: CUresult = 0x7000_0003;
}

crate::raw::functions! {
    /// The functions of Level Zero that are used.
    ZeFunctions, ZeLibrary, ZE_SYMBOLS;
    zeInit = "zeInit"(flags: u32);
    zeDriverGet = "zeDriverGet"(count: *mut u32, drivers: *mut ZeHandle);
    zeDriverGetApiVersion = "zeDriverGetApiVersion"(driver: ZeHandle, version: *mut u32);
    zeDeviceGet = "zeDeviceGet"(driver: ZeHandle, count: *mut u32, devices: *mut ZeHandle);
    zeDeviceGetProperties = "zeDeviceGetProperties"(
        device: ZeHandle, properties: *mut ZeDeviceProperties,
    );
    zeDeviceGetMemoryProperties = "zeDeviceGetMemoryProperties"(
        device: ZeHandle, count: *mut u32, properties: *mut ZeMemoryProperties,
    );
    zeDevicePciGetPropertiesExt = "zeDevicePciGetPropertiesExt"(
        device: ZeHandle, properties: *mut ZePciProperties,
    );
    zeContextCreate = "zeContextCreate"(
        driver: ZeHandle, desc: *const ZeDesc, context: *mut ZeHandle,
    );
    zeContextDestroy = "zeContextDestroy"(context: ZeHandle);
    zeMemAllocDevice = "zeMemAllocDevice"(
        context: ZeHandle, desc: *const ZeDesc, bytes: usize, align: usize, device: ZeHandle,
        at: *mut *mut c_void,
    );
    zeMemFree = "zeMemFree"(context: ZeHandle, at: *mut c_void);
    zeMemGetAllocProperties = "zeMemGetAllocProperties"(
        context: ZeHandle, at: *const c_void, properties: *mut ZeAllocProperties,
        device: *mut ZeHandle,
    );
    zeMemGetAddressRange = "zeMemGetAddressRange"(
        context: ZeHandle, at: *const c_void, base: *mut *mut c_void, bytes: *mut usize,
    );
    zeCommandListCreateImmediate = "zeCommandListCreateImmediate"(
        context: ZeHandle, device: ZeHandle, desc: *const ZeDesc, list: *mut ZeHandle,
    );
    zeCommandListDestroy = "zeCommandListDestroy"(list: ZeHandle);
    zeCommandListAppendMemoryCopy = "zeCommandListAppendMemoryCopy"(
        list: ZeHandle, to: *mut c_void, from: *const c_void, bytes: usize, signal: ZeHandle,
        waits: u32, wait: *mut ZeHandle,
    );
    zeCommandListAppendBarrier = "zeCommandListAppendBarrier"(
        list: ZeHandle, signal: ZeHandle, waits: u32, wait: *mut ZeHandle,
    );
    zeCommandListHostSynchronize = "zeCommandListHostSynchronize"(list: ZeHandle, nanos: u64);
    zeEventPoolCreate = "zeEventPoolCreate"(
        context: ZeHandle, desc: *const ZeDesc, devices: u32, of: *mut ZeHandle,
        pool: *mut ZeHandle,
    );
    zeEventPoolDestroy = "zeEventPoolDestroy"(pool: ZeHandle);
    zeEventCreate = "zeEventCreate"(pool: ZeHandle, desc: *const ZeDesc, event: *mut ZeHandle);
    zeEventDestroy = "zeEventDestroy"(event: ZeHandle);
    zeEventQueryStatus = "zeEventQueryStatus"(event: ZeHandle);
    zeEventHostReset = "zeEventHostReset"(event: ZeHandle);
}

thread_local! {
    /// The devices whose contexts this thread has pushed.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The driver, once it is initialised.
#[derive(Debug)]
struct Opened {
    driver: ZeHandle,
    context: ZeHandle,
    devices: Vec<ZeHandle>,
}

// SAFETY: handles, which Level Zero lets any thread use.
unsafe impl Send for Opened {}
// SAFETY: as for `Send`.
unsafe impl Sync for Opened {}

/// An event with its pool.
struct Event {
    pool: ZeHandle,
    event: ZeHandle,
}

/// The table of functions over those of Level Zero.
#[derive(Debug)]
pub(crate) struct LevelZero {
    ze: Arc<dyn ZeFunctions>,
    opened: OnceLock<Opened>,
    process: u32,
}

impl Drop for LevelZero {
    fn drop(&mut self) {
        // In a process that was forked off nothing is done.
        if let Some(opened) = self.opened.get().filter(|_| std::process::id() == self.process) {
            // SAFETY: made by `open`; whatever is of it holds the driver, and so is gone.
            let _ = unsafe { self.ze.zeContextDestroy(opened.context) };
        }
    }
}

/// The result of Level Zero as one of the table; those that nothing here depends on as they are.
fn result(told: CUresult) -> Result<(), CUresult> {
    match told {
        CUDA_SUCCESS => Ok(()),
        ZE_RESULT_NOT_READY => Err(CUDA_ERROR_NOT_READY),
        ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY | ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY => {
            Err(CUDA_ERROR_OUT_OF_MEMORY)
        }
        other => Err(other),
    }
}

fn code(result: Result<(), CUresult>) -> CUresult {
    result.err().unwrap_or(CUDA_SUCCESS)
}

fn head(stype: u32) -> ZeHead {
    ZeHead { stype, next: null_mut() }
}

fn desc(stype: u32, fields: &[u32]) -> ZeDesc {
    let mut all = [0; 6];
    all[..fields.len()].copy_from_slice(fields);
    ZeDesc { head: head(stype), fields: all }
}

/// A structure of zeros with this head, for the driver to fill.
///
/// # Safety
///
/// `T` begins with a head, and all of it may be zeros.
unsafe fn empty<T>(stype: u32) -> T {
    // SAFETY: the caller's.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: it begins with a head.
    unsafe { (&raw mut value).cast::<ZeHead>().write(head(stype)) };
    value
}

impl LevelZero {
    pub(crate) fn new(ze: Arc<dyn ZeFunctions>) -> Self {
        Self { ze, opened: OnceLock::new(), process: std::process::id() }
    }

    fn opened(&self) -> Result<&Opened, CUresult> {
        self.opened.get().ok_or(CUDA_ERROR_NOT_INITIALIZED)
    }

    fn device(&self, device: CUdevice) -> Result<ZeHandle, CUresult> {
        let index = usize::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
        self.opened()?.devices.get(index).copied().ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// Context and device that are current in this thread.
    fn current(&self) -> Result<(ZeHandle, ZeHandle), CUresult> {
        let index = CURRENT.with_borrow(|all| all.last().copied());
        let opened = self.opened()?;
        let device = index.and_then(|index| opened.devices.get(index));
        device.map(|device| (opened.context, *device)).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    fn open(&self) -> Result<(), CUresult> {
        let ze = &self.ze;
        let (mut driver, mut context) = (null_mut(), null_mut());
        let mut count = 1;
        // SAFETY: flags that there are; places for a number, and for as many handles as it says.
        unsafe {
            result(ze.zeInit(ZE_INIT_FLAG_GPU_ONLY))?;
            result(ze.zeDriverGet(&raw mut count, &raw mut driver))?;
        }
        if count == 0 || driver.is_null() {
            return Err(CUDA_ERROR_NO_DEVICE);
        }
        let desc = desc(ZE_STRUCTURE_TYPE_CONTEXT_DESC, &[]);
        let mut count = 0;
        // SAFETY: the driver's handle, a filled description, places for the results.
        unsafe {
            result(ze.zeContextCreate(driver, &raw const desc, &raw mut context))?;
            result(ze.zeDeviceGet(driver, &raw mut count, null_mut()))?;
        }
        let mut devices = vec![null_mut(); count as usize];
        // SAFETY: places for as many handles.
        unsafe { result(ze.zeDeviceGet(driver, &raw mut count, devices.as_mut_ptr()))? };
        devices.truncate(count as usize);
        devices.retain(|device| {
            // SAFETY: plain data that begins with a head.
            let mut properties: ZeDeviceProperties =
                unsafe { empty(ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES) };
            // SAFETY: a device, and a place for its properties.
            let told = unsafe { ze.zeDeviceGetProperties(*device, &raw mut properties) };
            told == CUDA_SUCCESS && properties.kind == ZE_DEVICE_TYPE_GPU
        });
        if devices.is_empty() {
            return Err(CUDA_ERROR_NO_DEVICE);
        }
        let _ = self.opened.set(Opened { driver, context, devices });
        Ok(())
    }

    /// Appends a copy to a stream.
    fn copy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        stream: CUstream,
    ) -> CUresult {
        // SAFETY: a command list, and memory that is there until the copy is over, by the contract
        // of the table; no events.
        code(result(unsafe {
            let (none, waits) = (null_mut(), null_mut());
            self.ze.zeCommandListAppendMemoryCopy(stream, to, from, bytes, none, 0, waits)
        }))
    }

    fn attributes(&self, at: CUdeviceptr) -> Result<Attributes, CUresult> {
        let opened = self.opened()?;
        // SAFETY: plain data that begins with a head.
        let mut properties: ZeAllocProperties =
            unsafe { empty(ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES) };
        let (mut device, mut base, mut bytes) = (null_mut(), null_mut(), 0);
        let pointer = at as *const c_void;
        // SAFETY: any address may be asked about; places for the results.
        unsafe {
            result(self.ze.zeMemGetAllocProperties(
                opened.context,
                pointer,
                &raw mut properties,
                &raw mut device,
            ))?;
        }
        let index = opened.devices.iter().position(|one| *one == device);
        let is_device = [ZE_MEMORY_TYPE_DEVICE, ZE_MEMORY_TYPE_SHARED].contains(&properties.kind);
        let Some(index) = index.filter(|_| is_device) else { return Ok(Attributes::default()) };
        // SAFETY: memory of the context; places for the results.
        unsafe {
            let told = self.ze.zeMemGetAddressRange(
                opened.context,
                pointer,
                &raw mut base,
                &raw mut bytes,
            );
            result(told)?;
        }
        let is_managed = properties.kind == ZE_MEMORY_TYPE_SHARED;
        Ok(Attributes { is_device, is_managed, index, base: base.addr() as u64, bytes })
    }
}

/// The facts about an address.
#[derive(Default)]
struct Attributes {
    is_device: bool,
    is_managed: bool,
    index: usize,
    base: CUdeviceptr,
    bytes: usize,
}

/// Writes a text and its end, as much as there is room for.
///
/// # Safety
///
/// There is room for `len` characters.
unsafe fn write_text(text: &CStr, to: *mut c_char, len: c_int) {
    let bytes = text.to_bytes_with_nul();
    let count = bytes.len().min(usize::try_from(len).unwrap_or(0));
    // SAFETY: no more than there is room for, by the caller's word, and no more than there are.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, count) };
}

impl Functions for LevelZero {
    unsafe fn cuInit(&self, _: c_uint) -> CUresult {
        code(self.open())
    }

    unsafe fn cuDriverGetVersion(&self, version: *mut c_int) -> CUresult {
        let mut told = 0;
        // Not known before it is initialised.
        if let Ok(opened) = self.opened() {
            // SAFETY: the driver's handle, and a place for a number.
            let asked = unsafe { self.ze.zeDriverGetApiVersion(opened.driver, &raw mut told) };
            if let Err(error) = result(asked) {
                return error;
            }
        }
        // SAFETY: a place for the result, by the contract.
        unsafe { *version = told.cast_signed() };
        CUDA_SUCCESS
    }

    unsafe fn cuGetErrorName(&self, error: CUresult, name: *mut *const c_char) -> CUresult {
        let text = match error {
            CUDA_ERROR_NOT_READY => c"ZE_RESULT_NOT_READY",
            CUDA_ERROR_OUT_OF_MEMORY => c"ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
            CUDA_ERROR_NO_DEVICE => c"no GPU",
            other => match RESULTS.iter().find(|(known, _)| *known == other) {
                Some((_, text)) => text,
                None => return CUDA_ERROR_INVALID_VALUE,
            },
        };
        // SAFETY: a place for the result, by the contract.
        unsafe { *name = text.as_ptr() };
        CUDA_SUCCESS
    }

    unsafe fn cuGetErrorString(&self, error: CUresult, text: *mut *const c_char) -> CUresult {
        // SAFETY: the caller's.
        unsafe { self.cuGetErrorName(error, text) }
    }

    unsafe fn cuDeviceGetCount(&self, count: *mut c_int) -> CUresult {
        code(self.opened().map(|opened| {
            // SAFETY: a place for the result, by the contract.
            unsafe { *count = c_int::try_from(opened.devices.len()).unwrap_or(c_int::MAX) };
        }))
    }

    unsafe fn cuDeviceGet(&self, device: *mut CUdevice, ordinal: c_int) -> CUresult {
        code(self.device(ordinal).map(|_| {
            // SAFETY: a place for the result, by the contract.
            unsafe { *device = ordinal };
        }))
    }

    unsafe fn cuDeviceGetName(&self, name: *mut c_char, len: c_int, device: CUdevice) -> CUresult {
        code(self.device(device).and_then(|device| {
            // SAFETY: plain data that begins with a head.
            let mut properties: ZeDeviceProperties =
                unsafe { empty(ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES) };
            // SAFETY: a device, and a place for its properties.
            result(unsafe { self.ze.zeDeviceGetProperties(device, &raw mut properties) })?;
            properties.name[255] = 0;
            // SAFETY: it has an end, just written if not before; room, by the contract.
            unsafe { write_text(CStr::from_ptr(properties.name.as_ptr()), name, len) };
            Ok(())
        }))
    }

    unsafe fn cuDeviceGetPCIBusId(
        &self,
        id: *mut c_char,
        len: c_int,
        device: CUdevice,
    ) -> CUresult {
        code(self.device(device).and_then(|device| {
            // SAFETY: plain data that begins with a head.
            let mut properties: ZePciProperties =
                unsafe { empty(ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES) };
            // SAFETY: a device, and a place for its properties.
            result(unsafe { self.ze.zeDevicePciGetPropertiesExt(device, &raw mut properties) })?;
            let [domain, bus, slot, function] = properties.address;
            let text = CString::new(format!("{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"));
            // SAFETY: room for so many characters, by the contract.
            unsafe { write_text(&text.unwrap_or_default(), id, len) };
            Ok(())
        }))
    }

    unsafe fn cuDeviceTotalMem(&self, bytes: *mut usize, device: CUdevice) -> CUresult {
        code(self.device(device).and_then(|device| {
            let mut count = 0;
            // SAFETY: a device, and a place for a number.
            result(unsafe {
                self.ze.zeDeviceGetMemoryProperties(device, &raw mut count, null_mut())
            })?;
            // SAFETY: plain data that begins with a head.
            let one: ZeMemoryProperties =
                unsafe { empty(ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES) };
            let mut all = vec![one; count as usize];
            // SAFETY: a device, and places for as many properties as `count` says.
            result(unsafe {
                self.ze.zeDeviceGetMemoryProperties(device, &raw mut count, all.as_mut_ptr())
            })?;
            let sum: u64 = all.iter().take(count as usize).map(|memory| memory.bytes).sum();
            // SAFETY: a place for the result, by the contract.
            unsafe { *bytes = usize::try_from(sum).unwrap_or(usize::MAX) };
            Ok(())
        }))
    }

    unsafe fn cuDevicePrimaryCtxRetain(
        &self,
        context: *mut CUcontext,
        device: CUdevice,
    ) -> CUresult {
        code(self.device(device).map(|_| {
            let number = std::ptr::without_provenance_mut(device as usize + 1);
            // SAFETY: a place for the result, by the contract.
            unsafe { *context = number };
        }))
    }

    unsafe fn cuDevicePrimaryCtxRelease(&self, _: CUdevice) -> CUresult {
        CUDA_SUCCESS
    }

    unsafe fn cuCtxPushCurrent(&self, context: CUcontext) -> CUresult {
        CURRENT.with_borrow_mut(|all| all.push(context.addr().wrapping_sub(1)));
        CUDA_SUCCESS
    }

    unsafe fn cuCtxPopCurrent(&self, context: *mut CUcontext) -> CUresult {
        let popped = CURRENT.with_borrow_mut(Vec::pop);
        let Some(index) = popped else { return CUDA_ERROR_INVALID_CONTEXT };
        // SAFETY: a place for the result, by the contract.
        unsafe { *context = std::ptr::without_provenance_mut(index + 1) };
        CUDA_SUCCESS
    }

    unsafe fn cuMemAlloc(&self, at: *mut CUdeviceptr, bytes: usize) -> CUresult {
        code(self.current().and_then(|(context, device)| {
            let (desc, mut found) =
                (desc(ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC, &[]), null_mut());
            let (desc, to) = (&raw const desc, &raw mut found);
            // SAFETY: context and device of the driver, a filled description, a place.
            result(unsafe { self.ze.zeMemAllocDevice(context, desc, bytes, 1, device, to) })?;
            // SAFETY: a place for the result, by the contract.
            unsafe { *at = found.addr() as u64 };
            Ok(())
        }))
    }

    unsafe fn cuMemFree(&self, at: CUdeviceptr) -> CUresult {
        code(self.opened().and_then(|opened| {
            // SAFETY: memory of the context that nobody uses, by the contract.
            result(unsafe { self.ze.zeMemFree(opened.context, at as *mut c_void) })
        }))
    }

    unsafe fn cuMemHostRegister(&self, _: *mut c_void, _: usize, _: c_uint) -> CUresult {
        CUDA_SUCCESS
    }

    unsafe fn cuMemHostUnregister(&self, _: *mut c_void) -> CUresult {
        CUDA_SUCCESS
    }

    unsafe fn cuMemcpyHtoDAsync(
        &self,
        to: CUdeviceptr,
        from: *const c_void,
        bytes: usize,
        stream: CUstream,
    ) -> CUresult {
        self.copy(to as *mut c_void, from, bytes, stream)
    }

    unsafe fn cuMemcpyDtoHAsync(
        &self,
        to: *mut c_void,
        from: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> CUresult {
        self.copy(to, from as *const c_void, bytes, stream)
    }

    unsafe fn cuMemcpyDtoDAsync(
        &self,
        to: CUdeviceptr,
        from: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> CUresult {
        self.copy(to as *mut c_void, from as *const c_void, bytes, stream)
    }

    unsafe fn cuStreamCreate(&self, stream: *mut CUstream, _: c_uint) -> CUresult {
        code(self.current().and_then(|(context, device)| {
            let desc = desc(
                ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
                &[0, 0, 0, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS, 0],
            );
            // SAFETY: context and device of the driver, a filled description; a place for the
            // result, by the contract.
            result(unsafe {
                self.ze.zeCommandListCreateImmediate(context, device, &raw const desc, stream)
            })
        }))
    }

    unsafe fn cuStreamSynchronize(&self, stream: CUstream) -> CUresult {
        // SAFETY: a command list, by the contract; without a limit.
        code(result(unsafe { self.ze.zeCommandListHostSynchronize(stream, u64::MAX) }))
    }

    unsafe fn cuStreamDestroy(&self, stream: CUstream) -> CUresult {
        // SAFETY: a command list that nothing uses, by the contract.
        code(result(unsafe { self.ze.zeCommandListDestroy(stream) }))
    }

    unsafe fn cuEventCreate(&self, event: *mut CUevent, _: c_uint) -> CUresult {
        code(self.opened().and_then(|opened| {
            let of_pool =
                desc(ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, &[ZE_EVENT_POOL_FLAG_HOST_VISIBLE, 1]);
            let of_event = desc(
                ZE_STRUCTURE_TYPE_EVENT_DESC,
                &[0, ZE_EVENT_SCOPE_FLAG_HOST, ZE_EVENT_SCOPE_FLAG_HOST],
            );
            let mut made = Event { pool: null_mut(), event: null_mut() };
            let (context, pool) = (opened.context, &raw mut made.pool);
            // SAFETY: the context, a filled description, all devices, a place.
            result(unsafe {
                self.ze.zeEventPoolCreate(context, &raw const of_pool, 0, null_mut(), pool)
            })?;
            // SAFETY: a pool with one event, which is made; a place.
            let told = unsafe {
                self.ze.zeEventCreate(made.pool, &raw const of_event, &raw mut made.event)
            };
            if let Err(error) = result(told) {
                // SAFETY: a pool without an event.
                let _ = unsafe { self.ze.zeEventPoolDestroy(made.pool) };
                return Err(error);
            }
            // SAFETY: a place for the result, by the contract.
            unsafe { *event = Box::into_raw(Box::new(made)).cast() };
            Ok(())
        }))
    }

    unsafe fn cuEventRecord(&self, event: CUevent, stream: CUstream) -> CUresult {
        // SAFETY: made by `cuEventCreate`, and not destroyed, by the contract.
        let event = unsafe { (*event.cast::<Event>()).event };
        // SAFETY: an event that no command uses any more, and a command list, by the contract.
        code(unsafe {
            result(self.ze.zeEventHostReset(event)).and_then(|()| {
                result(self.ze.zeCommandListAppendBarrier(stream, event, 0, null_mut()))
            })
        })
    }

    unsafe fn cuEventQuery(&self, event: CUevent) -> CUresult {
        // SAFETY: made by `cuEventCreate`, and not destroyed, by the contract.
        let event = unsafe { (*event.cast::<Event>()).event };
        // SAFETY: an event.
        code(result(unsafe { self.ze.zeEventQueryStatus(event) }))
    }

    unsafe fn cuEventDestroy(&self, event: CUevent) -> CUresult {
        // SAFETY: made by `cuEventCreate`, and destroyed once, by the contract.
        let own = unsafe { Box::from_raw(event.cast::<Event>()) };
        // SAFETY: an event that no command uses, and then its pool.
        code(unsafe {
            let event = result(self.ze.zeEventDestroy(own.event));
            let pool = result(self.ze.zeEventPoolDestroy(own.pool));
            event.and(pool)
        })
    }

    unsafe fn cuPointerGetAttributes(
        &self,
        count: c_uint,
        which: *const c_int,
        values: *mut *mut c_void,
        at: CUdeviceptr,
    ) -> CUresult {
        let found = match self.attributes(at) {
            Ok(found) => found,
            Err(error) => return error,
        };
        for index in 0..count as usize {
            // SAFETY: as many attributes and places as `count` says, each of the size of its
            // attribute, by the contract.
            unsafe {
                let to = *values.add(index);
                match *which.add(index) {
                    CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                        let kind = if found.is_device { CU_MEMORYTYPE_DEVICE } else { 0 };
                        to.cast::<c_uint>().write(kind);
                    }
                    CU_POINTER_ATTRIBUTE_IS_MANAGED => {
                        to.cast::<c_uint>().write(found.is_managed.into());
                    }
                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                        to.cast::<c_int>().write(c_int::try_from(found.index).unwrap_or(-1));
                    }
                    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => {
                        to.cast::<CUdeviceptr>().write(found.base);
                    }
                    CU_POINTER_ATTRIBUTE_RANGE_SIZE => to.cast::<usize>().write(found.bytes),
                    _ => return CUDA_ERROR_INVALID_VALUE,
                }
            }
        }
        CUDA_SUCCESS
    }
}
