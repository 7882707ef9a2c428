//! A libfabric without devices, for the tests of what is above: Slingshot, whose adapters move
//! memory of GPUs, or not.

use ofi_sys::raw;

use crate::fake::{Call, Device, Fake};

/// A network of such adapters. What was done against libfabric's man pages, and what is still open,
/// is a panic when it is dropped.
#[derive(Debug)]
pub struct Fabric(Fake);

impl Fabric {
    /// The address that opens an endpoint there.
    pub const URI: &str = "ofi+cxi://cxi0";

    /// A network, whose provider moves memory of GPUs for those who ask for that, or lacks it.
    pub fn new(hmem: bool) -> Self {
        let fake = Fake::new(Device { hmem, ..Device::cxi() });
        fake.state().shuffles = true;
        fake.state().again_one_in = 5;
        Self(fake)
    }

    /// Runs `open` while this is the libfabric of the thread.
    pub fn with<T>(&self, open: impl FnOnce() -> T) -> T {
        self.0.with(|_library| open())
    }

    /// Adds memory of GPUs: `view` tells where the bytes at an address are.
    pub fn add_gpu(&self, view: impl Fn(u64, usize) -> Option<usize> + Send + 'static) {
        self.0.add_gpu(view);
    }

    /// Lets a registration be refused, when so many were not.
    pub fn refuse_registration(&self, after: usize) {
        self.0.refuse_after(after, Call::Register, raw::FI_EINVAL);
    }

    /// Lets the next transfer that reads fail after it was taken.
    pub fn fail_read(&self) {
        self.0.fail(Call::Read, libc::EIO as u32, 1);
    }

    /// Keeps completions back, or lets them go.
    pub fn hold(&self, holds: bool) {
        self.0.hold(holds);
    }

    /// Returns how many pieces of memory of GPUs were registered so far, and how many transfers
    /// were made.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.0.state();
        let of_gpus = state.registrations.iter().filter(|own| own.place.0 != raw::FI_HMEM_SYSTEM);
        (of_gpus.count(), state.accesses.len())
    }
}
