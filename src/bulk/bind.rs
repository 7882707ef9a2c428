//! Handles that are passed on: a third party transfers directly with the owner.

use crate::InstanceMemory;
use crate::{Addr, Bulk, BulkError};

impl InstanceMemory<'_> {
    /// Describes the memory of `bulk` anew, together with this instance's address. Any peer that
    /// the handle is passed on to can then transfer directly with this instance. Only for memory
    /// that is exposed here, and only if this instance listens.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use margo::{Access, Instance};
    ///
    /// let owner = Instance::builder("na+sm://").start()?;
    /// let exposed = owner.expose(vec![7; 100_000], Access::ReadOnly)?;
    /// let bulk = owner.memory().bind_bulk(exposed.bulk())?;
    ///
    /// // In another process, which got `bulk` from anybody:
    /// let third = Instance::builder("na+sm://").listen(false).start()?;
    /// let from = third.memory().bulk_owner(&bulk)?.ok_or("the handle is not bound")?;
    /// let mut buffer = third.memory().bulk_buffer(100_000)?;
    /// third.pull(&from, &bulk, 0, &mut buffer, 0..100_000)?;
    /// assert_eq!(buffer[99_999], 7);
    /// # third.finalize_and_wait()?;
    /// # owner.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BulkError::Owner`].
    ///
    /// Counterpart: `HG_Bulk_bind`.
    pub fn bind_bulk(&self, bulk: &Bulk) -> Result<Bulk, BulkError> {
        self.inner().may_start().map_err(BulkError::Owner)?;
        self.inner().core.bulk_bind(bulk, 0).map_err(BulkError::Owner)
    }

    /// Returns the owner of the memory behind `bulk`, if the owner has bound it
    /// ([`bind_bulk`](Self::bind_bulk)). Does not contact the owner. The answer is only as reliable
    /// as the peer that sent the handle.
    ///
    /// # Errors
    ///
    /// [`BulkError::Owner`] when the address is not of this instance's transport.
    ///
    /// Counterpart: `HG_Bulk_get_addr`.
    pub fn bulk_owner(&self, bulk: &Bulk) -> Result<Option<Addr>, BulkError> {
        self.inner().may_start().map_err(BulkError::Owner)?;
        self.inner().core.bulk_owner(bulk).map_err(BulkError::Owner)
    }
}
