//! Items on their way into a batch.

use hg::ProcError;
use hg::proc::{self, Writer, WriterLimits, Written};
use margo::na::MsgBuf;
use margo::trace::TraceContext;
use serde::Serialize;

/// Room behind the length at which a batch goes, so that the item which makes it that long fits,
/// and need not be moved together with all before it.
const ROOM: usize = 4096;

/// Numbers that are copied into a batch together, and not encoded one by one, if there are as many.
const AT_ONCE: usize = 16;

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
    /// The length and the number of items at which it goes.
    goes_at: (usize, u32),
    /// The bytes that it may have: the credit.
    max: usize,
    /// The trace of whoever has put the first item into it.
    pub(super) trace: Option<TraceContext>,
}

impl OpenBatch {
    /// An empty one, which goes with so many bytes or items, and never has more than `max` bytes.
    pub(super) fn new((bytes, items): (usize, u32), max: u64) -> Self {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        let bytes = bytes.min(max);
        let writer = writer(MsgBuf::with_capacity(bytes + ROOM));
        Self { writer, count: 0, goes_at: (bytes, items), max, trace: None }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn len(&self) -> usize {
        self.writer.len()
    }

    pub(super) fn max(&self) -> u64 {
        self.max as u64
    }

    /// Returns whether it is to go.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.goes_at.0 || self.count >= self.goes_at.1
    }

    /// Encodes items until it is full or has `count`; returns how many, and whether the next one
    /// does not fit beside them.
    ///
    /// # Errors
    ///
    /// An item cannot be encoded, or is too long by itself: then its length. Nothing of it was
    /// appended.
    #[inline]
    pub(super) fn fill<T: Serialize + 'static>(
        &mut self,
        items: &[T],
        count: u32,
    ) -> Result<(usize, bool), Result<u64, ProcError>> {
        // One by one, the loop below is quicker.
        if items.len() >= AT_ONCE
            && let Some(bytes) = proc::bytes_of_numbers(items)
        {
            return self.fill_with_numbers(bytes, size_of::<T>(), count);
        }
        let (goes_at, max) = (self.goes_at.0, self.max);
        let before = self.writer.len();
        let mut undo = Undo { writer: &mut self.writer, before };
        // In a register, and told when the loop is left, however that is.
        let mut counted = Counted { count: self.count, to: &mut self.count };
        let count = count.min(self.goes_at.1);
        for (taken, item) in items.iter().enumerate() {
            proc::to_writer(undo.writer, item).map_err(Err)?;
            let end = undo.writer.len();
            if end > max {
                let len = end - undo.before;
                return if len > max { Err(Ok(len as u64)) } else { Ok((taken, true)) };
            }
            undo.before = end;
            counted.count += 1;
            if end >= goes_at || counted.count >= count {
                return Ok((taken + 1, false));
            }
        }
        Ok((items.len(), false))
    }

    /// As [`fill`](Self::fill), with items that are encoded already and have `each` bytes.
    fn fill_with_numbers(
        &mut self,
        items: &[u8],
        each: usize,
        count: u32,
    ) -> Result<(usize, bool), Result<u64, ProcError>> {
        let len = self.writer.len();
        let fit = (self.max - len) / each;
        if fit == 0 {
            return if each > self.max { Err(Ok(each as u64)) } else { Ok((0, true)) };
        }
        // A batch that is full takes an item all the same, as one by one.
        let until_full = self.goes_at.0.saturating_sub(len).div_ceil(each);
        let by_count = count.min(self.goes_at.1).saturating_sub(self.count);
        let full = until_full.min(by_count as usize).max(1);
        let all = items.len() / each;
        let taken = all.min(full).min(fit);
        self.writer.put(&items[..taken * each]).map_err(Err)?;
        self.count += taken as u32;
        Ok((taken, taken < all.min(full)))
    }

    /// The batch as it is; further items come into a new one, in that memory if it is given.
    pub(super) fn take(&mut self, buf: Option<MsgBuf>) -> (Items, u32) {
        let room = self.goes_at.0 + ROOM;
        let buf = buf.unwrap_or_else(|| MsgBuf::with_capacity(room));
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

/// The number of items, which is told when this is dropped.
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

/// Takes back what stands behind the whole items: one of which only a part was encoded, also if its
/// `Serialize` panics.
struct Undo<'a> {
    writer: &'a mut Writer,
    before: usize,
}

impl Drop for Undo<'_> {
    #[inline]
    fn drop(&mut self) {
        self.writer.truncate(self.before);
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
        let mut batch = OpenBatch::new((16, 100), 1000);
        let numbers: Vec<u64> = (0..10).collect();
        assert_eq!(batch.fill(&numbers, 100), Ok((2, false)));
        assert_eq!((batch.count(), batch.len(), batch.is_full()), (2, 16, true));
        let mut batch = OpenBatch::new((1000, 5), 1000);
        assert_eq!(batch.fill(&numbers, 3), Ok((3, false)));
        assert_eq!(batch.fill(&numbers[3..], 100), Ok((2, false)));
        assert!(batch.is_full());
        let mut batch = OpenBatch::new((1000, 100), 30);
        assert_eq!(batch.fill(&numbers, 100), Ok((3, true)), "a fourth goes beyond the credit");
        batch.take(None);
        assert_eq!(batch.fill(&["1", "2", "as long as nothing"], 100), Ok((2, true)));
        assert_eq!((batch.count(), batch.len()), (2, 24));
        assert_eq!(batch.fill(&["far too long for this credit"], 100), Err(Ok(39)));
        assert_eq!((batch.count(), batch.len()), (2, 24));
    }

    /// Encoded as a number, and one by one.
    #[derive(Serialize, Clone, Copy)]
    struct Number(u64);

    #[test]
    fn many_numbers_fill_a_batch_as_one_by_one() {
        let numbers: Vec<u64> = (0..100).collect();
        let each: Vec<Number> = numbers.iter().map(|number| Number(*number)).collect();
        // Bytes and items at which it goes, the credit, items that are there before, and the count.
        for goes_at in [0, 1, 16, 100, 128, 1 << 20] {
            for (items, max) in [(1, 1000), (7, 1000), (1000, 1000), (1000, 0), (1000, 7), (50, 90)]
            {
                for before in [0, 1, 3] {
                    for count in [1, 5, 1000] {
                        let mut batches = [(); 2].map(|()| OpenBatch::new((goes_at, items), max));
                        let [at_once, one_by_one] = &mut batches;
                        let first = (
                            numbers[..before].iter().map(|n| at_once.fill(&[*n], count)).collect(),
                            each[..before].iter().map(|n| one_by_one.fill(&[*n], count)).collect(),
                        );
                        let (first, same): (Vec<_>, Vec<_>) = first;
                        assert_eq!(first, same);
                        let what = format!("{goes_at} {items} {max} {before} {count}");
                        let taken = at_once.fill(&numbers, count);
                        assert_eq!(taken, one_by_one.fill(&each, count), "{what}");
                        let [first, second] = batches.map(|mut batch| batch.take(None));
                        assert_eq!(first.1, second.1, "{what}");
                        assert_eq!(first.0.as_slice(), second.0.as_slice(), "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_item_that_fails_leaves_nothing() {
        for long in [0, 3 * ROOM] {
            let mut batch = OpenBatch::new((1 << 20, 100), 1 << 20);
            batch.fill(&[1_u64], 100).unwrap();
            let text = "x".repeat(long);
            batch.fill(&[text], 100).unwrap();
            let before = (batch.count(), batch.len());
            assert!(batch.fill(&[Broken(true)], 100).is_err());
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _ = batch.fill(&[Broken(false)], 100);
            }));
            assert!(panicked.is_err());
            assert_eq!((batch.count(), batch.len()), before);
            batch.fill(&[2_u64], 100).unwrap();
            let (items, count) = batch.take(None);
            assert_eq!((count, items.as_slice().len()), (3, before.1 + 8));
            assert_eq!(batch.count(), 0);
        }
    }
}
