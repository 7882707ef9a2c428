//! Receives that were given up and stay with libfabric, for messages that come late.
//!
//! A provider may hold only few messages that no receive waits for: `net` of libfabric 1.17 keeps
//! four of up to 128 bytes for each connection, and reads no more from it until a receive takes
//! the next one (`xnet_save_and_cont`). An answer after its caller's deadline would block
//! everything else of that peer for good. So a receive is reported when it is given up, with
//! another buffer, and stays posted as a sink: the late message goes to the next receive for the
//! same peer and tag, if there is one, which becomes a sink in its place; else it is thrown away.
//!
//! Sinks are bounded in number and bytes. Beyond, libfabric is asked to end the oldest.

use std::collections::BTreeMap;

/// Most sinks, unless the provider takes few receives.
const COUNT_MAX: usize = 4096;

/// Most bytes in their buffers.
const BYTES_MAX: usize = 16 << 20;

/// Sinks, by the age of their receives.
pub(crate) struct Sinks {
    /// Slot and bytes, by the receive's number.
    by_age: BTreeMap<u64, (u32, usize)>,
    bytes: usize,
    count_max: usize,
}

impl Sinks {
    /// For a provider that takes so many receives at a time: a quarter may be sinks.
    pub(crate) fn new(receives_max: usize) -> Self {
        let count_max = (receives_max / 4).clamp(1, COUNT_MAX);
        Self { by_age: BTreeMap::new(), bytes: 0, count_max }
    }

    /// The receive of that number, in that slot, has become one.
    pub(crate) fn add(&mut self, number: u64, slot: u32, bytes: usize) {
        if self.by_age.insert(number, (slot, bytes)).is_none() {
            self.bytes += bytes;
        }
    }

    /// It has ended.
    pub(crate) fn remove(&mut self, number: u64) {
        if let Some((_, bytes)) = self.by_age.remove(&number) {
            self.bytes -= bytes;
        }
    }

    /// The slot of the oldest one if there are too many, which is none any more.
    pub(crate) fn excess(&mut self) -> Option<u32> {
        if self.by_age.len() <= self.count_max && self.bytes <= BYTES_MAX {
            return None;
        }
        let (_, (slot, bytes)) = self.by_age.pop_first()?;
        self.bytes -= bytes;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_too_long_ones() {
        let mut sinks = Sinks::new(12);
        for number in [5, 3, 4] {
            sinks.add(number, number as u32, 10);
            assert_eq!(sinks.excess(), None);
        }
        sinks.add(6, 6, 10);
        assert_eq!((sinks.excess(), sinks.excess()), (Some(3), None));
        sinks.remove(3);
        sinks.remove(5);
        assert_eq!(sinks.bytes, 20);
        sinks.add(7, 7, BYTES_MAX - 20);
        assert_eq!(sinks.excess(), None);
        sinks.remove(7);
        sinks.add(8, 8, BYTES_MAX - 10);
        assert_eq!((sinks.excess(), sinks.excess()), (Some(4), None));
        assert_eq!(sinks.bytes, BYTES_MAX);
    }

    #[test]
    fn providers_that_take_few_receives_keep_most_of_them() {
        assert_eq!(Sinks::new(1024).count_max, 256);
        assert_eq!(Sinks::new(usize::MAX).count_max, COUNT_MAX);
        assert_eq!(Sinks::new(0).count_max, 1);
    }
}
