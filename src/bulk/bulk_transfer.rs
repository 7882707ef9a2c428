//! The builder of a bulk transfer: everything that can be said of how data is moved, in one place.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use hg::{Bulk, BulkOp};

use crate::bulk::transfer::Plan;
use crate::operation::deadline::{self, Deadline};
use crate::{Addr, BulkError, BulkRequest, Handle, Instance, LocalBulk};

/// A bulk transfer that is about to be made, see [`Instance::bulk`]: with which memory, how long it
/// may take, and one of the ways to make it.
///
/// | method | the caller | moves |
/// |---|---|---|
/// | [`pull`](Self::pull), [`push`](Self::push) | waits | one range |
/// | [`start_pull`](Self::start_pull), [`start_push`](Self::start_push) | goes on with a [`BulkRequest`]: to wait for, to look at, to `.await` | one range |
/// | [`pull_chunks`](Self::pull_chunks), [`push_chunks`](Self::push_chunks) | works on one chunk while others are moved | a range of any length through few buffers |
///
/// Nothing is moved before one of these.
///
/// ```
/// use std::time::Duration;
///
/// use margo::{Access, Instance};
///
/// let instance = Instance::builder("na+sm://").start()?;
/// let exposed = instance.expose(vec![0; 100], Access::ReadWrite)?;
/// let (owner, remote) = (instance.self_addr(), exposed.bulk());
///
/// let mut buffer = instance.memory().bulk_buffer(4)?;
/// buffer.copy_from_slice(b"some");
/// instance.bulk(&owner, remote).timeout(Duration::from_secs(5)).push(96, &mut buffer, 0..4)?;
/// assert!(exposed.release()?.ends_with(b"some"));
/// # instance.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
#[must_use = "nothing is moved until one of its last methods is called"]
pub struct BulkTransfer<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) peer: &'a Addr,
    pub(crate) remote: &'a Bulk,
    limit: Option<Duration>,
}

impl Instance {
    /// Begins to describe a transfer between memory of this process and that behind `remote`, which
    /// belongs to `peer`. [`pull`](Self::pull) and [`push`](Self::push) are short forms of it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use margo::{Access, Instance};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let instance = Instance::builder("na+sm://").start()?;
    /// let exposed = instance.expose(vec![7; 1000], Access::ReadOnly)?;
    /// let (owner, remote) = (instance.self_addr(), exposed.bulk());
    ///
    /// let mut buffer = instance.memory().bulk_buffer(1000)?;
    /// let transfer = instance.bulk(&owner, remote).timeout(Duration::from_secs(5));
    /// transfer.pull(500, &mut buffer, 0..500)?; // the second half
    /// assert_eq!(buffer[499], 7);
    ///
    /// let request = transfer.start_pull(0, buffer, 500..1000);
    /// // … something else …
    /// let (result, buffer) = request.wait();
    /// result?;
    /// assert_eq!(buffer[999], 7);
    /// # instance.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn bulk<'a>(&'a self, peer: &'a Addr, remote: &'a Bulk) -> BulkTransfer<'a> {
        BulkTransfer { instance: self, peer, remote, limit: None }
    }
}

impl<A, R> Handle<A, R> {
    /// Begins to describe a transfer between memory of this process and that behind `remote`, which
    /// belongs to the origin. See [`Instance::bulk`].
    #[inline]
    pub fn bulk<'a>(&'a self, remote: &'a Bulk) -> BulkTransfer<'a> {
        self.instance().bulk(self.origin(), remote)
    }
}

impl<'a> BulkTransfer<'a> {
    /// Lets the transfer end with [`BulkError::TimedOut`] so long after it has been started. Then
    /// it is cancelled, and is over as soon as the peer has said that it no longer touches the
    /// buffer, or a tenth of a second later if the peer does not answer. Zero is no time at all.
    /// Default: no limit but that of the request on whose behalf the caller runs, see
    /// [`Instance::pull`].
    ///
    /// Counterpart: `margo_bulk_transfer_timed`, for which zero is no limit.
    #[inline]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Copies from the remote memory, from `remote_offset` on, into `into[local]`, and waits for
    /// it: [`Instance::pull`].
    ///
    /// # Errors
    ///
    /// As there, and [`BulkError::TimedOut`] for its own limit.
    ///
    /// Counterpart: `margo_bulk_transfer`, `margo_bulk_transfer_timed` with `HG_BULK_PULL`.
    pub fn pull(
        self,
        remote_offset: u64,
        into: &mut impl LocalBulk,
        local: Range<usize>,
    ) -> Result<(), BulkError> {
        let plan = self.plan(BulkOp::Pull, remote_offset, local);
        self.instance.transfer(plan, into, self.limit)
    }

    /// Copies `from[local]` into the remote memory, from `remote_offset` on, and waits for it:
    /// [`Instance::push`].
    ///
    /// # Errors
    ///
    /// As there, and [`BulkError::TimedOut`] for its own limit.
    ///
    /// Counterpart: `margo_bulk_transfer`, `margo_bulk_transfer_timed` with `HG_BULK_PUSH`.
    pub fn push(
        self,
        remote_offset: u64,
        from: &mut impl LocalBulk,
        local: Range<usize>,
    ) -> Result<(), BulkError> {
        let plan = self.plan(BulkOp::Push, remote_offset, local);
        self.instance.transfer(plan, from, self.limit)
    }

    /// Starts to copy from the remote memory, from `remote_offset` on, into `into[local]`, and
    /// returns at once. With a [`timeout`](Self::timeout) the transfer ends then, whether or not a
    /// caller waits for it.
    ///
    /// Counterpart: `margo_bulk_itransfer`, `margo_bulk_itransfer_timed` with `HG_BULK_PULL`.
    pub fn start_pull<B: LocalBulk + Send + 'static>(
        self,
        remote_offset: u64,
        into: B,
        local: Range<usize>,
    ) -> BulkRequest<B> {
        let plan = self.plan(BulkOp::Pull, remote_offset, local);
        self.instance.start_request_of(plan, into, self.deadline())
    }

    /// Starts to copy `from[local]` into the remote memory, from `remote_offset` on, and returns at
    /// once. Otherwise as [`start_pull`](Self::start_pull).
    ///
    /// Counterpart: `margo_bulk_itransfer`, `margo_bulk_itransfer_timed` with `HG_BULK_PUSH`.
    pub fn start_push<B: LocalBulk + Send + 'static>(
        self,
        remote_offset: u64,
        from: B,
        local: Range<usize>,
    ) -> BulkRequest<B> {
        let plan = self.plan(BulkOp::Push, remote_offset, local);
        self.instance.start_request_of(plan, from, self.deadline())
    }

    /// The deadline of what starts now.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        Deadline::of_call(self.limit, deadline::of_starter())
    }

    pub(crate) fn plan(&self, op: BulkOp, remote_offset: u64, local: Range<usize>) -> Plan<'a> {
        Plan { op, peer: self.peer, remote: self.remote, remote_offset, local }
    }
}

impl fmt::Debug for BulkTransfer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkTransfer")
            .field("peer", &self.peer)
            .field("bytes", &self.remote.len())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
