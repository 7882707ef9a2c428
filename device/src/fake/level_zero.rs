//! Level Zero over the fake driver: each of its functions by what that has in its place.
#![allow(
    non_snake_case,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the table has the names of C; places for results are given together"
)]

use std::ffi::{c_char, c_void};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

use super::Table;
use crate::level_zero::{
    ZeAllocProperties, ZeDesc, ZeDeviceProperties, ZeFunctions, ZeHandle, ZeMemoryProperties,
    ZePciProperties,
};
use crate::raw::{
    CUDA_ERROR_NOT_READY, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUcontext, CUdevice, CUresult,
    Functions,
};

/// The handle of the only driver, and that of its context.
const DRIVER: usize = 1;
const CONTEXT: usize = 2;
/// The handle of the first device.
const DEVICES: usize = 100;

#[derive(Debug)]
pub(super) struct FakeZe(pub(super) Arc<Table>);

fn ze(code: CUresult) -> CUresult {
    match code {
        CUDA_SUCCESS => CUDA_SUCCESS,
        CUDA_ERROR_NOT_READY => 1,
        CUDA_ERROR_OUT_OF_MEMORY => 0x7000_0003,
        _ => 0x7fff_fffe,
    }
}

impl FakeZe {
    fn devices(&self) -> usize {
        self.0.state().devices
    }

    fn handle(index: usize) -> ZeHandle {
        without_provenance_mut(DEVICES + index)
    }

    /// Calls a function of the other table on the device of that number.
    fn on(&self, index: usize, call: impl FnOnce(&Table) -> CUresult) -> CUresult {
        let mut popped: CUcontext = std::ptr::null_mut();
        // SAFETY: contexts of devices that are retained since `zeContextCreate`; a place.
        unsafe {
            let pushed = self.0.cuCtxPushCurrent(without_provenance_mut(index + 1));
            if pushed != CUDA_SUCCESS {
                return ze(pushed);
            }
            let told = call(&self.0);
            self.0.cuCtxPopCurrent(&raw mut popped);
            ze(told)
        }
    }
}

impl ZeFunctions for FakeZe {
    unsafe fn zeInit(&self, _: u32) -> CUresult {
        // SAFETY: the only flags that there are.
        ze(unsafe { self.0.cuInit(0) })
    }

    unsafe fn zeDriverGet(&self, count: *mut u32, drivers: *mut ZeHandle) -> CUresult {
        // SAFETY: places for both, by the contract.
        unsafe { (*count, *drivers) = (1, without_provenance_mut(DRIVER)) };
        CUDA_SUCCESS
    }

    unsafe fn zeDriverGetApiVersion(&self, _: ZeHandle, version: *mut u32) -> CUresult {
        // SAFETY: a place for the result, by the contract.
        unsafe { *version = 0x1_0009 };
        CUDA_SUCCESS
    }

    unsafe fn zeDeviceGet(&self, _: ZeHandle, count: *mut u32, devices: *mut ZeHandle) -> CUresult {
        for index in 0..self.devices() {
            if !devices.is_null() {
                // SAFETY: as many places as were told before.
                unsafe { *devices.add(index) = Self::handle(index) };
            }
        }
        // SAFETY: a place for the result, by the contract.
        unsafe { *count = self.devices() as u32 };
        CUDA_SUCCESS
    }

    unsafe fn zeDeviceGetProperties(
        &self,
        _: ZeHandle,
        properties: *mut ZeDeviceProperties,
    ) -> CUresult {
        // SAFETY: a structure to fill, by the contract.
        let properties = unsafe { &mut *properties };
        properties.kind = 1;
        for (to, from) in properties.name.iter_mut().zip(*b"Fake\0") {
            *to = from as c_char;
        }
        CUDA_SUCCESS
    }

    unsafe fn zeDeviceGetMemoryProperties(
        &self,
        _: ZeHandle,
        count: *mut u32,
        properties: *mut ZeMemoryProperties,
    ) -> CUresult {
        // SAFETY: a place for the number, and for so many structures, or none, by the contract.
        unsafe {
            *count = 1;
            if !properties.is_null() {
                (*properties).bytes = 1 << 30;
            }
        }
        CUDA_SUCCESS
    }

    unsafe fn zeDevicePciGetPropertiesExt(
        &self,
        device: ZeHandle,
        properties: *mut ZePciProperties,
    ) -> CUresult {
        let bus = 0xf0 + (device.addr() - DEVICES) as u32;
        // SAFETY: a structure to fill, by the contract.
        unsafe { (*properties).address = [0, bus, 0, 0] };
        CUDA_SUCCESS
    }

    unsafe fn zeContextCreate(
        &self,
        _: ZeHandle,
        _: *const ZeDesc,
        context: *mut ZeHandle,
    ) -> CUresult {
        let mut retained: CUcontext = std::ptr::null_mut();
        for index in 0..self.devices() {
            // SAFETY: devices that there are; a place.
            unsafe { self.0.cuDevicePrimaryCtxRetain(&raw mut retained, index as CUdevice) };
        }
        // SAFETY: a place for the result, by the contract.
        unsafe { *context = without_provenance_mut(CONTEXT) };
        CUDA_SUCCESS
    }

    unsafe fn zeContextDestroy(&self, _: ZeHandle) -> CUresult {
        for index in 0..self.devices() {
            // SAFETY: retained when the context was made.
            unsafe { self.0.cuDevicePrimaryCtxRelease(index as CUdevice) };
        }
        CUDA_SUCCESS
    }

    unsafe fn zeMemAllocDevice(
        &self,
        _: ZeHandle,
        _: *const ZeDesc,
        bytes: usize,
        _: usize,
        device: ZeHandle,
        at: *mut *mut c_void,
    ) -> CUresult {
        let mut address = 0;
        let told = self.on(device.addr() - DEVICES, |table| {
            // SAFETY: a place for the address.
            unsafe { table.cuMemAlloc(&raw mut address, bytes) }
        });
        // SAFETY: a place for the result, by the contract.
        unsafe { *at = address as *mut c_void };
        told
    }

    unsafe fn zeMemFree(&self, _: ZeHandle, at: *mut c_void) -> CUresult {
        // SAFETY: the caller's.
        self.on(0, |table| unsafe { table.cuMemFree(at.addr() as u64) })
    }

    unsafe fn zeMemGetAllocProperties(
        &self,
        _: ZeHandle,
        at: *const c_void,
        properties: *mut ZeAllocProperties,
        device: *mut ZeHandle,
    ) -> CUresult {
        let state = self.0.state();
        if let Some((mapped, _)) = state.mapped(at.addr() as u64, 1) {
            // SAFETY: places for the results, by the contract.
            unsafe { ((*properties).kind, *device) = (2, Self::handle(mapped.device)) };
        }
        CUDA_SUCCESS
    }

    unsafe fn zeMemGetAddressRange(
        &self,
        _: ZeHandle,
        at: *const c_void,
        base: *mut *mut c_void,
        bytes: *mut usize,
    ) -> CUresult {
        let state = self.0.state();
        let at = at.addr() as u64;
        let Some((mapped, offset)) = state.mapped(at, 1) else { return 0x7800_0004 };
        let start = at - offset as u64;
        // SAFETY: places for the results, by the contract.
        unsafe { (*base, *bytes) = (start as *mut c_void, mapped.bytes) };
        CUDA_SUCCESS
    }

    unsafe fn zeCommandListCreateImmediate(
        &self,
        _: ZeHandle,
        device: ZeHandle,
        _: *const ZeDesc,
        list: *mut ZeHandle,
    ) -> CUresult {
        // SAFETY: a place for the result, by the contract.
        self.on(device.addr() - DEVICES, |table| unsafe { table.cuStreamCreate(list, 0) })
    }

    unsafe fn zeCommandListDestroy(&self, list: ZeHandle) -> CUresult {
        // SAFETY: the caller's.
        self.on(0, |table| unsafe { table.cuStreamDestroy(list) })
    }

    unsafe fn zeCommandListAppendMemoryCopy(
        &self,
        list: ZeHandle,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        _: ZeHandle,
        _: u32,
        _: *mut ZeHandle,
    ) -> CUresult {
        let (there, here) = (to.addr() as u64, from.addr() as u64);
        let is_device = |at| self.0.state().mapped(at, 1).is_some();
        let (to_device, from_device) = (is_device(there), is_device(here));
        // SAFETY: the caller's, of the function for these kinds of memory.
        self.on(0, |table| unsafe {
            match (from_device, to_device) {
                (true, true) => table.cuMemcpyDtoDAsync(there, here, bytes, list),
                (true, false) => table.cuMemcpyDtoHAsync(to, here, bytes, list),
                (false, _) => table.cuMemcpyHtoDAsync(there, from, bytes, list),
            }
        })
    }

    unsafe fn zeCommandListAppendBarrier(
        &self,
        list: ZeHandle,
        signal: ZeHandle,
        _: u32,
        _: *mut ZeHandle,
    ) -> CUresult {
        // SAFETY: the caller's.
        self.on(0, |table| unsafe { table.cuEventRecord(signal, list) })
    }

    unsafe fn zeCommandListHostSynchronize(&self, list: ZeHandle, _: u64) -> CUresult {
        // SAFETY: the caller's.
        self.on(0, |table| unsafe { table.cuStreamSynchronize(list) })
    }

    unsafe fn zeEventPoolCreate(
        &self,
        _: ZeHandle,
        _: *const ZeDesc,
        _: u32,
        _: *mut ZeHandle,
        pool: *mut ZeHandle,
    ) -> CUresult {
        // A number that is missed if it is not given back.
        // SAFETY: a place for the result, by the contract.
        self.on(0, |table| unsafe { table.cuEventCreate(pool, 0) })
    }

    unsafe fn zeEventPoolDestroy(&self, pool: ZeHandle) -> CUresult {
        // SAFETY: the caller's.
        self.on(0, |table| unsafe { table.cuEventDestroy(pool) })
    }

    unsafe fn zeEventCreate(
        &self,
        _: ZeHandle,
        _: *const ZeDesc,
        event: *mut ZeHandle,
    ) -> CUresult {
        // SAFETY: a place for the result, by the contract.
        self.on(0, |table| unsafe { table.cuEventCreate(event, 0) })
    }

    unsafe fn zeEventDestroy(&self, event: ZeHandle) -> CUresult {
        // SAFETY: the caller's.
        self.on(0, |table| unsafe { table.cuEventDestroy(event) })
    }

    unsafe fn zeEventQueryStatus(&self, event: ZeHandle) -> CUresult {
        // SAFETY: the caller's.
        self.on(0, |table| unsafe { table.cuEventQuery(event) })
    }

    unsafe fn zeEventHostReset(&self, _: ZeHandle) -> CUresult {
        CUDA_SUCCESS
    }
}
