//! The library, the driver and its devices; and whose context is current.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use libloading::os::unix::Library as Opened;

use crate::DeviceError;
use crate::raw::{
    self, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, CUDA_ERROR_ECC_UNCORRECTABLE,
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_SUCCESS, CUcontext, CUdevice, CUresult, Functions,
    MissingSymbol,
};

/// The interface of a driver.
///
/// ```
/// use device::{Driver, DriverKind};
///
/// if let Ok(driver) = Driver::cuda() {
///     assert_eq!(driver.kind(), DriverKind::Cuda);
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverKind {
    /// CUDA's, of NVIDIA.
    Cuda,
    /// HIP's, of AMD.
    Hip,
    /// oneAPI Level Zero, of Intel.
    LevelZero,
}

/// The facts in which the libraries of drivers differ.
struct Library {
    interface: &'static str,
    /// Looked for in this order.
    names: &'static [&'static str],
    /// The variable that names another one.
    variable: &'static str,
    devices: &'static str,
    advice: &'static str,
    needed: &'static str,
}

impl DriverKind {
    fn library(self) -> Library {
        match self {
            Self::Cuda => Library {
                interface: "CUDA",
                names: &["libcuda.so.1", "libcuda.so"],
                variable: "MARGO_LIBCUDA",
                devices: "NVIDIA devices",
                advice: "install it (Debian: libcuda1; in a container, start that with --gpus), or \
                         name the library in MARGO_LIBCUDA",
                needed: "CUDA 11.2",
            },
            Self::Hip => Library {
                interface: "HIP",
                names: &["libamdhip64.so.7", "libamdhip64.so.6"],
                variable: "MARGO_LIBHIP",
                devices: "AMD devices",
                advice: "install ROCm 6 or 7 (Debian: libamdhip64-6; in a container, give it \
                         /dev/kfd and /dev/dri), or name the library in MARGO_LIBHIP",
                needed: "HIP 6.0",
            },
            Self::LevelZero => Library {
                interface: "Level Zero",
                names: &["libze_loader.so.1"],
                variable: "MARGO_LIBZE",
                devices: "Intel devices",
                advice: "install loader and driver (Debian: libze1, intel-level-zero-gpu; in a \
                         container, give it /dev/dri), or name the library in MARGO_LIBZE",
                needed: "Level Zero 1.6",
            },
        }
    }

    /// The major and minor number in a version as the driver tells it.
    fn version(self, version: c_int) -> (u32, u32) {
        let version = version.max(0).cast_unsigned();
        match self {
            Self::Cuda => (version / 1000, version % 1000 / 10),
            Self::Hip => (version / 10_000_000, version / 100_000 % 100),
            Self::LevelZero => (version >> 16, version & 0xffff),
        }
    }
}

/// The driver of the devices of this machine. Cheap to clone.
///
/// ```
/// use device::Driver;
///
/// match Driver::cuda() {
///     Ok(driver) => {
///         for device in driver.devices()? {
///             println!("{device}");
///         }
///     }
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), device::DeviceError>(())
/// ```
#[derive(Clone)]
pub struct Driver(Arc<DriverState>);

struct DriverState {
    functions: Arc<dyn Functions>,
    kind: DriverKind,
    /// The name under which the library was found.
    file: String,
    /// As the driver tells it; 0: not yet.
    version: c_int,
    /// The process that it was initialised in.
    process: u32,
}

impl Driver {
    /// Returns the driver of NVIDIA devices: of the library that the environment variable
    /// `MARGO_LIBCUDA` names, else of the installed one. It is opened and initialised by the first
    /// call, which takes some hundred milliseconds, and never closed.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoLibrary`], [`DeviceError::Lacks`]; [`DeviceError::Call`] when the driver
    /// cannot be initialised, as where there is no device. The same at every call.
    pub fn cuda() -> Result<Self, DeviceError> {
        static DRIVER: OnceLock<Result<Driver, DeviceError>> = OnceLock::new();
        DRIVER.get_or_init(|| Self::open(DriverKind::Cuda)).clone()
    }

    /// Returns the driver of AMD devices: of the library that `MARGO_LIBHIP` names, else of ROCm 6
    /// or 7. As [`cuda`](Self::cuda) otherwise. It was never run on a device.
    ///
    /// # Errors
    ///
    /// As of [`cuda`](Self::cuda).
    #[cfg(feature = "hip")]
    pub fn hip() -> Result<Self, DeviceError> {
        static DRIVER: OnceLock<Result<Driver, DeviceError>> = OnceLock::new();
        DRIVER.get_or_init(|| Self::open(DriverKind::Hip)).clone()
    }

    /// Returns the driver of Intel devices: of the loader that `MARGO_LIBZE` names, else of the
    /// installed one. As [`cuda`](Self::cuda) otherwise. It was never run on a device.
    ///
    /// # Errors
    ///
    /// As of [`cuda`](Self::cuda).
    #[cfg(feature = "level-zero")]
    pub fn level_zero() -> Result<Self, DeviceError> {
        static DRIVER: OnceLock<Result<Driver, DeviceError>> = OnceLock::new();
        DRIVER.get_or_init(|| Self::open(DriverKind::LevelZero)).clone()
    }

    /// Returns the drivers of this machine, or why one cannot be used: one for each kind that this
    /// build knows, NVIDIA's first.
    pub fn all() -> Vec<Result<Self, DeviceError>> {
        vec![
            Self::cuda(),
            #[cfg(feature = "hip")]
            Self::hip(),
            #[cfg(feature = "level-zero")]
            Self::level_zero(),
        ]
    }

    fn open(kind: DriverKind) -> Result<Self, DeviceError> {
        let Library { names, variable, .. } = kind.library();
        match std::env::var_os(variable) {
            Some(path) => Self::open_one_of(kind, &[&path.to_string_lossy()]),
            None => Self::open_one_of(kind, names),
        }
    }

    /// Opens and initialises the first of `names` that can be opened.
    fn open_one_of(kind: DriverKind, names: &[&str]) -> Result<Self, DeviceError> {
        let mut tried = Vec::new();
        for name in names {
            // SAFETY: runs the constructors of the driver's library and of what it is linked with,
            // which are made to be run in any process at any time.
            match unsafe { Opened::new(name) } {
                Ok(opened) => {
                    let opened: &'static Opened = Box::leak(Box::new(opened));
                    // SAFETY: the library has the name of the driver's, or was named by the user as
                    // such, and its functions keep their signatures under these symbols.
                    let table = unsafe { functions_of(kind, opened) }.map_err(|missing| {
                        let (library, symbol) = ((*name).to_owned(), missing.symbol);
                        let (reason, needed) = (missing.reason, kind.library().needed);
                        DeviceError::Lacks { library, symbol, reason, needed }
                    })?;
                    return Self::of(kind, table, name);
                }
                Err(error) => tried.push(format!("{name}: {error}")),
            }
        }
        let Library { devices, advice, .. } = kind.library();
        Err(DeviceError::NoLibrary { devices, tried: tried.join("; "), advice })
    }

    /// The driver behind a table of functions.
    pub(crate) fn of(
        kind: DriverKind,
        functions: Arc<dyn Functions>,
        library: &str,
    ) -> Result<Self, DeviceError> {
        let (file, process) = (library.to_owned(), std::process::id());
        let mut state = DriverState { functions, kind, file, version: 0, process };
        // For the errors of what follows; some drivers tell it later only.
        state.ask_version()?;
        // SAFETY: the only flags that there are.
        let init = unsafe { state.functions.cuInit(0) };
        state.check("cuInit", None, init)?;
        if state.version == 0 {
            state.ask_version()?;
        }
        Ok(Self(Arc::new(state)))
    }

    /// Returns whose interface it has.
    pub fn kind(&self) -> DriverKind {
        self.0.kind
    }

    /// Returns the name under which the library was found.
    pub fn file(&self) -> &str {
        &self.0.file
    }

    /// Returns the version of the interface that the driver knows: major and minor number.
    pub fn version(&self) -> (u32, u32) {
        self.0.kind.version(self.0.version)
    }

    /// The interface with its version, in words.
    pub fn interface(&self) -> String {
        let (major, minor) = self.version();
        format!("{} {major}.{minor}", self.0.kind.library().interface)
    }

    /// Returns what is known of each device.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Call`], [`DeviceError::Forked`].
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        self.0.must_be_ours()?;
        let mut count = 0;
        // SAFETY: a place for a number.
        let told = unsafe { self.0.functions.cuDeviceGetCount(&raw mut count) };
        self.0.check("cuDeviceGetCount", None, told)?;
        (0..count.max(0).cast_unsigned()).map(|index| self.info(index)).collect()
    }

    /// Opens the device of that number. The context is the *primary* one, which the CUDA runtime,
    /// and so PyTorch and CuPy, uses as well; it lives until the last user of it is gone.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoDevice`], [`DeviceError::Call`], [`DeviceError::Forked`].
    pub fn device(&self, index: u32) -> Result<Device, DeviceError> {
        let devices = self.devices()?;
        let Some(info) = devices.into_iter().find(|device| device.index == index) else {
            return Err(self.no_device(&index.to_string()));
        };
        let mut context: CUcontext = std::ptr::null_mut();
        let number = self.number(index)?;
        // SAFETY: a place for the context, and a device that exists.
        let told = unsafe { self.0.functions.cuDevicePrimaryCtxRetain(&raw mut context, number) };
        self.0.check("cuDevicePrimaryCtxRetain", Some(&info.place()), told)?;
        Ok(Device(Arc::new(DeviceState { driver: self.clone(), info, number, context })))
    }

    /// Opens the device that `which` names: by its number, or by its PCI address
    /// (`0000:3b:00.0`, as `nvidia-smi` and `lspci -D` print it, in any case).
    ///
    /// # Errors
    ///
    /// As of [`device`](Self::device).
    pub fn device_named(&self, which: &str) -> Result<Device, DeviceError> {
        if let Ok(index) = which.parse() {
            return self.device(index);
        }
        let wanted = short_pci(which);
        let found = self.devices()?.into_iter().find(|device| short_pci(&device.pci) == wanted);
        found.map_or_else(|| Err(self.no_device(which)), |device| self.device(device.index))
    }

    fn no_device(&self, wanted: &str) -> DeviceError {
        let there: Vec<_> = self.devices().unwrap_or_default();
        let there: Vec<_> =
            there.iter().map(|device| format!("{} ({})", device.index, device.pci)).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        let library = self.0.file.clone();
        DeviceError::NoDevice { library, wanted: wanted.to_owned(), there }
    }

    fn number(&self, index: u32) -> Result<CUdevice, DeviceError> {
        let mut number = 0;
        let index = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: a place for a number.
        let told = unsafe { self.0.functions.cuDeviceGet(&raw mut number, index) };
        self.0.check("cuDeviceGet", None, told)?;
        Ok(number)
    }

    fn info(&self, index: u32) -> Result<DeviceInfo, DeviceError> {
        let (number, functions) = (self.number(index)?, &self.0.functions);
        let place = format!("device {index}");
        let check = |function, told| self.0.check(function, Some(&place), told);
        let (mut name, mut pci) = ([0; 100], [0; 32]);
        let mut bytes = 0;
        // SAFETY: room for so many characters, with the end; a device that exists.
        let told = unsafe { functions.cuDeviceGetName(name.as_mut_ptr(), 100, number) };
        check("cuDeviceGetName", told)?;
        // SAFETY: as before.
        let told = unsafe { functions.cuDeviceGetPCIBusId(pci.as_mut_ptr(), 32, number) };
        check("cuDeviceGetPCIBusId", told)?;
        // SAFETY: a place for a number; a device that exists.
        let told = unsafe { functions.cuDeviceTotalMem(&raw mut bytes, number) };
        check("cuDeviceTotalMem", told)?;
        let (name, pci) = (text(&name), text(&pci).to_lowercase());
        let numa_node = numa_node(&pci);
        let orders_writes = self.orders_writes(number);
        Ok(DeviceInfo { index, name, pci, bytes: bytes as u64, numa_node, orders_writes })
    }

    /// See [`DeviceInfo::orders_writes`]. A driver that cannot say so is one without.
    fn orders_writes(&self, number: CUdevice) -> bool {
        let mut ordering = 0;
        let attribute = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
        // Attributes have other numbers elsewhere.
        self.0.kind == DriverKind::Cuda
            // SAFETY: a place for a number; a device that exists.
            && unsafe {
                self.0.functions.cuDeviceGetAttribute(&raw mut ordering, attribute, number)
            } == CUDA_SUCCESS
            && ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({}, {})", self.0.file, self.interface())
    }
}

/// The characters before the end.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A PCI address without leading zeros of its domain, which tools print in four or eight digits.
fn short_pci(address: &str) -> String {
    let address = address.to_lowercase();
    match address.matches(':').count() {
        2 => address.trim_start_matches('0').to_owned(),
        _ => format!(":{address}"),
    }
}

fn numa_node(pci: &str) -> Option<u32> {
    let node = std::fs::read_to_string(format!("/sys/bus/pci/devices/{pci}/numa_node")).ok()?;
    // -1 where there is one node only.
    node.trim().parse().ok()
}

/// The functions of that kind of driver in a library.
///
/// # Safety
///
/// The library is that driver's.
unsafe fn functions_of(
    kind: DriverKind,
    opened: &'static Opened,
) -> Result<Arc<dyn Functions>, MissingSymbol> {
    match kind {
        #[cfg(feature = "level-zero")]
        DriverKind::LevelZero => {
            // SAFETY: the caller's.
            let table = unsafe { crate::level_zero::ZeLibrary::of(opened, false) }?;
            Ok(Arc::new(crate::level_zero::LevelZero::new(Arc::new(table))))
        }
        _ => {
            // SAFETY: the caller's.
            let table = unsafe { raw::Library::of(opened, kind == DriverKind::Hip) }?;
            Ok(Arc::new(table))
        }
    }
}

impl DriverState {
    fn ask_version(&mut self) -> Result<(), DeviceError> {
        let mut version = 0;
        // SAFETY: a place for a number; may be called before all else.
        let told = unsafe { self.functions.cuDriverGetVersion(&raw mut version) };
        self.check("cuDriverGetVersion", None, told)?;
        self.version = version;
        Ok(())
    }

    fn must_be_ours(&self) -> Result<(), DeviceError> {
        if self.is_forked() { Err(DeviceError::Forked) } else { Ok(()) }
    }

    fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    fn check(
        &self,
        function: &'static str,
        place: Option<&str>,
        code: CUresult,
    ) -> Result<(), DeviceError> {
        if code == CUDA_SUCCESS {
            return Ok(());
        }
        let (major, minor) = self.kind.version(self.version);
        let version = match self.version {
            0 => String::new(),
            _ => format!(" ({} {major}.{minor})", self.kind.library().interface),
        };
        let library = &self.file;
        let place = place.map_or(String::new(), |place| format!("{place} of "));
        let told = |ask: &dyn Fn(*mut *const c_char) -> CUresult| {
            let mut text = std::ptr::null();
            if ask(&raw mut text) != CUDA_SUCCESS || text.is_null() {
                return "the driver has no text for it".to_owned();
            }
            // SAFETY: a string of the driver's tables, with an end.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        // SAFETY: a place for a pointer; any number is allowed.
        let name = told(&|to| unsafe { self.functions.cuGetErrorName(code, to) });
        // SAFETY: as before.
        let text = told(&|to| unsafe { self.functions.cuGetErrorString(code, to) });
        let advice = match code {
            CUDA_ERROR_OUT_OF_MEMORY => "; free memory of the device, or ask for less",
            CUDA_ERROR_NO_DEVICE => {
                "; no device is visible: see nvidia-smi, CUDA_VISIBLE_DEVICES, and in a container \
                 its devices"
            }
            CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
                "; library and kernel module are of different versions: restart after the update"
            }
            CUDA_ERROR_ILLEGAL_ADDRESS | CUDA_ERROR_ECC_UNCORRECTABLE => {
                "; the context of the device is lost: end this process and start it anew"
            }
            _ => "",
        };
        let place = format!("{place}{library}{version}");
        Err(DeviceError::Call { function, place, name, code, text, advice })
    }
}

/// The facts about a device.
///
/// ```
/// # fn main() -> Result<(), device::DeviceError> {
/// # let Ok(driver) = device::Driver::cuda() else { return Ok(()) };
/// for device in driver.devices()? {
///     println!("{}: {} MiB, at {}", device.index, device.bytes >> 20, device.pci);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Number of the device, as this process sees it (`CUDA_VISIBLE_DEVICES`).
    pub index: u32,
    /// Name of the model.
    pub name: String,
    /// PCI address, in small letters.
    pub pci: String,
    /// Bytes of its memory.
    pub bytes: u64,
    /// The NUMA node that it is next to, if the system tells.
    pub numa_node: Option<u32>,
    /// The order in which adapters write its memory is kept: kernels see without a flush what the
    /// host knows to be written. Only memory of such a device is handed to a fabric.
    pub orders_writes: bool,
}

impl DeviceInfo {
    fn place(&self) -> String {
        format!("device {} ({}, {})", self.index, self.name, self.pci)
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, name, pci, bytes, numa_node, .. } = self;
        write!(f, "device {index}: {name} at {pci}, {} MiB", bytes >> 20)?;
        numa_node.map_or(Ok(()), |node| write!(f, ", NUMA node {node}"))
    }
}

/// An open device: its primary context is kept until this and all memory, streams and pinned
/// memory made of it are gone. Cheap to clone.
///
/// ```
/// # fn main() -> Result<(), device::DeviceError> {
/// # let Ok(driver) = device::Driver::cuda() else { return Ok(()) };
/// let gpu = driver.device(0)?;
/// assert_eq!(gpu.info().index, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device(Arc<DeviceState>);

struct DeviceState {
    driver: Driver,
    info: DeviceInfo,
    number: CUdevice,
    context: CUcontext,
}

// SAFETY: a context is a handle, which CUDA lets any thread use; here it is only pushed and popped.
unsafe impl Send for DeviceState {}
// SAFETY: as for `Send`.
unsafe impl Sync for DeviceState {}

impl Device {
    /// Returns what is known of it.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Returns the driver.
    pub fn driver(&self) -> &Driver {
        &self.0.driver
    }

    /// Makes its context the current one of this thread until the result is dropped.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        let state = &self.0.driver.0;
        state.must_be_ours()?;
        // SAFETY: the context is retained while `self` exists.
        let told = unsafe { state.functions.cuCtxPushCurrent(self.0.context) };
        self.check("cuCtxPushCurrent", told)?;
        Ok(Entered { device: self, _stays: PhantomData })
    }

    /// The context, which lives as long as `self`.
    pub(crate) fn context(&self) -> CUcontext {
        self.0.context
    }

    pub(crate) fn number(&self) -> CUdevice {
        self.0.number
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.0.driver.0.is_forked()
    }

    pub(crate) fn check(&self, function: &'static str, code: CUresult) -> Result<(), DeviceError> {
        // The place is made up for an error only.
        if code == CUDA_SUCCESS {
            return Ok(());
        }
        self.0.driver.0.check(function, Some(&self.0.info.place()), code)
    }
}

/// Two are equal if they are the same device of the same driver.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        let (one, two) = (&self.0, &other.0);
        Arc::ptr_eq(&one.driver.0, &two.driver.0) && one.info.index == two.info.index
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.0.info)
    }
}

impl Drop for DeviceState {
    fn drop(&mut self) {
        if !self.driver.0.is_forked() {
            // SAFETY: retained once when this was made; nothing of the context is used any more.
            let _ = unsafe { self.driver.0.functions.cuDevicePrimaryCtxRelease(self.number) };
        }
    }
}

/// The context of a device while it is current. Short: no ULT may be switched meanwhile.
pub(crate) struct Entered<'a> {
    device: &'a Device,
    /// The current context is that of this thread.
    _stays: PhantomData<*mut ()>,
}

impl Entered<'_> {
    pub(crate) fn functions(&self) -> &dyn Functions {
        &*self.device.0.driver.0.functions
    }

    pub(crate) fn check(&self, function: &'static str, code: CUresult) -> Result<(), DeviceError> {
        self.device.check(function, code)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped: CUcontext = std::ptr::null_mut();
        // SAFETY: a place for a context. What is popped is what `enter` has pushed in this thread,
        // as all others push and pop in pairs as well.
        let _ = unsafe { self.functions().cuCtxPopCurrent(&raw mut popped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_told_with_what_was_tried_and_what_to_do() {
        let error = Driver::open_one_of(DriverKind::Cuda, &["libno-such-driver.so.9"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("libno-such-driver.so.9: "), "{error}");
        assert!(error.contains("MARGO_LIBCUDA") && error.contains("install"), "{error}");
    }

    #[test]
    fn another_library_is_told_apart() {
        let error = Driver::open_one_of(DriverKind::Cuda, &["libc.so.6"]).unwrap_err();
        assert!(matches!(error, DeviceError::Lacks { symbol: "cuInit", .. }), "{error}");
        let error = Driver::open_one_of(DriverKind::Hip, &["libc.so.6"]).unwrap_err();
        assert!(matches!(error, DeviceError::Lacks { symbol: "hipInit", .. }), "{error}");
        assert!(error.to_string().contains("HIP 6.0"), "{error}");
        let error = Driver::open_one_of(DriverKind::LevelZero, &["libc.so.6"]).unwrap_err();
        assert!(matches!(error, DeviceError::Lacks { symbol: "zeInit", .. }), "{error}");
    }

    #[test]
    fn versions_are_read_as_each_driver_tells_them() {
        assert_eq!(DriverKind::Cuda.version(12040), (12, 4));
        assert_eq!(DriverKind::Hip.version(60_342_134), (6, 3));
        assert_eq!(DriverKind::LevelZero.version(0x1_0009), (1, 9));
    }

    #[test]
    fn pci_addresses_are_the_same_in_either_form() {
        for (one, two) in [("00000000:3B:00.0", "0000:3b:00.0"), ("3b:00.0", "0000:3b:00.0")] {
            assert_eq!(short_pci(one), short_pci(two));
        }
        assert_ne!(short_pci("0001:3b:00.0"), short_pci("0000:3b:00.0"));
    }
}
