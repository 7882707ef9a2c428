//! Vectors of payloads that did not fit into a message, kept for the next ones.
//!
//! An allocator gives large memory back to the system as soon as it is free. With several such
//! payloads in flight, every page of each would be faulted in and zeroed again, which takes longer
//! than to fill and send it: five times as long for 16 payloads of 64 KiB at a time.
//!
//! Memory that a peer is to fill is set to zero first, so that the peer cannot make us read what
//! others sent.

use std::sync::Mutex;

use na::Memory;

use prim::sync::lock;

/// Most bytes kept, for all cores of the process.
const BYTES_MAX: usize = 64 << 20;

/// Most vectors kept.
const COUNT_MAX: usize = 64;

/// A vector that could hold so many times what is asked for is left for something longer.
const TOO_LARGE: usize = 8;

/// Up to here a vector is zeroed again, bytes. For longer ones that takes as long as new pages.
const ZEROED_MAX: usize = 1 << 20;

static KEPT: Mutex<SpareVectors> = Mutex::new(SpareVectors { vectors: Vec::new(), bytes: 0 });

/// An empty vector with room for `len` bytes.
#[inline]
pub(crate) fn take(len: usize) -> Vec<u8> {
    let kept = lock(&KEPT).take(len);
    kept.unwrap_or_else(|| Vec::with_capacity(len))
}

/// `len` zeros, for a peer to fill; a vector. An error if there is no such memory: it is the peer
/// who says how much.
pub(crate) fn zeroed(len: usize) -> Result<Memory, na::Error> {
    let kept = if len <= ZEROED_MAX { lock(&KEPT).take(len) } else { None };
    match kept {
        Some(mut vector) => {
            vector.resize(len, 0);
            Ok(Memory::from_vec(vector))
        }
        // Zeroed pages cost nothing until the data arrives, so a length that is a lie costs little.
        None => Memory::zeroed(len),
    }
}

/// Takes back what a peer has filled. Longer ones than [`zeroed`] would take again are freed.
pub(crate) fn give_filled(vector: Vec<u8>) {
    if vector.capacity() <= ZEROED_MAX {
        give(vector);
    }
}

/// Takes a vector back, for later.
pub(crate) fn give(vector: Vec<u8>) {
    let surplus = lock(&KEPT).give(vector);
    // Freed without the lock.
    drop(surplus);
}

/// The oldest first.
struct SpareVectors {
    vectors: Vec<Vec<u8>>,
    /// Capacity of all.
    bytes: usize,
}

impl SpareVectors {
    /// The last that fits: its bytes are the likeliest to be in a cache.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let fits =
            |vector: &Vec<u8>| vector.capacity() >= len && vector.capacity() / TOO_LARGE <= len;
        let at = self.vectors.iter().rposition(fits)?;
        let vector = self.vectors.remove(at);
        self.bytes -= vector.capacity();
        Some(vector)
    }

    /// Returns what there is no room for.
    fn give(&mut self, mut vector: Vec<u8>) -> Vec<Vec<u8>> {
        vector.clear();
        if vector.capacity() > BYTES_MAX {
            return vec![vector];
        }
        self.bytes += vector.capacity();
        self.vectors.push(vector);
        let mut surplus = 0;
        while self.bytes > BYTES_MAX || self.vectors.len() - surplus > COUNT_MAX {
            self.bytes -= self.vectors[surplus].capacity();
            surplus += 1;
        }
        self.vectors.drain(..surplus).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> SpareVectors {
        SpareVectors { vectors: Vec::new(), bytes: 0 }
    }

    #[test]
    fn a_vector_is_used_again_for_what_fits_it() {
        let mut kept = kept();
        assert!(kept.give(vec![7; 8000]).is_empty());
        assert_eq!(kept.take(8001), None, "too short");
        assert_eq!(kept.take(100), None, "too long");
        let again = kept.take(4000).unwrap();
        assert!(again.is_empty() && again.capacity() >= 8000);
        assert_eq!((kept.vectors.len(), kept.bytes), (0, 0));
    }

    #[test]
    fn what_a_peer_is_to_fill_has_nothing_of_others() {
        for len in [1000, 100_000, ZEROED_MAX, ZEROED_MAX + 1] {
            for _ in 0..COUNT_MAX {
                give(vec![7; len + 8]);
            }
            let zeros: Vec<u8> = zeroed(len).unwrap().into_owner().unwrap();
            assert!(zeros == vec![0; len], "{len}");
        }
    }

    #[test]
    fn the_oldest_makes_room_for_the_newest() {
        let mut kept = kept();
        let large = |len| Vec::<u8>::with_capacity(len);
        assert!(kept.give(large(BYTES_MAX / 2)).is_empty());
        assert!(kept.give(large(BYTES_MAX / 4)).is_empty());
        let surplus = kept.give(large(BYTES_MAX / 2));
        assert_eq!(surplus.len(), 1);
        assert_eq!(kept.bytes, kept.vectors.iter().map(Vec::capacity).sum::<usize>());
        assert!(kept.bytes <= BYTES_MAX);
        assert_eq!(kept.give(large(BYTES_MAX + 1)).len(), 1);
        assert_eq!(kept.vectors.len(), 2);
    }

    #[test]
    fn many_small_ones_are_not_kept() {
        let mut kept = kept();
        let surplus = (0..COUNT_MAX + 3).map(|_| kept.give(vec![0; 5000]).len()).sum::<usize>();
        assert_eq!((surplus, kept.vectors.len()), (3, COUNT_MAX));
    }
}
