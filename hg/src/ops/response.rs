//! Responses at the origin.

use std::fmt;

use crate::memory::{Buffers, Payload};

/// A response: what stands behind Mercury's headers. Gives its buffer back when dropped.
pub struct Response {
    payload: Payload,
    /// Names the pool of its buffer.
    pool: u64,
}

impl Response {
    #[inline]
    pub(crate) fn new(payload: Payload, buffers: &Buffers) -> Self {
        Self { payload, pool: buffers.number() }
    }

    /// Returns the response of a one-way call, which is empty.
    #[inline]
    pub(crate) fn empty() -> Self {
        Self { payload: Payload::None, pool: 0 }
    }

    /// The bytes; all of them, also if they had overflowed. Its length is what C calls the output
    /// payload size.
    ///
    /// Counterpart: `HG_Get_output_buf`, `HG_Get_output_extra_buf`, `HG_Get_output_payload_size`.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.payload.as_slice()
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        self.payload.recycle(self.pool);
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({} bytes)", self.payload().len())
    }
}
