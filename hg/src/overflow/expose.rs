//! Exposes a payload that did not fit into its message.

use na::{Access, Addr, LocalMem, Memory, MsgBuf};

use crate::memory::{ExposedPayload, spare};
use crate::{BulkDesc, Core, HgError, wire};

impl<T> Core<T> {
    /// Finishes a message: exposes what did not fit, and describes it there instead.
    pub(crate) fn expose_overflow(
        &self,
        peer: &Addr,
        start: usize,
        buf: MsgBuf,
        bytes: Vec<u8>,
        message_max: usize,
    ) -> Result<(MsgBuf, ExposedPayload), HgError> {
        let len = bytes.len() as u64;
        let (memory, exposed) = match self.expose_bytes(peer, bytes) {
            Ok(exposed) => exposed,
            Err(error) => {
                self.buffers.put(buf);
                return Err(error.into());
            }
        };
        let access = u32::from(Access::ReadOnly.bits());
        let parts = self.endpoint.mem_parts(&memory).filter(|parts| !parts.is_empty());
        let descriptor = match &parts {
            Some(parts) => BulkDesc::of_parts(parts, access, None).to_bytes(),
            None => {
                let handle = self.endpoint.mem_to_bytes(&memory);
                BulkDesc::opaque(len, access, &handle).to_bytes()
            }
        };
        wire::finish_overflow_at(start, buf, message_max, &descriptor)
            .map(|buf| (buf, exposed))
            .map_err(|unencoded| self.unencoded(unencoded))
    }

    /// Lets `peer` fetch a payload: from a slot, or from where it is.
    fn expose_bytes(
        &self,
        peer: &Addr,
        bytes: Vec<u8>,
    ) -> Result<(LocalMem, ExposedPayload), na::Error> {
        if let Some(exposed) = self.class.slots.expose(peer, &bytes)
            && let Some(memory) = exposed.memory().cloned()
        {
            spare::give(bytes);
            return Ok((memory, exposed));
        }
        let memory = Memory::from_vec_with(bytes, spare::give);
        let memory = self.endpoint.register(memory, Access::ReadOnly)?;
        Ok((memory.clone(), ExposedPayload::once(memory)))
    }
}
