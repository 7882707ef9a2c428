//! Memory that is lent: to peers for as long as its owner likes, or for a closure; and buffers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use hg::{Bulk, HgError, MemoryAttr};
use na::{Access, AllocOptions, LocalMem, Memory, RawSegment, SharedBuffer, Terms};
use ult::Eventual;

use crate::InstanceMemory;
use crate::bulk::staged;
use crate::memory::buffer::{LOST, comes_back, revoke};
use crate::memory::device::{attr_of, register};
use crate::support::log::log;
use crate::{
    BulkBuffer, BulkError, BulkPool, BulkPoolError, BulkPoolSpec, BulkSegments, Exposable, Exposed,
    Instance, RegisterError,
};

impl Instance {
    /// Allocates `bytes` bytes, all zero, for [`expose`](Self::expose): memory that processes of
    /// this host and user map once and then copy themselves, without the kernel and without a copy
    /// in between (transfers below 16 KiB go other ways, which are quicker for them). Fill it
    /// before with [`SharedBuffer::as_mut_slice`], or while it is exposed with
    /// [`Exposed::write_at`].
    ///
    /// The memory is in a memfd of its own, so make few and large buffers: each costs a descriptor
    /// while it lives, and whole pages; a peer maps up to 64 of them at a time, and data of others
    /// takes the way of other memory. By default huge pages are asked for, which the kernel grants
    /// if `/sys/kernel/mm/transparent_hugepage/shmem_enabled` is `advise` or more, and the pages
    /// come from the NUMA node of the calling thread; [`AllocOptions`] changes both. All pages are
    /// there when this returns.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use margo::{Access, bulk_memory::AllocOptions, Instance};
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// let mut buffer = instance.alloc(1 << 20, &AllocOptions::default())?;
    /// buffer.as_mut_slice()?[..5].copy_from_slice(b"hello");
    /// let exposed = instance.expose(buffer, Access::ReadOnly)?;
    /// // `exposed.bulk()` goes into arguments; peers pull from it.
    /// let buffer = exposed.release()?;
    /// # assert_eq!(buffer.len(), 1 << 20);
    /// # instance.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BulkError::Alloc`] when `bytes` is zero, the system gives no memory or no descriptor, or
    /// the NUMA node does not exist.
    ///
    /// Counterpart: `NA_Mem_alloc`; `margo_bulk_create` without pointers.
    pub fn alloc(&self, bytes: usize, options: &AllocOptions) -> Result<SharedBuffer, BulkError> {
        SharedBuffer::new(bytes, options).map_err(|error| BulkError::Alloc(HgError::Na(error)))
    }

    /// Lets peers use `data` through the handle [`Exposed::bulk`], which is to be sent to them in
    /// arguments: a vector, several vectors as one, or a buffer of [`alloc`](Self::alloc), which
    /// peers of this host copy faster.
    ///
    /// Memory of a device (a GPU), which is a [`DeviceMemory`](device::DeviceMemory), moves through
    /// buffers of the host, unless the fabric below moves it by itself. An instance that does not
    /// listen can use it for its own transfers only, as peers ask the owner to move it.
    ///
    /// Several vectors are one range of bytes to peers, which neither see nor count the vectors;
    /// thousands cost about what one does.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use margo::{Access, Instance};
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// let rows = vec![vec![1; 1000], Vec::new(), vec![2; 24]];
    /// let exposed = instance.expose(rows, Access::ReadOnly)?;
    /// assert_eq!(exposed.bulk().len(), 1024);
    /// assert_eq!(exposed.release()?[2], [2; 24]);
    /// # instance.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BulkError::Register`]; also, with [`HgError::Forked`], in a child process that was forked
    /// off. For memory of a device also [`BulkError::Alloc`], when there is no pinned memory for
    /// it, and in a tasklet [`BulkError::Tasklet`].
    ///
    /// Counterpart: `margo_bulk_create`.
    pub fn expose<B: Exposable>(&self, data: B, access: Access) -> Result<Exposed<B>, BulkError> {
        if data.of_device().is_some() {
            return self.expose_device(data, access, None, false);
        }
        self.memory().expose_attr(data, access, MemoryAttr::default())
    }

    /// Not in the transport's table: see `memory/device.rs`. `asked`: the owner is to be asked for
    /// each transfer.
    fn expose_device<B: Exposable>(
        &self,
        data: B,
        access: Access,
        attr: Option<MemoryAttr>,
        asked: bool,
    ) -> Result<Exposed<B>, BulkError> {
        let refused = |what: String| BulkError::Register(HgError::Bulk(what));
        if ult::is_tasklet() {
            return Err(BulkError::Tasklet);
        }
        self.inner().may_start().map_err(BulkError::Register)?;
        let pieces = data.of_device().unwrap_or_default();
        let own = attr_of(pieces).map_err(refused)?;
        if let Some(attr) = attr.filter(|attr| *attr != own) {
            return Err(refused(format!("it is {own}, not {attr}")));
        }
        // A device that has no buffers is told now, and not to the peer.
        pieces.first().map(|first| self.staging(first.device())).transpose()?;
        let is_asked = match staged::owner::serve(self) {
            Ok(()) => true,
            Err(RegisterError::NotListening { .. }) => false,
            Err(error) => return Err(refused(error.to_string())),
        };
        let failed = |error| BulkError::Register(HgError::Na(error));
        let regions = &self.inner().devices.regions;
        let mut memory = regions.register(data.into_memory(), access).map_err(failed)?;
        let endpoint = self.inner().core.endpoint();
        let is_moved = !asked && register(&**endpoint, &memory);
        if !is_moved && !is_asked {
            // For transfers of our own alone: nobody can ask.
            let back = comes_back(&revoke(memory)).ok_or_else(|| refused(LOST.to_owned()))?;
            memory = regions.register_local(back, access).map_err(failed)?;
        }
        let bulk = self.inner().core.bulk_handle_attr(&memory, own);
        let bulk = bulk.map_err(BulkError::Register)?;
        Ok(Exposed::new(bulk, memory, Arc::downgrade(self.inner()) as _))
    }

    pub(crate) fn expose_scope<T>(
        &self,
        memory: Memory,
        access: Access,
        f: impl FnOnce(&Bulk) -> T,
    ) -> Result<T, BulkError> {
        if ult::is_tasklet() {
            return Err(BulkError::Tasklet);
        }
        let memory = self.register_memory(memory, access)?;
        let bulk = self.inner().core.bulk_handle(&memory);
        // Not in a destructor: one that runs because of a panic cannot suspend its ULT, and would
        // hold up the execution stream that has to end the transfers.
        let result = catch_unwind(AssertUnwindSafe(|| f(&bulk)));
        if comes_back(&revoke(memory)).is_none() {
            // It is borrowed: its owner goes on using it as soon as this returns, or unwinds.
            log!(self.inner().log, ERROR, "the caller of a scope waits for ever: {LOST}");
            Eventual::<()>::new().wait_ready_fully();
        }
        result.map_err(|panic| resume_unwind(panic))
    }

    pub(crate) fn register_memory(
        &self,
        memory: Memory,
        access: Access,
    ) -> Result<LocalMem, BulkError> {
        self.inner().may_start().map_err(BulkError::Register)?;
        self.inner()
            .core
            .endpoint()
            .register(memory, access)
            .map_err(|error| BulkError::Register(HgError::Na(error)))
    }
}

impl InstanceMemory<'_> {
    /// As [`expose`](crate::Instance::expose), of memory of that kind and device, which peers are
    /// told ([`Bulk::attr`]). Memory of the host can have the number of a device that it is near.
    ///
    /// # Errors
    ///
    /// [`BulkError::Register`], also where the memory is not of that kind: memory of a device is
    /// what a [`DeviceMemory`](device::DeviceMemory) describes. Other memory that is said to be is
    /// not shown to the transport.
    ///
    /// Counterpart: `margo_bulk_create_attr`.
    pub fn expose_attr<B: Exposable>(
        &self,
        data: B,
        access: Access,
        attr: MemoryAttr,
    ) -> Result<Exposed<B>, BulkError> {
        if data.of_device().is_some() {
            return self.instance.expose_device(data, access, Some(attr), false);
        }
        // Before the transport takes addresses of a device for those of this process.
        attr.check().map_err(BulkError::Register)?;
        let memory = self.instance.register_memory(data.into_memory(), access)?;
        let bulk = self.inner().core.bulk_handle_attr(&memory, attr);
        let bulk = bulk.map_err(BulkError::Register)?;
        Ok(Exposed::new(bulk, memory, Arc::downgrade(self.inner()) as _))
    }

    /// As [`expose`](crate::Instance::expose), on terms: who may use the memory, until when, and
    /// how often. The owner looks at them whenever a transfer begins, so the bytes never go along
    /// with the handle, and over `na+sm` no peer maps or copies them by itself. A peer that does
    /// not meet them is told what one with a wrong key is.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// use margo::bulk_memory::Terms;
    /// use margo::{Access, Instance};
    ///
    /// let instance = Instance::builder("na+sm://").start()?;
    /// let terms = Terms::new().until(Instant::now() + Duration::from_secs(10)).uses(1);
    /// let exposed = instance.memory().expose_on(vec![7; 1000], Access::ReadOnly, terms)?;
    /// // `exposed.bulk()` goes into arguments; whoever has it pulls once, within ten seconds.
    /// # drop(exposed);
    /// # instance.finalize_and_wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// One peer can be named ([`Terms::only_for`]): over `na+sm` a user, over `na+tcp` the
    /// principal that [`Handle::principal`](crate::Handle::principal) tells, such as a name in a
    /// certificate. A user may look into the memory of its own processes by other means, as the
    /// kernel allows: terms are for others.
    ///
    /// # Errors
    ///
    /// [`BulkError::Register`]; also where the transport does not ask the owner (`ofi+…`), and for
    /// terms that name a peer where it does not say whose transfer it is (all but `na+sm` and
    /// `na+tcp`).
    ///
    /// Counterpart: none.
    pub fn expose_on<B: Exposable>(
        &self,
        data: B,
        access: Access,
        terms: Terms,
    ) -> Result<Exposed<B>, BulkError> {
        let endpoint = self.inner().core.endpoint();
        // The owner of device memory is always asked.
        let asks_owners = endpoint.asks_owners() || data.of_device().is_some();
        let is_kept = asks_owners && (!terms.name_a_peer() || endpoint.knows_who_transfers());
        if !is_kept {
            let (transport, reason) = (endpoint.transport(), "it keeps no such terms of memory");
            let reason = reason.to_owned();
            let error = HgError::Na(na::Error::Unavailable { transport, reason });
            return Err(BulkError::Register(error));
        }
        let exposed = match data.of_device() {
            Some(_) => self.instance.expose_device(data, access, None, true)?,
            None => self.instance.expose(data, access)?,
        };
        // Nobody has its key yet.
        exposed.impose(terms);
        Ok(exposed)
    }

    /// Lets peers read `data` while `f` runs, without copying it. Does not return, not even when
    /// `f` panics, before the transfers that have begun are over; a peer that dies ends its own. A
    /// peer that is stopped in the midst of a copy holds it up for as long, and a fabric that fails
    /// to end a registration for ever, which an error in the log tells. In a child process that `f`
    /// forks off it returns at once, as no peer uses that process's copy of `data`.
    ///
    /// # Errors
    ///
    /// [`BulkError::Register`], [`BulkError::Tasklet`]; `f` was not called.
    pub fn expose_ref<T>(&self, data: &[u8], f: impl FnOnce(&Bulk) -> T) -> Result<T, BulkError> {
        let segment = RawSegment { ptr: data.as_ptr().cast_mut(), len: data.len() };
        // SAFETY:
        // - valid for reads at a fixed address: `data` is borrowed until this function ends, and
        //   `expose_scope` does not end before no transfer holds the memory;
        // - only read: registered `ReadOnly`, and never handed out as a destination;
        // - references to the bytes exist, but nobody can change them.
        let memory = unsafe { Memory::from_raw(vec![segment], ()) };
        self.instance.expose_scope(memory, Access::ReadOnly, f)
    }

    /// Lets peers write into `data` (and not read it) while `f` runs, without copying it. Does not
    /// return before the transfers that have begun are over, as [`expose_ref`](Self::expose_ref).
    ///
    /// # Errors
    ///
    /// [`BulkError::Register`], [`BulkError::Tasklet`]; `f` was not called.
    pub fn expose_mut<T>(
        &self,
        data: &mut [u8],
        f: impl FnOnce(&Bulk) -> T,
    ) -> Result<T, BulkError> {
        let segment = RawSegment { ptr: data.as_mut_ptr(), len: data.len() };
        // SAFETY:
        // - valid for reads and writes at a fixed address: `data` is borrowed until this function
        //   ends, and `expose_scope` does not end before no transfer holds the memory;
        // - no other reference: `data` is a mutable borrow that is not used meanwhile.
        let memory = unsafe { Memory::from_raw(vec![segment], ()) };
        self.instance.expose_scope(memory, Access::WriteOnly, f)
    }

    /// A zeroed buffer for [`pull`](crate::Instance::pull) and [`push`](crate::Instance::push).
    ///
    /// # Errors
    ///
    /// [`BulkError::Alloc`] when there is no such memory, so that a length that a peer has given
    /// does no harm; [`BulkError::Register`].
    pub fn bulk_buffer(&self, bytes: usize) -> Result<BulkBuffer, BulkError> {
        let memory = Memory::zeroed(bytes).map_err(|error| BulkError::Alloc(HgError::Na(error)))?;
        let memory = self.instance.register_memory(memory, Access::ReadWrite)?;
        Ok(BulkBuffer::new(memory, self.inner().core.endpoint()))
    }

    /// Several vectors as the local side of [`pull`](crate::Instance::pull) and
    /// [`push`](crate::Instance::push), without copying them. Any number, of any lengths, zero
    /// included.
    ///
    /// # Errors
    ///
    /// [`BulkError::Register`].
    pub fn bulk_segments(&self, segments: Vec<Vec<u8>>) -> Result<BulkSegments, BulkError> {
        let memory =
            self.instance.register_memory(Memory::from_vecs(segments), Access::ReadWrite)?;
        Ok(BulkSegments::new(memory, self.inner().core.endpoint()))
    }

    /// As [`expose_ref`](Self::expose_ref), for several slices that peers see as one.
    ///
    /// # Errors
    ///
    /// [`BulkError::Register`]; `f` was not called.
    pub fn expose_ref_segments<T>(
        &self,
        data: &[&[u8]],
        f: impl FnOnce(&Bulk) -> T,
    ) -> Result<T, BulkError> {
        let raw = |slice: &&[u8]| RawSegment { ptr: slice.as_ptr().cast_mut(), len: slice.len() };
        // SAFETY:
        // - valid for reads at fixed addresses: every slice is borrowed until this function ends,
        //   and `expose_scope` does not end before no transfer holds the memory;
        // - only read: registered `ReadOnly`, and never handed out as a destination;
        // - references to the bytes exist, but nobody can change them.
        let memory = unsafe { Memory::from_raw(data.iter().map(raw).collect(), ()) };
        self.instance.expose_scope(memory, Access::ReadOnly, f)
    }

    /// As [`expose_mut`](Self::expose_mut), for several slices that peers see as one.
    ///
    /// # Errors
    ///
    /// [`BulkError::Register`]; `f` was not called.
    pub fn expose_mut_segments<T>(
        &self,
        data: &mut [&mut [u8]],
        f: impl FnOnce(&Bulk) -> T,
    ) -> Result<T, BulkError> {
        let raw = |slice: &mut &mut [u8]| RawSegment { ptr: slice.as_mut_ptr(), len: slice.len() };
        // SAFETY:
        // - valid for reads and writes at fixed addresses: `data`, and through it every slice, is
        //   borrowed until this function ends, and `expose_scope` does not end before no transfer
        //   holds the memory;
        // - no other reference: they are mutable borrows, so disjoint, that are not used meanwhile.
        let memory = unsafe { Memory::from_raw(data.iter_mut().map(raw).collect(), ()) };
        self.instance.expose_scope(memory, Access::WriteOnly, f)
    }

    /// Makes a pool of registered buffers for [`pull`](crate::Instance::pull) and
    /// [`push`](crate::Instance::push). All of them are allocated now.
    ///
    /// # Errors
    ///
    /// [`BulkPoolError::Spec`], [`BulkPoolError::Buffer`].
    ///
    /// Counterpart: `margo_bulk_poolset_create`, `margo_bulk_pool_create`.
    pub fn bulk_pool(&self, spec: &BulkPoolSpec) -> Result<BulkPool, BulkPoolError> {
        let pool = BulkPool::new(spec, |bytes| self.bulk_buffer(bytes))?;
        self.inner().bulk_pools.add(&pool);
        Ok(pool)
    }
}
