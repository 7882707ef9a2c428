//! The reasons why something of a device fails.

/// The reason why a driver, a device or a copy failed: what was asked, what the driver says, and
/// what to do.
///
/// ```
/// use device::{DeviceError, Driver};
///
/// match Driver::cuda() {
///     Ok(driver) => println!("{} devices", driver.devices()?.len()),
///     Err(DeviceError::NoLibrary { tried, .. }) => println!("no driver: {tried}"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), DeviceError>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The library of the driver could not be opened.
    #[error("the driver of {devices} cannot be opened (tried {tried}): {advice}")]
    NoLibrary {
        /// The devices that it is for.
        devices: &'static str,
        /// Each name with the message of the dynamic linker.
        tried: String,
        /// The advice: what to install, and the variable that names another library.
        advice: &'static str,
    },
    /// The library lacks a function.
    #[error("{library} lacks {symbol}: {reason}; a driver of {needed} or later is needed")]
    Lacks {
        /// The library.
        library: String,
        /// The symbol that it lacks.
        symbol: &'static str,
        /// The message of the dynamic linker.
        reason: String,
        /// The oldest version of its interface that will do.
        needed: &'static str,
    },
    /// A call failed.
    #[error("{function} failed on {place}: {name} ({code}), {text}{advice}")]
    Call {
        /// The function of the driver.
        function: &'static str,
        /// Library, version of its interface, and device.
        place: String,
        /// The name of the error.
        name: String,
        /// The number of the error.
        code: i32,
        /// The driver's explanation.
        text: String,
        /// The advice, after a semicolon; often nothing.
        advice: &'static str,
    },
    /// There is no device of that number or PCI address.
    #[error("{library} has no device {wanted}; it has {there}")]
    NoDevice {
        /// The library.
        library: String,
        /// The number or address that was asked for.
        wanted: String,
        /// The devices that there are.
        there: String,
    },
    /// The address is not in memory of a device.
    #[error(
        "{address:#x} is no memory of a device, or has less than {bytes} bytes there ({found}); \
         memory of the host needs no device, and managed memory is not moved"
    )]
    NotDeviceMemory {
        /// The address.
        address: u64,
        /// Bytes that were said to be there.
        bytes: usize,
        /// The driver's word on it.
        found: String,
    },
    /// The bytes leave the memory.
    #[error("{len} bytes at offset {offset} leave the device memory of {bytes} bytes")]
    Range {
        /// First byte.
        offset: usize,
        /// Bytes.
        len: usize,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// Other memory has no handle that could be given to another process.
    #[error(
        "this memory has no handle for other processes: allocate it with Device::alloc_exportable"
    )]
    NotExportable,
    /// This process was forked off.
    #[error(
        "this process was forked off: the driver and its memory belong to the process that forked; \
         start it anew (exec) to use devices"
    )]
    Forked,
}

impl DeviceError {
    /// Returns the number of the driver's error, of a call that failed.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Call { code, .. } => Some(*code),
            _ => None,
        }
    }
}
