//! The destination of an encoding: the message, and a vector instead when the message is full.

use na::{MsgBuf, copy_bytes};

use super::ProcLimits;
use crate::ProcError;
use crate::memory::spare;

/// Longest room that is taken ahead for later bytes.
const AHEAD_MAX: usize = 64 << 10;

/// Takes the bytes of an encoding.
///
/// Begins in the payload part of a message. When that is full, everything moves to a vector that
/// grows by doubling; the message will then carry a descriptor of it instead (overflow).
///
/// ```
/// use hg::proc::{Writer, WriterLimits, Written, to_writer};
/// use na::MsgBuf;
///
/// let mut writer = Writer::new(MsgBuf::with_capacity(64), 16, 64, WriterLimits::default());
/// writer.put(b"\x07")?;
/// to_writer(&mut writer, &258_u16)?;
/// let Written::Fits(message) = writer.finish() else { panic!("three bytes fit") };
/// assert_eq!(message.as_slice()[16..], [7, 2, 1], "headers go before them");
/// # Ok::<(), hg::ProcError>(())
/// ```
///
/// Counterpart: `hg_proc_t` with its extra buffer.
#[derive(Debug)]
pub struct Writer {
    buf: MsgBuf,
    /// Where the payload begins in `buf`.
    start: usize,
    /// Where the next byte goes in `buf`, until it overflows.
    at: usize,
    /// Where the payload must end in `buf`; 0 once it overflowed, so that nothing fits.
    end: usize,
    overflow: Option<Vec<u8>>,
    limits: WriterLimits,
}

/// The liberties of a [`Writer`] beyond filling its message.
///
/// ```
/// use hg::ProcError;
/// use hg::proc::{Writer, WriterLimits};
/// use na::MsgBuf;
///
/// let limits = WriterLimits { bytes_max: 100, ..WriterLimits::default() };
/// let mut writer = Writer::new(MsgBuf::with_capacity(64), 0, 64, limits);
/// assert_eq!(writer.put(&[0; 101]), Err(ProcError::TooLong { max: 100 }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterLimits {
    /// Longest encoding, bytes. At most the message's room if nothing may overflow.
    pub bytes_max: usize,
    /// Let small bulk data travel inside its descriptor.
    pub bulk_eager: bool,
    /// Bounds of encoded values.
    pub proc: ProcLimits,
}

impl Default for WriterLimits {
    /// 256 MiB, which is what receivers accept by default; with eager bulk data.
    fn default() -> Self {
        Self { bytes_max: 256 << 20, bulk_eager: true, proc: ProcLimits::default() }
    }
}

/// Where the bytes went.
///
/// ```
/// use hg::proc::{Writer, WriterLimits, Written};
/// use na::MsgBuf;
///
/// let mut writer = Writer::new(MsgBuf::with_capacity(64), 0, 64, WriterLimits::default());
/// writer.put(&[7; 100])?;
/// match writer.finish() {
///     Written::Fits(message) => panic!("100 bytes do not: {message:?}"),
///     Written::Overflow(_, bytes) => assert_eq!(bytes, [7; 100]),
/// }
/// # Ok::<(), hg::ProcError>(())
/// ```
#[derive(Debug)]
pub enum Written {
    /// Into the message, whose length is set.
    Fits(MsgBuf),
    /// All of them into the vector; the message holds nothing of use and has no length.
    Overflow(MsgBuf, Vec<u8>),
}

impl Writer {
    /// Writes into `buf` from byte `start` on, up to byte `end` (at most its capacity).
    #[inline]
    pub fn new(buf: MsgBuf, start: usize, end: usize, limits: WriterLimits) -> Self {
        let end = end.min(buf.capacity()).min(start.saturating_add(limits.bytes_max));
        Self { buf, start, at: start.min(end), end, overflow: None, limits }
    }

    /// Appends bytes.
    ///
    /// # Errors
    ///
    /// [`ProcError::TooLong`]; nothing was appended.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), ProcError> {
        match self.room(bytes.len()) {
            Some(room) => {
                copy_bytes::fill(room, bytes);
                Ok(())
            }
            None => self.put_overflow(&[bytes]),
        }
    }

    /// Appends a number: by one store, where `put` may be a call of `memcpy`.
    #[inline]
    pub(super) fn put_array<const N: usize>(&mut self, bytes: [u8; N]) -> Result<(), ProcError> {
        match self.room(N).and_then(|room| room.first_chunk_mut()) {
            Some(room) => {
                *room = bytes;
                Ok(())
            }
            None => self.put_overflow(&[&bytes]),
        }
    }

    /// Appends bytes behind their length.
    #[inline]
    pub(super) fn put_counted(&mut self, bytes: &[u8]) -> Result<(), ProcError> {
        let len = (bytes.len() as u64).to_le_bytes();
        // No overflow of sums here and below: nothing is longer than an allocation.
        if let Some((count, room)) =
            self.room(len.len() + bytes.len()).and_then(|room| room.split_first_chunk_mut())
        {
            *count = len;
            copy_bytes::fill(room, bytes);
            return Ok(());
        }
        self.put_overflow(&[&len, bytes])
    }

    /// Appends an `hg_string_t`.
    #[inline]
    pub(super) fn put_str(&mut self, text: &str, is_const: bool) -> Result<(), ProcError> {
        let len = (text.len() as u64 + 1).to_le_bytes();
        if let Some((count, rest)) =
            self.room(len.len() + text.len() + 3).and_then(|room| room.split_first_chunk_mut())
            && let Some((room, [nul, const_flag, owned_flag])) = rest.split_last_chunk_mut()
        {
            *count = len;
            copy_bytes::fill(room, text.as_bytes());
            // One by one: put together elsewhere first, they would have to be waited for.
            *nul = 0;
            *const_flag = u8::from(is_const);
            *owned_flag = 0;
            return Ok(());
        }
        self.put_overflow(&[&len, text.as_bytes(), &[0, u8::from(is_const), 0]])
    }

    /// The next `len` bytes of the message, now taken; `None` if they would not fit.
    #[inline]
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let (at, end) = (self.at, self.at + len);
        if end > self.end {
            return None;
        }
        let room = self.buf.spare_mut().get_mut(at..end)?;
        self.at = end;
        Some(room)
    }

    #[cold]
    #[inline(never)]
    fn put_overflow(&mut self, pieces: &[&[u8]]) -> Result<(), ProcError> {
        let len = self.len() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if len > self.limits.bytes_max {
            return Err(ProcError::TooLong { max: self.limits.bytes_max });
        }
        if self.overflow.is_none() {
            // What comes in small pieces may go on for as long again.
            let mut all = spare::take(len + len.min(AHEAD_MAX));
            copy_bytes::append(&mut all, &self.buf.spare_mut()[self.start..self.at]);
            self.overflow = Some(all);
            self.end = 0;
        }
        if let Some(all) = &mut self.overflow {
            pieces.iter().for_each(|piece| copy_bytes::append(all, piece));
        }
        Ok(())
    }

    /// Bounds of encoded values.
    #[inline]
    pub(super) fn proc_limits(&self) -> &ProcLimits {
        &self.limits.proc
    }

    /// Bytes written.
    #[inline]
    pub fn len(&self) -> usize {
        self.overflow.as_ref().map_or(self.at - self.start, Vec::len)
    }

    /// Returns whether nothing was written.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes back what was written behind the first `len` bytes, if there is more.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        match &mut self.overflow {
            Some(all) => all.truncate(len),
            None => self.at = self.at.min(self.start + len),
        }
    }

    /// Replaces bytes that were written before.
    ///
    /// # Panics
    ///
    /// If they were not.
    #[inline]
    pub(super) fn patch(&mut self, at: usize, bytes: &[u8]) {
        let (whole, start) = match &mut self.overflow {
            Some(all) => (all.as_mut_slice(), at),
            None => (&mut self.buf.spare_mut()[..self.at], self.start + at),
        };
        whole[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// The byte written at `at`.
    #[inline]
    pub(super) fn byte(&mut self, at: usize) -> u8 {
        match &self.overflow {
            Some(all) => all[at],
            None => self.buf.spare_mut()[self.start + at],
        }
    }

    /// Returns whether bulk data of that many bytes may be embedded: it is allowed, and the message
    /// has room.
    #[inline]
    pub(super) fn may_embed(&self, bytes: u64) -> bool {
        self.limits.bulk_eager
            && self.overflow.is_none()
            && self.end.saturating_sub(self.at) as u64 >= bytes
    }

    /// Where the bytes went.
    #[inline]
    pub fn finish(mut self) -> Written {
        match self.overflow {
            Some(all) => {
                self.buf.clear();
                Written::Overflow(self.buf, all)
            }
            None => {
                self.buf.set_len(self.at);
                Written::Fits(self.buf)
            }
        }
    }

    /// The message, with its length, if all that was written is in it: to look at before it is
    /// taken.
    #[inline]
    pub(crate) fn message(&mut self) -> Option<&mut MsgBuf> {
        if self.overflow.is_some() {
            return None;
        }
        self.buf.set_len(self.at);
        Some(&mut self.buf)
    }

    /// Takes the message, of which [`message`](Self::message) has just said that all is in it.
    #[inline]
    pub(crate) fn into_message(self) -> MsgBuf {
        self.buf
    }

    /// Gives the message back, without what was written.
    pub fn into_buf(mut self) -> MsgBuf {
        self.buf.clear();
        self.buf
    }
}
