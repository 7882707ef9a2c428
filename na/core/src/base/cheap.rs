//! A hash for tables whose keys are integers of ours, or bounded in number.

use std::hash::{BuildHasherDefault, Hasher};

/// Hashes one integer with one multiplication. Keys that a peer chooses to collide cost only as
/// many comparisons as its bound lets it hold early messages.
///
/// ```
/// use std::hash::Hasher;
///
/// use na_core::base::cheap::IntHasher;
///
/// let hash = |number| {
///     let mut hasher = IntHasher::default();
///     hasher.write_u64(number);
///     hasher.finish()
/// };
/// assert_ne!(hash(1), hash(2));
/// ```
#[derive(Debug, Default, Clone, Copy)]
pub struct IntHasher(u64);

/// Builds [`IntHasher`]s.
///
/// ```
/// use std::collections::HashMap;
///
/// use na_core::base::cheap::IntBuildHasher;
///
/// let mut peers: HashMap<u64, &str, IntBuildHasher> = HashMap::default();
/// peers.insert(7, "na+tcp://10.0.0.1:7000");
/// assert!(peers.contains_key(&7));
/// ```
pub type IntBuildHasher = BuildHasherDefault<IntHasher>;

impl Hasher for IntHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        let product =
            u128::from(self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
