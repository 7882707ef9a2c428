//! Memory that peers may use: its owner meanwhile, and where it comes from.
//!
//! | memory | made by | how a peer of the same host and user copies it |
//! |---|---|---|
//! | `Vec<u8>` | anybody | through memory of the transport, or by the kernel |
//! | `Vec<Vec<u8>>` | anybody | the same, as if it were in one piece |
//! | [`SharedBuffer`] | `Instance::alloc` | itself, in one copy: it has the memory mapped |
//! | [`Memory`] | whoever answers for it | as a `Vec<u8>`: a mapped file, arrays of numbers |
//! | [`DeviceMemory`], several as one | `device::Device` | not: its owner does, through buffers |
//!
//! All go into `Instance::expose` and come back from [`Exposed::release`] (`releasing.rs`). For
//! peers of other hosts and users, and over tcp, there is no difference. While exposed, they can
//! also be the local side of our own transfers: a peer that owns the other side then writes or
//! reads them itself.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use device::DeviceMemory;
use hg::Bulk;
use na::{LocalMem, Memory, RawSegment, SharedBuffer, Terms};

use crate::memory::buffer::{LocalBulk, assert_may_wait, sealed::Registered};
use crate::memory::releasing::NetworkEnds;
use crate::{BulkError, Releasing};

/// Memory that [`Instance::expose`](crate::Instance::expose) takes: a `Vec<u8>`, several as one
/// (`Vec<Vec<u8>>`), a [`SharedBuffer`], a [`DeviceMemory`] or several as one, or any other memory
/// as a [`Memory`], such as a mapped file, an array of numbers, or memory that a library has
/// allocated. [`Memory::from_raw`], which makes a [`Memory`], is unsafe, because nothing checks
/// what its caller says.
///
/// Where it is dropped instead of [released](Exposed::release) while peers use it, the last of them
/// drops the owner, in progress: a destructor that waits there holds the instance up, and one that
/// panics ends it.
///
/// ```
/// use margo::na::{Memory, RawSegment};
/// use margo::{Access, Instance};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let instance = Instance::builder("na+sm://").start()?;
/// let mut field = vec![1.5_f64; 1000];
/// let segment = RawSegment { ptr: field.as_mut_ptr().cast(), len: size_of_val(&*field) };
/// // SAFETY: the bytes of the numbers, which the vector keeps where they are until it is handed
/// // back; nobody has a reference to them meanwhile, and any bytes are numbers.
/// let memory = unsafe { Memory::from_raw(vec![segment], field) };
/// let exposed = instance.expose(memory, Access::ReadWrite)?;
/// // `exposed.bulk()` goes into arguments; peers read and write the numbers.
/// let Ok(field) = exposed.release()?.into_owner::<Vec<f64>>() else { unreachable!() };
/// # assert_eq!(field[999], 1.5);
/// # instance.finalize_and_wait()?;
/// # Ok(())
/// # }
/// ```
pub trait Exposable: Any + Send + Sized + sealed::IntoMemory {}

impl Exposable for Vec<u8> {}
impl Exposable for Vec<Vec<u8>> {}
impl Exposable for SharedBuffer {}
impl Exposable for Memory {}
impl Exposable for DeviceMemory {}
impl Exposable for Vec<DeviceMemory> {}

mod sealed {
    use std::sync::Arc;

    use device::DeviceMemory;
    use na::{Memory, SharedBuffer};

    use crate::memory::device::DeviceSegments;

    pub trait IntoMemory {
        /// The memory with its owner, which is `self`.
        fn into_memory(self) -> Memory;

        /// The owner of memory that was made so. `None`: it was not.
        fn from_memory(memory: Memory) -> Option<Self>
        where
            Self: Sized + 'static,
        {
            memory.into_owner().ok()
        }

        /// The pieces, of memory of a device.
        fn of_device(&self) -> Option<&[DeviceMemory]> {
            None
        }
    }

    impl IntoMemory for DeviceMemory {
        fn into_memory(self) -> Memory {
            let segments = DeviceSegments::new(std::slice::from_ref(&self));
            Memory::elsewhere(segments.len(), Arc::new(segments), self)
        }

        fn of_device(&self) -> Option<&[DeviceMemory]> {
            Some(std::slice::from_ref(self))
        }
    }

    impl IntoMemory for Vec<DeviceMemory> {
        fn into_memory(self) -> Memory {
            let segments = DeviceSegments::new(&self);
            Memory::elsewhere(segments.len(), Arc::new(segments), self)
        }

        fn of_device(&self) -> Option<&[DeviceMemory]> {
            Some(self)
        }
    }

    impl IntoMemory for Memory {
        fn into_memory(self) -> Memory {
            self
        }

        fn from_memory(memory: Memory) -> Option<Self> {
            Some(memory)
        }
    }

    impl IntoMemory for Vec<u8> {
        fn into_memory(self) -> Memory {
            Memory::from_vec(self)
        }
    }

    impl IntoMemory for Vec<Vec<u8>> {
        fn into_memory(self) -> Memory {
            Memory::from_vecs(self)
        }
    }

    impl IntoMemory for SharedBuffer {
        fn into_memory(self) -> Memory {
            Memory::from_shared(self)
        }
    }
}

/// Memory that peers may use, with the vector or buffer that holds it. Our own transfers may use it
/// too, whatever peers are allowed, see [`LocalBulk`].
///
/// Dropping it takes the memory back too, without waiting: the owner is then freed when the last
/// transfer that had begun is over.
///
/// ```
/// use margo::{Access, Instance};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let exposed = instance.expose(b"hello".to_vec(), Access::ReadWrite)?;
/// // `exposed.bulk()` goes into the arguments of a call; then the peer pulls or pushes.
/// assert_eq!(exposed.bulk().len(), 5);
/// exposed.write_at(0, b"J")?;
/// assert_eq!(exposed.release()?, b"Jello");
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Exposed<B = Vec<u8>> {
    bulk: Bulk,
    memory: LocalMem,
    /// Not a count of the instance.
    ends: Weak<dyn NetworkEnds>,
    owner: std::marker::PhantomData<fn() -> B>,
}

impl<B: Exposable> Exposed<B> {
    pub(crate) fn new(bulk: Bulk, memory: LocalMem, ends: Weak<dyn NetworkEnds>) -> Self {
        Self { bulk, memory, ends, owner: std::marker::PhantomData }
    }

    /// Lets peers use it on these terms only. Before anybody has its handle.
    pub(crate) fn impose(&self, terms: Terms) {
        self.memory.impose(terms);
    }

    /// The handle to put into arguments.
    pub fn bulk(&self) -> &Bulk {
        &self.bulk
    }

    /// Copies the bytes from `offset` to `out`, while peers may use them: what a peer, or another
    /// thread, writes at the same time is seen in part, byte by byte.
    ///
    /// # Errors
    ///
    /// [`BulkError::LocalRange`], and for memory of a device [`BulkError::OfDevice`]; nothing was
    /// copied.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), BulkError> {
        let range = offset..offset.saturating_add(out.len());
        match self.memory.read_at(offset as u64, out) {
            true => Ok(()),
            false => Err(self.not_there(range)),
        }
    }

    /// Copies `bytes` to `offset`, while peers may use the memory: a peer that reads at the same
    /// time may get a part of them, and where two write the same bytes at the same time, each byte
    /// is that of one of them. Threads that are to see all or nothing need a lock of their own. Of
    /// small memory that peers may only read, they see the bytes as they were when the handle was
    /// sent ([`Instance::pull`](crate::Instance::pull)).
    ///
    /// # Errors
    ///
    /// [`BulkError::LocalRange`], and for memory of a device [`BulkError::OfDevice`]; nothing was
    /// copied.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), BulkError> {
        let range = offset..offset.saturating_add(bytes.len());
        match self.memory.write_at(offset as u64, bytes) {
            true => Ok(()),
            false => Err(self.not_there(range)),
        }
    }

    /// The place of the memory: one segment for each vector, none for memory of a device. Without a
    /// copy, and so no slices: peers may use the bytes at any time. The pointers are valid until
    /// this value is dropped or released; a caller that reads or writes through them needs other
    /// means to know that no peer does. [`BulkSegments`](crate::bulk_memory::BulkSegments) gives
    /// slices.
    ///
    /// Counterpart: `HG_Bulk_access`, `margo_bulk_get_segment_count`.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = *mut [u8]> + '_ {
        let raw =
            |segment: &RawSegment| std::ptr::slice_from_raw_parts_mut(segment.ptr, segment.len);
        self.memory.segments().iter().map(raw)
    }

    fn not_there(&self, range: Range<usize>) -> BulkError {
        if self.memory.elsewhere().is_some() {
            return BulkError::OfDevice;
        }
        let len = usize::try_from(self.memory.len()).unwrap_or(usize::MAX);
        BulkError::LocalRange { start: range.start, end: range.end, len }
    }

    /// Takes the memory back: peers are refused from now on. Waits for the transfers that have
    /// begun; a peer that dies ends its own, and one that is stopped holds this up for as long, or
    /// until the instance ends. So [`release_timed`](Self::release_timed) is the better choice
    /// where peers are not known well.
    ///
    /// In a child process that was forked off, this ends at once, with the child's copy of the
    /// memory, which no peer uses; that of the parent stays as it is. A buffer of
    /// [`Instance::alloc`](crate::Instance::alloc) is the same memory in both, until
    /// [`SharedBuffer::as_mut_slice`] gives
    /// the child its own. A child may have no copy of memory that a device accesses (InfiniBand,
    /// for one): it must not touch that memory.
    ///
    /// # Errors
    ///
    /// The memory on its way back, if the instance ends while a peer that is stopped in the midst
    /// of a copy has it, or a fabric could not end its registration. Dropped, it is freed when no
    /// peer can use it any more, in the latter case never.
    ///
    /// # Panics
    ///
    /// In a tasklet, which cannot wait, if there are such transfers.
    ///
    /// Counterpart: `margo_bulk_free`.
    pub fn release(self) -> Result<B, Releasing<B>> {
        let releasing = Releasing::begin(self.memory, self.ends);
        assert_may_wait(releasing.is_over());
        releasing.wait()
    }

    /// As [`release`](Self::release), waiting for at most `limit` from now. With a limit of zero it
    /// looks, and does not wait.
    ///
    /// # Errors
    ///
    /// The memory on its way back, to be waited for later, if transfers that have begun are not
    /// over in time, or not when the instance ends; in a tasklet, which cannot wait, at once. Peers
    /// are refused in any case.
    pub fn release_timed(self, limit: Duration) -> Result<B, Releasing<B>> {
        Releasing::begin(self.memory, self.ends).wait_timed(limit)
    }
}

/// The value of which the memory was made.
pub(crate) fn owner_of<B: Exposable>(memory: Memory) -> B {
    B::from_memory(memory).expect("whoever asks made the memory of a value of this type")
}

impl<B: Exposable> LocalBulk for Exposed<B> {}
impl<B: Exposable> LocalBulk for &Exposed<B> {}
impl<B: Exposable> LocalBulk for Arc<Exposed<B>> {}

impl<B> Registered for Exposed<B> {
    fn memory(&self) -> &LocalMem {
        &self.memory
    }
}

impl<B> Registered for &Exposed<B> {
    fn memory(&self) -> &LocalMem {
        &self.memory
    }
}

/// So that several requests can have it at a time: the stripes of one buffer, say, each of another
/// server ([`BulkTransfer::start_pull`](crate::BulkTransfer::start_pull)). Where two of them write
/// the same bytes, any mix of both may be there afterwards.
impl<B> Registered for Arc<Exposed<B>> {
    fn memory(&self) -> &LocalMem {
        &self.memory
    }
}
