//! The parts among which a service shares out its keys: both sides compute them alike.

/// Most parts of a provider: so many are told apart on the wire.
pub(crate) const PARTS_MAX: usize = 128;

/// Returns the part of `parts` to which a key belongs: XXH64 of its bytes with seed 0, scaled to
/// the number of parts, `(hash * parts) >> 64`. The keys of a part are a range of hashes.
/// `docs/wire.md` has examples.
///
/// # Panics
///
/// When `parts` is zero.
///
/// ```
/// assert_eq!(margo::sharded::part_of_key(b"margo", 1), 0);
/// assert!(margo::sharded::part_of_key(b"margo", 4) < 4);
/// ```
pub fn part_of_key(key: &[u8], parts: usize) -> usize {
    assert!(parts > 0, "a key among no parts");
    let hash = twox_hash::XxHash64::oneshot(0, key);
    ((u128::from(hash) * parts as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of `docs/wire.md`.
    #[test]
    fn keys_belong_to_the_parts_that_are_written_down() {
        let found = |key: &[u8]| [1, 2, 3, 8, 128].map(|parts| part_of_key(key, parts));
        // XXH64 of nothing is ef46db3751d8e999, of "a" d24ec4f1a98c6e5b, of "abc" 44bc2cf5ad770999.
        assert_eq!(found(b""), [0, 1, 2, 7, 119]);
        assert_eq!(found(b"a"), [0, 1, 2, 6, 105]);
        assert_eq!(found(b"abc"), [0, 0, 0, 2, 34]);
    }

    #[test]
    fn keys_are_spread_evenly() {
        let mut counts = [0; 8];
        (0..80_000u32).for_each(|key| counts[part_of_key(&key.to_le_bytes(), 8)] += 1);
        assert!(counts.iter().all(|count| (9_000..11_000).contains(count)), "{counts:?}");
    }
}
