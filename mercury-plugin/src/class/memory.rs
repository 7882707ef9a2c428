//! Memory of programs, and of their peers.

use std::ffi::c_ulong;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};

use na::{Access, Endpoint, LocalMem, Memory, RawSegment, RemoteMem};

use crate::c::abi::NaMem;
use crate::c::status::Status;

/// A memory handle that a program has, and frees.
#[derive(Debug)]
pub(crate) struct MemHandle(pub(crate) Kind);

/// A handle for a program, which frees it.
pub(crate) fn lend(kind: Kind) -> *mut NaMem {
    Box::into_raw(Box::new(MemHandle(kind))).cast()
}

/// The handle that a program has.
///
/// # Safety
///
/// It is of [`lend`], and not freed while the result is used.
pub(crate) unsafe fn lent<'a>(handle: *mut NaMem) -> &'a MemHandle {
    // SAFETY: contract of this function.
    unsafe { &*handle.cast::<MemHandle>() }
}

/// The handle that a program frees.
///
/// # Safety
///
/// It is of [`lend`], and nobody uses it any more.
pub(crate) unsafe fn reclaim(handle: *mut NaMem) -> Box<MemHandle> {
    // SAFETY: contract of this function.
    unsafe { Box::from_raw(handle.cast::<MemHandle>()) }
}

/// The owner of the memory.
#[derive(Debug)]
pub(crate) enum Kind {
    Own(OwnMem),
    Peers(RemoteMem),
}

/// Memory of the program.
pub(crate) struct OwnMem {
    segments: Box<[RawSegment]>,
    access: Access,
    lending: Mutex<Lending>,
}

/// The peers' part in memory of the program.
#[derive(Default)]
pub(crate) enum Lending {
    /// None.
    #[default]
    No,
    /// It is registered.
    Yes(LocalMem),
    /// It was revoked, and a peer still used it: to hear of the end of that.
    Ending(Receiver<()>),
}

// SAFETY: the segments are pointers that nobody follows here; the program says what other threads
// may do with its memory.
unsafe impl Send for OwnMem {}
// SAFETY: as for `Send`.
unsafe impl Sync for OwnMem {}

impl std::fmt::Debug for OwnMem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OwnMem({} segments, {:?})", self.segments.len(), self.access)
    }
}

impl OwnMem {
    /// Memory of the program with Mercury's flags for what peers may do.
    pub(crate) fn new(
        segments: impl Iterator<Item = RawSegment>,
        flags: c_ulong,
    ) -> Result<Self, Status> {
        let access = u8::try_from(flags).ok().and_then(Access::from_bits);
        let access = access.ok_or(Status::InvalidArg)?;
        Ok(Self { segments: segments.collect(), access, lending: Mutex::default() })
    }

    /// Lets peers use it.
    ///
    /// # Safety
    ///
    /// Until [`Class::take_back`](super::Class::take_back) has returned without an error, the
    /// memory is there, and nobody in this process holds a Rust reference to it.
    pub(crate) unsafe fn register(&self, endpoint: &dyn Endpoint) -> Result<(), Status> {
        let mut lending = self.lending();
        match *lending {
            Lending::No => {}
            Lending::Yes(_) => return Ok(()),
            Lending::Ending(_) => return Err(Status::Busy),
        }
        // SAFETY: contract of this function. Bytes of a C program are initialised as far as it
        // cares, and are only ever copied.
        let memory = unsafe { Memory::from_raw(self.segments.to_vec(), ()) };
        match endpoint.register(memory, self.access) {
            Ok(memory) => {
                *lending = Lending::Yes(memory);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, "memory cannot be registered");
                Err(Status::from(&error))
            }
        }
    }

    /// The registered memory.
    pub(crate) fn get(&self) -> Option<LocalMem> {
        match &*self.lending() {
            Lending::Yes(memory) => Some(memory.clone()),
            Lending::No | Lending::Ending(_) => None,
        }
    }

    /// Takes the peers' part out, for whoever ends it, or puts what is left of it back.
    pub(crate) fn replace(&self, lending: Lending) -> Lending {
        std::mem::replace(&mut *self.lending(), lending)
    }

    fn lending(&self) -> std::sync::MutexGuard<'_, Lending> {
        self.lending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemHandle {
    /// The local side of a transfer.
    pub(crate) fn local(&self) -> Result<LocalMem, Status> {
        match &self.0 {
            Kind::Own(own) => own.get().ok_or(Status::InvalidArg),
            Kind::Peers(_) => Err(Status::InvalidArg),
        }
    }

    /// The remote side of a transfer.
    pub(crate) fn remote(&self, endpoint: &dyn Endpoint) -> Result<RemoteMem, Status> {
        match &self.0 {
            Kind::Peers(remote) => Ok(remote.clone()),
            Kind::Own(own) => {
                let own = own.get().ok_or(Status::InvalidArg)?;
                let described = endpoint.mem_from_bytes(&endpoint.mem_to_bytes(&own));
                described.map_err(|error| Status::from(&error))
            }
        }
    }
}
