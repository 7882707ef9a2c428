//! The bytes of a record on disk: a checksum, its version, its value.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | CRC-32C of the key and of all that follows, little endian |
//! | 4..12 | the version, little endian |
//! | 12.. | the value |
//!
//! The key is in the checksum, since stores find records by searching, and one that is damaged may
//! find another one's.

use std::hash::BuildHasher;

use super::view::Record;
use crate::KvError;

pub(super) const HEADER_BYTES: usize = 12;

/// Appends the bytes of a record to `out`.
pub(super) fn seal(out: &mut Vec<u8>, key: &[u8], record: Record<'_>) {
    let at = out.len();
    out.reserve(HEADER_BYTES + record.value.len());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&record.version.to_le_bytes());
    out.extend_from_slice(record.value);
    let sum = checksum(key, &out[at + 4..]);
    out[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Reads what [`seal`] has written.
///
/// # Errors
///
/// [`KvError::Corrupted`] if it is not what was written for this key.
pub(super) fn unseal<'a>(key: &[u8], bytes: &'a [u8]) -> Result<Record<'a>, KvError> {
    let read = || {
        let (sum, rest) = bytes.split_first_chunk()?;
        let (version, value) = rest.split_first_chunk()?;
        let is_right = u32::from_le_bytes(*sum) == checksum(key, rest);
        is_right.then(|| Record { version: u64::from_le_bytes(*version), value })
    };
    read().ok_or_else(|| {
        let shown = key[..key.len().min(64)].escape_ascii();
        let more = if key.len() > 64 { "…" } else { "" };
        KvError::Corrupted(format!("the record of the key \"{shown}{more}\""))
    })
}

fn checksum(key: &[u8], rest: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(key);
    digest.update(rest);
    // It has 32 bits.
    digest.finalize() as u32
}

/// The numbers that a store on disk keeps beside its records, and changes with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreState {
    /// By which the database is known, wherever its files are.
    pub(super) id: u64,
    pub(super) version: u64,
    /// Bytes of keys and values, where they are counted.
    pub(super) bytes: u64,
}

impl StoreState {
    /// The version of the bytes of stores.
    const FORMAT: u64 = 2;
    /// The key that it is sealed with.
    const NAME: &[u8] = b"margo kv";

    /// The numbers of a new store, which gets its id here.
    pub(super) fn new() -> Self {
        Self { id: random_id(), version: 0, bytes: 0 }
    }

    /// The format, and the numbers sealed.
    pub(super) fn seal(&self) -> Vec<u8> {
        let mut out = Self::FORMAT.to_le_bytes().to_vec();
        let value = [self.bytes.to_le_bytes(), self.id.to_le_bytes()].concat();
        seal(&mut out, Self::NAME, Record { version: self.version, value: &value });
        out
    }

    /// Reads what [`seal`](Self::seal) has written. `place` names the file.
    pub(super) fn unseal(place: &str, bytes: &[u8]) -> Result<Self, KvError> {
        let damaged = || KvError::Corrupted(format!("{place}: the numbers of the store"));
        let (format, sealed) = bytes.split_first_chunk().ok_or_else(damaged)?;
        let (format, known) = (u64::from_le_bytes(*format), Self::FORMAT);
        if format != known {
            return Err(KvError::Failed(format!(
                "{place}: was written by another version of margo: its format is {format}, this \
                 one reads {known}"
            )));
        }
        let Record { version, value } = unseal(Self::NAME, sealed).map_err(|_| damaged())?;
        let (bytes, id) = value.split_first_chunk().ok_or_else(damaged)?;
        let id = id.try_into().map(u64::from_le_bytes).map_err(|_| damaged())?;
        Ok(Self { id, version, bytes: u64::from_le_bytes(*bytes) })
    }
}

/// The key that bytes of the owner of a store are sealed with.
const NOTE_NAME: &[u8] = b"margo kv note";

/// Seals bytes of the owner of a store.
pub(super) fn seal_note(note: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    seal(&mut out, NOTE_NAME, Record { version: 0, value: note });
    out
}

/// Reads what [`seal_note`] has written. `place` names the file.
pub(super) fn unseal_note(place: &str, bytes: &[u8]) -> Result<Vec<u8>, KvError> {
    let note = unseal(NOTE_NAME, bytes).map(|record| record.value.to_vec());
    note.map_err(|_| KvError::Corrupted(format!("{place}: what it knows of other servers")))
}

/// An id that no other database has, but with a probability that is never met.
pub(super) fn random_id() -> u64 {
    std::hash::RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_seen() {
        let (key, value) = (&b"some key"[..], &b"some value"[..]);
        let mut bytes = Vec::new();
        seal(&mut bytes, key, Record { version: 7, value });
        let record = unseal(key, &bytes).unwrap();
        assert_eq!((record.version, record.value), (7, value));
        for bit in 0..8 * bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = unseal(key, &bytes).unwrap_err();
            assert_eq!(error.to_string(), "damaged: the record of the key \"some key\"");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes.len() {
            unseal(key, &bytes[..len]).unwrap_err();
        }
        unseal(b"some kez", &bytes).unwrap_err();
    }

    #[test]
    fn numbers_of_a_store() {
        let state = StoreState { id: 8, version: 7, bytes: 9 };
        let bytes = state.seal();
        assert_eq!(StoreState::unseal("x", &bytes), Ok(state));
        let refusal = |bytes: &[u8]| StoreState::unseal("x", bytes).unwrap_err().to_string();
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            let error = refusal(&wrong);
            assert!(
                error.contains(if at < 8 { "its format is" } else { "damaged: x: " }),
                "{error}"
            );
            refusal(&bytes[..at]);
        }
    }
}
