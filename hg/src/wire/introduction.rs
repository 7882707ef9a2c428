//! Introductions: messages by which two members of a cluster learn of each other before the first
//! call over a fabric.
//!
//! ```text
//! introduction, a request of the RPC `INTRODUCTION` with headers for any build:
//!     u8 version | nonce, 16 bytes | code, 16 bytes
//! challenge, the response to it:
//!     u8 version | u32 epoch | u32 lifetime | challenge, 16 bytes | code, 16 bytes | address, text
//! ```
//!
//! `core/members.rs` says what they are for. Numbers have their lowest byte first.

use na::secret::KEY_BYTES;

use crate::base::membership::{Code, Nonce, code};
use crate::{ReturnCode, RpcId};

/// The RPC of an introduction. No peer has one of that number.
pub(crate) const INTRODUCTION: RpcId = RpcId(u64::from_be_bytes(*b"margo-id"));

/// The answer to a proof that is not right: the session is not known there, or the message was
/// changed or has come before.
pub(crate) const NOT_PROVEN: ReturnCode = ReturnCode::Access;

/// The layout of both, and the meaning of proofs.
const VERSION: u8 = 1;

/// The introduction of an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// Names the session that is to be.
    pub(crate) nonce: Nonce,
    /// Shows that the origin knows a secret of the target's.
    pub(crate) code: Code,
}

impl Introduction {
    pub(crate) const BYTES: usize = 33;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [VERSION; Self::BYTES];
        bytes[1..17].copy_from_slice(&self.nonce);
        bytes[17..].copy_from_slice(&self.code);
        bytes
    }

    /// Reads one from the end of a request's payload: headers may be shorter than they were written
    /// for. `None`: it is none of this version.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let (version, rest) = payload.last_chunk::<{ Self::BYTES }>()?.split_first()?;
        let (nonce, code) = rest.split_first_chunk()?;
        let code = code.try_into().ok()?;
        (*version == VERSION).then_some(Self { nonce: *nonce, code })
    }
}

/// Longest address that a target says of itself, bytes. One with a longer one says nothing.
pub(crate) const ADDRESS_BYTES_MAX: usize = 160;

/// Bytes of a challenge before the address.
const FIXED_BYTES: usize = 41;

/// The answer of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Challenge<'a> {
    /// The epoch of the target in which it was made.
    pub(crate) epoch: u32,
    /// How long proofs of the session are accepted, milliseconds.
    pub(crate) lifetime_msec: u32,
    pub(crate) challenge: Code,
    /// Shows that the target knows the secret that the origin has proven.
    pub(crate) code: Code,
    /// Where the target is, as it says.
    pub(crate) address: &'a str,
}

impl<'a> Challenge<'a> {
    /// The code of all but the code, under the key of a secret.
    pub(crate) fn code_under(&self, key: &[u8; KEY_BYTES], nonce: &Nonce) -> Code {
        code(key, "challenge", &[nonce, &self.said(), self.address.as_bytes()])
    }

    fn said(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.lifetime_msec.to_le_bytes());
        bytes[8..].copy_from_slice(&self.challenge);
        bytes
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        [&[VERSION], &self.said()[..], &self.code, self.address.as_bytes()].concat()
    }

    /// Reads one. `None`: it is none of this version.
    pub(crate) fn read(payload: &'a [u8]) -> Option<Self> {
        let (fixed, address) = payload.split_first_chunk::<FIXED_BYTES>()?;
        let (version, rest) = fixed.split_first()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (lifetime, rest) = rest.split_first_chunk()?;
        let (challenge, code) = rest.split_first_chunk()?;
        let (epoch, lifetime_msec) = (u32::from_le_bytes(*epoch), u32::from_le_bytes(*lifetime));
        let (code, address) = (code.try_into().ok()?, str::from_utf8(address).ok()?);
        let read = Self { epoch, lifetime_msec, challenge: *challenge, code, address };
        (*version == VERSION && address.len() <= ADDRESS_BYTES_MAX).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let introduction = Introduction { nonce: [2; 16], code: [3; 16] };
        let bytes = introduction.to_bytes();
        assert_eq!(Introduction::read(&bytes), Some(introduction));
        let with_longer_headers = [&[0; 4][..], &bytes].concat();
        assert_eq!(Introduction::read(&with_longer_headers), Some(introduction));
        let (epoch, lifetime_msec) = (0x0102_0304, 0x0506_0708);
        let address = "ofi+tcp://10.0.0.7:7000";
        let (challenge, code) = ([4; 16], [5; 16]);
        let challenge = Challenge { epoch, lifetime_msec, challenge, code, address };
        let answer = challenge.to_bytes();
        assert_eq!(Challenge::read(&answer), Some(challenge));
        for len in 0..bytes.len() {
            assert_eq!(Introduction::read(&bytes[..len]), None, "{len}");
        }
        for len in 0..FIXED_BYTES {
            assert_eq!(Challenge::read(&answer[..len]), None, "{len}");
        }
        for wrong in [&[0xff][..], &[b'a'; ADDRESS_BYTES_MAX]] {
            assert_eq!(Challenge::read(&[&answer[..], wrong].concat()), None);
        }
        let [mut later, mut later_answer] = [bytes.to_vec(), answer.to_vec()];
        (later[0], later_answer[0]) = (2, 2);
        assert_eq!((Introduction::read(&later), Challenge::read(&later_answer)), (None, None));
    }
}
