//! Memory of devices, and copies between it and the memory of the host.
//!
//! The driver's library (`libcuda.so.1`) is opened at run time: nothing of it is needed to build
//! this, and a program without one gets an error that says so. The crate knows no network.
//!
//! ```no_run
//! use device::Driver;
//!
//! let driver = Driver::cuda()?;
//! let gpu = driver.device(0)?;
//! let memory = gpu.alloc(1 << 20)?;
//! memory.write_at(0, b"some bytes")?;
//! let mut bytes = [0; 4];
//! memory.read_at(5, &mut bytes)?;
//! assert_eq!(&bytes, b"byte");
//! # Ok::<(), device::DeviceError>(())
//! ```
//!
//! Drivers of AMD's and Intel's devices (features `hip` and `level-zero`) are used through the same
//! types. They are tested against drivers without devices, and were never run on hardware.
//!
//! - Reading order: `raw.rs` (the table of functions) · `error.rs` · `driver.rs` (library, driver,
//!   devices, and whose context is current) · `memory.rs` ([`DeviceMemory`], which the host cannot
//!   read) · `pinned.rs` (memory of the host that devices copy at full speed) · `copies.rs`
//!   (streams, and copies that are asked whether they are over) · `level_zero.rs` (another driver
//!   behind the same table) · `fake/` (a driver for tests).
//!
//! # Threads and forks
//!
//! The current context belongs to the OS thread, and is that of others before and after each call:
//! every function here pushes the context of its device and pops it again. A process that was
//! forked off cannot use the driver: calls fail with [`DeviceError::Forked`], and destructors do
//! nothing there.

mod copies;
mod driver;
mod error;
#[cfg(feature = "fake")]
#[doc(hidden)]
pub mod fake;
#[cfg(feature = "level-zero")]
#[doc(hidden)]
pub mod level_zero;
mod memory;
mod pinned;
#[doc(hidden)]
pub mod raw;

pub use self::{
    copies::{Copies, DeviceCopy},
    driver::{Device, DeviceInfo, Driver, DriverKind},
    error::DeviceError,
    memory::DeviceMemory,
    pinned::Pinned,
};
