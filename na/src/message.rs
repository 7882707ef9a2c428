//! Message buffers: owned, reusable, moved into an operation and back.

use std::fmt;

/// A buffer for one message. Its capacity is fixed; its length is what was written or received.
///
/// Obtain one from [`Endpoint::alloc_msg`](crate::Endpoint::alloc_msg), so that a transport which
/// needs registered memory can supply it, and reuse it: no operation allocates.
///
/// Counterpart: `NA_Msg_buf_alloc`.
pub struct MsgBuf {
    bytes: Box<[u8]>,
    len: usize,
}

impl MsgBuf {
    /// An empty buffer that can hold `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bytes: vec![0; capacity].into_boxed_slice(), len: 0 }
    }

    /// Bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The message.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The message, to change in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// The whole capacity, to write into; follow with [`set_len`](Self::set_len).
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Sets the message's length.
    ///
    /// # Panics
    ///
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes.len(), "message length beyond the buffer's capacity");
        self.len = len;
    }

    /// Makes the message empty.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends `bytes`; `false` (and no change) when they do not fit.
    #[must_use]
    pub fn try_extend(&mut self, bytes: &[u8]) -> bool {
        let end = self.len + bytes.len();
        let Some(room) = self.bytes.get_mut(self.len..end) else { return false };
        room.copy_from_slice(bytes);
        self.len = end;
        true
    }
}

impl fmt::Debug for MsgBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MsgBuf({} of {} bytes)", self.len, self.bytes.len())
    }
}
