//! Items on their way into a batch.

use hg::ProcError;
use hg::proc::{self, Writer, WriterLimits, Written};
use margo::na::MsgBuf;
use serde::Serialize;

/// Room behind the length at which a batch goes, so that the item which makes it that long fits,
/// and need not be moved together with all before it.
const ROOM: usize = 4096;

/// Encoded items, one behind the other.
#[derive(Debug)]
pub(super) enum Items {
    Message(MsgBuf),
    Long(Vec<u8>),
}

impl Items {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Message(buf) => buf.as_slice(),
            Self::Long(bytes) => bytes,
        }
    }
}

/// A batch that takes further items.
#[derive(Debug)]
pub(super) struct OpenBatch {
    writer: Writer,
    count: u32,
    bytes: usize,
}

impl OpenBatch {
    pub(super) fn new(bytes: usize) -> Self {
        Self { writer: writer(MsgBuf::with_capacity(bytes + ROOM)), count: 0, bytes }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn len(&self) -> usize {
        self.writer.len()
    }

    /// Encodes an item behind those that it has.
    ///
    /// # Errors
    ///
    /// The item cannot be encoded, or has over `max` bytes: then its length. Nothing was appended.
    #[inline]
    pub(super) fn push<T: Serialize + ?Sized>(
        &mut self,
        item: &T,
        max: u64,
    ) -> Result<(), Result<u64, ProcError>> {
        let before = self.writer.len();
        let mut undo = Undo { writer: &mut self.writer, before, done: false };
        proc::to_writer(undo.writer, item).map_err(Err)?;
        let len = (undo.writer.len() - before) as u64;
        if len > max {
            return Err(Ok(len));
        }
        undo.done = true;
        drop(undo);
        self.count += 1;
        Ok(())
    }

    /// Encodes items, as long as there are any, until the batch is long enough, or has so many
    /// items. Returns false if there are no more.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push); the item is the last that was taken.
    #[inline]
    pub(super) fn fill<T: Serialize>(
        &mut self,
        items: &mut impl Iterator<Item = T>,
        until: (usize, u32),
        max: u64,
    ) -> Result<bool, Result<u64, ProcError>> {
        let (bytes, count) = until;
        let before = self.writer.len();
        let mut undo = Undo { writer: &mut self.writer, before, done: false };
        // In a register, and told when the loop is left, however that is.
        let mut counted = Counted { count: self.count, to: &mut self.count };
        loop {
            let Some(item) = items.next() else {
                undo.done = true;
                return Ok(false);
            };
            proc::to_writer(undo.writer, &item).map_err(Err)?;
            let end = undo.writer.len();
            let len = (end - undo.before) as u64;
            if len > max {
                return Err(Ok(len));
            }
            undo.before = end;
            counted.count += 1;
            if end >= bytes || counted.count >= count {
                undo.done = true;
                return Ok(true);
            }
        }
    }

    /// The batch as it is; further items come into a new one, in that memory if it is given.
    pub(super) fn take(&mut self, buf: Option<MsgBuf>) -> (Items, u32) {
        let bytes = self.bytes;
        let buf = buf.unwrap_or_else(|| MsgBuf::with_capacity(bytes + ROOM));
        let full = std::mem::replace(&mut self.writer, writer(buf));
        let items = match full.finish() {
            Written::Fits(buf) => Items::Message(buf),
            Written::Overflow(_, bytes) => Items::Long(bytes),
        };
        (items, std::mem::take(&mut self.count))
    }
}

fn writer(buf: MsgBuf) -> Writer {
    let end = buf.capacity();
    // The credit is the bound of an item.
    let limits =
        WriterLimits { bytes_max: usize::MAX >> 1, bulk_eager: false, ..WriterLimits::default() };
    Writer::new(buf, 0, end, limits)
}

struct Counted<'a> {
    count: u32,
    to: &'a mut u32,
}

impl Drop for Counted<'_> {
    #[inline]
    fn drop(&mut self) {
        *self.to = self.count;
    }
}

/// Takes an item back of which only a part was encoded, also if its `Serialize` panics.
struct Undo<'a> {
    writer: &'a mut Writer,
    before: usize,
    done: bool,
}

impl Drop for Undo<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.done {
            self.writer.truncate(self.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::ser::{Error, Serializer};

    use super::*;

    /// Encodes a part of itself, and then fails or panics.
    struct Broken(bool);

    impl Serialize for Broken {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            use serde::ser::SerializeTuple;
            let mut tuple = serializer.serialize_tuple(2)?;
            tuple.serialize_element(&7_u64)?;
            assert!(self.0, "this item panics");
            Err(S::Error::custom("this item fails"))
        }
    }

    #[test]
    fn items_fill_a_batch_up_to_one_that_fails() {
        let mut batch = OpenBatch::new(16);
        let mut numbers = 0..10_u64;
        assert_eq!(batch.fill(&mut numbers, (16, 100), 8), Ok(true));
        assert_eq!((batch.count(), batch.len()), (2, 16));
        assert_eq!(batch.fill(&mut numbers, (1000, 5), 8), Ok(true));
        assert_eq!(batch.fill(&mut numbers, (1000, 100), 8), Ok(false));
        assert_eq!((batch.count(), batch.len()), (10, 80));
        let mut texts = ["1", "2", "too long", "3"].into_iter();
        assert_eq!(batch.fill(&mut texts, (1000, 100), 12), Err(Ok(19)));
        assert_eq!((batch.count(), batch.len()), (12, 80 + 2 * 12));
        assert_eq!(texts.next(), Some("3"));
    }

    #[test]
    fn an_item_that_fails_leaves_nothing() {
        for long in [0, 3 * ROOM] {
            let mut batch = OpenBatch::new(16);
            batch.push(&1_u64, 100).unwrap();
            let text = "x".repeat(long);
            batch.push(text.as_str(), u64::MAX).unwrap();
            let before = (batch.count(), batch.len());
            assert!(batch.push(&Broken(true), 100).is_err());
            assert_eq!(batch.push("0123456789", 8), Err(Ok(21)));
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _ = batch.push(&Broken(false), 100);
            }));
            assert!(panicked.is_err());
            assert_eq!((batch.count(), batch.len()), before);
            batch.push(&2_u64, 100).unwrap();
            let (items, count) = batch.take(None);
            assert_eq!((count, items.as_slice().len()), (3, before.1 + 8));
            assert_eq!(batch.count(), 0);
        }
    }
}
