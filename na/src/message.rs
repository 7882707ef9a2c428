//! Message buffers: owned, reusable, moved into an operation and back.

use std::fmt;

use crate::Error;

/// A buffer for one message. Its capacity is fixed; its length is what was written or received.
///
/// Obtain one from [`Endpoint::alloc_msg`](crate::Endpoint::alloc_msg), so that a transport which
/// needs registered memory can supply it, and reuse it: no operation allocates.
///
/// Counterpart: `NA_Msg_buf_alloc`.
///
/// One word, because it moves through an operation a dozen times.
pub struct MsgBuf(Box<Contents>);

struct Contents {
    bytes: Box<[u8]>,
    len: usize,
}

impl MsgBuf {
    /// An empty buffer that can hold `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Box::new(Contents { bytes: vec![0; capacity].into_boxed_slice(), len: 0 }))
    }

    /// Bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.0.bytes.len()
    }

    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The message.
    pub fn as_slice(&self) -> &[u8] {
        &self.0.bytes[..self.0.len]
    }

    /// The message, to change in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let Contents { bytes, len } = &mut *self.0;
        &mut bytes[..*len]
    }

    /// The whole capacity, to write into; follow with [`set_len`](Self::set_len).
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.0.bytes
    }

    /// Sets the message's length.
    ///
    /// # Panics
    ///
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.0.bytes.len(), "message length beyond the buffer's capacity");
        self.0.len = len;
    }

    /// Makes the message empty.
    pub fn clear(&mut self) {
        self.0.len = 0;
    }

    /// Whether a receive of messages of up to `needed` bytes may have it.
    #[allow(dead_code, reason = "a build may have no transport that asks")]
    pub(crate) fn check_room(&self, needed: usize) -> Result<(), Error> {
        let capacity = self.capacity();
        match capacity < needed {
            true => Err(Error::InvalidArgument(format!(
                "a receive buffer of {capacity} bytes, {needed} needed"
            ))),
            false => Ok(()),
        }
    }

    /// Appends `bytes`; `false` (and no change) when they do not fit.
    #[must_use]
    pub fn try_extend(&mut self, bytes: &[u8]) -> bool {
        let Contents { bytes: all, len } = &mut *self.0;
        let end = *len + bytes.len();
        let Some(room) = all.get_mut(*len..end) else { return false };
        room.copy_from_slice(bytes);
        *len = end;
        true
    }
}

impl fmt::Debug for MsgBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MsgBuf({} of {} bytes)", self.len(), self.capacity())
    }
}
