//! Keys of peers' memory, as UCX reads them.
//!
//! `ucp_ep_rkey_unpack` takes no length: it reads a mask of memory domains, and for each bit of it
//! a length and so many bytes (`ucp_ep_rkey_unpack_internal`, ucp_rkey.c). So a key of a peer is
//! put in front of as many zeros as the longest key has bytes: whatever the mask says, what
//! follows the key has no length, and reading stays inside.

use super::wire::KEY_BYTES_MAX;

/// Bytes that a mask of 64 domains, each with its longest key of 255 bytes, and the distances that
/// newer versions append, can make UCX read.
const READ_MAX: usize = 64 * 256 + KEY_BYTES_MAX + 1024;

/// Room for one key at a time.
#[derive(Debug)]
pub(super) struct Keyring {
    room: Box<[u8]>,
    used: usize,
}

impl Default for Keyring {
    fn default() -> Self {
        Self { room: vec![0; READ_MAX].into(), used: 0 }
    }
}

impl Keyring {
    /// The key, with zeros behind it; `None` when it is longer than any key is.
    pub(super) fn put(&mut self, key: &[u8]) -> Option<*const u8> {
        if key.len() > KEY_BYTES_MAX {
            return None;
        }
        let used = self.used.max(key.len());
        self.room[..used].fill(0);
        self.room[..key.len()].copy_from_slice(key);
        self.used = key.len();
        Some(self.room.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_last_key_is_left() {
        let mut keyring = Keyring::default();
        keyring.put(&[7; 100]).unwrap();
        keyring.put(&[9; 3]).unwrap();
        assert!(keyring.room[..3] == [9; 3] && keyring.room[3..].iter().all(|byte| *byte == 0));
        assert_eq!(keyring.put(&[1; KEY_BYTES_MAX + 1]), None);
    }
}
