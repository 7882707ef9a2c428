//! Handles to memory of this process, and the owners of others.

use na::{Addr, LocalMem};

use crate::bulk::bind;
use crate::proc::descriptor::Binding;
use crate::{Bulk, Core, HgError, MemoryAttr};

impl<T> Core<T> {
    /// A handle to registered memory, for peers. It does not keep the memory registered.
    ///
    /// Counterpart: `HG_Bulk_create`.
    pub fn bulk_handle(&self, memory: &LocalMem) -> Bulk {
        Bulk::describe(&*self.endpoint, memory, MemoryAttr::default(), None)
    }

    /// As [`bulk_handle`](Self::bulk_handle), for memory of a kind and device. Where that is not
    /// the host's, this layer moves what is
    /// [registered with the transport](na::Endpoint::register_device), and of other memory none:
    /// whoever has registered it does.
    ///
    /// # Errors
    ///
    /// [`HgError::Bulk`] when the memory is the host's and the kind is not.
    ///
    /// Counterpart: `HG_Bulk_create_attr`.
    pub fn bulk_handle_attr(&self, memory: &LocalMem, attr: MemoryAttr) -> Result<Bulk, HgError> {
        if memory.elsewhere().is_none() {
            attr.check()?;
        }
        Ok(Bulk::describe(&*self.endpoint, memory, attr, None))
    }

    /// Describes the memory of `bulk` anew, together with this endpoint's address and `context`.
    /// Any peer that the handle is passed on to can then transfer directly with this endpoint, see
    /// [`bulk_owner`](Self::bulk_owner) and [`transfer`](Self::transfer) without a peer.
    ///
    /// # Errors
    ///
    /// [`HgError::Bulk`] when the handle is not of registered memory of this process, or when this
    /// endpoint does not listen, so that a third party could not reach it.
    ///
    /// Counterpart: `HG_Bulk_bind`.
    pub fn bulk_bind(&self, bulk: &Bulk, context: u8) -> Result<Bulk, HgError> {
        let Some((memory, attr)) = bulk.memory().zip(bulk.attr()) else {
            return Err(HgError::Bulk(
                "only the owner can bind a handle, while its memory is registered".into(),
            ));
        };
        let address = self.endpoint.addr_to_bytes(&self.self_addr)?;
        if !self.options.listen || self.endpoint.addr_from_bytes(&address).is_err() {
            return Err(HgError::Bulk(format!(
                "{} does not listen, so no third party could reach the memory; open it to listen",
                self.self_addr
            )));
        }
        let address = bind::blob(&address);
        let binding = Binding { address: &address, context };
        Ok(Bulk::describe(&*self.endpoint, &memory, attr, Some(binding)))
    }

    /// Returns the owner of the memory behind a handle, if the handle names it. Does not contact
    /// the owner.
    ///
    /// # Errors
    ///
    /// [`HgError::Na`] when the address that it tells is not of this transport.
    ///
    /// Counterpart: `HG_Bulk_get_addr`.
    pub fn bulk_owner(&self, bulk: &Bulk) -> Result<Option<Addr>, HgError> {
        let address = bulk.owner_address();
        Ok(address.map(|address| self.endpoint.addr_from_bytes(address)).transpose()?)
    }
}
