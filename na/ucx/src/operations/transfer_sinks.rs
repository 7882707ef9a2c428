//! Destinations of transfers whose bytes arrive here.
//!
//! The callback that brings a chunk writes it, out of the buffer in which UCX has it: that one is
//! then free for the next chunk at once, and still in the processor's cache. The driver hears of a
//! transfer when all has come.

use std::collections::HashMap;

use crate::wire::Chunk;
use na_core::LocalMem;
use na_core::base::cheap::IntBuildHasher;

/// A rule that a peer breaks.
pub(crate) const OUTSIDE: &str = "it sends more than a transfer has";

/// The memory of a transfer, and what has come.
pub(crate) struct TransferSinks {
    memory: LocalMem,
    /// Where the transfer begins in it, and how long it is.
    at: u64,
    total: u64,
    /// Bytes that have come or are coming.
    claimed: u64,
    /// Bytes that are there.
    received: u64,
}

impl TransferSinks {
    pub(crate) fn new(memory: LocalMem, at: u64, total: u64) -> Self {
        Self { memory, at, total, claimed: 0, received: 0 }
    }

    /// So many bytes come at `offset` of the transfer: where they belong.
    pub(crate) fn claim(
        &mut self,
        offset: u64,
        len: u64,
    ) -> Result<(&LocalMem, u64), &'static str> {
        self.claimed = self.claimed.saturating_add(len);
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.total);
        match fits && self.claimed <= self.total {
            true => Ok((&self.memory, self.at + offset)),
            false => Err(OUTSIDE),
        }
    }

    /// So many bytes that were claimed are there.
    pub(crate) fn received(&mut self, len: u64) {
        self.received += len;
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.received == self.total
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), &'static str> {
        let (memory, at) = self.claim(offset, data.len() as u64)?;
        if !memory.region().write_at(at, data) {
            return Err(OUTSIDE);
        }
        self.received(data.len() as u64);
        Ok(())
    }
}

/// The outcome of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// There is more to come.
    Part,
    /// All of its transfer is there.
    Whole(Chunk),
    /// No such transfer is under way here.
    Stray(Chunk),
}

/// The transfers by which a peer writes here, by number: gets of ours, and puts of its own.
#[derive(Default)]
pub(crate) struct Incomings {
    gets: HashMap<u64, TransferSinks, IntBuildHasher>,
    puts: HashMap<u64, TransferSinks, IntBuildHasher>,
}

impl Incomings {
    fn of(&mut self, put: bool) -> &mut HashMap<u64, TransferSinks, IntBuildHasher> {
        if put { &mut self.puts } else { &mut self.gets }
    }

    pub(crate) fn begin(&mut self, put: bool, id: u64, incoming: TransferSinks) {
        self.of(put).insert(id, incoming);
    }

    /// Takes nothing for it from now on.
    pub(crate) fn end(&mut self, put: bool, id: u64) {
        self.of(put).remove(&id);
    }

    pub(crate) fn get(&mut self, put: bool, id: u64) -> Option<&mut TransferSinks> {
        self.of(put).get_mut(&id)
    }

    /// A chunk has come.
    ///
    /// # Errors
    ///
    /// The rule that it breaks.
    #[inline]
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Taken, &'static str> {
        let (chunk, data) = Chunk::split(bytes)?;
        let Some(incoming) = self.get(chunk.put, chunk.id) else { return Ok(Taken::Stray(chunk)) };
        incoming.write(chunk.offset, data)?;
        Ok(if incoming.is_whole() { Taken::Whole(chunk) } else { Taken::Part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use na_core::{Access, Memory, RegionTable};

    fn chunk(put: bool, id: u64, offset: u64, data: &[u8]) -> (Chunk, Vec<u8>) {
        let chunk = Chunk { put, id, offset };
        (chunk, [&chunk.to_bytes()[..], data].concat())
    }

    /// A get and a put with the same number, of six bytes each, and the memory of the two.
    fn two() -> (Incomings, [LocalMem; 2]) {
        let (mut all, table) = (Incomings::default(), RegionTable::default());
        let memory = [false, true].map(|put| {
            let memory = Memory::from_vec(vec![0; 8]);
            let memory = table.register(memory, Access::ReadWrite).unwrap();
            all.begin(put, 7, TransferSinks::new(memory.clone(), 1, 6));
            memory
        });
        (all, memory)
    }

    #[test]
    fn chunks_are_written_where_they_belong_and_the_last_one_is_told() {
        let (mut all, memory) = two();
        let (_, last) = chunk(false, 7, 2, b"cdef");
        assert_eq!(all.take(&last), Ok(Taken::Part));
        let (first, bytes) = chunk(false, 7, 0, b"ab");
        assert_eq!(all.take(&bytes), Ok(Taken::Whole(first)));
        for (memory, wanted) in memory.iter().zip([b"\0abcdef\0", &[0; 8]]) {
            let mut got = [0; 8];
            assert!(memory.read_at(0, &mut got));
            assert_eq!(&got, wanted);
        }
    }

    #[test]
    fn nothing_is_written_outside_of_a_transfer_and_no_more_than_it_has() {
        for (offset, data) in [(0, &b"abcdefg"[..]), (6, b"a"), (5, b"ab"), (u64::MAX, b"a")] {
            let (mut all, memory) = two();
            assert_eq!(all.take(&chunk(true, 7, offset, data).1), Err(OUTSIDE));
            let mut got = [0; 8];
            assert!(memory[1].read_at(0, &mut got));
            assert_eq!(got, [0; 8]);
        }
        let (mut all, _) = two();
        let bytes = chunk(true, 7, 0, b"abcd").1;
        assert_eq!(all.take(&bytes), Ok(Taken::Part));
        assert_eq!(all.take(&bytes), Err(OUTSIDE), "twice");
    }

    #[test]
    fn what_is_over_takes_nothing() {
        let (mut all, memory) = two();
        all.end(true, 7);
        let (stray, bytes) = chunk(true, 7, 0, b"abcdef");
        assert_eq!(all.take(&bytes), Ok(Taken::Stray(stray)));
        let mut got = [0; 8];
        assert!(memory[1].read_at(0, &mut got));
        assert_eq!(got, [0; 8]);
    }
}
