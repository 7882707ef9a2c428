//! Copies between host and device, which are asked whether they are over.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::raw::{
    CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING, CUDA_ERROR_NOT_READY, CUdeviceptr, CUevent,
    CUresult, CUstream, Functions,
};
use crate::{Device, DeviceError, DeviceMemory, DriverKind};

/// Streams of our own on one device, for copies. Cheap to clone.
///
/// Copies of different streams run side by side and end in any order. They do not wait for the
/// program's streams, nor these for them.
///
/// ```
/// # fn main() -> Result<(), device::DeviceError> {
/// # let Ok(driver) = device::Driver::cuda() else { return Ok(()) };
/// let gpu = driver.device(0)?;
/// let (copies, memory) = (device::Copies::new(&gpu, 2)?, gpu.alloc(4096)?);
/// let mut bytes = vec![0_u8; 4096];
/// // SAFETY: the bytes stay where they are and are not used until the copy is over.
/// let mut copy = unsafe { copies.start_to_host(&memory, 0, bytes.as_mut_ptr(), 4096)? };
/// while !copy.is_over()? {
///     std::thread::yield_now(); // or something useful
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Copies(Arc<Streams>);

struct Streams {
    device: Device,
    streams: Box<[CUstream]>,
    /// The stream of the next copy.
    next: AtomicUsize,
    /// Events that no copy uses.
    events: Mutex<Vec<CUevent>>,
}

// SAFETY: streams and events are handles, which CUDA lets any thread use while their context is
// current there.
unsafe impl Send for Streams {}
// SAFETY: as for `Send`.
unsafe impl Sync for Streams {}

impl Copies {
    /// Makes `streams` streams, at least one.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Call`], [`DeviceError::Forked`].
    pub fn new(device: &Device, streams: usize) -> Result<Self, DeviceError> {
        let entered = device.enter()?;
        let (next, events) = (AtomicUsize::new(0), Mutex::default());
        let mut made = Streams { device: device.clone(), streams: Box::default(), next, events };
        let mut all = Vec::new();
        let mut result = Ok(());
        while all.len() < streams.max(1) && result.is_ok() {
            let mut stream: CUstream = std::ptr::null_mut();
            // SAFETY: a place for the stream; a flag that there is.
            let told = unsafe {
                entered.functions().cuStreamCreate(&raw mut stream, CU_STREAM_NON_BLOCKING)
            };
            result = entered.check("cuStreamCreate", told);
            all.extend(result.is_ok().then_some(stream));
        }
        // Those that were made go with it.
        made.streams = all.into();
        result.map(|()| Self(Arc::new(made)))
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Starts to copy `len` bytes of `from`, from `offset` on, to the host.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Range`], [`DeviceError::Call`], [`DeviceError::Forked`]; nothing copies.
    ///
    /// # Safety
    ///
    /// Until the copy is over, or dropped, the bytes at `to` are there, and nobody else uses them.
    pub unsafe fn start_to_host(
        &self,
        from: &DeviceMemory,
        offset: usize,
        to: *mut u8,
        len: usize,
    ) -> Result<DeviceCopy, DeviceError> {
        self.start("cuMemcpyDtoHAsync", (from, offset, len), |functions, at, stream| {
            // SAFETY: the bytes of the host by the caller's word; those of the device are within
            // memory that the copy keeps.
            unsafe { functions.cuMemcpyDtoHAsync(to.cast(), at, len, stream) }
        })
    }

    /// Starts to copy `len` bytes of the host to `to`, from `offset` on.
    ///
    /// # Errors
    ///
    /// As of [`start_to_host`](Self::start_to_host).
    ///
    /// # Safety
    ///
    /// Until the copy is over, or dropped, the bytes at `from` are there, and nobody writes them.
    pub unsafe fn start_to_device(
        &self,
        from: *const u8,
        to: &DeviceMemory,
        offset: usize,
        len: usize,
    ) -> Result<DeviceCopy, DeviceError> {
        self.start("cuMemcpyHtoDAsync", (to, offset, len), |functions, at, stream| {
            // SAFETY: as in `start_to_host`.
            unsafe { functions.cuMemcpyHtoDAsync(at, from.cast(), len, stream) }
        })
    }

    /// Starts to copy `len` bytes between two memories of this device, or of what is mapped there;
    /// one may be that of another device of the driver, with which the driver copies from one to
    /// the other where they reach each other, and else by way of the host.
    ///
    /// # Errors
    ///
    /// As of [`start_to_host`](Self::start_to_host).
    pub fn start_within(
        &self,
        (from, from_offset): (&DeviceMemory, usize),
        (to, to_offset): (&DeviceMemory, usize),
        len: usize,
    ) -> Result<DeviceCopy, DeviceError> {
        let source = from.at(from_offset, len)?;
        let (there, here) = (to.device(), from.device());
        let started = match there != here && there.driver().kind() == DriverKind::Cuda {
            false => {
                self.start("cuMemcpyDtoDAsync", (to, to_offset, len), |functions, at, stream| {
                    // SAFETY: both are within memory that the copy keeps.
                    unsafe { functions.cuMemcpyDtoDAsync(at, source, len, stream) }
                })
            }
            true => {
                self.start("cuMemcpyPeerAsync", (to, to_offset, len), |functions, at, stream| {
                    let (there, here) = (there.context(), here.context());
                    // SAFETY: as above, and the memory keeps its device, and so the context.
                    unsafe { functions.cuMemcpyPeerAsync(at, there, source, here, len, stream) }
                })
            }
        };
        let mut copy = started?;
        copy.source = Some(from.clone());
        Ok(copy)
    }

    fn start(
        &self,
        function: &'static str,
        (memory, offset, len): (&DeviceMemory, usize, usize),
        copy: impl FnOnce(&dyn Functions, CUdeviceptr, CUstream) -> CUresult,
    ) -> Result<DeviceCopy, DeviceError> {
        let at = memory.at(offset, len)?;
        let own = &self.0;
        let entered = own.device.enter()?;
        let functions = entered.functions();
        let event = own.event(functions)?;
        // Relaxed: any stream will do.
        let turn = own.next.fetch_add(1, Ordering::Relaxed);
        let stream = own.streams[turn % own.streams.len()];
        let mut copying =
            DeviceCopy { streams: own.clone(), event: None, memory: memory.clone(), source: None };
        if let Err(error) = entered.check(function, copy(functions, at, stream)) {
            own.free().push(event);
            return Err(error);
        }
        // SAFETY: stream and event are ours.
        let told = unsafe { functions.cuEventRecord(event, stream) };
        copying.event = Some(event);
        if let Err(error) = entered.check("cuEventRecord", told) {
            copying.event = None;
            // Without the event nothing tells when the copy is over but the stream.
            // SAFETY: the stream is ours. If this fails, the context is lost, and nothing copies.
            let _ = unsafe { functions.cuStreamSynchronize(stream) };
            own.free().push(event);
            return Err(error);
        }
        Ok(copying)
    }
}

impl DeviceMemory {
    /// Copies the bytes from `offset` to `out`, and blocks the thread until they are there. For
    /// little and rare data: it makes a stream each time, and `out` need not be pinned.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Range`], [`DeviceError::Call`], [`DeviceError::Forked`].
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let copies = Copies::new(self.device(), 1)?;
        // SAFETY: `out` is borrowed, and written to, until the copy is over: it is waited for here.
        let copy = unsafe { copies.start_to_host(self, offset, out.as_mut_ptr(), out.len())? };
        copy.wait()
    }

    /// Copies `bytes` to `offset`, as [`read_at`](Self::read_at) does the other way.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let copies = Copies::new(self.device(), 1)?;
        // SAFETY: `bytes` are borrowed until the copy is over: it is waited for here.
        let copy = unsafe { copies.start_to_device(bytes.as_ptr(), self, offset, bytes.len())? };
        copy.wait()
    }
}

impl Streams {
    fn free(&self) -> MutexGuard<'_, Vec<CUevent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn event(&self, functions: &dyn Functions) -> Result<CUevent, DeviceError> {
        if let Some(event) = self.free().pop() {
            return Ok(event);
        }
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: a place for the event; a flag that there is.
        let told = unsafe { functions.cuEventCreate(&raw mut event, CU_EVENT_DISABLE_TIMING) };
        self.device.check("cuEventCreate", told).map(|()| event)
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copies({} streams, {:?})", self.0.streams.len(), self.0.device)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let Ok(entered) = self.device.enter() else { return };
        for event in self.events.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: the event is ours, and no copy has it.
            let _ = unsafe { entered.functions().cuEventDestroy(event) };
        }
        for stream in &self.streams {
            // SAFETY: the stream is ours; copies hold `self`, so none is in flight.
            let _ = unsafe { entered.functions().cuStreamDestroy(*stream) };
        }
    }
}

/// A copy in flight. Dropped before its end, it blocks the thread until that: the device may not be
/// told to leave memory alone.
///
/// ```
/// # fn main() -> Result<(), device::DeviceError> {
/// # let Ok(driver) = device::Driver::cuda() else { return Ok(()) };
/// let gpu = driver.device(0)?;
/// let (one, two) = (gpu.alloc(4096)?, gpu.alloc(4096)?);
/// device::Copies::new(&gpu, 1)?.start_within((&one, 0), (&two, 0), 4096)?.wait()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a copy blocks the thread until it is over"]
pub struct DeviceCopy {
    streams: Arc<Streams>,
    /// Some until the copy is over.
    event: Option<CUevent>,
    memory: DeviceMemory,
    source: Option<DeviceMemory>,
}

// SAFETY: an event is a handle, which CUDA lets any thread use.
unsafe impl Send for DeviceCopy {}

impl DeviceCopy {
    /// Returns whether it is over. Never waits.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Call`]: it has failed, and is over. [`DeviceError::Forked`]: it is the other
    /// process's.
    pub fn is_over(&mut self) -> Result<bool, DeviceError> {
        let Some(event) = self.event else { return Ok(true) };
        let entered = self.streams.device.enter()?;
        // SAFETY: the event is ours.
        let told = unsafe { entered.functions().cuEventQuery(event) };
        if told == CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        self.event = None;
        self.streams.free().push(event);
        // An error of the context: nothing runs there any more.
        entered.check("cuEventQuery", told).map(|()| true)
    }

    /// Blocks the thread until it is over.
    ///
    /// # Errors
    ///
    /// As of [`is_over`](Self::is_over).
    pub fn wait(mut self) -> Result<(), DeviceError> {
        while !self.is_over()? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for DeviceCopy {
    fn drop(&mut self) {
        // In a process that was forked off nothing copies.
        while !self.streams.device.is_forked() && matches!(self.is_over(), Ok(false)) {
            std::thread::yield_now();
        }
    }
}

impl fmt::Debug for DeviceCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = (&self.memory, &self.source);
        f.debug_struct("DeviceCopy").field("memory", &memory).finish_non_exhaustive()
    }
}
