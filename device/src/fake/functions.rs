//! The functions of the fake driver. Each has the contract of its namesake in CUDA.
#![allow(
    non_snake_case,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the table has the names of C; places for results are given together"
)]

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use super::{Block, Copy, Mapped, PAGE, Place, State, Step, Table, map};
use crate::raw::*;

fn code(result: Result<CUresult, CUresult>) -> CUresult {
    result.unwrap_or_else(|code| code)
}

/// The names of the errors that have one here.
fn name_of(code: CUresult) -> Option<&'static CStr> {
    Some(match code {
        CUDA_ERROR_INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        CUDA_ERROR_OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        CUDA_ERROR_NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        CUDA_ERROR_INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        CUDA_ERROR_INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        CUDA_ERROR_ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        CUDA_ERROR_UNKNOWN => c"CUDA_ERROR_UNKNOWN",
        _ => return None,
    })
}

impl Functions for Table {
    unsafe fn cuInit(&self, _: c_uint) -> CUresult {
        code(self.call("cuInit").map(|state| match state.devices {
            0 => CUDA_ERROR_NO_DEVICE,
            _ => CUDA_SUCCESS,
        }))
    }

    unsafe fn cuDriverGetVersion(&self, version: *mut c_int) -> CUresult {
        code(self.call("cuDriverGetVersion").map(|_| {
            // SAFETY: a place for the result, by the contract.
            unsafe { *version = 12040 };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuGetErrorName(&self, error: CUresult, name: *mut *const c_char) -> CUresult {
        let Some(text) = name_of(error) else { return CUDA_ERROR_INVALID_VALUE };
        // SAFETY: a place for the result, by the contract.
        unsafe { *name = text.as_ptr() };
        CUDA_SUCCESS
    }

    unsafe fn cuGetErrorString(&self, error: CUresult, text: *mut *const c_char) -> CUresult {
        // SAFETY: the caller's.
        unsafe { self.cuGetErrorName(error, text) }
    }

    unsafe fn cuDeviceGetCount(&self, count: *mut c_int) -> CUresult {
        code(self.call("cuDeviceGetCount").map(|state| {
            // SAFETY: a place for the result, by the contract.
            unsafe { *count = state.devices as c_int };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuDeviceGet(&self, device: *mut CUdevice, ordinal: c_int) -> CUresult {
        code(self.call("cuDeviceGet").map(|state| {
            if ordinal as usize >= state.devices {
                return CUDA_ERROR_INVALID_DEVICE;
            }
            // SAFETY: a place for the result, by the contract.
            unsafe { *device = ordinal };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuDeviceGetName(&self, name: *mut c_char, len: c_int, _: CUdevice) -> CUresult {
        code(self.call("cuDeviceGetName").map(|_| {
            // SAFETY: room for `len` characters, by the contract.
            unsafe { libc::strncpy(name, c"Fake".as_ptr(), len as usize) };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuDeviceGetPCIBusId(
        &self,
        id: *mut c_char,
        len: c_int,
        device: CUdevice,
    ) -> CUresult {
        code(self.call("cuDeviceGetPCIBusId").map(|_| {
            let text = CString::new(format!("00000000:F{device}:00.0")).unwrap_or_default();
            // SAFETY: room for `len` characters, by the contract.
            unsafe { libc::strncpy(id, text.as_ptr(), len as usize) };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuDeviceTotalMem(&self, bytes: *mut usize, _: CUdevice) -> CUresult {
        code(self.call("cuDeviceTotalMem").map(|_| {
            // SAFETY: a place for the result, by the contract.
            unsafe { *bytes = 1 << 30 };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuDeviceGetAttribute(
        &self,
        value: *mut c_int,
        attribute: c_int,
        _: CUdevice,
    ) -> CUresult {
        code(self.call("cuDeviceGetAttribute").map(|state| {
            if attribute != CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING {
                return CUDA_ERROR_INVALID_VALUE;
            }
            let ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
            // SAFETY: a place for the result, by the contract.
            unsafe { *value = if state.orders_writes { ordering } else { 0 } };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuDevicePrimaryCtxRetain(
        &self,
        context: *mut CUcontext,
        device: CUdevice,
    ) -> CUresult {
        code(self.call("cuDevicePrimaryCtxRetain").map(|mut state| {
            state.contexts[device as usize] += 1;
            // SAFETY: a place for the result, by the contract.
            unsafe { *context = (device as usize + 1) as CUcontext };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuDevicePrimaryCtxRelease(&self, device: CUdevice) -> CUresult {
        code(self.call("cuDevicePrimaryCtxRelease").map(|mut state| {
            state.contexts[device as usize] -= 1;
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuCtxPushCurrent(&self, context: CUcontext) -> CUresult {
        code(self.call("cuCtxPushCurrent").map(|mut state| {
            let device = context.addr() - 1;
            if state.contexts[device] == 0 {
                state.faults.push("a context was used that nobody retains".into());
                return CUDA_ERROR_INVALID_CONTEXT;
            }
            state.current.entry(std::thread::current().id()).or_default().push(device);
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuCtxPopCurrent(&self, context: *mut CUcontext) -> CUresult {
        code(self.call("cuCtxPopCurrent").map(|mut state| {
            let thread = std::thread::current().id();
            match state.current.get_mut(&thread).and_then(Vec::pop) {
                // SAFETY: a place for the result, by the contract.
                Some(device) => unsafe { *context = (device + 1) as CUcontext },
                None => {
                    state.faults.push("a context was popped in another thread".into());
                    return CUDA_ERROR_INVALID_CONTEXT;
                }
            }
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemAlloc(&self, at: *mut CUdeviceptr, bytes: usize) -> CUresult {
        code(self.within("cuMemAlloc").map(|(mut state, device)| {
            if bytes > 1 << 30 {
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
            let block = Block::new(bytes, device);
            let address = map(Some(&block.fd), bytes, libc::PROT_NONE) as u64;
            state.memory.insert(address, Mapped { block, bytes, device });
            // SAFETY: a place for the result, by the contract.
            unsafe { *at = address };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemFree(&self, at: CUdeviceptr) -> CUresult {
        code(self.within("cuMemFree").map(|(mut state, _)| {
            let Some(mapped) = state.memory.remove(&at) else {
                state.faults.push("memory was freed twice".into());
                return CUDA_ERROR_INVALID_VALUE;
            };
            if state.is_used(at, mapped.bytes) {
                state.faults.push("memory was freed before its copy was over".into());
            }
            // SAFETY: mapped with this length, and known to nobody any more.
            unsafe { libc::munmap(at as *mut c_void, mapped.bytes) };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemHostRegister(&self, at: *mut c_void, bytes: usize, _: c_uint) -> CUresult {
        code(self.within("cuMemHostRegister").map(|(mut state, _)| {
            match state.pinned.insert(at.addr(), bytes) {
                None => CUDA_SUCCESS,
                Some(_) => CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            }
        }))
    }

    unsafe fn cuMemHostUnregister(&self, at: *mut c_void) -> CUresult {
        code(self.within("cuMemHostUnregister").map(|(mut state, _)| {
            let Some(bytes) = state.pinned.remove(&at.addr()) else {
                state.faults.push("memory was unpinned twice".into());
                return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
            };
            if state.uses_host(at.addr(), bytes) {
                state.faults.push("memory was unpinned before its copy was over".into());
            }
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemcpyHtoDAsync(
        &self,
        to: CUdeviceptr,
        from: *const c_void,
        bytes: usize,
        stream: CUstream,
    ) -> CUresult {
        let (from, to) = (Place::Host(from.addr()), Place::Device(to));
        let queued = self.within("cuMemcpyHtoDAsync");
        code(queued.map(|(mut state, _)| state.queue(stream, Copy { from, to, bytes })))
    }

    unsafe fn cuMemcpyDtoHAsync(
        &self,
        to: *mut c_void,
        from: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> CUresult {
        let (from, to) = (Place::Device(from), Place::Host(to.addr()));
        let queued = self.within("cuMemcpyDtoHAsync");
        code(queued.map(|(mut state, _)| state.queue(stream, Copy { from, to, bytes })))
    }

    unsafe fn cuMemcpyDtoDAsync(
        &self,
        to: CUdeviceptr,
        from: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> CUresult {
        code(self.within("cuMemcpyDtoDAsync").map(|(mut state, _)| {
            if state.device_of(to) != state.device_of(from) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            let (from, to) = (Place::Device(from), Place::Device(to));
            state.queue(stream, Copy { from, to, bytes })
        }))
    }

    unsafe fn cuMemcpyPeerAsync(
        &self,
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    ) -> CUresult {
        code(self.within("cuMemcpyPeerAsync").map(|(mut state, _)| {
            let is_of = |state: &State, at, context: CUcontext| {
                state.device_of(at).is_some_and(|device| device + 1 == context.addr())
            };
            if !is_of(&state, to, to_context) || !is_of(&state, from, from_context) {
                return CUDA_ERROR_INVALID_CONTEXT;
            }
            let (from, to) = (Place::Device(from), Place::Device(to));
            state.queue(stream, Copy { from, to, bytes })
        }))
    }

    unsafe fn cuStreamCreate(&self, stream: *mut CUstream, _: c_uint) -> CUresult {
        code(self.within("cuStreamCreate").map(|(mut state, _)| {
            let number = state.number();
            state.streams.insert(number, VecDeque::new());
            // SAFETY: a place for the result, by the contract.
            unsafe { *stream = number as CUstream };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuStreamSynchronize(&self, stream: CUstream) -> CUresult {
        code(self.within("cuStreamSynchronize").map(|(mut state, _)| {
            while state.streams.get(&stream.addr()).is_some_and(|steps| !steps.is_empty()) {
                state.step(stream.addr());
            }
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuStreamDestroy(&self, stream: CUstream) -> CUresult {
        code(self.within("cuStreamDestroy").map(|(mut state, _)| {
            match state.streams.remove(&stream.addr()) {
                Some(steps) if steps.is_empty() => CUDA_SUCCESS,
                Some(_) => {
                    state.faults.push("a stream was destroyed before its copies were over".into());
                    CUDA_SUCCESS
                }
                None => CUDA_ERROR_INVALID_HANDLE,
            }
        }))
    }

    unsafe fn cuEventCreate(&self, event: *mut CUevent, _: c_uint) -> CUresult {
        code(self.within("cuEventCreate").map(|(mut state, _)| {
            let number = state.number();
            state.events.insert(number, 0);
            // SAFETY: a place for the result, by the contract.
            unsafe { *event = number as CUevent };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuEventRecord(&self, event: CUevent, stream: CUstream) -> CUresult {
        code(self.within("cuEventRecord").map(|(mut state, _)| {
            let State { events, streams, .. } = &mut *state;
            match (events.get_mut(&event.addr()), streams.get_mut(&stream.addr())) {
                (Some(waiting), Some(steps)) => {
                    *waiting += 1;
                    steps.push_back(Step::Record(event.addr()));
                    CUDA_SUCCESS
                }
                _ => CUDA_ERROR_INVALID_HANDLE,
            }
        }))
    }

    unsafe fn cuEventQuery(&self, event: CUevent) -> CUresult {
        let asked = self.within("cuEventQuery");
        if asked.is_err() {
            // The context is lost, and nothing runs there any more.
            let mut state = self.state();
            state.streams.values_mut().for_each(VecDeque::clear);
            state.events.values_mut().for_each(|waiting| *waiting = 0);
        }
        code(asked.map(|(mut state, _)| {
            state.go_on();
            match state.events.get(&event.addr()) {
                Some(0) => CUDA_SUCCESS,
                Some(_) => CUDA_ERROR_NOT_READY,
                None => CUDA_ERROR_INVALID_HANDLE,
            }
        }))
    }

    unsafe fn cuEventDestroy(&self, event: CUevent) -> CUresult {
        code(self.within("cuEventDestroy").map(|(mut state, _)| {
            match state.events.remove(&event.addr()) {
                Some(_) => CUDA_SUCCESS,
                None => CUDA_ERROR_INVALID_HANDLE,
            }
        }))
    }

    unsafe fn cuPointerGetAttributes(
        &self,
        count: c_uint,
        which: *const c_int,
        values: *mut *mut c_void,
        at: CUdeviceptr,
    ) -> CUresult {
        code(self.within("cuPointerGetAttributes").map(|(state, _)| {
            // Of what it does not know a driver tells zeros.
            let start = state.memory.range(..=at).next_back().map_or(0, |(start, _)| *start);
            let found = state.mapped(at, 1).map(|(mapped, _)| mapped);
            for index in 0..count as usize {
                // SAFETY: `count` attributes, each with a place of its type, by the contract.
                unsafe {
                    let to = *values.add(index);
                    match *which.add(index) {
                        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                            *to.cast::<c_uint>() = found.map_or(0, |_| CU_MEMORYTYPE_DEVICE);
                        }
                        CU_POINTER_ATTRIBUTE_IS_MANAGED => *to.cast::<c_uint>() = 0,
                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                            *to.cast::<c_int>() = found.map_or(-2, |it| it.device as c_int);
                        }
                        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => {
                            *to.cast::<CUdeviceptr>() = found.map_or(0, |_| start);
                        }
                        CU_POINTER_ATTRIBUTE_RANGE_SIZE => {
                            *to.cast::<usize>() = found.map_or(0, |it| it.bytes);
                        }
                        _ => return CUDA_ERROR_INVALID_VALUE,
                    }
                }
            }
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemGetAllocationGranularity(
        &self,
        bytes: *mut usize,
        _: *const CUmemAllocationProp,
        _: c_int,
    ) -> CUresult {
        code(self.within("cuMemGetAllocationGranularity").map(|_| {
            // SAFETY: a place for the result, by the contract.
            unsafe { *bytes = PAGE };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemCreate(
        &self,
        handle: *mut CUmemGenericAllocationHandle,
        bytes: usize,
        prop: *const CUmemAllocationProp,
        _: c_ulonglong,
    ) -> CUresult {
        code(self.within("cuMemCreate").map(|(mut state, _)| {
            if !bytes.is_multiple_of(PAGE) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            if bytes > 1 << 30 {
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
            // SAFETY: properties that are filled in, by the contract.
            let block = Block::new(bytes, unsafe { (*prop).location.id } as usize);
            let number = state.number() as u64;
            state.handles.insert(number, block);
            // SAFETY: a place for the result, by the contract.
            unsafe { *handle = number };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemRelease(&self, handle: CUmemGenericAllocationHandle) -> CUresult {
        code(self.within("cuMemRelease").map(
            |(mut state, _)| match state.handles.remove(&handle) {
                Some(_) => CUDA_SUCCESS,
                None => CUDA_ERROR_INVALID_VALUE,
            },
        ))
    }

    unsafe fn cuMemAddressReserve(
        &self,
        at: *mut CUdeviceptr,
        bytes: usize,
        _: usize,
        _: CUdeviceptr,
        _: c_ulonglong,
    ) -> CUresult {
        code(self.within("cuMemAddressReserve").map(|(mut state, _)| {
            let address = map(None, bytes, libc::PROT_NONE) as u64;
            state.reserved.insert(address, bytes);
            // SAFETY: a place for the result, by the contract.
            unsafe { *at = address };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemAddressFree(&self, at: CUdeviceptr, bytes: usize) -> CUresult {
        code(self.within("cuMemAddressFree").map(|(mut state, _)| {
            if state.memory.contains_key(&at) {
                state.faults.push("addresses were freed that memory is mapped to".into());
            }
            if state.reserved.remove(&at) != Some(bytes) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            // SAFETY: mapped with this length, and known to nobody any more.
            unsafe { libc::munmap(at as *mut c_void, bytes) };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemMap(
        &self,
        at: CUdeviceptr,
        bytes: usize,
        _: usize,
        handle: CUmemGenericAllocationHandle,
        _: c_ulonglong,
    ) -> CUresult {
        code(self.within("cuMemMap").map(|(mut state, _)| {
            let Some(block) = state.handles.get(&handle).cloned() else {
                return CUDA_ERROR_INVALID_VALUE;
            };
            if block.bytes != bytes {
                return CUDA_ERROR_INVALID_VALUE;
            }
            let device = block.device;
            state.memory.insert(at, Mapped { block, bytes, device });
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemUnmap(&self, at: CUdeviceptr, bytes: usize) -> CUresult {
        code(self.within("cuMemUnmap").map(|(mut state, _)| {
            if state.is_used(at, bytes) {
                state.faults.push("memory was unmapped before its copy was over".into());
            }
            match state.memory.remove(&at) {
                Some(_) => CUDA_SUCCESS,
                None => CUDA_ERROR_INVALID_VALUE,
            }
        }))
    }

    unsafe fn cuMemSetAccess(
        &self,
        _: CUdeviceptr,
        _: usize,
        _: *const CUmemAccessDesc,
        _: usize,
    ) -> CUresult {
        code(self.within("cuMemSetAccess").map(|_| CUDA_SUCCESS))
    }

    unsafe fn cuMemExportToShareableHandle(
        &self,
        to: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        _: c_int,
        _: c_ulonglong,
    ) -> CUresult {
        code(self.within("cuMemExportToShareableHandle").map(|(state, _)| {
            let copy = state.handles.get(&handle).and_then(|block| block.fd.try_clone().ok());
            let Some(fd) = copy else { return CUDA_ERROR_INVALID_VALUE };
            // SAFETY: a place for the result, by the contract.
            unsafe { *to.cast::<c_int>() = fd.into_raw_fd() };
            CUDA_SUCCESS
        }))
    }

    unsafe fn cuMemImportFromShareableHandle(
        &self,
        handle: *mut CUmemGenericAllocationHandle,
        from: *mut c_void,
        _: c_int,
    ) -> CUresult {
        code(self.within("cuMemImportFromShareableHandle").map(|(mut state, device)| {
            // SAFETY: any number may be asked about.
            let fd = unsafe { libc::dup(from.addr() as c_int) };
            // SAFETY: a structure of numbers, for which zeros are values.
            let mut stat: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: a descriptor, or what is refused; a place for the result.
            if fd < 0 || unsafe { libc::fstat(fd, &raw mut stat) } != 0 || stat.st_size == 0 {
                return CUDA_ERROR_INVALID_VALUE;
            }
            // SAFETY: made just now, and of nobody else.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            let number = state.number() as u64;
            state.handles.insert(number, Block::of(fd, stat.st_size as usize, device));
            // SAFETY: a place for the result, by the contract.
            unsafe { *handle = number };
            CUDA_SUCCESS
        }))
    }
}
