//! The registration of a region below the transport.

/// A registration of a region with a library or device below the transport. For transports.
///
/// ```
/// # use na_core::{Access, Memory, RegionTable, memory::region::EndRegistration};
/// struct WithDevice;
/// impl EndRegistration for WithDevice {
///     fn end(self: Box<Self>) -> bool { true }
/// }
/// let memory = RegionTable::new().register(Memory::zeroed(8)?, Access::ReadOnly)?;
/// memory.region().hold_registration(Box::new(WithDevice));
/// assert!(memory.reclaim().is_ok(), "after its end");
/// # Ok::<(), na_core::Error>(())
/// ```
pub trait EndRegistration: Send {
    /// Ends it. `false`: it does not end, so that the memory may be accessed for as long as the
    /// process lives.
    fn end(self: Box<Self>) -> bool;
}

/// The registration of a region.
#[derive(Default)]
pub(super) struct Registration {
    pub(super) revoked: bool,
    pub(super) held: Option<Box<dyn EndRegistration>>,
}
